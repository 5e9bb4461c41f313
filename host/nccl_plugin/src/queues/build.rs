//! How a block is made: its numbers, its places in memory, and what the kernels read there.

use super::keys::{CONTEXT_BITS, key};
use super::layout::{ContextHandle, CounterHandle, Image, Pair, Poster, RequestPlaces, WorkQueue};
use super::{Arena, Block, Mirror, Pinned, Queue, SLOT};
use crate::abi::GinConfig;
use crate::coll::{Coll, Region};
use crate::operation::Counter;
use crate::process::locked;
use efa_queue::request::INLINE_128;
use std::sync::Arc;

/// Requests behind a doorbell at most: as cards have it, of 128 bytes.
const BATCH: u32 = 16;
/// Slots of a queue where NCCL names no number, and bounds of what it may name.
const DEPTH: u32 = 512;
const SHALLOWEST: u32 = 64;
const DEEPEST: u32 = 4096;
/// Slots of all queues of a block; with more, queues are shallower.
const MOST_SLOTS: u32 = 1 << 20;
/// Queues of a context without counters.
const OWN_QUEUES: usize = 2;
/// From one [`Pair`] to the next.
const PAIR: usize = 256;
/// From one queue's line to the next: its doorbell, and half a line behind it its counter, which others write.
const LINE: usize = 128;
const COUNTER_IN_LINE: usize = 64;
const SCRATCH_IN_LINE: usize = COUNTER_IN_LINE + 8;
const HANDLE: usize = size_of::<ContextHandle>();
const COUNTER_HANDLE: usize = size_of::<CounterHandle>();

/// A number of NCCL's that must not be negative.
fn count(what: &str, value: i32, most: usize) -> Result<usize, String> {
    usize::try_from(value)
        .ok()
        .filter(|value| *value <= most)
        .ok_or_else(|| format!("{value} {what}: this plugin has 0 to {most}"))
}

/// How many there are of what.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ranks: usize,
    contexts: usize,
    /// Of each context.
    signals: usize,
    /// Of each context.
    counters: usize,
    /// Slots of a queue.
    depth: u32,
}

impl Shape {
    fn of(config: &GinConfig, ranks: usize) -> Result<Shape, String> {
        let contexts = count("contexts", config.contexts, 1 << CONTEXT_BITS)?.max(1);
        let signals = count("signals", config.signals, usize::from(u16::MAX) - 1)?;
        let counters = count("counters", config.counters, 1 << 10)?;
        let depth = match u32::try_from(config.queue_depth) {
            Ok(asked) if asked > 0 => asked.clamp(SHALLOWEST, DEEPEST).next_power_of_two(),
            _ => DEPTH,
        };
        let mut shape = Shape { ranks, contexts, signals, counters, depth };
        while shape.depth > SHALLOWEST && shape.queues() as u32 * shape.depth > MOST_SLOTS {
            shape.depth /= 2;
        }
        Ok(shape)
    }

    /// Queues of a context.
    fn each(&self) -> usize {
        OWN_QUEUES + self.counters
    }

    fn queues(&self) -> usize {
        self.contexts * self.each()
    }

    /// Whom a request may go to: each rank, without a signal and with each one.
    fn targets(&self) -> usize {
        (1 + self.signals) * self.ranks
    }

    /// Bytes of a queue's slots.
    fn ring(&self) -> usize {
        self.depth as usize * SLOT
    }

    /// Bytes of all signals' words; of none, a word that nobody writes.
    fn signal_bytes(&self) -> usize {
        (self.contexts * self.signals * 8).max(8)
    }
}

/// Where things stand in the block's memory of the device, from its first byte.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    handles: usize,
    pairs: usize,
    /// Address handles and queue pairs, by target.
    target_ranks: usize,
    target_pairs: usize,
    /// Their keys, by context and target.
    keys: usize,
    counter_pointers: usize,
    signal_pointers: usize,
    counter_handles: usize,
    signal_handles: usize,
    /// Addresses and keys of puts without bytes: all zero.
    scratch: usize,
    /// Of all.
    bytes: usize,
}

