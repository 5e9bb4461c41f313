//! Collectives from inside kernels: memory, signals and launch parameters of a rank.
//!
//! A [`Collective`] has the memory for a list of requests. [`prepare`](Collective::prepare) selects the kernel, its
//! blocks and its threads for a request, based on measured thresholds (`thresholds.rs`) that a [`Tuning`] can replace.

mod prepare;
mod shape;
mod thresholds;

pub use prepare::Prepared;
pub use shape::{CallScope, CollectiveOperation, Element, ResultPlacement, Shape};

use crate::{GinError, Inbox, Program, Signal, Sym, World};
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, Device, DeviceError, MemoryLocation, Stream};
use kernels::collective::{BlockCounters, CollectiveKernelArgs, SIGNALS_OF_BLOCK, stores};
use kernels::gin::USER_SIGNALS;
use std::time::{Duration, Instant};
use thresholds::{limit, most, parts, scratch};

/// Values that replace measured thresholds. They must be the same on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Maximum number of bytes that a rank sends to all others as messages.
    pub message_limit: Option<u64>,
    /// Smallest chunk that is transferred within a node by stores of small parts that warps take from a queue.
    pub stores_from: Option<u64>,
    /// Number of bytes of a chunk that are stored at the summing PE before it starts to sum them.
    pub piece: Option<u64>,
    /// Threads per block, for [`CallScope::Block`].
    pub block: Option<u32>,
}

/// An operation, and the method by which it is performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveRequest {
    /// Operation and size.
    pub shape: Shape,
    /// Element type.
    pub element: Element,
    /// Location of the results.
    pub place: ResultPlacement,
    /// Threads that make the calls.
    pub scope: CallScope,
    /// Whether a kernel waits for each put.
    pub blocking: bool,
    /// Whether the chunks of an all-to-all for another node are first gathered at the rank of this node that sends
    /// them.
    pub gathered: bool,
    /// Whether a launch may start while the previous one runs.
    pub overlap: bool,
    /// Maximum bytes of a put. 0 selects a whole slice.
    pub packet: u64,
    /// Number of blocks. 0 selects a number by size.
    pub grid: u32,
    /// Root of a broadcast.
    pub root: u32,
    /// Whether this rank drops all its puts but sends its signals, for tests.
    pub mute: bool,
}

/// Memory and signals of a rank for collectives, in a separate world.
#[derive(Debug)]
pub struct Collective {
    /// The world.
    pub world: World,
    /// Number of ranks per node.
    pub local: u32,
    /// Start and end of each block of a launch, in nanoseconds.
    pub times: Buffer,
    from: Sym<u8>,
    to: Sym<u8>,
    scratch: Sym<u8>,
    inboxes: [Inbox; 2],
    signals: Signal,
    queue_signals: Signal,
    /// Maximum number of blocks, for which `state` and the inboxes have space.
    blocks: u32,
    /// Number of multiprocessors of the smallest device.
    processors: u32,
    parts: u32,
    state: Buffer,
    queue: Buffer,
    message_limit: u64,
    threads: u32,
    tuning: Tuning,
}

/// Bytes and puts that the kernels of a rank have moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelTotals {
    /// Bytes stored to or loaded from mapped heaps.
    pub mapped: u64,
    /// Number of puts and messages.
    pub puts: u64,
}

/// Returns an upper bound of the heap size among `ranks` ranks. `several` indicates that they may form several nodes.
/// Called before the world is opened, when it is not yet known whether rails are needed.
pub fn heap_bytes(tuning: &Tuning, requests: &[CollectiveRequest], ranks: u64, several: bool) -> u64 {
    let (input, output) = (most(requests, Shape::input), most(requests, |shape| shape.bytes));
    let inbox = [(false, false), (true, false), (true, true)].map(|(mapped, emulated)| {
        let (part, count) = parts(tuning, ranks, mapped, emulated);
        2 * u64::from(count) * Inbox::bytes(part, ranks as u32)
    });
    // There are at most as many nodes as ranks.
    let several = if several { scratch(tuning, requests, ranks) } else { 0 };
    let scratch = several.max(scratch(tuning, requests, 1));
    input + output + inbox.into_iter().max().unwrap_or(0) + scratch + (1 << 16)
}

/// Returns the minimum of `mine` over all ranks. This is a collective call.
fn least(mine: u32, what: &str, ranks: &mut Bootstrap) -> Result<u32, GinError> {
    Ok(ranks.all_gather_values(&mine, what)?.into_iter().min().unwrap_or(mine))
}

