//! Long copies by several blocks: one multiprocessor reads 10 to 12 GB/s over the bus (H200), and the bus has 50.
//!
//! ```text
//! first block   entry of the host's ring, a long copy -> an entry of a ring in the GPU's memory (a job)
//! the others    each job in order: its part of the bytes -> barrier, fence, arrived += 1
//!               a mark: who arrives last writes it
//! ```
//!
//! Jobs are under way together, as long as none touches what another one writes: so the ring's order holds for each byte. A word waits for all
//! jobs before it. A mark is a job of its own, and later copies may begin before it is written: the host, who alone reads marks, learns of them no
//! sooner.
//!
//! **Who waits for whom, and why it ends.** The first block gives no job before all others of its lane have said that they are there: then they
//! run, and its wait for them is as long as their copies. They end by its last job, [`Step::End`], which it writes whenever it leaves, at its
//! deadline too, and it leaves behind them. One that begins and does not find the first block within the deadline leaves, and has never said that
//! it is there; one that begins late finds the last job.

use super::look::{LOOK, LOOK_WORDS, Look};
use super::steps::{ENTRY_WORDS, Entries, Step};
use super::{Lane, MoverArgs};
use crate::gin::copy::copy_apart;
use crate::ring::CachePadded;
use cuda_std::memory::{
    Word, fence_acq_rel_gpu, fence_acq_rel_sys, fetch_add_acq_rel_gpu_u64, fetch_add_relaxed_gpu_u64,
    load_acquire_gpu_u64, load_relaxed_gpu_u64, store_relaxed_gpu_u64, store_relaxed_sys_u64, store_release_gpu_u64,
};
use cuda_std::thread;

/// A copy of more bytes is shared. To hand one over takes about as long as one block copies so many.
pub const LONG: u32 = 32 << 10;
/// Blocks of a lane at most: one thread of the first looks at each of the others.
pub const MOST_BLOCKS: u32 = LOOK_WORDS;
/// Entries of the ring of jobs.
pub const JOBS: u64 = 64;

/// Jobs under way at most. One thread keeps each.
const UNDER_WAY: u64 = 16;
/// A block's part of a job is a multiple of this, so that the next one's begins as well aligned as the whole.
const GRAIN: u64 = 512;
/// A smaller part is not worth a block: a barrier, a fence and a look stand between two.
const LEAST: u32 = 16 << 10;
/// A block without a job looks so often.
const SLEEP_NS: u32 = 100;
/// In [`Jobs::arrived`], one that has come to a mark which is not written yet.
const AT_MARK: u64 = 1 << 32;

const _: () = assert!(UNDER_WAY <= LOOK_WORDS as u64 && UNDER_WAY + LOOK < JOBS);

/// A lane's jobs, in the GPU's own memory. New memory is all zero.
#[repr(C)]
#[derive(Debug)]
pub struct Jobs {
    /// Written by the first block.
    entries: Entries<{ JOBS as usize }>,
    /// By entry: blocks that are done with its jobs of all laps. Above [`AT_MARK`]: blocks that have come to its mark, 0 again when that is written.
    arrived: [Word; JOBS as usize],
    /// The kernel's number, when the first block has emptied the ring.
    begun: CachePadded<Word>,
    /// The kernel's number, from each other block that is there.
    there: [Word; MOST_BLOCKS as usize],
}

impl Jobs {
    #[inline(always)]
    fn arrived(&self, job: u64) -> &Word {
        // SAFETY: below the length.
        unsafe { self.arrived.get_unchecked((job % JOBS) as usize) }
    }
}

/// What [`Jobs::arrived`] is when so many blocks are done with a job.
#[inline(always)]
fn all_done(workers: u32, job: u64) -> u64 {
    u64::from(workers) * (job / JOBS + 1)
}

/// The first block's half. All of its threads have one, and call the same in the same order.
pub(super) struct Crew<'a> {
    jobs: &'a Jobs,
    /// The other blocks.
    workers: u32,
    /// The kernel's.
    number: u64,
    me: u32,
    /// They are all there.
    complete: bool,
    /// Jobs given, and those of them that are known to be done: what these wrote is visible to all threads of this block.
    given: u64,
    done: u64,
    /// Of thread `n`: the last copy given whose number is `n` modulo [`UNDER_WAY`], and its number.
    kept: (u64, u64, u32),
    kept_number: u64,
}

impl<'a> Crew<'a> {
    /// Empties the ring: the blocks of the kernel before have gone. (So each kernel counts from 0, whenever its other blocks begin.)
    #[inline(always)]
    pub fn begin(jobs: &'a Jobs, workers: u32, number: u64, me: u32) -> Crew<'a> {
        if workers > 0 {
            let mut at = me;
            while at < JOBS as u32 {
                let mut index = 0;
                while index < ENTRY_WORDS {
                    // SAFETY: both are below the lengths.
                    let word = unsafe { jobs.entries.get_unchecked(at as usize).get_unchecked(index) };
                    store_relaxed_gpu_u64(word, 0);
                    index += 1;
                }
                store_relaxed_gpu_u64(jobs.arrived(u64::from(at)), 0);
                at += thread::block_dim_x();
            }
            thread::sync_threads();
            if me == 0 {
                // For the acquire of `is_wanted`: behind the barrier, so what all threads have emptied.
                store_release_gpu_u64(&jobs.begun.0, number);
            }
        }
        Crew { jobs, workers, number, me, complete: false, given: 0, done: 0, kept: (0, 0, 0), kept_number: 0 }
    }

    /// Whether jobs may be under way.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        self.given > self.done
    }

