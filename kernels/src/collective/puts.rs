//! Many bytes: by puts, and sums by loads. A block of a PE waits for blocks of its own number on the others, never for its neighbours.

use super::sum::{Spread, sum};
use super::{ALL_GATHER, ALL_REDUCE, BLOCKING, BROADCAST, CollectiveArgs, Done, GATHERED, MUTE, REDUCE_SCATTER, State};
use super::{SIGNALS_OF_BLOCK, turns};
use crate::gin::{Block, Context, Program, Scope, Signal, Sym, Thread, Warp};
use cuda_std::{kernel, thread};

/// Signals of a block: every PE has entered the turn: its bytes may be read, and where they go may be written.
const READY: u32 = 0;
/// A chunk of a broadcast, sums of another node, or what a PE of this node gathers here have come.
const PARTS: u32 = 1;
/// Other nodes' chunks have come.
const CROSS: u32 = 2;
/// A PE of this node has written, and read, all that it will in this turn.
const LOCAL: u32 = 3;

/// The steps of a turn, in their order.
const ENTER: u32 = 0;
const SCATTER: u32 = 1;
const REDUCE: u32 = 2;
const PARTIAL: u32 = 3;
const FINISH: u32 = 4;
const GATHER: u32 = 5;
const FORWARD: u32 = 6;
const COLLECT: u32 = 7;
const EXCHANGE: u32 = 8;
const LEAVE: u32 = 9;
const ARRIVE: u32 = 10;

/// A bit for each of these steps, and for those that every turn has.
const fn set_of(steps: &[u32]) -> u32 {
    let (mut set, mut at) = (1 << ENTER | 1 << LEAVE, 0);
    while at < steps.len() {
        set |= 1 << steps[at];
        at += 1;
    }
    set
}

/// A put of a slice.
struct Move {
    to: Sym<u8>,
    from: Sym<u8>,
    pe: u32,
    /// Raised with each of its puts, where the PE is of another node, or the step says so.
    signal: u32,
}

/// A part of what an all-to-all sends to a PE of another node: that PE's chunk, or, gathered, the chunks of all PEs of this node for it.
struct Part {
    pe: u32,
    /// Of all that goes there.
    begin: u64,
    length: u64,
}

/// One turn of one block. Where there is one node alone (`SEVERAL` is false) a kernel has nothing of what goes between nodes: it would take
/// registers and stack from the copies (8 MiB took 10 us longer on two H200 when a launch needed more than 1024 bytes of stack).
struct Turn<'a, const SEVERAL: bool> {
    args: &'a CollectiveArgs,
    me: u32,
    pes: u32,
    /// PEs of a node.
    local: u32,
    /// This PE's place and node.
    place: u32,
    node: u32,
    block: u32,
    /// This block's slice of a chunk: its first byte, and its length at most.
    begin: u64,
    step: u64,
    signals: Signal,
}

#[inline(always)]
fn turn<S: Scope, const SEVERAL: bool>(args: &CollectiveArgs, line: &mut Context<S>, state: &mut State) -> Done {
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
    // Where everything is put, a block that begins within this PE need not wait for the others before that.
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
        // By its number a block begins at another move: some copy inside this PE while others write to the wire.
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
    // A block that had nothing for anybody else: the next turn counts from here.
    if SEVERAL && late {
        turn.wait(line, state, READY, (pes - 1) as u64)?;
    }
    // What went over rails may be written again.
    if line.world().ring_count == 0 { Ok(()) } else { line.quiet() }
}

