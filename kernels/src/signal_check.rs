//! Checks that no signal is observed before its data. Producers put payloads of any size with a signal, and consumers
//! check every byte as soon as they observe the signal.
//!
//! Half of the grid's blocks produce and half consume. A producer (a thread, a warp or a block) has several slots, each
//! with its own signal, so that several of its puts are in flight at the same time. The consumer with the same index on
//! the other PE waits for a slot's signal, checks the slot, wipes it, and signals to the producer that it may be
//! written again.

use crate::gin::{Block, Context, Program, Scope, Signal, Sym, Thread, Warp};
use crate::pattern;
use cuda_std::memory::{Word, fetch_add_relaxed_gpu_u64};
use cuda_std::{args, kernel, thread, warp};

/// Byte with which a consumer overwrites a checked slot.
pub const WIPED: u8 = 0xEE;

/// Arguments of the three kernels.
#[args]
pub struct SignalCheck {
    /// Sources: `producers x slots x stride` bytes.
    pub source: Sym<u8>,
    /// Destinations, with the same size as the sources.
    pub target: Sym<u8>,
    /// One signal per slot, which counts the payloads that have been put.
    pub arrived: Signal,
    /// One signal per slot, which counts the payloads that have been checked.
    pub checked: Signal,
    /// Number of slots per producer.
    pub slots: u32,
    /// Distance in bytes between slots, a multiple of 16.
    pub stride: u64,
    /// Number of puts per slot.
    pub rounds: u32,
    /// Number of puts per slot in earlier launches with the same signals.
    pub first: u32,
    /// Seed of the payload sizes.
    pub seed: u32,
    /// Counts in device memory: number of wrong bytes, and number of puts checked.
    pub found: *const [Word; 2],
}

/// Each thread is a producer.
pub const SCOPE_THREAD: u32 = 0;
/// Each warp is a producer.
pub const SCOPE_WARP: u32 = 1;
/// Each block is a producer.
pub const SCOPE_BLOCK: u32 = 2;

/// Returns the number of bytes of a put: none, a few, some KiB, or up to a whole slot. Derived from the seed.
#[inline(always)]
pub fn bytes(args: &SignalCheck, producer: u32, slot: u32, round: u32) -> u64 {
    let draw = pattern::mixed(pattern::seed(producer, round, slot), args.seed as u64);
    let most = match draw % 8 {
        0 => 1,
        1..=4 => 256,
        5 | 6 => args.stride / 2,
        _ => args.stride + 1,
    };
    (draw >> 8) % most.max(1)
}

/// Returns the number of producers of a grid of `grid` blocks with `block` threads each.
pub fn producers(scope: u32, grid: u32, block: u32) -> u32 {
    let each = match scope {
        SCOPE_THREAD => block,
        SCOPE_WARP => block.div_ceil(warp::SIZE),
        _ => 1,
    };
    grid / 2 * each
}

/// Runs the check with one context per thread; see the module documentation. The grid must have an even number of
/// blocks, all resident.
///
/// # Safety
/// The arguments must be objects of the world's heap, and `found` must be valid.
#[kernel(resident)]
pub unsafe fn signal_check_thread(program: Program<SignalCheck>) {
    let first = thread::block_idx_x() / 2 * producers(SCOPE_THREAD, 2, thread::block_dim_x());
    run(&program, program.world.context(Thread), Thread, first + thread::thread_idx_x());
}

/// Like [`signal_check_thread`], with one context per warp.
///
/// # Safety
/// The requirements of [`signal_check_thread`] must hold.
#[kernel(resident)]
pub unsafe fn signal_check_warp(program: Program<SignalCheck>) {
    let first = thread::block_idx_x() / 2 * producers(SCOPE_WARP, 2, thread::block_dim_x());
    let scope = Warp::this();
    run(&program, program.world.context(scope), scope, first + thread::thread_idx_x() / warp::SIZE);
}

/// Like [`signal_check_thread`], with one context per block.
///
/// # Safety
/// The requirements of [`signal_check_thread`] must hold.
#[kernel(resident)]
pub unsafe fn signal_check_block(program: Program<SignalCheck>) {
    run(&program, program.world.context(Block), Block, thread::block_idx_x() / 2);
}

#[inline(always)]
fn run<S: Scope>(program: &Program<SignalCheck>, line: Context<S>, scope: S, number: u32) {
    if thread::block_idx_x().is_multiple_of(2) {
        produce(program, line, scope, number);
    } else {
        consume(program, line, scope, number);
    }
}

/// Returns the PE with which this one exchanges payloads.
#[inline(always)]
fn partner(program: &Program<SignalCheck>) -> u32 {
    (program.world.me ^ 1).min(program.world.pes - 1)
}

#[inline(always)]
fn produce<S: Scope>(program: &Program<SignalCheck>, mut line: Context<S>, scope: S, number: u32) {
    let Program { world, args } = program;
    for round in args.first..args.first + args.rounds {
        for slot in 0..args.slots {
            let index = number * args.slots + slot;
            // The previous payload has been checked. Over rails its put may still read the source, and write the slot
            // again, until the put is complete.
            if slot == 0 && line.quiet().is_err() {
                return;
            }
            if line.signal_wait_until(args.checked.at(index), round as u64).is_err() {
                return;
            }
            let bytes = bytes(args, number, slot, round);
            let from = args.source.slice(index as u64 * args.stride, bytes);
            let seed = pattern::seed(world.me, round, index);
            let start = world.local(from);
            let mut at = scope.rank() as u64;
            while at < bytes {
                // SAFETY: the byte is inside the slot, which no other thread or transfer uses now.
                unsafe { start.add(at as usize).write(pattern::byte(seed, at)) };
                at += scope.size() as u64;
            }
            let to = args.target.slice(index as u64 * args.stride, bytes);
            if line.put_signal_nbi(to, from, args.arrived.at(index), 1, partner(program)).is_err() {
                return;
            }
        }
    }
    // A failure is recorded in the world's report.
    let _ = line.quiet();
}

#[inline(always)]
fn consume<S: Scope>(program: &Program<SignalCheck>, mut line: Context<S>, scope: S, number: u32) {
    let Program { world, args } = program;
    let sender = partner(program);
    let mut wrong = 0;
    for round in args.first..args.first + args.rounds {
        for slot in 0..args.slots {
            let index = number * args.slots + slot;
            if line.signal_wait_until(args.arrived.at(index), round as u64 + 1).is_err() {
                return;
            }
            let bytes = bytes(args, number, slot, round);
            let seed = pattern::seed(sender, round, index);
            let start = world.local(args.target.slice(index as u64 * args.stride, bytes));
            let mut at = scope.rank() as u64;
            while at < bytes {
                // SAFETY: the byte is inside the slot; the payload has arrived, and its sender waits for this PE's
                // signal.
                unsafe {
                    let there = start.add(at as usize);
                    wrong += (there.read() != pattern::byte(seed, at)) as u64;
                    there.write(WIPED);
                }
                at += scope.size() as u64;
            }
            // Orders the wipe before the next payload.
            if line.fence().is_err() || line.signal_op(args.checked.at(index), 1, sender).is_err() {
                return;
            }
        }
    }
    let _ = line.quiet();
    // SAFETY: the kernel's caller guarantees that `found` is valid.
    let found = unsafe { &*args.found };
    if wrong > 0 {
        fetch_add_relaxed_gpu_u64(&found[0], wrong);
    }
    if scope.rank() == 0 {
        fetch_add_relaxed_gpu_u64(&found[1], args.rounds as u64 * args.slots as u64);
    }
}
