//! How the ends of requests come back.
//!
//! One thread polls for all, and keeps the watermark in device memory. It reads the completion queue: entries come in any order of their
//! requests, and each counts once. Or it reads the card's counter (31 bits, which go round), which says how many have ended well and not
//! which: there a wait ends when all that is reserved has ended, so whoever waits by counters has a queue for each block. A counter says nothing of
//! a request that has failed; so where it stands still, the completion queue is searched for why.
//!
//! **Order.** The card stores an entry behind what it did (a read's bytes), and whoever polls acquires it; it gives the watermark on by
//! release, and the others acquire that. A slot is written again behind such an acquire.

use super::{Failure, POLLED, Queue};
use crate::gin::GrowthLimit;
use crate::ring::Status;
use cuda_std::memory::{
    Word, compare_exchange_acquire_gpu_u64, fence_acq_rel_sys, load_acquire_gpu_v2_u64, load_acquire_sys_u64,
    load_relaxed_gpu_u64, load_relaxed_sys_u64, store_relaxed_gpu_u64, store_release_gpu_u64,
};
use cuda_std::{thread, warp};
use efa_queue::{completion, rules};

/// Entries under way at once, once one has been found.
const UNDER_WAY: usize = 8;
/// Looks in vain at a counter between two searches of the completion queue.
const LOOKS_BEFORE_SEARCH: u32 = 1 << 12;
/// The first sleep of a thread that does not poll (nanoseconds), doubled up to the wait's longest.
const SHORTEST_SLEEP: u32 = 32;
/// Longest sleep of a thread that waits for a completion: it adds to each.
const LONGEST_SLEEP: u32 = 64;

impl Queue {
    /// Waits until the request of this number and all before it have ended. Returns the watermark.
    ///
    /// # Errors
    /// The queue's first failure: [`Failure::DEADLINE`] when nothing has ended for the queue's timeout.
    #[inline(always)]
    pub fn wait(&mut self, number: u64) -> Result<u64, Failure> {
        let (ended, stop) = wait_for(*self, number);
        if stop != 0 {
            return Err(Failure(stop));
        }
        self.free_below = ended + self.depth as u64;
        Ok(ended)
    }

    /// Waits until the watermark is good for `done`. A thread that polls goes on by itself; one that does not looks at the copy and
    /// stands for the role.
    pub(super) fn wait_until(&self, longest_sleep: u32, done: impl Fn(u64) -> bool) -> Result<u64, Failure> {
        let words = self.words();
        let mut sleep = SHORTEST_SLEEP;
        let mut limit = GrowthLimit::new(self.timeout_ns);
        // What this thread has last known: alone, the role is taken by the first exchange.
        let mut seen = self.free_below - self.depth as u64;
        let mut is_free = true;
        loop {
            if is_free
                && warp::lane() == warp::active_mask().trailing_zeros()
                && compare_exchange_acquire_gpu_u64(&words.ended.0.0, seen, seen | POLLED) == seen
            {
                return self.poll(seen, &done);
            }
            let (watermark, failure) = load_acquire_gpu_v2_u64(&words.ended.0);
            seen = watermark & !POLLED;
            if done(seen) {
                return Ok(seen);
            }
            if failure != 0 {
                return self.failed(failure, &done);
            }
            self.look(&mut limit, seen)?;
            is_free = watermark & POLLED == 0;
            if !is_free {
                thread::nanosleep(sleep);
                sleep = (sleep * 2).min(longest_sleep);
            }
            thread::relax();
        }
    }

    /// There is a failure: but what has ended before it has ended.
    fn failed(&self, failure: u64, done: &impl Fn(u64) -> bool) -> Result<u64, Failure> {
        let (watermark, _) = load_acquire_gpu_v2_u64(&self.words().ended.0);
        let watermark = watermark & !POLLED;
        if done(watermark) { Ok(watermark) } else { Err(Failure(failure)) }
    }

