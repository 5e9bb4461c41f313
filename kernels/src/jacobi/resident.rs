//! All iterations by one grid per PE: the field stays on the chip.
//!
//! A block has whole rows: its first and last, and a few between, in registers, the others in shared memory. Neighbouring blocks, also of
//! two PEs that map each other's heaps (NVLink), give each other their boundary rows as words that carry a value and the number of the
//! iteration: whoever finds the number has the value, so no barrier, no flag, no fence and no launch stands between two iterations. Rows
//! for a PE that is reached by rails are put with a signal.
//!
//! ```text
//! iteration i:   take the rows beside mine, tag i
//!                compute my first and last row, give them away with tag i + 1
//!                compute the rows between, while those travel
//!                barrier of the block: the warps' edges of i + 1 are in shared memory
//! ```
//!
//! **Two places for each row suffice.** A thread gives its points of tag `i + 2` into the place of tag `i` when it has taken its
//! neighbour's points of tag `i + 1`, which that one gave behind taking those of tag `i`. The two sides of a word go by one access of
//! 8 bytes, which is not torn; nothing else is ordered by it, and nothing else is read.

use super::chip::{Memory, add_sums, leave_sum, parity_bytes, row_bytes};
use super::door::{Door, send, take};
use super::stencil::{Columns, Points, WIDTH, first_of_thread, load, store};
use super::{ABOVE, BELOW, Link, TRACE_WAITED};
use crate::gin::Sym;
use crate::ring::Status;
use cuda_std::memory::{Word, fetch_max_release_gpu_u64};
use cuda_std::vector::opaque_u32;
use cuda_std::{kernel, thread};

/// Rows between the first and the last that a block has in registers.
pub const KEPT: usize = 2;
/// Rows of a block at least: its first and its last.
pub const LEAST_ROWS: u32 = 2;
/// Columns at most: those of a block of 1024 threads.
pub const MOST_COLUMNS: u32 = 1024 * WIDTH as u32;

/// Shared memory of a block of so many threads that has so many rows, in bytes.
pub const fn shared_bytes(rows: u32, threads: u32) -> u32 {
    let between = rows.saturating_sub(LEAST_ROWS + KEPT as u32);
    between * row_bytes(threads) + 2 * parity_bytes(rows, threads)
}

/// Words of 8 bytes of one row on its way.
pub const fn row_words(threads: u32) -> u64 {
    threads as u64 * WIDTH as u64
}

/// Rows on their way to a block, or to a PE: two sides in two parities.
pub const PLACES: u64 = 4;

/// Arguments of [`jacobi_resident`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ResidentArgs {
    /// The field before, and after the last iteration: `rows` rows of `pitch` points, aligned to 16 bytes.
    pub field: *mut f32,
    /// Rows of this PE, at least [`LEAST_ROWS`] for each block.
    pub rows: u32,
    /// Columns of the field, at most four for each thread.
    pub nx: u32,
    /// Points from one row to the next, a multiple of four.
    pub pitch: u32,
    /// Iterations.
    pub iterations: u32,
    /// Number of the first iteration: no two launches over the same words share one. From 1, the same on all PEs.
    pub first: u32,
    /// What [`shared_bytes`] says of the block that has most rows.
    pub shared_bytes: u32,
    /// [`NORM_NEVER`](super::NORM_NEVER), or each block adds its squares.
    pub norm: u32,
    /// Device memory, 0 before: a sum for each iteration.
    pub sums: *const Word,
    /// Device memory: [`PLACES`] rows of [`row_words`] for each block, 0 before the first launch.
    pub words: *const Word,
    /// [`PLACES`] rows of [`row_words`] for words of the PEs beside, 0 before the first launch.
    pub inbox: Sym<u64>,
    /// What the link's signals have counted before this launch.
    pub counted: [u64; 2],
    /// Device memory.
    pub link: *const Link,
}

// SAFETY: plain data for a launch; the pointers are the launcher's to keep valid.
unsafe impl Send for ResidentArgs {}
// SAFETY: as above.
unsafe impl Sync for ResidentArgs {}

/// All iterations; both neighbours have mapped heaps.
///
/// # Safety
/// The pointers are valid for what they say while the grid runs, nobody else uses them, blocks are whole warps of the same number on all
/// PEs, and each PE's grid runs the same iterations.
#[kernel(program, resident)]
pub unsafe fn jacobi_resident(args: ResidentArgs) {
    // SAFETY: contract of the kernel.
    unsafe { run::<false>(&args) };
}

