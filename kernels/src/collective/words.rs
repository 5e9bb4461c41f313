//! Few bytes where every heap is mapped: by [exchanges](crate::gin::Exchange) of words, everyone with everyone, in one trip. An all-reduce among
//! several PEs may take two: the sums of a chunk each, then those to everyone.

use super::sum::Adds;
use super::{ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BLOCKING, CollectiveArgs, Done, MUTE, REDUCE_SCATTER, TWO_TRIPS};
use crate::gin::{Block, Inbox, Parts, Program, Scope, Thread, Warp};
use cuda_std::{grid, kernel, thread};

/// The turns of one block. What stands before the wait for the grids before needs nothing of them, and is done while they still run. Behind
/// it each way has a loop of its own: what it needs in each turn is worked out for it alone.
#[inline(always)]
fn turns<S: Scope, const PAIR: bool>(program: &Program<CollectiveArgs>) {
    let Some(scope) = S::first_of_block() else { return };
    let (world, args) = (&program.world, &program.args);
    let block = thread::block_idx_x();
    let begin = (block as u64 * args.slice).min(args.whole);
    let bytes = args.slice.min(args.whole - begin) as u32;
    let mail = args.inboxes[0];
    let offset = mail.offset + block as u64 * Inbox::bytes(mail.capacity, world.pes);
    let exchange = world.exchanges(scope, Inbox { offset, ..mail }, args.flags & BLOCKING != 0);
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
        // It sends other bytes than it should.
        (parts.from, parts.from_step) = (args.to.offset(), 0);
    }
    let plan = exchange.plan(&parts);
    let fold = Adds(args.element);
    let trips = if two_trips { 2 } else { 1 };
    grid::wait_for_grids_before();
    grid::let_next_grid_begin();
    // Of all exchanges: all heaps are mapped where the host launches this; the host made the objects, and cut slices of at most
    // the inbox's capacity and steps of less than 4 GiB.
    let sizes = (world.pes, bytes, trips);
    match (sums, parts.is_whole()) {
        // Chunks of two trips are whole: the host takes no others.
        _ if !PAIR && two_trips => {
            let whole = exchange.plan(&Parts { from: to + mine, from_step: 0, to, to_step: chunk, bytes });
            each_turn(args, sizes, scope, |round| {
                // SAFETY: as above.
                unsafe {
                    exchange.folded::<true, PAIR>(round, &plan, &fold)?;
                    exchange.all_to_all::<true, PAIR>(round + 1, &whole)
                }
            });
        }
        (false, true) => {
            // SAFETY: as above.
            each_turn(args, sizes, scope, |round| unsafe { exchange.all_to_all::<true, PAIR>(round, &plan) })
        }
        (false, false) => {
            // SAFETY: as above.
            each_turn(args, sizes, scope, |round| unsafe { exchange.all_to_all::<false, PAIR>(round, &plan) })
        }
        (true, true) => {
            // SAFETY: as above.
            each_turn(args, sizes, scope, |round| unsafe { exchange.folded::<true, PAIR>(round, &plan, &fold) })
        }
        (true, false) => {
            // SAFETY: as above.
            each_turn(args, sizes, scope, |round| unsafe { exchange.folded::<false, PAIR>(round, &plan, &fold) })
        }
    }
}

/// Turn after turn, each of so many rounds; `turn` is given its first.
#[inline(always)]
fn each_turn<S: Scope>(
    args: &CollectiveArgs,
    (pes, bytes, trips): (u32, u32, u32),
    scope: S,
    turn: impl Fn(u32) -> Done,
) {
    let block = thread::block_idx_x() as usize;
    // SAFETY: one state for each block, contract of the kernels.
    let state = unsafe { args.state.add(block) };
    // SAFETY: as above. All now: at the end nobody waits for a load.
    let (before, mapped, puts) = unsafe { ((*state).rounds[0], (*state).mapped_bytes, (*state).puts) };
    let stamped = args.warmup > 0 && scope.leads();
    // SAFETY: two stamps for each block, contract of the kernels.
    let stamp = |number: usize| unsafe { *args.times.add(2 * block + number) = thread::global_timer_ns() };
    let mut round = before as u32 + 1;
    let turns = args.warmup + args.turns;
    for number in 0..turns {
        if stamped && number == args.warmup {
            stamp(0);
        }
        // A failure is in the world's report.
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
        // SAFETY: as above.
        unsafe { ((*state).rounds[0], (*state).mapped_bytes, (*state).puts) = (rounds, mapped + moved, puts + sent) };
    }
}

/// By words of one thread of each block; all heaps are mapped.
///
/// # Safety
/// The arguments are of the world's heap, the same on all PEs but for addresses and flags; `state` and `times` have room for every block.
#[kernel(resident)]
pub unsafe fn collective_words_thread(program: Program<CollectiveArgs>) {
    turns::<Thread, false>(&program);
}

/// By words of one warp of each block; all heaps are mapped.
///
/// # Safety
/// As [`collective_words_thread`].
#[kernel(resident)]
pub unsafe fn collective_words_warp(program: Program<CollectiveArgs>) {
    turns::<Warp, false>(&program);
}

/// By words of each block; all heaps are mapped.
///
/// # Safety
/// As [`collective_words_thread`].
#[kernel(resident)]
pub unsafe fn collective_words_block(program: Program<CollectiveArgs>) {
    turns::<Block, false>(&program);
}

/// By words of each block, of two PEs; all heaps are mapped. It takes no two trips.
///
/// # Safety
/// As [`collective_words_thread`].
#[kernel(resident)]
pub unsafe fn collective_words_pair(program: Program<CollectiveArgs>) {
    turns::<Block, true>(&program);
}