    /// Whether a copy is theirs: a long one, or a short one behind jobs that are under way.
    #[inline(always)]
    pub fn takes(&mut self, bytes: u32) -> bool {
        if bytes > LONG {
            return self.workers > 0 && self.are_there();
        }
        if self.is_busy() {
            // The acquire by one thread, and the barrier, order what the jobs wrote before what this block does next.
            let (last, me) = (self.given - 1, self.me);
            let all = all_done(self.workers, last);
            if !thread::sync_threads_or(me == 0 && load_acquire_gpu_u64(self.jobs.arrived(last)) != all) {
                self.done = self.given;
            }
        }
        self.is_busy()
    }

    #[inline(always)]
    fn are_there(&mut self) -> bool {
        if !self.complete {
            let me = self.me;
            // SAFETY: below the length.
            let missing = me < self.workers
                && load_relaxed_gpu_u64(unsafe { self.jobs.there.get_unchecked(me as usize) }) != self.number;
            self.complete = !thread::sync_threads_or(missing);
        }
        self.complete
    }

    /// Waits until all jobs below this number are done. (A block takes them in order: who is done with one is done with those before.)
    #[inline(always)]
    fn wait(&mut self, until: u64) {
        if self.done >= until {
            return;
        }
        if self.me == 0 {
            let all = all_done(self.workers, until - 1);
            // Acquire: what the blocks wrote before they arrived (`arrive`) is visible here, and behind the barrier to all threads of this block.
            while load_acquire_gpu_u64(self.jobs.arrived(until - 1)) != all {
                thread::relax();
            }
        }
        thread::sync_threads();
        self.done = until;
    }

    /// Waits for all jobs.
    #[inline(always)]
    pub fn settle(&mut self) {
        self.wait(self.given);
    }

    /// Gives them a copy, or a mark behind copies that are under way.
    #[inline(always)]
    pub fn give(&mut self, step: Step) {
        if self.given - self.done == UNDER_WAY {
            // Half of them at once: to wait for each would be one wait for memory for each.
            self.wait(self.given - UNDER_WAY / 2);
        }
        if let Step::Copy { to, from, bytes } = step {
            let (at, source, length) = self.kept;
            let meet =
                |first: u64, second: u64| first < second + u64::from(length) && second < first + u64::from(bytes);
            let clashes = self.kept_number >= self.done && (meet(to, at) || meet(to, source) || meet(from, at));
            // This barrier is also that between this step and what the block has copied itself before.
            if thread::sync_threads_or(length > 0 && clashes) {
                self.settle();
            }
            if u64::from(self.me) == self.given % UNDER_WAY {
                (self.kept, self.kept_number) = ((to, from, bytes), self.given);
            }
            if self.me == 0 {
                // Release, with the entry's words below, for the fence of the others' `Look::take`: the host's bytes, which this block's look
                // has acquired, and what this block and, by `wait`, the others wrote before.
                fence_acq_rel_gpu();
            }
        }
        self.write(step);
    }

    #[inline(always)]
    fn write(&mut self, step: Step) {
        if self.me == 0 {
            // SAFETY: below the length.
            let entry = unsafe { self.jobs.entries.get_unchecked((self.given % JOBS) as usize) };
            let words = step.encode(self.given, JOBS);
            let mut index = 0;
            while index < ENTRY_WORDS {
                store_relaxed_gpu_u64(&entry[index], words[index]);
                index += 1;
            }
        }
        self.given += 1;
    }

    /// Sends the others away, and waits for those that may have had jobs.
    #[inline(always)]
    pub fn dismiss(&mut self) {
        if self.workers > 0 {
            self.write(Step::End);
            if self.complete {
                self.settle();
            }
        }
    }
}

