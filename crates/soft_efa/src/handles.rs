//! Address handles of an open device, in shared memory, so that peers can look them up.
//!
//! A card refuses RDMA of a peer for which it has no address handle (status 14). The requester's card does the delivery here, so
//! it must see the target's handles. The owner adds and removes; peers only read.

use crate::address::Gid;
use crate::locked;
use crate::share::Shared;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Handles of one open device: a handle's number has 16 bits, and the last one means that there is no handle.
const MOST: usize = 0xffff;

#[repr(C)]
struct Header {
    /// How often the handles have changed.
    version: AtomicU64,
    /// Places that have ever been used.
    used: AtomicU64,
}

#[repr(C)]
struct Entry {
    /// How many handles of this address there are.
    count: AtomicU64,
    gid: [AtomicU64; 2],
}

/// The handles of one open device.
#[derive(Debug)]
pub struct Handles {
    memory: Shared,
    /// Of the owner: held by whoever changes something.
    changes: Mutex<()>,
}

const BYTES: usize = size_of::<Header>() + MOST * size_of::<Entry>();

fn words(gid: &Gid) -> [u64; 2] {
    [0, 8].map(|start| u64::from_ne_bytes(std::array::from_fn(|index| gid[start + index])))
}

impl Handles {
    /// No handle yet, of an open device of this process.
    ///
    /// # Errors
    /// The system's: no shared memory, or the name is taken.
    pub fn new(name: &str) -> io::Result<Handles> {
        let mut memory = Shared::new(BYTES, false)?;
        memory.publish(name)?;
        Ok(Handles { memory, changes: Mutex::default() })
    }

    /// A peer's.
    ///
    /// # Errors
    /// The system's: there is no such device.
    pub fn open(name: &str) -> io::Result<Handles> {
        let memory = Shared::open(name)?;
        if memory.bytes() < BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Handles { memory, changes: Mutex::default() })
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory begins with it; it starts as zeros and is atomic.
        unsafe { &*self.memory.base().cast() }
    }

    fn entries(&self) -> &[Entry] {
        let used = (self.header().used.load(Ordering::Acquire) as usize).min(MOST);
        // SAFETY: the entries follow the header, there are MOST of them, they start as zeros and are atomic.
        unsafe { std::slice::from_raw_parts(self.memory.base().add(size_of::<Header>()).cast(), used) }
    }

    /// One more handle of this address: its number, which all handles of one address share. `None`: there are too many.
    pub fn add(&self, gid: &Gid) -> Option<u16> {
        let _changing = locked(&self.changes);
        let entries = self.entries();
        let known = self.find(gid);
        let free = || entries.iter().position(|entry| entry.count.load(Ordering::Relaxed) == 0);
        let number = match known.map(usize::from).or_else(free) {
            Some(number) => number,
            None if entries.len() < MOST => {
                self.header().used.store(entries.len() as u64 + 1, Ordering::Release);
                entries.len()
            }
            None => return None,
        };
        let entry = self.entries().get(number)?;
        for (place, word) in entry.gid.iter().zip(words(gid)) {
            place.store(word, Ordering::Relaxed);
        }
        // Release: a peer that sees the count sees the address, by its acquire in `find`.
        entry.count.fetch_add(1, Ordering::Release);
        self.header().version.fetch_add(1, Ordering::Release);
        u16::try_from(number).ok()
    }

    /// One handle of this number is gone.
    pub fn remove(&self, number: u16) {
        let _changing = locked(&self.changes);
        if let Some(entry) = self.entries().get(usize::from(number)) {
            entry.count.fetch_sub(1, Ordering::Release);
            self.header().version.fetch_add(1, Ordering::Release);
        }
    }

    /// The number of this address's handles; `None` where it has none.
    pub fn find(&self, gid: &Gid) -> Option<u16> {
        let wanted = words(gid);
        let is_it = |entry: &Entry| {
            entry.count.load(Ordering::Acquire) > 0
                && entry.gid.iter().zip(wanted).all(|(place, word)| place.load(Ordering::Relaxed) == word)
        };
        self.entries().iter().position(is_it).map(|number| number as u16)
    }

    /// Changes with every handle that is added or removed. An answer of [`Handles::find`] is good as long as what was read
    /// before it is still the version: the owner changes the version after the entry (release), the reader looks at the version
    /// before the entries (acquire).
    pub fn version(&self) -> u64 {
        self.header().version.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    #[test]
    fn an_address_has_a_number_as_long_as_it_has_a_handle() {
        let name = format!("ah-test-{}", std::process::id());
        let ours = Handles::new(&name).unwrap();
        let theirs = Handles::open(&name).unwrap();
        let (a, b, c) = ([1; 16], [2; 16], [3; 16]);
        assert_eq!((ours.add(&a), ours.add(&b), ours.add(&a)), (Some(0), Some(1), Some(0)));
        assert_eq!([a, b, c].map(|gid| theirs.find(&gid)), [Some(0), Some(1), None]);
        let before = theirs.version();
        ours.remove(0);
        assert_eq!(theirs.find(&a), Some(0), "the other handle is there");
        ours.remove(0);
        assert_eq!(theirs.find(&a), None);
        assert_ne!(theirs.version(), before);
        assert_eq!((ours.add(&c), theirs.find(&c)), (Some(0), Some(0)), "a place is used again");
    }
}
