//! Collectives of many bytes within a node, by stores only: all warps of the grid take small parts of everything that
//! this PE sends from one queue.
//!
//! ```text
//! all-to-all, all-gather   ready?  >  each part, to every PE  >  done?
//! sums                     each part of the chunks that others sum, to their scratch memory  >  arrived?  >
//!                          sums of this PE's own chunk, to every PE (all-reduce) or to itself  >  done?
//! ```
//!
//! **Design.** Stores over NVLink are fastest if few are in flight. Stores to one PE should be within a short range,
//! and stores to different PEs at different offsets of the chunks. Warps that are late take fewer parts from the queue.
//!
//! **Pieces.** Sums are computed per piece of a chunk. Sums of a piece alternate with sends of the piece `LAG` later,
//! so that no warp waits for parts that have only just been sent. Each piece has its own signal, because a signal
//! shared by two pieces would not show which parts have arrived.
//!
//! **Progress.** A part to be sent waits for nothing after the start of the iteration. A part to be summed waits for
//! the parts of its piece from every PE, all of which precede it in those PEs' queues. An iteration ends when all warps
//! of all PEs have signalled that they found the queue empty. Everything has then arrived, and scratch memory may be
//! overwritten.

mod part;

use super::{ALL_GATHER, ALL_REDUCE, CallResult, CollectiveKernelArgs};
use crate::gin::signal::signal_word;
use crate::gin::{Program, Scope, WaitBudget, Warp, WorldView};
use crate::ring::Status;
use cuda_std::memory::{
    Word, add_relaxed_sys_u64, fence_acq_rel_sys, fetch_add_acq_rel_gpu_u64, fetch_add_relaxed_gpu_u64,
    load_acquire_sys_u64, load_relaxed_gpu_u64, store_relaxed_gpu_u64,
};
use cuda_std::{grid, kernel, thread, warp};

/// Maximum number of pieces of a chunk.
pub const PIECES: u32 = 16;
/// Number of PEs whose addresses and part vectors are held in registers at the same time.
const AT_ONCE: usize = 4;
/// Number of pieces sent before the first is summed, if a chunk has that many.
const LAG: u32 = 2;
/// Maximum number of parts by which a warp delays the signal of a finished piece. A fence waits for stores in flight,
/// and the warps should not all fence at the same time.
const APART: u32 = 8;

/// Returns the bytes of a part among `pes` PEs: 2 vectors per lane, and more if fewer PEs make the data of a part
/// smaller.
pub const fn part_bytes(pes: u32) -> u64 {
    match pes {
        0..=2 => 4096,
        3 => 2048,
        _ => 1024,
    }
}

/// Number of signals of the whole grid. They indicate that this PE may be written to, that a warp has found the queue
/// empty, and that parts of each piece have arrived.
pub const SIGNALS: u32 = 2 + PIECES;
const READY: u32 = 0;
const DONE: u32 = 1;
const PIECE: u32 = 2;

/// Number of words of [`CollectiveKernelArgs::queue`], which are zeroed once.
pub const WORDS: usize = COUNTED + SIGNALS as usize;
/// Index of the next queue number of this grid.
const TAKEN: usize = 0;
/// Number of warps of this grid that have finished.
const ENDED: usize = 1;
/// Index of the number of bytes stored to other PEs.
pub const MAPPED_BYTES: usize = 2;
/// Index of the number of parts sent to other PEs.
pub const PUTS: usize = 3;
/// First of the words that hold the value of each signal at the end of the previous grid.
pub const COUNTED: usize = 4;

/// Values that do not change during a launch. The arguments are kept by reference and are not passed to non-inlined
/// functions, so that they stay in parameter memory. This keeps the stack below 1 KiB; a larger stack adds some
/// microseconds to a launch.
struct Grid<'a> {
    args: &'a CollectiveKernelArgs,
    world: &'a WorldView,
    lane: u32,
    lanes: u32,
    /// Active lanes of this warp.
    mask: u32,
    /// Number of warps of the grid.
    warps: u64,
    sums: bool,
    /// Number of pieces of a chunk, number of parts of a piece, and bytes of a part. The last piece may have fewer
    /// bytes.
    pieces: u32,
    parts: u32,
    part: u32,
    /// Offset, in parts of a piece, between the parts sent to adjacent PEs at the same time.
    apart: u32,
    /// Number of PEs that receive parts, starting at the next one: all but this PE, or all.
    many: u32,
    /// Whether all lanes are active and `part` is the length that the unrolled loops copy.
    full: bool,
    /// Whether `full` holds and all parts have `part` bytes.
    whole: bool,
    /// Addresses of this lane's source vector, its destination, and the destination of sums, for the [`AT_ONCE`] PEs
    /// after this one. This PE's own sums come last.
    from: [u64; AT_ONCE],
    to: [u64; AT_ONCE],
    sums_to: [u64; AT_ONCE],
    /// Address at which this lane reads the data that each of the first PEs sent; for this PE, its own data.
    sources: [u64; AT_ONCE],
}

