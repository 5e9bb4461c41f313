//! Launch parameters of an operation: kernel, blocks, threads, and how the bytes are divided.

use super::thresholds::{
    BLOCKS_OF_RAILS, FEW, FEW_BLOCKS, FEW_BLOCKS_OF_MANY, LEAN_THREADS, NARROW, SLICE, SLICE_OF_RAILS, WIDE, by_stores,
    each, messages_fit, overlap_fits, store_grid, two_trips,
};
use super::{CallScope, Collective, CollectiveOperation, CollectiveRequest, Shape, least};
use crate::{GinError, Program, Sym};
use cuda_std::Kernel;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Device, Function};
use kernels::collective::{
    BLOCKING, CollectiveKernelArgs, GATHERED, MUTE, TWO_TRIPS, messages, puts, slice_bytes, stores, words,
};

/// Name of the exchanged number of resident blocks. All ranks launch the largest grid that is resident on every device.
const BLOCKS: &str = "number of resident blocks";

type CollectiveKernel = Kernel<Program<CollectiveKernelArgs>>;

/// Launch parameters of a request.
pub struct Prepared {
    /// The kernel.
    pub kernel: CollectiveKernel,
    pub(super) function: Function<Program<CollectiveKernelArgs>>,
    /// Number of blocks.
    pub grid: u32,
    /// Threads per block.
    pub block: u32,
    /// Whether bytes are sent as messages.
    pub by_messages: bool,
    /// Whether bytes are stored in small parts from one queue.
    pub by_stores: bool,
    /// Whether its grid may start while the previous one still runs.
    pub early: bool,
    /// The input.
    pub from: Sym<u8>,
    /// The output.
    pub to: Sym<u8>,
    pub(super) args: CollectiveKernelArgs,
}

/// Kernel and grid of a request.
struct Plan {
    kernel: CollectiveKernel,
    grid: u32,
    block: u32,
    by_messages: bool,
    /// Bytes of a piece, for stores from a queue.
    piece: Option<u64>,
    /// Bytes of one message.
    message: u64,
    two_trips: bool,
}

