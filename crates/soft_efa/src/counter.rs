//! Completion counters in memory that a GPU can map. They have 31 bits, which is what NCCL's device code assumes of a
//! real NIC.

use crate::context::DeviceContext;
use crate::plain::Plain;
use crate::status;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest value; it wraps around to 0.
pub const MOST: u64 = (1 << 31) - 1;

/// Number of operations that can be counted, in the order of C's bits: sends, receives, reads, reads by peers, writes,
/// writes by peers.
pub const OPERATIONS: usize = 6;

/// A pair of counters: successful and failed operations. A GPU can map both.
pub struct CompletionCounter {
    /// Device of the counter.
    pub context: &'static DeviceContext,
    own: Plain,
    /// Addresses that C provides for the two values instead.
    elsewhere: [Option<usize>; 2],
}

impl CompletionCounter {
    /// Creates a counter with the initial value of the description. `elsewhere` contains the addresses that C provides
    /// for the two values, if any.
    ///
    /// # Safety
    /// The addresses must be aligned and valid for 8 bytes each for the lifetime of the counter.
    pub unsafe fn new(context: &'static DeviceContext, elsewhere: [Option<usize>; 2]) -> io::Result<CompletionCounter> {
        let counter = CompletionCounter { context, own: Plain::new(16)?, elsewhere };
        counter.value(0).store(context.machine.spec.counted & MOST, Ordering::Release);
        counter.value(1).store(0, Ordering::Release);
        Ok(counter)
    }

    fn value(&self, which: usize) -> &AtomicU64 {
        let place = match self.elsewhere[which] {
            Some(place) => std::ptr::with_exposed_provenance(place),
            // SAFETY: the page has space for both values.
            None => unsafe { self.own.base().cast::<AtomicU64>().add(which) }.cast_const(),
        };
        // SAFETY: the memory belongs to this object, or to C by the contract of `new`. All parties access it as words.
        unsafe { &*place }
    }

    /// Returns the number of failed operations if `failed`, otherwise of successful ones.
    pub fn read(&self, failed: bool) -> u64 {
        self.value(usize::from(failed)).load(Ordering::Acquire)
    }

    /// Adds `more` operations with this status.
    pub fn add(&self, more: u64, status: u32) {
        let value = self.value(usize::from(status != status::OK));
        let next = |now: u64| Some(now.wrapping_add(more) & MOST);
        // Uses release order, so that a kernel that acquires the count sees the bytes moved before.
        let _ = value.fetch_update(Ordering::Release, Ordering::Relaxed, next);
    }
}
