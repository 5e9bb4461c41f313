//! Combine: what experts make of each token back to its PE, and the sums there.

use super::numbers::{Message, packed, unpacked};
use super::{ANSWERED, Done, GATHERED, Turn, UNIT_EXPERT, UNIT_NODE};
use crate::gin::{Context, Scope, Sym, Thread};
use cuda_std::thread;
use cuda_std::vector::{load_words, store_words};

impl Turn<'_> {
    /// Returns when the sums of this PE's tokens are made.
    #[inline(always)]
    pub(super) fn combine<S: Scope>(&self, line: &mut Context<S>, alone: &mut Context<Thread>) -> Done {
        let (args, pes) = (self.args, self.world.pes);
        let mut done = self.answer_who_sent_nothing(alone).and(self.make(line));
        if args.unit == UNIT_NODE {
            done = done.and(self.fold(line));
        }
        for pe in (0..pes).filter(|pe| args.unit != UNIT_NODE || self.place_of(*pe) == self.place_of(self.world.me)) {
            let count = self.planned(pe).count.max(1);
            done = done.and(self.wait(line, self.worker(), ANSWERED, pe, count as u64));
        }
        // All workers of the block have waited.
        thread::sync_threads();
        let mut token = thread::block_idx_x();
        while done.is_ok() && token < args.tokens {
            self.sum(token);
            token += thread::grid_dim_x();
        }
        done
    }

    /// Who is not a round ahead needs an answer from each PE, whether it has sent something or not.
    #[inline(always)]
    fn answer_who_sent_nothing(&self, alone: &mut Context<Thread>) -> Done {
        let mut pe = thread::index();
        while pe < self.world.pes {
            let hears = self.args.unit != UNIT_NODE || self.place_of(pe) == self.place_of(self.world.me);
            if hears && self.taken(pe) == 0 {
                alone.signal_op(self.signal(ANSWERED, self.world.me), 1, pe)?;
            }
            pe += thread::grid_dim_x() * thread::block_dim_x();
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

    /// The items of a list: blocks make as many at a time as they have workers, each of which then puts one.
    #[inline(always)]
    fn each(&self, list: *const u32, count: u32, make: impl Fn(u32), mut put: impl FnMut(u32) -> Done) -> Done {
        let (block, grid) = (thread::block_idx_x(), thread::grid_dim_x());
        let chunk = self.per_block.min(count.div_ceil(grid)).max(1);
        // SAFETY: below `count`.
        let item = |number: u32| unsafe { *list.add(number as usize) };
        let (mut base, mut done) = (block * chunk, Ok(()));
        while base < count {
            (base..(base + chunk).min(count)).for_each(|number| make(item(number)));
            thread::sync_threads();
            if self.of_block < chunk && base + self.of_block < count {
                done = done.and(put(item(base + self.of_block)));
            }
            base += grid * chunk;
        }
        done
    }

    /// The first choice of a message that is for this one's PE or node: by it the answer has its place.
    #[inline(always)]
    fn place_of_answer(&self, message: &Message, token: u32, is_here: impl Fn(u32) -> bool) -> u32 {
        let experts = self.args.experts;
        let first = (0..self.args.topk).find(|choice| is_here(message.choice(*choice).expert / experts)).unwrap_or(0);
        self.answer_number(token, first)
    }

    #[inline(always)]
    fn answer_number(&self, token: u32, choice: u32) -> u32 {
        (self.round % 2 * self.args.tokens + token) * self.args.topk + choice
    }

    /// What this PE's experts make of the messages, to where it came from: by node to the PE that has handed it on.
    #[inline(always)]
    fn make<S: Scope>(&self, line: &mut Context<S>) -> Done {
        let (args, me) = (self.args, self.world.me);
        let by_node = args.unit == UNIT_NODE;
        let mut near = self.world.context(line.scope());
        let message = |number| unsafe {
            // SAFETY: a message's place.
            Message::at(self, self.world.local(self.slot(args.slots, number)))
        };
        let make = |number: u32| {
            let only = (args.unit == UNIT_EXPERT).then_some(number % args.topk);
            message(number).write_made(self, self.row_words(args.returned, number), only);
        };
        let mut done = self.each(args.list, self.taken(self.world.pes), make, |number| {
            let (token, from) = (number / self.of_token() % args.tokens, number / self.of_token() / args.tokens);
            let made = self.row(args.returned, number);
            if by_node {
                let part = (self.node_of(from) * args.tokens + token) * args.local + self.place_of(me);
                let pe = self.node_of(me) * args.local + self.place_of(from);
                return near.put_nbi(self.row(args.gathered, part), made, pe);
            }
            let place = match args.unit {
                UNIT_EXPERT => self.answer_number(token, number % args.topk),
                _ => self.place_of_answer(&message(number), token, |pe| pe == me),
            };
            line.put_signal_nbi(self.row(args.answers, place), made, self.signal(ANSWERED, me), 1, from)
        });
        if by_node {
            done = done.and(near.fence());
            let node = self.node_of(me) * args.local;
            for pe in node..node + args.local {
                done = done.and(near.signal_op(self.signal(GATHERED, me), 1, pe));
            }
        }
        done
    }

    /// By node: the sums of this node's parts, in the order of its PEs, back over rails.
    #[inline(always)]
    fn fold<S: Scope>(&self, line: &mut Context<S>) -> Done {
        let (args, me) = (self.args, self.world.me);
        let node = self.node_of(me);
        let pes = node * args.local..(node + 1) * args.local;
        let mut done = Ok(());
        for pe in pes.clone() {
            done = done.and(self.wait(line, self.worker(), GATHERED, pe, self.workers() as u64));
        }
        // All workers of the block have waited.
        thread::sync_threads();
        let message = |number| unsafe {
            // SAFETY: a message's place.
            Message::at(self, self.world.local(self.slot(args.relay, number)))
        };
        let make = |number: u32| {
            let (message, to) = (message(number), self.row_words(args.folded, number));
            let parts = |part: u32| self.row_words(args.gathered, number * args.local + part);
            let is_for = |part: u32| self.is_for(&message, node * args.local + part);
            self.add(to, args.local, is_for, |_| 1.0, parts);
        };
        let put = |number: u32| {
            let (token, from) = (number % args.tokens, number / args.tokens * args.local + self.place_of(me));
            let place = self.place_of_answer(&message(number), token, |pe| pes.contains(&pe));
            let answered = self.signal(ANSWERED, me);
            line.put_signal_nbi(self.row(args.answers, place), self.row(args.folded, number), answered, 1, from)
        };
        done.and(self.each(args.relayed, self.taken(self.world.pes + 1), make, put))
    }

    /// The sum of a token's answers, in the order of its choices.
    #[inline(always)]
    fn sum(&self, token: u32) {
        let args = self.args;
        let row = (self.variant * args.tokens + token) as usize * (args.hidden / 2) as usize;
        // SAFETY: a row for each token and variant.
        let to = unsafe { args.output.add(row) };
        let weight = |choice| if args.unit == UNIT_EXPERT { self.choice(token, choice).weight } else { 1.0 };
        let answer = |choice| self.row_words(args.answers, self.answer_number(token, choice));
        self.add(to, args.topk, |choice| self.message_to(token, choice).is_some(), weight, answer);
    }

    /// Adds rows of bf16, in order, each times a weight, by all threads of the block.
    #[inline(always)]
    fn add(
        &self,
        to: *mut u32,
        count: u32,
        is_one: impl Fn(u32) -> bool,
        weight: impl Fn(u32) -> f32,
        row: impl Fn(u32) -> *mut u32,
    ) {
        let mut eight = thread::thread_idx_x();
        while eight < self.args.hidden / 8 {
            let mut sum = [0f32; 8];
            for number in (0..count).filter(|number| is_one(*number)) {
                // SAFETY: a row, which has arrived.
                let values = unpacked(unsafe { load_words(row(number).add(4 * eight as usize)) });
                sum = core::array::from_fn(|at| sum[at] + weight(number) * values[at]);
            }
            // SAFETY: a row.
            unsafe { store_words(to.add(4 * eight as usize), packed(sum)) };
            eight += thread::block_dim_x();
        }
    }
}
