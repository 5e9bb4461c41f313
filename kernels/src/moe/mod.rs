//! A mixture of experts' dispatch and combine over [`gin`](crate::gin): each token goes to the experts that a router has chosen for it, and what they
//! make of it comes back and is summed by the router's weights. Round after round in one kernel, by any of the protocols that the field has:
//!
//! ```text
//! what is sent   UNIT_EXPERT   a message for each token and expert
//!                UNIT_RANK     one for each token and PE; the PE sums what its experts make of it
//!                UNIT_NODE     one for each token and node, to the PE of the sender's place there, which hands it on by mapped memory
//! how counts     COUNT_SIGNAL  a signal of its own, of the count and one
//!    travel      COUNT_WORD    a word in memory, in each byte of which its round stands
//!                COUNT_IMMEDIATE  with the first message: its signal adds what the others leave over, so that the sum is always the same
//! ```
//!
//! **What is relied on.** A message's signal proves that message and no other, so each message has one. A receiver waits for as many as there are, and
//! looks for them in the places of that sender: those whose header has this round. Each PE has a signal for each sender, and no sender is a round
//! ahead: it needs this PE's answer first, so every PE answers every PE that may send to it, if by a bare signal. Between rounds each sender waits until
//! its puts are complete, since until then the network may write them again.
//!
//! A *worker* is one scope: a thread, a warp or a block, with a context of its own. What is not a call of `gin` is done by all threads of a block.

mod combine;
mod dispatch;
mod numbers;

use crate::gin::{Block, Context, Patience, Program, Scope, Signal, Sym, Thread, Warp, World};
use crate::ring::Status;
use cuda_std::memory::{
    Word, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, load_relaxed_gpu_u64, store_relaxed_gpu_u64,
};
use cuda_std::{args, kernel, thread, warp};
pub use dispatch::{count_of, counted_word};
pub use numbers::{LEAST, MOST_CHOICES, OF_SCALE, expert_factor, header_bytes, message_bytes};

/// See the module.
pub const UNIT_EXPERT: u32 = 0;
/// See the module.
pub const UNIT_RANK: u32 = 1;
/// See the module.
pub const UNIT_NODE: u32 = 2;
/// See the module.
pub const COUNT_SIGNAL: u32 = 0;
/// See the module.
pub const COUNT_WORD: u32 = 1;
/// See the module.
pub const COUNT_IMMEDIATE: u32 = 2;

/// Signals of each PE that a PE may hear from: messages, their count, messages handed on, parts of sums, answers.
pub const KINDS: u32 = 5;
const ARRIVED: u32 = 0;
const COUNTED: u32 = 1;
const FORWARDED: u32 = 2;
const GATHERED: u32 = 3;
const ANSWERED: u32 = 4;

/// A choice of the router for a token.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Of all experts, which lie on the PEs in order.
    pub expert: u32,
    /// The weight of what it makes.
    pub weight: f32,
}

/// What this PE sends to another one in a round.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Messages.
    pub count: u32,
    /// The first one: `token * topk + choice`.
    pub first: u32,
}

// SAFETY: words without padding, of any pattern.
unsafe impl cuda_std::Plain for Choice {}
// SAFETY: as above.
unsafe impl cuda_std::Plain for Planned {}

