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
/// Bits of a key below its place in the table: drawn anew for each registration, so that an old key is found out.
const LOW_BITS: u32 = 14;
/// A copy into memory that is given back ends within this time, or its process has died in the middle of it.
const LAST_COPY: Duration = Duration::from_secs(2);

#[repr(C)]
struct Entry {
    /// 0: free.
    key: AtomicU32,
    access: AtomicU32,
    address: AtomicU64,
    length: AtomicU64,
    users: AtomicU64,
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
    pub fn add(&self, index: usize, random: u32, address: u64, length: u64, access: u32) -> u32 {
        let entry = self.entry(index);
        let key = ((index as u32) << LOW_BITS) | (random & ((1 << LOW_BITS) - 1)).max(1);
        entry.address.store(address, Ordering::Relaxed);
        entry.length.store(length, Ordering::Relaxed);
        entry.access.store(access, Ordering::Relaxed);
        // Who finds the key must find its range: the acquire in `hold`.
        entry.key.store(key, Ordering::SeqCst);
        key
    }

    /// Takes a registration back, and waits for copies that are under way. Returns its place.
    pub fn remove(&self, key: u32) -> Option<usize> {
        let index = (key >> LOW_BITS) as usize;
        let entry = self.entry(index);
        // Before the look at the users: a peer counts itself before it looks at the key, so one of the two sees the other.
        entry.key.compare_exchange(key, 0, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        let started = Instant::now();
        while entry.users.load(Ordering::SeqCst) > 0 && started.elapsed() < LAST_COPY {
            std::thread::yield_now();
        }
        entry.users.store(0, Ordering::Relaxed);
        Some(index)
    }

    /// Holds a range for these uses.
    pub fn hold(&self, key: u32, address: u64, bytes: u64, access: u32) -> Result<Hold<'_>, Refused> {
        let entry = self.entry((key >> LOW_BITS) as usize);
        // See `remove`.
        entry.users.fetch_add(1, Ordering::SeqCst);
        let hold = Hold(entry);
        let known = key != 0 && entry.key.load(Ordering::SeqCst) == key;
        if known && self.covers(entry, address, bytes, access) { Ok(hold) } else { Err(Refused::Key) }
    }

    /// Whether a key of this process covers a range for these uses: its own thread asks, so no hold is needed.
    pub fn allows(&self, key: u32, address: u64, bytes: u64, access: u32) -> bool {
        let entry = self.entry((key >> LOW_BITS) as usize);
        key != 0 && entry.key.load(Ordering::Acquire) == key && self.covers(entry, address, bytes, access)
    }

    fn covers(&self, entry: &Entry, address: u64, bytes: u64, access: u32) -> bool {
        let (start, length) = (entry.address.load(Ordering::Relaxed), entry.length.load(Ordering::Relaxed));
        let end = address.checked_add(bytes);
        access & !entry.access.load(Ordering::Relaxed) == 0
            && address >= start
            && end.is_some_and(|end| end <= start.saturating_add(length))
    }
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
    fn a_key_opens_its_range_for_its_uses_until_it_is_taken_back() {
        let table = Table::new(&format!("test-table-{}", std::process::id())).unwrap();
        let key = table.add(77, 5, 1000, 100, WRITTEN | FILLED);
        let hold = |key, address, bytes, access| table.hold(key, address, bytes, access).map(|_| ());
        assert_eq!(hold(key, 1000, 100, WRITTEN), Ok(()));
        assert_eq!(hold(key, 1099, 1, WRITTEN | FILLED), Ok(()));
        for (address, bytes, access) in
            [(999, 1, WRITTEN), (1099, 2, WRITTEN), (1100, 1, WRITTEN), (u64::MAX, 2, WRITTEN), (1000, 1, READ)]
        {
            assert_eq!(hold(key, address, bytes, access), Err(Refused::Key), "{address} {bytes} {access}");
        }
        assert_eq!(hold(key ^ 1, 1000, 1, WRITTEN), Err(Refused::Key), "another key of the same place");
        assert_eq!(hold(0, 0, 0, 0), Err(Refused::Key));
        assert_eq!(table.remove(key), Some(77));
        assert_eq!((hold(key, 1000, 1, WRITTEN), table.remove(key)), (Err(Refused::Key), None));
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
