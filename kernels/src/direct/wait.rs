//! How the ends of requests come back.
//!
//! One thread polls for all, and keeps the watermark in device memory. It reads the completion queue: entries come in any order of their
//! requests, and each counts once. Or it reads the card's counter (31 bits, which go round), which says how many have ended well and not
//! which: there a wait ends when all that is reserved has ended, so whoever waits by counters has a queue for each block. A counter says nothing of
//! a request that has failed; so where it stands still, the completion queue is searched for why.
//!
//! **Order.** The card stores an entry behind what it did (a read's bytes), and whoever polls acquires it; it gives the watermark on by
//! release, and the others acquire that. A slot is written again behind such an acquire.

use super::group::Group;
use super::{Failure, POLLED, Queue};
use crate::gin::GrowthLimit;
use crate::ring::Status;
use cuda_std::memory::{
    Word, compare_exchange_acquire_gpu_u64, load_acquire_gpu_v2_u64, load_acquire_sys_u64, load_relaxed_gpu_u64,
    load_relaxed_sys_u64, store_relaxed_gpu_u64, store_release_gpu_u64,
};
use cuda_std::{thread, warp};
use efa_queue::{completion, rules};

/// Looks in vain at a counter between two searches of the completion queue.
const LOOKS_BEFORE_SEARCH: u32 = 1 << 12;
/// The first sleep of a thread that does not poll (nanoseconds), doubled up to the wait's longest.
const SHORTEST_SLEEP: u32 = 32;
/// Longest sleep of a thread that waits for a completion: it adds to each.
const LONGEST_SLEEP: u32 = 64;

impl Queue {
    /// Waits until the request of this number and all before it have ended; lanes of a warp that call it together, for the last of theirs. Returns
    /// the watermark.
    ///
    /// # Errors
    /// The queue's first failure: [`Failure::DEADLINE`] when nothing has ended for the queue's timeout.
    #[inline(always)]
    pub fn wait(&mut self, number: u64) -> Result<u64, Failure> {
        let group = Group::of(self);
        let (ended, stop) = wait_for(*self, group, number);
        if stop != 0 {
            return Err(Failure(stop));
        }
        self.free_below = ended + self.depth as u64;
        Ok(ended)
    }

    /// Waits until the watermark is good for `done`, which the group's leader is asked. A group that polls goes on by itself; one that does not
    /// looks at the copy and stands for the role.
    pub(super) fn wait_until(
        &self,
        group: Group,
        longest_sleep: u32,
        done: impl Fn(u64) -> bool,
    ) -> Result<u64, Failure> {
        let words = self.words();
        let mut sleep = SHORTEST_SLEEP;
        let mut limit = GrowthLimit::new(self.timeout_ns);
        // What this thread has last known: alone, the role is taken by the first exchange.
        let mut seen = self.free_below - self.depth as u64;
        let mut is_free = true;
        loop {
            let (mut next, mut value) = (Next::GoOn, 0);
            if group.leads() {
                if is_free && compare_exchange_acquire_gpu_u64(&words.ended.0.0, seen, seen | POLLED) == seen {
                    (next, value) = (Next::Poll, seen);
                } else {
                    let (watermark, failure) = load_acquire_gpu_v2_u64(&words.ended.0);
                    seen = watermark & !POLLED;
                    is_free = watermark & POLLED == 0;
                    if done(seen) {
                        (next, value) = (Next::End, seen);
                    } else if let Err(failure) = self.go_on(failure, &mut limit, seen) {
                        // What has ended before has ended.
                        let ended = self.known();
                        (next, value) = if done(ended) { (Next::End, ended) } else { (Next::Fail, failure.0) };
                    }
                }
            }
            let (next, value) = (group.share(next as u64), group.share(value));
            group.meet();
            match next {
                next if next == Next::Poll as u64 => return self.poll(group, value, &done),
                next if next == Next::End as u64 => return Ok(value),
                next if next == Next::Fail as u64 => return Err(Failure(value)),
                _ => {}
            }
            if !group.any(group.leads() && is_free) {
                thread::nanosleep(sleep);
                sleep = (sleep * 2).min(longest_sleep);
            }
            thread::relax();
        }
    }

    /// The watermark now.
    fn known(&self) -> u64 {
        load_acquire_gpu_v2_u64(&self.words().ended.0).0 & !POLLED
    }

    /// After a look in vain that saw this failure: whether to go on.
    #[inline(always)]
    fn go_on(&self, failure: u64, limit: &mut GrowthLimit, watermark: u64) -> Result<(), Failure> {
        if failure != 0 {
            return Err(Failure(failure));
        }
        // What is rung is progress too, for who waits for that.
        let moved = watermark + load_relaxed_gpu_u64(&self.words().rung.0);
        // SAFETY: the host's word is there while the grid runs.
        match limit.look(moved, unsafe { &*self.abort }) {
            Ok(()) => Ok(()),
            Err(Status::DEADLINE) => Err(self.fail(self.why_late(watermark))),
            Err(reason) => Err(self.fail(Failure::of(Failure::ABORT + reason.0 as u16, 0))),
        }
    }