/// Parts of at most two pieces that this warp has sent but not yet signalled.
#[derive(Clone, Copy, Default)]
struct Unsignalled {
    /// Newer piece, followed by the number of its parts.
    piece: u32,
    parts: u64,
    /// Older piece, followed by the number of its parts.
    old_piece: u32,
    old_parts: u64,
    /// Number of further parts to send before the older piece is signalled.
    due: u32,
}

/// Totals of this warp's stores to other PEs.
#[derive(Clone, Copy, Default)]
struct Stored {
    bytes: u64,
    parts: u64,
}

impl Grid<'_> {
    #[inline(always)]
    fn word(&self, index: usize) -> &Word {
        // SAFETY: `queue` has `WORDS` words (contract of the kernel), and `index` is below their number.
        unsafe { &*self.args.queue.add(index) }
    }

    /// Returns the value of `signal` at the end of iteration `turn`, which is numbered from 1.
    #[inline(always)]
    fn count(&self, signal: u32, turn: u64) -> u64 {
        let others = u64::from(self.world.pes - 1);
        let in_turn = match signal {
            READY if self.sums => 0,
            READY => others,
            DONE => (others + 1) * self.warps,
            _ if self.sums && signal - PIECE < self.pieces => others * u64::from(self.parts),
            _ => 0,
        };
        load_relaxed_gpu_u64(self.word(COUNTED + signal as usize)) + turn * in_turn
    }

    /// Waits until `signal` has its value for iteration `turn`. Only lane 0 polls.
    #[inline(always)]
    fn wait(&self, signal: u32, turn: u64) -> CallResult {
        let (wanted, number) = (self.count(signal, turn), self.args.queue_signals.at(signal));
        let mut stop = 0;
        if self.lane == 0 {
            // SAFETY: the signal is in this PE's own heap.
            let word = unsafe { signal_word(self.world.heap as u64, number) };
            let mut patience = WaitBudget::default();
            // Uses acquire order, which pairs with the fence before each add, which follows the adding warp's stores
            // and reads.
            let mut seen = load_acquire_sys_u64(word);
            while seen < wanted {
                if let Err(reason) = patience.look(self.world) {
                    let world = *self.world;
                    world.gave_up_signal(reason, number, seen, wanted);
                    stop = reason.0;
                    break;
                }
                thread::relax();
                seen = load_acquire_sys_u64(word);
            }
        }
        // Distributes the outcome, and extends lane 0's acquire to all lanes.
        let stop = warp::broadcast_u64(self.mask, stop, 0);
        warp::synchronize(self.mask);
        if stop == 0 { Ok(()) } else { Err(Status(stop)) }
    }

    /// Adds `add` to `signal` on `pes` PEs, starting at the next one. If `pes` includes every PE, this PE is last. A
    /// fence precedes the adds: a PE that observes one also observes this warp's stores, and may overwrite what this
    /// warp has read.
    #[inline(always)]
    fn tell(&self, signal: u32, add: u64, pes: u32) {
        // The barrier orders the stores of all lanes before each lane's fence.
        warp::synchronize(self.mask);
        let mut step = self.lane + 1;
        if step <= pes {
            fence_acq_rel_sys();
        }
        while step <= pes {
            // SAFETY: all heaps are mapped.
            add_relaxed_sys_u64(
                unsafe { signal_word(self.heap(self.following(step)), self.args.queue_signals.at(signal)) },
                add,
            );
            step += self.lanes;
        }
    }

    #[inline(always)]
    fn tell_piece(&self, piece: u32, parts: u64) {
        if parts > 0 {
            self.tell(PIECE + piece, parts, self.world.pes - 1);
        }
    }

    /// Returns the PE that is `step` places after this one.
    #[inline(always)]
    fn following(&self, step: u32) -> u32 {
        let pe = self.world.me + step;
        if pe < self.world.pes { pe } else { pe - self.world.pes }
    }

    #[inline(always)]
    fn heap(&self, pe: u32) -> u64 {
        // SAFETY: `peers` has one entry per PE, and all heaps are mapped.
        unsafe { (*self.world.peers.add(pe as usize)).heap }
    }

    /// Takes the next number from the queue.
    #[inline(always)]
    fn take(&self) -> u64 {
        // Uses relaxed order: the number publishes no other memory.
        if self.lane == 0 { fetch_add_relaxed_gpu_u64(self.word(TAKEN), 1) } else { 0 }
    }

    /// Runs iteration `turn` of `last`, both counted from 1. Its queue numbers start at `first`.
    #[inline(always)]
    fn turn(&self, (turn, last): (u64, u64), first: u64, stored: &mut Stored) -> CallResult {
        if !self.sums {
            // Sums need no check: their parts are stored to scratch memory. Results are stored to another PE only after
            // its parts have arrived, and therefore after it has started.
            if thread::block_idx_x() == 0 && thread::thread_idx_x() < warp::SIZE {
                self.tell(READY, 1, self.world.pes - 1);
            }
            self.wait(READY, turn)?;
        }
        // The first `pieces` stages contain parts to be sent, the last `pieces` stages parts to be summed.
        let lag = if self.sums { LAG.min(self.pieces) } else { 0 };
        let stages = self.pieces + lag;
        let mut untold = Unsignalled::default();
        // Number of pieces whose arrival has been observed.
        let mut come = 0;
        let (mut stage, mut begin, mut next) = (0, first, self.take());
        let all = first + self.numbers();
        loop {
            let number = warp::broadcast_u64(self.mask, next, 0);
            if number >= all {
                break;
            }
            // Prefetches the next number, to overlap its latency with the stores of this part.
            next = self.take();
            let (sends, adds) = loop {
                let (sends, adds) = (stage < self.pieces, self.sums && stage >= lag);
                let many = u64::from(self.parts) * if sends && adds { 2 } else { 1 };
                if number < begin + many || stage + 1 == stages {
                    break (sends, adds);
                }
                begin += many;
                stage += 1;
            };
            let (place, both) = ((number - begin) as u32, sends && adds);
            let part = if both { place / 2 } else { place };
            if sends && !(both && place % 2 == 1) {
                if self.sums {
                    self.note(&mut untold, stage);
                }
                self.send(stage, part, stored);
            } else {
                let piece = stage - lag;
                if come <= piece {
                    self.settle(&mut untold);
                    self.wait(PIECE + piece, turn)?;
                    come = piece + 1;
                }
                self.add(piece, part, stored);
            }
        }
        self.settle(&mut untold);
        self.tell(DONE, 1, self.world.pes);
        // In the last iteration one warp waits for all warps; the end of the grid waits for that warp.
        let waits = turn < last || thread::block_idx_x() == 0 && thread::thread_idx_x() < warp::SIZE;
        if waits { self.wait(DONE, turn) } else { Ok(()) }
    }

    /// Returns how many of an iteration's queue numbers represent parts.
    #[inline(always)]
    fn numbers(&self) -> u64 {
        u64::from(self.parts) * u64::from(self.pieces) * (1 + u64::from(self.sums))
    }

    /// Counts a part that is about to be sent. Signals the parts sent of the previous piece, after a delay that differs
    /// between warps.
    #[inline(always)]
    fn note(&self, untold: &mut Unsignalled, piece: u32) {
        if untold.parts > 0 && untold.piece != piece {
            self.tell_piece(untold.old_piece, untold.old_parts);
            (untold.old_piece, untold.old_parts, untold.parts) = (untold.piece, untold.parts, 0);
            untold.due = (thread::block_idx_x() + thread::thread_idx_x() / warp::SIZE * 5) % APART;
        } else if untold.old_parts > 0 {
            if untold.due == 0 {
                self.tell_piece(untold.old_piece, untold.old_parts);
                untold.old_parts = 0;
            } else {
                untold.due -= 1;
            }
        }
        (untold.piece, untold.parts) = (piece, untold.parts + 1);
    }

    /// Signals all parts that have been sent.
    #[inline(always)]
    fn settle(&self, untold: &mut Unsignalled) {
        self.tell_piece(untold.old_piece, untold.old_parts);
        self.tell_piece(untold.piece, untold.parts);
        *untold = Unsignalled::default();
    }

    /// Adds this warp's totals. The last warp to finish resets the queue: all others have taken their last number and
    /// have read the old counts.
    fn end(&self, turns: u64, stored: Stored) {
        if self.lane > 0 {
            return;
        }
        fetch_add_relaxed_gpu_u64(self.word(MAPPED_BYTES), stored.bytes);
        fetch_add_relaxed_gpu_u64(self.word(PUTS), stored.parts);
        if fetch_add_acq_rel_gpu_u64(self.word(ENDED), 1) + 1 == self.warps {
            store_relaxed_gpu_u64(self.word(TAKEN), 0);
            store_relaxed_gpu_u64(self.word(ENDED), 0);
            for signal in 0..SIGNALS {
                store_relaxed_gpu_u64(self.word(COUNTED + signal as usize), self.count(signal, turns));
            }
        }
    }
}

