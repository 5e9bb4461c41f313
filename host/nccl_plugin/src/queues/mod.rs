//! Queues of an EFA device in software, for GIN type 5. NCCL's kernels write requests into host memory and ring a
//! doorbell, as with a device (crates/efa_queue). The thread that drives the rails reads the requests.
//!
//! A *block* is created by one call of NCCL: contexts with the same number of signals and counters. Each context has a
//! queue for puts, gets and signals, one for values, and one for each counter. The target of a request is encoded in
//! numbers that the plugin defines. The address handle is the rank. The queue pair is 0, or a signal's number plus 1.
//! The queue key identifies the block and the context. Memory keys are region numbers and addresses are offsets in the
//! region, so ranks need not exchange them.
//!
//! A signal is a counter in GPU memory. The plugin of the target rank writes it after the bytes, like NCCL's signals of
//! type 2.

mod arena;
mod build;
mod keys;
pub mod layout;

pub use arena::{Arena, Pinned};
pub use build::build;
pub use keys::{describe, signal_at};

use crate::operation::Counter;
use efa_queue::request::WORDS_128;

/// Number of bytes of a slot. This size has space for inline values.
pub const SLOT: usize = WORDS_128 * 8;

/// Maximum number of requests per doorbell, like an EFA device with requests of 128 bytes.
pub const BATCH: u32 = 16;

/// The plugin's view of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueView {
    /// Address of the slots.
    pub slots: u64,
    /// Address of the doorbell.
    pub doorbell: u64,
    /// Counter of completed requests.
    pub counter: Counter,
    /// Copy of the counter in GPU memory; `None` if kernels read the counter in pinned memory.
    pub mirror: Option<DeviceCounter>,
    /// Number of slots.
    pub depth: u32,
    /// Number of NCCL's context.
    pub context: u16,
}

/// A copy of a counter in GPU memory. Before each request NCCL's kernels check whether the queue has a free slot. This
/// takes 1.3 us over the bus and 0.2 us in GPU memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCounter {
    /// Address in GPU memory.
    pub device: u64,
    /// Address of a word of pinned memory, for the copy engines.
    pub scratch: u64,
}

/// A block of queues; the module documentation describes it.
#[derive(Debug)]
pub struct QueueBlock {
    /// Queues of all contexts.
    pub queues: Vec<QueueView>,
    /// Number of contexts.
    pub contexts: usize,
    /// Number of signals per context.
    pub signals: usize,
    /// Number of the region that contains the signals.
    pub region: u32,
}
