//! ginlab's implementation: the world, and launches of its kernels.

use super::args::{Args, Launch, Mode, Route, Tuple};
use super::shape::{Operation, Place, Shape};
use super::thresholds::{
    BLOCKS_OF_RAILS, FEW, FEW_BLOCKS, FEW_BLOCKS_OF_MANY, LEAN_THREADS, NARROW, SLICE, SLICE_OF_RAILS, WIDE, by_stores,
    each, limit, messages_fit, most, overlap_fits, parts, scratch, store_grid, two_trips,
};
use crate::agreed::{self, Agreed};
use crate::error::Failure;
use crate::values::usage;
use crate::world::{self, Scope};
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, DeviceError, Function, Place as Where, Stream};
use ginlab::gin::{GinError, Inbox, Path, Program, Signal, Sym, World};
use kernels::collective::{
    BLOCKING, CollectiveArgs, GATHERED, MUTE, SIGNALS_OF_BLOCK, State, TWO_TRIPS, messages, puts, slice_bytes, stores,
    words,
};
use kernels::gin::USER_SIGNALS;
use std::time::Instant;

/// Name of the exchanged number of resident blocks. All ranks launch the largest grid that is resident on every device.
const BLOCKS: &str = "number of resident blocks";

/// Memory, signals and kernels of a rank.
pub struct Ours {
    pub world: World,
    pub agreed: Agreed,
    /// Number of ranks per node.
    pub local: u32,
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
    pub times: Buffer,
    message_limit: u64,
    threads: u32,
    args: Args,
}

/// Launch parameters of a tuple.
pub struct Prepared {
    pub kernel: Kernel<Program<CollectiveArgs>>,
    function: Function<Program<CollectiveArgs>>,
    pub grid: u32,
    pub block: u32,
    pub by_messages: bool,
    pub by_stores: bool,
    /// Whether its grid may start while the previous one still runs.
    pub early: bool,
    pub from: Sym<u8>,
    pub to: Sym<u8>,
    args: CollectiveArgs,
}

/// Bytes and puts that a rank has moved.
pub struct Moved {
    pub mapped: u64,
    pub puts: u64,
    pub rails: Vec<u64>,
}

/// Returns an upper bound of the heap size. Called before the world is opened, when it is not yet known whether rails
/// are needed.
pub fn heap_bytes(args: &Args, tuples: &[Tuple], ranks: &Bootstrap) -> u64 {
    let several = args.node_size.is_some() || matches!(args.path, Path::Rails | Path::Direct) || !ranks.same_host();
    let ranks = ranks.size() as u64;
    let (input, output) = (most(tuples, ranks, Shape::input), most(tuples, ranks, |shape| shape.bytes));
    let inbox = [(false, false), (true, false), (true, true)].map(|(mapped, emulated)| {
        let (part, count) = parts(args, ranks, mapped, emulated);
        2 * u64::from(count) * Inbox::bytes(part, ranks as u32)
    });
    // There are at most as many nodes as ranks.
    let several = if several { scratch(args, tuples, ranks, ranks) } else { 0 };
    let scratch = several.max(scratch(args, tuples, ranks, 1));
    input + output + inbox.into_iter().max().unwrap_or(0) + scratch + (1 << 16)
}

