//! The proxy's side of the ring: take elements in order, publish what is taken, publish what is done.

use super::{HostWords, LOG2_COMMAND_WORDS, Ring, Stop, parity};
use crate::command::PARITY;
use cuda_std::memory::{Word, fence_acq_rel_sys, load_relaxed_sys_u64, store_release_sys_u64};

/// Words that one look covers, eight cache lines: their loads do not wait for each other, so the misses of a burst that
/// has just arrived overlap.
const LOOK_WORDS: usize = 64;

/// The one consumer of a ring of `WORDS` words per element. Its cursor is private; only
/// [`publish_tail`](Consumer::publish_tail) shows it.
#[derive(Debug)]
pub struct Consumer<const WORDS: usize = { 1 << LOG2_COMMAND_WORDS }> {
    slots: *const Word,
    host: *const HostWords,
    log2_capacity: u32,
    log2_slot_words: u32,
    cursor: u64,
    /// Elements below this have been seen whole.
    whole: u64,
    published: u64,
}

// SAFETY: the pointers are to shared words reached by atomic operations; the cursor moves with the consumer.
unsafe impl<const WORDS: usize> Send for Consumer<WORDS> {}

impl<const WORDS: usize> Consumer<WORDS> {
    /// Elements that one look covers: from 1 to 32.
    const LOOK: u32 = match LOOK_WORDS / WORDS {
        0 => 1,
        elements if elements > 32 => 32,
        elements => elements as u32,
    };

    /// The consumer of a fresh (all zero) ring, whose pointers are good for the CPU.
    ///
    /// # Safety
    /// The ring's slots are of `WORDS` words or more, its host memory outlives the consumer, and there is no second
    /// consumer.
    pub unsafe fn new(ring: &Ring) -> Consumer<WORDS> {
        Consumer {
            slots: ring.slots,
            host: ring.host,
            log2_capacity: ring.log2_capacity,
            log2_slot_words: ring.log2_slot_words,
            cursor: 0,
            whole: 0,
            published: 0,
        }
    }

    fn host(&self) -> &HostWords {
        // SAFETY: contract of `new`.
        unsafe { &*self.host }
    }

    /// The words of the slot `ahead` slots behind the one of `ticket`, which must not lie beyond the ring's end.
    #[inline(always)]
    fn slot(&self, ticket: u64, ahead: usize) -> &[Word; WORDS] {
        let mask = (1u64 << self.log2_capacity) - 1;
        let index = (((ticket & mask) as usize) + ahead) << self.log2_slot_words;
        // SAFETY: contract of `new`; the slot lies before the ring's end.
        unsafe { &*self.slots.add(index).cast::<[Word; WORDS]>() }
    }

    /// Zero when the slot's element of this lap is whole.
    ///
    /// The parity must stand in every word: a producer's stores may arrive in any order and at any time. A word of the
    /// lap before has the other parity. An older word cannot come back, since we have read the newer one; and no word can
    /// be of a later lap, since `tail` has not passed this slot.
    #[inline(always)]
    fn missing(&self, lap: u64, ticket: u64, ahead: usize) -> u64 {
        let words = self.slot(ticket, ahead);
        words.iter().fold(0, |bits, word| bits | (load_relaxed_sys_u64(word) ^ lap)) & PARITY
    }

    /// The element of this ticket, which a look has found whole. It is read again: until `tail` passes it nobody writes it, and
    /// a later read of a word never returns an older value.
    #[inline(always)]
    fn content(&self, ticket: u64) -> [u64; WORDS] {
        let slot = self.slot(ticket, 0);
        std::array::from_fn(|index| load_relaxed_sys_u64(&slot[index]) & !PARITY)
    }

    /// Looks for whole elements from the cursor on. The first alone: while nothing comes, the lines behind it stay with
    /// whoever writes them.
    #[inline(always)]
    fn look(&mut self) {
        let lap = parity(self.cursor, self.log2_capacity);
        if self.missing(lap, self.cursor, 0) != 0 {
            return;
        }
        let mut count = 1;
        let capacity = 1u64 << self.log2_capacity;
        if capacity - (self.cursor & (capacity - 1)) >= u64::from(Self::LOOK) {
            // Without a branch: every load of the look is under way before the first is waited for.
            let mut missing = 1u64 << Self::LOOK;
            for ahead in 1..Self::LOOK {
                missing |= self.missing(lap, self.cursor, ahead as usize) >> 63 << ahead;
            }
            count = u64::from(missing.trailing_zeros());
            if count == u64::from(Self::LOOK) {
                self.prefetch(self.cursor + count);
            }
        }
        self.whole = self.cursor + count;
    }

    /// The elements come densely: fetch what the next look will read while this one's are worked on.
    #[inline(always)]
    fn prefetch(&self, ticket: u64) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for ahead in (0..Self::LOOK as usize * WORDS).step_by(8) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let line = std::ptr::from_ref(self.slot(ticket, 0)).cast::<i8>().wrapping_add(ahead * 8);
            // SAFETY: a hint; it may name any address.
            unsafe { _mm_prefetch(line, _MM_HINT_T0) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = ticket;
    }

    /// The next element's words, or `None` when it has not arrived whole.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<[u64; WORDS]> {
        if self.cursor == self.whole {
            self.look();
            if self.cursor == self.whole {
                return None;
            }
        }
        let words = self.content(self.cursor);
        self.cursor += 1;
        Some(words)
    }

    /// Calls `each` with the elements that are there, at most so many, and returns how many. As [`pop`](Consumer::pop) in a
    /// loop, without the question between two elements of one look.
    #[inline(always)]
    pub fn pop_each(&mut self, most: u64, mut each: impl FnMut([u64; WORDS])) -> u64 {
        let first = self.cursor;
        while self.cursor - first < most {
            if self.cursor == self.whole {
                self.look();
            }
            let end = self.whole.min(first + most);
            if self.cursor == end {
                break;
            }
            for ticket in self.cursor..end {
                each(self.content(ticket));
            }
            self.cursor = end;
        }
        self.cursor - first
    }

    /// Orders the payloads behind the commands popped so far: pairs with the producer's fence before its store, so that
    /// what the NIC (or this thread) reads next is what the kernel wrote before it pushed.
    #[inline(always)]
    pub fn acquire(&self) {
        fence_acq_rel_sys();
    }

    /// Gives the slots of all popped elements back to the producers. Once per batch: each store takes the line from the
    /// poller. Release: our reads of the slots come before a producer's next stores to them (the rest of that chain stands
    /// at [`push_each`](Ring::push_each)).
    #[inline(always)]
    pub fn publish_tail(&mut self) {
        if self.published != self.cursor {
            self.published = self.cursor;
            store_release_sys_u64(&self.host().tail.0, self.cursor);
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
