//! Bandwidth of grids in which blocks, warps or threads put or get their own part of the bytes.

use super::{MOVES_GETS, MOVES_PUT_SIGNALS, ShmemKernelArgs, moved};
use crate::gin::{Block, Context, Program, Scope, Thread, Warp};
use cuda_std::{kernel, thread, warp};

/// Measures the bandwidth of a grid of blocks: each block repeatedly puts or gets its own part of the bytes, then waits
/// for all transfers.
///
/// # Safety
/// The arguments must be objects of the world's heap. `times` must have two words per block.
#[kernel(resident)]
pub unsafe fn shmem_bandwidth_block(program: Program<ShmemKernelArgs>) {
    stream(&program, Block, 32, (thread::block_idx_x(), 1));
}

/// Like [`shmem_bandwidth_block`], but each warp has its own part.
///
/// # Safety
/// The requirements of [`shmem_bandwidth_block`] apply.
#[kernel(resident)]
pub unsafe fn shmem_bandwidth_warp(program: Program<ShmemKernelArgs>) {
    let warps = thread::block_dim_x().div_ceil(warp::SIZE);
    let number = thread::block_idx_x() * warps + thread::thread_idx_x() / warp::SIZE;
    stream(&program, Warp::this(), 1, (number, warps));
}

/// Like [`shmem_bandwidth_block`], but each thread has its own part.
///
/// # Safety
/// The requirements of [`shmem_bandwidth_block`] apply.
#[kernel(resident)]
pub unsafe fn shmem_bandwidth_thread(program: Program<ShmemKernelArgs>) {
    stream(&program, Thread, 1, (thread::index(), thread::block_dim_x()));
}

/// Writes the block's start time (0) or end time (1).
#[inline(always)]
fn stamp(args: &ShmemKernelArgs, number: usize) {
    if thread::thread_idx_x() == 0 {
        // SAFETY: `times` has two words per block (contract of the kernels).
        unsafe { *args.times.add(2 * thread::block_idx_x() as usize + number) = thread::global_timer_ns() };
    }
}

/// Runs the iterations of scope `number` of the `in_block` scopes of each block. (Closures are avoided: one that is not
/// inlined would keep the program in local memory.)
#[inline(always)]
fn stream<S: Scope>(program: &Program<ShmemKernelArgs>, scope: S, batch: u32, place: (u32, u32)) {
    stamp(&program.args, 0);
    // Without rails the compiler omits the batch of commands, which takes registers from the copies.
    match program.world.mapped() {
        Some(world) => stream_of(&program.args, world.context(scope), place),
        None => stream_of(&program.args, program.world.context(scope).batched(batch), place),
    }
    thread::sync_threads();
    stamp(&program.args, 1);
}

#[inline(always)]
fn stream_of<S: Scope>(args: &ShmemKernelArgs, mut line: Context<S>, (number, in_block): (u32, u32)) {
    let all = thread::grid_dim_x() as u64 * in_block as u64;
    // The last part includes the remainder.
    let part = args.from.len() / all;
    let first = number as u64 * part;
    let length = if number as u64 + 1 == all { args.from.len() - first } else { part };
    let (to, from) = (args.to.slice(first, length), args.from.slice(first, length));
    for turn in 0..args.iterations {
        let (to, from) = (moved(to, args.place(turn) * args.to_step), moved(from, args.place(turn) * args.step));
        let ended = match args.moves {
            MOVES_GETS => line.get_nbi(to, from, args.peer),
            MOVES_PUT_SIGNALS => line.put_signal_nbi(to, from, args.streamed, 1, args.peer),
            _ => line.put_nbi(to, from, args.peer),
        };
        if ended.is_err() {
            return;
        }
    }
    let _ = line.quiet();
}
