//! All iterations by one grid per PE: the field stays on the chip.
//!
//! A block has whole rows: its first ones in registers, the others in shared memory. Neighbouring blocks, also of
//! two PEs that map each other's heaps (NVLink), give each other their boundary rows as words that carry a value and the number of the
//! iteration: whoever finds the number has the value, so no barrier, no flag, no fence and no launch stands between two iterations. Rows
//! for a PE that is reached by rails are put as [rounds](crate::gin::Context::put_round_nbi), whose signal proves which row has arrived.
//!
//! ```text
//! iteration i:   take the rows beside mine, tag i
//!                compute my last and first row, give them away with tag i + 1
//!                compute the rows between, while those travel
//!                barrier of the block: the warps' edges of i + 1 are in shared memory
//! ```
//!
//! **Two places for each row suffice.** A thread gives its points of tag `i + 2` into the place of tag `i` when it has taken its
//! neighbour's points of tag `i + 1`, which that one gave behind taking those of tag `i`. The two sides of a word go by one access of
//! 8 bytes, which is not torn; nothing else is ordered by it, and nothing else is read.

use super::chip::{self, Ends, Memory, add_sums, leave_sum};
use super::door::{self, give, send, take};
pub use super::resident_args::{KEPT, LEAST_ROWS, PLACES, ResidentArgs, row_words};
use super::stencil::{Columns, Points, WIDTH, first_of_thread, load, store};
use super::{ABOVE, BELOW, TRACE_WAITED};
use crate::ring::Status;
use cuda_std::memory::fetch_max_release_gpu_u64;
use cuda_std::{kernel, thread};

/// Columns at most: those of a block of 1024 threads.
pub const MOST_COLUMNS: u32 = 1024 * WIDTH as u32;

/// Shared memory of a block of so many threads that has so many rows, [`LEAST_ROWS`] or more, in bytes.
pub const fn shared_bytes(rows: u32, threads: u32) -> u32 {
    chip::bytes(rows, threads)
}

/// All iterations; both neighbours have mapped heaps.
///
/// # Safety
/// The pointers are valid for what they say while the grid runs, nobody else uses them, blocks are whole warps of the same number on all
/// PEs, and each PE's grid runs the same iterations.
#[kernel(resident)]
pub unsafe fn jacobi_resident(args: ResidentArgs) {
    // SAFETY: contract of the kernel.
    unsafe { run::<false>(&args) };
}

/// As [`jacobi_resident`], where neighbours may be reached by rails. A kernel of its own: its calls would take the other one's registers.
///
/// # Safety
/// As [`jacobi_resident`].
#[kernel(resident)]
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
            if RAILS {
                door::finish(args, &part.memory);
            }
        }
    }
}

/// A thread's points of its block's rows, and where it stands.
struct Rows<const RAILS: bool> {
    columns: Columns,
    memory: Memory,
    /// Rows of the block.
    rows: u32,
    top: Points,
    held: [Points; KEPT],
}

/// The first row's number in the PE's field, and how many there are.
#[inline(always)]
fn rows_of_block(args: &ResidentArgs) -> (u32, u32) {
    let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
    let (least, more) = (args.rows / blocks, args.rows % blocks);
    (block * least + block.min(more), least + (block < more) as u32)
}

impl<const RAILS: bool> Rows<RAILS> {
    /// A thread's points of a row of the block in the PE's field.
    #[inline(always)]
    unsafe fn place(&self, args: &ResidentArgs, row: u32) -> *mut f32 {
        let at = (rows_of_block(args).0 + row) as usize * args.pitch as usize + self.columns.first as usize;
        // SAFETY: the caller's contract.
        unsafe { args.field.add(at) }
    }

