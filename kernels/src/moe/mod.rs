//! Dispatch and combine of a mixture of experts, over [`gin`](crate::gin). Each token is sent to the experts that a
//! router has chosen for it. The experts' results are sent back and summed with the router's weights. Two numbers
//! select the protocol:
//!
//! ```text
//! a message for each   each  span
//! token and expert     topk  1     the sender sums the experts' results, times the weights
//! token and PE         1     1     the PE sums its experts' results, times the weights, and the sender these sums
//! token and node       1     PEs   to the PE at the sender's place in that node, which forwards it through mapped
//!                                  memory, and sums the results
//! ```
//!
//! Each message has its own signal, which proves only that message. A receiver waits for the expected number of
//! messages ([`Counts`]) and recognizes them by the round in their headers. No PE is one round ahead, because it needs
//! an answer from every PE to which it may send. It also waits until its own puts are complete, because the network may
//! repeat their writes until then.
//!
//! A *worker* is one scope: a thread, a warp or a block. All work outside calls of `gin` is shared by all threads of a
//! block.

mod round;
use crate::gin::{Block, Counts, Program, Sym, Tally, Thread, Warp};
use cuda_std::{args, kernel, list::AppendList, memory::Word, rows};

/// Value that stands for "no PE" and "no count".
pub const NONE: u32 = u32::MAX;

/// Arguments of the kernels. Except for addresses, they are the same on all PEs. Tables are in device memory, `Sym`
/// objects in the heap.
#[args]
pub struct MoeKernelArgs {
    /// Maximum number of messages of a token to one PE: `topk` or 1.
    pub each: u32,
    /// Number of PEs for which a message is intended: 1, or the PEs of a node, whose numbers are consecutive.
    pub span: u32,
    /// 1 if tokens are sent as e4m3 with scales, 0 for bf16.
    pub fp8: u32,
    /// Number of tokens of a PE.
    pub tokens: u32,
    /// Number of values of a token, a multiple of 8.
    pub hidden: u32,
    /// Number of experts per token.
    pub topk: u32,
    /// Number of experts per PE.
    pub experts: u32,
    /// Number of 4-byte words of a message.
    pub message: u32,
    /// Maximum puts per fence; see `Context::batched`.
    pub batch: u32,
    /// Number of rounds of this launch.
    pub rounds: u32,
    /// Number of rounds before this launch.
    pub before: u32,
    /// Number of input variants, which the rounds use cyclically.
    pub variants: u32,
    /// Tokens in bf16, by variant.
    pub input: *const u32,
    /// The router's choices by variant and token: the expert, the bits of its weight, the PE that the message is sent
    /// to, and the amount that its signal adds. The PE is [`NONE`] if the message of an earlier choice also serves this
    /// one.
    pub choices: *const [u32; 4],
    /// Number of messages, by variant and PE. [`NONE`] for a PE to which this PE sends nothing, not even a count.
    pub planned: *const u32,
    /// The sums in bf16, by variant.
    pub output: *mut u32,
    /// Counters of received messages.
    pub counts: Counts,
    /// Counters of received answers.
    pub answered: Tally,
    /// Counters of the words in both lists, followed by the number of messages found from each PE.
    pub found: *const Word,
    /// List of messages for this PE's experts.
    pub here: AppendList,
    /// List of messages that have arrived. Identical to `here` if messages are not forwarded.
    pub landed: AppendList,
    /// Word of the grid barrier.
    pub met: *const Word,
    /// Four timestamps per round: at its start, after all messages have arrived, after all experts' results, and after
    /// all sums.
    pub times: *mut u64,
    /// Messages that this PE sends: one per token.
    pub staged: Sym<u32>,
    /// Receive buffers of messages, by PE, token and (with one message per expert) choice. Identical to `slots` if
    /// messages are not forwarded.
    pub landing: Sym<u32>,
    /// Messages for this PE's experts.
    pub slots: Sym<u32>,
    /// Results of the experts, in bf16.
    pub made: Sym<u32>,
    /// Partial sums from the PEs of this node: `span` per entry of `landing`.
    pub parts: Sym<u32>,
    /// Answers to the messages in `landing`. Identical to `made` if messages are not forwarded.
    pub answers: Sym<u32>,
    /// Received answers, by parity of the round, token and choice. There are two parities, because the puts of a PE
    /// that has answered may complete one round later.
    pub returned: Sym<u32>,
}

/// Returns the 4-byte words of a message: a header and values, with scales for e4m3.
pub const fn message_words(hidden: u32, topk: u32, fp8: bool) -> u32 {
    header_words(topk) + rows::bytes(hidden, fp8).next_multiple_of(16) / 4
}

/// Returns the number of 4-byte words of a message header, rounded up to a multiple of 4. The header contains the round
/// and the token, then the expert and the bits of its weight for each choice.
pub const fn header_words(topk: u32) -> u32 {
    (2 + 2 * topk).next_multiple_of(4)
}

/// Returns the factor by which `expert` multiplies a value. The product is rounded to bf16.
#[inline(always)]
pub fn expert_factor(expert: u32) -> f32 {
    1.0 + (expert % 61) as f32 / 64.0
}

/// Runs the rounds with one worker per thread.
/// # Safety
/// The arguments must be objects of the world's heap and, except for addresses, the same on all PEs. The tables must
/// have the documented lengths.
#[kernel(resident)]
pub unsafe fn moe_thread(program: Program<MoeKernelArgs>) {
    round::run(&program, Thread);
}

/// Runs the rounds with one worker per warp.
/// # Safety
/// The requirements of [`moe_thread`] apply.
#[kernel(resident)]
pub unsafe fn moe_warp(program: Program<MoeKernelArgs>) {
    round::run(&program, Warp::this());
}

/// Runs the rounds with one worker per block.
/// # Safety
/// The requirements of [`moe_thread`] apply.
#[kernel(resident)]
pub unsafe fn moe_block(program: Program<MoeKernelArgs>) {
    round::run(&program, Block);
}
