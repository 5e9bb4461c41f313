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
pub mod layout;

pub use arena::{Arena, Pinned};

use crate::abi::GinConfig;
use crate::coll::{Coll, Counter, Place, Region, locked};
use efa_queue::request::{INLINE_128, WORDS_128};
use layout::{ContextHandle, CounterHandle, Image, MemoryHandle, MemoryPeer, Pair, Poster, RequestPlaces, WorkQueue};
use std::sync::Arc;

/// Bytes of a slot: values stand in it.
pub const SLOT: usize = WORDS_128 * 8;
/// Requests behind a doorbell at most: as cards have it, of 128 bytes.
const BATCH: u32 = 16;
/// Slots of a queue where NCCL names no number, and bounds of what it may name.
const DEPTH: u32 = 512;
const SHALLOWEST: u32 = 64;
const DEEPEST: u32 = 4096;
/// Slots of all queues of a block; with more, queues are shallower.
const MOST_SLOTS: u32 = 1 << 20;
/// Contexts of a block, and regions of a communicator: both stand in a key.
const CONTEXT_BITS: u32 = 12;
/// Queues of a context without counters.
const OWN_QUEUES: usize = 2;
/// From one [`Pair`] to the next.
const PAIR: usize = 256;

/// A queue as its reader finds it.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// Its slots.
    pub slots: u64,
    /// Its doorbell.
    pub doorbell: u64,
    /// What is counted at a request's end.
    pub counter: Counter,
    /// Slots.
    pub depth: u32,
    /// NCCL's context.
    pub context: u16,
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

/// A number of NCCL's that must not be negative.
fn count(what: &str, value: i32, most: usize) -> Result<usize, String> {
    usize::try_from(value)
        .ok()
        .filter(|value| *value <= most)
        .ok_or_else(|| format!("{value} {what}: this plugin has 0 to {most}"))
}

/// Where things stand in the block's memory of the device.
struct Plan {
    next: usize,
}

impl Plan {
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.next;
        self.next = (at + bytes).next_multiple_of(PAIR);
        at
    }
}