    /// By the group that has the role, which it gives back: takes what has ended until the watermark is good.
    #[inline(always)]
    fn poll(&self, group: Group, began: u64, done: &impl Fn(u64) -> bool) -> Result<u64, Failure> {
        let words = self.words();
        let mut polled = Polled { watermark: began, ahead: group.share(load_relaxed_gpu_u64(&words.ahead.0)) };
        let (ahead, mut published) = (polled.ahead, began);
        let mut limit = GrowthLimit::new(self.timeout_ns);
        let mut vain = 0;
        let result = loop {
            if group.any(group.leads() && done(polled.watermark)) {
                break Ok(polled.watermark);
            }
            // Before the look over the bus, behind which it hides.
            let failure = load_relaxed_gpu_u64(&words.ended.0.1);
            let taken = match self.counter.is_null() {
                true => self.take(group, &mut polled),
                false => self.count(group, &mut polled, vain),
            };
            vain = match taken {
                Ok(true) => 0,
                Ok(false) => vain + 1u32,
                Err(failure) => break Err(failure),
            };
            if vain == 0 {
                continue;
            }
            let mut stop = 0;
            if group.leads() {
                if polled.watermark != published {
                    published = polled.watermark;
                    store_release_gpu_u64(&words.ended.0.0, published | POLLED);
                }
                stop = self.go_on(failure, &mut limit, polled.watermark).err().map_or(0, |failure| failure.0);
            }
            let stop = group.share(stop);
            if stop != 0 {
                break Err(Failure(stop));
            }
            thread::relax();
        };
        let mut stop = 0;
        // What each lane has acquired, before what the leader releases.
        group.meet();
        if group.leads() {
            stop = result.as_ref().err().map_or(0, |failure| self.fail(*failure).0);
            if polled.ahead != ahead {
                store_relaxed_gpu_u64(&words.ahead.0, polled.ahead);
            }
            // The role, the watermark, and for the next in the role what this one has kept.
            store_release_gpu_u64(&words.ended.0.0, polled.watermark);
        }
        result.map_err(|_| Failure(group.share(stop)))
    }

    /// By a thread with the role, on a queue where this request alone is under way: whether it has ended well.
    #[inline(always)]
    pub(super) fn first_look(&self, entry: &Word, number: u64) -> bool {
        let first = load_acquire_sys_u64(entry);
        let is_there = completion::phase(first) == rules::completion_phase(number, self.completion_entries);
        let is_good = completion::status(first) == 0 && !completion::is_arrival(first);
        is_there && is_good && completion::id(first) == number as u16
    }

    /// By the same, where it had not by then; gives the role back.
    #[inline(always)]
    pub(super) fn go_on_polling(&self, group: Group, number: u64) -> Result<(), Failure> {
        match poll_for(*self, group, number) {
            0 => Ok(()),
            stop => Err(Failure(stop)),
        }
    }

    /// Takes completions, each lane one; whether there were some.
    ///
    /// A lane has one look under way at a time: several of one thread, to host memory, take as long as one after another (H200: 0.7 to 1.2 us
    /// each), and 32 of a warp as long as one.
    #[inline(always)]
    fn take(&self, group: Group, polled: &mut Polled) -> Result<bool, Failure> {
        let mine = polled.watermark + polled.ahead + group.rank as u64;
        // Acquire: the card has stored the bytes of a read before.
        let first = load_acquire_sys_u64(self.completion(mine));
        let taken = group.leading(completion::phase(first) == rules::completion_phase(mine, self.completion_entries));
        if taken == 0 {
            return Ok(false);
        }
        // An id is a number's low 16 bits, and no more are under way than there are slots.
        let offset = completion::id(first).wrapping_sub(polled.watermark as u16) as u64;
        let is_good = completion::status(first) == 0 && offset == group.rank as u64 && !completion::is_arrival(first);
        if polled.ahead == 0 && !group.any(group.rank < taken && !is_good) {
            polled.watermark += taken as u64;
            return Ok(true);
        }
        let (after, failure) = take_any(*self, group, *polled, first, taken);
        *polled = after;
        if failure == 0 { Ok(true) } else { Err(Failure(failure)) }
    }

    /// What is wrong with a completion, by its first word; 0: nothing.
    #[inline(always)]
    fn refused(&self, first: u64, watermark: u64) -> u64 {
        let offset = completion::id(first).wrapping_sub(watermark as u16) as u64;
        let number = watermark + offset;
        if completion::status(first) != 0 {
            return Failure::of(completion::status(first) as u16, number).0;
        }
        if offset >= self.depth as u64 {
            // One that has ended before, or none: the newest of this id.
            let back = (watermark as u16).wrapping_sub(completion::id(first)) as u64;
            return Failure::of(Failure::COMPLETION, watermark.wrapping_sub(back)).0;
        }
        // The one at the watermark has not ended, or the watermark were above it.
        let has_ended = offset != 0 && load_relaxed_gpu_u64(self.of_slot(self.done, number)) == number + 1;
        if completion::is_arrival(first) || has_ended { Failure::of(Failure::COMPLETION, number).0 } else { 0 }
    }