impl Ours {
    pub fn open(args: &Args, mut world: World, tuples: &[Tuple], ranks: &mut Bootstrap) -> Result<Ours, Failure> {
        let pes = u64::from(world.n_pes());
        // Ranks whose heaps are mapped.
        let mapped: Vec<u32> = (0..world.n_pes()).filter(|pe| world.is_mapped(*pe)).collect();
        let local = agreed::node_size(&mapped, ranks)?;
        let agreed = Agreed::of_all(&world, ranks)?;
        let mapped = local == world.n_pes();
        let emulated = matches!(world.device(), Device::Emulated);
        let (part, parts) = parts(args, pes, mapped, emulated);
        let threads = args.block.unwrap_or(if emulated { 32 } else { 512 });
        let processors = if emulated { 4 } else { world.device().multiprocessors()? };
        let processors = agreed::least(processors, "multiprocessors", ranks)?;
        let mut blocks = tuples.iter().map(|tuple| tuple.grid).max().unwrap_or(0).max(parts);
        blocks = blocks.max(processors);
        // Signals of both inboxes, if rails are used.
        let mail = if mapped { 1 } else { 2 * parts * world.n_pes() };
        let needed = blocks * SIGNALS_OF_BLOCK + mail + stores::SIGNALS;
        if needed > USER_SIGNALS {
            let text = format!("{blocks} blocks require {needed} signals, and a world has {USER_SIGNALS}");
            return Err(usage("--grid", text));
        }
        let nodes = pes / u64::from(local);
        let scratch = scratch(args, tuples, pes, nodes);
        let device = world.device().clone();
        let inbox = u64::from(parts) * Inbox::bytes(part, world.n_pes());
        let room = world.alloc::<u8>(ranks, 2 * inbox)?;
        let mails = world.signals(ranks, mail)?;
        let inboxes = [0, 1].map(|which| Inbox {
            offset: room.offset() + u64::from(which) * inbox,
            capacity: part,
            signals: mails.at(which * mail / 2),
        });
        Ok(Ours {
            local,
            from: world.alloc(ranks, most(tuples, pes, Shape::input).max(16))?,
            to: world.alloc(ranks, most(tuples, pes, |shape| shape.bytes).max(16))?,
            scratch: world.alloc(ranks, scratch.max(16))?,
            inboxes,
            signals: world.signals(ranks, blocks * SIGNALS_OF_BLOCK)?,
            queue_signals: world.signals(ranks, stores::SIGNALS)?,
            blocks,
            processors,
            parts,
            state: device.allocate(Where::Device, blocks as usize * size_of::<State>())?,
            queue: device.allocate(Where::Device, stores::WORDS * 8)?,
            times: device.allocate(Where::Device, blocks as usize * 16)?,
            message_limit: limit(args, pes, mapped, emulated),
            threads,
            args: args.clone(),
            world,
            agreed,
        })
    }

    /// Returns input and output. `None` if the operation has no in-place form.
    pub fn memory(&self, place: Place, shape: &Shape) -> Option<(Sym<u8>, Sym<u8>)> {
        match place {
            Place::OutOfPlace => Some((self.from.slice(0, shape.input()), self.to.slice(0, shape.output()))),
            Place::InPlace => shape
                .in_place(u64::from(self.world.my_pe()))
                .map(|(input, output)| (self.to.slice(input, shape.input()), self.to.slice(output, shape.output()))),
        }
    }

