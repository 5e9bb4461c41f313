//! Checks that no data is read before it has arrived, or overwritten while it is still read. Each round has different
//! bytes and a different length. Each byte is checked as soon as a call reports its arrival, and sources are
//! overwritten as soon as the calls permit it.
//!
//! There are three patterns, run one after another:
//!
//! - *Circle*: messages to the next PE, with the sender one round ahead. Three sources are used in rotation and not
//!   reclaimed, since [`send`](Context::send) itself has waited for the round before the previous one.
//! - *All to all*: one source, which is overwritten when the call returns.
//! - *Barriers*: a get from the previous PE and a put to the next one, for which only the barrier waits.

use crate::gin::{Block, Context, Inbox, Program, Scope, Signal, Sym, Thread, Warp, WorldView};
use crate::pattern;
use crate::ring::Status;
use cuda_std::memory::{Word, fetch_add_relaxed_gpu_u64};
use cuda_std::{args, kernel};

/// Number of sources of the circle.
pub const SOURCES: u32 = 3;

/// Arguments of the three kernels.
#[args]
pub struct DataCheck {
    /// Inbox of the circle.
    pub circle: Inbox,
    /// Inbox of the exchanges of all PEs.
    pub all: Inbox,
    /// Two signals that count the checked messages of the circle, selected by the parity of their rounds.
    pub checked: Signal,
    /// Maximum length of a message in bytes, for both inboxes.
    pub most: u64,
    /// Sources: `most` bytes per source and PE.
    pub from: Sym<u8>,
    /// Destinations, with the same size as the sources.
    pub to: Sym<u8>,
    /// Number of rounds of each pattern.
    pub rounds: u32,
    /// Number of rounds of earlier launches.
    pub before: u32,
    /// Seed of the message lengths.
    pub seed: u32,
    /// Counts in device memory: number of wrong bytes, and number of objects checked.
    pub found: *const [Word; 2],
}

/// The patterns.
const CIRCLE: u32 = 0;
const ALL: u32 = 1;
const BARRIERS: u32 = 2;

/// Returns the number of bytes of this round, from 1 to the maximum. All PEs draw the same numbers.
#[inline(always)]
fn length(args: &DataCheck, way: u32, round: u32) -> u64 {
    let draw = pattern::mixed(pattern::seed(way, round, 0), args.seed as u64);
    let most = if draw.is_multiple_of(2) { args.most } else { args.most.min(64) };
    1 + (draw >> 8) % most
}

/// Returns the seed for the bytes of a PE in a round.
#[inline(always)]
fn named(way: u32, pe: u32, round: u32) -> u64 {
    pattern::seed(pe, round, way)
}

/// Fills `object` with its bytes; each thread of the scope writes its share.
#[inline(always)]
fn fill<S: Scope>(world: &WorldView, scope: S, object: Sym<u8>, seed: u64) {
    let start = world.local(object);
    let mut at = scope.rank() as u64;
    while at < object.len() {
        // SAFETY: the byte is in the object, which no other thread uses now.
        unsafe { start.add(at as usize).write(pattern::byte(seed, at)) };
        at += scope.size() as u64;
    }
}

/// Returns the number of bytes of this thread's share that differ from the pattern, which starts at byte `first`.
#[inline(always)]
fn wrong<S: Scope>(world: &WorldView, scope: S, object: Sym<u8>, seed: u64, first: u64) -> u64 {
    let start = world.local(object);
    let (mut wrong, mut at) = (0, scope.rank() as u64);
    while at < object.len() {
        // SAFETY: the byte is in the object, which no thread writes now.
        wrong += (unsafe { start.add(at as usize).read() } != pattern::byte(seed, first + at)) as u64;
        at += scope.size() as u64;
    }
    wrong
}

