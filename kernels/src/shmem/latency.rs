//! What one call takes, of one value or of some bytes, and there and back with a signal.

use super::{ShmemArgs, ping_pong, turns};
use crate::gin::{Context, Program, Scope, Thread};
use crate::ring::Status;
use cuda_std::kernel;

#[inline(always)]
fn p(args: &ShmemArgs, line: &mut Context<Thread>, turn: u32) -> Result<(), Status> {
    line.p(args.word, turn as u64, args.peer)?;
    line.quiet()
}

#[inline(always)]
fn atomic(args: &ShmemArgs, line: &mut Context<Thread>, _turn: u32) -> Result<(), Status> {
    match line.fetch_add(args.word, 1, args.peer)? {
        // No count comes that far. A value that nobody looks at is not waited for, and the turn would be the instruction's alone.
        u64::MAX => Err(Status::REFUSED),
        _ => Ok(()),
    }
}

#[inline(always)]
fn put<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, _turn: u32) -> Result<(), Status> {
    line.put_nbi(args.to, args.from, args.peer)?;
    line.quiet()
}

#[inline(always)]
fn get<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, _turn: u32) -> Result<(), Status> {
    line.get(args.to, args.from, args.peer)
}

#[inline(always)]
fn signal(args: &ShmemArgs, line: &mut Context<Thread>, turn: u32) -> Result<(), Status> {
    let count = args.counted + turn as u64 + 1;
    ping_pong(
        args,
        line,
        |line| line.signal_op(args.signal, 1, args.peer),
        |line| line.signal_wait_until(args.signal, count),
    )
}

#[inline(always)]
fn put_signal<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    let count = args.counted + turn as u64 + 1;
    ping_pong(
        args,
        line,
        |line| line.put_signal_nbi(args.to, args.from, args.signal, 1, args.peer),
        |line| line.signal_wait_until(args.signal, count),
    )
}

#[inline(always)]
fn barrier<S: Scope>(_args: &ShmemArgs, line: &mut Context<S>, _turn: u32) -> Result<(), Status> {
    line.barrier_all()
}

latencies! {
    /// `p` of one value and `quiet`.
    shmem_p = p by Thread;
    /// `fetch_add`.
    shmem_atomic = atomic by Thread;
    /// A signal there and back.
    shmem_signal = signal by Thread;
    /// `put` and `quiet`, by one thread.
    shmem_put_thread = put by Thread;
    /// `put` and `quiet`, by one warp.
    shmem_put_warp = put by Warp;
    /// `put` and `quiet`, by one block.
    shmem_put_block = put by Block;
    /// `get`, by one thread.
    shmem_get_thread = get by Thread;
    /// `get`, by one warp.
    shmem_get_warp = get by Warp;
    /// `get`, by one block.
    shmem_get_block = get by Block;
    /// A put with a signal there and back, by one thread.
    shmem_put_signal_thread = put_signal by Thread;
    /// A put with a signal there and back, by one warp.
    shmem_put_signal_warp = put_signal by Warp;
    /// A put with a signal there and back, by one block.
    shmem_put_signal_block = put_signal by Block;
    /// The barrier of all PEs, by one thread.
    shmem_barrier_thread = barrier by Thread;
    /// The barrier of all PEs, by one warp.
    shmem_barrier_warp = barrier by Warp;
    /// The barrier of all PEs, by one block.
    shmem_barrier_block = barrier by Block;
}
