//! The proxy's side of the ring: take elements in order, publish what is taken, publish what is done.

use super::{LOG2_COMMAND_WORDS, Ring, Status, parity};
use cuda_std::memory::{Word, fence_acq_rel_host, load_relaxed_sys_words, store_release_host_u64};

/// Bytes from an element to the lines that are fetched while it is worked on: their misses overlap.
const AHEAD_BYTES: usize = 1024;

/// The one consumer of a ring of `WORDS` words per element. Its cursor is private; only
/// [`publish_tail`](Consumer::publish_tail) shows it.
#[derive(Debug)]
pub struct Consumer<const WORDS: usize = { 1 << LOG2_COMMAND_WORDS }> {
    ring: Ring,
    cursor: u64,
    /// The cursor at the last look in vain.
    waited_at: u64,
    published: u64,
}

impl<const WORDS: usize> Consumer<WORDS> {
    /// The consumer of a fresh (all zero) ring, whose pointers are good for the CPU.
    ///
    /// # Safety
    /// The ring's slots are of `WORDS` words or more, its host memory outlives the consumer, and there is no second
    /// consumer.
    pub unsafe fn new(ring: &Ring) -> Consumer<WORDS> {
        Consumer { ring: *ring, cursor: 0, waited_at: 0, published: 0 }
    }

    /// Where the element of this ticket is, or will be.
    #[inline(always)]
    fn slot(&self, ticket: u64) -> *const [Word; WORDS] {
        let mask = self.ring.capacity() - 1;
        // SAFETY: contract of `new`; the mask keeps the slot before the ring's end.
        unsafe { self.ring.slots.add(((ticket & mask) as usize) << self.ring.log2_slot_words).cast() }
    }

    /// The next element's words, or `None` when it has not arrived whole.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<[u64; WORDS]> {
        let mut next = None;
        self.pop_each(1, |words| next = Some(words));
        next
    }

    /// Calls `each` with the elements that are there, at most so many, and returns how many.
    ///
    /// An element is there when the lap's parity stands in every word: a producer's stores may arrive in any order and at any
    /// time. A word of the lap before has the other parity, and no word can be of a later lap, since `tail` has not passed this
    /// slot. Each word is read once, and what is given to `each` is what was checked: nothing is asked of a second reading.
    #[inline(always)]
    pub fn pop_each(&mut self, most: u64, mut each: impl FnMut([u64; WORDS])) -> u64 {
        let first = self.cursor;
        let capacity = self.ring.capacity();
        let slot_bytes = size_of::<Word>() << self.ring.log2_slot_words;
        while self.cursor - first < most {
            // All of one lap, and before the ring's end.
            let run = (most - (self.cursor - first)).min(capacity - (self.cursor & (capacity - 1)));
            let lap = parity(self.cursor, self.ring.log2_capacity);
            // Not before some elements have come in a row: while few come, the lines behind the cursor stay with whoever writes
            // them.
            let dense = self.cursor - self.waited_at >= AHEAD_BYTES as u64 / slot_bytes as u64;
            let mut slot = self.slot(self.cursor);
            let mut taken = 0;
            while taken < run {
                // SAFETY: contract of `new`; the slot lies before the ring's end.
                let (words, other_lap) = load_relaxed_sys_words(unsafe { &*slot }, lap);
                if other_lap {
                    break;
                }
                if dense {
                    prefetch(slot);
                }
                each(words);
                slot = slot.wrapping_byte_add(slot_bytes);
                taken += 1;
            }
            self.cursor += taken;
            if taken < run {
                self.waited_at = self.cursor;
                break;
            }
        }
        self.cursor - first
    }

    /// Orders the payloads behind the commands popped so far: pairs with the producer's fence before its store, so that
    /// what the NIC (or this thread) reads next is what the kernel wrote before it pushed.
    #[inline(always)]
    pub fn acquire(&self) {
        fence_acq_rel_host();
    }

    /// Gives the slots of all popped elements back to the producers. Once per batch: each store takes the line from the
    /// poller. Release: our reads of the slots come before a producer's next stores to them (the rest of that chain stands
    /// at [`push_words`](Ring::push_words) and in `space.rs`).
    #[inline(always)]
    pub fn publish_tail(&mut self) {
        if self.published != self.cursor {
            self.published = self.cursor;
            store_release_host_u64(&self.ring.host().tail.0, self.cursor);
        }
    }

    /// Popped elements whose slots have not been given back.
    pub fn unpublished(&self) -> u64 {
        self.cursor - self.published
    }

    /// How many elements have been popped: the ticket of the next one.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Tells the kernels that all tickets below this are done. Release: what this thread wrote, or saw written, is visible
    /// before. Bytes that a NIC wrote into device memory are outside this promise: the caller flushes them before, where the
    /// device does not order them itself.
    #[inline(always)]
    pub fn publish_watermark(&self, watermark: u64) {
        store_release_host_u64(&self.ring.host().completion.0.0, watermark);
    }

    /// Ends every wait of the kernels with this reason. Call it after the last watermark: release, so that whoever sees
    /// the status finds that watermark.
    pub fn publish_status(&self, stop: Status) {
        store_release_host_u64(&self.ring.host().completion.0.1, stop.0);
    }
}

/// Fetches a line that will be read soon.
#[inline(always)]
fn prefetch<T>(slot: *const T) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it may name any address.
        unsafe { _mm_prefetch(slot.wrapping_byte_add(AHEAD_BYTES).cast(), _MM_HINT_T0) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    let _ = slot;
}