impl Places {
    fn of(shape: &Shape) -> Places {
        let mut places = Places::default();
        let next = &mut places.bytes;
        let mut take = |bytes: usize| {
            let at = *next;
            *next = (at + bytes).next_multiple_of(PAIR);
            at
        };
        let (counters, signals) = (shape.contexts * shape.counters, shape.contexts * shape.signals);
        let handles = take(shape.contexts * HANDLE);
        let pairs = take(shape.queues() * PAIR);
        let target_ranks = take(shape.targets() * 2);
        let target_pairs = take(shape.targets() * 2);
        let keys = take(shape.contexts * shape.targets() * 4);
        let counter_pointers = take(counters * 8);
        let signal_pointers = take(signals * 8);
        let counter_handles = take(counters * COUNTER_HANDLE);
        let signal_handles = take(signals * COUNTER_HANDLE);
        let scratch = take(shape.ranks * 8);
        let bytes = places.bytes;
        Places {
            handles,
            pairs,
            target_ranks,
            target_pairs,
            keys,
            counter_pointers,
            signal_pointers,
            counter_handles,
            signal_handles,
            scratch,
            bytes,
        }
    }
}

/// A block in the making: its memory is there, and nobody knows it yet.
struct Making {
    shape: Shape,
    places: Places,
    /// Slots of all queues.
    rings: Pinned,
    /// Their doorbells and counters.
    lines: Pinned,
    /// Words of the counters, where kernels read them in the GPU's memory.
    counters: Option<u64>,
    /// Words of the signals, and their region.
    signals: u64,
    region: u32,
    rank: usize,
    image: Image,
}

impl Making {
    fn allocate(coll: &Coll, arena: &mut Arena, shape: Shape) -> Result<Making, String> {
        let (rings, lines) = (arena.pinned(shape.queues() * shape.ring())?, arena.pinned(shape.queues() * LINE)?);
        let signals = arena.device(shape.signal_bytes())?;
        // By the copy engines each count would be a call of the driver.
        let counters = coll.settings.by_kernel.map(|_| arena.device(shape.queues() * 8)).transpose()?;
        let region = coll.register(Region {
            address: signals,
            bytes: shape.signal_bytes() as u64,
            cuda: true,
            never_reset: true,
        });
        if region >> (32 - CONTEXT_BITS) != 0 {
            return Err(format!("region {region}: a key has no room for more than {}", 1 << (32 - CONTEXT_BITS)));
        }
        let places = Places::of(&shape);
        let image = Image { address: arena.device(places.bytes)?, bytes: vec![0; places.bytes] };
        Ok(Making { shape, places, rings, lines, counters, signals, region, rank: coll.rank, image })
    }

    fn address(&self, at: usize) -> u64 {
        self.image.address + at as u64
    }

    /// A table's address; none of an empty one.
    fn table(&self, at: usize, entries: usize) -> u64 {
        if entries > 0 { self.address(at) } else { 0 }
    }

    /// A queue, for who reads it.
    fn queue(&self, index: usize) -> Queue {
        let line = self.lines.host + (index * LINE) as u64;
        // SAFETY: a word of the arena's, which goes with the communicator; requests go with the endpoint, which holds that.
        let counter = unsafe { Counter::at(line + COUNTER_IN_LINE as u64) };
        let scratch = line + SCRATCH_IN_LINE as u64;
        Queue {
            slots: self.rings.host + (index * self.shape.ring()) as u64,
            doorbell: line,
            counter,
            mirror: self.counters.map(|counters| Mirror { device: counters + index as u64 * 8, scratch }),
            depth: self.shape.depth,
            context: (index / self.shape.each()) as u16,
        }
    }

