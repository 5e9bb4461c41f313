//! Construction of a block: its numbers, its layout in memory, and the data that the kernels read there.

use super::keys::{CONTEXT_BITS, key};
use super::layout::{ContextHandle, CounterHandle, EfaCudaQp, Image, Poster, RequestPlaces, WorkQueue};
use super::{Arena, BATCH, DeviceCounter, Pinned, QueueBlock, QueueView, SLOT};
use crate::abi::GinConfig;
use crate::coll::{Coll, PluginRegion};
use crate::operation::Counter;
use crate::process::locked;
use efa_queue::request::INLINE_128;
use std::sync::Arc;

/// Number of slots of a queue if NCCL specifies no depth, and the limits of a specified depth.
const DEPTH: u32 = 512;
const SHALLOWEST: u32 = 64;
const DEEPEST: u32 = 4096;
/// Maximum number of bytes of a block's slots, and of its tables.
const MOST_BYTES: u64 = 4 << 30;
/// Maximum number of slots of all queues of a block; with more, the depth of queues is reduced.
const MOST_SLOTS: u64 = 1 << 20;
/// Number of queues of a context in addition to those of its counters.
const OWN_QUEUES: usize = 2;
/// Distance between two [`EfaCudaQp`]s in bytes.
const PAIR: usize = 256;
/// Distance in bytes between the lines of two queues. A line contains the doorbell. Half a line after it is the
/// counter, which another thread writes.
const LINE: usize = 128;
const COUNTER_IN_LINE: usize = 64;
const SCRATCH_IN_LINE: usize = COUNTER_IN_LINE + 8;
const HANDLE: usize = size_of::<ContextHandle>();
const COUNTER_HANDLE: usize = size_of::<CounterHandle>();

/// Returns a number of NCCL's configuration, which must not be negative or exceed `most`.
fn count(what: &str, value: i32, most: usize) -> Result<usize, String> {
    usize::try_from(value)
        .ok()
        .filter(|value| *value <= most)
        .ok_or_else(|| format!("{value} {what}: this plugin supports 0 to {most}"))
}

/// Dimensions of a block.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ranks: usize,
    contexts: usize,
    /// Number of signals per context.
    signals: usize,
    /// Number of counters per context.
    counters: usize,
    /// Number of slots per queue.
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
        while shape.depth > SHALLOWEST && shape.queues() as u64 * u64::from(shape.depth) > MOST_SLOTS {
            shape.depth /= 2;
        }
        let slots = shape.queues() as u64 * shape.ring() as u64;
        let tables = Places::of(&shape).bytes as u64;
        if slots.max(tables) > MOST_BYTES {
            return Err(format!(
                "{contexts} contexts of {counters} counters and {signals} signals for {ranks} ranks need {slots} B of \
                 queues and {tables} B of tables: at most {MOST_BYTES} B each are supported"
            ));
        }
        Ok(shape)
    }

    /// Returns the number of queues per context.
    fn each(&self) -> usize {
        OWN_QUEUES + self.counters
    }

    fn queues(&self) -> usize {
        self.contexts * self.each()
    }

    /// Returns the number of targets of a request: each rank, without a signal and with each signal.
    fn targets(&self) -> usize {
        (1 + self.signals) * self.ranks
    }

    /// Returns the number of bytes of a queue's slots.
    fn ring(&self) -> usize {
        self.depth as usize * SLOT
    }

    /// Returns the number of bytes of all signals' words; without signals, one word that is never written.
    fn signal_bytes(&self) -> usize {
        (self.contexts * self.signals * 8).max(8)
    }
}

/// Offsets in the block's device memory, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    handles: usize,
    pairs: usize,
    /// Tables of address handles and queue pairs, by target.
    target_ranks: usize,
    target_pairs: usize,
    /// Table of queue keys, by context and target.
    keys: usize,
    counter_pointers: usize,
    signal_pointers: usize,
    counter_handles: usize,
    signal_handles: usize,
    /// Location of the addresses and keys of puts without bytes, which are all zero.
    scratch: usize,
    /// Total length.
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

