//! Exchange of boundary rows between resident blocks: words that contain a value and its iteration number, and rounds
//! of puts to PEs that are reached over rails.
//!
//! A row of words consists of two planes: the first two words of all threads, followed by the other two. Each access of
//! a warp then covers 512 adjacent bytes. If a thread's 32 bytes were adjacent, each of the two accesses would skip
//! every second 16 bytes.

use super::resident_args::{PLACES, ResidentArgs, row_words};
use super::shared_rows::SharedRows;
use super::stencil::{Columns, Points, load, store};
use super::{ABOVE, BELOW, HaloLink};
use crate::gin::{Block, Signal, Sym, WaitBudget};
use cuda_std::memory::{WordPair, load_relaxed_sys_v2_u64, store_relaxed_sys_v2_u64};
use cuda_std::thread;

/// Combines a value and its iteration number in a word.
#[inline(always)]
pub fn tagged(value: f32, tag: u32) -> u64 {
    (tag as u64) << 32 | value.to_bits() as u64
}

/// Returns two addresses for parity 0: that of the words of the row adjacent on `side`, which this block reads, and
/// that of its own row for the adjacent block, which it writes. Both are 0 if that side is a PE reached over rails.
#[inline(always)]
pub unsafe fn of(args: &ResidentArgs, side: usize) -> (u64, u64) {
    let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
    let row = row_words(thread::block_dim_x()) * 8;
    // The row that this block sends upwards is the lower side of its receiver, and vice versa.
    let (here, there) = (side as u64 * row, (1 - side) as u64 * row);
    let own = args.words as u64;
    let of_block = |block: u32| own + block as u64 * PLACES * row;
    let inner = if side == ABOVE { block > 0 } else { block + 1 < blocks };
    if inner {
        let other = if side == ABOVE { block - 1 } else { block + 1 };
        return (of_block(block) + here, of_block(other) + there);
    }
    // SAFETY: `link` is valid (contract of the kernel).
    let link = unsafe { &*args.link };
    let far = link.world.ptr(args.inbox, link.peers[side]) as u64;
    if far == 0 {
        return (0, 0);
    }
    (link.world.local(args.inbox) as u64 + here, far + there)
}

/// Returns the two word pairs of this thread, in the row of the parity of `tag`.
#[inline(always)]
unsafe fn pairs<'a>(place: u64, tag: u32) -> (&'a WordPair, &'a WordPair) {
    let plane = thread::block_dim_x() * 16;
    let at = place + ((tag & 1) * (4 * plane) + thread::thread_idx_x() * 16) as u64;
    // SAFETY: the caller guarantees that `place` is a row of words: rows are aligned to 16 bytes and have two pairs per
    // thread.
    unsafe { (&*(at as *const WordPair), &*((at + plane as u64) as *const WordPair)) }
}

/// Writes this thread's points to the words at `place`.
#[inline(always)]
pub unsafe fn give(place: u64, points: &Points, tag: u32) {
    // SAFETY: the caller guarantees that `place` is a row of words.
    let (first, second) = unsafe { pairs(place, tag) };
    store_relaxed_sys_v2_u64(first, tagged(points[0], tag), tagged(points[1], tag));
    store_relaxed_sys_v2_u64(second, tagged(points[2], tag), tagged(points[3], tag));
}

/// Loads this thread's points from the words at `place`. Returns the points, and whether all of them have tag `tag`.
#[inline(always)]
unsafe fn look(place: u64, tag: u32) -> (Points, bool) {
    // SAFETY: the caller guarantees that `place` is a row of words.
    let (first, second) = unsafe { pairs(place, tag) };
    let (a, b) = load_relaxed_sys_v2_u64(first);
    let (c, d) = load_relaxed_sys_v2_u64(second);
    let words = [a, b, c, d];
    let there = words.iter().fold(true, |there, word| there & ((*word >> 32) as u32 == tag));
    (words.map(|word| f32::from_bits(word as u32)), there)
}

/// Waits for the rows adjacent to the block, above and below. `receive` waits for the row on a side that is reached
/// over rails. Returns the rows, and 0 or the [`Status`](crate::ring::Status) of a failure.
#[inline(always)]
pub unsafe fn take<const RAILS: bool>(
    args: &ResidentArgs,
    memory: &SharedRows,
    tag: u32,
    receive: impl Fn(usize) -> (Points, u32),
) -> ([Points; 2], u32) {
    // SAFETY: the caller guarantees that `args` and `memory` are valid, and `set_doors` has stored the addresses.
    unsafe {
        let [above, below] = memory.take();
        if !RAILS || above != 0 && below != 0 {
            let mut patience = WaitBudget::default();
            // The loads of both sides are in flight at the same time.
            loop {
                let ((up, first), (down, second)) = (look(above, tag), look(below, tag));
                if first & second {
                    return ([up, down], 0);
                }
                if let Err(stop) = patience.look(&(*args.link).world) {
                    return ([up, down], stop.0 as u32);
                }
                thread::relax();
            }
        }
        let (up, first) = one_side(args, above, tag, || receive(ABOVE));
        let (down, second) = one_side(args, below, tag, || receive(BELOW));
        ([up, down], first.max(second))
    }
}

