//! The copy kernel: copies between GPU memory and pinned host memory that the host requests through two rings in pinned
//! memory. The NCCL plugin (`host/nccl_plugin`) keeps it resident while data is exchanged: a driver call per copy would
//! cost the host 2 us, and a copy engine starts some microseconds later.
//!
//! ```text
//! host     bytes in pinned memory, then an entry: four words, each with the lap in its top 16 bits
//! kernel   block 0 or 1: all words of an entry have the lap (acquire) -> copy, word or mark, in the ring's order
//!          the lane's other blocks: their parts of long copies (`crew`)
//! ```
//!
//! Each ring belongs to one block, so requests are processed in order: with a barrier of the block between two steps,
//! and a fence before each word or mark that follows unfenced writes. The kernel exits on request, or if nothing has
//! been requested for its timeout.

mod crew;
mod look;
mod quick;
mod steps;

pub use crew::{JOBS, Jobs, LONG, MOST_BLOCKS};
pub use look::{LOOK, LOOK_WORDS, SHARED};
pub use quick::{InlineCopy, QUICK, QUICKS};
#[cfg(not(target_arch = "nvptx64"))]
pub use quick::{collect, tag};
pub use steps::{ENTRIES, ENTRY_WORDS, Entries, Step};

use crate::gin::Block;
use crate::gin::copy::{Lanes, copy};
use crate::ring::CachePadded;
use crew::CopyBlocks;
use cuda_std::memory::{Word, fence_acq_rel_gpu, fence_acq_rel_sys, store_relaxed_sys_u64};
use cuda_std::{args, kernel, thread, warp};
use look::{Look, WaitResult};

/// Number of rings. Block `n` of the kernel belongs to lane `n` modulo this number.
pub const LANES: u32 = 2;

/// A ring in pinned memory. The initial memory is all zero.
#[repr(C)]
#[derive(Debug)]
pub struct MoverRing {
    /// The requests, written by the host.
    pub entries: Entries<{ ENTRIES as usize }>,
    /// The kernel's number, once its first block has started.
    pub here: CachePadded<Word>,
    /// Destinations of short copies to the host.
    pub quick: [InlineCopy; QUICKS],
    /// Number of entries that have been read; the host may overwrite them.
    pub taken: CachePadded<Word>,
    /// Number of the last mark that has been passed.
    pub passed: CachePadded<Word>,
    /// The kernel's number, once its first block is exiting and the lane's other blocks access only their jobs.
    pub gone: CachePadded<Word>,
}

/// Arguments of [`mover`].
#[args]
pub struct MoverArgs {
    /// The rings, [`LANES`] of them.
    pub lanes: *const MoverRing,
    /// The jobs of the lanes, [`LANES`] of them.
    pub jobs: *const Jobs,
    /// Number of each lane's next entry.
    pub first: [u64; LANES as usize],
    /// Number of this kernel, different from that of the previous one.
    pub number: u64,
    /// Time without requests after which the kernel exits, in nanoseconds.
    pub timeout_ns: u64,
}