/// As [`jacobi_resident`], where neighbours may be reached by rails. A kernel of its own: its calls would take the other one's registers.
///
/// # Safety
/// As [`jacobi_resident`].
#[kernel(program, resident)]
pub unsafe fn jacobi_resident_rails(args: ResidentArgs) {
    // SAFETY: contract of the kernel.
    unsafe { run::<true>(&args) };
}

#[inline(always)]
unsafe fn run<const RAILS: bool>(args: &ResidentArgs) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut part = Rows::<RAILS>::load(args);
        if part.iterate(args) {
            part.store(args);
        }
    }
}

/// A block's rows, and where it stands.
struct Rows<const RAILS: bool> {
    columns: Columns,
    memory: Memory,
    doors: [Door; 2],
    /// How many, and the first one's number in the PE's field.
    rows: u32,
    first_row: u32,
    /// Of those between the first and the last so many are in registers.
    kept: u32,
    top: Points,
    bottom: Points,
    held: [Points; KEPT],
}

impl<const RAILS: bool> Rows<RAILS> {
    /// A thread's points of a row of the block in the PE's field.
    #[inline(always)]
    unsafe fn place(&self, args: &ResidentArgs, row: u32) -> *mut f32 {
        let at = (self.first_row + row) as usize * args.pitch as usize + self.columns.first as usize;
        // SAFETY: the caller's contract.
        unsafe { args.field.add(at) }
    }

    /// From the PE's field.
    #[inline(always)]
    unsafe fn load(args: &ResidentArgs) -> Rows<RAILS> {
        let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
        let (least, more) = (args.rows / blocks, args.rows % blocks);
        let rows = least + (block < more) as u32;
        // SAFETY: the caller's contract, for all of it: rows of the field, and their places in the block's memory.
        unsafe {
            let mut part = Rows {
                columns: Columns::new(first_of_thread(), args.nx, args.pitch),
                memory: Memory::new(rows, args.shared_bytes),
                doors: [Door::of(args, ABOVE), Door::of(args, BELOW)],
                rows,
                first_row: block * least + block.min(more),
                kept: (rows - LEAST_ROWS).min(KEPT as u32),
                top: [0.0; WIDTH],
                bottom: [0.0; WIDTH],
                held: [[0.0; WIDTH]; KEPT],
            };
            part.top = load(part.place(args, 0));
            part.bottom = load(part.place(args, rows - 1));
            part.memory.set_edges(&part.columns, args.first, 0, &part.top);
            part.memory.set_edges(&part.columns, args.first, rows - 1, &part.bottom);
            for row in 0..KEPT {
                if (row as u32) < part.kept {
                    part.held[row] = load(part.place(args, row as u32 + 1));
                    part.memory.set_edges(&part.columns, args.first, row as u32 + 1, &part.held[row]);
                }
            }
            let mut row = 0;
            while row < part.memory.rows {
                let points = load(part.place(args, part.kept + 1 + row));
                part.memory.set_points(row, &points);
                part.memory.set_edges(&part.columns, args.first, part.kept + 1 + row, &points);
                row = opaque_u32(row + 1);
            }
            part.give(args, args.first);
            part
        }
    }

    /// Back into the PE's field.
    #[inline(always)]
    unsafe fn store(&self, args: &ResidentArgs) {
        if !self.columns.any {
            return;
        }
        // SAFETY: as in `load`; each point is one thread's.
        unsafe {
            store(self.place(args, 0), &self.top);
            store(self.place(args, self.rows - 1), &self.bottom);
            for row in 0..KEPT {
                if (row as u32) < self.kept {
                    store(self.place(args, row as u32 + 1), &self.held[row]);
                }
            }
            for row in 0..self.memory.rows {
                store(self.place(args, self.kept + 1 + row), &self.memory.points(row));
            }
        }
    }