    /// Looks at the counter; whether it has grown.
    #[inline(always)]
    fn count(&self, group: Group, polled: &mut Polled, vain: u32) -> Result<bool, Failure> {
        let (mut grown, mut failure) = (0, 0);
        if group.leads() {
            // SAFETY: the card's word is there as long as the queue.
            let counter = load_acquire_sys_u64(unsafe { &*self.counter });
            grown = rules::behind(counter, polled.watermark);
            if grown == 0 && vain % LOOKS_BEFORE_SEARCH == LOOKS_BEFORE_SEARCH - 1 {
                failure = self.search(polled.watermark).err().map_or(0, |failure| failure.0);
            }
        }
        let (grown, failure) = (group.share(grown), group.share(failure));
        polled.watermark += grown;
        if failure == 0 { Ok(grown != 0) } else { Err(Failure(failure)) }
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

    /// Nothing has ended for the timeout. Of a request that has not, as far as anybody has read, there may be a completion all the same: then the
    /// card is a lap ahead. Out of line, as [`search`](Queue::search).
    #[inline(never)]
    fn why_late(&self, watermark: u64) -> Failure {
        let under_way = load_relaxed_gpu_u64(&self.words().reserved.0).wrapping_sub(watermark);
        let (mut index, mut oldest) = (0, u64::MAX);
        while index < self.completion_entries as u64 {
            let entry = load_relaxed_sys_u64(self.completion(index));
            let offset = completion::id(entry).wrapping_sub(watermark as u16) as u64;
            let number = watermark + offset;
            // An entry is not zero: it says which queue it is of.
            if entry != 0 && offset < under_way && load_relaxed_gpu_u64(self.of_slot(self.done, number)) != number + 1 {
                oldest = oldest.min(offset);
            }
            index += 1;
        }
        match oldest {
            u64::MAX => Failure::of(Failure::DEADLINE, watermark),
            offset => Failure::of(Failure::OVERRUN, watermark + offset),
        }
    }

    #[inline(always)]
    pub(super) fn completion(&self, number: u64) -> &Word {
        let index = rules::slot(number, self.completion_entries) * self.completion_words;
        // SAFETY: the queue has so many entries of so many words.
        unsafe { &*self.completions.add(index as usize) }
    }
}

/// What whoever polls keeps in registers.
#[derive(Clone, Copy)]
struct Polled {
    watermark: u64,
    ahead: u64,
}

/// Completions in any order, or failures: what is kept then, and a failure or 0. Out of line and on copies.
#[inline(never)]
fn take_any(queue: Queue, group: Group, mut polled: Polled, first: u64, taken: u32) -> (Polled, u64) {
    let offset = completion::id(first).wrapping_sub(polled.watermark as u16) as u64;
    let number = polled.watermark + offset;
    let counts = group.rank < taken;
    let mut failure = 0;
    if counts {
        failure = queue.refused(first, polled.watermark);
    }
    if group.lanes > 1 {
        // Two of one request: the later one is too many.
        let key = if counts && failure == 0 { number } else { !(group.rank as u64) };
        let same = warp::match_any_u64(group.mask, key);
        if counts && failure == 0 && same & ((1u32 << warp::lane()) - 1) != 0 {
            failure = Failure::of(Failure::COMPLETION, number).0;
        }
    }
    // What came before a failure has ended.
    let good = group.leading(counts && failure == 0);
    if group.rank < good {
        store_relaxed_gpu_u64(queue.of_slot(queue.done, number), number + 1);
    }
    group.meet();
    polled.ahead += good as u64;
    let is_next = group.any(group.rank < good && offset == 0);
    while is_next && polled.ahead > 0 {
        let next = polled.watermark + group.rank as u64;
        let more = group.leading(load_relaxed_gpu_u64(queue.of_slot(queue.done, next)) == next + 1);
        polled.watermark += more as u64;
        polled.ahead -= more as u64;
        if more < group.lanes {
            break;
        }
    }
    (polled, if good < taken { group.of_rank(good, failure) } else { 0 })
}

/// What a group goes on with.
#[derive(Clone, Copy)]
enum Next {
    GoOn,
    Poll,
    End,
    Fail,
}

/// [`Queue::go_on_polling`], out of line and on a copy: a failure or 0.
#[inline(never)]
fn poll_for(queue: Queue, group: Group, number: u64) -> u64 {
    queue.poll(group, number, &|watermark| watermark > number).err().map_or(0, |failure| failure.0)
}

/// [`Queue::wait`], out of line and on a copy: the watermark, and a failure or 0.
#[inline(never)]
fn wait_for(queue: Queue, group: Group, number: u64) -> (u64, u64) {
    let by_counter = !queue.counter.is_null();
    let last = group.latest(number);
    // A counter's ends are not of certain requests: all that are reserved have ended, or nothing is known. What was reserved is read behind
    // the counter.
    let done = |watermark: u64| {
        watermark > last && (!by_counter || watermark == load_relaxed_gpu_u64(&queue.words().reserved.0))
    };
    match queue.wait_until(group, LONGEST_SLEEP, done) {
        Ok(watermark) => (watermark, 0),
        Err(failure) => (0, failure.0),
    }
}
