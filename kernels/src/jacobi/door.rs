//! Boundary rows between resident blocks: words that carry a value and the number of its iteration, and rounds of puts to PEs that are
//! reached by rails.
//!
//! A row of words is two planes: the first two words of all threads, then the second two. Each access of a warp is then 512 adjacent bytes;
//! side by side, a thread's 32 bytes would be two accesses that leave every second 16 bytes out.

use super::chip::Memory;
use super::resident_args::{PLACES, ResidentArgs, row_words};
use super::stencil::{Columns, Points, load, store};
use super::{ABOVE, BELOW, Link};
use crate::gin::{Block, Patience};
use cuda_std::memory::{WordPair, load_relaxed_sys_v2_u64, store_relaxed_sys_v2_u64};
use cuda_std::thread;

/// A value and the number of its iteration.
#[inline(always)]
fn tagged(value: f32, tag: u32) -> u64 {
    (tag as u64) << 32 | value.to_bits() as u64
}

/// Where a block finds the words beside its rows on one side, and where it leaves its own for the block there: place of parity 0. 0: that
/// side is a PE which is reached by rails.
#[inline(always)]
pub unsafe fn of(args: &ResidentArgs, side: usize) -> (u64, u64) {
    let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
    let row = row_words(thread::block_dim_x()) * 8;
    // What I give lies on the other side of whoever gets it.
    let (here, there) = (side as u64 * row, (1 - side) as u64 * row);
    let own = args.words as u64;
    let of_block = |block: u32| own + block as u64 * PLACES * row;
    let inner = if side == ABOVE { block > 0 } else { block + 1 < blocks };
    if inner {
        let other = if side == ABOVE { block - 1 } else { block + 1 };
        return (of_block(block) + here, of_block(other) + there);
    }
    // SAFETY: contract of the kernel.
    let link = unsafe { &*args.link };
    let far = link.world.ptr(args.inbox, link.peers[side]) as u64;
    if far == 0 {
        return (0, 0);
    }
    (link.world.local(args.inbox) as u64 + here, far + there)
}

/// The two pairs of words of this thread, in the row of a tag's parity.
#[inline(always)]
unsafe fn pairs<'a>(place: u64, tag: u32) -> (&'a WordPair, &'a WordPair) {
    let plane = thread::block_dim_x() * 16;
    let at = place + ((tag & 1) * (4 * plane) + thread::thread_idx_x() * 16) as u64;
    // SAFETY: the caller's contract: rows begin at multiples of 16 and have two pairs for each thread.
    unsafe { (&*(at as *const WordPair), &*((at + plane as u64) as *const WordPair)) }
}

/// Leaves points at a door.
#[inline(always)]
pub unsafe fn give(place: u64, points: &Points, tag: u32) {
    // SAFETY: the caller's contract.
    let (first, second) = unsafe { pairs(place, tag) };
    store_relaxed_sys_v2_u64(first, tagged(points[0], tag), tagged(points[1], tag));
    store_relaxed_sys_v2_u64(second, tagged(points[2], tag), tagged(points[3], tag));
}

/// The points at a door, and whether all of them are of this tag.
#[inline(always)]
unsafe fn look(place: u64, tag: u32) -> (Points, bool) {
    // SAFETY: the caller's contract.
    let (first, second) = unsafe { pairs(place, tag) };
    let (a, b) = load_relaxed_sys_v2_u64(first);
    let (c, d) = load_relaxed_sys_v2_u64(second);
    let words = [a, b, c, d];
    let there = words.iter().fold(true, |there, word| there & ((*word >> 32) as u32 == tag));
    (words.map(|word| f32::from_bits(word as u32)), there)
}

/// Takes the rows beside the block's, of both sides; 0, or why that has failed ([`Status`](crate::ring::Status)).
#[inline(always)]
pub unsafe fn take<const RAILS: bool>(
    args: &ResidentArgs,
    memory: &Memory,
    tag: u32,
    columns: &Columns,
) -> ([Points; 2], u32) {
    // SAFETY: the caller's contract.
    unsafe {
        let [above, below] = memory.take();
        if !RAILS || above != 0 && below != 0 {
            let mut patience = Patience::default();
            // Both sides' loads are under way at once.
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
        let (up, first) = one_side(args, above, tag, ABOVE, columns);
        let (down, second) = one_side(args, below, tag, BELOW, columns);
        ([up, down], first.max(second))
    }
}

/// As [`take`], of one side.
#[inline(always)]
unsafe fn one_side(args: &ResidentArgs, place: u64, tag: u32, side: usize, columns: &Columns) -> (Points, u32) {
    // SAFETY: the caller's contract.
    unsafe {
        if place == 0 {
            return receive(args.link, tag, side, *columns);
        }
        let mut patience = Patience::default();
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

/// Sends a row over rails, as the round of its tag. By all threads of the block.
#[inline(never)]
pub unsafe fn send(link: *const Link, tag: u32, side: usize, points: Points, columns: Columns) {
    // SAFETY: the caller's contract.
    let link = unsafe { &*link };
    let world = &link.world;
    let parity = (tag & 1) as usize;
    let (out, halo) = (link.out[parity][side], link.halo[parity][1 - side]);
    let (signal, peer) = (link.rounds[1 - side], link.peers[side]);
    let mut line = world.context(Block);
    // The card may read the row of two iterations ago until its put is complete, also when the neighbour has answered it.
    if line.reclaim_round(signal, tag, peer).is_err() {
        // All threads alike. A failure is in the world's report, where the next wait finds it.
        return;
    }
    if columns.any {
        // SAFETY: this thread's columns of a row in the heap, which nobody reads now.
        unsafe { store(world.local(out).add(columns.first as usize), &points) };
    }
    // As above.
    let _ = line.put_round_nbi(halo, out, signal, tag, peer);
}

/// Waits for a row over rails. By all threads of the block.
#[inline(never)]
unsafe fn receive(link: *const Link, tag: u32, side: usize, columns: Columns) -> (Points, u32) {
    // SAFETY: the caller's contract.
    let link = unsafe { &*link };
    let mut line = link.world.context(Block);
    // What the next row's place waits for is looked at now, while the neighbour's row is on its way.
    let ready = line.reclaim_round(link.rounds[1 - side], tag + 1, link.peers[side]);
    let waited = ready.and_then(|()| line.wait_round(link.rounds[side], tag));
    let stop = waited.map_or_else(|stop| stop.0 as u32, |()| 0);
    let row = link.world.local(link.halo[(tag & 1) as usize][side]);
    // SAFETY: the row has arrived, or its values count for nothing.
    (unsafe { load(row.add(columns.first as usize)) }, stop)
}

/// Waits until what went over rails in this launch is complete: rows to send and halos may then be used otherwise. By all threads of the
/// block.
#[inline(never)]
pub unsafe fn finish(args: &ResidentArgs, memory: &Memory) {
    // SAFETY: the caller's contract.
    let (link, doors) = unsafe { (&*args.link, memory.take()) };
    let mut line = link.world.context(Block);
    for side in [ABOVE, BELOW] {
        for parity in [0, 1] {
            // The doors are the same for all threads, and so is the answer. A failure is in the world's report.
            if doors[side] == 0 && line.reclaim_round(link.rounds[1 - side], parity, link.peers[side]).is_err() {
                return;
            }
        }
    }
}
