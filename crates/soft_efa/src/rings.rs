//! The rings of a queue pair and their doorbells, in memory that a GPU can map. They exist once C has requested their
//! addresses.

use crate::plain::Plain;
use efa_queue::intake::SendQueue;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Size of a receive descriptor in bytes.
pub const RECEIVE_BYTES: usize = 16;

/// One ring with its doorbell.
#[derive(Debug)]
pub struct DeviceRing {
    memory: Plain,
    doorbell: Plain,
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Size of an entry in bytes.
    pub entry: usize,
}

impl DeviceRing {
    /// Creates a ring of at least `entries` entries of `entry` bytes.
    pub fn new(entries: u32, entry: usize) -> io::Result<DeviceRing> {
        let entries = entries.max(1).next_power_of_two();
        Ok(DeviceRing { memory: Plain::new(entries as usize * entry)?, doorbell: Plain::new(4)?, entries, entry })
    }

    /// Returns the address of the first entry.
    pub fn buffer(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Returns the address of the doorbell, to which the poster writes the count of posted entries.
    pub fn doorbell_address(&self) -> *mut u32 {
        self.doorbell.base().cast()
    }

    /// Returns the count of posted entries, modulo 2^16. The load is an acquire, because the poster writes its entries
    /// before the doorbell, separated by a release or a fence.
    pub fn rung(&self) -> u16 {
        // SAFETY: the doorbell has its own page, and all parties access it as a word. A program may write 16 or 32 bits
        // of the count.
        unsafe { &*self.doorbell_address().cast::<AtomicU32>() }.load(Ordering::Acquire) as u16
    }

    /// Returns the words of entry `number`, which counts across laps.
    pub fn words<const N: usize>(&self, number: u32) -> [u64; N] {
        debug_assert!(N * 8 <= self.entry);
        let index = (number & (self.entries - 1)) as usize;
        // SAFETY: the address is within the ring and aligned. All parties access it as words.
        let words = unsafe { self.buffer().add(index * self.entry).cast::<AtomicU64>() };
        // SAFETY: `word` is within the entry; all parties access it as words.
        std::array::from_fn(|word| unsafe { &*words.add(word) }.load(Ordering::Relaxed))
    }
}

impl SendQueue for DeviceRing {
    fn doorbell(&self) -> u32 {
        self.rung().into()
    }

    fn first_word(&self, number: u64) -> u64 {
        let [first] = self.words(number as u32);
        fence(Ordering::Acquire);
        first
    }
}

/// The rings of a queue pair.
#[derive(Debug)]
pub struct PairRings {
    /// Ring of requests.
    pub send: DeviceRing,
    /// Ring of receives.
    pub receive: DeviceRing,
    /// Maximum number of requests written before the doorbell is rung.
    pub max_batch: u32,
}
