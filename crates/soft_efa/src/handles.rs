//! Address handles of an open device, in shared memory, so that peers can look them up.
//!
//! A NIC rejects RDMA by a peer for which it has no address handle (status 14). Here the requester's process delivers,
//! so it must see the target's handles. The owner adds and removes handles; peers only read them.

use crate::address::Gid;
use crate::locked;
use crate::share::Shared;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of handles of one open device: a handle number has 16 bits, and the largest means that there is no
/// handle.
const MOST: usize = 0xffff;

#[repr(C)]
struct Header {
    /// Number of changes to the handles.
    version: AtomicU64,
    /// Number of entries that have ever been used.
    used: AtomicU64,
}

#[repr(C)]
struct Entry {
    /// Number of handles of this address; 0 if the entry is free.
    count: AtomicU64,
    gid: [AtomicU64; 2],
}

/// The handles of one open device.
#[derive(Debug)]
pub struct Handles {
    memory: Shared,
    /// Serializes changes by the owner.
    changes: Mutex<()>,
}

const BYTES: usize = size_of::<Header>() + MOST * size_of::<Entry>();

fn words(gid: &Gid) -> [u64; 2] {
    [0, 8].map(|start| u64::from_ne_bytes(std::array::from_fn(|index| gid[start + index])))
}

impl Handles {
    /// Creates an empty set of handles, for an open device of this process.
    ///
    /// # Errors
    /// Returns the system's error if there is no shared memory or the name is taken.
    pub fn new(name: &str) -> io::Result<Handles> {
        let mut memory = Shared::new(BYTES)?;
        memory.publish(name)?;
        Ok(Handles { memory, changes: Mutex::default() })
    }

    /// Opens the handles of a peer's device.
    ///
    /// # Errors
    /// Returns the system's error if the device does not exist.
    pub fn open(name: &str) -> io::Result<Handles> {
        let memory = Shared::open(name)?;
        if memory.bytes() < BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Handles { memory, changes: Mutex::default() })
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory starts with the header, which is initially zero and consists of atomics.
        unsafe { &*self.memory.base().cast() }
    }

    fn entries(&self) -> &[Entry] {
        let used = (self.header().used.load(Ordering::Acquire) as usize).min(MOST);
        // SAFETY: `MOST` entries follow the header; they are initially zero and consist of atomics.
        unsafe { std::slice::from_raw_parts(self.memory.base().add(size_of::<Header>()).cast(), used) }
    }

    /// Adds a handle of an address. Returns its number, which all handles of the address share, or `None` if there are
    /// too many.
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
        // Uses release order, which pairs with the acquire in `find`, so that a peer that sees the count sees the
        // address.
        entry.count.fetch_add(1, Ordering::Release);
        self.header().version.fetch_add(1, Ordering::Release);
        u16::try_from(number).ok()
    }

    /// Removes a handle with this number.
    pub fn remove(&self, number: u16) {
        let _changing = locked(&self.changes);
        if let Some(entry) = self.entries().get(usize::from(number)) {
            entry.count.fetch_sub(1, Ordering::Release);
            self.header().version.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the number of the handles of this address, or `None` if there are none.
    pub fn find(&self, gid: &Gid) -> Option<u16> {
        let wanted = words(gid);
        let is_it = |entry: &Entry| {
            entry.count.load(Ordering::Acquire) > 0
                && entry.gid.iter().zip(wanted).all(|(place, word)| place.load(Ordering::Relaxed) == word)
        };
        self.entries().iter().position(is_it).map(|number| number as u16)
    }

    /// Returns the version, which changes with every handle added or removed. A result of [`Handles::find`] is valid
    /// while the version read before it is current. The owner changes the version after the entry (release), and the
    /// reader loads the version before the entries (acquire).
    pub fn version(&self) -> u64 {
        self.header().version.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    #[test]
    fn address_keeps_number_while_handle_exists() {
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
