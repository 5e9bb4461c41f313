//! Combine: what experts make of each token back to its PE, and the sums there.

use super::numbers::{packed, unpacked};
use super::{ANSWERED, Done, GATHERED, Lines, Turn, UNIT_EXPERT, UNIT_NODE};
use crate::gin::{Context, Scope, Sym, Thread};
use cuda_std::memory::store_relaxed_gpu_u64;
use cuda_std::thread;
use cuda_std::vector::{load_words, store_words};

impl Turn<'_> {
    /// What this PE's experts make of the messages, by unit `rank` and `node` already summed. No part of dispatch or combine.
    #[inline(always)]
    pub(super) fn make(&mut self) -> Done {
        let args = self.args;
        self.by_blocks(args.list, self.taken(self.world.pes), |number| {
            let only = (args.unit == UNIT_EXPERT).then_some(number % args.topk);
            self.message(args.slots, number).write_made(self, self.row_words(args.returned, number), only);
        });
        self.meet(Ok(()))?;
        // The counts of the round before, which nobody looks at any more, are the next one's.
        let mut number = thread::index();
        while number < self.world.pes + 2 {
            store_relaxed_gpu_u64(self.taken_word(self.round + 1, number), 0);
            number += self.threads();
        }
        Ok(())
    }

    /// Returns when the sums of this PE's tokens are made, and all that it has put is complete.
    #[inline(always)]
    pub(super) fn combine<S: Scope>(&mut self, lines: &mut Lines<S>) -> Done {
        let args = self.args;
        let mut done = self.answer_who_sent_nothing(&mut lines.alone);
        if args.unit == UNIT_NODE {
            self.gather(lines, done)?;
            self.by_blocks(args.relayed, self.taken(self.world.pes + 1), |number| self.fold(number));
            self.meet(Ok(()))?;
            done = self.by_workers(args.relayed, self.taken(self.world.pes + 1), |number| {
                self.answer(&mut lines.line, number)
            });
        } else {
            done = done.and(
                self.by_workers(args.list, self.taken(self.world.pes), |number| self.answer(&mut lines.line, number)),
            );
        }
        lines.line.flush();
        self.all(done, self.senders(), |turn, number| {
            let pe = turn.sender(number);
            turn.wait(&mut lines.line, ANSWERED, pe, turn.planned(pe).count.max(1) as u64)
        })?;
        let mut token = thread::block_idx_x();
        while token < args.tokens {
            self.sum(token);
            token += thread::grid_dim_x();
        }
        // What was put may be written again, here and there.
        let done = lines.line.quiet().and(lines.alone.quiet());
        self.meet(done)
    }

    /// Who is not a round ahead needs an answer from each PE, whether it has sent something or not.
    #[inline(always)]
    fn answer_who_sent_nothing(&self, alone: &mut Context<Thread>) -> Done {
        let mut pe = thread::index();
        while pe < self.world.pes {
            if self.hears(pe) && self.taken(pe) == 0 {
                alone.signal_op(self.signal(ANSWERED, self.world.me), 1, pe)?;
            }
            pe += self.threads();
        }
        Ok(())
    }

    /// The items of a list, each by all threads of a block.
    #[inline(always)]
    fn by_blocks(&self, list: *const u32, count: u32, work: impl Fn(u32)) {
        let mut number = thread::block_idx_x();
        while number < count {
            // SAFETY: below `count`.
            work(unsafe { *list.add(number as usize) });
            number += thread::grid_dim_x();
        }
    }

    /// The same, each by a worker.
    #[inline(always)]
    fn by_workers(&self, list: *const u32, count: u32, mut work: impl FnMut(u32) -> Done) -> Done {
        let mut number = self.worker();
        while number < count {
            // SAFETY: below `count`.
            work(unsafe { *list.add(number as usize) })?;
            number += self.workers();
        }
        Ok(())
    }

    /// A token in bf16: the `number`-th of an object.
    #[inline(always)]
    fn row(&self, object: Sym<u8>, number: u32) -> Sym<u8> {
        let bytes = 2 * self.args.hidden as u64;
        object.slice(number as u64 * bytes, bytes)
    }

    #[inline(always)]
    fn row_words(&self, object: Sym<u8>, number: u32) -> *mut u32 {
        self.world.local(self.row(object, number)).cast()
    }

    #[inline(always)]
    fn answer_number(&self, token: u32, choice: u32) -> u32 {
        (self.round % 2 * self.args.tokens + token) * self.args.topk + choice
    }

    /// By node: parts of sums to the PE that has handed the message on; returns when those for this one are here.
    #[inline(always)]
    fn gather<S: Scope>(&mut self, lines: &mut Lines<S>, done: Done) -> Done {
        let args = self.args;
        let put = self.by_workers(args.list, self.taken(self.world.pes), |number| {
            let (from, token) = (number / args.tokens, number % args.tokens);
            let part = (self.node_of(from) * args.tokens + token) * args.local + self.place_of(self.world.me);
            let pe = self.node() + self.place_of(from);
            lines.near.put_nbi(self.row(args.gathered, part), self.row(args.returned, number), pe)
        });
        self.meet(done.and(put).and(lines.near.fence()))?;
        let mut done = Ok(());
        if self.worker() == 0 {
            let mut pes = self.node()..self.node() + args.local;
            done = pes.try_for_each(|pe| lines.near.signal_op(self.signal(GATHERED, self.world.me), 1, pe));
        }
        self.all(done, args.local, |turn, pe| turn.wait(&mut lines.line, GATHERED, turn.node() + pe, 1))
    }

    /// By node: the sum of this node's parts, in the order of its PEs.
    #[inline(always)]
    fn fold(&self, number: u32) {
        let (args, message) = (self.args, self.message(self.args.relay, number));
        let mut parts = 0u32;
        (0..args.local).filter(|part| self.is_for(&message, self.node() + part)).for_each(|part| parts |= 1 << part);
        let row = |part| self.row_words(args.gathered, number * args.local + part);
        self.add(self.row_words(args.folded, number), parts, |_| 1.0, row);
    }

    /// What was made of a message, back to its sender, to the place of its first choice that is for this PE or node.
    #[inline(always)]
    fn answer<S: Scope>(&self, line: &mut Context<S>, number: u32) -> Done {
        let (args, by_node) = (self.args, self.args.unit == UNIT_NODE);
        let (token, from) = (number / self.of_token() % args.tokens, number / self.of_token() / args.tokens);
        let (from, made) = if by_node { (self.sender(from), args.folded) } else { (from, args.returned) };
        let choice = if args.unit == UNIT_EXPERT {
            number % args.topk
        } else {
            let message = self.message(if by_node { args.relay } else { args.slots }, number);
            let to = self.target_from(from, self.world.me * args.experts);
            let is_here = |choice: &u32| self.target_from(from, message.choice(*choice).expert) == to;
            (0..args.topk).find(is_here).unwrap_or(0)
        };
        let to = self.row(args.answers, self.answer_number(token, choice));
        line.put_signal_nbi(to, self.row(made, number), self.signal(ANSWERED, self.world.me), 1, from)
    }

    /// The sum of a token's answers, in the order of its choices.
    #[inline(always)]
    fn sum(&self, token: u32) {
        let args = self.args;
        let row = (self.variant * args.tokens + token) as usize * (args.hidden / 2) as usize;
        // SAFETY: a row for each token and variant.
        let to = unsafe { args.output.add(row) };
        let mut answered = 0u32;
        (0..args.topk)
            .filter(|choice| self.message_to(token, *choice).is_some())
            .for_each(|choice| answered |= 1 << choice);
        let weight = |choice| if args.unit == UNIT_EXPERT { self.choice(token, choice).weight } else { 1.0 };
        self.add(to, answered, weight, |choice| self.row_words(args.answers, self.answer_number(token, choice)));
    }

    /// Adds rows of bf16, in the order of their bits, each times a weight, by all threads of the block.
    #[inline(always)]
    fn add(&self, to: *mut u32, rows: u32, weight: impl Fn(u32) -> f32, row: impl Fn(u32) -> *mut u32) {
        let mut eight = thread::thread_idx_x();
        while eight < self.args.hidden / 8 {
            let (mut sum, mut left) = ([0f32; 8], rows);
            while left != 0 {
                let number = left.trailing_zeros();
                left &= left - 1;
                // SAFETY: a row, which has arrived.
                let values = unpacked(unsafe { load_words(row(number).add(4 * eight as usize)) });
                let by = weight(number);
                sum = core::array::from_fn(|at| sum[at] + by * values[at]);
            }
            // SAFETY: a row.
            unsafe { store_words(to.add(4 * eight as usize), packed(sum)) };
            eight += thread::block_dim_x();
        }
    }
}
