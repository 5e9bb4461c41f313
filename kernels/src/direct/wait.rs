//! Processing of completions.
//!
//! One thread polls for all threads and maintains the watermark in device memory. It polls one of two sources:
//!
//! - The completion queue. Entries arrive in any order of their requests, and each is counted once.
//! - The NIC's counter of successful requests (31 bits, wrapping). It does not identify which requests succeeded, so a
//!   wait ends only when all reserved requests have completed. Kernels that wait by counters therefore use one queue
//!   per block. Failed requests are not counted. If the counter does not advance, the completion queue is searched for
//!   the reason.
//!
//! **Order.** The NIC stores an entry after the effects of its request (the bytes of a read), and the polling thread
//! acquires the entry. It publishes the watermark by a release, which the other threads acquire. A slot is overwritten
//! only after such an acquire.

use super::group::Group;
use super::{NicQueue, POLLED, QueueFailure};
use crate::gin::GrowthLimit;
use crate::ring::Status;
use cuda_std::memory::{
    Word, compare_exchange_acquire_gpu_u64, load_acquire_gpu_v2_u64, load_acquire_sys_u64, load_relaxed_gpu_u64,
    load_relaxed_sys_u64, store_relaxed_gpu_u64, store_release_gpu_u64,
};
use cuda_std::{thread, warp};
use efa_queue::{completion, rules};

/// Number of unsuccessful polls of the counter between two searches of the completion queue.
const LOOKS_BEFORE_SEARCH: u32 = 1 << 12;
/// First sleep of a thread that does not poll, in nanoseconds. Later sleeps double, up to the maximum of the wait.
const SHORTEST_SLEEP: u32 = 32;
/// Longest sleep of a thread that waits for a completion, in nanoseconds. Adds to the latency of each completion.
const LONGEST_SLEEP: u32 = 64;

impl NicQueue {
    /// Waits until request `number` and all preceding ones have completed. Lanes of a warp that call it together wait
    /// for the last of their requests. Returns the watermark.
    ///
    /// # Errors
    /// Returns the queue's first failure, which is [`QueueFailure::DEADLINE`] if no request has completed within the
    /// queue's timeout.
    #[inline(always)]
    pub fn wait(&mut self, number: u64) -> Result<u64, QueueFailure> {
        let group = Group::of(self);
        let (ended, stop) = wait_for(*self, group, number);
        if stop != 0 {
            return Err(QueueFailure(stop));
        }
        self.free_below = ended + self.depth as u64;
        Ok(ended)
    }