/// Runs a collective by stores of all warps of all blocks. All heaps must be mapped.
///
/// # Safety
/// - The arguments must be objects of the world's heap and, except for addresses, the same on all PEs.
/// - The sizes of chunks, and `part`, must be multiples of 16 bytes.
/// - For sums, `whole` must be a multiple of `part`, and a chunk must be at most [`PIECES`] times `whole`. Otherwise
///   `whole` must be a chunk.
/// - `queue` must point to [`WORDS`] words that no other grid uses at the same time, and `times` must have space for
///   every block.
#[kernel(resident)]
pub unsafe fn collective_stores(program: Program<CollectiveKernelArgs>) {
    let args = &program.args;
    grid::wait_for_grids_before();
    grid::let_next_grid_begin();
    let scope = Warp::this();
    let world = &program.world;
    if world.has_failed_for(&scope) {
        return;
    }
    let warps = u64::from(thread::grid_dim_x()) * u64::from(thread::block_dim_x().div_ceil(warp::SIZE));
    let stamp = |number: usize| {
        if thread::thread_idx_x() == 0 && args.warmup > 0 {
            // SAFETY: `times` has two entries per block (contract of the kernel).
            unsafe { *args.times.add(2 * thread::block_idx_x() as usize + number) = thread::global_timer_ns() };
        }
    };
    let sums = args.operation > ALL_GATHER;
    let mine = u64::from(world.me) * args.chunk;
    let in_place = args.from.offset() == args.to.offset() + mine;
    let (pieces, parts) = (args.chunk.div_ceil(args.whole) as u32, args.whole.div_ceil(args.part) as u32);
    let full = scope.size() == warp::SIZE && args.part == part_bytes(world.pes);
    let even = args.operation == ALL_GATHER || args.bytes == args.chunk * u64::from(world.pes);
    let mut grid = Grid {
        args,
        world,
        lane: scope.rank(),
        lanes: scope.size(),
        mask: warp::launched_mask(),
        warps,
        sums,
        pieces,
        parts,
        part: args.part as u32,
        apart: parts / world.pes,
        many: if sums || in_place { world.pes - 1 } else { world.pes },
        full,
        whole: full && even && args.chunk == u64::from(pieces) * u64::from(parts) * args.part,
        from: [0; AT_ONCE],
        to: [0; AT_ONCE],
        sums_to: [0; AT_ONCE],
        sources: [0; AT_ONCE],
    };
    let lane = u64::from(grid.lane) * 16;
    let result = args.to.offset() + lane;
    for place in 0..AT_ONCE {
        let step = (place as u32 + 1).min(world.pes);
        (grid.from[place], grid.to[place]) = grid.way(step);
        grid.sums_to[place] =
            grid.heap(grid.following(step)) + result + if args.operation == ALL_REDUCE { mine } else { 0 };
        grid.sources[place] = world.heap as u64
            + lane
            + if place as u32 == world.me {
                args.from.offset() + mine
            } else {
                args.scratch.offset() + place as u64 * args.chunk
            };
    }
    let (mut first, mut stored) = (0, Stored::default());
    let numbers = grid.numbers() + warps;
    let turns = u64::from(args.warmup) + u64::from(args.turns);
    for turn in 1..=turns {
        if turn == u64::from(args.warmup) + 1 {
            stamp(0);
        }
        // The failure is recorded in the world's report.
        if grid.turn((turn, turns), first, &mut stored).is_err() {
            return;
        }
        first += numbers;
    }
    stamp(1);
    grid.end(turns, stored);
}
