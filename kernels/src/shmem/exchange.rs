//! Messages there and back, and exchanges of all PEs.

use super::{ShmemArgs, answered, due, quiet, turns};
use crate::gin::{Block, Context, Program, Scope, Thread, Warp};
use crate::ring::Status;
use cuda_std::kernel;

#[inline(always)]
fn receive<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turns: u32) -> Result<(), Status> {
    line.receive(args.inbox, args.rounds + turns, args.to, args.peer)
}

#[inline(always)]
fn received<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turns: u32) -> Result<(), Status> {
    answered(args, line, turns, receive)
}

#[inline(always)]
fn message<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    // Nothing is due before the first one of whoever begins.
    match due(args, turn) {
        0 => {}
        turns => receive(args, line, turns)?,
    }
    line.send(args.inbox, args.rounds + turn + 1, args.from, args.peer)
}

#[inline(always)]
fn all_to_all<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    line.all_to_all(args.inbox, args.rounds + turn + 1, args.to, args.from)
}

/// The exchange of blocks that are too long for messages. A signal for each sender: in a sum of all, a PE that is a turn ahead would stand in
/// for another one whose block has not come. Behind `quiet` a sender has one put to each PE under way.
#[inline(always)]
fn all_to_all_puts<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    let (me, pes) = (line.world().me, line.world().pes);
    let block = args.from.len() / pes as u64;
    for step in 0..pes {
        let pe = (me + step) % pes;
        let (to, from) = (args.to.slice(me as u64 * block, block), args.from.slice(pe as u64 * block, block));
        line.put_signal_nbi(to, from, args.exchanged.at(me), 1, pe)?;
    }
    for pe in 0..pes {
        line.signal_wait_until(args.exchanged.at(pe), (args.rounds + turn) as u64 + 1)?;
    }
    line.quiet()
}

/// A message there and back, by one thread.
///
/// # Safety
/// The arguments are of the world's heap; `times` has [`latency_words`](super::latency_words).
#[kernel(resident)]
pub unsafe fn shmem_message_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, message, received);
}

/// A message there and back, by one warp.
///
/// # Safety
/// As [`shmem_message_thread`].
#[kernel(resident)]
pub unsafe fn shmem_message_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, message, received);
}

/// A message there and back, by one block.
///
/// # Safety
/// As [`shmem_message_thread`].
#[kernel(resident)]
pub unsafe fn shmem_message_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, message, received);
}

/// All PEs exchange, by messages of one thread.
///
/// # Safety
/// As [`shmem_message_thread`].
#[kernel(resident)]
pub unsafe fn shmem_all_to_all_thread(program: Program<ShmemArgs>) {
    turns::<Thread>(&program, all_to_all, quiet);
}

/// All PEs exchange, by messages of one warp.
///
/// # Safety
/// As [`shmem_message_thread`].
#[kernel(resident)]
pub unsafe fn shmem_all_to_all_warp(program: Program<ShmemArgs>) {
    turns::<Warp>(&program, all_to_all, quiet);
}

/// All PEs exchange, by messages of one block.
///
/// # Safety
/// As [`shmem_message_thread`].
#[kernel(resident)]
pub unsafe fn shmem_all_to_all_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, all_to_all, quiet);
}

/// All PEs exchange, by puts with signals of one block.
///
/// # Safety
/// As [`shmem_message_thread`].
#[kernel(resident)]
pub unsafe fn shmem_all_to_all_puts_block(program: Program<ShmemArgs>) {
    turns::<Block>(&program, all_to_all_puts, quiet);
}
