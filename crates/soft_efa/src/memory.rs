//! Registered memory: a table of keys in shared memory, one for each open device of a process, and the way into it.
//!
//! The owner writes the table; a peer that wants to read or write looks its key up, counts itself as a user of the entry for as
//! long as it copies, and copies by the system's calls for other processes' memory. So nothing is reached but what is registered,
//! for what it is registered for, by the consent of its owner; and memory is free again only when the last copy has ended.

use crate::abi;
use crate::share::Shared;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Registrations of one open device, as many as a real card takes.
pub const MOST: usize = 1 << 18;
/// Bits of a remote key below its place in the table: drawn anew for each registration, so that an old key is found out.
const LOW_BITS: u32 = 14;
/// A local key has 24 bits, since a request has room for no more: its place, and so many of the others.
const LOCAL_BITS: u32 = 24 - MOST.ilog2();
/// A copy into memory that is given back ends within this time, or its process has died in the middle of it, or stands still.
const LAST_COPY: Duration = Duration::from_secs(2);

#[repr(C)]
struct Entry {
    /// 0: free.
    key: AtomicU32,
    access: AtomicU32,
    address: AtomicU64,
    length: AtomicU64,
    users: AtomicU64,
    /// Number of the protection domain.
    domain: AtomicU64,
}

/// What is asked of a registration.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// First byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// For which uses.
    pub access: u32,
    /// The protection domain of the queue pair that uses it.
    pub domain: u32,
}

/// The local key of a registration with this remote key.
pub fn local_key(key: u32) -> u32 {
    (key >> LOW_BITS) << LOCAL_BITS | key & ((1 << LOCAL_BITS) - 1)
}

/// The table of one open device.
#[derive(Debug)]
pub struct Table {
    memory: Shared,
}

/// Why memory cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No such key, or not this range of it, or not for this.
    Key,
    /// The process has gone.
    Gone,
    /// The system refuses, or the memory is not there.
    System(i32),
}

/// A hold on an entry: its memory stays while this is there.
pub struct Hold<'a>(&'a Entry);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        // The owner's acquire in `remove` then sees the copy as done.
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

impl Table {
    /// An empty table of this process.
    pub fn new(name: &str) -> io::Result<Table> {
        let mut memory = Shared::new(MOST * size_of::<Entry>(), false)?;
        memory.publish(name)?;
        Ok(Table { memory })
    }

    /// A peer's table.
    pub fn open(name: &str) -> io::Result<Table> {
        let memory = Shared::open(name)?;
        if memory.bytes() < MOST * size_of::<Entry>() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Table { memory })
    }

    fn entry(&self, index: usize) -> &Entry {
        // SAFETY: the table has MOST entries, which begin as zeros and are atomic.
        unsafe { &*self.memory.base().cast::<Entry>().add(index % MOST) }
    }

    /// Registers a range in a free place; the key is never 0.
    pub fn add(&self, index: usize, random: u32, range: Range) -> u32 {
        let entry = self.entry(index);
        let key = ((index as u32) << LOW_BITS) | (random & ((1 << LOW_BITS) - 1)).max(1);
        entry.address.store(range.address, Ordering::Relaxed);
        entry.length.store(range.bytes, Ordering::Relaxed);
        entry.access.store(range.access, Ordering::Relaxed);
        entry.domain.store(range.domain.into(), Ordering::Relaxed);
        // Who finds the key must find its range: the acquire in `hold`.
        entry.key.store(key, Ordering::SeqCst);
        key
    }

    /// Takes a registration back, and waits for copies that are under way, 2 s at most. Returns its place, which is free; `None`
    /// where a copy has not ended: its process may still count itself out, so the place is never used again.
    pub fn remove(&self, key: u32) -> Option<usize> {
        self.remove_within(key, LAST_COPY)
    }

    fn remove_within(&self, key: u32, patience: Duration) -> Option<usize> {
        let index = (key >> LOW_BITS) as usize;
        let entry = self.entry(index);
        // Before the look at the users: a peer counts itself before it looks at the key, so one of the two sees the other.
        entry.key.compare_exchange(key, 0, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        let started = Instant::now();
        while entry.users.load(Ordering::SeqCst) > 0 {
            if started.elapsed() >= patience {
                return None;
            }
            std::thread::yield_now();
        }
        Some(index)
    }

    /// Holds a range for these uses.
    pub fn hold(&self, key: u32, range: Range) -> Result<Hold<'_>, Refused> {
        let entry = self.entry((key >> LOW_BITS) as usize);
        // See `remove`.
        entry.users.fetch_add(1, Ordering::SeqCst);
        let hold = Hold(entry);
        let known = key != 0 && entry.key.load(Ordering::SeqCst) == key;
        if known && covers(entry, range) { Ok(hold) } else { Err(Refused::Key) }
    }

    /// Whether a local key of this process covers a range for these uses: its own thread asks, so no hold is needed.
    pub fn allows(&self, local: u32, range: Range) -> bool {
        let entry = self.entry((local >> LOCAL_BITS) as usize);
        let key = entry.key.load(Ordering::Acquire);
        key != 0 && local_key(key) == local && covers(entry, range)
    }
}