/// Arguments of the kernels, the same on all PEs but for addresses. Tables are in device memory; what is `Sym` is in the heap.
#[args]
pub struct MoeArgs {
    /// [`UNIT_EXPERT`], ...
    pub unit: u32,
    /// [`COUNT_SIGNAL`], ...
    pub count: u32,
    /// 1: tokens are sent as e4m3 with a scale for 128 values, otherwise as bf16.
    pub fp8: u32,
    /// Tokens of a PE.
    pub tokens: u32,
    /// Values of a token, a multiple of 8.
    pub hidden: u32,
    /// Experts of a token.
    pub topk: u32,
    /// Experts of a PE.
    pub experts: u32,
    /// PEs of a node, whose numbers are neighbours.
    pub local: u32,
    /// Puts behind one fence; see `Context::batched`.
    pub batch: u32,
    /// Rounds of this launch, and of those before.
    pub rounds: u32,
    /// See `rounds`.
    pub before: u32,
    /// Inputs that rounds take in turn.
    pub variants: u32,
    /// Bytes from one message's place to the next, a multiple of 16.
    pub stride: u64,
    /// Tokens in bf16, by variant.
    pub input: *const u32,
    /// `topk` for each token, by variant.
    pub choices: *const Choice,
    /// One for each PE, by variant.
    pub planned: *const Planned,
    /// The sums in bf16, by variant.
    pub output: *mut u32,
    /// `2 x KINDS x PEs`: what signals had counted before a round, by the round's parity.
    pub seen: *const Word,
    /// `2 x (PEs + 2)`, by parity: messages by sender, all, and those that were handed on.
    pub taken: *const Word,
    /// Places of this round's messages here, and of those to hand on.
    pub list: *mut u32,
    /// See `list`.
    pub relayed: *mut u32,
    /// Blocks that have met in this launch.
    pub met: *const Word,
    /// Four stamps for each round: its begin, all messages here, all that experts make of them made, all sums made.
    pub times: *mut u64,
    /// Messages that this PE sends: one for each token.
    pub staged: Sym<u8>,
    /// Messages to hand on: one for each node and token.
    pub relay: Sym<u8>,
    /// Messages for this PE's experts: one for each PE and token, by expert one for each choice of it.
    pub slots: Sym<u8>,
    /// What is made of them, bf16.
    pub returned: Sym<u8>,
    /// Parts of sums by the PEs of this node: `local` for each place of `relay`, bf16.
    pub gathered: Sym<u8>,
    /// Their sums.
    pub folded: Sym<u8>,
    /// Answers: one for each choice of each token, by the round's parity.
    pub answers: Sym<u8>,
    /// Counts from each PE, as words.
    pub words: Sym<u64>,
    /// `KINDS x PEs`.
    pub signals: Signal,
}

type Done = Result<(), Status>;

/// The rounds of one worker.
struct Turn<'a> {
    args: &'a MoeArgs,
    world: &'a World,
    /// Counted from 1 over all launches.
    round: u32,
    variant: u32,
    /// How often the blocks have met in this launch.
    met: u32,
    /// This worker's number in its block, and how many that has.
    of_block: u32,
    per_block: u32,
}

/// The contexts of a worker: over any way; inside the node, so that its fence does not wait for rails; and of each thread.
struct Lines<S> {
    line: Context<S>,
    near: Context<S>,
    alone: Context<Thread>,
}

#[inline(always)]
fn run<S: Scope>(program: &Program<MoeArgs>, scope: S, of_block: u32, per_block: u32) {
    let Program { world, args } = program;
    let (line, near, alone) = (world.context(scope).batched(args.batch), world.context(scope), world.context(Thread));
    let mut lines = Lines { line, near, alone };
    let mut turn = Turn { args, world, round: args.before, variant: 0, met: 0, of_block, per_block };
    for number in 0..args.rounds {
        (turn.round, turn.variant) = (turn.round + 1, number % args.variants);
        // A failure is in the world's report.
        if turn.one(&mut lines, number).is_err() {
            return;
        }
    }
}

