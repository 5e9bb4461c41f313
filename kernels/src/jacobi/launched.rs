//! One iteration by one grid: the stencil near memory's limit, with the exchange of boundary rows inside.
//!
//! A tile is `WIDTH` columns for each thread of a block, and some rows. A thread goes down its columns and keeps the row above, the row
//! itself and the next ones in registers, so each point is loaded once (and the rows at the edges of a tile twice), by loads of 16 bytes,
//! several under way.
//!
//! **Boundary tiles come first.** They wait for the neighbours' rows, which were sent at the beginning of the iteration before, and send
//! theirs while the grid's other tiles are computed. A tile that waits holds its place, and waits for what the neighbour's last iteration
//! has sent, never for its present one: so a grid of more blocks than fit at once ends as well.

use super::stencil::{Columns, Points, WIDTH, first_of_thread, load, load_point_if, store_if};
use super::{ABOVE, BELOW, Link, NORM_NEVER, NORM_THREAD_ATOMIC, TRACE_BEGAN, TRACE_ENDED, exchange};
use cuda_std::memory::{Word, fetch_max_release_gpu_u64};
use cuda_std::sum::{add_relaxed_gpu_f32, add_relaxed_gpu_f64};
use cuda_std::{kernel, shared, thread, warp};

/// Arguments of [`jacobi_step`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StepArgs {
    /// The field before: `rows` rows of `pitch` points, aligned to 16 bytes.
    pub from: *const f32,
    /// The field after.
    pub to: *mut f32,
    /// The rows above the first and below the last.
    pub beside: [*const f32; 2],
    /// Rows of this PE, at least 1.
    pub rows: u32,
    /// Columns of the field.
    pub nx: u32,
    /// Points from one row to the next, a multiple of `WIDTH`.
    pub pitch: u32,
    /// Rows of a tile.
    pub strip: u32,
    /// From 1.
    pub iteration: u32,
    /// [`NORM_NEVER`], ...
    pub norm: u32,
    /// Device memory, 0 before: where the squares of all changes are added.
    pub sum: *const Word,
    /// Device memory; null: nothing is exchanged ([`EXCHANGE_NONE`](super::EXCHANGE_NONE)).
    pub link: *const Link,
}

// SAFETY: plain data for a launch; the pointers are the launcher's to keep valid.
unsafe impl Send for StepArgs {}
// SAFETY: as above.
unsafe impl Sync for StepArgs {}

impl StepArgs {
    /// The points of a row from column 0 on; row -1 (all bits set) is above, row `rows` below.
    #[inline(always)]
    fn row(&self, row: u32) -> *const f32 {
        if row == u32::MAX {
            self.beside[ABOVE]
        } else if row == self.rows {
            self.beside[BELOW]
        } else {
            // SAFETY: a row of the field.
            unsafe { self.from.add(row as usize * self.pitch as usize) }
        }
    }
}

/// What a thread carries down its columns.
struct March<'a> {
    args: &'a StepArgs,
    columns: &'a Columns,
    above: Points,
    points: Points,
    sum: f32,
}

/// Several rows at once: all loads before the first of them is needed, and no branch that parts the lanes of a warp. Written out, since
/// LLVM leaves so large a loop as it is, and what it then indexes in memory (H200: 455 us in place of what is said above).
macro_rules! rows_at_once {
    ($name:ident: $count:literal = $($ahead:literal)*) => {
        #[inline(always)]
        unsafe fn $name(&mut self, row: u32) {
            let pitch = self.args.pitch as usize;
            let first = row as usize * pitch + self.columns.first as usize;
            // SAFETY: contract of the kernel; the rows are of the field, and what is below the last one is of it or beside it.
            unsafe {
                let (from, to) = (self.args.from.add(first), self.args.to.add(first));
                let loaded = [$(self.load::<{ $ahead + 1 == $count }>(from, row, $ahead)),*];
                $(self.step(loaded[$ahead], to.add($ahead * pitch));)*
            }
        }
    };
}

impl March<'_> {
    rows_at_once!(eight: 8 = 0 1 2 3 4 5 6 7);
    rows_at_once!(four: 4 = 0 1 2 3);
    rows_at_once!(one: 1 = 0);

    /// The points below those of row `row + ahead`, and what is left and right of the warp in that row. `from` is the thread's place in
    /// row `row`.
    #[inline(always)]
    unsafe fn load<const LAST: bool>(&self, from: *const f32, row: u32, ahead: usize) -> (Points, f32, f32) {
        let pitch = self.args.pitch as usize;
        // SAFETY: the caller's contract.
        unsafe {
            let here = from.add(ahead * pitch);
            let below = if LAST {
                self.args.row(row + ahead as u32 + 1).add(self.columns.first as usize)
            } else {
                here.add(pitch)
            };
            (
                load(below),
                load_point_if(self.columns.left_is_far, here.wrapping_sub(1)),
                load_point_if(self.columns.right_is_far, here.wrapping_add(WIDTH)),
            )
        }
    }

    /// One row.
    #[inline(always)]
    unsafe fn step(&mut self, (below, left, right): (Points, f32, f32), to: *mut f32) {
        let (left, right) = self.columns.beside(&self.points, left, right);
        let next = self.columns.step(&self.above, &self.points, &below, left, right, &mut self.sum);
        // SAFETY: the caller's contract; each point is one thread's.
        unsafe { store_if(self.columns.stores, to, &next) };
        if self.args.norm == NORM_THREAD_ATOMIC && self.columns.any {
            each_by_itself(self.args, &self.points, &next);
        }
        self.above = self.points;
        self.points = below;
    }
}