    /// Returns the launch parameters of a tuple. The inner error is a one-line reason if the tuple is not supported.
    pub fn prepare(
        &self,
        tuple: &Tuple,
        shape: &Shape,
        ranks: &mut Bootstrap,
    ) -> Result<Result<Prepared, String>, Failure> {
        let Some((from, to)) = self.memory(tuple.place, shape) else {
            return Ok(Err(format!("{} does not support --place in-place", shape.operation.name())));
        };
        if tuple.mode == Mode::Blocking && shape.operation.sums() && self.local == self.world.n_pes() {
            return Ok(Err("sums within a node use loads, and there are no puts to wait for".into()));
        }
        let (pes, emulated) = (self.world.n_pes(), matches!(self.world.device(), Device::Emulated));
        let mapped = self.local == pes;
        let gathered = tuple.route == Route::Gathered;
        if gathered && (mapped || self.local == 1) {
            return Ok(Err("gathered: requires several nodes, each with several ranks whose heaps are mapped".into()));
        }
        let two_trips = mapped && two_trips(shape);
        let message = if two_trips { shape.chunk } else { shape.message() };
        let each = each(self.inboxes[0].capacity, mapped, emulated);
        let lean = message.div_ceil(each).clamp(1, self.parts.into()) as u32;
        // A broadcast sends from one rank to all and is not an exchange.
        let by_words = mapped && shape.operation != Operation::Broadcast;
        let kernels = |by_messages: bool| match (by_messages, by_words, mapped) {
            (true, true, _) => {
                let by_block = if pes == 2 { words::COLLECTIVE_WORDS_PAIR } else { words::COLLECTIVE_WORDS_BLOCK };
                [words::COLLECTIVE_WORDS_THREAD, words::COLLECTIVE_WORDS_WARP, by_block]
            }
            (true, false, _) => [
                messages::COLLECTIVE_MESSAGES_THREAD,
                messages::COLLECTIVE_MESSAGES_WARP,
                messages::COLLECTIVE_MESSAGES_BLOCK,
            ],
            (false, _, true) => [puts::COLLECTIVE_PUTS_THREAD, puts::COLLECTIVE_PUTS_WARP, puts::COLLECTIVE_PUTS_BLOCK],
            (false, _, false) => {
                [puts::COLLECTIVE_NODES_THREAD, puts::COLLECTIVE_NODES_WARP, puts::COLLECTIVE_NODES_BLOCK]
            }
        };
        let of_scope = |by_messages: bool, threads: u32| {
            let [by_thread, by_warp, by_block] = kernels(by_messages);
            match tuple.scope {
                Scope::Thread => (by_thread, 1),
                Scope::Warp => (by_warp, 32),
                Scope::Block => (by_block, threads),
            }
        };
        let few = self.args.block.unwrap_or(if emulated { self.threads.min(NARROW) } else { LEAN_THREADS as u32 });
        let (kernel, block) = of_scope(true, few);
        // Number of blocks that are resident on the GPU at the same time, together with those of other PEs that share
        // it.
        let room = self.world.device().resident_blocks(&kernel, block)?;
        let room = agreed::least(room, BLOCKS, ranks)?;
        let parts = if tuple.grid == 0 { lean.min(room).max(1) } else { tuple.grid };
        let fits = messages_fit(message, parts, self.parts, self.inboxes[0].capacity);
        // The kernels count words in 32 bits.
        let fits = fits && shape.chunk <= u64::from(u32::MAX);
        let by_messages = fits && message <= self.message_limit && tuple.packet == 0 && !gathered;
        // Stores from a queue have no separate puts to limit or to wait for.
        let stores = mapped && !by_messages && tuple.packet == 0 && tuple.mode != Mode::Blocking;
        let piece = if stores { by_stores(&self.args, shape) } else { None };
        let threads = self.args.block.unwrap_or(match piece {
            Some(_) => self.threads.min(store_grid(shape.operation).1),
            None if shape.chunk < WIDE || by_messages => self.threads.min(NARROW),
            None => self.threads,
        });
        let (kernel, block) = of_scope(by_messages, threads);
        let kernel = if piece.is_some() { stores::COLLECTIVE_STORES } else { kernel };
        let resident = self.world.device().resident_blocks(&kernel, block)?;
        let resident = agreed::least(resident, BLOCKS, ranks)?;
        let grid = match tuple.grid {
            0 if by_messages => parts,
            0 if emulated => (shape.chunk / 1024).clamp(1, 4) as u32,
            0 if self.local < self.world.n_pes() => {
                (shape.chunk / SLICE_OF_RAILS).clamp(1, BLOCKS_OF_RAILS.min(resident).max(1).into()) as u32
            }
            0 if piece.is_some() => store_grid(shape.operation).0.min(resident).max(1),
            0 => self.puts_grid(shape, resident),
            grid => grid,
        };
        // One thread per 8 bytes of a message: further threads would have no word to wait for.
        let lean = by_messages && tuple.scope == Scope::Block && self.args.block.is_none() && !emulated;
        let block = if lean {
            slice_bytes(message, grid).div_ceil(8).next_multiple_of(32).clamp(32, LEAN_THREADS) as u32
        } else {
            block
        };
        self.world.device().check_grid(grid, block)?;
        self.world.device().check_resident(&kernel, grid, block)?;
        let flag = |condition: bool, flag: u32| if condition { flag } else { 0 };
        let whole = if by_messages { message } else { piece.unwrap_or(shape.chunk) };
        let ways = flag(by_messages && two_trips, TWO_TRIPS);
        let mute = self.args.mute == Some(self.world.my_pe());
        // Chunks are not split if there are no more blocks than target ranks.
        let (others, run) =
            if gathered { (pes / self.local - 1, u64::from(self.local)) } else { (pes - self.local, 1) };
        let parts = (grid / others.max(1)).max(1);
        let args = CollectiveArgs {
            operation: shape.operation as u32,
            element: tuple.element as u32,
            flags: flag(tuple.mode == Mode::Blocking, BLOCKING) | flag(mute, MUTE) | flag(gathered, GATHERED) | ways,
            local: self.local,
            root: self.args.root,
            warmup: 0,
            turns: 1,
            chunk: shape.chunk,
            bytes: shape.bytes,
            whole,
            slice: slice_bytes(whole, grid),
            packet: if tuple.packet == 0 { 1 << 40 } else { tuple.packet },
            parts,
            part: if piece.is_some() { stores::part_bytes(pes) } else { slice_bytes(run * shape.chunk, parts) },
            from,
            to,
            scratch: self.scratch,
            inboxes: self.inboxes,
            signals: self.signals,
            queue: self.queue.pointer(),
            queue_signals: self.queue_signals,
            state: self.state.pointer(),
            times: self.times.pointer(),
        };
        let function = self.world.device().function(&kernel, block)?;
        let device = self.world.device();
        let early = tuple.overlap && tuple.launch != Launch::Persistent;
        let early = early && overlap_fits(grid, device.resident_blocks(&kernel, block)?, device.sharers());
        Ok(Ok(Prepared {
            kernel,
            function,
            grid,
            block,
            by_messages,
            by_stores: piece.is_some(),
            early,
            from,
            to,
            args,
        }))
    }

