//! Collectives of many bytes, by puts, and sums by loads. A block waits only for blocks with the same index on other
//! PEs, never for other blocks of its PE.

mod plan;

use super::sum::{NONE_APART, Spread, sum};
use super::{ALL_GATHER, ALL_REDUCE, BLOCKING, BlockCounters, CallResult, CollectiveKernelArgs, MUTE};
use super::{SIGNALS_OF_BLOCK, turns};
use crate::gin::{Block, Context, Program, Scope, Signal, Thread, Warp};
use cuda_std::{kernel, thread};
use plan::{FINISH, Move, REDUCE, SCATTER};

/// Signal of a block, raised when a PE has entered the iteration: its bytes may be read and its destinations written.
const READY: u32 = 0;
/// Signal of a block, raised when a chunk of a broadcast, sums of another node, or data that PEs of this node gather at
/// this PE have arrived.
const PARTS: u32 = 1;
/// Signal of a block, raised when other nodes' chunks have arrived.
const CROSS: u32 = 2;
/// Signal of a block, raised when a PE of this node has finished its writes and reads of this iteration.
const LOCAL: u32 = 3;

/// One iteration of one block. For a single node (`SEVERAL` is false) the kernel contains none of the code for
/// transfers between nodes, which would take registers and stack from the copies. More than 1024 bytes of stack make a
/// launch slower.
struct Turn<'a, const SEVERAL: bool> {
    args: &'a CollectiveKernelArgs,
    me: u32,
    pes: u32,
    /// PEs per node.
    local: u32,
    /// This PE's index in its node, followed by the index of the node.
    place: u32,
    node: u32,
    block: u32,
    /// First byte of this block's slice of a chunk, and the maximum length of the slice.
    begin: u64,
    step: u64,
    signals: Signal,
}

#[inline(always)]
fn turn<S: Scope, const SEVERAL: bool>(
    args: &CollectiveKernelArgs,
    line: &mut Context<S>,
    state: &mut BlockCounters,
) -> CallResult {
    let (me, pes, block) = (line.world().me, line.world().pes, thread::block_idx_x());
    let local = if SEVERAL { args.local } else { pes };
    let turn = Turn::<SEVERAL> {
        args,
        me,
        pes,
        local,
        place: if SEVERAL { me % local } else { me },
        node: if SEVERAL { me / local } else { 0 },
        block,
        begin: block as u64 * args.slice,
        step: args.slice,
        signals: args.signals.at(block * SIGNALS_OF_BLOCK),
    };
    // In operations without sums, a block may start with copies within this PE. It waits for the other PEs only before
    // its first transfer to one of them.
    let mut late = args.operation <= ALL_GATHER;
    let mut steps = turn.steps();
    while steps != 0 {
        let step = steps.trailing_zeros();
        steps &= steps - 1;
        if let Some((signal, mine, count, base)) = turn.tells(step) {
            turn.tell(line, signal, mine, count, base)?;
        }
        let (signal, count) = turn.awaits(step);
        if count > 0 {
            turn.wait(line, state, signal, count)?;
        }
        turn.sums(line, state, step);
        // Each block starts at a different transfer, so that some blocks copy within this PE while others use the
        // network.
        let moves = turn.moves(step);
        for number in 0..moves {
            let number = (number + block) % moves;
            let one = if SEVERAL { turn.one_move_apart(step, number) } else { turn.one_move(step, number) };
            if let Some(one) = one {
                if late && one.pe != me {
                    late = false;
                    turn.wait(line, state, READY, (pes - 1) as u64)?;
                }
                turn.put(line, state, &one, step == SCATTER)?;
            }
        }
    }
    // A block without transfers to other PEs also waits, because the count of the next iteration starts here.
    if SEVERAL && late {
        turn.wait(line, state, READY, (pes - 1) as u64)?;
    }
    // Waits until the sources of puts over rails may be overwritten.
    if line.world().outlet_count == 0 { Ok(()) } else { line.quiet() }
}

