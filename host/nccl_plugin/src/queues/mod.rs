//! Queues of an EFA card in software, for GIN of type 5: NCCL's kernels write requests into memory of the host and ring, as they do with a card
//! (crates/efa_queue), and the thread that drives the rails reads them.
//!
//! A *block* is what NCCL makes at once: contexts of this many signals and counters. Each context has a queue for puts, gets and signals, one for
//! values, and one for each counter. Who a request goes to is written in our own numbers: the address handle is the rank, the queue pair is 0 or
//! a signal's number + 1, and its key names the block and the context. Keys of memory are its registration's number, and addresses count from
//! its first byte, so that ranks have nothing to tell each other.
//!
//! A signal is a counter in the GPU's memory, which the plugin of the rank writes behind the bytes, as it does with NCCL's signals of type 2.

mod arena;
mod build;
mod keys;
pub mod layout;

pub use arena::{Arena, Pinned};
pub use build::build;
pub use keys::{describe, signal_at};

use crate::operation::Counter;
use efa_queue::request::WORDS_128;

/// Bytes of a slot: values stand in it.
pub const SLOT: usize = WORDS_128 * 8;

/// A queue as its reader finds it.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Its slots.
    pub slots: u64,
    /// Its doorbell.
    pub doorbell: u64,
    /// What is counted at a request's end.
    pub counter: Counter,
    /// The same in the GPU's memory, where kernels read that.
    pub mirror: Option<Mirror>,
    /// Slots.
    pub depth: u32,
    /// NCCL's context.
    pub context: u16,
}

/// A counter in the GPU's memory, which follows the one that is counted. Before each request NCCL's kernels look whether the queue has room: over the
/// bus that takes 1.3 us, in the GPU's own memory 0.2 (H200).
#[derive(Clone, Copy, Debug)]
pub struct Mirror {
    /// For the GPU.
    pub device: u64,
    /// A word of pinned memory, for copy engines.
    pub scratch: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Block {
    /// All queues.
    pub queues: Vec<Queue>,
    /// Contexts.
    pub contexts: usize,
    /// Signals of each.
    pub signals: usize,
    /// The region of the signals.
    pub region: u32,
}
