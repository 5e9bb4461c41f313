//! Latency of single calls, for one value or several bytes, and of round trips with a signal.

use super::{SIGNALS_SET, ShmemKernelArgs, answered, due, quiet, turns};
use crate::gin::{Block, Context, Program, Scope, Thread, Warp};
use crate::ring::Status;
use cuda_std::kernel;

#[inline(always)]
fn p(args: &ShmemKernelArgs, line: &mut Context<Thread>, turn: u32) -> Result<(), Status> {
    line.p(args.value(turn), turn as u64, args.peer)?;
    line.quiet()
}

#[inline(always)]
fn atomic(args: &ShmemKernelArgs, line: &mut Context<Thread>, _turn: u32) -> Result<(), Status> {
    match line.fetch_add(args.word, 1, args.peer)? {
        // Counts never reach this value. The comparison forces the thread to wait for the result; otherwise the
        // iteration would measure only the issue of the instruction.
        u64::MAX => Err(Status::REFUSED),
        _ => Ok(()),
    }
}

#[inline(always)]
fn put<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    line.put_nbi(args.target(turn), args.source(turn), args.peer)?;
    line.quiet()
}

#[inline(always)]
fn get<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    line.get(args.target(turn), args.source(turn), args.peer)
}

/// Returns the value of the signal after the signal of iteration `turn` has arrived.
#[inline(always)]
fn count(args: &ShmemKernelArgs, turn: u32) -> u64 {
    args.counted + turn as u64 + 1
}

#[inline(always)]
fn wait<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turns: u32) -> Result<(), Status> {
    line.signal_wait_until(args.signal, args.counted + turns as u64)
}

#[inline(always)]
fn signalled<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turns: u32) -> Result<(), Status> {
    answered(args, line, turns, wait)
}

#[inline(always)]
fn signal(args: &ShmemKernelArgs, line: &mut Context<Thread>, turn: u32) -> Result<(), Status> {
    wait(args, line, due(args, turn))?;
    line.signal_op(args.signal, 1, args.peer)
}

#[inline(always)]
fn signal_set(args: &ShmemKernelArgs, line: &mut Context<Thread>, turn: u32) -> Result<(), Status> {
    wait(args, line, due(args, turn))?;
    line.signal_set(args.signal, count(args, turn), args.peer)
}

#[inline(always)]
fn put_signal<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    wait(args, line, due(args, turn))?;
    let sets = args.moves == SIGNALS_SET;
    let value = if sets { count(args, turn) } else { 1 };
    line.put_signal_by(args.target(turn), args.source(turn), (args.signal, value, sets), args.peer)
}

#[inline(always)]
fn barrier<S: Scope>(_args: &ShmemKernelArgs, line: &mut Context<S>, _turn: u32) -> Result<(), Status> {
    line.barrier_all()
}

/// Measures `p` of one value, and `quiet`.
///
/// # Safety
/// The arguments must be of the world's heap, and `from`, `to` and `word` must have `places` slots; `times` must have
/// [`latency_words`](super::latency_words).
#[kernel(resident)]
pub unsafe fn shmem_p(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, p, quiet);
}

/// Measures `fetch_add`.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_atomic(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, atomic, quiet);
}

/// Measures the round trip of a signal.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_signal(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, signal, signalled);
}

/// Measures the round trip of a signal that is set instead of incremented.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_signal_set(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, signal_set, signalled);
}

/// Measures `put` and `quiet` by one thread.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_put_thread(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, put, quiet);
}

/// Measures `put` and `quiet` by one warp.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_put_warp(program: Program<ShmemKernelArgs>) {
    turns::<Warp>(&program, put, quiet);
}

/// Measures `put` and `quiet` by one block.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_put_block(program: Program<ShmemKernelArgs>) {
    turns::<Block>(&program, put, quiet);
}

/// Measures `get` by one thread.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_get_thread(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, get, quiet);
}

/// Measures `get` by one warp.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_get_warp(program: Program<ShmemKernelArgs>) {
    turns::<Warp>(&program, get, quiet);
}

/// Measures `get` by one block.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_get_block(program: Program<ShmemKernelArgs>) {
    turns::<Block>(&program, get, quiet);
}

/// Measures the round trip of a put with a signal, by one thread.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_put_signal_thread(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, put_signal, signalled);
}

/// Measures the round trip of a put with a signal, by one warp.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_put_signal_warp(program: Program<ShmemKernelArgs>) {
    turns::<Warp>(&program, put_signal, signalled);
}

/// Measures the round trip of a put with a signal, by one block.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_put_signal_block(program: Program<ShmemKernelArgs>) {
    turns::<Block>(&program, put_signal, signalled);
}

/// Measures the barrier of all PEs, by one thread.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_barrier_thread(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, barrier, quiet);
}

/// Measures the barrier of all PEs, by one warp.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_barrier_warp(program: Program<ShmemKernelArgs>) {
    turns::<Warp>(&program, barrier, quiet);
}

/// Measures the barrier of all PEs, by one block.
///
/// # Safety
/// The requirements of [`shmem_p`] apply.
#[kernel(resident)]
pub unsafe fn shmem_barrier_block(program: Program<ShmemKernelArgs>) {
    turns::<Block>(&program, barrier, quiet);
}
