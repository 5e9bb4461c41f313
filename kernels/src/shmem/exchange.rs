//! Messages there and back, and exchanges of all PEs.

use super::{ShmemArgs, ping_pong, turns};
use crate::gin::{Context, Program, Scope};
use crate::ring::Status;
use cuda_std::kernel;

#[inline(always)]
fn message<S: Scope>(args: &ShmemArgs, line: &mut Context<S>, turn: u32) -> Result<(), Status> {
    let round = args.rounds + turn + 1;
    ping_pong(
        args,
        line,
        |line| line.send(args.inbox, round, args.from, args.peer),
        |line| line.receive(args.inbox, round, args.to, args.peer),
    )
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

latencies! {
    /// A message there and back, by one thread.
    shmem_message_thread = message by Thread;
    /// A message there and back, by one warp.
    shmem_message_warp = message by Warp;
    /// A message there and back, by one block.
    shmem_message_block = message by Block;
    /// All PEs exchange, by messages of one thread.
    shmem_all_to_all_thread = all_to_all by Thread;
    /// All PEs exchange, by messages of one warp.
    shmem_all_to_all_warp = all_to_all by Warp;
    /// All PEs exchange, by messages of one block.
    shmem_all_to_all_block = all_to_all by Block;
    /// All PEs exchange, by puts with signals of one block.
    shmem_all_to_all_puts_block = all_to_all_puts by Block;
}