    /// All iterations; false after a failure, which is in the world's report.
    #[inline(always)]
    unsafe fn iterate(&mut self, args: &ResidentArgs) -> bool {
        // SAFETY: the caller's contract.
        let traced = unsafe { !(*args.link).trace.is_null() };
        let end = args.first + args.iterations;
        thread::sync_threads();
        let mut tag = args.first;
        while tag != end {
            let began = if traced { thread::global_timer_ns() } else { 0 };
            // SAFETY: the caller's contract.
            let ([up, down], failed) = unsafe { take::<RAILS>(args, &self.doors, tag, &self.columns) };
            if traced {
                // SAFETY: the caller's contract.
                unsafe { waited(args, tag, began) };
            }
            let mut sum = 0.0;
            // SAFETY: behind the barrier, at which the warps' edges of this tag were all there.
            unsafe {
                let old = self.outer_rows(tag, &up, &down, &mut sum);
                if tag + 1 != end {
                    self.give(args, tag + 1);
                }
                self.inner_rows(tag, old, &mut sum);
                let sum = if self.columns.any { sum } else { 0.0 };
                leave_sum(args, &self.memory, tag, sum);
            }
            if thread::sync_threads_or(failed != 0) {
                if failed != 0 {
                    // SAFETY: the caller's contract.
                    unsafe { (*args.link).world.gave_up(Status(failed as u64), tag as u64) };
                }
                return false;
            }
            // SAFETY: the caller's contract; behind the barrier.
            unsafe { add_sums(args, &self.memory, tag) };
            tag += 1;
        }
        true
    }

    /// The next values of the first and the last row; their old ones.
    #[inline(always)]
    unsafe fn outer_rows(&mut self, tag: u32, up: &Points, down: &Points, sum: &mut f32) -> [Points; 2] {
        let (top, bottom) = (self.top, self.bottom);
        // The rows beside them.
        let second = if self.kept > 0 { self.held[0] } else { bottom };
        let mut last_but_one = top;
        for row in 0..KEPT {
            if (row as u32) < self.kept {
                last_but_one = self.held[row];
            }
        }
        // SAFETY: the caller's contract.
        unsafe {
            if self.memory.rows > 0 {
                last_but_one = self.memory.points(self.memory.rows - 1);
            }
            self.top = self.memory.step(&self.columns, tag, 0, [up, &top, &second], sum);
            self.bottom = self.memory.step(&self.columns, tag, self.rows - 1, [&last_but_one, &bottom, down], sum);
        }
        [top, bottom]
    }

    /// The next values of the rows between.
    #[inline(always)]
    unsafe fn inner_rows(&mut self, tag: u32, [mut above, bottom]: [Points; 2], sum: &mut f32) {
        let memory = self.memory;
        // SAFETY: the caller's contract.
        unsafe {
            for row in 0..KEPT {
                if (row as u32) < self.kept {
                    let points = self.held[row];
                    let mut below = bottom;
                    if row + 1 < KEPT && (row as u32) + 1 < self.kept {
                        below = self.held[(row + 1) % KEPT];
                    } else if memory.rows > 0 {
                        below = memory.points(0);
                    }
                    self.held[row] = memory.step(&self.columns, tag, row as u32 + 1, [&above, &points, &below], sum);
                    above = points;
                }
            }
            if memory.rows == 0 {
                return;
            }
            let mut points = memory.points(0);
            let mut row = 0;
            while row < memory.rows {
                let below = if row + 1 < memory.rows { memory.points(row + 1) } else { bottom };
                let next = memory.step(&self.columns, tag, self.kept + 1 + row, [&above, &points, &below], sum);
                memory.set_points(row, &next);
                above = points;
                points = below;
                // Unknown to the compiler, which would unroll the loop and keep an address for each access: at 1024 threads a thread has
                // 64 registers, and these are 16 points already.
                row = opaque_u32(row + 1);
            }
        }
    }

    /// Gives the block's first and last row to whoever is beside it.
    #[inline(always)]
    unsafe fn give(&self, args: &ResidentArgs, tag: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            self.give_row(args, tag, ABOVE, &self.top);
            self.give_row(args, tag, BELOW, &self.bottom);
        }
    }

    #[inline(always)]
    unsafe fn give_row(&self, args: &ResidentArgs, tag: u32, side: usize, row: &Points) {
        // SAFETY: the caller's contract.
        unsafe {
            if !RAILS || self.doors[side].give != 0 {
                self.doors[side].give(row, tag);
            } else {
                send(args.link, tag, side, *row, self.columns);
            }
        }
    }
}

/// Notes the longest wait of an iteration for rows.
#[inline(always)]
unsafe fn waited(args: &ResidentArgs, tag: u32, began: u64) {
    // SAFETY: the caller's contract.
    let link = unsafe { &*args.link };
    if thread::thread_idx_x() == 0
        && let Some(word) = link.traced(tag - args.first + 1, TRACE_WAITED)
    {
        fetch_max_release_gpu_u64(word, thread::global_timer_ns() - began);
    }
}
