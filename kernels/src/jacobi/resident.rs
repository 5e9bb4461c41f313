//! All iterations in one grid per PE: the field stays in registers and shared memory.
//!
//! A block has whole rows: the first ones in registers, the others in shared memory. Adjacent blocks exchange their
//! boundary rows as words that contain a value and the iteration number. Blocks of two PEs that map each other's heaps
//! (NVLink) do the same. A thread that reads the expected number has the value, so there is no barrier, flag, fence or
//! launch between two iterations. Rows for a PE that is reached over rails are put as
//! [rounds](crate::gin::Context::put_round_nbi), whose signal proves which row has arrived.
//!
//! ```text
//! iteration i:   take the rows above and below, tag i
//!                compute the last and the first row, give them away with tag i + 1
//!                compute the rows between, while those are in flight
//!                barrier of the block: the warps' end points of i + 1 are in shared memory
//! ```
//!
//! **Two places per row suffice.** A thread writes its points of tag `i + 2` to the place of tag `i` after it has read
//! its neighbour's points of tag `i + 1`. The neighbour wrote those after it had read the points of tag `i`. Each word
//! is accessed by one 8-byte access, which is atomic. The words order no other memory, and no other memory is read.

use super::halo::{self, give, receive, send, take};
pub use super::resident_args::{KEPT, LEAST_ROWS, PLACES, ResidentArgs, row_words};
use super::shared_rows::{self, Ends, Next, SharedRows, add_sums, leave_sum};
use super::stencil::{Columns, Points, WIDTH, first_of_thread, load, store};
use super::{ABOVE, BELOW, TRACE_WAITED};
use crate::gin::Block;
use crate::ring::Status;
use cuda_std::memory::fetch_max_release_gpu_u64;
use cuda_std::{kernel, thread};

/// Maximum number of columns: those of a block of 1024 threads.
pub const MOST_COLUMNS: u32 = 1024 * WIDTH as u32;

/// Returns the bytes of shared memory of a block of `threads` threads that has `rows` rows, at least [`LEAST_ROWS`].
pub const fn shared_bytes(rows: u32, threads: u32) -> u32 {
    shared_rows::bytes(rows, threads)
}

/// Runs all iterations. Both neighbours' heaps must be mapped.
///
/// # Safety
/// The pointers must be valid, as documented per field, until the grid ends, and no other thread may access the memory.
/// Blocks must be whole warps, with the same number of threads on all PEs. Each PE's grid must run the same iterations.
#[kernel(resident)]
pub unsafe fn jacobi_resident(args: ResidentArgs) {
    // SAFETY: this kernel has the safety requirements of `run`.
    unsafe { run::<false>(&args) };
}

/// Like [`jacobi_resident`], but neighbours may be reached over rails. A separate kernel, because its calls would take
/// registers from [`jacobi_resident`].
///
/// # Safety
/// The requirements of [`jacobi_resident`] apply.
#[kernel(resident)]
pub unsafe fn jacobi_resident_rails(args: ResidentArgs) {
    // SAFETY: this kernel has the safety requirements of `run`.
    unsafe { run::<true>(&args) };
}

#[inline(always)]
unsafe fn run<const RAILS: bool>(args: &ResidentArgs) {
    // SAFETY: the caller guarantees that `args` is valid.
    unsafe {
        if (*args.link).world.has_failed_for(&Block) {
            return;
        }
        let mut part = Rows::<RAILS>::load(args);
        if part.iterate(args) {
            part.store(args);
            if RAILS {
                halo::finish(args, &part.memory);
            }
        }
    }
}

/// A thread's points in its block's rows, and its position.
struct Rows<const RAILS: bool> {
    columns: Columns,
    memory: SharedRows,
    /// Number of rows of the block.
    rows: u32,
    top: Points,
    held: [Points; KEPT],
}

/// Returns the index of the block's first row in the PE's field, and the number of its rows.
#[inline(always)]
fn rows_of_block(args: &ResidentArgs) -> (u32, u32) {
    let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
    let (least, more) = (args.rows / blocks, args.rows % blocks);
    (block * least + block.min(more), least + (block < more) as u32)
}