impl<const SEVERAL: bool> Turn<'_, SEVERAL> {
    /// Raises a signal on each other PE of a group of `count` PEs starting at `base`, in which this PE has index
    /// `mine`. The first signal is a put with signal, which fences. Its fence also covers the other signals, because
    /// one thread raises all of them.
    #[inline(always)]
    fn tell<S: Scope>(&self, line: &mut Context<S>, signal: u32, mine: u32, count: u32, base: u32) -> CallResult {
        let signal = self.signals.at(signal);
        for step in 1..count {
            let pe = base + (mine + step) % count;
            if step == 1 {
                let nothing = self.args.to.slice(0, 0);
                line.put_signal_nbi(nothing, nothing, signal, 1, pe)?;
            } else {
                line.signal_op(signal, 1, pe)?;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn wait<S: Scope>(&self, line: &mut Context<S>, state: &mut BlockCounters, signal: u32, count: u64) -> CallResult {
        let counted = &mut state.counted[signal as usize];
        *counted += count;
        line.signal_wait_until(self.signals.at(signal), *counted)
    }

    /// Computes the sums of a step.
    #[inline(always)]
    fn sums<S: Scope>(&self, line: &mut Context<S>, state: &mut BlockCounters, step: u32) {
        let jobs = if step == REDUCE { self.nodes() } else { (step == FINISH) as u32 };
        if jobs == 0 {
            return;
        }
        let args = self.args;
        let chunk = args.chunk;
        let world = *line.world();
        let to = args.to.offset() + if args.operation == ALL_REDUCE { self.at(self.me) } else { self.begin };
        // Scratch memory contains this node's sums for the others, then every node's sums for this PE (`collected`).
        let collected = args.scratch.offset() + self.nodes() as u64 * chunk + self.begin;
        for job in 0..jobs {
            let owner = job * self.local + self.place;
            let mine = Spread::own(&world, to, 0, 1);
            let (sources, targets, bytes) = if step == FINISH {
                (Spread::own(&world, collected, chunk, self.nodes()), mine, self.length(self.me))
            } else {
                let first = self.node * self.local;
                let offset = args.from.offset() + self.at(owner);
                let sources = Spread { first, step: 1, offset, stride: 0, count: self.local, apart: NONE_APART };
                let targets = match (self.nodes(), args.operation) {
                    (1, ALL_REDUCE) => {
                        Spread { first, step: 1, offset: to, stride: 0, count: self.local, apart: NONE_APART }
                    }
                    (1, _) => mine,
                    _ if job == self.node => Spread::own(&world, collected + job as u64 * chunk, 0, 1),
                    _ => Spread::own(&world, args.scratch.offset() + job as u64 * chunk + self.begin, 0, 1),
                };
                (sources, targets, self.length(owner))
            };
            let beyond = |spread: &Spread| spread.step as u64 * (spread.count - 1) as u64;
            state.mapped_bytes += bytes * (beyond(&sources) + beyond(&targets));
            let threads = (line.scope().rank(), line.scope().size());
            // SAFETY: all sources and targets are in mapped heaps of this node (`local`), inside objects that the host
            // allocated. The waits for READY and PARTS ensure that the sources have arrived and the targets are free.
            unsafe { sum(&world, args.element, &sources, &targets, bytes, threads) };
        }
    }

    /// Issues the puts of a transfer. Puts within this node are stores, which LOCAL signals at the end of the
    /// iteration. Each put to another node raises its own signal.
    #[inline(always)]
    fn put<S: Scope>(&self, line: &mut Context<S>, state: &mut BlockCounters, one: &Move, always: bool) -> CallResult {
        let args = self.args;
        let own = one.pe == self.me;
        if own && one.to.offset() == one.from.offset() {
            return Ok(());
        }
        let near = !SEVERAL || one.pe / self.local == self.node;
        let mute = args.flags & MUTE != 0 && !own;
        let mut at = 0;
        while at < one.from.len() {
            let bytes = args.packet.min(one.from.len() - at);
            let sent = if mute { 0 } else { bytes };
            let (to, from) = (one.to.slice(at, sent), one.from.slice(at, sent));
            if near && (own || !always) {
                line.put_nbi(to, from, one.pe)?;
            } else {
                line.put_signal_nbi(to, from, self.signals.at(one.signal), 1, one.pe)?;
            }
            if !own {
                state.puts += 1;
                state.mapped_bytes += if near { sent } else { 0 };
            }
            if args.flags & BLOCKING != 0 {
                line.quiet()?;
            }
            at += bytes;
        }
        Ok(())
    }
}

/// Runs a collective by puts of one thread per block. All heaps must be mapped.
///
/// # Safety
/// The arguments must be objects of the world's heap and, except for addresses and flags, the same on all PEs. `state`
/// and `times` must have space for every block.
#[kernel(resident)]
pub unsafe fn collective_puts_thread(program: Program<CollectiveKernelArgs>) {
    turns::<Thread>(&program, turn::<_, false>);
}

/// Runs a collective by puts of one warp per block. All heaps must be mapped.
///
/// # Safety
/// The requirements of [`collective_puts_thread`] apply.
#[kernel(resident)]
pub unsafe fn collective_puts_warp(program: Program<CollectiveKernelArgs>) {
    turns::<Warp>(&program, turn::<_, false>);
}

/// Runs a collective by puts of whole blocks. All heaps must be mapped.
///
/// # Safety
/// The requirements of [`collective_puts_thread`] apply.
#[kernel(resident)]
pub unsafe fn collective_puts_block(program: Program<CollectiveKernelArgs>) {
    turns::<Block>(&program, turn::<_, false>);
}

/// Runs a collective by puts of one thread per block, among several nodes.
///
/// # Safety
/// The requirements of [`collective_puts_thread`] apply, except that only the heaps of a node must be mapped.
#[kernel(resident)]
pub unsafe fn collective_nodes_thread(program: Program<CollectiveKernelArgs>) {
    turns::<Thread>(&program, turn::<_, true>);
}

/// Runs a collective by puts of one warp per block, among several nodes.
///
/// # Safety
/// The requirements of [`collective_nodes_thread`] apply.
#[kernel(resident)]
pub unsafe fn collective_nodes_warp(program: Program<CollectiveKernelArgs>) {
    turns::<Warp>(&program, turn::<_, true>);
}

/// Runs a collective by puts of whole blocks, among several nodes.
///
/// # Safety
/// The requirements of [`collective_nodes_thread`] apply.
#[kernel(resident)]
pub unsafe fn collective_nodes_block(program: Program<CollectiveKernelArgs>) {
    turns::<Block>(&program, turn::<_, true>);
}