fn covers(entry: &Entry, range: Range) -> bool {
    let (start, length) = (entry.address.load(Ordering::Relaxed), entry.length.load(Ordering::Relaxed));
    let end = range.address.checked_add(range.bytes);
    range.access & !entry.access.load(Ordering::Relaxed) == 0
        && entry.domain.load(Ordering::Relaxed) == u64::from(range.domain)
        && range.address >= start
        && end.is_some_and(|end| end <= start.saturating_add(length))
}

/// One side of a copy: addresses with their lengths.
pub type Pieces<'a> = &'a [(u64, u64)];

/// Copies between this process and another one, or this one: `out` from here to there, otherwise from there to here. Copies as
/// much as both sides have.
///
/// # Safety
/// Our pieces are memory of this process that nobody else writes or, on the way in, reads meanwhile.
pub unsafe fn copy(pid: i32, ours: Pieces<'_>, theirs: Pieces<'_>, out: bool) -> Result<u64, Refused> {
    let (mut ours, mut theirs) = (Walk::new(ours), Walk::new(theirs));
    let own = pid == std::process::id() as i32;
    let mut moved = 0;
    loop {
        let bytes = ours.left().min(theirs.left());
        if bytes == 0 {
            return Ok(moved);
        }
        let (here, there) = (ours.address(), theirs.address());
        let done = if own {
            let (from, to) = if out { (here, there) } else { (there, here) };
            let from = std::ptr::with_exposed_provenance::<u8>(from as usize);
            let to = std::ptr::with_exposed_provenance_mut::<u8>(to as usize);
            // SAFETY: ours by the caller; theirs is memory of this process that is registered. They may overlap.
            unsafe { std::ptr::copy(from, to, bytes as usize) };
            bytes
        } else {
            other_process(pid, here, there, bytes, out)?
        };
        moved += done;
        ours.go(done);
        theirs.go(done);
    }
}

/// As [`copy`], with one stretch on the other side: what lies behind `cut` bytes of it first. A card promises no order of the bytes of a write.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn copy_end_first(
    pid: i32,
    ours: Pieces<'_>,
    (address, bytes): (u64, u64),
    cut: u64,
    out: bool,
) -> Result<(), Refused> {
    let cut = cut.min(bytes);
    if cut == 0 {
        // SAFETY: the caller's contract.
        return unsafe { copy(pid, ours, &[(address, bytes)], out) }.map(drop);
    }
    let (mut before, mut at) = (Vec::with_capacity(ours.len()), 0u64);
    let mut behind = Vec::with_capacity(ours.len());
    for &(start, length) in ours {
        let here = length.min(cut.saturating_sub(at));
        before.push((start, here));
        behind.push((start + here, length - here));
        at += length;
    }
    // SAFETY: the caller's contract, for parts of it.
    unsafe {
        copy(pid, &behind, &[(address + cut, bytes - cut)], out)?;
        copy(pid, &before, &[(address, cut)], out)?;
    }
    Ok(())
}

/// One stretch from or to another process's memory.
fn other_process(pid: i32, here: u64, there: u64, bytes: u64, out: bool) -> Result<u64, Refused> {
    let stretch = |address: u64| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
        iov_len: bytes as usize,
    };
    let (local, remote) = (stretch(here), stretch(there));
    // SAFETY: the system checks both sides; ours is the caller's to vouch for.
    let moved = unsafe {
        if out {
            libc::process_vm_writev(pid, &local, 1, &remote, 1, 0)
        } else {
            libc::process_vm_readv(pid, &local, 1, &remote, 1, 0)
        }
    };
    match moved {
        1.. => Ok(moved as u64),
        _ => match io::Error::last_os_error().raw_os_error().unwrap_or_default() {
            libc::ESRCH => Err(Refused::Gone),
            code => Err(Refused::System(code)),
        },
    }
}

/// Whether this process has memory at an address.
pub fn is_there(address: u64) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: 1 };
    // SAFETY: the system checks the address; the place is ours.
    let read = unsafe { libc::process_vm_readv(std::process::id() as i32, &local, 1, &remote, 1, 0) };
    // Where the system forbids the call, nothing is known.
    read == 1 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// A place within pieces.
struct Walk<'a> {
    pieces: Pieces<'a>,
    offset: u64,
}