    /// Returns the number of blocks for puts within a node.
    fn puts_grid(&self, shape: &Shape, resident: u32) -> u32 {
        let processors = self.processors;
        // Sums need many outstanding loads. Stores in both directions are faster with fewer blocks, in particular if
        // the operation also copies within the GPU.
        let most = match (shape.operation, shape.ranks) {
            _ if shape.operation.sums() || shape.chunk < FEW => processors,
            (Operation::AllToAll, 2) => FEW_BLOCKS,
            (_, 2) => processors,
            _ => FEW_BLOCKS_OF_MANY,
        };
        (shape.chunk / SLICE).clamp(1, most.min(resident).max(1).into()) as u32
    }

    /// Appends one launch of `warmup` and then `turns` iterations.
    pub fn append(&self, prepared: &Prepared, stream: &Stream, warmup: u32, turns: u32) -> Result<(), DeviceError> {
        let args = CollectiveArgs { warmup, turns, ..prepared.args };
        let program = Program { world: self.world.description(), args };
        // SAFETY: the arguments belong to this world and have a state and stamps for every block. The stream is waited
        // for before they are freed. All of these kernels wait for preceding grids before they access memory.
        unsafe {
            match prepared.early {
                true => stream.launch_early(&prepared.function, prepared.grid, prepared.block, program),
                false => stream.launch(&prepared.function, prepared.grid, prepared.block, program),
            }
        }
    }

    /// Returns the totals so far: bytes over mappings and puts as counted by the kernels, and bytes per rail as counted
    /// by the proxies.
    pub fn moved(&self) -> Result<Moved, Failure> {
        let mut states = vec![State::default(); self.blocks as usize];
        self.state.read(0, &mut states)?;
        let sum = |of: fn(&State) -> u64| states.iter().map(of).sum::<u64>();
        let rails = world::rail_bytes(&self.world)?;
        let mut queue = [0; stores::WORDS];
        self.queue.read(0, &mut queue)?;
        Ok(Moved {
            mapped: sum(|state| state.mapped_bytes) + queue[stores::MAPPED_BYTES],
            puts: sum(|state| state.puts) + queue[stores::PUTS],
            rails,
        })
    }

    /// Checks that every signal was raised as often as it was waited for. A missing wait would let a later iteration
    /// start too early, and might not cause a wrong byte. Signals that were waited for in advance (acknowledgements for
    /// the next broadcast) may still be in flight: completion at the sender does not imply that the target was
    /// notified.
    ///
    /// # Errors
    /// Returns [`Failure::Run`] with the block and signal if a signal does not reach its count within the timeout of
    /// the job.
    pub fn check_signals(&self) -> Result<(), Failure> {
        let mut states = vec![State::default(); self.blocks as usize];
        self.state.read(0, &mut states)?;
        for (block, state) in (0..).zip(&states) {
            for (number, counted) in (0..).zip(state.counted) {
                let signal = self.signals.at(block * SIGNALS_OF_BLOCK + number);
                self.check_signal(signal, counted, &format!("block {block}: signal {number}"))?;
            }
        }
        let mut queue = [0; stores::WORDS];
        self.queue.read(0, &mut queue)?;
        for (number, counted) in (0..).zip(&queue[stores::COUNTED..]) {
            self.check_signal(self.queue_signals.at(number), *counted, &format!("signal {number} of the queue"))?;
        }
        Ok(())
    }

    fn check_signal(&self, signal: Signal, counted: u64, name: &str) -> Result<(), Failure> {
        let mut raised = self.world.signal(signal)?;
        let began = Instant::now();
        while raised < counted && began.elapsed() < self.args.world.meet.timeout {
            std::thread::yield_now();
            raised = self.world.signal(signal)?;
        }
        if raised != counted {
            let text = format!("{name} was waited for {counted} times but raised {raised} times");
            return Err(Failure::Run(format!("bug in the collective's kernels: {text}")));
        }
        Ok(())
    }

    /// Closes the world. Collective.
    pub fn close(self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        let Ours { world, state, queue, times, .. } = self;
        drop((state, queue, times));
        world.close(ranks)
    }
}