    /// After a look in vain: whether to go on.
    #[inline(always)]
    fn look(&self, limit: &mut GrowthLimit, watermark: u64) -> Result<(), Failure> {
        // What is rung is progress too, for who waits for that.
        let moved = watermark + load_relaxed_gpu_u64(&self.words().marks.0.1);
        // SAFETY: the host's word is there while the grid runs.
        match limit.look(moved, unsafe { &*self.abort }) {
            Ok(()) => Ok(()),
            Err(Status::DEADLINE) => Err(self.fail(Failure::of(Failure::DEADLINE, watermark))),
            Err(reason) => Err(self.fail(Failure::of(Failure::ABORT + reason.0 as u16, 0))),
        }
    }

    /// By the thread that has the role, which it gives back: takes what has ended until the watermark is good.
    #[inline(always)]
    fn poll(&self, began: u64, done: &impl Fn(u64) -> bool) -> Result<u64, Failure> {
        let words = self.words();
        let mut polled = Polled { watermark: began, ahead: load_relaxed_gpu_u64(&words.ahead.0) };
        let (ahead, mut published) = (polled.ahead, began);
        let mut limit = GrowthLimit::new(self.timeout_ns);
        let mut vain = 0;
        let result = loop {
            if done(polled.watermark) {
                break Ok(polled.watermark);
            }
            // Before the look over the bus, behind which it hides.
            let failure = load_relaxed_gpu_u64(&words.ended.0.1);
            let taken =
                if self.counter.is_null() { self.take(&mut polled, done) } else { self.count(&mut polled, vain) };
            vain = match taken {
                Ok(true) => 0,
                Ok(false) => vain + 1u32,
                Err(failure) => break Err(self.fail(failure)),
            };
            if vain == 0 {
                continue;
            }
            if failure != 0 {
                break Err(Failure(failure));
            }
            if polled.watermark != published {
                published = polled.watermark;
                store_release_gpu_u64(&words.ended.0.0, published | POLLED);
            }
            if let Err(failure) = self.look(&mut limit, polled.watermark) {
                break Err(failure);
            }
            thread::relax();
        };
        if polled.ahead != ahead {
            store_relaxed_gpu_u64(&words.ahead.0, polled.ahead);
        }
        // The role, the watermark, and for the next in the role what this one has kept.
        store_release_gpu_u64(&words.ended.0.0, polled.watermark);
        result
    }

    /// Takes completions; whether there were some.
    #[inline(always)]
    fn take(&self, polled: &mut Polled, done: &impl Fn(u64) -> bool) -> Result<bool, Failure> {
        let read = polled.watermark + polled.ahead;
        let first = load_acquire_sys_u64(self.completion(read));
        if completion::phase(first) != rules::completion_phase(read, self.completion_entries) {
            return Ok(false);
        }
        self.ended(polled, first)?;
        while !done(polled.watermark) {
            let read = polled.watermark + polled.ahead;
            let mut entries = [0; UNDER_WAY];
            for (index, entry) in entries.iter_mut().enumerate() {
                *entry = load_relaxed_sys_u64(self.completion(read + index as u64));
            }
            let mut taken = 0;
            for (index, entry) in entries.into_iter().enumerate() {
                let phase = rules::completion_phase(read + index as u64, self.completion_entries);
                if taken == index && completion::phase(entry) == phase {
                    self.ended(polled, entry)?;
                    taken += 1;
                }
            }
            if taken > 0 {
                // An acquire of the entries.
                fence_acq_rel_sys();
            }
            if taken < UNDER_WAY {
                break;
            }
        }
        Ok(true)
    }

