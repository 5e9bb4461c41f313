//! Is anything ever read before it is there, or written while it is still read? What is sent in a round has bytes and a length of its own. Each
//! byte is looked at as soon as a call says that it is there, and sources are written again as soon as the calls allow.
//!
//! Three ways, one behind the other. *In a circle*: messages to the next PE, with the sender a round ahead; three sources take turns and are not
//! asked for again, since [`send`](Context::send) itself has waited for the round before the last. *All to all*: one source, which is written
//! again when the call returns. *Behind barriers*: a get from the PE before, and a put to the next one, which nothing but the barrier waits for.

use crate::gin::{Block, Context, Inbox, Program, Scope, Signal, Sym, Thread, Warp, World};
use crate::pattern;
use crate::ring::Status;
use cuda_std::memory::{Word, fetch_add_relaxed_gpu_u64};
use cuda_std::{args, kernel};

/// Sources of the circle.
pub const SOURCES: u32 = 3;

/// Arguments of the three kernels.
#[args]
pub struct DataCheck {
    /// Of the circle.
    pub circle: Inbox,
    /// Of the exchanges of all.
    pub all: Inbox,
    /// Two signals: messages of the circle that have been looked at, by the parity of their rounds.
    pub checked: Signal,
    /// Bytes of a message at most, of either inbox.
    pub most: u64,
    /// What is sent: `most` bytes for each source, and for each PE.
    pub from: Sym<u8>,
    /// What is received: as many.
    pub to: Sym<u8>,
    /// Rounds of each way.
    pub rounds: u32,
    /// Rounds of earlier launches.
    pub before: u32,
    /// Which lengths are drawn.
    pub seed: u32,
    /// Device memory: wrong bytes, and how many times some were looked at.
    pub found: *const [Word; 2],
}

/// The ways.
const CIRCLE: u32 = 0;
const ALL: u32 = 1;
const BARRIERS: u32 = 2;

/// Bytes of this round, from 1 to all there is room for. Each PE draws the same.
#[inline(always)]
fn length(args: &DataCheck, way: u32, round: u32) -> u64 {
    let draw = pattern::mixed(pattern::seed(way, round, 0), args.seed as u64);
    let most = if draw.is_multiple_of(2) { args.most } else { args.most.min(64) };
    1 + (draw >> 8) % most
}

/// The bytes of a PE's round.
#[inline(always)]
fn named(way: u32, pe: u32, round: u32) -> u64 {
    pattern::seed(pe, round, way)
}

/// Each thread of the scope its bytes.
#[inline(always)]
fn fill<S: Scope>(world: &World, scope: S, object: Sym<u8>, seed: u64) {
    let start = world.local(object);
    let mut at = scope.rank() as u64;
    while at < object.len() {
        // SAFETY: of the object, which nobody else uses now.
        unsafe { start.add(at as usize).write(pattern::byte(seed, at)) };
        at += scope.size() as u64;
    }
}

/// Bytes of this thread's share that are not those from `first` on.
#[inline(always)]
fn wrong<S: Scope>(world: &World, scope: S, object: Sym<u8>, seed: u64, first: u64) -> u64 {
    let start = world.local(object);
    let (mut wrong, mut at) = (0, scope.rank() as u64);
    while at < object.len() {
        // SAFETY: of the object, which nobody writes now.
        wrong += (unsafe { start.add(at as usize).read() } != pattern::byte(seed, first + at)) as u64;
        at += scope.size() as u64;
    }
    wrong
}

/// Wrong bytes of this thread's share. Out of line: each has the registers for itself.
#[inline(never)]
fn circle<S: Scope>(world: &World, args: &DataCheck, line: &mut Context<S>) -> Result<u64, Status> {
    let (me, pes, scope) = (world.my_pe(), world.n_pes(), line.scope());
    let (next, previous) = ((me + 1) % pes, (me + pes - 1) % pes);
    let first = args.before + 1;
    let mut found = 0;
    for round in first..=first + args.rounds {
        if round < first + args.rounds {
            // The round before the last has been looked at.
            line.signal_wait_until(args.checked.at(round % 2), ((round - 1) / 2) as u64)?;
            let from = args.from.slice((round % SOURCES) as u64 * args.most, length(args, CIRCLE, round));
            fill(world, scope, from, named(CIRCLE, me, round));
            line.send(args.circle, round, from, next)?;
        }
        if round > first {
            let to = args.to.slice(0, length(args, CIRCLE, round - 1));
            line.receive(args.circle, round - 1, to, previous)?;
            found += wrong(world, scope, to, named(CIRCLE, previous, round - 1), 0);
            // It speaks of what all threads have read. No fence, which would wait for the messages that are under way.
            scope.sync();
            line.signal_op(args.checked.at((round - 1) % 2), 1, previous)?;
        }
    }
    line.quiet()?;
    Ok(found)
}

