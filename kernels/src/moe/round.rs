//! A round: dispatch, the experts' computation, combine.

use super::{MoeKernelArgs, NONE, expert_factor, header_words};
use crate::gin::{Block, Context, Grid, Program, Scope, Sym, TeamKind, Thread, WorldView};
use crate::ring::Status;
use cuda_std::memory::{Word, fetch_add_relaxed_gpu_u64, load_relaxed_gpu_u64, store_relaxed_gpu_u64};
use cuda_std::thread::{block, by_block, global_timer_ns, in_block, in_grid, index, sync_threads};
use cuda_std::{list::AppendList, rows};

type CallResult = Result<(), Status>;

struct Turn<'a, S> {
    args: &'a MoeKernelArgs,
    world: &'a WorldView,
    grid: Grid<'a>,
    /// Contexts for all PEs, for the node (so that its fences do not wait for rails), and for single threads.
    line: Context<S>,
    near: Context<S>,
    alone: Context<Thread>,
    /// Number of the round, counted from 1 over all launches.
    round: u32,
    variant: u32,
}

#[inline(always)]
pub fn run<S: Scope>(program: &Program<MoeKernelArgs>, scope: S) {
    let Program { world, args } = program;
    if world.has_failed_for(&Block) {
        return;
    }
    // SAFETY: `met` is the grid's own word (contract of the kernels).
    let grid = unsafe { Grid::new(world, args.met, &scope) };
    let (line, near, alone) = (world.context(scope).batched(args.batch), world.context(scope), world.context(Thread));
    let mut turn = Turn { args, world, grid, line, near, alone, round: 0, variant: 0 };
    for number in 0..args.rounds {
        (turn.round, turn.variant) = (args.before + 1 + number, number % args.variants);
        // The failure is recorded in the world's report.
        if turn.steps(4 * number).is_err() {
            return;
        }
    }
}

