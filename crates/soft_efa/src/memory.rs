//! Registered memory: a key table in shared memory, one for each open device of a process, and access to the memory.
//!
//! The owner writes the table. A peer that reads or writes looks up its key and counts itself as a user of the entry
//! while it copies. It copies by the system calls for the memory of other processes. A peer can therefore reach only
//! registered memory, only for the registered uses, and with the consent of its owner. Memory is freed only when the
//! last copy has ended.

use crate::abi;
use crate::cause;
use crate::share::Shared;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of registrations of one open device, as on a real EFA device.
pub const MOST: usize = 1 << 18;
/// Low bits of a remote key, below the table index. They are drawn at random for each registration, so that an outdated
/// key is detected.
const LOW_BITS: u32 = 14;
/// Low bits of a local key, below the table index. A local key has 24 bits, since a request has space for no more.
const LOCAL_BITS: u32 = 24 - MOST.ilog2();
/// Maximum wait for copies into memory that is being deregistered. A copy that takes longer belongs to a process that
/// has died or is stopped.
const LAST_COPY: Duration = Duration::from_secs(2);

#[repr(C)]
struct Entry {
    /// Remote key; 0 if the entry is free.
    key: AtomicU32,
    access: AtomicU32,
    address: AtomicU64,
    length: AtomicU64,
    users: AtomicU64,
    /// Number of the protection domain.
    domain: AtomicU64,
}

/// A registered range, or a requested one.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Uses, as access flags.
    pub access: u32,
    /// Protection domain of the registration, or of the queue pair that uses it.
    pub domain: u32,
}

/// Returns the local key of the registration with this remote key.
pub fn local_key(key: u32) -> u32 {
    (key >> LOW_BITS) << LOCAL_BITS | key & ((1 << LOCAL_BITS) - 1)
}

/// The key table of one open device.
#[derive(Debug)]
pub struct KeyTable {
    memory: Shared,
}

/// Reason why memory cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The key does not exist, or does not cover this range or use.
    Key,
    /// The process has exited.
    Gone,
    /// The system refuses the access, or the memory does not exist; the cause is recorded.
    System,
}

/// A use of an entry. The entry's memory stays registered while this object exists.
pub struct KeyHold<'a>(&'a Entry);

