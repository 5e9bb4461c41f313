//! Few bytes where a PE is reached by rails, and broadcasts: everyone sends to everyone, in one trip and without asking whether anybody is
//! ready. A PE that sends the round after next has heard of everyone in between, so two slots of an inbox are enough; a broadcast, where
//! nobody answers, acknowledges.

use super::sum::Adds;
use super::{ALL_GATHER, ALL_TO_ALL, BLOCKING, BROADCAST, CollectiveArgs, Done, MUTE, REDUCE_SCATTER};
use super::{SIGNALS_OF_BLOCK, State, turns};
use crate::gin::{Block, Context, Inbox, Program, Scope, Thread, Warp};
use cuda_std::{kernel, thread};

/// The first of two of the block's signals: a broadcast has arrived, by the parity of its round. With one for all rounds, a PE that has
/// acknowledged one round more would make up for another that lacks one.
const ACKNOWLEDGED: u32 = 0;

#[inline(always)]
fn turn<S: Scope>(args: &CollectiveArgs, line: &mut Context<S>, state: &mut State) -> Done {
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

    // What goes to PE `pe`, and the bytes of this PE that stay.
    let scatters = args.operation == ALL_TO_ALL || args.operation == REDUCE_SCATTER;
    let from = |pe: u32| args.from.slice(if scatters { chunk(pe) } else { begin }, length);
    let sends = args.operation != BROADCAST || me == args.root;
    if sends {
        for step in 1..pes {
            let pe = (me + step) % pes;
            if args.operation == BROADCAST && step == 1 {
                // Everyone has received the round before the last.
                let counted = &mut state.counted[parity as usize];
                line.signal_wait_until(acknowledged, *counted)?;
                *counted += (pes - 1) as u64;
            }
            let sent = from(pe);
            // A mute PE sends other bytes than it should.
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
    // What went over rails may be written again; stores need nobody's leave.
    if line.world().ring_count == 0 { Ok(()) } else { line.quiet() }
}

/// By messages of one thread of each block.
///
/// # Safety
/// The arguments are of the world's heap, the same on all PEs but for addresses and flags; `state` and `times` have room for every block.
#[kernel(resident)]
pub unsafe fn collective_messages_thread(program: Program<CollectiveArgs>) {
    turns::<Thread>(&program, turn);
}

/// By messages of one warp of each block.
///
/// # Safety
/// As [`collective_messages_thread`].
#[kernel(resident)]
pub unsafe fn collective_messages_warp(program: Program<CollectiveArgs>) {
    turns::<Warp>(&program, turn);
}

/// By messages of each block.
///
/// # Safety
/// As [`collective_messages_thread`].
#[kernel(resident)]
pub unsafe fn collective_messages_block(program: Program<CollectiveArgs>) {
    turns::<Block>(&program, turn);
}