impl<S: Scope> Turn<'_, S> {
    #[inline(always)]
    fn steps(&mut self, stamps: u32) -> CallResult {
        for step in 0..4 {
            if index() == 0 {
                // SAFETY: `times` has four entries per round (contract of the kernels).
                unsafe { self.args.times.add((stamps + step) as usize).write(global_timer_ns()) };
            }
            match step {
                0 => self.dispatch()?,
                1 => self.make()?,
                2 => self.combine()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends all messages. Returns when all messages for this PE's experts have arrived and are listed.
    #[inline(always)]
    fn dispatch(&mut self) -> CallResult {
        let (args, me, mut done) = (self.args, self.world.me, Ok(()));
        in_grid(2 + self.world.pes).for_each(|number| store_relaxed_gpu_u64(self.found(number), 0));
        for pe in in_grid(self.world.pes) {
            if self.planned(pe) != NONE {
                done = done.and(self.alone.announce(&args.counts, self.planned(pe), self.round, pe));
            }
        }
        for token in by_block(args.tokens) {
            self.stage(token);
            sync_threads();
            for choice in self.grid.workers_of_block(args.topk) {
                let [.., pe, add] = self.choice(token, choice);
                if pe != NONE {
                    let to = self.message(args.landing, (me * args.tokens + token) * args.each + choice % args.each);
                    let (from, signal) = (self.message(args.staged, token), args.counts.arrived.signals.at(me));
                    done = done.and(self.line.put_signal_nbi(to, from, signal, add.into(), pe));
                }
            }
        }
        self.line.flush();
        self.by_sender(done, |turn, pe| turn.line.wait_counted(&args.counts, turn.round, pe))?;
        self.find(args.landing, &args.landed);
        if args.span > 1 {
            self.grid.sync(Ok(()))?;
            self.hand_on()?;
            self.find(args.slots, &args.here);
        }
        self.grid.sync(Ok(()))
    }

    /// Writes a token's message. Called by all threads of the block.
    #[inline(always)]
    fn stage(&self, token: u32) {
        let (args, to) = (self.args, self.world.local(self.message(self.args.staged, token)));
        let header = |word| match word {
            0 => self.round,
            1 => token,
            _ => self.choice(token, word / 2 - 1)[word as usize % 2],
        };
        // SAFETY: a message has space for a header, followed by the values. The input has a row for each token and
        // variant.
        unsafe {
            in_block(2 + 2 * args.topk).for_each(|word| to.add(word as usize).write(header(word)));
            let (to, row) = (to.add(header_words(args.topk) as usize), args.input.add(self.row_of(token)));
            rows::encode(to, row, args.hidden, args.fp8 != 0, in_block(args.hidden / 8));
        }
    }

    /// Lists the messages of this round that have arrived.
    #[inline(always)]
    fn find(&self, object: Sym<u32>, list: &AppendList) {
        for number in in_grid(self.world.pes * self.args.counts.most) {
            if self.header(object, number, 0) == self.round {
                fetch_add_relaxed_gpu_u64(self.found(2 + number / self.args.counts.most), 1);
                // SAFETY: the list has space for all messages, and is read only after a barrier.
                unsafe { list.push(number) };
            }
        }
    }

    /// Forwards the received messages to the PEs of this node that have an expert of the token.
    #[inline(always)]
    fn hand_on(&mut self) -> CallResult {
        let (args, mut done) = (self.args, Ok(()));
        for number in self.list(&args.landed, self.grid.worker()) {
            for place in 0..args.span {
                if self.is_for(number, place) {
                    let (to, from) = (self.message(args.slots, number), self.message(args.landing, number));
                    done = done.and(self.near.put_nbi(to, from, self.node() + place));
                }
            }
        }
        self.meet_node(done)
    }

    /// Computes the results of this PE's experts for their messages: per expert with one message per expert, and as a
    /// weighted sum otherwise. Belongs to neither dispatch nor combine.
    #[inline(always)]
    fn make(&mut self) -> CallResult {
        let (args, me, one) = (self.args, self.world.me, self.args.each > 1);
        for number in self.list(&args.here, block()) {
            let expert = |choice| self.header(args.slots, number, 2 + 2 * choice);
            let is_here = |choice| if one { choice == number % args.topk } else { expert(choice) / args.experts == me };
            self.sum(self.world.local(self.row(args.made, number)), args.topk, is_here, |choice, eight| {
                let weight = if one { 1.0 } else { f32::from_bits(self.header(args.slots, number, 3 + 2 * choice)) };
                let values = self.load(self.message(args.slots, number), header_words(args.topk), args.fp8 != 0, eight);
                (weight, rows::through_bf16(values.map(|value| value * expert_factor(expert(choice)))))
            });
        }
        self.grid.sync(Ok(()))
    }

    /// Sends the answers. Returns when this PE's tokens are summed and all its puts are complete.
    #[inline(always)]
    fn combine(&mut self) -> CallResult {
        let (args, me, mut done) = (self.args, self.world.me, Ok(()));
        // A PE that has sent no messages waits for an empty answer.
        for pe in in_grid(self.world.pes) {
            if self.planned(pe) != NONE && load_relaxed_gpu_u64(self.found(2 + pe)) == 0 {
                done = done.and(self.alone.signal_op(args.answered.signals.at(me), 1, pe));
            }
        }
        if args.span > 1 {
            self.gather(done)?;
        }
        for number in self.list(&args.landed, self.grid.worker()) {
            // The answer is stored in the slot of the first choice for this PE or node.
            let pe = |choice: &u32| self.header(args.landing, number, 2 + 2 * choice) / args.experts;
            let is_here = |choice: &u32| pe(choice) / args.span == me / args.span;
            let choice = if args.each > 1 { number % args.each } else { (0..args.topk).find(is_here).unwrap_or(0) };
            let (to, from) = (self.answer(number / args.each % args.tokens, choice), self.row(args.answers, number));
            let (signal, pe) = (args.answered.signals.at(me), number / self.args.counts.most);
            done = done.and(self.line.put_signal_nbi(to, from, signal, 1, pe));
        }
        self.line.flush();
        self.by_sender(done, |turn, pe| turn.line.wait_more(&args.answered, pe, turn.planned(pe).max(1).into()))?;
        for token in by_block(args.tokens) {
            // SAFETY: the output has a row for each token and variant (contract of the kernels).
            let to = unsafe { args.output.add(self.row_of(token)) };
            let is_sent = |choice| self.choice(token, choice)[2] != NONE;
            self.sum(to, args.topk, is_sent, |choice, eight| {
                let weight = if args.each > 1 { f32::from_bits(self.choice(token, choice)[1]) } else { 1.0 };
                (weight, self.load(self.answer(token, choice), 0, false, eight))
            });
        }
        // Waits here, because the next round overwrites the sources, on this PE and on the others.
        let done = self.line.quiet().and(self.alone.quiet());
        self.grid.sync(done)
    }

    /// Sends the results of forwarded messages to the PE that forwarded them, which sums them in the order of the
    /// node's PEs.
    #[inline(always)]
    fn gather(&mut self, mut done: CallResult) -> CallResult {
        let (args, me) = (self.args, self.world.me);
        for number in self.list(&args.here, self.grid.worker()) {
            let part = self.row(args.parts, number * args.span + me % args.span);
            let pe = self.node() + number / self.args.counts.most % args.span;
            done = done.and(self.near.put_nbi(part, self.row(args.made, number), pe));
        }
        self.meet_node(done)?;
        for number in self.list(&args.landed, block()) {
            let (to, is_for) = (self.world.local(self.row(args.answers, number)), |place| self.is_for(number, place));
            self.sum(to, args.span, is_for, |place, eight| {
                (1.0, self.load(self.row(args.parts, number * args.span + place), 0, false, eight))
            });
        }
        self.grid.sync(Ok(()))
    }

    /// Performs a barrier of the node's PEs, after which each PE sees the puts of the others.
    #[inline(always)]
    fn meet_node(&mut self, done: CallResult) -> CallResult {
        self.grid.sync(done.and(self.near.fence()))?;
        // A separate context, because the call is not inlined and forces its context into local memory.
        let mut first = self.world.context(self.near.scope());
        let met = if self.grid.worker().0 == 0 { first.barrier(TeamKind::Node) } else { Ok(()) };
        self.grid.sync(met)
    }

    /// Waits with one worker for each PE that sends to this PE. (If all workers waited, all of them would poll host
    /// memory when rails are used.)
    #[inline(always)]
    fn by_sender(&mut self, mut done: CallResult, wait: impl Fn(&mut Self, u32) -> CallResult) -> CallResult {
        for pe in self.grid.workers(self.world.pes) {
            if self.planned(pe) != NONE {
                done = done.and(wait(self, pe));
            }
        }
        self.grid.sync(done)
    }

    fn choice(&self, token: u32, choice: u32) -> [u32; 4] {
        let number = (self.variant * self.args.tokens + token) * self.args.topk + choice;
        // SAFETY: the table has an entry for each variant, token and choice (contract of the kernels).
        unsafe { *self.args.choices.add(number as usize) }
    }
    fn planned(&self, pe: u32) -> u32 {
        // SAFETY: the table has an entry for each variant and PE (contract of the kernels).
        unsafe { *self.args.planned.add((self.variant * self.world.pes + pe) as usize) }
    }
    fn found(&self, number: u32) -> &Word {
        // SAFETY: `found` has two words, and one for each PE (contract of the kernels).
        unsafe { &*self.args.found.add(number as usize) }
    }
    fn list(&self, list: &AppendList, jobs: (u32, u32)) -> impl Iterator<Item = u32> + use<S> {
        // SAFETY: the list was filled before the last barrier (contract of the kernels).
        unsafe { list.every(jobs) }
    }
    fn header(&self, object: Sym<u32>, number: u32, word: u32) -> u32 {
        // SAFETY: a message starts with its header (contract of the kernels).
        unsafe { *self.world.local(self.message(object, number)).add(word as usize) }
    }
    fn load(&self, from: Sym<u32>, first: u32, e4m3: bool, eight: u32) -> [f32; 8] {
        // SAFETY: `from` has a row of `hidden` values after `first` (contract of the kernels).
        unsafe { rows::load(self.world.local(from).add(first as usize), self.args.hidden, e4m3, eight) }
    }
    fn sum(&self, to: *mut u32, terms: u32, is: impl Fn(u32) -> bool, term: impl Fn(u32, u32) -> (f32, [f32; 8])) {
        // SAFETY: `to` has a row of `hidden` values (contract of the kernels).
        unsafe { rows::sum(to, in_block(self.args.hidden / 8), terms, is, term) }
    }
    fn message(&self, object: Sym<u32>, number: u32) -> Sym<u32> {
        object.slice(number as u64 * self.args.message as u64, self.args.message.into())
    }
    fn row(&self, object: Sym<u32>, number: u32) -> Sym<u32> {
        object.slice(number as u64 * self.args.hidden as u64 / 2, self.args.hidden as u64 / 2)
    }
    fn answer(&self, token: u32, choice: u32) -> Sym<u32> {
        self.row(self.args.returned, (self.round % 2 * self.args.tokens + token) * self.args.topk + choice)
    }
    fn row_of(&self, token: u32) -> usize {
        (self.variant * self.args.tokens + token) as usize * (self.args.hidden / 2) as usize
    }
    /// Returns the first PE of this PE's node. `is_for` returns whether the PE at `place` in the node has an expert of
    /// message `number`.
    fn node(&self) -> u32 {
        self.world.me / self.args.span * self.args.span
    }
    fn is_for(&self, number: u32, place: u32) -> bool {
        let pe = |choice| self.header(self.args.landing, number, 2 + 2 * choice) / self.args.experts;
        (0..self.args.topk).any(|choice| pe(choice) == self.node() + place)
    }
}
