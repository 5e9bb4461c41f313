//! A mixture of experts' dispatch and combine over [`gin`](crate::gin): each token goes to the experts that a router has chosen for it, and what they
//! make of it comes back and is summed by the router's weights. Two numbers make it one or the other protocol of the field:
//!
//! ```text
//! a message for each   each  span
//! token and expert     topk  1     the sender sums what experts make, times the weights
//! token and PE         1     1     the PE sums what its experts make, times the weights, and the sender these sums
//! token and node       1     PEs   to the PE of the sender's place there, which hands it on by mapped memory, and sums what comes back
//! ```
//!
//! A message's signal proves that message and no other, so each message has one. A receiver waits for as many as there are ([`Counts`]) and finds them by the
//! round in their headers. No PE is a round ahead: it needs an answer of all that it may send to, and waits until its own puts are complete, since until
//! then the network may write them again. A *worker* is one scope: a thread, a warp or a block. What is no call of `gin` is done by all threads of a block.

mod round;
use crate::gin::{Block, Counts, Program, Sym, Tally, Thread, Warp};
use cuda_std::{args, kernel, list::List, memory::Word, rows};

/// In place of a PE or a count: none.
pub const NONE: u32 = u32::MAX;

/// Arguments of the kernels, the same on all PEs but for addresses. Tables are in device memory; what is `Sym` is in the heap.
#[args]
pub struct MoeArgs {
    /// Messages of a token to one PE, at most: `topk` or 1.
    pub each: u32,
    /// PEs that a message is for: 1, or those of a node, whose numbers are neighbours.
    pub span: u32,
    /// 1: tokens are sent as e4m3 with scales, otherwise as bf16.
    pub fp8: u32,
    /// Tokens of a PE.
    pub tokens: u32,
    /// Values of a token, a multiple of 8.
    pub hidden: u32,
    /// Experts of a token.
    pub topk: u32,
    /// Experts of a PE.
    pub experts: u32,
    /// Words of a message.
    pub message: u32,
    /// Puts behind one fence; see `Context::batched`.
    pub batch: u32,
    /// Rounds of this launch.
    pub rounds: u32,
    /// Rounds before it.
    pub before: u32,
    /// Inputs that rounds take in turn.
    pub variants: u32,
    /// Tokens in bf16, by variant.
    pub input: *const u32,
    /// By variant and token the router's choices: the expert, the bits of its weight, the PE that the message goes to ([`NONE`] where an earlier choice's
    /// message is for it too), what its signal adds.
    pub choices: *const [u32; 4],
    /// By variant and PE: messages to it, [`NONE`] for a PE that hears nothing of this one.
    pub planned: *const u32,
    /// The sums in bf16, by variant.
    pub output: *mut u32,
    /// How messages are counted.
    pub counts: Counts,
    /// Answers.
    pub answered: Tally,
    /// The words of both lists, and behind them how many messages of each PE have been found.
    pub found: *const Word,
    /// Messages for this PE's experts.
    pub here: List,
    /// Messages that have landed. The same as `here`, where they are not handed on.
    pub landed: List,
    /// Where blocks meet.
    pub met: *const Word,
    /// Four stamps for each round: its begin, all messages here, all that experts make of them made, all sums made.
    pub times: *mut u64,
    /// Messages that this PE sends: one for each token.
    pub staged: Sym<u32>,
    /// Where messages land: a place for each PE, token and (by expert) choice. The same as `slots`, where they are not handed on.
    pub landing: Sym<u32>,
    /// Messages for this PE's experts.
    pub slots: Sym<u32>,
    /// What is made of them, bf16.
    pub made: Sym<u32>,
    /// Parts of sums, by PEs of this node: `span` for each place of `landing`.
    pub parts: Sym<u32>,
    /// What is answered to what has landed. The same as `made`, where that was not handed on.
    pub answers: Sym<u32>,
    /// Answers: one for each choice of each token, by the round's parity: who has answered may be a round behind with what it has put.
    pub returned: Sym<u32>,
}

/// Words of a message: a header and values, with scales where these are e4m3.
pub const fn message_words(hidden: u32, topk: u32, fp8: bool) -> u32 {
    header_words(topk) + rows::bytes(hidden, fp8).next_multiple_of(16) / 4
}

/// Words of its header: `round, token`, then of each choice the expert and the bits of its weight; to a multiple of 4.
pub const fn header_words(topk: u32) -> u32 {
    (2 + 2 * topk).next_multiple_of(4)
}

/// What expert `expert` makes of a value: this times it, as bf16.
#[inline(always)]
pub fn expert_factor(expert: u32) -> f32 {
    1.0 + (expert % 61) as f32 / 64.0
}

/// Rounds by threads.
/// # Safety
/// The arguments are of the world's heap, the same on all PEs but for addresses, and tables are as long as they say.
#[kernel(resident)]
pub unsafe fn moe_thread(program: Program<MoeArgs>) {
    round::run(&program, Thread);
}

/// Rounds by warps.
/// # Safety
/// As [`moe_thread`].
#[kernel(resident)]
pub unsafe fn moe_warp(program: Program<MoeArgs>) {
    round::run(&program, Warp::this());
}

/// Rounds by blocks.
/// # Safety
/// As [`moe_thread`].
#[kernel(resident)]
pub unsafe fn moe_block(program: Program<MoeArgs>) {
    round::run(&program, Block);
}