    /// One completion, by its first word.
    #[inline(always)]
    fn ended(&self, polled: &mut Polled, entry: u64) -> Result<(), Failure> {
        // An id is a number's low 16 bits, and no more are under way than there are slots.
        let offset = completion::id(entry).wrapping_sub(polled.watermark as u16) as u64;
        let number = polled.watermark + offset;
        if completion::status(entry) != 0 {
            return Err(Failure::of(completion::status(entry) as u16, number));
        }
        let done = self.of_slot(self.done, number);
        if offset >= self.depth as u64 {
            // One that has ended before, or none: the newest of this id.
            let back = (polled.watermark as u16).wrapping_sub(completion::id(entry)) as u64;
            return Err(Failure::of(Failure::COMPLETION, polled.watermark.wrapping_sub(back)));
        }
        if completion::is_arrival(entry) || load_relaxed_if(offset, done) == number + 1 {
            return Err(Failure::of(Failure::COMPLETION, number));
        }
        if offset != 0 {
            store_relaxed_gpu_u64(done, number + 1);
            polled.ahead += 1;
            return Ok(());
        }
        polled.watermark += 1;
        while polled.ahead > 0
            && load_relaxed_gpu_u64(self.of_slot(self.done, polled.watermark)) == polled.watermark + 1
        {
            polled.watermark += 1;
            polled.ahead -= 1;
        }
        Ok(())
    }

    /// Looks at the counter; whether it has grown.
    #[inline(always)]
    fn count(&self, polled: &mut Polled, vain: u32) -> Result<bool, Failure> {
        // SAFETY: the card's word is there as long as the queue.
        let counter = load_acquire_sys_u64(unsafe { &*self.counter });
        let grown = rules::behind(counter, polled.watermark);
        polled.watermark += grown;
        if grown == 0 && vain % LOOKS_BEFORE_SEARCH == LOOKS_BEFORE_SEARCH - 1 {
            self.search(polled.watermark)?;
        }
        Ok(grown != 0)
    }

    /// Looks for a request that has failed among all completions. Out of line: something is wrong, or slow.
    #[inline(never)]
    fn search(&self, watermark: u64) -> Result<(), Failure> {
        let mut index = 0;
        while index < self.completion_entries as u64 {
            let entry = load_relaxed_sys_u64(self.completion(index));
            if completion::status(entry) != 0 {
                // Which lap it is of is not known: the newest that fits below what is reserved.
                let reserved = load_relaxed_gpu_u64(&self.words().reserved.0);
                let back = (reserved.wrapping_sub(1) as u16).wrapping_sub(completion::id(entry)) as u64;
                let number =
                    reserved.saturating_sub(1).saturating_sub(back).max(watermark.saturating_sub(self.depth as u64));
                return Err(Failure::of(completion::status(entry) as u16, number));
            }
            index += 1;
        }
        Ok(())
    }

    #[inline(always)]
    fn completion(&self, number: u64) -> &Word {
        let index = rules::slot(number, self.completion_entries) * self.completion_words;
        // SAFETY: the queue has so many entries of so many words.
        unsafe { &*self.completions.add(index as usize) }
    }
}

/// What whoever polls keeps in registers.
struct Polled {
    watermark: u64,
    ahead: u64,
}

/// The word of a request above the watermark. The one at the watermark has not ended, or the watermark were above it.
#[inline(always)]
fn load_relaxed_if(offset: u64, word: &Word) -> u64 {
    if offset == 0 { 0 } else { load_relaxed_gpu_u64(word) }
}

/// [`Queue::wait`], out of line and on a copy: the watermark, and a failure or 0.
#[inline(never)]
fn wait_for(queue: Queue, number: u64) -> (u64, u64) {
    let by_counter = !queue.counter.is_null();
    // A counter's ends are not of certain requests: all that are reserved have ended, or nothing is known. What was reserved is read behind
    // the counter.
    let done = |watermark: u64| {
        watermark > number && (!by_counter || watermark == load_relaxed_gpu_u64(&queue.words().reserved.0))
    };
    match queue.wait_until(LONGEST_SLEEP, done) {
        Ok(watermark) => (watermark, 0),
        Err(failure) => (0, failure.0),
    }
}
