//! Many bytes within a node, by stores alone: all warps of the grid take small parts of everything that this PE sends from one queue.
//!
//! ```text
//! all-to-all, all-gather   ready?  >  each part, to every PE  >  done?
//! sums                     each part of the chunks that others sum, to their scratch memory  >  come?  >  sums of this PE's own chunk, to
//!                          every PE (all-reduce) or to itself  >  done?
//! ```
//!
//! **Why.** Stores over NVLink are fastest when few of them are under way, all of one PE in a short stretch, and those to different PEs at different
//! places of it. Four H200, 1 GiB: an all-reduce by blocks whose slices are fixed took 4583 us, NCCL's 4515; in CUDA C++ from a queue 4524, and with the
//! shift between PEs 4473; this kernel 4477. Blocks that are late take less.
//!
//! **Pieces.** Sums go by pieces of a chunk: those of a piece are taken in turn with the parts of the next piece but one (`LAG`), so that no warp
//! waits for what has only just been sent. Each piece has a signal of its own, as the sum of two does not say whose parts are in it.
//!
//! **Who waits for whom.** A part to be sent waits for nobody behind the turn's beginning. A part to be summed waits for the parts of its piece from every
//! PE, all of which stand before it in those PEs' queues. A turn ends when all warps of all PEs have said that they have found the queue empty:
//! then everything has arrived, and scratch memory may be written again.

mod part;

use super::{ALL_GATHER, ALL_REDUCE, CollectiveArgs, Done};
use crate::gin::signal::signal_word;
use crate::gin::{Patience, Program, Scope, Warp, World};
use crate::ring::Status;
use cuda_std::memory::{
    Word, add_relaxed_sys_u64, fence_acq_rel_sys, fetch_add_acq_rel_gpu_u64, fetch_add_relaxed_gpu_u64,
    load_acquire_sys_u64, load_relaxed_gpu_u64, store_relaxed_gpu_u64,
};
use cuda_std::{grid, kernel, thread, warp};

/// Pieces of a chunk at most.
pub const PIECES: u32 = 16;
/// PEs for which the addresses and vectors of a part are in registers at once.
const AT_ONCE: usize = 4;
/// Pieces that are sent before the first is summed, where there are as many.
const LAG: u32 = 2;
/// A warp tells of a piece up to so many parts later: a fence waits for what is on its way, and not all warps should do so at once.
const APART: u32 = 8;

/// Bytes of a part for each of so many PEs: 2 vectors of each lane, and more where fewer PEs make a part shorter. (Among four 2 KiB: 4490 in place of
/// 4473 us.)
pub const fn part_bytes(pes: u32) -> u64 {
    match pes {
        0..=2 => 4096,
        3 => 2048,
        _ => 1024,
    }
}

/// Signals of the whole grid: this PE may be written to, a warp has found the queue empty, and parts of each piece.
pub const SIGNALS: u32 = 2 + PIECES;
const READY: u32 = 0;
const DONE: u32 = 1;
const PIECE: u32 = 2;

/// Words of [`CollectiveArgs::queue`], zeroed once.
pub const WORDS: usize = COUNTED + SIGNALS as usize;
/// Numbers taken by this grid.
const TAKEN: usize = 0;
/// Warps of it that have ended.
const ENDED: usize = 1;
/// Bytes that have been stored to other PEs.
pub const MAPPED_BYTES: usize = 2;
/// Parts sent to other PEs.
pub const PUTS: usize = 3;
/// And behind it: what each signal had counted when the last grid ended.
pub const COUNTED: usize = 4;