impl<'a> Walk<'a> {
    fn new(pieces: Pieces<'a>) -> Walk<'a> {
        let mut walk = Walk { pieces, offset: 0 };
        walk.go(0);
        walk
    }

    fn left(&self) -> u64 {
        self.pieces.first().map_or(0, |(_, length)| length - self.offset)
    }

    fn address(&self) -> u64 {
        self.pieces.first().map_or(0, |(address, _)| address + self.offset)
    }

    fn go(&mut self, bytes: u64) {
        self.offset += bytes;
        while let Some(((_, length), rest)) = self.pieces.split_first()
            && self.offset >= *length
        {
            self.offset -= length;
            self.pieces = rest;
        }
    }
}

/// What a write, a read, or a receive needs of memory.
pub const WRITTEN: u32 = abi::IBV_ACCESS_REMOTE_WRITE;
/// See [`WRITTEN`].
pub const READ: u32 = abi::IBV_ACCESS_REMOTE_READ;
/// See [`WRITTEN`].
pub const FILLED: u32 = abi::IBV_ACCESS_LOCAL_WRITE;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    #[test]
    fn the_end_of_a_write_comes_first() {
        let whole: Vec<u8> = (0..40).collect();
        for cut in [0, 1, 10, 19, 20, 50] {
            // The target overlaps the source, so the order shows: the end first moves all bytes unspoilt where they are cut by the distance.
            let mut bytes = whole.clone();
            let start = bytes.as_mut_ptr().expose_provenance() as u64;
            let ours = [(start, 5), (start + 5, 0), (start + 5, 15)];
            // SAFETY: both are of `bytes`.
            unsafe { copy_end_first(std::process::id() as i32, &ours, (start + 10, 20), cut, true) }.unwrap();
            if cut == 10 {
                assert_eq!(bytes[10..30], whole[..20]);
            }
            // Apart, any cut gives the same.
            let mut there = [0u8; 20];
            let to = there.as_mut_ptr().expose_provenance() as u64;
            // SAFETY: as above.
            unsafe { copy_end_first(std::process::id() as i32, &ours, (to, 20), cut, true) }.unwrap();
            assert_eq!(there, bytes[..20]);
        }
    }

    #[test]
    fn a_key_opens_its_range_for_its_uses_until_it_is_taken_back() {
        let table = Table::new(&format!("test-table-{}", std::process::id())).unwrap();
        let range = |address, bytes, access| Range { address, bytes, access, domain: 3 };
        let key = table.add(77, 5, range(1000, 100, WRITTEN | FILLED));
        let hold = |key, address, bytes, access| table.hold(key, range(address, bytes, access)).map(|_| ());
        assert_eq!(hold(key, 1000, 100, WRITTEN), Ok(()));
        assert_eq!(hold(key, 1099, 1, WRITTEN | FILLED), Ok(()));
        for (address, bytes, access) in
            [(999, 1, WRITTEN), (1099, 2, WRITTEN), (1100, 1, WRITTEN), (u64::MAX, 2, WRITTEN), (1000, 1, READ)]
        {
            assert_eq!(hold(key, address, bytes, access), Err(Refused::Key), "{address} {bytes} {access}");
        }
        assert_eq!(hold(key ^ 1, 1000, 1, WRITTEN), Err(Refused::Key), "another key of the same place");
        assert_eq!(hold(0, 0, 0, 0), Err(Refused::Key));
        let elsewhere = Range { domain: 4, ..range(1000, 1, WRITTEN) };
        assert!(table.hold(key, elsewhere).is_err(), "another protection domain");
        // The local key of the last place, with all its bits, fits into a request.
        let local = local_key(key);
        assert!(local_key(u32::MAX) < 1 << 24 && table.allows(local, range(1000, 1, WRITTEN)));
        assert!(!table.allows(local ^ 1, range(1000, 1, WRITTEN)) && !table.allows(local, elsewhere));
        assert_eq!(table.remove(key), Some(77));
        assert_eq!((hold(key, 1000, 1, WRITTEN), table.remove(key)), (Err(Refused::Key), None));
    }

    #[test]
    fn a_place_is_not_used_again_while_somebody_may_still_count_itself_out() {
        let table = Table::new(&format!("test-table-late-{}", std::process::id())).unwrap();
        let range = Range { address: 1000, bytes: 100, access: WRITTEN, domain: 0 };
        let key = table.add(3, 5, range);
        let late = table.hold(key, range).unwrap();
        assert_eq!(table.remove_within(key, Duration::ZERO), None, "its place is not free");
        assert!(table.hold(key, range).is_err(), "its key is worth nothing");
        assert_eq!(table.entry(3).users.load(Ordering::SeqCst), 1);
        drop(late);
        assert_eq!(table.entry(3).users.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn memory_that_is_not_there_is_known() {
        let here = 7u8;
        assert!(is_there((&raw const here).expose_provenance() as u64));
        assert!(!is_there(8), "nobody has the first page");
    }

    #[test]
    fn copies_go_over_pieces_of_any_length() {
        let from: Vec<u8> = (0..100).collect();
        let mut to = vec![0u8; 100];
        let at = |memory: &[u8], offset: usize, length: u64| {
            (memory.as_ptr().expose_provenance() as u64 + offset as u64, length)
        };
        let ours = [at(&from, 0, 0), at(&from, 10, 30), at(&from, 60, 40)];
        let base = to.as_mut_ptr().expose_provenance() as u64;
        let theirs = [(base + 1, 5), (base + 6, 0), (base + 20, 65), (base + 90, 1)];
        // SAFETY: both are memory of this test.
        let moved = unsafe { copy(std::process::id() as i32, &ours, &theirs, true) };
        assert_eq!(moved, Ok(70));
        let sent: Vec<u8> = (10..40).chain(60..100).collect();
        assert_eq!((&to[1..6], &to[20..85]), (&sent[..5], &sent[5..]));
        assert_eq!(to[0] + to[85] + to[90], 0);
    }
}