impl Drop for KeyHold<'_> {
    fn drop(&mut self) {
        // Uses release order, which pairs with the load of `users` in `remove_within`, so that the owner sees the copy
        // as complete.
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

impl KeyTable {
    /// Creates an empty table of this process.
    pub fn new(name: &str) -> io::Result<KeyTable> {
        let mut memory = Shared::new(MOST * size_of::<Entry>())?;
        memory.publish(name)?;
        Ok(KeyTable { memory })
    }

    /// Opens a peer's table.
    pub fn open(name: &str) -> io::Result<KeyTable> {
        let memory = Shared::open(name)?;
        if memory.bytes() < MOST * size_of::<Entry>() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(KeyTable { memory })
    }

    fn entry(&self, index: usize) -> &Entry {
        // SAFETY: the table has `MOST` entries, which are initially zero and consist of atomics.
        unsafe { &*self.memory.base().cast::<Entry>().add(index % MOST) }
    }

    /// Registers a range at the free index `index`. Returns its key, which is never 0.
    pub fn add(&self, index: usize, random: u32, range: Range) -> u32 {
        let entry = self.entry(index);
        let key = ((index as u32) << LOW_BITS) | (random & ((1 << LOW_BITS) - 1)).max(1);
        entry.address.store(range.address, Ordering::Relaxed);
        entry.length.store(range.bytes, Ordering::Relaxed);
        entry.access.store(range.access, Ordering::Relaxed);
        entry.domain.store(range.domain.into(), Ordering::Relaxed);
        // The load of this key in `hold` makes the range visible.
        entry.key.store(key, Ordering::SeqCst);
        key
    }

    /// Removes a registration, and waits up to 2 s for copies in progress. Returns its index, which is then free.
    /// Returns `None` if a copy has not ended: its process may still decrement the users, so the index is never reused.
    pub fn remove(&self, key: u32) -> Option<usize> {
        self.remove_within(key, LAST_COPY)
    }

    fn remove_within(&self, key: u32, patience: Duration) -> Option<usize> {
        let index = (key >> LOW_BITS) as usize;
        let entry = self.entry(index);
        // Precedes the check of the users. A peer counts itself before it reads the key, so at least one of the two
        // sees the other.
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

    /// Adds a user to a range for these uses.
    pub fn hold(&self, key: u32, range: Range) -> Result<KeyHold<'_>, AccessError> {
        let entry = self.entry((key >> LOW_BITS) as usize);
        // Precedes the read of the key; see `remove_within`.
        entry.users.fetch_add(1, Ordering::SeqCst);
        let hold = KeyHold(entry);
        let known = key != 0 && entry.key.load(Ordering::SeqCst) == key;
        if known && covers(entry, range) { Ok(hold) } else { Err(AccessError::Key) }
    }

    /// Returns whether a local key of this process covers a range for these uses. The calling thread belongs to the
    /// owner, so no hold is needed.
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

/// One side of a copy: addresses and lengths.
pub type Pieces<'a> = &'a [(u64, u64)];

/// Copies between this process and process `pid`, which may be this one. Copies from `ours` to `theirs` if `out` is
/// true, otherwise in the opposite direction, until the shorter side is exhausted. Returns the number of bytes.
///
/// # Safety
/// `ours` must be memory of this process. No other thread may write it concurrently nor, unless `out`, read it.
pub unsafe fn copy(pid: i32, ours: Pieces<'_>, theirs: Pieces<'_>, out: bool) -> Result<u64, AccessError> {
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
            // SAFETY: `ours` is valid by the caller's guarantee; `theirs` is registered memory of this process. The two
            // may overlap.
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

/// Like [`copy`], with one range on the other side, and copies the part after the first `cut` bytes first. A NIC does
/// not guarantee the order of the bytes of a write.
///
/// # Safety
/// The requirements of [`copy`] apply.
pub unsafe fn copy_end_first(
    pid: i32,
    ours: Pieces<'_>,
    (address, bytes): (u64, u64),
    cut: u64,
    out: bool,
) -> Result<(), AccessError> {
    let cut = cut.min(bytes);
    if cut == 0 {
        // SAFETY: the caller meets the requirements of `copy`.
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
    // SAFETY: the caller meets the requirements of `copy` for the whole, of which these are parts.
    unsafe {
        copy(pid, &behind, &[(address + cut, bytes - cut)], out)?;
        copy(pid, &before, &[(address, cut)], out)?;
    }
    Ok(())
}

/// Copies one range from or to the memory of another process. Returns the number of bytes.
fn other_process(pid: i32, here: u64, there: u64, bytes: u64, out: bool) -> Result<u64, AccessError> {
    let stretch = |address: u64| libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(address as usize),
        iov_len: bytes as usize,
    };
    let (local, remote) = (stretch(here), stretch(there));
    // SAFETY: the system checks both sides; the caller guarantees that `here` may be accessed.
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
            libc::ESRCH => Err(AccessError::Gone),
            code => {
                cause::refused(out, &io::Error::from_raw_os_error(code));
                Err(AccessError::System)
            }
        },
    }
}

/// Returns whether the system allows the call on this process's own memory, as it does unless a filter forbids the
/// call.
pub fn reaches_itself(out: bool) -> bool {
    let (mut here, mut there) = (1u8, 1u8);
    let stretch = |byte: &mut u8| libc::iovec { iov_base: (&raw mut *byte).cast(), iov_len: 1 };
    let (local, remote, pid) = (stretch(&mut here), stretch(&mut there), std::process::id() as i32);
    // SAFETY: both bytes are local variables.
    let moved = unsafe {
        if out {
            libc::process_vm_writev(pid, &local, 1, &remote, 1, 0)
        } else {
            libc::process_vm_readv(pid, &local, 1, &remote, 1, 0)
        }
    };
    moved == 1
}

/// Returns whether this process has memory at `address`. If the system forbids the check, returns true.
pub fn is_there(address: u64) -> bool {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: 1 };
    // SAFETY: the system checks the address; the destination is a local variable.
    let read = unsafe { libc::process_vm_readv(std::process::id() as i32, &local, 1, &remote, 1, 0) };
    // If the system forbids the call, the result is unknown.
    read == 1 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
}

