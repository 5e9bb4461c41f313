//! The rings of a queue pair and its doorbells, in memory that a device may map: there once C has asked where they are.

use crate::plain::Plain;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a receive's descriptor.
pub const RECEIVE_BYTES: usize = 16;

/// One ring with its doorbell.
#[derive(Debug)]
pub struct Ring {
    memory: Plain,
    doorbell: Plain,
    /// Entries, a power of two.
    pub entries: u32,
    /// Bytes of one.
    pub entry: usize,
}

impl Ring {
    /// For so many entries.
    pub fn new(entries: u32, entry: usize) -> io::Result<Ring> {
        let entries = entries.max(1).next_power_of_two();
        Ok(Ring { memory: Plain::new(entries as usize * entry)?, doorbell: Plain::new(4)?, entries, entry })
    }

    /// First byte.
    pub fn buffer(&self) -> *mut u8 {
        self.memory.base()
    }

    /// Where the count of what was posted is written.
    pub fn doorbell(&self) -> *mut u32 {
        self.doorbell.base().cast()
    }

    /// What was posted by now. Acquire: the other side writes its entries, then this (release, or a fence before it).
    pub fn rung(&self) -> u16 {
        // SAFETY: a page of its own; everybody uses it as a word. A program may write 16 bits of the count, or 32.
        unsafe { &*self.doorbell().cast::<AtomicU32>() }.load(Ordering::Acquire) as u16
    }

    /// The words of the entry of this number, counted over all laps.
    pub fn words<const N: usize>(&self, number: u32) -> [u64; N] {
        debug_assert!(N * 8 <= self.entry);
        let index = (number & (self.entries - 1)) as usize;
        // SAFETY: within the ring, aligned; everybody uses it as words.
        let words = unsafe { self.buffer().add(index * self.entry).cast::<AtomicU64>() };
        // SAFETY: as above.
        std::array::from_fn(|word| unsafe { &*words.add(word) }.load(Ordering::Relaxed))
    }

    /// Of the lap of this number: what the phase of its entries is.
    pub fn phase(&self, number: u32) -> u8 {
        (number >> self.entries.trailing_zeros()) as u8 & 1
    }
}

/// Both rings of a queue pair.
#[derive(Debug)]
pub struct Rings {
    /// Requests.
    pub send: Ring,
    /// Receives.
    pub receive: Ring,
    /// Requests that may be written before the doorbell is rung.
    pub max_batch: u32,
}
