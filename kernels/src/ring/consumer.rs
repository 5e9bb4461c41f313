//! The proxy's side of the ring: take commands in order, publish what is taken, publish what is done.

use super::{HostWords, Ring, Slot, Stop, parity};
use crate::command::PARITY;
use cuda_std::memory::{fence_acq_rel_sys, load_relaxed_sys_u64, store_release_sys_u64};

/// The one consumer of a ring. Its cursor is private; only [`publish_tail`](Consumer::publish_tail) shows it.
#[derive(Debug)]
pub struct Consumer {
    slots: *const Slot,
    host: *const HostWords,
    log2_capacity: u32,
    cursor: u64,
    published: u64,
}

// SAFETY: the pointers are to shared words reached by atomic operations; the cursor moves with the consumer.
unsafe impl Send for Consumer {}

impl Consumer {
    /// The consumer of a fresh (all zero) ring.
    ///
    /// # Safety
    /// The ring's host memory outlives the consumer, and there is no second consumer.
    pub unsafe fn new(ring: &Ring) -> Consumer {
        Consumer { slots: ring.slots, host: ring.host, log2_capacity: ring.log2_capacity, cursor: 0, published: 0 }
    }

    fn host(&self) -> &HostWords {
        // SAFETY: contract of `new`.
        unsafe { &*self.host }
    }

    #[inline(always)]
    fn slot(&self, ticket: u64) -> &Slot {
        let mask = (1u64 << self.log2_capacity) - 1;
        // SAFETY: contract of `new`; the mask keeps the index below the capacity.
        unsafe { &*self.slots.add((ticket & mask) as usize) }
    }

    /// The next command's words, or `None` when it has not arrived whole.
    ///
    /// The parity must stand in every word: a producer's stores may arrive in any order and at any time. A word of the
    /// lap before has the other parity. An older word cannot come back, since we have read the newer one; and no word can
    /// be of a later lap, since `tail` has not passed this slot.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<[u64; 4]> {
        let slot = self.slot(self.cursor);
        let words = [&slot.0.0, &slot.0.1, &slot.1.0, &slot.1.1].map(load_relaxed_sys_u64);
        let lap = parity(self.cursor, self.log2_capacity);
        let differing = words.iter().fold(0, |bits, word| bits | (word ^ lap));
        if differing & PARITY != 0 {
            return None;
        }
        self.cursor += 1;
        Some(words.map(|word| word & !PARITY))
    }

    /// Orders the payloads behind the commands popped so far: pairs with the producer's fence before its store, so that
    /// what the NIC (or this thread) reads next is what the kernel wrote before it pushed.
    #[inline(always)]
    pub fn acquire(&self) {
        fence_acq_rel_sys();
    }

    /// Gives the slots of all popped commands back to the producers. Once per batch: each store takes the line from the
    /// poller. Release: our reads of the slots come before a producer's next stores to them (the rest of that chain stands
    /// at [`push`](Ring::push)).
    #[inline(always)]
    pub fn publish_tail(&mut self) {
        if self.published != self.cursor {
            self.published = self.cursor;
            store_release_sys_u64(&self.host().tail.0, self.cursor);
        }
    }

    /// How many commands have been popped: the ticket of the next one.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Tells the kernels that all tickets below this are done. Release: what this thread wrote, or saw written, is visible
    /// before. Bytes that a NIC wrote to device memory are outside this promise: their rail orders them.
    #[inline(always)]
    pub fn publish_watermark(&self, watermark: u64) {
        store_release_sys_u64(&self.host().completion.0.0, watermark);
    }

    /// Ends every wait of the kernels with this reason. Call it after the last watermark: release, so that whoever sees
    /// the status finds that watermark.
    pub fn publish_stop(&self, stop: Stop) {
        store_release_sys_u64(&self.host().completion.0.1, stop.0);
    }
}