impl<const RAILS: bool> Rows<RAILS> {
    /// Returns the address of this thread's points of a row of the block in the PE's field.
    #[inline(always)]
    unsafe fn place(&self, args: &ResidentArgs, row: u32) -> *mut f32 {
        let at = (rows_of_block(args).0 + row) as usize * args.pitch as usize + self.columns.first as usize;
        // SAFETY: the caller guarantees that `row` is a row of the block.
        unsafe { args.field.add(at) }
    }

    /// Loads the rows from the PE's field. Stores the end points of the warps and the boundary rows where the first
    /// iteration reads them.
    #[inline(always)]
    unsafe fn load(args: &ResidentArgs) -> Rows<RAILS> {
        let (_, rows) = rows_of_block(args);
        let columns = Columns::new(first_of_thread(), args.nx, args.pitch);
        let memory = SharedRows::new(&columns, rows, args.shared_bytes);
        // SAFETY: the caller guarantees that `args` is valid. All accesses are to rows of the field, and to their
        // places in the block's shared memory.
        unsafe {
            let mut part = Rows { columns, memory, rows, top: [0.0; WIDTH], held: [[0.0; WIDTH]; KEPT] };
            // Stores the same values as a previous iteration would.
            let ends = memory.ends(args.first.wrapping_sub(1));
            part.top = load(part.place(args, 0));
            memory.set_ends(&columns, ends, &part.top);
            for row in 0..KEPT {
                part.held[row] = load(part.place(args, row as u32 + 1));
                memory.set_ends(&columns, ends.down(row as u32 + 1), &part.held[row]);
            }
            let mut row = 1 + KEPT as u32;
            let mut at = memory.points;
            while row < rows {
                let points = load(part.place(args, row));
                memory.store(at, &points);
                memory.set_ends(&columns, ends.down(row), &points);
                row += 1;
                at += memory.row();
            }
            if thread::thread_idx_x() == 0 {
                let (above, below) = (halo::of(args, ABOVE), halo::of(args, BELOW));
                memory.set_doors([above.0, below.0], [above.1, below.1]);
            }
            thread::sync_threads();
            part.give(args, args.first, &part.top, &memory.load(memory.last));
            part
        }
    }

    /// Stores the rows to the PE's field.
    #[inline(always)]
    unsafe fn store(&self, args: &ResidentArgs) {
        if !self.columns.any {
            return;
        }
        // SAFETY: as in `load`, all rows are in the field or in shared memory, and no other thread accesses these
        // points.
        unsafe {
            store(self.place(args, 0), &self.top);
            for row in 0..KEPT {
                store(self.place(args, row as u32 + 1), &self.held[row]);
            }
            let mut row = 1 + KEPT as u32;
            let mut at = self.memory.points;
            while row < self.rows {
                store(self.place(args, row), &self.memory.load(at));
                row += 1;
                at += self.memory.row();
            }
        }
    }

    /// Runs all iterations. Returns `false` after a failure, which is recorded in the world's report.
    #[inline(always)]
    unsafe fn iterate(&mut self, args: &ResidentArgs) -> bool {
        // SAFETY: the caller guarantees that `link` is valid.
        let traced = unsafe { !(*args.link).trace.is_null() };
        let end = args.first + args.iterations;
        let mut tag = args.first;
        while tag != end {
            let began = if traced { thread::global_timer_ns() } else { 0 };
            // SAFETY: the caller guarantees that `args` is valid, and `load` has stored the doors.
            let ([up, down], failed) =
                unsafe { take::<RAILS>(args, &self.memory, tag, |side| receive(args.link, tag, side, self.columns)) };
            if traced {
                // SAFETY: the caller guarantees that `link` is valid.
                unsafe { waited(args, tag, began) };
            }
            let mut sum = 0.0;
            // SAFETY: the warps stored all their end points of this tag before the last block barrier.
            unsafe {
                let ends = self.memory.ends(tag);
                let (top, bottom) = self.outer_rows(ends, &up, &down, &mut sum);
                if tag + 1 != end {
                    self.give(args, tag + 1, &top, &bottom);
                }
                self.inner_rows(ends, &mut sum);
                self.top = top;
                self.memory.store(self.memory.last, &bottom);
                // Threads without columns have computed the points of another thread.
                let sum = if self.columns.any { sum } else { 0.0 };
                leave_sum(args, &self.memory, tag, sum);
            }
            if thread::sync_threads_or(failed != 0) {
                if failed != 0 {
                    // SAFETY: the caller guarantees that `link` is valid.
                    unsafe { (*args.link).world.gave_up(Status(failed as u64), tag as u64) };
                }
                return false;
            }
            // SAFETY: the caller guarantees that `args` is valid, and the block barrier follows `leave_sum`.
            unsafe { add_sums(args, &self.memory, tag) };
            tag += 1;
        }
        true
    }