/// What `--norm thread-atomic` reproduces.
#[inline(always)]
fn each_by_itself(args: &StepArgs, before: &Points, after: &Points) {
    for point in 0..WIDTH {
        let change = after[point] - before[point];
        // SAFETY: contract of the kernel.
        add_relaxed_gpu_f32(unsafe { &*args.sum }, change * change);
    }
}

/// One iteration.
///
/// # Safety
/// The pointers are valid for what they say while the grid runs, nobody else uses the fields, and blocks are whole warps.
#[kernel(program)]
pub unsafe fn jacobi_step(args: StepArgs) {
    let wide = thread::block_dim_x() * WIDTH as u32;
    let across = args.pitch.div_ceil(wide);
    let strips = args.rows.div_ceil(args.strip);
    let linked = !args.link.is_null();
    if linked {
        note(&args, TRACE_BEGAN, !thread::global_timer_ns());
    }
    let mut sum = 0.0;
    let mut tile = thread::block_idx_x();
    while tile < across * strips {
        // The first strip, the last one, and then those between.
        let strip = match tile / across {
            0 => 0,
            1 => strips - 1,
            other => other - 1,
        };
        let first = tile % across * wide;
        let (begin, end) = (strip * args.strip, args.rows.min((strip + 1) * args.strip));
        let columns = Columns::new(first + first_of_thread(), args.nx, args.pitch);
        // Which sides it has.
        let sides = [linked && begin == 0, linked && end == args.rows];
        if sides[ABOVE] || sides[BELOW] {
            // SAFETY: contract of the kernel.
            unsafe { wait(&args, sides) };
        }
        // SAFETY: contract of the kernel: the tile's rows, and those above and below.
        sum += unsafe { march(&args, &columns, begin, end) };
        if sides[ABOVE] || sides[BELOW] {
            let count = wide.min(args.pitch - first);
            // SAFETY: contract of the kernel.
            unsafe { send(&args, sides, columns, first, count) };
        }
        tile += thread::grid_dim_x();
    }
    if args.norm != NORM_NEVER && args.norm != NORM_THREAD_ATOMIC {
        // SAFETY: contract of the kernel.
        unsafe { add_of_block(&*args.sum, sum) };
    }
    if linked {
        note(&args, TRACE_ENDED, thread::global_timer_ns());
    }
}

/// A tile's rows; the squares of this thread's changes.
#[inline(always)]
unsafe fn march(args: &StepArgs, columns: &Columns, begin: u32, end: u32) -> f32 {
    let column = columns.first as usize;
    // SAFETY: the caller's contract.
    unsafe {
        let mut march = March {
            args,
            columns,
            above: load(args.row(begin.wrapping_sub(1)).add(column)),
            points: load(args.row(begin).add(column)),
            sum: 0.0,
        };
        let mut row = begin;
        while row + 8 <= end {
            march.eight(row);
            row += 8;
        }
        while row + 4 <= end {
            march.four(row);
            row += 4;
        }
        while row < end {
            march.one(row);
            row += 1;
        }
        // Threads without columns have computed those of another one.
        if columns.any { march.sum } else { 0.0 }
    }
}

#[inline(always)]
unsafe fn wait(args: &StepArgs, sides: [bool; 2]) {
    // SAFETY: the caller's contract.
    unsafe {
        if (*args.link).neighbours == 0 {
            return;
        }
        for side in [ABOVE, BELOW] {
            if sides[side] {
                // A failure is in the world's report.
                let _ = exchange::receive(args.link, args.iteration, side);
            }
        }
    }
}

#[inline(always)]
unsafe fn send(args: &StepArgs, sides: [bool; 2], columns: Columns, first: u32, count: u32) {
    for side in [ABOVE, BELOW] {
        if sides[side] {
            let row = if side == ABOVE { 0 } else { args.rows - 1 };
            // SAFETY: the caller's contract: this block has computed its columns of that row.
            unsafe {
                let row = args.to.add(row as usize * args.pitch as usize);
                exchange::send(args.link, args.iteration, side, row, columns, first, count);
            }
        }
    }
}

/// Adds the sum of a block's threads, once. Every thread of the block calls it, as the last that uses its shared memory.
///
/// # Safety
/// Blocks are whole warps.
#[inline(always)]
unsafe fn add_of_block(word: &Word, sum: f32) {
    let sum = warp::sum_f32(sum);
    let sums = shared::memory::<f32>();
    let index = thread::thread_idx_x();
    // SAFETY: one for each warp, of which a block has at most 1024.
    unsafe {
        if index.is_multiple_of(warp::SIZE) {
            *sums.add((index / warp::SIZE) as usize) = sum;
        }
        thread::sync_threads();
        if index == 0 {
            let mut all = 0.0;
            for other in 0..thread::block_dim_x() / warp::SIZE {
                all += *sums.add(other as usize);
            }
            add_relaxed_gpu_f64(word, all as f64);
        }
    }
}

/// By the block's first thread, where iterations are traced.
#[inline(always)]
fn note(args: &StepArgs, word: usize, value: u64) {
    if thread::thread_idx_x() == 0
        // SAFETY: contract of the kernel.
        && let Some(word) = unsafe { &*args.link }.traced(args.iteration, word)
    {
        fetch_max_release_gpu_u64(word, value);
    }
}