impl<const SEVERAL: bool> Turn<'_, SEVERAL> {
    #[inline(always)]
    fn nodes(&self) -> u32 {
        if SEVERAL { self.pes / self.local } else { 1 }
    }

    /// Bytes of this block's slice of a PE's chunk.
    #[inline(always)]
    fn length(&self, pe: u32) -> u64 {
        let chunk = self.args.bytes.saturating_sub(pe as u64 * self.args.chunk).min(self.args.chunk);
        chunk.saturating_sub(self.begin).min(self.step)
    }

    /// Puts of this block's slice of a PE's chunk.
    #[inline(always)]
    fn packets(&self, pe: u32) -> u64 {
        self.length(pe).div_ceil(self.args.packet)
    }

    #[inline(always)]
    fn gathers(&self) -> bool {
        SEVERAL && self.args.flags & GATHERED != 0
    }

    /// Parts that an all-to-all sends to other nodes, those of other blocks included.
    #[inline(always)]
    fn parts(&self) -> u32 {
        if !SEVERAL {
            return 0;
        }
        (if self.gathers() { self.nodes() - 1 } else { self.pes - self.local }) * self.args.parts
    }

    /// The `number`-th of these, where it is this block's. Sender and receiver agree on whose it is: the sum of their numbers says it.
    #[inline(always)]
    fn part(&self, number: u32) -> Option<Part> {
        let args = self.args;
        let (peer, part) = (number / args.parts, number % args.parts);
        let (pe, sum, whole) = if self.gathers() {
            let node = (self.node + 1 + peer) % self.nodes();
            (node * self.local + self.place, self.node + node, self.local as u64 * args.chunk)
        } else {
            let pe = ((self.node + 1) * self.local + peer) % self.pes;
            (pe, self.me + pe, args.chunk)
        };
        let begin = part as u64 * args.part;
        let length = whole.saturating_sub(begin).min(args.part);
        ((sum * args.parts + part) % thread::grid_dim_x() == self.block).then_some(Part { pe, begin, length })
    }

    /// Puts of an all-to-all that come to this block from other nodes: as many as it sends there.
    #[inline(always)]
    fn crossing(&self) -> u64 {
        let mut count = 0;
        for number in 0..self.parts() {
            if let Some(part) = self.part(number) {
                count += part.length.div_ceil(self.args.packet);
            }
        }
        count
    }

    /// Where the slice of a PE's chunk begins.
    #[inline(always)]
    fn at(&self, pe: u32) -> u64 {
        pe as u64 * self.args.chunk + self.begin
    }

    /// Raises a signal of each of `count` PEs from `base` on, of which this is number `mine`. The first time behind a fence, which holds
    /// for the others too: one thread raises all.
    #[inline(always)]
    fn tell<S: Scope>(&self, line: &mut Context<S>, signal: u32, mine: u32, count: u32, base: u32) -> Done {
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
    fn wait<S: Scope>(&self, line: &mut Context<S>, state: &mut State, signal: u32, count: u64) -> Done {
        let counted = &mut state.counted[signal as usize];
        *counted += count;
        line.signal_wait_until(self.signals.at(signal), *counted)
    }

    /// The steps of this operation, a bit each: to walk past the others takes a microsecond.
    #[inline(always)]
    fn steps(&self) -> u32 {
        match (self.args.operation, SEVERAL) {
            (BROADCAST, false) => const { set_of(&[SCATTER, GATHER]) },
            (REDUCE_SCATTER | ALL_REDUCE, false) => const { set_of(&[REDUCE]) },
            (ALL_GATHER, false) => const { set_of(&[GATHER]) },
            (_, false) => const { set_of(&[EXCHANGE]) },
            (BROADCAST, true) => const { set_of(&[SCATTER, GATHER, FORWARD]) },
            (REDUCE_SCATTER, true) => const { set_of(&[REDUCE, PARTIAL, FINISH]) },
            // In one node the sums are stored to everyone where they are made.
            (ALL_REDUCE, true) => const { set_of(&[REDUCE, PARTIAL, FINISH, GATHER, FORWARD]) },
            (ALL_GATHER, true) => const { set_of(&[GATHER, FORWARD]) },
            (_, true) if self.gathers() => const { set_of(&[COLLECT, EXCHANGE, ARRIVE]) },
            (_, true) => const { set_of(&[EXCHANGE, ARRIVE]) },
        }
    }

    /// The signal that a step begins with: which, this PE's number among those that raise it at one another, how many they are, and the
    /// first of them. Behind a fence: who counts it sees what this PE has stored so far, and may send it on, or write what it has read.
    #[inline(always)]
    fn tells(&self, step: u32) -> Option<(u32, u32, u32, u32)> {
        let near = (self.place, self.local, self.node * self.local);
        let (signal, (mine, count, base)) = match step {
            ENTER => (READY, (self.me, self.pes, 0)),
            EXCHANGE if self.gathers() => (PARTS, near),
            LEAVE => (LOCAL, near),
            _ => return None,
        };
        Some((signal, mine, count, base))
    }

    /// The signal that a step waits for, and how often it is raised until then.
    #[inline(always)]
    fn awaits(&self, step: u32) -> (u32, u64) {
        let (operation, root) = (self.args.operation, self.args.root);
        let others = (self.local - 1) as u64;
        match step {
            ENTER if operation > ALL_GATHER => (READY, (self.pes - 1) as u64),
            GATHER if operation == BROADCAST && self.me != root => (PARTS, self.packets(self.me)),
            FINISH => (PARTS, (self.nodes() - 1) as u64 * self.packets(self.me)),
            FORWARD if operation == BROADCAST && self.me == root => (CROSS, 0),
            FORWARD => {
                let mut count = 0;
                for step in 1..self.nodes() {
                    count += self.packets((self.node + step) % self.nodes() * self.local + self.place);
                }
                (CROSS, count)
            }
            EXCHANGE if self.gathers() => (PARTS, others),
            LEAVE => (LOCAL, others),
            ARRIVE if SEVERAL => (CROSS, self.crossing()),
            _ => (READY, 0),
        }
    }

    /// The sums of a step.
    #[inline(always)]
    fn sums<S: Scope>(&self, line: &mut Context<S>, state: &mut State, step: u32) {
        let jobs = if step == REDUCE { self.nodes() } else { (step == FINISH) as u32 };
        if jobs == 0 {
            return;
        }
        let args = self.args;
        let chunk = args.chunk;
        let world = *line.world();
        let to = args.to.offset() + if args.operation == ALL_REDUCE { self.at(self.me) } else { self.begin };
        // Sums of this node for the others, then those of every node for this PE.
        let collected = args.scratch.offset() + self.nodes() as u64 * chunk + self.begin;
        for job in 0..jobs {
            let owner = job * self.local + self.place;
            let mine = Spread::own(&world, to, 0, 1);
            let (sources, targets, bytes) = if step == FINISH {
                (Spread::own(&world, collected, chunk, self.nodes()), mine, self.length(self.me))
            } else {
                let first = self.node * self.local;
                let offset = args.from.offset() + self.at(owner);
                let sources = Spread { first, step: 1, offset, stride: 0, count: self.local };
                let targets = match (self.nodes(), args.operation) {
                    (1, ALL_REDUCE) => Spread { first, step: 1, offset: to, stride: 0, count: self.local },
                    (1, _) => mine,
                    _ if job == self.node => Spread::own(&world, collected + job as u64 * chunk, 0, 1),
                    _ => Spread::own(&world, args.scratch.offset() + job as u64 * chunk + self.begin, 0, 1),
                };
                (sources, targets, self.length(owner))
            };
            let beyond = |spread: &Spread| spread.step as u64 * (spread.count - 1) as u64;
            state.mapped_bytes += bytes * (beyond(&sources) + beyond(&targets));
            let threads = (line.scope().rank(), line.scope().size());
            // SAFETY: what is summed and where it goes are of heaps that are mapped (`local`), inside objects that the host made; READY
            // and PARTS say that their bytes are there and their places free.
            unsafe { sum(&world, args.element, &sources, &targets, bytes, threads) };
        }
    }

    /// Moves of a step.
    #[inline(always)]
    fn moves(&self, step: u32) -> u32 {
        let (local, nodes) = (self.local, self.nodes());
        match step {
            SCATTER if self.me == self.args.root => 2 * self.pes,
            PARTIAL => nodes,
            GATHER => nodes + local,
            FORWARD => nodes * local,
            COLLECT => self.parts() * local,
            EXCHANGE => self.parts() + local,
            _ => 0,
        }
    }

    /// As [`Self::one_move`], in registers of its own (inline 868 bytes are spilled of 128 registers, so 404).
    #[inline(never)]
    fn one_move_apart(&self, step: u32, number: u32) -> Option<Move> {
        self.one_move(step, number)
    }

    /// The `number`-th move of a step, beginning behind this PE; none where nothing goes there.
    #[inline(always)]
    fn one_move(&self, step: u32, number: u32) -> Option<Move> {
        let args = self.args;
        let (local, nodes, me) = (self.local, self.nodes(), self.me);
        let root = if args.operation == BROADCAST { args.root } else { u32::MAX };
        // A chunk may end before this block's slice begins.
        let slice = |object: Sym<u8>, at: u64, length: u64| object.slice(at.min(object.len()), length);
        let cross = |number: u32| (self.node + number) % nodes;
        match step {
            SCATTER => {
                // Each chunk to its PE, and all of them to oneself.
                let pe = (me + number) % self.pes;
                let own = number >= self.pes;
                if !own && pe == me {
                    return None;
                }
                let (at, length) = (self.at(pe), self.length(pe));
                let target = if own { me } else { pe };
                Some(Move {
                    to: slice(args.to, at, length),
                    from: slice(args.from, at, length),
                    pe: target,
                    signal: PARTS,
                })
            }
            PARTIAL => {
                let node = cross(number);
                let pe = node * local + self.place;
                let length = self.length(pe);
                let theirs = (nodes + self.node) as u64 * args.chunk + self.begin;
                let ours = node as u64 * args.chunk + self.begin;
                let (to, from) = (slice(args.scratch, theirs, length), slice(args.scratch, ours, length));
                (node != self.node).then_some(Move { to, from, pe, signal: PARTS })
            }
            GATHER => {
                let length = self.length(me);
                let to = slice(args.to, self.at(me), length);
                let from = if args.operation == ALL_GATHER { slice(args.from, self.begin, length) } else { to };
                // The other nodes first, then this one; number 0 of the nodes is this PE itself.
                let pe = if number < nodes {
                    cross(number) * local + self.place
                } else {
                    self.node * local + (self.place + number - nodes) % local
                };
                let again = number == nodes;
                (pe != root && !again).then_some(Move { to, from, pe, signal: CROSS })
            }
            FORWARD => {
                let (node, place) = (cross(number / local), (self.place + number % local) % local);
                let owner = node * local + self.place;
                let pe = self.node * local + place;
                let to = slice(args.to, self.at(owner), self.length(owner));
                let goes = node != self.node && pe != me && pe != root;
                goes.then_some(Move { to, from: to, pe, signal: LOCAL })
            }
            COLLECT => {
                // Of each part what this PE has: its own chunk for that node's PE of each place.
                let part = self.part(number / local)?;
                let (place, chunk) = (number % local, args.chunk);
                let mine = self.place as u64 * chunk;
                let (begin, end) = (part.begin.max(mine), (part.begin + part.length).min(mine + chunk));
                let first = (part.pe - self.place) as u64;
                let to = slice(args.scratch, first * chunk + begin, end.saturating_sub(begin));
                let from = slice(
                    args.from,
                    (first + place as u64) * chunk + begin.saturating_sub(mine),
                    end.saturating_sub(begin),
                );
                (begin < end).then_some(Move { to, from, pe: self.node * local + place, signal: PARTS })
            }
            _ => {
                // The wire first, then this node.
                let far = self.parts();
                if number < far {
                    let Part { pe, begin, length } = self.part(number)?;
                    let (object, theirs, ours) = if self.gathers() {
                        (args.scratch, pe - self.place, me - self.place)
                    } else {
                        (args.from, pe, me)
                    };
                    let to = slice(args.to, ours as u64 * args.chunk + begin, length);
                    let from = slice(object, theirs as u64 * args.chunk + begin, length);
                    return (length > 0).then_some(Move { to, from, pe, signal: CROSS });
                }
                let pe = self.node * local + (self.place + number - far) % local;
                let length = self.length(me);
                let (to, from) = (slice(args.to, self.at(me), length), slice(args.from, self.at(pe), length));
                Some(Move { to, from, pe, signal: CROSS })
            }
        }
    }

    /// The puts of a move: to this node as stores, which the LOCAL at the turn's end tells of, elsewhere each with its signal.
    #[inline(always)]
    fn put<S: Scope>(&self, line: &mut Context<S>, state: &mut State, one: &Move, always: bool) -> Done {
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

/// By puts of one thread of each block; all heaps are mapped.
///
/// # Safety
/// The arguments are of the world's heap, the same on all PEs but for addresses and flags; `state` and `times` have room for every block.
#[kernel(resident)]
pub unsafe fn collective_puts_thread(program: Program<CollectiveArgs>) {
    turns::<Thread>(&program, turn::<_, false>);
}

/// By puts of one warp of each block; all heaps are mapped.
///
/// # Safety
/// As [`collective_puts_thread`].
#[kernel(resident)]
pub unsafe fn collective_puts_warp(program: Program<CollectiveArgs>) {
    turns::<Warp>(&program, turn::<_, false>);
}

/// By puts of each block; all heaps are mapped.
///
/// # Safety
/// As [`collective_puts_thread`].
#[kernel(resident)]
pub unsafe fn collective_puts_block(program: Program<CollectiveArgs>) {
    turns::<Block>(&program, turn::<_, false>);
}

/// By puts of one thread of each block.
///
/// # Safety
/// As [`collective_puts_thread`].
#[kernel(resident)]
pub unsafe fn collective_nodes_thread(program: Program<CollectiveArgs>) {
    turns::<Thread>(&program, turn::<_, true>);
}

/// By puts of one warp of each block.
///
/// # Safety
/// As [`collective_puts_thread`].
#[kernel(resident)]
pub unsafe fn collective_nodes_warp(program: Program<CollectiveArgs>) {
    turns::<Warp>(&program, turn::<_, true>);
}

/// By puts of each block.
///
/// # Safety
/// As [`collective_puts_thread`].
#[kernel(resident)]
pub unsafe fn collective_nodes_block(program: Program<CollectiveArgs>) {
    turns::<Block>(&program, turn::<_, true>);
}
