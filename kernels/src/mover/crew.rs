//! Long copies by several blocks: one SM reads 10 to 12 GB/s over PCIe, whose capacity is 50 GB/s.
//!
//! ```text
//! first block    entry of the host's ring, a long copy -> an entry of a ring in GPU memory (a job)
//! other blocks   each job in order: own part of the bytes -> barrier, fence, arrived += 1
//!                a mark: the last block to arrive writes it
//! ```
//!
//! Jobs are processed concurrently, as long as none accesses what another one writes, so the ring's order holds for
//! each byte. A word waits for all preceding jobs. A mark is a separate job. Later copies may start before the mark is
//! written: only the host reads marks, and it is not notified of these copies before their own mark.
//!
//! **Waits between the blocks.** The first block publishes no job before all other blocks of its lane have reported
//! that they are resident. The other blocks then run, so the first block waits for them only as long as their copies
//! take. They exit after the last job, [`Step::End`]. The first block writes this job whenever it exits, including at
//! its deadline, and exits after them. Another block that does not find the first block within the deadline exits
//! without reporting. A block that starts late finds the last job.

use super::look::{LOOK, LOOK_WORDS, Look};
use super::steps::{ENTRY_WORDS, Entries, Step};
use super::{MoverArgs, MoverRing};
use crate::gin::copy::copy_apart;
use crate::ring::CachePadded;
use cuda_std::memory::{
    Word, fence_acq_rel_gpu, fence_acq_rel_sys, fetch_add_acq_rel_gpu_u64, fetch_add_relaxed_gpu_u64,
    load_acquire_gpu_u64, load_relaxed_gpu_u64, store_relaxed_gpu_u64, store_relaxed_sys_u64, store_release_gpu_u64,
};
use cuda_std::thread;

/// Number of bytes above which a copy is shared among blocks. Publishing a job takes about as long as copying this many
/// bytes with one block.
pub const LONG: u32 = 32 << 10;
/// Maximum number of blocks of a lane: one thread of the first block checks each of the others.
pub const MOST_BLOCKS: u32 = LOOK_WORDS;
/// Number of entries of the ring of jobs.
pub const JOBS: u64 = 64;

/// Maximum number of jobs in flight. One thread keeps the record of each.
const UNDER_WAY: u64 = 16;
/// Alignment, in bytes, of a block's part of a job. Each part has the alignment of the whole.
const GRAIN: u64 = 512;
/// Minimum number of bytes of a block's part: each part costs a barrier, a fence and a poll.
const LEAST: u32 = 16 << 10;
/// Time between two polls of a block without a job, in nanoseconds.
const SLEEP_NS: u32 = 100;
/// Unit of [`Jobs::arrived`] for a block that has reached a mark that is not written yet.
const AT_MARK: u64 = 1 << 32;

const _: () = assert!(UNDER_WAY <= LOOK_WORDS as u64 && UNDER_WAY + LOOK < JOBS);

/// A lane's jobs, in GPU memory. The initial memory is all zero.
#[repr(C)]
#[derive(Debug)]
pub struct Jobs {
    /// The jobs, written by the first block.
    entries: Entries<{ JOBS as usize }>,
    /// Per entry, the number of blocks that have finished its jobs, over all laps. In units of [`AT_MARK`], the number
    /// of blocks that have reached its mark; reset to 0 when the mark is written.
    arrived: [Word; JOBS as usize],
    /// The kernel's number, once the first block has cleared the ring.
    begun: CachePadded<Word>,
    /// The kernel's number, stored by each other block that is resident.
    there: [Word; MOST_BLOCKS as usize],
}

impl Jobs {
    #[inline(always)]
    fn arrived(&self, job: u64) -> &Word {
        // SAFETY: the index is below the length.
        unsafe { self.arrived.get_unchecked((job % JOBS) as usize) }
    }
}

/// Returns the value of [`Jobs::arrived`] once all `workers` blocks have finished a job.
#[inline(always)]
fn all_done(workers: u32, job: u64) -> u64 {
    u64::from(workers) * (job / JOBS + 1)
}

