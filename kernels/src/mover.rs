//! A kernel that copies between the GPU's memory and pinned memory of the host, as the host asks it to by two rings in pinned memory. The plugin for
//! NCCL (`host/nccl_plugin`) has it running while bytes come and go: a call of the driver for each copy costs the host 2 us, and a copy
//! engine begins some microseconds later.
//!
//! ```text
//! host     bytes in pinned memory, then an entry: four words, each with the lap in its top 16 bits
//! kernel   block 0 or 1: all words of an entry have the lap (acquire) -> copy, word or mark, in the ring's order
//!          the lane's other blocks: their parts of long copies (`crew`)
//! ```
//!
//! Each ring is one block's, so that what it is asked for happens in order: a barrier of the block between two steps, and a fence before
//! each word and mark that has something before it. The kernel ends when it is asked to, or when nothing has been asked for as long as its deadline.

mod crew;
mod look;
mod quick;
mod steps;

pub use crew::{JOBS, Jobs, LONG, MOST_BLOCKS};
pub use look::{LOOK, LOOK_WORDS, SHARED};
pub use quick::{QUICK, QUICKS, Quick};
#[cfg(not(target_arch = "nvptx64"))]
pub use quick::{collect, tag};
pub use steps::{ENTRIES, ENTRY_WORDS, Entries, Step};

use crate::gin::copy::copy;
use crate::ring::CachePadded;
use crew::Crew;
use cuda_std::memory::{Word, fence_acq_rel_gpu, fence_acq_rel_sys, store_relaxed_sys_u64};
use cuda_std::{args, kernel, thread, warp};
use look::{Found, Look};

/// Rings. Block `n` of the kernel is of lane `n` modulo this.
pub const LANES: u32 = 2;

/// A ring, in pinned memory. New memory is all zero.
#[repr(C)]
#[derive(Debug)]
pub struct Lane {
    /// Written by the host.
    pub entries: Entries<{ ENTRIES as usize }>,
    /// The kernel's number, when its first block has begun.
    pub here: CachePadded<Word>,
    /// Where short copies out come to.
    pub quick: [Quick; QUICKS],
    /// Entries that have been read: the host may write over them.
    pub taken: CachePadded<Word>,
    /// The last mark that has been passed.
    pub passed: CachePadded<Word>,
    /// The kernel's number, when its first block has ended, and no other one of the lane touches anything but its jobs any more.
    pub gone: CachePadded<Word>,
}

/// Arguments of [`mover`].
#[args]
pub struct MoverArgs {
    /// [`LANES`] of them.
    pub lanes: *const Lane,
    /// [`LANES`] of them.
    pub jobs: *const Jobs,
    /// The number of each lane's next entry.
    pub first: [u64; LANES as usize],
    /// The kernel's number, not that of a kernel before.
    pub number: u64,
    /// It ends when it has been asked for nothing for so long.
    pub timeout_ns: u64,
}

