//! Dispatch: every token to the PEs of its experts.

use super::numbers::{Message, message_bytes};
use super::{ARRIVED, COUNT_IMMEDIATE, COUNT_SIGNAL, COUNT_WORD, COUNTED, Done, FORWARDED, Lines, Turn, UNIT_NODE};
use crate::gin::{Context, Patience, Scope, Sym, Thread};
use crate::ring::Status;
use cuda_std::memory::load_relaxed_sys_u64;
use cuda_std::thread;

/// A count as a word, in each byte of which its round stands: a network may bring the bytes of a word in any order.
pub const fn counted_word(round: u32, count: u32) -> u64 {
    let (mut word, mut at) = (0, 0);
    while at < 8 {
        // 1 to 8, which neither zeros nor what tests leave in memory have.
        word |= ((1 + round % 8) << 4 | count >> (4 * at) & 15) as u64 * (1 << (8 * at));
        at += 1;
    }
    word
}

/// The count of a word whose bytes are all of this round.
pub fn count_of(word: u64, round: u32) -> Option<u32> {
    let none = counted_word(round, 0);
    let nibble = |at: u32| (word >> (8 * at) & 15) as u32 * (1 << (4 * at));
    if word & 0xf0f0_f0f0_f0f0_f0f0 != none { None } else { Some((0..8).map(nibble).sum()) }
}