    /// From the PE's field; the ends of the warps' rows and the boundary rows are where the first iteration looks for them.
    #[inline(always)]
    unsafe fn load(args: &ResidentArgs) -> Rows<RAILS> {
        let (_, rows) = rows_of_block(args);
        let columns = Columns::new(first_of_thread(), args.nx, args.pitch);
        let memory = Memory::new(&columns, rows, args.shared_bytes);
        // SAFETY: the caller's contract, for all of it: rows of the field, and their places in the block's memory.
        unsafe {
            let mut part = Rows { columns, memory, rows, top: [0.0; WIDTH], held: [[0.0; WIDTH]; KEPT] };
            // As the iteration before would have left them.
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
                let (above, below) = (door::of(args, ABOVE), door::of(args, BELOW));
                memory.set_doors([above.0, below.0], [above.1, below.1]);
            }
            thread::sync_threads();
            part.give(args, args.first, &part.top, &memory.load(memory.last));
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

    /// All iterations; false after a failure, which is in the world's report.
    #[inline(always)]
    unsafe fn iterate(&mut self, args: &ResidentArgs) -> bool {
        // SAFETY: the caller's contract.
        let traced = unsafe { !(*args.link).trace.is_null() };
        let end = args.first + args.iterations;
        let mut tag = args.first;
        while tag != end {
            let began = if traced { thread::global_timer_ns() } else { 0 };
            // SAFETY: the caller's contract.
            let ([up, down], failed) = unsafe { take::<RAILS>(args, &self.memory, tag, &self.columns) };
            if traced {
                // SAFETY: the caller's contract.
                unsafe { waited(args, tag, began) };
            }
            let mut sum = 0.0;
            // SAFETY: behind the barrier, at which the warps' ends of this tag were all there.
            unsafe {
                let ends = self.memory.ends(tag);
                let (top, bottom) = self.outer_rows(ends, &up, &down, &mut sum);
                if tag + 1 != end {
                    self.give(args, tag + 1, &top, &bottom);
                }
                self.inner_rows(ends, &mut sum);
                self.top = top;
                self.memory.store(self.memory.last, &bottom);
                // Threads without columns have computed those of another one.
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

    /// The next values of the first and the last row.
    #[inline(always)]
    unsafe fn outer_rows(&self, ends: Ends, up: &Points, down: &Points, sum: &mut f32) -> (Points, Points) {
        let (memory, columns) = (&self.memory, &self.columns);
        // SAFETY: the caller's contract.
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

    /// The next values of the rows between, beside which the first and the last one are as they were.
    #[inline(always)]
    unsafe fn inner_rows(&mut self, ends: Ends, sum: &mut f32) {
        let (memory, columns) = (self.memory, self.columns);
        // SAFETY: the caller's contract.
        unsafe {
            let mut at = memory.points;
            let mut above = self.top;
            let mut points = self.held[0];
            for row in 0..KEPT {
                let below = if row + 1 < KEPT { self.held[row + 1] } else { memory.load(at) };
                self.held[row] = memory.step(&columns, ends.down(row as u32 + 1), [&above, &points, &below], sum);
                (above, points) = (points, below);
            }
            let mut ends = ends.down(KEPT as u32 + 1);
            let row = memory.row();
            // Three at a time: the names of old rows come round again, and none is moved.
            while at + 2 * row < memory.last {
                let first = memory.load(at + row);
                let next = memory.step(&columns, ends, [&above, &points, &first], sum);
                memory.store(at, &next);
                let second = memory.load(at + 2 * row);
                let next = memory.step(&columns, ends.down(1), [&points, &first, &second], sum);
                memory.store(at + row, &next);
                let third = memory.load(at + 3 * row);
                let next = memory.step(&columns, ends.down(2), [&first, &second, &third], sum);
                memory.store(at + 2 * row, &next);
                (above, points) = (second, third);
                at += 3 * row;
                ends = ends.down(3);
            }
            while at != memory.last {
                let below = memory.load(at + row);
                let next = memory.step(&columns, ends, [&above, &points, &below], sum);
                memory.store(at, &next);
                (above, points) = (points, below);
                at += row;
                ends = ends.down(1);
            }
        }
    }

    /// Gives the block's first and last row to whoever is beside it.
    #[inline(always)]
    unsafe fn give(&self, args: &ResidentArgs, tag: u32, top: &Points, bottom: &Points) {
        // SAFETY: the caller's contract.
        unsafe {
            let [above, below] = self.memory.give();
            self.give_row(args, tag, (above, ABOVE), top);
            self.give_row(args, tag, (below, BELOW), bottom);
        }
    }

    #[inline(always)]
    unsafe fn give_row(&self, args: &ResidentArgs, tag: u32, (place, side): (u64, usize), row: &Points) {
        // SAFETY: the caller's contract.
        unsafe {
            if !RAILS || place != 0 {
                give(place, row, tag);
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