/// Another block of a lane, number `rank` of `workers`.
///
/// # Safety
/// That of the kernel.
#[inline(always)]
pub(super) unsafe fn work(
    jobs: &Jobs,
    lane: &Lane,
    (rank, workers): (u32, u32),
    args: &MoverArgs,
    me: u32,
    look: Look,
) {
    if !is_wanted(jobs, args, me) {
        return;
    }
    if me == 0 {
        // SAFETY: below the length: the kernel's contract.
        store_relaxed_gpu_u64(unsafe { jobs.there.get_unchecked(rank as usize) }, args.number);
    }
    let mut number = 0;
    // Whose the first part of the next job is: where one has fewer parts than there are blocks, the next job is the other blocks'.
    let mut turn = 0;
    let mut idle = false;
    loop {
        if idle && me < LOOK_WORDS {
            thread::nanosleep(SLEEP_NS);
        }
        look.take(&jobs.entries, number, me);
        thread::sync_threads();
        let mut seen = 0;
        while seen < LOOK as u32 {
            let job = number + u64::from(seen);
            let Some(step) = look.step(seen, job, JOBS) else { break };
            seen += 1;
            match step {
                Step::Copy { to, from, bytes } => {
                    let (first, length, next) = part(bytes, (rank, workers), turn);
                    turn = next;
                    if length > 0 {
                        let (to, from) = ((to + first) as *mut u8, (from + first) as *const u8);
                        // SAFETY: contract of the kernel. No other job under way writes what this one reads or writes (`Crew::give`).
                        unsafe { copy_apart(to, from, length, me, thread::block_dim_x()) };
                    }
                    arrive(jobs, job, me);
                }
                Step::Mark(mark) => {
                    // The block's copies before it are behind barriers and fences of `arrive`, which this thread made.
                    if me == 0 {
                        pass(jobs, lane, job, workers, mark);
                    }
                }
                // No other step is given.
                _ => {
                    arrive(jobs, job, me);
                    return;
                }
            }
        }
        number += u64::from(seen);
        idle = seen == 0;
        // Before the words in shared memory are written over.
        thread::sync_threads();
    }
}

/// Which part of so many bytes block `rank` of `workers` copies, by its first byte and length, where the first part is block `turn`'s; and whose
/// the next job's is.
#[inline(always)]
fn part(bytes: u32, (rank, workers): (u32, u32), turn: u32) -> (u64, u64, u32) {
    let workers = workers.max(1);
    let each = u64::from((bytes / workers + 1).max(LEAST)).next_multiple_of(GRAIN);
    let index = if rank >= turn { rank - turn } else { rank + workers - turn };
    let first = u64::from(index) * each;
    let length = u64::from(bytes).saturating_sub(first).min(each);
    let parts = u64::from(bytes).div_ceil(each) as u32;
    (first, length, (turn + parts) % workers)
}

/// Whether the first block is there, or comes within the deadline.
#[inline(always)]
fn is_wanted(jobs: &Jobs, args: &MoverArgs, me: u32) -> bool {
    let mut wanted = false;
    if me == 0 {
        let since = thread::global_timer_ns();
        loop {
            // Acquire: behind this the ring is seen empty, or with jobs of this kernel; the barrier carries it to the threads that look.
            wanted = load_acquire_gpu_u64(&jobs.begun.0) == args.number;
            if wanted || thread::global_timer_ns().wrapping_sub(since) > args.timeout_ns {
                break;
            }
            thread::nanosleep(SLEEP_NS);
        }
    }
    thread::sync_threads_or(wanted)
}

/// This block is done with a job.
#[inline(always)]
fn arrive(jobs: &Jobs, job: u64, me: u32) {
    thread::sync_threads();
    if me == 0 {
        // Release, with the addition, of what the block wrote (behind the barrier): for the acquire of `Crew::wait` and `Crew::takes`, and of who
        // writes a mark (`pass`).
        fence_acq_rel_gpu();
        fetch_add_relaxed_gpu_u64(jobs.arrived(job), 1);
    }
}

/// This block has come to a mark; the last one writes it.
#[inline(always)]
fn pass(jobs: &Jobs, lane: &Lane, job: u64, workers: u32, mark: u64) {
    // Release of this block's part of the copies before, which `arrive` has fenced; acquire of the others'.
    let before = fetch_add_acq_rel_gpu_u64(jobs.arrived(job), AT_MARK);
    if before / AT_MARK + 1 == u64::from(workers) {
        // For the host, who acquires the mark: all blocks' copies.
        fence_acq_rel_sys();
        store_relaxed_sys_u64(&lane.passed.0, mark);
        // Done only now, and for all blocks: who writes a later mark, the first block too, does so behind this one.
        fetch_add_acq_rel_gpu_u64(jobs.arrived(job), u64::from(workers).wrapping_sub(u64::from(workers) * AT_MARK));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whoever begins, each byte is one block's; and the next job begins with a block that has the least to do.
        #[test]
        fn parts_are_the_whole(bytes in any::<u32>(), workers in 1..MOST_BLOCKS, turn in 0..MOST_BLOCKS) {
            let turn = turn % workers;
            let mut parts: Vec<_> = (0..workers).map(|rank| part(bytes, (rank, workers), turn)).collect();
            let next = parts[0].2;
            prop_assert!(next < workers && parts.iter().all(|part| part.2 == next));
            let count = parts.iter().filter(|part| part.1 > 0).count() as u32;
            prop_assert_eq!(next, (turn + count) % workers);
            parts.sort_unstable();
            let mut end = 0;
            for (first, length, _) in parts.into_iter().filter(|part| part.1 > 0) {
                prop_assert_eq!(first, end);
                prop_assert!(first.is_multiple_of(GRAIN));
                end += length;
            }
            prop_assert_eq!(end, u64::from(bytes));
        }
    }
}