    /// Computes the next values of the first and the last row.
    #[inline(always)]
    unsafe fn outer_rows(&self, ends: Ends, up: &Points, down: &Points, sum: &mut f32) -> (Points, Points) {
        let (memory, columns) = (&self.memory, &self.columns);
        // SAFETY: the caller guarantees that the end points in `ends` have been stored.
        unsafe {
            let old = memory.load(memory.last);
            let above = if memory.last != memory.points {
                memory.load(memory.last - memory.row())
            } else {
                self.held[KEPT - 1]
            };
            let bottom = memory.step(columns, ends.down(self.rows - 1), [&above, &old, down], sum);
            let top = memory.step(columns, ends, [up, &self.top, &self.held[0]], sum);
            (top, bottom)
        }
    }

    /// Computes the next values of the rows between the first and the last row, which still have their old values.
    #[inline(always)]
    unsafe fn inner_rows(&mut self, ends: Ends, sum: &mut f32) {
        let (memory, columns) = (self.memory, self.columns);
        // SAFETY: the caller guarantees that the end points in `ends` have been stored.
        unsafe {
            let at = memory.points;
            let mut above = self.top;
            let mut points = self.held[0];
            for row in 0..KEPT {
                let below = if row + 1 < KEPT { self.held[row + 1] } else { memory.load(at) };
                self.held[row] = memory.step(&columns, ends.down(row as u32 + 1), [&above, &points, &below], sum);
                (above, points) = (points, below);
            }
            let next = Next { at, ends: ends.down(KEPT as u32 + 1), above, points };
            memory.step_rows(&columns, next, sum, |_| ());
        }
    }

    /// Writes the block's first and last row for the adjacent blocks or PEs.
    #[inline(always)]
    unsafe fn give(&self, args: &ResidentArgs, tag: u32, top: &Points, bottom: &Points) {
        // SAFETY: the caller guarantees that `args` is valid, and `load` has stored the doors.
        unsafe {
            let [above, below] = self.memory.give();
            self.give_row(args, tag, (above, ABOVE), top);
            self.give_row(args, tag, (below, BELOW), bottom);
        }
    }

    #[inline(always)]
    unsafe fn give_row(&self, args: &ResidentArgs, tag: u32, (place, side): (u64, usize), row: &Points) {
        // SAFETY: the caller guarantees that `place` is 0 or a row of words.
        unsafe {
            if !RAILS || place != 0 {
                give(place, row, tag);
            } else {
                send(args.link, tag, side, *row, self.columns);
            }
        }
    }
}

/// Records the longest wait for rows of an iteration.
#[inline(always)]
pub(super) unsafe fn waited(args: &ResidentArgs, tag: u32, began: u64) {
    // SAFETY: the caller guarantees that `link` is valid.
    let link = unsafe { &*args.link };
    if thread::thread_idx_x() == 0
        && let Some(word) = link.traced(tag - args.first + 1, TRACE_WAITED)
    {
        fetch_max_release_gpu_u64(word, thread::global_timer_ns() - began);
    }
}