/// As [`circle`].
#[inline(never)]
fn all<S: Scope>(world: &World, args: &DataCheck, line: &mut Context<S>) -> Result<u64, Status> {
    let (me, pes, scope) = (world.my_pe(), world.n_pes(), line.scope());
    let mut found = 0;
    for round in args.before + 1..=args.before + args.rounds {
        let block = length(args, ALL, round);
        let (from, to) = (args.from.slice(0, block * pes as u64), args.to.slice(0, block * pes as u64));
        fill(world, scope, from, named(ALL, me, round));
        line.all_to_all(args.all, round, to, from)?;
        for pe in 0..pes {
            found += wrong(world, scope, to.slice(pe as u64 * block, block), named(ALL, pe, round), me as u64 * block);
        }
        // All threads have looked, before the next round's bytes come.
        scope.sync();
    }
    line.quiet()?;
    Ok(found)
}

/// As [`circle`].
#[inline(never)]
fn behind_barriers<S: Scope>(world: &World, args: &DataCheck, line: &mut Context<S>) -> Result<u64, Status> {
    let (me, pes, scope) = (world.my_pe(), world.n_pes(), line.scope());
    let (next, previous) = ((me + 1) % pes, (me + pes - 1) % pes);
    let mut found = 0;
    for round in args.before + 1..=args.before + args.rounds {
        let bytes = length(args, BARRIERS, round);
        let from = args.from.slice(0, bytes);
        let (got, put) = (args.to.slice(0, bytes), args.to.slice(args.most, bytes));
        let seed = named(BARRIERS, previous, round);
        for step in 0..3 {
            // One place for all three: the code of a barrier stands here once.
            line.barrier_all()?;
            match step {
                // The next PE has looked at the round before, and the source is nobody's.
                0 => fill(world, scope, from, named(BARRIERS, me, round)),
                1 => {
                    line.get(got, from, previous)?;
                    found += wrong(world, scope, got, seed, 0);
                    line.put_nbi(put, from, next)?;
                }
                _ => found += wrong(world, scope, put, seed, 0),
            }
        }
    }
    Ok(found)
}

/// Wrong bytes of this thread's share, of all ways.
#[inline(always)]
fn ways<S: Scope>(world: &World, args: &DataCheck, line: &mut Context<S>) -> Result<u64, Status> {
    Ok(circle(world, args, line)? + all(world, args, line)? + behind_barriers(world, args, line)?)
}

#[inline(always)]
fn run<S: Scope>(program: &Program<DataCheck>) {
    let Some(scope) = S::first_of_block() else { return };
    let Program { world, args } = program;
    let mut line = world.context(scope);
    // A failure is in the world's report.
    let Ok(wrong) = ways(world, args, &mut line) else { return };
    // SAFETY: contract of the kernels.
    let found = unsafe { &*args.found };
    if wrong > 0 {
        fetch_add_relaxed_gpu_u64(&found[0], wrong);
    }
    if scope.rank() == 0 {
        fetch_add_relaxed_gpu_u64(&found[1], args.rounds as u64 * (3 + world.n_pes() as u64));
    }
}

/// See the module; one thread of one block.
///
/// # Safety
/// The arguments are of the world's heap and the same on all PEs, and `found` is valid.
#[kernel(resident)]
pub unsafe fn data_check_thread(program: Program<DataCheck>) {
    run::<Thread>(&program);
}

/// See the module; one warp of one block.
///
/// # Safety
/// As [`data_check_thread`].
#[kernel(resident)]
pub unsafe fn data_check_warp(program: Program<DataCheck>) {
    run::<Warp>(&program);
}

/// See the module; one block.
///
/// # Safety
/// As [`data_check_thread`].
#[kernel(resident)]
pub unsafe fn data_check_block(program: Program<DataCheck>) {
    run::<Block>(&program);
}
