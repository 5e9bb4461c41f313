//! Boundary rows between resident blocks: words that carry a value and the number of its iteration, and puts with a signal to PEs that
//! are reached by rails.

use super::resident::{PLACES, ResidentArgs, row_words};
use super::stencil::{Columns, Points, WIDTH, first_of_thread, load, store};
use super::{ABOVE, BELOW, Link};
use crate::gin::{Block, Patience};
use cuda_std::memory::{WordPair, load_relaxed_sys_v2_u64, store_relaxed_sys_v2_u64};
use cuda_std::thread;
use cuda_std::vector::opaque_u32;

/// A value and the number of its iteration.
#[inline(always)]
fn tagged(value: f32, tag: u32) -> u64 {
    (tag as u64) << 32 | value.to_bits() as u64
}

/// Where a thread finds the points beside its block's rows on one side, and where it leaves its own for the block there; of parity 0.
/// 0: that side is a PE which is reached by rails.
#[derive(Clone, Copy)]
pub struct Door {
    pub take: u64,
    pub give: u64,
}

impl Door {
    /// Of this thread.
    #[inline(always)]
    pub unsafe fn of(args: &ResidentArgs, side: usize) -> Door {
        let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
        let row = row_words(thread::block_dim_x()) * 8;
        let mine = first_of_thread() as u64 * 8;
        // What I give lies on the other side of whoever gets it.
        let (here, there) = (side as u64 * row + mine, (1 - side) as u64 * row + mine);
        let own = args.words as u64;
        let of_block = |block: u32| own + block as u64 * PLACES * row;
        let inner = if side == ABOVE { block > 0 } else { block + 1 < blocks };
        if inner {
            let other = if side == ABOVE { block - 1 } else { block + 1 };
            return Door { take: of_block(block) + here, give: of_block(other) + there };
        }
        // SAFETY: contract of the kernel.
        let link = unsafe { &*args.link };
        let far = link.world.ptr(args.inbox, link.peers[side]) as u64;
        if far == 0 {
            return Door { take: 0, give: 0 };
        }
        Door { take: link.world.local(args.inbox) as u64 + here, give: far + there }
    }

    /// The two pairs of words of this thread, of a tag's parity.
    #[inline(always)]
    unsafe fn pairs<'a>(base: u64, tag: u32) -> (&'a WordPair, &'a WordPair) {
        let parity = opaque_u32((tag & 1) * 2 * thread::block_dim_x()) as u64 * (WIDTH * 8) as u64;
        let pairs = (base + parity) as *const WordPair;
        // SAFETY: the caller's contract: rows begin at multiples of 16 and have two pairs for each thread.
        unsafe { (&*pairs, &*pairs.add(1)) }
    }

    #[inline(always)]
    pub unsafe fn give(&self, points: &Points, tag: u32) {
        // SAFETY: the caller's contract.
        let (first, second) = unsafe { Door::pairs(self.give, tag) };
        store_relaxed_sys_v2_u64(first, tagged(points[0], tag), tagged(points[1], tag));
        store_relaxed_sys_v2_u64(second, tagged(points[2], tag), tagged(points[3], tag));
    }

    /// The points, and whether all of them are of this tag.
    #[inline(always)]
    unsafe fn look(&self, tag: u32) -> (Points, bool) {
        // SAFETY: the caller's contract.
        let (first, second) = unsafe { Door::pairs(self.take, tag) };
        let (a, b) = load_relaxed_sys_v2_u64(first);
        let (c, d) = load_relaxed_sys_v2_u64(second);
        let words = [a, b, c, d];
        let there = words.iter().fold(true, |there, word| there & ((*word >> 32) as u32 == tag));
        (words.map(|word| f32::from_bits(word as u32)), there)
    }
}

/// Takes the rows beside the block's, of both sides; 0, or why that has failed ([`Status`](crate::ring::Status)).
#[inline(always)]
pub unsafe fn take<const RAILS: bool>(
    args: &ResidentArgs,
    doors: &[Door; 2],
    tag: u32,
    columns: &Columns,
) -> ([Points; 2], u32) {
    // SAFETY: the caller's contract.
    unsafe {
        let [above, below] = [doors[ABOVE], doors[BELOW]];
        if !RAILS || above.take != 0 && below.take != 0 {
            let mut patience = Patience::new();
            // Both sides' loads are under way at once.
            loop {
                let ((up, first), (down, second)) = (above.look(tag), below.look(tag));
                if first & second {
                    return ([up, down], 0);
                }
                if let Err(stop) = patience.look(&(*args.link).world) {
                    return ([up, down], stop.0 as u32);
                }
                thread::relax();
            }
        }
        let (up, first) = one_side(args, &above, tag, ABOVE, columns);
        let (down, second) = one_side(args, &below, tag, BELOW, columns);
        ([up, down], first.max(second))
    }
}

/// As [`take`], of one side.
#[inline(always)]
unsafe fn one_side(args: &ResidentArgs, door: &Door, tag: u32, side: usize, columns: &Columns) -> (Points, u32) {
    // SAFETY: the caller's contract.
    unsafe {
        if door.take == 0 {
            let wanted = args.counted[side] + (tag - args.first) as u64 + 1;
            return receive(args.link, tag, side, wanted, *columns);
        }
        let mut patience = Patience::new();
        loop {
            let (points, there) = door.look(tag);
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

/// Sends a row over rails. By all threads of the block.
#[inline(never)]
pub unsafe fn send(link: *const Link, tag: u32, side: usize, points: Points, columns: Columns) {
    // SAFETY: the caller's contract.
    let link = unsafe { &*link };
    let world = &link.world;
    let parity = (tag & 1) as usize;
    let (out, halo) = (link.out[parity][side], link.halo[parity][1 - side]);
    if columns.any {
        // SAFETY: this thread's columns of a row in the heap. What was sent from it two iterations ago has arrived: the neighbour's answer to
        // it was taken.
        unsafe { store(world.local(out).add(columns.first as usize), &points) };
    }
    // A failure is in the world's report, where the next wait finds it.
    let _ = world.context(Block).put_signal_nbi(halo, out, link.signals[1 - side], 1, link.peers[side]);
}

/// Waits for a row over rails. By all threads of the block.
#[inline(never)]
unsafe fn receive(link: *const Link, tag: u32, side: usize, wanted: u64, columns: Columns) -> (Points, u32) {
    // SAFETY: the caller's contract.
    let link = unsafe { &*link };
    let waited = link.world.context(Block).signal_wait_until(link.signals[side], wanted);
    let stop = waited.map_or_else(|stop| stop.0 as u32, |()| 0);
    let row = link.world.local(link.halo[(tag & 1) as usize][side]);
    // SAFETY: the row has arrived, or its values count for nothing.
    (unsafe { load(row.add(columns.first as usize)) }, stop)
}