impl Turn<'_> {
    /// Returns when all messages for this PE's experts are here, and are in its list.
    #[inline(always)]
    pub(super) fn dispatch<S: Scope>(&mut self, lines: &mut Lines<S>) -> Done {
        let args = self.args;
        let mut done = self.announce(&mut lines.alone);
        let mut token = thread::block_idx_x();
        while token < args.tokens {
            self.message(args.staged, token).write(self, token);
            thread::sync_threads();
            let mut choice = self.of_block;
            while choice < args.topk {
                done = done.and(self.send(&mut lines.line, token, choice));
                choice += self.per_block;
            }
            token += thread::grid_dim_x();
        }
        lines.line.flush();
        let Lines { line, alone, .. } = lines;
        self.all(done, self.senders(), |turn, number| turn.messages(line, alone, turn.sender(number)))?;
        if args.unit == UNIT_NODE {
            let done = self.hand_on(lines);
            self.meet(done)?;
            let mut done = Ok(());
            if self.worker() == 0 {
                let mut pes = self.node()..self.node() + args.local;
                done = pes.try_for_each(|pe| lines.near.signal_op(self.signal(FORWARDED, self.world.me), 1, pe));
            }
            self.all(done, args.local, |turn, pe| turn.wait(&mut lines.line, FORWARDED, turn.node() + pe, 1))?;
        }
        self.collect();
        self.meet(Ok(()))
    }

    /// The place of the `number`-th message of an object.
    #[inline(always)]
    pub(super) fn slot(&self, object: Sym<u8>, number: u32) -> Sym<u8> {
        let bytes = message_bytes(self.args.hidden, self.args.topk, self.args.fp8 != 0);
        object.slice(number as u64 * self.args.stride, bytes as u64)
    }

    /// It, on this PE.
    #[inline(always)]
    pub(super) fn message(&self, object: Sym<u8>, number: u32) -> Message {
        // SAFETY: a place for a message.
        unsafe { Message::at(self, self.world.local(self.slot(object, number))) }
    }

    /// Messages from one PE at most; with counts in immediates what its signal adds in a round.
    #[inline(always)]
    fn capacity(&self) -> u32 {
        self.args.tokens * self.of_token()
    }

    /// How many messages each PE will get: of one thread for each.
    #[inline(always)]
    fn announce(&self, alone: &mut Context<Thread>) -> Done {
        let (me, mut pe) = (self.world.me, thread::index());
        while pe < self.world.pes {
            let count = self.planned(pe).count;
            if !self.hears(pe) {
                // It hears from the PE of its node that has this one's place.
            } else if self.args.count == COUNT_SIGNAL {
                alone.signal_op(self.signal(COUNTED, me), count as u64 + 1, pe)?;
            } else if self.args.count == COUNT_WORD {
                alone.p(self.args.words.at(me as u64), counted_word(self.round, count), pe)?;
            } else if count == 0 {
                alone.signal_op(self.signal(ARRIVED, me), self.capacity() as u64, pe)?;
            }
            pe += self.threads();
        }
        Ok(())
    }

    #[inline(always)]
    fn send<S: Scope>(&self, line: &mut Context<S>, token: u32, choice: u32) -> Done {
        let (args, me) = (self.args, self.world.me);
        let Some(pe) = self.message_to(token, choice) else { return Ok(()) };
        let to = if args.unit == UNIT_NODE {
            self.slot(args.relay, self.node_of(me) * args.tokens + token)
        } else {
            self.slot(args.slots, (me * args.tokens + token) * self.of_token() + choice % self.of_token())
        };
        let planned = self.planned(pe);
        let first = args.count == COUNT_IMMEDIATE && planned.first == token * args.topk + choice;
        let add = if first { 1 + self.capacity() - planned.count } else { 1 };
        line.put_signal_nbi(to, self.slot(args.staged, token), self.signal(ARRIVED, me), add as u64, pe)
    }

    /// Waits for all messages of PE `from`.
    #[inline(always)]
    fn messages<S: Scope>(&self, line: &mut Context<S>, alone: &Context<Thread>, from: u32) -> Done {
        let count = match self.args.count {
            COUNT_SIGNAL => {
                // One addition: whatever has been added is the count and one.
                let before = self.seen(COUNTED, from);
                line.signal_wait_until(self.signal(COUNTED, from), before + 1)?;
                let count = alone.signal_fetch(self.signal(COUNTED, from)) - before;
                self.wait(line, COUNTED, from, count)?;
                count - 1
            }
            COUNT_WORD => self.word(line, from)? as u64,
            _ => self.capacity() as u64,
        };
        self.wait(line, ARRIVED, from, count)
    }

    /// The count that PE `from` has written here for this round.
    #[inline(always)]
    fn word<S: Scope>(&self, line: &Context<S>, from: u32) -> Result<u32, Status> {
        // SAFETY: a word for each PE.
        let word = unsafe { &*self.world.local(self.args.words.at(from as u64)).cast() };
        let (mut count, mut stop, mut patience) = (None, 0, Patience::default());
        while count.is_none() && stop == 0 {
            count = count_of(load_relaxed_sys_u64(word), self.round);
            if count.is_none() {
                stop = patience.look(self.world).err().map_or(0, |stop| stop.0);
                thread::relax();
            }
        }
        let stop = Status(line.scope().agree(stop));
        if stop.0 != 0 {
            self.world.gave_up(stop, self.round as u64);
            return Err(stop);
        }
        Ok(count.unwrap_or(0))
    }

    /// By node: what came from other nodes, by mapped memory to the PEs of this one that have an expert of the token.
    #[inline(always)]
    fn hand_on<S: Scope>(&self, lines: &mut Lines<S>) -> Done {
        let (args, near) = (self.args, &mut lines.near);
        let mut number = self.worker();
        while number < self.senders() * args.tokens {
            let (from, token) = (self.sender(number / args.tokens), number % args.tokens);
            let message = self.message(args.relay, number);
            if message.round() == self.round {
                for pe in (self.node()..self.node() + args.local).filter(|pe| self.is_for(&message, *pe)) {
                    near.put_nbi(self.slot(args.slots, from * args.tokens + token), self.slot(args.relay, number), pe)?;
                }
                if near.scope().leads() {
                    self.take(from);
                    // SAFETY: as many places as `relay` has.
                    unsafe { *args.relayed.add(self.take(self.world.pes + 1)) = number };
                }
            }
            number += self.workers();
        }
        near.fence()
    }

    /// Whether PE `pe` has an expert of a message's token.
    #[inline(always)]
    pub(super) fn is_for(&self, message: &Message, pe: u32) -> bool {
        (0..self.args.topk).any(|choice| message.choice(choice).expert / self.args.experts == pe)
    }

    /// Finds the messages that are here by their round.
    #[inline(always)]
    fn collect(&self) {
        let (args, pes) = (self.args, self.world.pes);
        let mut number = thread::index();
        while number < pes * self.capacity() {
            if self.message(args.slots, number).round() == self.round {
                if args.unit != UNIT_NODE {
                    self.take(number / self.capacity());
                }
                // SAFETY: as many places as `slots` has.
                unsafe { *args.list.add(self.take(pes)) = number };
            }
            number += self.threads();
        }
    }
}
