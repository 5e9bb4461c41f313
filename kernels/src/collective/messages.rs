//! Collectives of few bytes if a PE is reached over rails, and broadcasts: every PE sends to every PE, in one step and
//! without waiting until the receivers are ready.
//!
//! A PE that sends round `r + 2` has received round `r + 1` from every PE, so two slots per inbox suffice. In a
//! broadcast only the root sends, so the receivers send acknowledgements.

use super::sum::Adds;
use super::{ALL_GATHER, ALL_TO_ALL, BLOCKING, BROADCAST, CallResult, CollectiveKernelArgs, MUTE, REDUCE_SCATTER};
use super::{BlockCounters, SIGNALS_OF_BLOCK, turns};
use crate::gin::{Block, Context, Inbox, Program, Scope, Thread, Warp};
use cuda_std::{kernel, thread};

/// First of the block's two acknowledgement signals, selected by the parity of the round. With a single signal for all
/// rounds, a PE that has acknowledged one round too many could hide that another has not acknowledged.
const ACKNOWLEDGED: u32 = 0;

#[inline(always)]
fn turn<S: Scope>(args: &CollectiveKernelArgs, line: &mut Context<S>, state: &mut BlockCounters) -> CallResult {
    let (me, pes) = (line.world().me, line.world().pes);
    let block = thread::block_idx_x();
    let by_chunks = args.operation <= REDUCE_SCATTER;
    let begin = (block as u64 * args.slice).min(args.whole);
    let length = args.slice.min(args.whole - begin);
    let chunk = |pe: u32| pe as u64 * args.chunk + begin;
    let which = (args.operation == BROADCAST) as usize;
    let mail = args.inboxes[which];
    let inbox = Inbox {
        offset: mail.offset + block as u64 * Inbox::bytes(mail.capacity, pes),
        capacity: mail.capacity,
        signals: mail.signals.at(block * pes),
    };
    state.rounds[which] += 1;
    let round = state.rounds[which] as u32;
    let parity = ACKNOWLEDGED + round % 2;
    let acknowledged = args.signals.at(block * SIGNALS_OF_BLOCK + parity);

    // Selects the source bytes for PE `pe`. For this PE they are copied locally.
    let scatters = args.operation == ALL_TO_ALL || args.operation == REDUCE_SCATTER;
    let from = |pe: u32| args.from.slice(if scatters { chunk(pe) } else { begin }, length);
    let sends = args.operation != BROADCAST || me == args.root;
    if sends {
        for step in 1..pes {
            let pe = (me + step) % pes;
            if args.operation == BROADCAST && step == 1 {
                // Waits until every PE has received the round before the previous one.
                let counted = &mut state.counted[parity as usize];
                line.signal_wait_until(acknowledged, *counted)?;
                *counted += (pes - 1) as u64;
            }
            let sent = from(pe);
            // A mute PE sends wrong bytes, so that verification must fail.
            let sent = if args.flags & MUTE != 0 { args.to.slice(0, length) } else { sent };
            line.send(inbox, round, sent, pe)?;
            state.puts += 1;
            if line.is_mapped(pe) {
                state.mapped_bytes += if args.flags & MUTE != 0 { 0 } else { length };
            }
            if args.flags & BLOCKING != 0 {
                line.quiet()?;
            }
        }
    }
    match args.operation {
        ALL_TO_ALL | ALL_GATHER | BROADCAST => {
            let to = |pe: u32| args.to.slice(if by_chunks { chunk(pe) } else { begin }, length);
            if sends && (to(me).offset() != from(me).offset()) {
                line.put_nbi(to(me), from(me), me)?;
            }
            for step in 1..pes {
                let pe = (me + pes - step) % pes;
                if args.operation != BROADCAST || pe == args.root {
                    line.receive(inbox, round, to(pe), pe)?;
                }
            }
            if args.operation == BROADCAST && me != args.root {
                line.signal_op(acknowledged, 1, args.root)?;
            }
        }
        _ => {
            let to = args.to.slice(begin, length);
            line.receive_folded(inbox, round, to, from(me), &Adds(args.element))?;
        }
    }
    // Waits until the sources of puts over rails may be overwritten. Stores need no such wait.
    if line.world().outlet_count == 0 { Ok(()) } else { line.quiet() }
}

/// Runs a collective by messages of one thread per block.
///
/// # Safety
/// The arguments must be objects of the world's heap and, except for addresses and flags, the same on all PEs. `state`
/// and `times` must have space for every block.
#[kernel(resident)]
pub unsafe fn collective_messages_thread(program: Program<CollectiveKernelArgs>) {
    turns::<Thread>(&program, turn);
}

/// Runs a collective by messages of one warp per block.
///
/// # Safety
/// The requirements of [`collective_messages_thread`] apply.
#[kernel(resident)]
pub unsafe fn collective_messages_warp(program: Program<CollectiveKernelArgs>) {
    turns::<Warp>(&program, turn);
}

/// Runs a collective by messages of whole blocks.
///
/// # Safety
/// The requirements of [`collective_messages_thread`] apply.
#[kernel(resident)]
pub unsafe fn collective_messages_block(program: Program<CollectiveKernelArgs>) {
    turns::<Block>(&program, turn);
}