    /// Waits until the watermark satisfies `done`, which is evaluated on the group's leader. A group that obtains the
    /// polling role polls until then. Other groups read the published watermark and retry to obtain the role.
    pub(super) fn wait_until(
        &self,
        group: Group,
        longest_sleep: u32,
        done: impl Fn(u64) -> bool,
    ) -> Result<u64, QueueFailure> {
        let words = self.words();
        let mut sleep = SHORTEST_SLEEP;
        let mut limit = GrowthLimit::new(self.timeout_ns);
        // Starts from the watermark that this thread observed last: without contention, the first exchange then obtains
        // the role.
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
                        // Requests that completed before the failure are still complete.
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
                next if next == Next::Fail as u64 => return Err(QueueFailure(value)),
                _ => {}
            }
            if !group.any(group.leads() && is_free) {
                thread::nanosleep(sleep);
                sleep = (sleep * 2).min(longest_sleep);
            }
            thread::relax();
        }
    }

    /// Returns the current watermark.
    fn known(&self) -> u64 {
        load_acquire_gpu_v2_u64(&self.words().ended.0).0 & !POLLED
    }

    /// Handles an unsuccessful poll that loaded `failure`. Returns an error if the wait must end.
    #[inline(always)]
    fn go_on(&self, failure: u64, limit: &mut GrowthLimit, watermark: u64) -> Result<(), QueueFailure> {
        if failure != 0 {
            return Err(QueueFailure(failure));
        }
        // Doorbells are progress as well: `wait_for_room` also waits for them.
        let moved = watermark + load_relaxed_gpu_u64(&self.words().rung.0);
        // SAFETY: the host's control word outlives the grid.
        match limit.look(moved, unsafe { &*self.abort }) {
            Ok(()) => Ok(()),
            Err(Status::DEADLINE) => Err(self.fail(self.why_late(watermark))),
            Err(reason) => Err(self.fail(QueueFailure::of(QueueFailure::ABORT + reason.0 as u16, 0))),
        }
    }

    /// Processes completions until the watermark satisfies `done`, then releases the polling role. Called by the group
    /// that has the role.
    #[inline(always)]
    fn poll(&self, group: Group, began: u64, done: &impl Fn(u64) -> bool) -> Result<u64, QueueFailure> {
        let words = self.words();
        let mut polled = Polled { watermark: began, ahead: group.share(load_relaxed_gpu_u64(&words.ahead.0)) };
        let (ahead, mut published) = (polled.ahead, began);
        let mut limit = GrowthLimit::new(self.timeout_ns);
        let mut vain = 0;
        let result = loop {
            if group.any(group.leads() && done(polled.watermark)) {
                break Ok(polled.watermark);
            }
            // Issued before the poll over PCIe, which hides its latency.
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
                break Err(QueueFailure(stop));
            }
            thread::relax();
        };
        let mut stop = 0;
        // Orders the acquires of all lanes before the leader's release.
        group.meet();
        if group.leads() {
            stop = result.as_ref().err().map_or(0, |failure| self.fail(*failure).0);
            if polled.ahead != ahead {
                store_relaxed_gpu_u64(&words.ahead.0, polled.ahead);
            }
            // Publishes the watermark and this group's polling state, and releases the role.
            store_release_gpu_u64(&words.ended.0.0, polled.watermark);
        }
        result.map_err(|_| QueueFailure(group.share(stop)))
    }

    /// Returns whether the completion of request `number` has arrived and is successful. The caller must hold the role
    /// and have no other request in flight.
    #[inline(always)]
    pub(super) fn first_look(&self, entry: &Word, number: u64) -> bool {
        let first = load_acquire_sys_u64(entry);
        let is_there = completion::phase(first) == rules::completion_phase(number, self.completion_entries);
        let is_good = completion::status(first) == 0 && !completion::is_arrival(first);
        is_there && is_good && completion::id(first) == number as u16
    }

    /// Continues polling after an unsuccessful [`first_look`](NicQueue::first_look), then releases the role.
    #[inline(always)]
    pub(super) fn go_on_polling(&self, group: Group, number: u64) -> Result<(), QueueFailure> {
        match poll_for(*self, group, number) {
            0 => Ok(()),
            stop => Err(QueueFailure(stop)),
        }
    }

    /// Processes completions, one per lane. Returns whether there were any.
    ///
    /// A lane has one load in flight at a time: several loads of one thread from host memory take as long as sequential
    /// ones, whereas 32 loads of a warp take as long as one.
    #[inline(always)]
    fn take(&self, group: Group, polled: &mut Polled) -> Result<bool, QueueFailure> {
        let mine = polled.watermark + polled.ahead + group.rank as u64;
        // Uses acquire order: the NIC has stored the bytes of a read before the entry.
        let first = load_acquire_sys_u64(self.completion(mine));
        let taken = group.leading(completion::phase(first) == rules::completion_phase(mine, self.completion_entries));
        if taken == 0 {
            return Ok(false);
        }
        // An id is the low 16 bits of a request number, and at most `depth` requests are in flight.
        let offset = completion::id(first).wrapping_sub(polled.watermark as u16) as u64;
        let is_good = completion::status(first) == 0 && offset == group.rank as u64 && !completion::is_arrival(first);
        if polled.ahead == 0 && !group.any(group.rank < taken && !is_good) {
            polled.watermark += taken as u64;
            return Ok(true);
        }
        let (after, failure) = take_any(*self, group, *polled, first, taken);
        *polled = after;
        if failure == 0 { Ok(true) } else { Err(QueueFailure(failure)) }
    }

    /// Returns the failure that the first word of a completion reports, or 0 if the completion is valid.
    #[inline(always)]
    fn refused(&self, first: u64, watermark: u64) -> u64 {
        let offset = completion::id(first).wrapping_sub(watermark as u16) as u64;
        let number = watermark + offset;
        if completion::status(first) != 0 {
            return QueueFailure::of(completion::status(first) as u16, number).0;
        }
        if offset >= self.depth as u64 {
            // The request has already completed or never existed. Reports the newest number with this id.
            let back = (watermark as u16).wrapping_sub(completion::id(first)) as u64;
            return QueueFailure::of(QueueFailure::COMPLETION, watermark.wrapping_sub(back)).0;
        }
        // The request at the watermark cannot have completed, because the watermark would then be higher.
        let has_ended = offset != 0 && load_relaxed_gpu_u64(self.of_slot(self.done, number)) == number + 1;
        if completion::is_arrival(first) || has_ended {
            QueueFailure::of(QueueFailure::COMPLETION, number).0
        } else {
            0
        }
    }

    /// Polls the counter. Returns whether it has advanced.
    #[inline(always)]
    fn count(&self, group: Group, polled: &mut Polled, vain: u32) -> Result<bool, QueueFailure> {
        let (mut grown, mut failure) = (0, 0);
        if group.leads() {
            // SAFETY: the NIC's counter is mapped as long as the queue exists.
            let counter = load_acquire_sys_u64(unsafe { &*self.counter });
            grown = rules::behind(counter, polled.watermark);
            if grown == 0 && vain % LOOKS_BEFORE_SEARCH == LOOKS_BEFORE_SEARCH - 1 {
                failure = self.search(polled.watermark).err().map_or(0, |failure| failure.0);
            }
        }
        let (grown, failure) = (group.share(grown), group.share(failure));
        polled.watermark += grown;
        if failure == 0 { Ok(grown != 0) } else { Err(QueueFailure(failure)) }
    }

    /// Searches all completions for a failed request. Not inlined, because it is called only after a failure or a long
    /// wait.
    #[inline(never)]
    fn search(&self, watermark: u64) -> Result<(), QueueFailure> {
        let mut index = 0;
        while index < self.completion_entries as u64 {
            let entry = load_relaxed_sys_u64(self.completion(index));
            if completion::status(entry) != 0 {
                // The lap of the entry is unknown. Assumes the newest request number with this id below `reserved`.
                let reserved = load_relaxed_gpu_u64(&self.words().reserved.0);
                let back = (reserved.wrapping_sub(1) as u16).wrapping_sub(completion::id(entry)) as u64;
                let number =
                    reserved.saturating_sub(1).saturating_sub(back).max(watermark.saturating_sub(self.depth as u64));
                return Err(QueueFailure::of(completion::status(entry) as u16, number));
            }
            index += 1;
        }
        Ok(())
    }

    /// Returns the failure for a timeout without any completion. If a request that is not known to be complete has a
    /// completion, the NIC is one lap ahead of the reader. Not inlined, like [`search`](NicQueue::search).
    #[inline(never)]
    fn why_late(&self, watermark: u64) -> QueueFailure {
        let under_way = load_relaxed_gpu_u64(&self.words().reserved.0).wrapping_sub(watermark);
        let (mut index, mut oldest) = (0, u64::MAX);
        while index < self.completion_entries as u64 {
            let entry = load_relaxed_sys_u64(self.completion(index));
            let offset = completion::id(entry).wrapping_sub(watermark as u16) as u64;
            let number = watermark + offset;
            // A written entry is never zero, because it contains the number of its queue.
            if entry != 0 && offset < under_way && load_relaxed_gpu_u64(self.of_slot(self.done, number)) != number + 1 {
                oldest = oldest.min(offset);
            }
            index += 1;
        }
        match oldest {
            u64::MAX => QueueFailure::of(QueueFailure::DEADLINE, watermark),
            offset => QueueFailure::of(QueueFailure::OVERRUN, watermark + offset),
        }
    }

    #[inline(always)]
    pub(super) fn completion(&self, number: u64) -> &Word {
        let index = rules::slot(number, self.completion_entries) * self.completion_words;
        // SAFETY: the queue has `completion_entries` entries of `completion_words` words.
        unsafe { &*self.completions.add(index as usize) }
    }
}