/// Processes the requests of all lanes. The blocks of the grid are distributed evenly over the lanes.
///
/// # Safety
/// The lanes and all memory that their entries refer to must be valid until `gone` has the kernel's number. The jobs
/// must be valid until the kernel has exited. It must exit before the next kernel that uses the jobs starts. The grid
/// must have [`LANES`] times up to [`MOST_BLOCKS`] blocks of at least [`LOOK_WORDS`] threads, each block with
/// [`SHARED`] bytes of shared memory.
#[kernel]
pub unsafe fn mover(args: MoverArgs) {
    let (block, me) = (thread::block_idx_x(), thread::thread_idx_x());
    let index = (block % LANES) as usize;
    // SAFETY: the caller guarantees that there are [`LANES`] lanes and jobs, and `index` is below their number.
    let (lane, jobs) = unsafe { (&*args.lanes.add(index), &*args.jobs.add(index)) };
    let workers = thread::grid_dim_x() / LANES - 1;
    let look = Look::new();
    if block >= LANES {
        // SAFETY: the caller guarantees valid lanes, jobs and entries, as `crew::work` requires.
        unsafe { crew::work(jobs, lane, (block / LANES - 1, workers), &args, me, look) };
        return;
    }
    if me == 0 {
        store_relaxed_sys_u64(&lane.here.0, args.number);
    }
    let mut crew = CopyBlocks::begin(jobs, workers, args.number, me);
    let mut number = if block == 0 { args.first[0] } else { args.first[1] };
    // Whether anything was written since the last fence.
    let mut open = false;
    loop {
        if me < warp::SIZE {
            let until = thread::global_timer_ns().saturating_add(args.timeout_ns);
            let mut found = WaitResult { any: look.wait(&lane.entries, number, me, until), done: 0, open };
            // Short steps do not wait for the other warps.
            while found.any
                && found.done < LOOK as u32
                && !crew.is_busy()
                && let Some(step) = look.step(found.done, number + u64::from(found.done), ENTRIES)
                // SAFETY: the caller guarantees that the memory named by entries is valid.
                && unsafe { short(lane, step, &mut found.open, me) }
            {
                found.done += 1;
            }
            if me == 0 {
                look.tell(found);
            }
        }
        thread::sync_threads();
        let WaitResult { any, done, open: is_open } = look.told();
        if !any {
            leave(lane, crew, me, number, args.number);
            return;
        }
        let mut seen = done;
        open = is_open;
        while seen < LOOK as u32 {
            let Some(step) = look.step(seen, number + u64::from(seen), ENTRIES) else { break };
            if seen > done {
                // The next step may read or write data that the previous step wrote.
                thread::sync_threads();
            }
            seen += 1;
            match step {
                Step::Copy { to, from, bytes } => {
                    if crew.takes(bytes) {
                        crew.give(step);
                    } else {
                        // SAFETY: the caller guarantees that the memory named by entries is valid.
                        unsafe { copy(to as *mut u8, from as *const u8, u64::from(bytes), Lanes::of(&Block)) };
                    }
                    open = true;
                }
                Step::End => {
                    leave(lane, crew, me, number + u64::from(seen), args.number);
                    return;
                }
                // The block that writes the mark fences. Its fence does not cover later writes of this block, so `open`
                // is unchanged.
                Step::Mark(_) if crew.is_busy() => crew.give(step),
                step => {
                    if matches!(step, Step::Word { .. }) {
                        crew.settle();
                    }
                    if me < warp::SIZE {
                        // SAFETY: the caller guarantees that the memory named by entries is valid.
                        unsafe { short(lane, step, &mut open, me) };
                    }
                    open = step.leaves_open(open);
                }
            }
        }
        number += u64::from(seen);
        if me == 0 {
            store_relaxed_sys_u64(&lane.taken.0, number);
        }
        // This barrier follows the last step, and precedes the next overwriting of the words in shared memory.
        thread::sync_threads();
    }
}

/// Performs a step that only one warp executes, after all steps of the block before a barrier. Returns `false` for
/// other steps. All lanes of the warp must call it together.
///
/// # Safety
/// The requirements of [`mover`] must hold.
#[inline(always)]
unsafe fn short(ring: &MoverRing, step: Step, open: &mut bool, lane: u32) -> bool {
    match step {
        Step::Take { to, from, bytes, tag } => {
            // SAFETY: the caller guarantees that the memory named by entries is valid.
            unsafe { quick::take(to as *const Word, from as *const u8, bytes, tag, lane) };
        }
        Step::Count { to, value } => {
            if lane == 0 {
                // SAFETY: the caller guarantees that the memory named by entries is valid.
                store_relaxed_sys_u64(unsafe { &*(to as *const Word) }, value);
            }
        }
        Step::Word { to, value } => {
            if lane == 0 {
                // Orders the word after the writes of this block (those of its other threads precede the barrier) and
                // of the other blocks, for which this block has waited with acquire. GPU scope suffices: only kernels
                // of this GPU wait for the word.
                if *open {
                    fence_acq_rel_gpu();
                }
                // SAFETY: the caller guarantees that the memory named by entries is valid.
                store_relaxed_sys_u64(unsafe { &*(to as *const Word) }, value);
            }
        }
        Step::Mark(mark) => {
            if lane == 0 {
                // Orders the mark after the same writes as a word, for the host, which acquires the mark.
                if *open {
                    fence_acq_rel_sys();
                }
                store_relaxed_sys_u64(&ring.passed.0, mark);
            }
        }
        Step::Copy { .. } | Step::End => return false,
    }
    *open = step.leaves_open(*open);
    true
}

/// Signals that the block exits, after all work of this block and of the lane's other blocks.
#[inline(always)]
fn leave(lane: &MoverRing, mut crew: CopyBlocks, me: u32, taken: u64, number: u64) {
    thread::sync_threads();
    crew.dismiss();
    if me == 0 {
        store_relaxed_sys_u64(&lane.taken.0, taken);
        fence_acq_rel_sys();
        store_relaxed_sys_u64(&lane.gone.0, number);
    }
}
