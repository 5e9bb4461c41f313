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
pub mod layout;

pub use arena::{Arena, Pinned};
pub use build::build;

use crate::coll::{Coll, Counter, Place, locked};
use efa_queue::request::WORDS_128;
use layout::{Image, MemoryHandle, MemoryPeer};
use std::sync::Arc;

/// Bytes of a slot: values stand in it.
pub const SLOT: usize = WORDS_128 * 8;
/// Contexts of a block, and regions of a communicator: both stand in a key.
const CONTEXT_BITS: u32 = 12;

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

/// A key of this region's block.
fn key(region: u32, context: usize) -> u32 {
    region << CONTEXT_BITS | context as u32
}

/// Where a signal is counted, as a request names it; `None` for no signal of ours.
pub fn signal_at(coll: &Coll, blocks: &[Arc<Block>], pair: u16, key: u32) -> Option<Place> {
    let (region, context) = (key >> CONTEXT_BITS, key as usize & ((1 << CONTEXT_BITS) - 1));
    let block = blocks.iter().find(|block| block.region == region)?;
    let signal = usize::from(pair).checked_sub(1)?;
    (context < block.contexts && signal < block.signals && coll.region(region).is_some())
        .then_some(Place { region, offset: ((context * block.signals + signal) * 8) as u64 })
}

/// What kernels are given for a registration: the address of a pointer to a [`MemoryHandle`] with a [`MemoryPeer`] for each rank.
///
/// # Errors
/// The driver's.
pub fn describe(coll: &Coll, region: u32) -> Result<u64, String> {
    if region > efa_queue::KEY_MASK {
        return Err(format!("region {region}: a local key has 24 bits"));
    }
    let mut arena = locked(&coll.arena);
    let first = size_of::<u64>() * 2;
    let bytes = first + size_of::<MemoryHandle>() + coll.ranks * size_of::<MemoryPeer>();
    let address = arena.device(bytes)?;
    let mut image = Image { address, bytes: vec![0; bytes] };
    image.place(0, address + first as u64);
    image.place(first, MemoryHandle { lkey: region, nranks: coll.ranks as i32, local_addr: 0 });
    for rank in 0..coll.ranks {
        let at = first + size_of::<MemoryHandle>() + rank * size_of::<MemoryPeer>();
        image.place(at, MemoryPeer { rkey: region, ..MemoryPeer::default() });
    }
    // SAFETY: memory of that length, which no kernel knows yet.
    unsafe { arena.write(image.address, &image.bytes) }?;
    Ok(address)
}