    /// The same queue, for who writes it.
    fn place_pair(&mut self, index: usize) {
        let depth = self.shape.depth;
        let send = WorkQueue {
            max_sge: 1,
            max_wqes: depth,
            queue_mask: depth - 1,
            queue_size_shift: depth.ilog2(),
            max_batch: BATCH,
            buf: self.rings.device + (index * self.shape.ring()) as u64,
            db: self.lines.device + (index * LINE) as u64,
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
        self.image.place(self.places.pairs + index * PAIR, Pair { send, places, ..Pair::default() });
    }

    /// Whom requests go to.
    fn place_targets(&mut self) {
        let Making { shape, places, image, .. } = self;
        for target in 0..shape.targets() {
            image.place(places.target_ranks + target * 2, (target % shape.ranks) as u16);
            image.place(places.target_pairs + target * 2, (target / shape.ranks) as u16);
        }
        for context in 0..shape.contexts {
            for target in 0..shape.targets() {
                image.place(places.keys + (context * shape.targets() + target) * 4, key(self.region, context));
            }
        }
    }

    /// Who posts to a context's queue of this number.
    fn poster(&self, context: usize, queue: usize) -> Poster {
        let Making { shape, places, .. } = self;
        let index = context * shape.each() + queue;
        Poster {
            qp: self.address(places.pairs + index * PAIR),
            target_address_handles: self.address(places.target_ranks),
            target_remote_qpns: self.address(places.target_pairs),
            target_qkey: self.address(places.keys + context * shape.targets() * 4),
            local_cntr_value: match self.counters {
                Some(counters) => counters + index as u64 * 8,
                None => self.lines.device + (index * LINE + COUNTER_IN_LINE) as u64,
            },
            sq_size: shape.depth,
            ..Poster::default()
        }
    }

    fn place_counters(&mut self, context: usize) {
        for counter in 0..self.shape.counters {
            let index = context * self.shape.counters + counter;
            let at = self.places.counter_handles + index * COUNTER_HANDLE;
            let base = self.poster(context, OWN_QUEUES + counter);
            self.image.place(at, CounterHandle { base, cntr_value: base.local_cntr_value, cntr_offset: 0 });
            self.image.place(self.places.counter_pointers + index * 8, self.address(at));
        }
    }

    fn place_signals(&mut self, context: usize) {
        for signal in 0..self.shape.signals {
            let index = context * self.shape.signals + signal;
            let at = self.places.signal_handles + index * COUNTER_HANDLE;
            let cntr_value = self.signals + index as u64 * 8;
            self.image.place(at, CounterHandle { cntr_value, ..CounterHandle::default() });
            self.image.place(self.places.signal_pointers + index * 8, self.address(at));
        }
    }

    fn place_handle(&mut self, context: usize) {
        let (shape, places) = (self.shape, self.places);
        let Shape { counters, signals, .. } = shape;
        let handle = ContextHandle {
            data: self.poster(context, 0),
            pvdata: self.poster(context, 1),
            counter_handles: self.table(places.counter_pointers + context * counters * 8, counters),
            signal_handles: self.table(places.signal_pointers + context * signals * 8, signals),
            counters: counters as i32,
            signals: signals as i32,
            nranks: shape.ranks as i32,
            rank: self.rank as i32,
            scratch_remote_addrs: self.address(places.scratch),
            scratch_remote_rkeys: self.address(places.scratch),
            ..ContextHandle::default()
        };
        self.image.place(self.places.handles + context * HANDLE, handle);
    }
}

/// Makes a block; what the kernels are given is the address of its contexts.
///
/// # Errors
/// Numbers that cannot be, and the driver's, in one line.
pub fn build(coll: &Coll, config: &GinConfig) -> Result<(Arc<Block>, u64), String> {
    let shape = Shape::of(config, coll.ranks)?;
    let mut arena = locked(&coll.arena);
    let mut making = Making::allocate(coll, &mut arena, shape)?;
    making.place_targets();
    (0..shape.queues()).for_each(|index| making.place_pair(index));
    for context in 0..shape.contexts {
        making.place_counters(context);
        making.place_signals(context);
        making.place_handle(context);
    }
    let Making { image, region, places, .. } = &making;
    // SAFETY: memory of that length, which no kernel knows yet.
    unsafe { arena.write(image.address, &image.bytes) }?;
    drop(arena);
    let queues = (0..shape.queues()).map(|index| making.queue(index)).collect();
    let block = Arc::new(Block { queues, contexts: shape.contexts, signals: shape.signals, region: *region });
    coll.add_queues(block.clone());
    Ok((block, making.address(places.handles)))
}
