//! CPU side of a NIC's queues: writes requests to the ring, rings the doorbell and reads completions.

use super::barriers;
use super::view::{CompletionRing, WorkRing};
use efa_queue::receive::{self, ReceivePiece};
use efa_queue::{completion, request, rules};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A send ring, written by one thread.
#[derive(Debug)]
pub(super) struct Poster {
    ring: WorkRing,
    /// Number of requests written, and number covered by the doorbell.
    posted: u64,
    rung: u64,
}

impl Poster {
    pub(super) fn new(ring: WorkRing) -> Poster {
        Poster { ring, posted: 0, rung: 0 }
    }

    /// Returns the phase of the next request.
    #[inline]
    pub(super) fn phase(&self) -> bool {
        rules::send_phase(self.posted, self.ring.entries)
    }

    /// Writes the next request. The caller must have checked that its slot is free.
    #[inline]
    pub(super) fn put(&mut self, words: &[u64; request::WORDS]) {
        let slot = rules::slot(self.posted, self.ring.entries) as usize;
        // SAFETY: the slot is in the ring, and the pair has checked that its entries have 64 bytes.
        let places = unsafe {
            &*self.ring.slots.add(slot * self.ring.entry_bytes as usize).cast::<[AtomicU64; request::WORDS]>()
        };
        for (place, word) in places.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
        self.posted += 1;
        if self.posted - self.rung >= u64::from(self.ring.max_batch) {
            self.ring();
        }
    }

    /// Rings the doorbell for all requests that are not covered yet.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.rung == self.posted {
            return;
        }
        self.rung = self.posted;
        // The NIC reads the requests after the doorbell (by an acquire of the doorbell, or the order of the bus).
        barriers::flush_stores();
        // SAFETY: the doorbell is an aligned word that lives as long as the pair.
        unsafe { &*self.ring.doorbell.cast::<AtomicU32>() }.store(rules::doorbell(self.posted), Ordering::Relaxed);
        // The NIC has space for one batch, so the doorbell must be stored before the next requests.
        barriers::start_stores();
    }
}

/// A ring of receives, written by one thread. The caller posts at most as many as the ring has slots.
#[derive(Debug)]
pub(super) struct ReceivePoster {
    ring: WorkRing,
    posted: u64,
    rung: u64,
}

impl ReceivePoster {
    pub(super) fn new(ring: WorkRing) -> ReceivePoster {
        ReceivePoster { ring, posted: 0, rung: 0 }
    }

    /// Writes the next receive, which the completion identifies by `id`.
    pub(super) fn put(&mut self, id: u16, address: u64, length: u16, key: u32) {
        let slot = rules::slot(self.posted, self.ring.entries) as usize;
        // SAFETY: the slot is in the ring, and the pair has checked that its entries have 16 bytes.
        let places = unsafe {
            &*self.ring.slots.add(slot * self.ring.entry_bytes as usize).cast::<[AtomicU64; receive::WORDS]>()
        };
        for (place, word) in places.iter().zip(ReceivePiece::one(id, address, length, key).words()) {
            place.store(word, Ordering::Relaxed);
        }
        self.posted += 1;
    }

    /// Rings the doorbell for all receives that it does not cover yet.
    pub(super) fn ring(&mut self) {
        if self.rung != self.posted {
            self.rung = self.posted;
            // The NIC reads the receives after the doorbell.
            barriers::flush_stores();
            // SAFETY: the doorbell is an aligned word that lives as long as the pair.
            unsafe { &*self.ring.doorbell.cast::<AtomicU32>() }.store(rules::doorbell(self.posted), Ordering::Relaxed);
        }
    }
}

/// A completion queue, read by one thread.
#[derive(Debug)]
pub struct CompletionReader {
    queue: CompletionRing,
    read: u64,
}

// SAFETY: all parties access the entries only atomically, and the queue outlives the reader on any thread.
unsafe impl Send for CompletionReader {}

impl CompletionReader {
    /// Creates a reader of `queue`, of which `read` entries have already been read.
    ///
    /// # Safety
    /// The queue pair of `queue` must outlive the reader.
    #[must_use]
    pub unsafe fn new(queue: CompletionRing, read: u64) -> CompletionReader {
        CompletionReader { queue, read }
    }

    /// Returns the first two words of the next entry. `None` if there is none.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "a queue has no end, and this call must be inlined")]
    pub fn next(&mut self) -> Option<[u64; completion::WORDS]> {
        let slot = rules::slot(self.read, self.queue.entries) as usize;
        // SAFETY: the slot is in the queue, which outlives this reader, and whose entries are aligned and have at least
        // 16 bytes, as the pair has checked.
        let places = unsafe {
            &*self.queue.slots.add(slot * self.queue.entry_bytes as usize).cast::<[AtomicU64; completion::WORDS]>()
        };
        let first = places[0].load(Ordering::Relaxed);
        if completion::phase(first) != rules::completion_phase(self.read, self.queue.entries) {
            return None;
        }
        // Pairs with the NIC's release of the phase, or with the order of the bus. Orders the load of the phase before
        // the loads of the other words and of the bytes of a write.
        barriers::acquire_loads();
        self.read += 1;
        Some([first, places[1].load(Ordering::Relaxed)])
    }
}