/// What does not change in a launch. (The kernel's arguments by reference, and by nothing that is out of line: they stay where the launch put them, and
/// the stack is short. More than 1 KiB of it costs a launch some microseconds.)
struct Grid<'a> {
    args: &'a CollectiveArgs,
    world: &'a World,
    lane: u32,
    lanes: u32,
    /// The lanes of this warp.
    mask: u32,
    /// Warps of the grid.
    warps: u64,
    sums: bool,
    /// Pieces of a chunk, parts of a piece (the last piece may have fewer bytes), and bytes of a part.
    pieces: u32,
    parts: u32,
    part: u32,
    /// By so many parts of a piece those for neighbouring PEs are apart.
    apart: u32,
    /// PEs to which parts go, from the next one on: all but this one, or all.
    many: u32,
    /// Whether all parts have `part` bytes, and all lanes are there.
    whole: bool,
    /// Of the first [`AT_ONCE`] PEs behind this one: this lane's vector of what goes there, where, and where sums go there; this PE's sums go last.
    from: [u64; AT_ONCE],
    to: [u64; AT_ONCE],
    sums_to: [u64; AT_ONCE],
    /// Of the first PEs: where this lane finds what they sent, and the own.
    sources: [u64; AT_ONCE],
}

/// Parts of two pieces at most that this warp has sent and not told of.
#[derive(Clone, Copy, Default)]
struct Untold {
    /// The newer piece, and how many of it.
    piece: u32,
    parts: u64,
    /// The older one.
    old_piece: u32,
    old_parts: u64,
    /// After how many parts more it tells of the older one.
    due: u32,
}

/// What this warp has stored to other PEs.
#[derive(Clone, Copy, Default)]
struct Stored {
    bytes: u64,
    parts: u64,
}

