//! The proxy's side of the ring: takes elements in order and publishes the tail, the watermark and the status.

use super::{LOG2_COMMAND_WORDS, Ring, Status, parity};
use cuda_std::memory::{Word, fence_acq_rel_host, load_relaxed_sys_words, store_release_host_u64};

/// Distance in bytes between an element that is processed and the cache line that is prefetched at the same time, so
/// that the misses overlap.
const AHEAD_BYTES: usize = 1024;

/// The only consumer of a ring with `WORDS` words per element. Its cursor is private;
/// [`publish_tail`](Consumer::publish_tail) makes it visible to producers.
#[derive(Debug)]
pub struct Consumer<const WORDS: usize = { 1 << LOG2_COMMAND_WORDS }> {
    ring: Ring,
    cursor: u64,
    /// The cursor at the last unsuccessful poll.
    waited_at: u64,
    published: u64,
}

impl<const WORDS: usize> Consumer<WORDS> {
    /// Creates the consumer of a new (all zero) ring, whose pointers must be valid on the CPU.
    ///
    /// # Safety
    /// The ring's slots must have at least `WORDS` words, its host memory must outlive the consumer, and there must be
    /// no other consumer.
    pub unsafe fn new(ring: &Ring) -> Consumer<WORDS> {
        Consumer { ring: *ring, cursor: 0, waited_at: 0, published: 0 }
    }

    /// Returns the address of the slot of this ticket.
    #[inline(always)]
    fn slot(&self, ticket: u64) -> *const [Word; WORDS] {
        let mask = self.ring.capacity() - 1;
        // SAFETY: the caller of `new` guarantees that the slots are valid; the mask keeps the index below the capacity.
        unsafe { self.ring.slots.add(((ticket & mask) as usize) << self.ring.log2_slot_words).cast() }
    }

    /// Returns the words of the next element, or `None` if it has not fully arrived.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<[u64; WORDS]> {
        let mut next = None;
        self.pop_each(1, |words| next = Some(words));
        next
    }

    /// Copies the elements that have arrived to the start of `batch`, as many as fit. Returns their number.
    #[inline(always)]
    pub fn pop_batch(&mut self, batch: &mut [[u64; WORDS]]) -> usize {
        let most = batch.len() as u64;
        let mut free = batch.iter_mut();
        let popped = self.pop_each(most, |words| {
            if let Some(element) = free.next() {
                *element = words;
            }
        });
        popped as usize
    }

    /// Calls `each` with the elements that have arrived, at most `most`. Returns their number.
    ///
    /// An element has arrived if every word has the parity of the current lap: a producer's stores may arrive in any
    /// order and at any time. A word of the previous lap has the other parity. No word can be from a later lap, since
    /// `tail` has not passed this slot. Each word is loaded once, so `each` receives exactly the values that were
    /// checked.
    #[inline(always)]
    pub fn pop_each(&mut self, most: u64, mut each: impl FnMut([u64; WORDS])) -> u64 {
        let first = self.cursor;
        let capacity = self.ring.capacity();
        let slot_bytes = size_of::<Word>() << self.ring.log2_slot_words;
        while self.cursor - first < most {
            // A run stays within one lap, and ends at the ring's end.
            let run = (most - (self.cursor - first)).min(capacity - (self.cursor & (capacity - 1)));
            let lap = parity(self.cursor, self.ring.log2_capacity);
            // Prefetches only after several consecutive elements. At a low rate, the lines after the cursor should stay
            // with the producers that write them.
            let dense = self.cursor - self.waited_at >= AHEAD_BYTES as u64 / slot_bytes as u64;
            let mut slot = self.slot(self.cursor);
            let mut taken = 0;
            while taken < run {
                // SAFETY: the caller of `new` guarantees that the slots are valid; the slot is before the ring's end.
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

    /// Orders the payloads of the commands popped so far. Pairs with the producer's fence before its store: later reads
    /// by the NIC or this thread observe the data that the kernel wrote before the push.
    #[inline(always)]
    pub fn acquire(&self) {
        fence_acq_rel_host();
    }

    /// Returns the slots of all popped elements to the producers. Called once per batch, because each store takes the
    /// cache line from the poller. Uses release order: the reads of the slots happen before a producer's next stores to
    /// them. The remaining links of the chain are documented at [`push_words`](Ring::push_words) and in `space.rs`.
    #[inline(always)]
    pub fn publish_tail(&mut self) {
        if self.published != self.cursor {
            self.published = self.cursor;
            store_release_host_u64(&self.ring.host().tail.0, self.cursor);
        }
    }

    /// Returns the number of popped elements whose slots have not been returned.
    pub fn unpublished(&self) -> u64 {
        self.cursor - self.published
    }

    /// Returns the number of popped elements, which is also the ticket of the next element.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Reports to the kernels that all tickets below `watermark` are complete. Uses release order: everything that this
    /// thread has written or observed becomes visible first. This excludes bytes that a NIC wrote to device memory: if
    /// the device does not order these, the caller must flush them first.
    #[inline(always)]
    pub fn publish_watermark(&self, watermark: u64) {
        store_release_host_u64(&self.ring.host().completion.0.0, watermark);
    }

    /// Ends every wait of the kernels with this status. Must be called after the last watermark has been published.
    /// Uses release order: a thread that observes the status also observes that watermark.
    pub fn publish_status(&self, stop: Status) {
        store_release_host_u64(&self.ring.host().completion.0.1, stop.0);
    }
}

/// Prefetches the line [`AHEAD_BYTES`] after `slot`.
#[inline(always)]
fn prefetch<T>(slot: *const T) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, loom))))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint, for which any address is allowed.
        unsafe { _mm_prefetch(slot.wrapping_byte_add(AHEAD_BYTES).cast(), _MM_HINT_T0) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom)))))]
    let _ = slot;
}
