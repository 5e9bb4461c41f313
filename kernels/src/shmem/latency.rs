//! What one call takes, of one value or of some bytes, and there and back with a signal.

use super::{SIGNALS_SET, ShmemArgs, answered, due, quiet, turns};
use crate::gin::{Block, Context, Program, Scope, Sym, Thread, Warp};
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
fn get<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    let place = (turn & (args.places - 1)) as u64 * args.step;
    // SAFETY: contract of the kernel: the object there has so many places.
    let from = unsafe { Sym::from_parts(args.from.offset() + place, args.from.len()) };
    line.get(args.to, from, args.peer)
}

/// What the signal is when this turn's has come.
#[inline(always)]
fn count(args: &ShmemArgs, turn: u32) -> u64 {
    args.counted + turn as u64 + 1
}

#[inline(always)]
fn wait<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turns: u32) -> Result<(), Status> {
    line.signal_wait_until(args.signal, args.counted + turns as u64)
}

#[inline(always)]
fn signalled<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turns: u32) -> Result<(), Status> {
    answered(args, line, turns, wait)
}

#[inline(always)]
fn signal(args: &ShmemArgs, line: &mut Context<Thread>, turn: u32) -> Result<(), Status> {
    wait(args, line, due(args, turn))?;
    line.signal_op(args.signal, 1, args.peer)
}

#[inline(always)]
fn signal_set(args: &ShmemArgs, line: &mut Context<Thread>, turn: u32) -> Result<(), Status> {
    wait(args, line, due(args, turn))?;
    line.signal_set(args.signal, count(args, turn), args.peer)
}

#[inline(always)]
fn put_signal<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    wait(args, line, due(args, turn))?;
    let sets = args.moves == SIGNALS_SET;
    let value = if sets { count(args, turn) } else { 1 };
    line.put_signal_by(args.to, args.from, (args.signal, value, sets), args.peer)
}

#[inline(always)]
fn barrier<S: Scope>(_args: &ShmemArgs, line: &mut Context<S>, _turn: u32) -> Result<(), Status> {
    line.barrier_all()
}

/// `p` of one value and `quiet`.
///
/// # Safety
/// The arguments are of the world's heap, where `places` bytes to get lie, each `step` behind the one before; `times` has
/// [`latency_words`](super::latency_words).
#[kernel(resident)]
pub unsafe fn shmem_p(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, p, quiet);
}

/// `fetch_add`.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_atomic(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, atomic, quiet);
}

/// A signal there and back.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_signal(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, signal, signalled);
}

/// A signal there and back, set and not added to.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_signal_set(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, signal_set, signalled);
}

/// `put` and `quiet`, by one thread.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, put, quiet);
}

/// `put` and `quiet`, by one warp.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, put, quiet);
}

/// `put` and `quiet`, by one block.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, put, quiet);
}

/// `get`, by one thread.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_get_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, get, quiet);
}

/// `get`, by one warp.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_get_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, get, quiet);
}

/// `get`, by one block.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_get_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, get, quiet);
}

/// A put with a signal there and back, by one thread.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_signal_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, put_signal, signalled);
}

/// A put with a signal there and back, by one warp.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_signal_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, put_signal, signalled);
}

/// A put with a signal there and back, by one block.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_put_signal_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, put_signal, signalled);
}

/// The barrier of all PEs, by one thread.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_barrier_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, barrier, quiet);
}

/// The barrier of all PEs, by one warp.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_barrier_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, barrier, quiet);
}

/// The barrier of all PEs, by one block.
///
/// # Safety
/// As [`shmem_p`].
#[kernel(resident)]
pub unsafe fn shmem_barrier_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, barrier, quiet);
}
