//! Completion counters: what the card has completed, in memory that a device may map. They have 31 bits, as NCCL's device code takes a real card's.

use crate::context::Context;
use crate::plain::Plain;
use crate::status;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest value; the next one is 0.
pub const MOST: u64 = (1 << 31) - 1;

/// Operations that can be counted, in the order of C's bits for them: sends, receives, reads, reads by peers, writes, writes by peers.
pub const OPERATIONS: usize = 6;

/// A counter: of what is well, and of what failed. A device may see both.
pub struct Counter {
    /// Its card.
    pub context: &'static Context,
    own: Plain,
    /// Where C wants them instead.
    elsewhere: [Option<usize>; 2],
}

impl Counter {
    /// Begins as the card's description says. `elsewhere`: places of C's for the two values.
    ///
    /// # Safety
    /// The places are memory of this process for as long as the counter is there, 8 bytes each, and aligned.
    pub unsafe fn new(context: &'static Context, elsewhere: [Option<usize>; 2]) -> io::Result<Counter> {
        let counter = Counter { context, own: Plain::new(16)?, elsewhere };
        counter.value(0).store(context.machine.spec.counted & MOST, Ordering::Release);
        counter.value(1).store(0, Ordering::Release);
        Ok(counter)
    }

    fn value(&self, which: usize) -> &AtomicU64 {
        let place = match self.elsewhere[which] {
            Some(place) => std::ptr::with_exposed_provenance(place),
            // SAFETY: the page has room for two.
            None => unsafe { self.own.base().cast::<AtomicU64>().add(which) }.cast_const(),
        };
        // SAFETY: ours, or C's by the contract of `new`; everybody uses them as words.
        unsafe { &*place }
    }

    /// What is well, or what failed.
    pub fn read(&self, failed: bool) -> u64 {
        self.value(usize::from(failed)).load(Ordering::Acquire)
    }

    /// So many more with this status.
    pub fn add(&self, more: u64, status: u32) {
        let value = self.value(usize::from(status != status::OK));
        let next = |now: u64| Some(now.wrapping_add(more) & MOST);
        // Release: whoever sees the count (a kernel's acquire) sees the bytes that were moved before.
        let _ = value.fetch_update(Ordering::Release, Ordering::Relaxed, next);
    }
}