/// State that the polling group keeps in registers.
#[derive(Clone, Copy)]
struct Polled {
    watermark: u64,
    ahead: u64,
}

/// Processes completions in any order, including failed ones. Returns the updated state, and a failure or 0. Not
/// inlined, and called with copies.
#[inline(never)]
fn take_any(queue: NicQueue, group: Group, mut polled: Polled, first: u64, taken: u32) -> (Polled, u64) {
    let offset = completion::id(first).wrapping_sub(polled.watermark as u16) as u64;
    let number = polled.watermark + offset;
    let counts = group.rank < taken;
    let mut failure = 0;
    if counts {
        failure = queue.refused(first, polled.watermark);
    }
    if group.lanes > 1 {
        // If a request has two completions, the later one is rejected.
        let key = if counts && failure == 0 { number } else { !(group.rank as u64) };
        let same = warp::match_any_u64(group.mask, key);
        if counts && failure == 0 && same & ((1u32 << warp::lane()) - 1) != 0 {
            failure = QueueFailure::of(QueueFailure::COMPLETION, number).0;
        }
    }
    // Completions before the failure are valid.
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

/// Next step of a group.
#[derive(Clone, Copy)]
enum Next {
    GoOn,
    Poll,
    End,
    Fail,
}

/// Like [`NicQueue::go_on_polling`], but not inlined and on a copy. Returns a failure or 0.
#[inline(never)]
fn poll_for(queue: NicQueue, group: Group, number: u64) -> u64 {
    queue.poll(group, number, &|watermark| watermark > number).err().map_or(0, |failure| failure.0)
}

/// Like [`NicQueue::wait`], but not inlined and on a copy. Returns the watermark, and a failure or 0.
#[inline(never)]
fn wait_for(queue: NicQueue, group: Group, number: u64) -> (u64, u64) {
    let by_counter = !queue.counter.is_null();
    let last = group.latest(number);
    // A counter does not identify requests, so the wait is over only if all reserved requests have completed.
    // `reserved` is loaded after the counter.
    let done = |watermark: u64| {
        watermark > last && (!by_counter || watermark == load_relaxed_gpu_u64(&queue.words().reserved.0))
    };
    match queue.wait_until(group, LONGEST_SLEEP, done) {
        Ok(watermark) => (watermark, 0),
        Err(failure) => (0, failure.0),
    }
}