/// The first block's view of the jobs. Each of its threads has one, and all make the same calls in the same order.
pub(super) struct CopyBlocks<'a> {
    jobs: &'a Jobs,
    /// Number of other blocks.
    workers: u32,
    /// Number of the kernel.
    number: u64,
    me: u32,
    /// Whether all other blocks are resident.
    complete: bool,
    /// Number of jobs published, and number of jobs known to be complete. Writes of complete jobs are visible to all
    /// threads of this block.
    given: u64,
    done: u64,
    /// The last published copy whose number is `n` modulo [`UNDER_WAY`] (destination, source and length), in thread
    /// `n`.
    kept: (u64, u64, u32),
    kept_number: u64,
}

impl<'a> CopyBlocks<'a> {
    /// Clears the ring, after the blocks of the previous kernel have exited. Each kernel therefore counts from 0,
    /// regardless of when its other blocks start.
    #[inline(always)]
    pub fn begin(jobs: &'a Jobs, workers: u32, number: u64, me: u32) -> CopyBlocks<'a> {
        if workers > 0 {
            let mut at = me;
            while at < JOBS as u32 {
                let mut index = 0;
                while index < ENTRY_WORDS {
                    // SAFETY: both indices are below the lengths.
                    let word = unsafe { jobs.entries.get_unchecked(at as usize).get_unchecked(index) };
                    store_relaxed_gpu_u64(word, 0);
                    index += 1;
                }
                store_relaxed_gpu_u64(jobs.arrived(u64::from(at)), 0);
                at += thread::block_dim_x();
            }
            thread::sync_threads();
            if me == 0 {
                // Uses release order, which pairs with the acquire in `is_wanted`. It follows the barrier, and so
                // covers what all threads have cleared.
                store_release_gpu_u64(&jobs.begun.0, number);
            }
        }
        CopyBlocks { jobs, workers, number, me, complete: false, given: 0, done: 0, kept: (0, 0, 0), kept_number: 0 }
    }

    /// Returns whether jobs may be in flight.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        self.given > self.done
    }

    /// Returns whether the other blocks must perform a copy of `bytes` bytes. This applies to long copies, and to short
    /// copies that must follow jobs in flight.
    #[inline(always)]
    pub fn takes(&mut self, bytes: u32) -> bool {
        if bytes > LONG {
            return self.workers > 0 && self.are_there();
        }
        if self.is_busy() {
            // The acquire by one thread and the barrier order the writes of the jobs before subsequent accesses of this
            // block.
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
            // SAFETY: the index is below the length.
            let missing = me < self.workers
                && load_relaxed_gpu_u64(unsafe { self.jobs.there.get_unchecked(me as usize) }) != self.number;
            self.complete = !thread::sync_threads_or(missing);
        }
        self.complete
    }

    /// Waits until all jobs below `until` are complete. (A block processes jobs in order: a block that has finished a
    /// job has finished all earlier ones.)
    #[inline(always)]
    fn wait(&mut self, until: u64) {
        if self.done >= until {
            return;
        }
        if self.me == 0 {
            let all = all_done(self.workers, until - 1);
            // Uses acquire order, which pairs with the fence in `arrive`. The blocks' writes before they arrived are
            // visible here, and after the barrier to all threads of this block.
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

    /// Publishes a copy, or a mark that follows copies in flight.
    #[inline(always)]
    pub fn give(&mut self, step: Step) {
        if self.given - self.done == UNDER_WAY {
            // Waits for half of the jobs: waiting for one job each time would cost a round trip to memory per job.
            self.wait(self.given - UNDER_WAY / 2);
        }
        if let Step::Copy { to, from, bytes } = step {
            let (at, source, length) = self.kept;
            let meet =
                |first: u64, second: u64| first < second + u64::from(length) && second < first + u64::from(bytes);
            let clashes = self.kept_number >= self.done && (meet(to, at) || meet(to, source) || meet(from, at));
            // This barrier also orders earlier copies of this block before this step.
            if thread::sync_threads_or(length > 0 && clashes) {
                self.settle();
            }
            if u64::from(self.me) == self.given % UNDER_WAY {
                (self.kept, self.kept_number) = ((to, from, bytes), self.given);
            }
            if self.me == 0 {
                // Release, together with the stores of the entry's words below: pairs with the fence in the other
                // blocks' `Look::take`. It covers the host's bytes, which this block's poll has acquired, and earlier
                // writes of this block and, after `wait`, of the other blocks.
                fence_acq_rel_gpu();
            }
        }
        self.write(step);
    }

    #[inline(always)]
    fn write(&mut self, step: Step) {
        if self.me == 0 {
            // SAFETY: the index is below the length.
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

    /// Requests the other blocks to exit, and waits for them if they may have jobs.
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

/// Runs block `rank` of the `workers` other blocks of a lane.
///
/// # Safety
/// The requirements of [`mover`](super::mover) must hold.
#[inline(always)]
pub(super) unsafe fn work(
    jobs: &Jobs,
    lane: &MoverRing,
    (rank, workers): (u32, u32),
    args: &MoverArgs,
    me: u32,
    look: Look,
) {
    if !is_wanted(jobs, args, me) {
        return;
    }
    if me == 0 {
        // SAFETY: the caller guarantees that a lane has at most [`MOST_BLOCKS`] blocks, so `rank` is below the length.
        store_relaxed_gpu_u64(unsafe { jobs.there.get_unchecked(rank as usize) }, args.number);
    }
    let mut number = 0;
    // Block that copies the first part of the next job. If a job has fewer parts than there are blocks, the next job
    // starts with the remaining blocks.
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
                        // SAFETY: the caller guarantees that the memory named by entries is valid. No other job in
                        // flight writes what this one reads or writes (`CopyBlocks::give`).
                        unsafe { copy_apart(to, from, length, me, thread::block_dim_x()) };
                    }
                    arrive(jobs, job, me);
                }
                Step::Mark(mark) => {
                    // The block's copies before the mark precede the barriers and fences of `arrive`, which this thread
                    // executed.
                    if me == 0 {
                        pass(jobs, lane, job, workers, mark);
                    }
                }
                // Only `End` remains: no other step is published as a job.
                _ => {
                    arrive(jobs, job, me);
                    return;
                }
            }
        }
        number += u64::from(seen);
        idle = seen == 0;
        // This barrier precedes the next overwriting of the words in shared memory.
        thread::sync_threads();
    }
}

