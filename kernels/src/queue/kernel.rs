//! The kernels of `ginlab queue`: a grid that pushes elements as fast as the queue accepts them, and bare stores as the
//! upper bound for any queue.
//!
//! A *producer* is a thread, or a warp whose lanes push one element together.

use super::elements::store_bare;
use super::vyukov::Vyukov;
use super::{Queue, Released, element_word, first_word, share};
use crate::command::COMMAND_WORDS;
use crate::ring::{Observe, Ring, Status};
use cuda_std::memory::{Word, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64};
use cuda_std::vector::opaque_u32;
use cuda_std::{args, kernel, thread, warp};

/// Each thread is a producer.
pub const SCOPE_THREAD: u32 = 0;
/// Each warp is a producer.
pub const SCOPE_WARP: u32 = 1;

/// Arguments of the queue kernels.
#[args]
pub struct QueueKernelArgs {
    /// [`Ring`]s or [`Vyukov`] queues; block `b` uses queue `b % queue_count` ([`queue_lanes`]: producer `p` uses queue
    /// `p % queue_count`).
    pub queues: *const u8,
    /// Number of queues, at least 1.
    pub queue_count: u32,
    /// [`SCOPE_THREAD`] or [`SCOPE_WARP`].
    pub scope: u32,
    /// Number of words of an element, a power of two.
    pub words: u32,
    /// Number of pushes per producer.
    pub pushes: u32,
    /// 1 to wait for each push, or 0 to wait only for the last one.
    pub blocking: u32,
    /// Maximum number of samples per producer, or 0 for none.
    pub samples_each: u32,
    /// Samples, in device memory: cycles until an element is pushed and, if `blocking` is set, until it is
    /// acknowledged.
    pub samples: *mut [u32; 2],
    /// Counts, in device memory: observations of a full queue, host polls, lost exchanges.
    pub counts: *const [Word; 3],
    /// Results, one per block.
    pub results: *mut QueueResult,
}

/// Result of one block, measured by its first thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueResult {
    /// Device time before the first push, in nanoseconds.
    pub started: u64,
    /// Device time at which all elements have been taken, in nanoseconds.
    pub done: u64,
    /// Number of cycles between the two.
    pub cycles: u64,
    /// Largest reason ([`Status`]) that ended a thread of the block early; 0 if none did.
    pub stop: u64,
}

// SAFETY: the struct is four `u64` without padding.
unsafe impl cuda_std::Plain for QueueResult {}

/// Events that the threads of a run have observed.
#[derive(Default)]
struct ObservedEvents {
    full: u32,
    host_polls: u32,
    lost_exchanges: u32,
}

impl Observe for ObservedEvents {
    #[inline(always)]
    fn full(&mut self) {
        self.full += 1;
    }

    #[inline(always)]
    fn host_poll(&mut self) {
        self.host_polls += 1;
    }

    #[inline(always)]
    fn lost_exchange(&mut self) {
        self.lost_exchanges += 1;
    }
}

/// Pushes to the ring.
///
/// # Safety
/// The pointers must be valid while the grid runs: `queues` for `queue_count` [`Ring`]s, `results` for one entry per
/// block.
#[kernel]
pub unsafe fn queue_ticket(args: QueueKernelArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { run::<_, false>(&args, &mut this_ring(&args), &mut ()) };
}

/// Pushes to the ring with samples and counts. A separate kernel, because observing costs registers and stores.
///
/// # Safety
/// The requirements of [`queue_ticket`] must hold; `samples` must be valid for producers x `samples_each` entries,
/// `counts` for one.
#[kernel]
pub unsafe fn queue_ticket_watched(args: QueueKernelArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { run_watched(&args, &mut this_ring(&args)) };
}

/// Pushes to several rings from the lanes of each warp: each push first votes on which lanes hold the same ring.
///
/// # Safety
/// The requirements of [`queue_ticket`] must hold.
#[kernel]
pub unsafe fn queue_lanes(args: QueueKernelArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { run::<_, false>(&args, &mut own_ring(&args), &mut ()) };
}

/// Like [`queue_lanes`], with samples and counts.
///
/// # Safety
/// The requirements of [`queue_ticket_watched`] must hold.
#[kernel]
pub unsafe fn queue_lanes_watched(args: QueueKernelArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { run_watched(&args, &mut own_ring(&args)) };
}