impl Collective {
    /// Returns the launch parameters of a request. The inner error is a one-line reason if the request is not
    /// supported. This is a collective call.
    ///
    /// # Errors
    /// Returns an error of the device or the ranks.
    pub fn prepare(
        &self,
        request: &CollectiveRequest,
        ranks: &mut Bootstrap,
    ) -> Result<Result<Prepared, String>, GinError> {
        let (from, to) = match self.check(request) {
            Ok(memory) => memory,
            Err(why) => return Ok(Err(why)),
        };
        let plan = self.plan(request, ranks)?;
        let args = self.args(request, &plan, (from, to));
        let Plan { kernel, grid, block, by_messages, piece, .. } = plan;
        let device = self.world.device();
        device.check_grid(grid, block)?;
        device.check_resident(&kernel, grid, block)?;
        let function = device.function(&kernel, block)?;
        let early = request.overlap && overlap_fits(grid, device.resident_blocks(&kernel, block)?, device.sharers());
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

    /// Returns input and output of a request, or a one-line reason if the request is not supported.
    fn check(&self, request: &CollectiveRequest) -> Result<(Sym<u8>, Sym<u8>), String> {
        let (operation, pes) = (request.shape.operation, self.world.n_pes());
        let memory = self.memory(request.place, &request.shape);
        let memory = memory.ok_or_else(|| format!("{} has no in-place form", operation.name()))?;
        if request.blocking && operation.sums() && self.local == pes {
            return Err("sums within a node use loads, and there are no puts to wait for".into());
        }
        if request.gathered && (self.local == pes || self.local == 1) {
            return Err("gathered: requires several nodes, each with several ranks whose heaps are mapped".into());
        }
        Ok(memory)
    }

    /// Selects kernel and grid. This is a collective call.
    fn plan(&self, request: &CollectiveRequest, ranks: &mut Bootstrap) -> Result<Plan, GinError> {
        let (shape, device) = (&request.shape, self.world.device());
        let emulated = matches!(device, Device::Emulated);
        let mapped = self.local == self.world.n_pes();
        let two_trips = mapped && two_trips(shape);
        let message = if two_trips { shape.chunk } else { shape.message() };
        let few = self.tuning.block.unwrap_or(if emulated { self.threads.min(NARROW) } else { LEAN_THREADS as u32 });
        let (kernel, block) = self.kernel(request, true, few);
        // Number of blocks that are resident on the GPU at the same time, together with those of other PEs that share
        // it.
        let room = least(device.resident_blocks(&kernel, block)?, BLOCKS, ranks)?;
        let each = each(self.inboxes[0].capacity, mapped, emulated);
        let lean = message.div_ceil(each).clamp(1, self.parts.into()) as u32;
        let parts = if request.grid == 0 { lean.min(room).max(1) } else { request.grid };
        // The kernels count words in 32 bits.
        let fits =
            messages_fit(message, parts, self.parts, self.inboxes[0].capacity) && shape.chunk <= u64::from(u32::MAX);
        let by_messages = fits && message <= self.message_limit && request.packet == 0 && !request.gathered;
        // Stores from a queue have no separate puts to limit or to wait for.
        let stores = mapped && !by_messages && request.packet == 0 && !request.blocking;
        let piece = if stores { by_stores(&self.tuning, shape) } else { None };
        let threads = self.tuning.block.unwrap_or(match piece {
            Some(_) => self.threads.min(store_grid(shape.operation).1),
            None if shape.chunk < WIDE || by_messages => self.threads.min(NARROW),
            None => self.threads,
        });
        let (kernel, block) = self.kernel(request, by_messages, threads);
        let kernel = if piece.is_some() { stores::COLLECTIVE_STORES } else { kernel };
        let resident = least(device.resident_blocks(&kernel, block)?, BLOCKS, ranks)?;
        let grid = match request.grid {
            0 if by_messages => parts,
            0 if emulated => (shape.chunk / 1024).clamp(1, 4) as u32,
            0 if !mapped => (shape.chunk / SLICE_OF_RAILS).clamp(1, BLOCKS_OF_RAILS.min(resident).max(1).into()) as u32,
            0 if piece.is_some() => store_grid(shape.operation).0.min(resident).max(1),
            0 => self.puts_grid(shape, resident),
            grid => grid,
        };
        // One thread per 8 bytes of a message, because further threads would have no word to wait for.
        let lean = by_messages && request.scope == CallScope::Block && self.tuning.block.is_none() && !emulated;
        let block = if lean {
            slice_bytes(message, grid).div_ceil(8).next_multiple_of(32).clamp(32, LEAN_THREADS) as u32
        } else {
            block
        };
        Ok(Plan { kernel, grid, block, by_messages, piece, message, two_trips })
    }

    /// Returns the kernel for messages or puts, and its threads per block, at most `threads`.
    fn kernel(&self, request: &CollectiveRequest, by_messages: bool, threads: u32) -> (CollectiveKernel, u32) {
        let pes = self.world.n_pes();
        let mapped = self.local == pes;
        // A broadcast sends from one rank to all others and is not an exchange.
        let by_words = mapped && request.shape.operation != CollectiveOperation::Broadcast;
        let [by_thread, by_warp, by_block] = match (by_messages, by_words, mapped) {
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
        match request.scope {
            CallScope::Thread => (by_thread, 1),
            CallScope::Warp => (by_warp, 32),
            CallScope::Block => (by_block, threads),
        }
    }

    /// Returns the number of blocks for puts within a node, according to the table in
    /// experiments/collectives/README.md.
    fn puts_grid(&self, shape: &Shape, resident: u32) -> u32 {
        let processors = self.processors;
        // Sums need many outstanding loads. Stores in both directions are faster with fewer blocks, in particular if
        // the operation also copies within the GPU.
        let most = match (shape.operation, shape.ranks) {
            _ if shape.operation.sums() || shape.chunk < FEW => processors,
            (CollectiveOperation::AllToAll, 2) => FEW_BLOCKS,
            (_, 2) => processors,
            _ => FEW_BLOCKS_OF_MANY,
        };
        (shape.chunk / SLICE).clamp(1, most.min(resident).max(1).into()) as u32
    }

    /// Returns the kernel's arguments.
    fn args(&self, request: &CollectiveRequest, plan: &Plan, (from, to): (Sym<u8>, Sym<u8>)) -> CollectiveKernelArgs {
        let (shape, pes) = (&request.shape, self.world.n_pes());
        let flag = |condition: bool, flag: u32| if condition { flag } else { 0 };
        let flags = flag(request.blocking, BLOCKING) | flag(request.mute, MUTE) | flag(request.gathered, GATHERED);
        let whole = if plan.by_messages { plan.message } else { plan.piece.unwrap_or(shape.chunk) };
        // Chunks are not split if there are no more blocks than target ranks.
        let (others, run) = match request.gathered {
            true => (pes / self.local - 1, u64::from(self.local)),
            false => (pes - self.local, 1),
        };
        let parts = (plan.grid / others.max(1)).max(1);
        CollectiveKernelArgs {
            operation: shape.operation as u32,
            element: request.element as u32,
            flags: flags | flag(plan.by_messages && plan.two_trips, TWO_TRIPS),
            local: self.local,
            root: request.root,
            warmup: 0,
            turns: 1,
            chunk: shape.chunk,
            bytes: shape.bytes,
            whole,
            slice: slice_bytes(whole, plan.grid),
            packet: if request.packet == 0 { 1 << 40 } else { request.packet },
            parts,
            part: match plan.piece {
                Some(_) => stores::part_bytes(pes),
                None => slice_bytes(run * shape.chunk, parts),
            },
            from,
            to,
            scratch: self.scratch,
            inboxes: self.inboxes,
            signals: self.signals,
            queue: self.queue.pointer(),
            queue_signals: self.queue_signals,
            state: self.state.pointer(),
            times: self.times.pointer(),
        }
    }
}