impl Turn<'_> {
    /// One round.
    #[inline(always)]
    fn one<S: Scope>(&mut self, lines: &mut Lines<S>, number: u32) -> Done {
        self.stamp(number, 0);
        self.dispatch(lines)?;
        self.stamp(number, 1);
        self.make()?;
        self.stamp(number, 2);
        self.combine(lines)?;
        self.stamp(number, 3);
        Ok(())
    }

    #[inline(always)]
    fn stamp(&self, number: u32, which: usize) {
        if thread::index() == 0 {
            // SAFETY: four for each round, contract of the kernels.
            unsafe { *self.args.times.add(4 * number as usize + which) = thread::global_timer_ns() };
        }
    }

    /// All blocks meet: what their threads have written is visible to all. An error, in all blocks in the end, where any of them has one.
    #[inline(always)]
    fn meet(&mut self, done: Done) -> Done {
        self.met += 1;
        let all = self.met as u64 * thread::grid_dim_x() as u64;
        let mut failed = thread::sync_threads_or(done.is_err());
        if !failed && thread::thread_idx_x() == 0 {
            // SAFETY: contract of the kernels.
            let met = unsafe { &*self.args.met };
            // Behind the block's barrier, for all its threads; the others' leaders see it by their own fence.
            fence_acq_rel_sys();
            fetch_add_relaxed_gpu_u64(met, 1);
            let mut patience = Patience::default();
            while !failed && load_relaxed_gpu_u64(met) < all {
                if let Err(stop) = patience.look(self.world) {
                    self.world.gave_up(stop, all);
                    failed = true;
                }
                thread::relax();
            }
            fence_acq_rel_sys();
        }
        if thread::sync_threads_or(failed) { Err(Status::ENDED) } else { Ok(()) }
    }

    /// One worker for each of `jobs` waits for something; then all workers go on. (All of them would wait for words in host memory, where rails
    /// are, and each look is a trip over the bus.)
    #[inline(always)]
    fn all(&mut self, mut done: Done, jobs: u32, mut wait: impl FnMut(&Self, u32) -> Done) -> Done {
        let mut job = self.worker();
        while job < jobs {
            done = done.and(wait(self, job));
            job += self.workers();
        }
        self.meet(done)
    }

    #[inline(always)]
    fn taken_word(&self, round: u32, number: u32) -> &Word {
        // SAFETY: so many words for each parity, contract of the kernels.
        unsafe { &*self.args.taken.add((round % 2 * (self.world.pes + 2) + number) as usize) }
    }

    /// Messages of a sender; at `pes` all, at `pes + 1` those to hand on.
    #[inline(always)]
    fn taken(&self, number: u32) -> u32 {
        load_relaxed_gpu_u64(self.taken_word(self.round, number)) as u32
    }

    /// One more; how many there were.
    #[inline(always)]
    fn take(&self, number: u32) -> usize {
        fetch_add_relaxed_gpu_u64(self.taken_word(self.round, number), 1) as usize
    }

    #[inline(always)]
    fn signal(&self, kind: u32, pe: u32) -> Signal {
        self.args.signals.at(kind * self.world.pes + pe)
    }

    #[inline(always)]
    fn seen_word(&self, round: u32, kind: u32, pe: u32) -> &Word {
        // SAFETY: so many words for each parity, contract of the kernels.
        unsafe { &*self.args.seen.add(((round % 2 * KINDS + kind) * self.world.pes + pe) as usize) }
    }

    /// What PE `pe` had added to its signal of this kind before this round.
    #[inline(always)]
    fn seen(&self, kind: u32, pe: u32) -> u64 {
        load_relaxed_gpu_u64(self.seen_word(self.round, kind, pe))
    }

    /// Waits until PE `pe` has added `count` to its signal of this kind, in this round.
    #[inline(always)]
    fn wait<S: Scope>(&self, line: &mut Context<S>, kind: u32, pe: u32, count: u64) -> Done {
        let sum = self.seen(kind, pe) + count;
        line.signal_wait_until(self.signal(kind, pe), sum)?;
        if line.scope().leads() {
            store_relaxed_gpu_u64(self.seen_word(self.round + 1, kind, pe), sum);
        }
        Ok(())
    }

    #[inline(always)]
    fn workers(&self) -> u32 {
        thread::grid_dim_x() * self.per_block
    }

    #[inline(always)]
    fn worker(&self) -> u32 {
        thread::block_idx_x() * self.per_block + self.of_block
    }

    #[inline(always)]
    fn threads(&self) -> u32 {
        thread::grid_dim_x() * thread::block_dim_x()
    }

    /// Whether PE `pe` sends to this one, and is answered.
    #[inline(always)]
    fn hears(&self, pe: u32) -> bool {
        self.args.unit != UNIT_NODE || self.place_of(pe) == self.place_of(self.world.me)
    }

    /// The PEs for which that holds: how many, and the `number`-th.
    #[inline(always)]
    fn senders(&self) -> u32 {
        if self.args.unit == UNIT_NODE { self.world.pes / self.args.local } else { self.world.pes }
    }

    #[inline(always)]
    fn sender(&self, number: u32) -> u32 {
        if self.args.unit == UNIT_NODE { number * self.args.local + self.place_of(self.world.me) } else { number }
    }

    /// The first PE of this one's node.
    #[inline(always)]
    fn node(&self) -> u32 {
        self.node_of(self.world.me) * self.args.local
    }

    #[inline(always)]
    fn place_of(&self, pe: u32) -> u32 {
        pe % self.args.local
    }

    #[inline(always)]
    fn node_of(&self, pe: u32) -> u32 {
        pe / self.args.local
    }

    /// Messages of a token to one PE, at most.
    #[inline(always)]
    fn of_token(&self) -> u32 {
        if self.args.unit == UNIT_EXPERT { self.args.topk } else { 1 }
    }

    #[inline(always)]
    fn choice(&self, token: u32, choice: u32) -> Choice {
        let at = (self.variant * self.args.tokens + token) * self.args.topk + choice;
        // SAFETY: so many for each variant, contract of the kernels.
        unsafe { *self.args.choices.add(at as usize) }
    }

    #[inline(always)]
    fn planned(&self, pe: u32) -> Planned {
        // SAFETY: one for each PE and variant, contract of the kernels.
        unsafe { *self.args.planned.add((self.variant * self.world.pes + pe) as usize) }
    }

    /// The PE that a message of PE `from` for this expert goes to.
    #[inline(always)]
    fn target_from(&self, from: u32, expert: u32) -> u32 {
        let pe = expert / self.args.experts;
        match self.args.unit {
            UNIT_NODE => self.node_of(pe) * self.args.local + self.place_of(from),
            _ => pe,
        }
    }

    #[inline(always)]
    fn target(&self, expert: u32) -> u32 {
        self.target_from(self.world.me, expert)
    }

    /// The PE that this choice's message goes to, unless an earlier choice's message is also for it.
    #[inline(always)]
    fn message_to(&self, token: u32, choice: u32) -> Option<u32> {
        let to = self.target(self.choice(token, choice).expert);
        let earlier = |choice| self.target(self.choice(token, choice).expert) == to;
        (self.args.unit == UNIT_EXPERT || !(0..choice).any(earlier)).then_some(to)
    }
}

/// Rounds by threads.
///
/// # Safety
/// The arguments are of the world's heap, the same on all PEs but for addresses, and tables are as long as they say.
#[kernel(resident)]
pub unsafe fn moe_thread(program: Program<MoeArgs>) {
    run(&program, Thread, thread::thread_idx_x(), thread::block_dim_x());
}

/// Rounds by warps.
///
/// # Safety
/// As [`moe_thread`].
#[kernel(resident)]
pub unsafe fn moe_warp(program: Program<MoeArgs>) {
    run(&program, Warp::this(), thread::thread_idx_x() / warp::SIZE, thread::block_dim_x().div_ceil(warp::SIZE));
}

/// Rounds by blocks.
///
/// # Safety
/// As [`moe_thread`].
#[kernel(resident)]
pub unsafe fn moe_block(program: Program<MoeArgs>) {
    run(&program, Block, 0, 1);
}