impl Collective {
    /// Allocates memory and signals for these requests in a world whose nodes have `local` ranks each. This is a
    /// collective call.
    ///
    /// # Errors
    /// Returns [`GinError::Usage`] if the requested blocks need more signals than a world has, or an error of the
    /// device or the ranks.
    pub fn open(
        mut world: World,
        local: u32,
        requests: &[CollectiveRequest],
        tuning: Tuning,
        ranks: &mut Bootstrap,
    ) -> Result<Collective, GinError> {
        let pes = u64::from(world.n_pes());
        let mapped = local == world.n_pes();
        let device = world.device().clone();
        let emulated = matches!(device, Device::Emulated);
        let (part, parts) = parts(&tuning, pes, mapped, emulated);
        let processors = if emulated { 4 } else { device.multiprocessors()? };
        let processors = least(processors, "multiprocessors", ranks)?;
        let blocks = requests.iter().map(|request| request.grid).max().unwrap_or(0).max(parts).max(processors);
        // Signals of both inboxes, if rails are used.
        let mail = if mapped { 1 } else { 2 * parts * world.n_pes() };
        let needed = blocks * SIGNALS_OF_BLOCK + mail + stores::SIGNALS;
        if needed > USER_SIGNALS {
            let text = format!("{blocks} blocks require {needed} signals, and a world has {USER_SIGNALS}");
            return Err(GinError::Usage(text));
        }
        let scratch = scratch(&tuning, requests, pes / u64::from(local));
        let inbox = u64::from(parts) * Inbox::bytes(part, world.n_pes());
        let room = world.alloc::<u8>(ranks, 2 * inbox)?;
        let mails = world.signals(ranks, mail)?;
        let inboxes = [0, 1].map(|which| Inbox {
            offset: room.offset() + u64::from(which) * inbox,
            capacity: part,
            signals: mails.at(which * mail / 2),
        });
        Ok(Collective {
            local,
            from: world.alloc(ranks, most(requests, Shape::input).max(16))?,
            to: world.alloc(ranks, most(requests, |shape| shape.bytes).max(16))?,
            scratch: world.alloc(ranks, scratch.max(16))?,
            inboxes,
            signals: world.signals(ranks, blocks * SIGNALS_OF_BLOCK)?,
            queue_signals: world.signals(ranks, stores::SIGNALS)?,
            blocks,
            processors,
            parts,
            state: device.allocate(MemoryLocation::Device, blocks as usize * size_of::<BlockCounters>())?,
            queue: device.allocate(MemoryLocation::Device, stores::WORDS * 8)?,
            times: device.allocate(MemoryLocation::Device, blocks as usize * 16)?,
            message_limit: limit(&tuning, pes, mapped, emulated),
            threads: tuning.block.unwrap_or(if emulated { 32 } else { 512 }),
            tuning,
            world,
        })
    }

    /// Returns input and output. `None` if the operation has no in-place form.
    pub fn memory(&self, place: ResultPlacement, shape: &Shape) -> Option<(Sym<u8>, Sym<u8>)> {
        match place {
            ResultPlacement::OutOfPlace => Some((self.from.slice(0, shape.input()), self.to.slice(0, shape.output()))),
            ResultPlacement::InPlace => shape
                .in_place(u64::from(self.world.my_pe()))
                .map(|(input, output)| (self.to.slice(input, shape.input()), self.to.slice(output, shape.output()))),
        }
    }

    /// Appends one launch of `warmup` and then `turns` iterations.
    ///
    /// # Errors
    /// Returns an error if the device rejects the launch.
    pub fn append(&self, prepared: &Prepared, stream: &Stream, warmup: u32, turns: u32) -> Result<(), DeviceError> {
        let args = CollectiveKernelArgs { warmup, turns, ..prepared.args };
        let program = Program { world: self.world.description(), args };
        // SAFETY: the arguments belong to this world and have a state and stamps for every block. They are freed only
        // after a wait for the stream. All of these kernels wait for preceding grids before they access memory.
        unsafe {
            match prepared.early {
                true => stream.launch_early(&prepared.function, prepared.grid, prepared.block, program),
                false => stream.launch(&prepared.function, prepared.grid, prepared.block, program),
            }
        }
    }

    /// Returns the totals so far, as counted by the kernels.
    ///
    /// # Errors
    /// Returns an error if the device cannot be read.
    pub fn moved(&self) -> Result<KernelTotals, DeviceError> {
        let mut states = vec![BlockCounters::default(); self.blocks as usize];
        self.state.read(0, &mut states)?;
        let sum = |of: fn(&BlockCounters) -> u64| states.iter().map(of).sum::<u64>();
        let mut queue = [0; stores::WORDS];
        self.queue.read(0, &mut queue)?;
        Ok(KernelTotals {
            mapped: sum(|state| state.mapped_bytes) + queue[stores::MAPPED_BYTES],
            puts: sum(|state| state.puts) + queue[stores::PUTS],
        })
    }

    /// Checks that every signal was raised as often as kernels have waited for it. A missing wait would let a later
    /// iteration start too early, without necessarily causing a wrong byte. Signals for later waits (acknowledgements
    /// for the next broadcast) may still be in flight: completion at the sender does not imply that the target was
    /// notified. Returns the block and signal if a signal does not reach its count within `timeout`.
    ///
    /// # Errors
    /// Returns an error if the device cannot be read.
    pub fn check_signals(&self, timeout: Duration) -> Result<Result<(), String>, GinError> {
        let mut states = vec![BlockCounters::default(); self.blocks as usize];
        self.state.read(0, &mut states)?;
        let mut queue = [0; stores::WORDS];
        self.queue.read(0, &mut queue)?;
        let of_block = |(block, state): (u32, &BlockCounters)| {
            let counted = (0..).zip(state.counted);
            let signals = counted.map(move |(number, counted)| {
                let signal = self.signals.at(block * SIGNALS_OF_BLOCK + number);
                (signal, counted, format!("block {block}: signal {number}"))
            });
            signals.collect::<Vec<_>>()
        };
        let of_queue = (0..).zip(&queue[stores::COUNTED..]).map(|(number, counted)| {
            (self.queue_signals.at(number), *counted, format!("signal {number} of the queue"))
        });
        for (signal, counted, name) in (0..).zip(&states).flat_map(of_block).chain(of_queue) {
            let mut raised = self.world.signal(signal)?;
            let began = Instant::now();
            while raised < counted && began.elapsed() < timeout {
                std::thread::yield_now();
                raised = self.world.signal(signal)?;
            }
            if raised != counted {
                return Ok(Err(format!("{name} was waited for {counted} times but raised {raised} times")));
            }
        }
        Ok(Ok(()))
    }

    /// Closes the world. This is a collective call.
    ///
    /// # Errors
    /// Returns the same errors as [`World::close`].
    pub fn close(self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        let Collective { world, state, queue, times, .. } = self;
        drop((state, queue, times));
        world.close(ranks)
    }
}