/// As many blocks for each lane as the grid has.
///
/// # Safety
/// The lanes and all that their entries name are valid until the block has said that it has gone, the jobs until the kernel has ended, which is
/// before the next one with them begins; the grid is [`LANES`] times up to [`MOST_BLOCKS`] blocks of at least [`LOOK_WORDS`] threads with
/// [`SHARED`] bytes of shared memory.
#[kernel]
pub unsafe fn mover(args: MoverArgs) {
    let (block, me) = (thread::block_idx_x(), thread::thread_idx_x());
    let index = (block % LANES) as usize;
    // SAFETY: contract of the kernel.
    let (lane, jobs) = unsafe { (&*args.lanes.add(index), &*args.jobs.add(index)) };
    let workers = thread::grid_dim_x() / LANES - 1;
    let look = Look::new();
    if block >= LANES {
        // SAFETY: contract of the kernel.
        unsafe { crew::work(jobs, lane, (block / LANES - 1, workers), &args, me, look) };
        return;
    }
    if me == 0 {
        store_relaxed_sys_u64(&lane.here.0, args.number);
    }
    let mut crew = Crew::begin(jobs, workers, args.number, me);
    let mut number = if block == 0 { args.first[0] } else { args.first[1] };
    // Something was written that no fence is behind.
    let mut open = false;
    loop {
        if me < warp::SIZE {
            let until = thread::global_timer_ns().saturating_add(args.timeout_ns);
            let mut found = Found { any: look.wait(&lane.entries, number, me, until), done: 0, open };
            // What is short need not wait for the other warps.
            while found.any
                && found.done < LOOK as u32
                && !crew.is_busy()
                && let Some(step) = look.step(found.done, number + u64::from(found.done), ENTRIES)
                // SAFETY: contract of the kernel.
                && unsafe { short(lane, step, &mut found.open, me) }
            {
                found.done += 1;
            }
            if me == 0 {
                look.tell(found);
            }
        }
        thread::sync_threads();
        let Found { any, done, open: is_open } = look.told();
        if !any {
            leave(lane, crew, me, number, args.number);
            return;
        }
        let mut seen = done;
        open = is_open;
        while seen < LOOK as u32 {
            let Some(step) = look.step(seen, number + u64::from(seen), ENTRIES) else { break };
            if seen > done {
                // What is asked for next may read or write what the step before it wrote.
                thread::sync_threads();
            }
            seen += 1;
            match step {
                Step::Copy { to, from, bytes } => {
                    if crew.takes(bytes) {
                        crew.give(step);
                    } else {
                        // SAFETY: contract of the kernel.
                        unsafe { copy(to as *mut u8, from as *const u8, u64::from(bytes), me, thread::block_dim_x()) };
                    }
                    open = true;
                }
                Step::End => {
                    leave(lane, crew, me, number + u64::from(seen), args.number);
                    return;
                }
                // Who writes it fences. What comes next here is not behind that fence: `open` stays.
                Step::Mark(_) if crew.is_busy() => crew.give(step),
                step => {
                    if matches!(step, Step::Word { .. }) {
                        crew.settle();
                    }
                    if me < warp::SIZE {
                        // SAFETY: contract of the kernel.
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
        // Before the words in shared memory are written over; and the last step is behind it.
        thread::sync_threads();
    }
}

/// A step that one warp does, behind all that the block has done before a barrier; `false` where it is none. Its lanes call it together.
///
/// # Safety
/// That of the kernel.
#[inline(always)]
unsafe fn short(ring: &Lane, step: Step, open: &mut bool, lane: u32) -> bool {
    match step {
        Step::Take { to, from, bytes, tag } => {
            // SAFETY: the contract.
            unsafe { quick::take(to as *const Word, from as *const u8, bytes, tag, lane) };
        }
        Step::Count { to, value } => {
            if lane == 0 {
                // SAFETY: the contract.
                store_relaxed_sys_u64(unsafe { &*(to as *const Word) }, value);
            }
        }
        Step::Word { to, value } => {
            if lane == 0 {
                // Behind what this and, before the barrier, the other threads wrote, and the other blocks, for whom this one has waited with
                // acquire: for kernels of this GPU, who wait for the word.
                if *open {
                    fence_acq_rel_gpu();
                }
                // SAFETY: the contract.
                store_relaxed_sys_u64(unsafe { &*(to as *const Word) }, value);
            }
        }
        Step::Mark(mark) => {
            if lane == 0 {
                // For the host, who acquires the mark: as with a word.
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

/// The block's last words, behind all that it and the lane's others have done.
#[inline(always)]
fn leave(lane: &Lane, mut crew: Crew, me: u32, taken: u64, number: u64) {
    thread::sync_threads();
    crew.dismiss();
    if me == 0 {
        store_relaxed_sys_u64(&lane.taken.0, taken);
        fence_acq_rel_sys();
        store_relaxed_sys_u64(&lane.gone.0, number);
    }
}