/// Pushes to the ring with one release store per element.
///
/// # Safety
/// The requirements of [`queue_ticket`] must hold.
#[kernel]
pub unsafe fn queue_release(args: QueueKernelArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { run::<_, false>(&args, &mut Released(this_ring(&args)), &mut ()) };
}

/// Like [`queue_release`], with samples and counts.
///
/// # Safety
/// The requirements of [`queue_ticket_watched`] must hold.
#[kernel]
pub unsafe fn queue_release_watched(args: QueueKernelArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { run_watched(&args, &mut Released(this_ring(&args))) };
}

/// Pushes to Vyukov's queue.
///
/// # Safety
/// The requirements of [`queue_ticket`] must hold, with [`Vyukov`] queues.
#[kernel]
pub unsafe fn queue_vyukov(args: QueueKernelArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { run::<_, false>(&args, &mut this_vyukov(&args), &mut ()) };
}

/// Like [`queue_vyukov`], with samples and counts.
///
/// # Safety
/// The requirements of [`queue_ticket_watched`] must hold, with [`Vyukov`] queues.
#[kernel]
pub unsafe fn queue_vyukov_watched(args: QueueKernelArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { run_watched(&args, &mut this_vyukov(&args)) };
}

/// Returns the ring of this block.
#[inline(always)]
unsafe fn this_ring(args: &QueueKernelArgs) -> Ring {
    // SAFETY: the kernel's caller guarantees that there are `queue_count` rings, the same for all threads.
    unsafe { Ring::of_block(args.queues.cast(), args.queue_count) }
}

/// Returns the ring of this producer.
#[inline(always)]
unsafe fn own_ring(args: &QueueKernelArgs) -> Ring {
    // SAFETY: the kernel's caller guarantees that there are `queue_count` rings, and the remainder is below their
    // number.
    unsafe { args.queues.cast::<Ring>().add((producer(args.scope) % args.queue_count) as usize).read() }
}

/// Returns the Vyukov queue of this block.
#[inline(always)]
unsafe fn this_vyukov(args: &QueueKernelArgs) -> Vyukov {
    // SAFETY: the kernel's caller guarantees that there are `queue_count` queues, and the remainder is below their
    // number.
    unsafe { args.queues.cast::<Vyukov>().add((thread::block_idx_x() % args.queue_count) as usize).read() }
}

/// Returns the index of this thread's producer in the grid.
#[inline(always)]
fn producer(scope: u32) -> u32 {
    match scope {
        SCOPE_WARP => {
            thread::block_idx_x() * thread::block_dim_x().div_ceil(warp::SIZE) + thread::thread_idx_x() / warp::SIZE
        }
        _ => thread::index(),
    }
}

#[inline(always)]
unsafe fn run_watched<Q: Queue>(args: &QueueKernelArgs, queue: &mut Q) {
    let mut seen = ObservedEvents::default();
    // SAFETY: the kernel's caller guarantees that the pointers of `args` are valid.
    unsafe { run::<_, true>(args, queue, &mut seen) };
    // SAFETY: the kernel's caller guarantees that `counts` is valid.
    let counts = unsafe { &*args.counts };
    for (word, count) in counts.iter().zip([seen.full, seen.host_polls, seen.lost_exchanges]) {
        if count > 0 {
            fetch_add_relaxed_gpu_u64(word, count as u64);
        }
    }
}

#[inline(always)]
unsafe fn run<Q: Queue, const WATCHED: bool>(args: &QueueKernelArgs, queue: &mut Q, observe: &mut impl Observe) {
    let first_thread = thread::thread_idx_x() == 0;
    let (started, cycles) = (thread::global_timer_ns(), thread::clock());
    // SAFETY: the kernel's caller guarantees that the pointers of `args` are valid.
    let result = unsafe {
        match (args.words, args.scope) {
            (COMMAND_WORDS, SCOPE_WARP) => pushes::<_, WATCHED, COMMAND_WORDS, true>(args, queue, observe),
            (COMMAND_WORDS, _) => pushes::<_, WATCHED, COMMAND_WORDS, false>(args, queue, observe),
            (_, SCOPE_WARP) => pushes::<_, WATCHED, 0, true>(args, queue, observe),
            _ => pushes::<_, WATCHED, 0, false>(args, queue, observe),
        }
    };
    let mut stop = match result {
        Ok(()) => 0,
        Err(stop) => stop.0,
    };
    stop = crate::block::block_maximum(stop);
    if first_thread {
        let (done, cycles) = (thread::global_timer_ns(), thread::clock().wrapping_sub(cycles));
        // SAFETY: the kernel's caller guarantees that there is one result per block.
        unsafe { args.results.add(thread::block_idx_x() as usize).write(QueueResult { started, done, cycles, stop }) };
    }
}

