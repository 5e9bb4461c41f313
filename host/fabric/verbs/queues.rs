//! The CPU's side of a card's queues: requests into the ring, the doorbell, entries out of memory.

use super::pair::{Completions, Ring};
use efa_queue::{completion, request, rules};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A send ring, written by one thread.
#[derive(Debug)]
pub(super) struct Poster {
    ring: Ring,
    /// Written so far, and of these rung for.
    posted: u64,
    rung: u64,
}

impl Poster {
    pub(super) fn new(ring: Ring) -> Poster {
        Poster { ring, posted: 0, rung: 0 }
    }

    /// The phase of the next request.
    #[inline]
    pub(super) fn phase(&self) -> bool {
        rules::send_phase(self.posted, self.ring.entries)
    }

    /// The next request. The caller has seen that its slot is free.
    #[inline]
    pub(super) fn put(&mut self, words: &[u64; request::WORDS]) {
        let slot = rules::slot(self.posted, self.ring.entries) as usize;
        // SAFETY: within the ring, whose entries are lines of 64 bytes (or twice that), as the pair vouches for.
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

    /// Rings for all that is written and not rung for.
    #[inline]
    pub(super) fn ring(&mut self) {
        if self.rung == self.posted {
            return;
        }
        self.rung = self.posted;
        // A full fence: a card's ring is write-combining memory, which nothing weaker empties; the card's look at the requests (acquire of the
        // doorbell, or the bus) comes behind it.
        fence(Ordering::SeqCst);
        // SAFETY: the doorbell, a word.
        unsafe { &*self.ring.doorbell.cast::<AtomicU32>() }.store(rules::doorbell(self.posted), Ordering::Relaxed);
        // And before the next requests: the card has room for one batch.
        fence(Ordering::SeqCst);
    }
}

/// A completion queue, read by one thread.
#[derive(Debug)]
pub(super) struct Reader {
    queue: Completions,
    read: u64,
}

impl Reader {
    pub(super) fn new(queue: Completions) -> Reader {
        Reader { queue, read: 0 }
    }

    /// The first two words of the next entry.
    #[inline]
    pub(super) fn next(&mut self) -> Option<[u64; completion::WORDS]> {
        let slot = rules::slot(self.read, self.queue.entries) as usize;
        // SAFETY: within the queue, whose entries have 16 bytes or more, aligned, as the pair vouches for.
        let places = unsafe {
            &*self.queue.slots.add(slot * self.queue.entry_bytes as usize).cast::<[AtomicU64; completion::WORDS]>()
        };
        let first = places[0].load(Ordering::Relaxed);
        if completion::phase(first) != rules::completion_phase(self.read, self.queue.entries) {
            return None;
        }
        // Pairs with the card's release of the phase, or with the bus's order: what is behind it is read later.
        fence(Ordering::Acquire);
        self.read += 1;
        Some([first, places[1].load(Ordering::Relaxed)])
    }
}