/// A block under construction: its memory is allocated, and nothing refers to it yet.
struct Making {
    shape: Shape,
    places: Places,
    /// Slots of all queues.
    rings: Pinned,
    /// Doorbells and counters of all queues.
    lines: Pinned,
    /// Copies of the counters in GPU memory; `None` if kernels read the counters in pinned memory.
    counters: Option<u64>,
    /// Words of the signals in GPU memory, and the number of their region.
    signals: u64,
    region: u32,
    rank: usize,
    image: Image,
}

impl Making {
    fn allocate(coll: &Coll, arena: &mut Arena, shape: Shape, region: u32) -> Result<Making, String> {
        let (rings, lines) = (arena.pinned(shape.queues() * shape.ring())?, arena.pinned(shape.queues() * LINE)?);
        let signals = arena.device(shape.signal_bytes())?;
        // The copy engines would need a driver call for each update.
        let counters = coll.settings.by_kernel.map(|_| arena.device(shape.queues() * 8)).transpose()?;
        if region >> (32 - CONTEXT_BITS) != 0 {
            return Err(format!("region {region}: a key cannot hold numbers above {}", 1 << (32 - CONTEXT_BITS)));
        }
        let places = Places::of(&shape);
        let image = Image { address: arena.device(places.bytes)?, bytes: vec![0; places.bytes] };
        let bytes = shape.signal_bytes() as u64;
        coll.register(region, PluginRegion { address: signals, bytes, cuda: true, never_reset: true });
        Ok(Making { shape, places, rings, lines, counters, signals, region, rank: coll.rank, image })
    }

    fn address(&self, at: usize) -> u64 {
        self.image.address + at as u64
    }

    /// Returns the address of a table, or 0 if it is empty.
    fn table(&self, at: usize, entries: usize) -> u64 {
        if entries > 0 { self.address(at) } else { 0 }
    }

    /// Returns the plugin's view of a queue.
    fn queue(&self, index: usize) -> QueueView {
        let line = self.lines.host + (index * LINE) as u64;
        // SAFETY: the word belongs to the arena, which is dropped with the communicator. Requests are dropped with the
        // endpoint, which holds the communicator.
        let counter = unsafe { Counter::at(line + COUNTER_IN_LINE as u64) };
        let scratch = line + SCRATCH_IN_LINE as u64;
        QueueView {
            slots: self.rings.host + (index * self.shape.ring()) as u64,
            doorbell: line,
            counter,
            mirror: self.counters.map(|counters| DeviceCounter { device: counters + index as u64 * 8, scratch }),
            depth: self.shape.depth,
            context: (index / self.shape.each()) as u16,
        }
    }

    /// Writes the kernels' view of a queue.
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
        self.image.place(self.places.pairs + index * PAIR, EfaCudaQp { send, places, ..EfaCudaQp::default() });
    }

    /// Writes the tables of targets.
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

    /// Returns the kernels' endpoint handle for queue `queue` of a context.
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

/// Creates a block. Also returns the address of its context handles, for the kernels.
///
/// # Errors
/// Returns a one-line error for an invalid number in `config`, or the driver's error.
pub fn build(coll: &Coll, config: &GinConfig) -> Result<(Arc<QueueBlock>, u64), String> {
    // Reserves the number before any step can fail, because the other ranks reserve the same number.
    let region = coll.reserve();
    build_as(coll, config, region).inspect_err(|_| coll.deregister(region))
}

fn build_as(coll: &Coll, config: &GinConfig, region: u32) -> Result<(Arc<QueueBlock>, u64), String> {
    let shape = Shape::of(config, coll.ranks)?;
    let mut arena = locked(&coll.arena);
    let mut making = Making::allocate(coll, &mut arena, shape, region)?;
    making.place_targets();
    (0..shape.queues()).for_each(|index| making.place_pair(index));
    for context in 0..shape.contexts {
        making.place_counters(context);
        making.place_signals(context);
        making.place_handle(context);
    }
    let Making { image, region, places, .. } = &making;
    // SAFETY: memory of that length, which no kernel uses yet.
    unsafe { arena.write(image.address, &image.bytes) }?;
    drop(arena);
    let queues = (0..shape.queues()).map(|index| making.queue(index)).collect();
    let block = Arc::new(QueueBlock { queues, contexts: shape.contexts, signals: shape.signals, region: *region });
    coll.add_queues(block.clone());
    Ok((block, making.address(places.handles)))
}