impl Grid<'_> {
    #[inline(always)]
    fn word(&self, index: usize) -> &Word {
        // SAFETY: there are `WORDS` of them, contract of the kernel.
        unsafe { &*self.args.queue.add(index) }
    }

    /// What a signal counts up to the end of this turn, numbered from 1.
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

    /// Waits until a signal has counted all of this turn. One lane looks.
    #[inline(always)]
    fn wait(&self, signal: u32, turn: u64) -> Done {
        let (wanted, number) = (self.count(signal, turn), self.args.queue_signals.at(signal));
        let mut stop = 0;
        if self.lane == 0 {
            // SAFETY: this PE's own heap.
            let word = unsafe { signal_word(self.world.heap as u64, number) };
            let mut patience = Patience::default();
            // Acquire: who has added did so behind a fence, behind what it has stored and read.
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
        // The others learn of it, and see what the first has acquired.
        let stop = warp::broadcast_u64(self.mask, stop, 0);
        warp::synchronize(self.mask);
        if stop == 0 { Ok(()) } else { Err(Status(stop)) }
    }

    /// Adds to a signal of so many PEs, from the next one on; all of them: this one last. Behind a fence: who has counted it sees what this
    /// warp has stored, and may write what it has read.
    #[inline(always)]
    fn tell(&self, signal: u32, add: u64, pes: u32) {
        // What all lanes have stored comes before the barrier, and so before each one's fence.
        warp::synchronize(self.mask);
        let mut step = self.lane + 1;
        if step <= pes {
            fence_acq_rel_sys();
        }
        while step <= pes {
            // SAFETY: all heaps are mapped.
            add_relaxed_sys_u64(
                unsafe { signal_word(self.heap(self.behind(step)), self.args.queue_signals.at(signal)) },
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

    /// The PE so many behind this one.
    #[inline(always)]
    fn behind(&self, step: u32) -> u32 {
        let pe = self.world.me + step;
        if pe < self.world.pes { pe } else { pe - self.world.pes }
    }

    #[inline(always)]
    fn heap(&self, pe: u32) -> u64 {
        // SAFETY: one entry for each PE; all heaps are mapped.
        unsafe { (*self.world.peers.add(pe as usize)).heap }
    }

    /// The next number of the queue.
    #[inline(always)]
    fn take(&self) -> u64 {
        // Relaxed: a number carries nothing else.
        if self.lane == 0 { fetch_add_relaxed_gpu_u64(self.word(TAKEN), 1) } else { 0 }
    }

    /// One turn, numbered from 1, of so many; where its numbers begin.
    #[inline(always)]
    fn turn(&self, (turn, last): (u64, u64), first: u64, stored: &mut Stored) -> Done {
        if !self.sums {
            // Sums go to scratch memory first, and to nobody's result before everybody has begun.
            if thread::block_idx_x() == 0 && thread::thread_idx_x() < warp::SIZE {
                self.tell(READY, 1, self.world.pes - 1);
            }
            self.wait(READY, turn)?;
        }
        // Stages: parts to be sent in the first `pieces` of them, parts to be summed in the last.
        let lag = if self.sums { LAG.min(self.pieces) } else { 0 };
        let stages = self.pieces + lag;
        let mut untold = Untold::default();
        // Pieces that are known to have come.
        let mut come = 0;
        let (mut stage, mut begin, mut next) = (0, first, self.take());
        let all = first + self.numbers();
        loop {
            let number = warp::broadcast_u64(self.mask, next, 0);
            if number >= all {
                break;
            }
            // One ahead: it comes while this part is stored.
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
        // Of the last turn one warp waits for all, and the grid's end for that one.
        let waits = turn < last || thread::block_idx_x() == 0 && thread::thread_idx_x() < warp::SIZE;
        if waits { self.wait(DONE, turn) } else { Ok(()) }
    }

    /// Numbers of a turn that are parts.
    #[inline(always)]
    fn numbers(&self) -> u64 {
        u64::from(self.parts) * u64::from(self.pieces) * (1 + u64::from(self.sums))
    }

    /// Counts a part that is about to be sent. What was sent of a piece before is told of, a little later by each warp.
    #[inline(always)]
    fn note(&self, untold: &mut Untold, piece: u32) {
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

    /// Tells of all that has been sent.
    #[inline(always)]
    fn settle(&self, untold: &mut Untold) {
        self.tell_piece(untold.old_piece, untold.old_parts);
        self.tell_piece(untold.piece, untold.parts);
        *untold = Untold::default();
    }

    /// The last warp to end sets the queue back. All others have taken their last number, and have read what was counted before.
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

/// By stores of all warps of all blocks; all heaps are mapped. See the module.
///
/// # Safety
/// The arguments are of the world's heap, the same on all PEs but for addresses; chunks are a multiple of 16; where sums are made `whole` is a multiple
/// of `part` and [`PIECES`] of it at most are a chunk, else it is a chunk; `part` is a multiple of 16; `queue` is [`WORDS`] words that no other grid
/// uses meanwhile, and `times` has room for every block.
#[kernel(resident)]
pub unsafe fn collective_stores(program: Program<CollectiveArgs>) {
    let args = &program.args;
    grid::wait_for_grids_before();
    grid::let_next_grid_begin();
    let scope = Warp::this();
    let world = &program.world;
    let warps = u64::from(thread::grid_dim_x()) * u64::from(thread::block_dim_x().div_ceil(warp::SIZE));
    let stamp = |number: usize| {
        if thread::thread_idx_x() == 0 && args.warmup > 0 {
            // SAFETY: two stamps for each block, contract of the kernel.
            unsafe { *args.times.add(2 * thread::block_idx_x() as usize + number) = thread::global_timer_ns() };
        }
    };
    let sums = args.operation > ALL_GATHER;
    let mine = u64::from(world.me) * args.chunk;
    let in_place = args.from.offset() == args.to.offset() + mine;
    let (pieces, parts) = (args.chunk.div_ceil(args.whole) as u32, args.whole.div_ceil(args.part) as u32);
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
        whole: even
            && args.chunk == u64::from(pieces) * u64::from(parts) * args.part
            && args.part == part_bytes(world.pes)
            && scope.size() == warp::SIZE,
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
            grid.heap(grid.behind(step)) + result + if args.operation == ALL_REDUCE { mine } else { 0 };
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
        // A failure is in the world's report.
        if grid.turn((turn, turns), first, &mut stored).is_err() {
            return;
        }
        first += numbers;
    }
    stamp(1);
    grid.end(turns, stored);
}
