//! Plan of an iteration for a block: the steps of each operation, the signals that they raise and await, and their
//! transfers.

use super::{CROSS, LOCAL, PARTS, READY, Turn};
use crate::collective::{ALL_GATHER, ALL_REDUCE, BROADCAST, GATHERED, REDUCE_SCATTER};
use crate::gin::Sym;
use cuda_std::thread;

/// The steps of an iteration, in order.
const ENTER: u32 = 0;
pub(super) const SCATTER: u32 = 1;
pub(super) const REDUCE: u32 = 2;
const PARTIAL: u32 = 3;
pub(super) const FINISH: u32 = 4;
const GATHER: u32 = 5;
const FORWARD: u32 = 6;
const COLLECT: u32 = 7;
const EXCHANGE: u32 = 8;
const LEAVE: u32 = 9;
const ARRIVE: u32 = 10;

/// Returns the bit set of `steps` and of the steps that every iteration contains.
const fn set_of(steps: &[u32]) -> u32 {
    let (mut set, mut at) = (1 << ENTER | 1 << LEAVE, 0);
    while at < steps.len() {
        set |= 1 << steps[at];
        at += 1;
    }
    set
}

/// A put of a slice, or of a part of an all-to-all.
pub(super) struct Move {
    pub(super) to: Sym<u8>,
    pub(super) from: Sym<u8>,
    pub(super) pe: u32,
    /// Signal raised with each of its puts, if the PE is in another node or the step requires it.
    pub(super) signal: u32,
}

/// A part of the data that an all-to-all sends to a PE of another node: that PE's chunk or, with [`GATHERED`], the
/// chunks of all PEs of this node for it.
struct Part {
    pe: u32,
    /// Offset in the data for that PE.
    begin: u64,
    length: u64,
}

impl<const SEVERAL: bool> Turn<'_, SEVERAL> {
    #[inline(always)]
    pub(super) fn nodes(&self) -> u32 {
        if SEVERAL { self.pes / self.local } else { 1 }
    }

    /// Returns the bytes of this block's slice of a PE's chunk.
    #[inline(always)]
    pub(super) fn length(&self, pe: u32) -> u64 {
        let chunk = self.args.bytes.saturating_sub(pe as u64 * self.args.chunk).min(self.args.chunk);
        chunk.saturating_sub(self.begin).min(self.step)
    }

    /// Returns the number of puts for this block's slice of a PE's chunk.
    #[inline(always)]
    fn packets(&self, pe: u32) -> u64 {
        self.length(pe).div_ceil(self.args.packet)
    }

    #[inline(always)]
    fn gathers(&self) -> bool {
        SEVERAL && self.args.flags & GATHERED != 0
    }

    /// Returns the number of parts that an all-to-all sends to other nodes, over all blocks.
    #[inline(always)]
    fn parts(&self) -> u32 {
        if !SEVERAL {
            return 0;
        }
        (if self.gathers() { self.nodes() - 1 } else { self.pes - self.local }) * self.args.parts
    }

    /// Returns part `number` if this block sends it, and `None` otherwise. Sender and receiver compute the same block
    /// from the sum of their indices.
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

    /// Returns the number of puts of an all-to-all that this block receives from other nodes. It equals the number of
    /// puts that this block sends to them.
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

    /// Returns the offset of this block's slice of a PE's chunk.
    #[inline(always)]
    pub(super) fn at(&self, pe: u32) -> u64 {
        pe as u64 * self.args.chunk + self.begin
    }

    /// Returns the steps of this operation as a bit set. Checking every possible step instead would take about 1 us.
    #[inline(always)]
    pub(super) fn steps(&self) -> u32 {
        match (self.args.operation, SEVERAL) {
            (BROADCAST, false) => const { set_of(&[SCATTER, GATHER]) },
            (REDUCE_SCATTER | ALL_REDUCE, false) => const { set_of(&[REDUCE]) },
            (ALL_GATHER, false) => const { set_of(&[GATHER]) },
            (_, false) => const { set_of(&[EXCHANGE]) },
            (BROADCAST, true) => const { set_of(&[SCATTER, GATHER, FORWARD]) },
            (REDUCE_SCATTER, true) => const { set_of(&[REDUCE, PARTIAL, FINISH]) },
            // With a single node, the sums are stored directly to every PE.
            (ALL_REDUCE, true) => const { set_of(&[REDUCE, PARTIAL, FINISH, GATHER, FORWARD]) },
            (ALL_GATHER, true) => const { set_of(&[GATHER, FORWARD]) },
            (_, true) if self.gathers() => const { set_of(&[COLLECT, EXCHANGE, ARRIVE]) },
            (_, true) => const { set_of(&[EXCHANGE, ARRIVE]) },
        }
    }

    /// Returns the signal raised at the start of a step: its number, this PE's index in the group of PEs that signal
    /// each other, the size of the group, and its first PE. A fence precedes the signal. A PE that observes the signal
    /// may forward what this PE has stored so far, or overwrite what this PE has read.
    #[inline(always)]
    pub(super) fn tells(&self, step: u32) -> Option<(u32, u32, u32, u32)> {
        let near = (self.place, self.local, self.node * self.local);
        let (signal, (mine, count, base)) = match step {
            ENTER => (READY, (self.me, self.pes, 0)),
            EXCHANGE if self.gathers() => (PARTS, near),
            LEAVE => (LOCAL, near),
            _ => return None,
        };
        Some((signal, mine, count, base))
    }

    /// Returns the signal that a step waits for, and the number of times it is raised until then.
    #[inline(always)]
    pub(super) fn awaits(&self, step: u32) -> (u32, u64) {
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

    /// Returns the number of transfers of a step.
    #[inline(always)]
    pub(super) fn moves(&self, step: u32) -> u32 {
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

    /// Like [`Self::one_move`], but not inlined, so that it has its own registers. Inlined into a kernel with 128
    /// registers, it doubles the spills.
    #[inline(never)]
    pub(super) fn one_move_apart(&self, step: u32, number: u32) -> Option<Move> {
        self.one_move(step, number)
    }

    /// Returns transfer `number` of a step, counted from this PE, or `None` if the transfer has no bytes.
    #[inline(always)]
    pub(super) fn one_move(&self, step: u32, number: u32) -> Option<Move> {
        let args = self.args;
        let (local, nodes, me) = (self.local, self.nodes(), self.me);
        let root = if args.operation == BROADCAST { args.root } else { u32::MAX };
        // A chunk may end before this block's slice starts.
        let slice = |object: Sym<u8>, at: u64, length: u64| object.slice(at.min(object.len()), length);
        let cross = |number: u32| (self.node + number) % nodes;
        match step {
            SCATTER => {
                // Sends each chunk to its PE, or all chunks to this PE.
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
                // Other nodes precede this one. Number 0 of the nodes is this PE itself.
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
                // This PE's share of each part: its own chunk for each PE of that node.
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
                // Transfers to other nodes precede those within this node.
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
}
