//! Collectives of few bytes if every heap is mapped: an [exchange](crate::gin::Exchange) of words among all PEs, in one
//! round. An all-reduce among several PEs may take two rounds, in which each PE first sums one chunk and then sends the
//! sums to every PE.

use super::sum::Adds;
use super::{
    ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BLOCKING, CallResult, CollectiveKernelArgs, MUTE, REDUCE_SCATTER, TWO_TRIPS,
};
use crate::gin::{Block, Inbox, Parts, Program, Scope, Thread, Warp};
use cuda_std::{grid, kernel, thread};

/// Runs the iterations of one block. Code before the wait for preceding grids does not depend on them and overlaps with
/// them. After the wait each case has its own loop, so that only the values that this case needs are computed.
#[inline(always)]
fn turns<S: Scope, const PAIR: bool>(program: &Program<CollectiveKernelArgs>) {
    let Some(scope) = S::first_of_block() else { return };
    let (world, args) = (&program.world, &program.args);
    let block = thread::block_idx_x();
    let begin = (block as u64 * args.slice).min(args.whole);
    let bytes = args.slice.min(args.whole - begin) as u32;
    let mail = args.inboxes[0];
    let offset = mail.offset + block as u64 * Inbox::bytes(mail.capacity, world.pes);
    let mut exchange = world.exchanges(scope, Inbox { offset, ..mail }, args.flags & BLOCKING != 0);
    let (from, to) = (args.from.offset() + begin, args.to.offset() + begin);
    let sums = args.operation == REDUCE_SCATTER || args.operation == ALL_REDUCE;
    let two_trips = args.flags & TWO_TRIPS != 0;
    let (chunk, mine) = (args.chunk as u32, world.me as u64 * args.chunk);
    let scatters = args.operation == ALL_TO_ALL || args.operation == REDUCE_SCATTER || two_trips;
    let mut parts = Parts {
        from,
        from_step: if scatters { chunk } else { 0 },
        to: if two_trips { to + mine } else { to },
        to_step: if args.operation <= ALL_GATHER { chunk } else { 0 },
        bytes,
    };
    if args.flags & MUTE != 0 {
        // Sends wrong bytes, so that verification must fail.
        (parts.from, parts.from_step) = (args.to.offset(), 0);
    }
    let plan = exchange.plan(&parts);
    let fold = Adds(args.element);
    let trips = if two_trips { 2 } else { 1 };
    grid::wait_for_grids_before();
    grid::let_next_grid_begin();
    exchange.begin();
    // Basis of the SAFETY comments below: the host launches this kernel only if all heaps are mapped. It allocates the
    // objects, limits slices to the inbox's capacity, and limits steps to less than 4 GiB.
    let sizes = (world.pes, bytes, trips);
    match (sums, parts.is_whole()) {
        // With two rounds the slices are whole chunks: the host rejects others.
        _ if !PAIR && two_trips => {
            let whole = exchange.plan(&Parts { from: to + mine, from_step: 0, to, to_step: chunk, bytes });
            each_turn(args, sizes, scope, |round| {
                // SAFETY: the host mapped all heaps and sized slices and steps for the inbox.
                unsafe {
                    exchange.folded::<true, PAIR>(round, &plan, &fold)?;
                    exchange.all_to_all::<true, PAIR>(round + 1, &whole)
                }
            });
        }
        (false, true) => {
            // SAFETY: the host mapped all heaps and sized slices and steps for the inbox.
            each_turn(args, sizes, scope, |round| unsafe { exchange.all_to_all::<true, PAIR>(round, &plan) })
        }
        (false, false) => {
            // SAFETY: the host mapped all heaps and sized slices and steps for the inbox.
            each_turn(args, sizes, scope, |round| unsafe { exchange.all_to_all::<false, PAIR>(round, &plan) })
        }
        (true, true) => {
            // SAFETY: the host mapped all heaps and sized slices and steps for the inbox.
            each_turn(args, sizes, scope, |round| unsafe { exchange.folded::<true, PAIR>(round, &plan, &fold) })
        }
        (true, false) => {
            // SAFETY: the host mapped all heaps and sized slices and steps for the inbox.
            each_turn(args, sizes, scope, |round| unsafe { exchange.folded::<false, PAIR>(round, &plan, &fold) })
        }
    }
}

/// Calls `turn` for each iteration, with the number of its first round. Each iteration has `trips` rounds.
#[inline(always)]
fn each_turn<S: Scope>(
    args: &CollectiveKernelArgs,
    (pes, bytes, trips): (u32, u32, u32),
    scope: S,
    turn: impl Fn(u32) -> CallResult,
) {
    let block = thread::block_idx_x() as usize;
    // SAFETY: `state` has one entry per block (contract of the kernels).
    let state = unsafe { args.state.add(block) };
    // SAFETY: `state` points to this block's entry. All fields are loaded now, so that the end does not wait for a
    // load.
    let (before, mapped, puts) = unsafe { ((*state).rounds[0], (*state).mapped_bytes, (*state).puts) };
    let stamped = args.warmup > 0 && scope.leads();
    // SAFETY: `times` has two entries per block (contract of the kernels).
    let stamp = |number: usize| unsafe { *args.times.add(2 * block + number) = thread::global_timer_ns() };
    let mut round = before as u32 + 1;
    let turns = args.warmup + args.turns;
    for number in 0..turns {
        if stamped && number == args.warmup {
            stamp(0);
        }
        // The failure is recorded in the world's report.
        if turn(round).is_err() {
            return;
        }
        round += trips;
    }
    if stamped {
        stamp(1);
    }
    if scope.leads() {
        let sent = turns as u64 * trips as u64 * (pes - 1) as u64;
        let moved = if args.flags & MUTE != 0 { 0 } else { sent * bytes as u64 };
        let rounds = before + turns as u64 * trips as u64;
        // SAFETY: `state` points to this block's entry, which only this thread writes.
        unsafe { ((*state).rounds[0], (*state).mapped_bytes, (*state).puts) = (rounds, mapped + moved, puts + sent) };
    }
}

/// Runs a collective by words of one thread per block. All heaps must be mapped.
///
/// # Safety
/// The arguments must be objects of the world's heap and, except for addresses and flags, the same on all PEs. `state`
/// and `times` must have space for every block.
#[kernel(resident)]
pub unsafe fn collective_words_thread(program: Program<CollectiveKernelArgs>) {
    turns::<Thread, false>(&program);
}

/// Runs a collective by words of one warp per block. All heaps must be mapped.
///
/// # Safety
/// The requirements of [`collective_words_thread`] apply.
#[kernel(resident)]
pub unsafe fn collective_words_warp(program: Program<CollectiveKernelArgs>) {
    turns::<Warp, false>(&program);
}

/// Runs a collective by words of whole blocks. All heaps must be mapped.
///
/// # Safety
/// The requirements of [`collective_words_thread`] apply.
#[kernel(resident)]
pub unsafe fn collective_words_block(program: Program<CollectiveKernelArgs>) {
    turns::<Block, false>(&program);
}

/// Runs a collective by words of whole blocks between two PEs. All heaps must be mapped. Does not support
/// [`TWO_TRIPS`].
///
/// # Safety
/// The requirements of [`collective_words_thread`] apply.
#[kernel(resident)]
pub unsafe fn collective_words_pair(program: Program<CollectiveKernelArgs>) {
    turns::<Block, true>(&program);
}