/// Makes a block; what the kernels are given is the address of its contexts.
///
/// # Errors
/// Numbers that cannot be, and the driver's, in one line.
pub fn build(coll: &Coll, config: &GinConfig) -> Result<(Arc<Block>, u64), String> {
    let contexts = count("contexts", config.contexts, 1 << CONTEXT_BITS)?.max(1);
    let signals = count("signals", config.signals, usize::from(u16::MAX) - 1)?;
    let counters = count("counters", config.counters, 1 << 10)?;
    let (ranks, each) = (coll.ranks, OWN_QUEUES + counters);
    let number = contexts * each;
    let mut depth = match u32::try_from(config.queue_depth) {
        Ok(asked) if asked > 0 => asked.clamp(SHALLOWEST, DEEPEST).next_power_of_two(),
        _ => DEPTH,
    };
    while depth > SHALLOWEST && number as u32 * depth > MOST_SLOTS {
        depth /= 2;
    }
    let mut arena = locked(&coll.arena);
    let ring = depth as usize * SLOT;
    let (rings, lines) = (arena.pinned(number * ring)?, arena.pinned(number * 128)?);
    let words = contexts * signals;
    let signal_words = arena.device((words * 8).max(8))?;
    let region = coll.register(Region {
        address: signal_words,
        bytes: (words * 8).max(8) as u64,
        cuda: true,
        never_reset: true,
    });
    if region >> (32 - CONTEXT_BITS) != 0 {
        return Err(format!("region {region}: a key has no room for more than {}", 1 << (32 - CONTEXT_BITS)));
    }
    let targets = (1 + signals) * ranks;
    let mut plan = Plan { next: 0 };
    let handles = plan.take(contexts * size_of::<ContextHandle>());
    let pairs = plan.take(number * PAIR);
    let (ranks_at, pairs_at) = (plan.take(targets * 2), plan.take(targets * 2));
    let keys = plan.take(contexts * targets * 4);
    let counter_pointers = plan.take(contexts * counters * 8);
    let signal_pointers = plan.take(words * 8);
    let counter_handles = plan.take(contexts * counters * size_of::<CounterHandle>());
    let signal_handles = plan.take(words * size_of::<CounterHandle>());
    let scratch = plan.take(ranks * 8);
    let base = arena.device(plan.next)?;
    let mut image = Image { address: base, bytes: vec![0; plan.next] };
    let address = |at: usize| base + at as u64;

    let mut queues = Vec::with_capacity(number);
    for index in 0..number {
        let (slots, line) = (index * ring, index * 128);
        // SAFETY: a word of the arena's, which goes with the communicator; requests go with the endpoint, which holds that.
        let counter = unsafe { Counter::at(lines.host + line as u64 + 64) };
        queues.push(Queue {
            slots: rings.host + slots as u64,
            doorbell: lines.host + line as u64,
            counter,
            depth,
            context: (index / each) as u16,
        });
        let send = WorkQueue {
            max_sge: 1,
            max_wqes: depth,
            queue_mask: depth - 1,
            queue_size_shift: depth.ilog2(),
            max_batch: BATCH,
            buf: rings.device + slots as u64,
            db: lines.device + line as u64,
            ..WorkQueue::default()
        };
        let places = RequestPlaces {
            remote_mem_offset: 32,
            local_mem_offset: 48,
            sgl_offset: 32,
            send_inline_data_offset: 32,
            write_inline_data_offset: 48,
            max_inline_data: INLINE_128 as u32,
            max_rdma_sges: 1,
            wqe_size: SLOT as u16,
            ..RequestPlaces::default()
        };
        image.place(pairs + index * PAIR, Pair { send, places, ..Pair::default() });
    }
    for target in 0..targets {
        image.place(ranks_at + target * 2, (target % ranks) as u16);
        image.place(pairs_at + target * 2, (target / ranks) as u16);
    }
    for context in 0..contexts {
        for target in 0..targets {
            image.place(keys + (context * targets + target) * 4, key(region, context));
        }
        let poster = |queue: usize| {
            let index = context * each + queue;
            Poster {
                qp: address(pairs + index * PAIR),
                target_address_handles: address(ranks_at),
                target_remote_qpns: address(pairs_at),
                target_qkey: address(keys + context * targets * 4),
                local_cntr_value: lines.device + index as u64 * 128 + 64,
                sq_size: depth,
                ..Poster::default()
            }
        };
        for counter in 0..counters {
            let index = context * counters + counter;
            let at = counter_handles + index * size_of::<CounterHandle>();
            let base = poster(OWN_QUEUES + counter);
            image.place(at, CounterHandle { base, cntr_value: base.local_cntr_value, cntr_offset: 0 });
            image.place(counter_pointers + index * 8, address(at));
        }
        for signal in 0..signals {
            let index = context * signals + signal;
            let at = signal_handles + index * size_of::<CounterHandle>();
            let cntr_value = signal_words + index as u64 * 8;
            image.place(at, CounterHandle { cntr_value, ..CounterHandle::default() });
            image.place(signal_pointers + index * 8, address(at));
        }
        let some = |at: usize, count: usize| if count > 0 { address(at) } else { 0 };
        let handle = ContextHandle {
            data: poster(0),
            pvdata: poster(1),
            counter_handles: some(counter_pointers + context * counters * 8, counters),
            signal_handles: some(signal_pointers + context * signals * 8, signals),
            counters: counters as i32,
            signals: signals as i32,
            nranks: ranks as i32,
            rank: coll.rank as i32,
            // Addresses and keys of puts without bytes: all zero.
            scratch_remote_addrs: address(scratch),
            scratch_remote_rkeys: address(scratch),
            ..ContextHandle::default()
        };
        image.place(handles + context * size_of::<ContextHandle>(), handle);
    }
    // SAFETY: memory of that length, which no kernel knows yet.
    unsafe { arena.write(image.address, &image.bytes) }?;
    drop(arena);
    let block = Arc::new(Block { queues, contexts, signals, region });
    coll.add_queues(block.clone());
    Ok((block, base + handles as u64))
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