/// A position within pieces.
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

/// Access that a write needs at its target.
pub const WRITTEN: u32 = abi::IBV_ACCESS_REMOTE_WRITE;
/// Access that a read needs at its target.
pub const READ: u32 = abi::IBV_ACCESS_REMOTE_READ;
/// Access that a receive, or the local side of a read, needs.
pub const FILLED: u32 = abi::IBV_ACCESS_LOCAL_WRITE;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    #[test]
    fn end_of_write_is_copied_first() {
        let whole: Vec<u8> = (0..40).collect();
        for cut in [0, 1, 10, 19, 20, 50] {
            // The target overlaps the source, which reveals the order. With `cut` at the distance of the two, the end
            // is copied before the start overwrites it.
            let mut bytes = whole.clone();
            let start = bytes.as_mut_ptr().expose_provenance() as u64;
            let ours = [(start, 5), (start + 5, 0), (start + 5, 15)];
            // SAFETY: both ranges are in `bytes`.
            unsafe { copy_end_first(std::process::id() as i32, &ours, (start + 10, 20), cut, true) }.unwrap();
            if cut == 10 {
                assert_eq!(bytes[10..30], whole[..20]);
            }
            // Without overlap, every cut gives the same result.
            let mut there = [0u8; 20];
            let to = there.as_mut_ptr().expose_provenance() as u64;
            // SAFETY: the source is in `bytes`, the target in `there`.
            unsafe { copy_end_first(std::process::id() as i32, &ours, (to, 20), cut, true) }.unwrap();
            assert_eq!(there, bytes[..20]);
        }
    }

    #[test]
    fn key_grants_access_until_deregistration() {
        let table = KeyTable::new(&format!("test-table-{}", std::process::id())).unwrap();
        let range = |address, bytes, access| Range { address, bytes, access, domain: 3 };
        let key = table.add(77, 5, range(1000, 100, WRITTEN | FILLED));
        let hold = |key, address, bytes, access| table.hold(key, range(address, bytes, access)).map(|_| ());
        assert_eq!(hold(key, 1000, 100, WRITTEN), Ok(()));
        assert_eq!(hold(key, 1099, 1, WRITTEN | FILLED), Ok(()));
        for (address, bytes, access) in
            [(999, 1, WRITTEN), (1099, 2, WRITTEN), (1100, 1, WRITTEN), (u64::MAX, 2, WRITTEN), (1000, 1, READ)]
        {
            assert_eq!(hold(key, address, bytes, access), Err(AccessError::Key), "{address} {bytes} {access}");
        }
        assert_eq!(hold(key ^ 1, 1000, 1, WRITTEN), Err(AccessError::Key), "another key of the same place");
        assert_eq!(hold(0, 0, 0, 0), Err(AccessError::Key));
        let elsewhere = Range { domain: 4, ..range(1000, 1, WRITTEN) };
        assert!(table.hold(key, elsewhere).is_err(), "another protection domain");
        // The local key of the last index, with all bits set, fits in a request.
        let local = local_key(key);
        assert!(local_key(u32::MAX) < 1 << 24 && table.allows(local, range(1000, 1, WRITTEN)));
        assert!(!table.allows(local ^ 1, range(1000, 1, WRITTEN)) && !table.allows(local, elsewhere));
        assert_eq!(table.remove(key), Some(77));
        assert_eq!((hold(key, 1000, 1, WRITTEN), table.remove(key)), (Err(AccessError::Key), None));
    }

    #[test]
    fn key_slot_is_not_reused_while_held() {
        let table = KeyTable::new(&format!("test-table-late-{}", std::process::id())).unwrap();
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
    fn unmapped_memory_is_detected() {
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
        // SAFETY: both sides are memory of this test.
        let moved = unsafe { copy(std::process::id() as i32, &ours, &theirs, true) };
        assert_eq!(moved, Ok(70));
        let sent: Vec<u8> = (10..40).chain(60..100).collect();
        assert_eq!((&to[1..6], &to[20..85]), (&sent[..5], &sent[5..]));
        assert_eq!(to[0] + to[85] + to[90], 0);
    }
}