/// Like [`take`], for one side.
#[inline(always)]
unsafe fn one_side(
    args: &ResidentArgs,
    place: u64,
    tag: u32,
    receive: impl FnOnce() -> (Points, u32),
) -> (Points, u32) {
    // SAFETY: the caller guarantees that `args` is valid and that `place` is 0 or a row of words.
    unsafe {
        if place == 0 {
            return receive();
        }
        let mut patience = WaitBudget::default();
        loop {
            let (points, there) = look(place, tag);
            if there {
                return (points, 0);
            }
            if let Err(stop) = patience.look(&(*args.link).world) {
                return (points, stop.0 as u32);
            }
            thread::relax();
        }
    }
}

/// Columns of a block in the rows that are put over rails.
#[derive(Clone, Copy)]
pub struct Piece {
    /// The first column, and the number of columns.
    pub columns: (u32, u32),
    /// Offset of the signals of these columns from those of the first block.
    pub signals: u32,
}

/// Returns the part of a row that belongs to the block.
#[inline(always)]
fn part(row: Sym<f32>, piece: Option<Piece>) -> Sym<f32> {
    piece.map_or(row, |piece| row.slice(piece.columns.0 as u64, piece.columns.1 as u64))
}

/// Returns the signal of the block's part of a row.
#[inline(always)]
fn signal(signal: Signal, piece: Option<Piece>) -> Signal {
    piece.map_or(signal, |piece| signal.at(piece.signals))
}

/// Sends a row over rails, as the round of its tag. Called by all threads of the block.
#[inline(never)]
pub unsafe fn send(link: *const HaloLink, tag: u32, side: usize, points: Points, columns: Columns) {
    // SAFETY: the caller guarantees that `link` is valid.
    unsafe { send_part(link, tag, side, points, columns, None) };
}

/// Like [`send`], for the columns of the block: all if `piece` is `None`.
#[inline(always)]
pub unsafe fn send_part(
    link: *const HaloLink,
    tag: u32,
    side: usize,
    points: Points,
    columns: Columns,
    piece: Option<Piece>,
) {
    // SAFETY: the caller guarantees that `link` is valid.
    let link = unsafe { &*link };
    let world = &link.world;
    let parity = (tag & 1) as usize;
    let (out, halo) = (link.out[parity][side], link.halo[parity][1 - side]);
    let (signal, peer) = (signal(link.rounds[1 - side], piece), link.peers[side]);
    let mut line = world.context(Block);
    // The NIC may read the row of two iterations ago until its put is complete, even if the neighbour has already
    // replied.
    if line.reclaim_round(signal, tag, peer).is_err() {
        // The result is the same for all threads. The failure is recorded in the world's report, where the next wait
        // finds it.
        return;
    }
    if columns.any {
        // SAFETY: these are this thread's columns of a row in the heap that no put reads now.
        unsafe { store(world.local(out).add(columns.first as usize), &points) };
    }
    // A failure is recorded in the world's report.
    let _ = line.put_round_nbi(part(halo, piece), part(out, piece), signal, tag, peer);
}

/// Waits for a row over rails. Called by all threads of the block.
#[inline(never)]
pub unsafe fn receive(link: *const HaloLink, tag: u32, side: usize, columns: Columns) -> (Points, u32) {
    // SAFETY: the caller guarantees that `link` is valid.
    unsafe { receive_part(link, tag, side, columns, None) }
}

/// Like [`receive`], for the columns of the block: all if `piece` is `None`.
#[inline(always)]
pub unsafe fn receive_part(
    link: *const HaloLink,
    tag: u32,
    side: usize,
    columns: Columns,
    piece: Option<Piece>,
) -> (Points, u32) {
    // SAFETY: the caller guarantees that `link` is valid.
    let link = unsafe { &*link };
    let mut line = link.world.context(Block);
    // Waits for the buffer of the next row now, while the neighbour's row is in flight.
    let ready = line.reclaim_round(signal(link.rounds[1 - side], piece), tag + 1, link.peers[side]);
    let waited = ready.and_then(|()| line.wait_round(signal(link.rounds[side], piece), tag));
    let stop = waited.map_or_else(|stop| stop.0 as u32, |()| 0);
    let row = link.world.local(link.halo[(tag & 1) as usize][side]);
    // SAFETY: the row has arrived, or its values are not used.
    (unsafe { load(row.add(columns.first as usize)) }, stop)
}

/// Waits until all transfers over rails of this launch are complete, so that send buffers and halos may be reused.
/// Called by all threads of the block.
#[inline(never)]
pub unsafe fn finish(args: &ResidentArgs, memory: &SharedRows) {
    // SAFETY: the caller guarantees that `args` is valid, and `set_doors` has stored the addresses.
    unsafe { finish_part(args, memory, None) };
}

/// Like [`finish`], for the columns of the block: all if `piece` is `None`.
#[inline(always)]
pub unsafe fn finish_part(args: &ResidentArgs, memory: &SharedRows, piece: Option<Piece>) {
    // SAFETY: the caller guarantees that `args` is valid, and `set_doors` has stored the addresses.
    let (link, doors) = unsafe { (&*args.link, memory.take()) };
    let mut line = link.world.context(Block);
    for side in [ABOVE, BELOW] {
        for parity in [0, 1] {
            // The addresses are the same for all threads, and so is the result. A failure is recorded in the world's
            // report.
            let rounds = signal(link.rounds[1 - side], piece);
            if doors[side] == 0 && line.reclaim_round(rounds, parity, link.peers[side]).is_err() {
                return;
            }
        }
    }
}
