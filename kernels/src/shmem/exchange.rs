//! Round trips of messages, and all-to-all exchanges.

use super::{ShmemKernelArgs, answered, due, quiet, turns};
use crate::gin::{Block, Context, Program, Scope, Thread, Warp};
use crate::ring::Status;
use cuda_std::kernel;

#[inline(always)]
fn receive<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turns: u32) -> Result<(), Status> {
    line.receive(args.inbox, args.rounds + turns, args.target(turns - 1), args.peer)
}

#[inline(always)]
fn received<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turns: u32) -> Result<(), Status> {
    answered(args, line, turns, receive)
}

#[inline(always)]
fn message<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    // No message precedes the first one of the PE that starts.
    match due(args, turn) {
        0 => {}
        turns => receive(args, line, turns)?,
    }
    line.send(args.inbox, args.rounds + turn + 1, args.source(turn), args.peer)
}

#[inline(always)]
fn all_to_all<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    line.all_to_all(args.inbox, args.rounds + turn + 1, args.target(turn), args.source(turn))
}

/// Exchanges blocks that are too long for messages. Each sender has its own signal: with a common signal, a PE that is
/// one iteration ahead could hide that the block of another PE has not arrived. Because of `quiet`, a sender has at
/// most one put to each PE in flight.
#[inline(always)]
fn all_to_all_puts<S: Scope>(args: &ShmemKernelArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    let (me, pes) = (line.world().me, line.world().pes);
    let block = args.from.len() / pes as u64;
    let (target, source) = (args.target(turn), args.source(turn));
    for step in 0..pes {
        let pe = (me + step) % pes;
        let (to, from) = (target.slice(me as u64 * block, block), source.slice(pe as u64 * block, block));
        line.put_signal_nbi(to, from, args.exchanged.at(me), 1, pe)?;
    }
    for pe in 0..pes {
        line.signal_wait_until(args.exchanged.at(pe), (args.rounds + turn) as u64 + 1)?;
    }
    line.quiet()
}

/// Measures the round trip of a message by one thread.
///
/// # Safety
/// The arguments must be objects of the world's heap. `times` must have [`latency_words`](super::latency_words).
#[kernel(resident)]
pub unsafe fn shmem_message_thread(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, message, received);
}

/// Measures the round trip of a message by one warp.
///
/// # Safety
/// The requirements of [`shmem_message_thread`] apply.
#[kernel(resident)]
pub unsafe fn shmem_message_warp(program: Program<ShmemKernelArgs>) {
    turns::<Warp>(&program, message, received);
}

/// Measures the round trip of a message by one block.
///
/// # Safety
/// The requirements of [`shmem_message_thread`] apply.
#[kernel(resident)]
pub unsafe fn shmem_message_block(program: Program<ShmemKernelArgs>) {
    turns::<Block>(&program, message, received);
}

/// Measures an all-to-all by messages of one thread.
///
/// # Safety
/// The requirements of [`shmem_message_thread`] apply.
#[kernel(resident)]
pub unsafe fn shmem_all_to_all_thread(program: Program<ShmemKernelArgs>) {
    turns::<Thread>(&program, all_to_all, quiet);
}

/// Measures an all-to-all by messages of one warp.
///
/// # Safety
/// The requirements of [`shmem_message_thread`] apply.
#[kernel(resident)]
pub unsafe fn shmem_all_to_all_warp(program: Program<ShmemKernelArgs>) {
    turns::<Warp>(&program, all_to_all, quiet);
}

/// Measures an all-to-all by messages of one block.
///
/// # Safety
/// The requirements of [`shmem_message_thread`] apply.
#[kernel(resident)]
pub unsafe fn shmem_all_to_all_block(program: Program<ShmemKernelArgs>) {
    turns::<Block>(&program, all_to_all, quiet);
}

/// Measures an all-to-all by puts with signals of one block.
///
/// # Safety
/// The requirements of [`shmem_message_thread`] apply.
#[kernel(resident)]
pub unsafe fn shmem_all_to_all_puts_block(program: Program<ShmemKernelArgs>) {
    turns::<Block>(&program, all_to_all_puts, quiet);
}
