//! What one call takes, of one value or of some bytes, and there and back with a signal.

use super::{SIGNALS_SET, ShmemArgs, ping_pong, turns};
use crate::gin::{Block, Context, Program, Scope, Thread, Warp};
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
        |line| match args.moves {
            SIGNALS_SET => line.signal_set(args.signal, count, args.peer),
            _ => line.signal_op(args.signal, 1, args.peer),
        },
        |line| line.signal_wait_until(args.signal, count),
    )
}

#[inline(always)]
fn put_signal<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    let count = args.counted + turn as u64 + 1;
    ping_pong(
        args,
        line,
        |line| {
            let sets = args.moves == SIGNALS_SET;
            line.put_signal_by(args.to, args.from, (args.signal, if sets { count } else { 1 }, sets), args.peer)
        },
        |line| line.signal_wait_until(args.signal, count),
    )
}

#[inline(always)]
fn barrier<S: Scope>(_args: &ShmemArgs, line: &mut Context<S>, _turn: u32) -> Result<(), Status> {
    line.barrier_all()
}

/// `p` of one value and `quiet`.
///
/// # Safety
/// The arguments are of the world's heap; `times` has [`latency_words`](super::latency_words).
#[kernel(resident)]
pub unsafe fn shmem_p(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, p);
}

/// `fetch_add`.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_atomic(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, atomic);
}

/// A signal there and back.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_signal(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, signal);
}

/// `put` and `quiet`, by one thread.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, put);
}

/// `put` and `quiet`, by one warp.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, put);
}

/// `put` and `quiet`, by one block.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, put);
}

/// `get`, by one thread.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_get_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, get);
}

/// `get`, by one warp.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_get_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, get);
}

/// `get`, by one block.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_get_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, get);
}

/// A put with a signal there and back, by one thread.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_signal_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, put_signal);
}

/// A put with a signal there and back, by one warp.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_signal_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, put_signal);
}

/// A put with a signal there and back, by one block.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_signal_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, put_signal);
}

/// The barrier of all PEs, by one thread.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_barrier_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, barrier);
}

/// The barrier of all PEs, by one warp.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_barrier_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, barrier);
}

/// The barrier of all PEs, by one block.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_barrier_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, barrier);
}
