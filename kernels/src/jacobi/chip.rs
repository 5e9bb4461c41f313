//! A resident block's shared memory: rows, the ends of its warps' rows, and their sums.

use super::NORM_NEVER;
use super::resident::{KEPT, LEAST_ROWS, ResidentArgs};
use super::stencil::{Columns, Points, WIDTH, first_of_thread};
use cuda_std::shared::Dynamic;
use cuda_std::sum::add_relaxed_gpu_f64;
use cuda_std::{thread, warp};

/// A row of a block's points.
pub const fn row_bytes(threads: u32) -> u32 {
    threads * (WIDTH * 4) as u32
}

/// The points at both ends of each warp in each row, and each warp's sum.
pub const fn parity_bytes(rows: u32, threads: u32) -> u32 {
    (rows * 2 + 1) * (threads / warp::SIZE) * 4
}

/// A block's place in shared memory.
#[derive(Clone, Copy)]
pub struct Memory {
    shared: Dynamic,
    /// Offset of the warps' edges.
    edges: u32,
    /// Bytes of one parity of these.
    parity: u32,
    /// Bytes of the edges of one row.
    row: u32,
    warp: u32,
    /// Bytes of a row of points, and where this thread's are in it.
    wide: u32,
    thread: u32,
    /// Rows of points here.
    pub rows: u32,
}

impl Memory {
    #[inline(always)]
    pub fn new(rows: u32, bytes: u32) -> Memory {
        let threads = thread::block_dim_x();
        let between = rows - LEAST_ROWS.min(rows);
        let in_shared = between - between.min(KEPT as u32);
        Memory {
            shared: Dynamic::of_block(bytes),
            edges: in_shared * row_bytes(threads),
            parity: parity_bytes(rows, threads),
            row: 2 * (threads / warp::SIZE) * 4,
            warp: thread::thread_idx_x() / warp::SIZE,
            wide: row_bytes(threads),
            thread: first_of_thread() * 4,
            rows: in_shared,
        }
    }

    /// A thread's points of the `index`-th row in shared memory.
    #[inline(always)]
    pub unsafe fn points(&self, index: u32) -> Points {
        let at = index * self.wide + self.thread;
        // SAFETY: the caller's contract.
        unsafe { self.shared.load::<WIDTH>(at) }.map(f32::from_bits)
    }

    #[inline(always)]
    pub unsafe fn set_points(&self, index: u32, points: &Points) {
        let at = index * self.wide + self.thread;
        // SAFETY: the caller's contract.
        unsafe { self.shared.store(at, points.map(f32::to_bits)) };
    }

    /// Leaves the ends of this warp's points in a row for its neighbours.
    #[inline(always)]
    pub unsafe fn set_edges(&self, columns: &Columns, tag: u32, row: u32, points: &Points) {
        let at = self.edges + (tag & 1) * self.parity + row * self.row + self.warp * 4;
        // SAFETY: the caller's contract: one place for each warp and side.
        unsafe {
            self.shared.store_if::<0>(columns.lane, at, points[0].to_bits());
            self.shared.store_if::<{ warp::SIZE - 1 }>(columns.lane, at + self.row / 2, points[WIDTH - 1].to_bits());
        }
    }

    /// The next values of a row's points, and their ends for the neighbours.
    #[inline(always)]
    pub unsafe fn step(
        &self,
        columns: &Columns,
        tag: u32,
        row: u32,
        [above, points, below]: [&Points; 3],
        sum: &mut f32,
    ) -> Points {
        let at = self.edges + (tag & 1) * self.parity + row * self.row + self.warp * 4;
        // The first warp's left and the last one's right neighbour are other words of this memory: what they are said to be is not used,
        // for the field's first and last points stay as they are.
        // SAFETY: the caller's contract.
        let (left, right) = unsafe {
            (
                f32::from_bits(self.shared.load_if::<0>(columns.lane, at + self.row / 2 - 4)),
                f32::from_bits(self.shared.load_if::<{ warp::SIZE - 1 }>(columns.lane, at + 4)),
            )
        };
        let (left, right) = columns.beside(points, left, right);
        let next = columns.step(above, points, below, left, right, sum);
        // SAFETY: as above.
        unsafe { self.set_edges(columns, tag + 1, row, &next) };
        next
    }

    /// Where the warps leave their sums.
    #[inline(always)]
    fn sums(&self, tag: u32) -> u32 {
        self.edges + (tag & 1) * self.parity + self.parity - self.row / 2
    }
}

/// A warp's part of an iteration's sum, for [`add_sums`] behind the block's barrier.
#[inline(always)]
pub unsafe fn leave_sum(args: &ResidentArgs, memory: &Memory, tag: u32, sum: f32) {
    if args.norm == NORM_NEVER {
        return;
    }
    let sum = warp::sum_f32(sum);
    if warp::lane() == 0 {
        // SAFETY: one place for each warp, in two parities: the other one's may still be read.
        unsafe { memory.shared.store(memory.sums(tag) + memory.warp * 4, [sum.to_bits()]) };
    }
}

/// One warp adds the block's sum, in turns: nobody waits for it.
#[inline(always)]
pub unsafe fn add_sums(args: &ResidentArgs, memory: &Memory, tag: u32) {
    let warps = thread::block_dim_x() / warp::SIZE;
    if args.norm == NORM_NEVER || tag % warps != memory.warp {
        return;
    }
    let mut sum = 0.0;
    let mut other = warp::lane();
    while other < warps {
        // SAFETY: as in `leave_sum`, behind the barrier.
        sum += f32::from_bits(unsafe { memory.shared.load::<1>(memory.sums(tag) + other * 4) }[0]);
        other += warp::SIZE;
    }
    let sum = warp::sum_f32(sum);
    if warp::lane() == 0 {
        // SAFETY: one word for each iteration.
        add_relaxed_gpu_f64(unsafe { &*args.sums.add((tag - args.first) as usize) }, sum as f64);
    }
}