/// Returns the part of `bytes` bytes that block `rank` of `workers` copies, as its first byte and length, if block
/// `turn` copies the first part. Also returns the block that copies the first part of the next job.
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

/// Returns whether the first block is resident, or becomes resident within the timeout.
#[inline(always)]
fn is_wanted(jobs: &Jobs, args: &MoverArgs, me: u32) -> bool {
    let mut wanted = false;
    if me == 0 {
        let since = thread::global_timer_ns();
        loop {
            // Uses acquire order, which pairs with the release in `CopyBlocks::begin`. This block then observes the
            // ring as cleared, or with jobs of this kernel. The barrier extends this to the threads that poll.
            wanted = load_acquire_gpu_u64(&jobs.begun.0) == args.number;
            if wanted || thread::global_timer_ns().wrapping_sub(since) > args.timeout_ns {
                break;
            }
            thread::nanosleep(SLEEP_NS);
        }
    }
    thread::sync_threads_or(wanted)
}

/// Records that this block has finished a job.
#[inline(always)]
fn arrive(jobs: &Jobs, job: u64, me: u32) {
    thread::sync_threads();
    if me == 0 {
        // Together with the add, this fence releases the block's writes before the barrier. It pairs with the acquires
        // in `CopyBlocks::wait` and `CopyBlocks::takes`, and with that of the thread that writes a mark (`pass`).
        fence_acq_rel_gpu();
        fetch_add_relaxed_gpu_u64(jobs.arrived(job), 1);
    }
}

/// Records that this block has reached a mark. The last block to arrive writes it.
#[inline(always)]
fn pass(jobs: &Jobs, lane: &MoverRing, job: u64, workers: u32, mark: u64) {
    // Release of this block's part of the preceding copies, which `arrive` has fenced; acquire of the other blocks'
    // parts.
    let before = fetch_add_acq_rel_gpu_u64(jobs.arrived(job), AT_MARK);
    if before / AT_MARK + 1 == u64::from(workers) {
        // Orders the copies of all blocks before the mark, which the host acquires.
        fence_acq_rel_sys();
        store_relaxed_sys_u64(&lane.passed.0, mark);
        // The job becomes complete for all blocks only here. A later mark, including one by the first block, is thus
        // written after this one.
        fetch_add_acq_rel_gpu_u64(jobs.arrived(job), u64::from(workers).wrapping_sub(u64::from(workers) * AT_MARK));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each byte belongs to exactly one block, whichever block starts, and the next job starts with a block that
        /// has the least work.
        #[test]
        fn parts_cover_whole_copy(bytes in any::<u32>(), workers in 1..MOST_BLOCKS, turn in 0..MOST_BLOCKS) {
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