/// Performs the pushes of one producer. Compiled separately for elements of `WORDS` words (0 for `args.words`), and for
/// warps and threads: a branch in each iteration would cost a single warp as much as its stores.
#[inline(always)]
unsafe fn pushes<Q: Queue, const WATCHED: bool, const WORDS: u32, const PER_WARP: bool>(
    args: &QueueKernelArgs,
    queue: &mut Q,
    observe: &mut impl Observe,
) -> Result<(), Status> {
    let producer = producer(args.scope);
    let words = if WORDS == 0 { args.words } else { WORDS };
    // Uses the launched lanes instead of the active ones. With the active mask, a late lane would form another warp
    // with the same producer index.
    let mask = if PER_WARP { opaque_u32(warp::launched_mask()) } else { 0 };
    let leader = mask.trailing_zeros();
    let mut last = None;
    for number in 0..args.pushes {
        let first = first_word(producer, number);
        let before = if WATCHED { thread::clock() } else { 0 };
        let word = move |index| element_word(first, index);
        let ticket = if PER_WARP {
            warp::synchronize(mask);
            queue.push_warp(mask, words, word, observe)?
        } else {
            queue.push(words, word, observe)?
        };
        let pushed = if WATCHED { thread::clock() } else { 0 };
        if args.blocking != 0 {
            wait(queue, ticket, PER_WARP, mask, observe)?;
        }
        let sampled = WATCHED && number < args.samples_each && (!PER_WARP || warp::lane() == leader);
        if sampled {
            let sample = [pushed.wrapping_sub(before) as u32, thread::clock().wrapping_sub(before) as u32];
            let index = producer as usize * args.samples_each as usize + number as usize;
            // SAFETY: the kernel's caller guarantees that there are `samples_each` samples per producer.
            unsafe { args.samples.add(index).write(sample) };
        }
        last = Some(ticket);
    }
    match last {
        Some(ticket) if args.blocking == 0 => wait(queue, ticket, PER_WARP, mask, observe),
        _ => Ok(()),
    }
}

/// Waits as a thread, or with the warp's leader on behalf of all lanes.
#[inline(always)]
fn wait<Q: Queue>(
    queue: &mut Q,
    ticket: u64,
    per_warp: bool,
    mask: u32,
    observe: &mut impl Observe,
) -> Result<(), Status> {
    if !per_warp {
        return queue.wait(ticket, observe);
    }
    let leader = mask.trailing_zeros();
    let mut result = Ok(0);
    if warp::lane() == leader {
        result = queue.wait(ticket, observe).map(|()| 0);
    }
    share(mask, leader, result).map(drop)
}

/// Measures the lower bound of every push: the same stores into the slots of the first ring, without tickets or a
/// consumer.
///
/// # Safety
/// The requirements of [`queue_ticket`] must hold.
#[kernel]
pub unsafe fn queue_stores(args: QueueKernelArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    let ring: Ring = unsafe { this_ring(&args) };
    let producer = producer(args.scope);
    let producers = match args.scope {
        SCOPE_WARP => thread::grid_dim_x() * thread::block_dim_x().div_ceil(warp::SIZE),
        _ => thread::grid_dim_x() * thread::block_dim_x(),
    };
    let (rank, lanes) = match args.scope {
        SCOPE_WARP => (warp::lane(), warp::launched_mask().count_ones()),
        _ => (0, 1),
    };
    let (started, cycles) = (thread::global_timer_ns(), thread::clock());
    for number in 0..args.pushes {
        let first = first_word(producer, number);
        let ticket = number as u64 * producers as u64 + producer as u64;
        store_bare(&ring, ticket, args.words, move |index| element_word(first, index), rank, lanes);
    }
    // Waits until all stores have arrived.
    fence_acq_rel_sys();
    thread::sync_threads();
    if thread::thread_idx_x() == 0 {
        let (done, cycles) = (thread::global_timer_ns(), thread::clock().wrapping_sub(cycles));
        // SAFETY: the caller guarantees that there is one result per block.
        unsafe {
            args.results.add(thread::block_idx_x() as usize).write(QueueResult { started, done, cycles, stop: 0 })
        };
    }
}