/// Runs the circle and returns the number of wrong bytes of this thread's share. Not inlined, so that each pattern can
/// use all registers.
#[inline(never)]
fn circle<S: Scope>(world: &WorldView, args: &DataCheck, line: &mut Context<S>) -> Result<u64, Status> {
    let (me, pes, scope) = (world.my_pe(), world.n_pes(), line.scope());
    let (next, previous) = ((me + 1) % pes, (me + pes - 1) % pes);
    let first = args.before + 1;
    let mut found = 0;
    for round in first..=first + args.rounds {
        if round < first + args.rounds {
            // Ensures that the round before the previous one has been checked.
            line.signal_wait_until(args.checked.at(round % 2), ((round - 1) / 2) as u64)?;
            let from = args.from.slice((round % SOURCES) as u64 * args.most, length(args, CIRCLE, round));
            fill(world, scope, from, named(CIRCLE, me, round));
            line.send(args.circle, round, from, next)?;
        }
        if round > first {
            let to = args.to.slice(0, length(args, CIRCLE, round - 1));
            line.receive(args.circle, round - 1, to, previous)?;
            found += wrong(world, scope, to, named(CIRCLE, previous, round - 1), 0);
            // The signal announces that all threads have finished reading. A fence would also wait for the messages in
            // flight.
            scope.sync();
            line.signal_op(args.checked.at((round - 1) % 2), 1, previous)?;
        }
    }
    line.quiet()?;
    Ok(found)
}

/// Runs the exchanges of all PEs, like [`circle`].
#[inline(never)]
fn all<S: Scope>(world: &WorldView, args: &DataCheck, line: &mut Context<S>) -> Result<u64, Status> {
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
        // All threads have checked before the bytes of the next round arrive.
        scope.sync();
    }
    line.quiet()?;
    Ok(found)
}

/// Runs the gets and puts between barriers, like [`circle`].
#[inline(never)]
fn after_barriers<S: Scope>(world: &WorldView, args: &DataCheck, line: &mut Context<S>) -> Result<u64, Status> {
    let (me, pes, scope) = (world.my_pe(), world.n_pes(), line.scope());
    let (next, previous) = ((me + 1) % pes, (me + pes - 1) % pes);
    let mut found = 0;
    for round in args.before + 1..=args.before + args.rounds {
        let bytes = length(args, BARRIERS, round);
        let from = args.from.slice(0, bytes);
        let (got, put) = (args.to.slice(0, bytes), args.to.slice(args.most, bytes));
        let seed = named(BARRIERS, previous, round);
        for step in 0..3 {
            // All three steps share this call, so that the code of a barrier exists once.
            line.barrier_all()?;
            match step {
                // The next PE has checked the previous round, and no transfer uses the source.
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

/// Runs all patterns and returns the number of wrong bytes of this thread's share.
#[inline(always)]
fn ways<S: Scope>(world: &WorldView, args: &DataCheck, line: &mut Context<S>) -> Result<u64, Status> {
    Ok(circle(world, args, line)? + all(world, args, line)? + after_barriers(world, args, line)?)
}

#[inline(always)]
fn run<S: Scope>(program: &Program<DataCheck>) {
    let Some(scope) = S::first_of_block() else { return };
    let Program { world, args } = program;
    let mut line = world.context(scope);
    // A failure is recorded in the world's report.
    let Ok(wrong) = ways(world, args, &mut line) else { return };
    // SAFETY: the kernel's caller guarantees that `found` is valid.
    let found = unsafe { &*args.found };
    if wrong > 0 {
        fetch_add_relaxed_gpu_u64(&found[0], wrong);
    }
    if scope.rank() == 0 {
        fetch_add_relaxed_gpu_u64(&found[1], args.rounds as u64 * (3 + world.n_pes() as u64));
    }
}

/// Runs the check with one thread of one block; see the module documentation.
///
/// # Safety
/// The arguments must be objects of the world's heap and the same on all PEs, and `found` must be valid.
#[kernel(resident)]
pub unsafe fn data_check_thread(program: Program<DataCheck>) {
    run::<Thread>(&program);
}

/// Runs the check with one warp of one block; see the module documentation.
///
/// # Safety
/// The requirements of [`data_check_thread`] must hold.
#[kernel(resident)]
pub unsafe fn data_check_warp(program: Program<DataCheck>) {
    run::<Warp>(&program);
}

/// Runs the check with one block; see the module documentation.
///
/// # Safety
/// The requirements of [`data_check_thread`] must hold.
#[kernel(resident)]
pub unsafe fn data_check_block(program: Program<DataCheck>) {
    run::<Block>(&program);
}
