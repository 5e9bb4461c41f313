//! One iteration by one grid: the stencil near memory's limit, with the exchange of boundary rows inside.
//!
//! A tile is `WIDTH` columns for each thread of a block, and some rows. A thread goes down its columns and keeps the row above, the row
//! itself and the next ones in registers, so each point is loaded once (and the rows at the edges of a tile twice), by loads of 16 bytes,
//! several under way.
//!
//! **Boundary tiles come first.** They wait for the neighbours' rows, which were sent at the beginning of the iteration before, and send
//! theirs while the grid's other tiles are computed. A tile that waits holds its place, and waits for what the neighbour's last iteration
//! has sent, never for its present one: so a grid of more blocks than fit at once ends as well.

use super::stencil::{Columns, Far, Points, WIDTH, first_of_thread, load, load_point_if, store_if};
use super::{ABOVE, BELOW, EXCHANGE_NONE, Link, NORM_NEVER, NORM_THREAD_ATOMIC, TRACE_BEGAN, TRACE_ENDED, exchange};
use cuda_std::memory::Word;
use cuda_std::shared::Dynamic;
use cuda_std::sum::{add_relaxed_gpu_f32, add_relaxed_gpu_f64};
use cuda_std::vector::opaque_u32;
use cuda_std::{args, kernel, thread, warp};

/// Shared memory of a block: a sum for each warp.
pub const SHARED_BYTES: u32 = 1024 / warp::SIZE * 4;

/// Arguments of [`jacobi_step`].
#[args]
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
    /// Tiles beside each other and above each other ([`tiles`]): a block would spend more time on the divisions than on loading its rows.
    pub across: u32,
    /// See above.
    pub strips: u32,
    /// Tiles of this grid: from here on, and up to here. All: from 0 to the product of the two. The first ones are those of the PE's first and
    /// last rows.
    pub first_tile: u32,
    /// See above.
    pub end_tile: u32,
    /// From 1.
    pub iteration: u32,
    /// [`NORM_NEVER`], ...
    pub norm: u32,
    /// Device memory, 0 before: where the squares of all changes are added.
    pub sum: *const Word,
    /// Device memory; null: nothing is exchanged ([`EXCHANGE_NONE`]).
    pub link: *const Link,
}

/// Tiles beside each other and above each other, of `rows` rows of `pitch` points, by blocks of `threads` and tiles of `strip` rows.
#[inline(always)]
pub const fn tiles(pitch: u32, rows: u32, threads: u32, strip: u32) -> (u32, u32) {
    (pitch.div_ceil(threads * WIDTH as u32), rows.div_ceil(strip))
}

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

/// What a thread carries down its columns. `EACH`: every point is added by itself ([`NORM_THREAD_ATOMIC`]).
struct March<'a, const EACH: bool> {
    args: &'a StepArgs,
    columns: &'a Columns,
    /// Not 0 where there is a point beside this lane's that belongs to another warp, and how far it is from the lane's first one.
    is_far: u32,
    far: isize,
    /// Not 0 where there is something to store.
    stores: u32,
    above: Points,
    points: Points,
    sum: f32,
}

/// A row on its way: the points below, and what lies beside the warp.
type Coming = (Points, Far);

/// Several rows at once: all loads before the first of them is needed, and no branch that parts the lanes of a warp. Written out, since
/// LLVM leaves so large a loop as it is, and what it then indexes in memory.
macro_rules! rows_at_once {
    ($name:ident: $count:literal = $($ahead:literal)*) => {
        #[inline(always)]
        unsafe fn $name(&mut self, row: u32) {
            let pitch = self.args.pitch as usize;
            let first = row as usize * pitch + self.columns.first as usize;
            // SAFETY: contract of the kernel; the rows are of the field, and what is below the last one is of it or beside it.
            unsafe {
                let (from, to) = (self.args.from.add(first), self.args.to.add(first));
                let coming = [$(self.load::<{ $ahead + 1 == $count }>(from, row, $ahead)),*];
                $(self.step(coming[$ahead], to.add($ahead * pitch));)*
            }
        }
    };
}

impl<'a, const EACH: bool> March<'a, EACH> {
    rows_at_once!(six: 6 = 0 1 2 3 4 5);
    rows_at_once!(four: 4 = 0 1 2 3);
    rows_at_once!(one: 1 = 0);

    /// At row `row`.
    #[inline(always)]
    unsafe fn begin(args: &'a StepArgs, columns: &'a Columns, row: u32) -> March<'a, EACH> {
        let column = columns.first as usize;
        let lies_left = columns.by_end(true, false);
        let there = if lies_left { columns.first > 0 } else { columns.first + (WIDTH as u32) < args.pitch };
        March {
            args,
            columns,
            is_far: opaque_u32(columns.is_end() & (columns.any && there) as u32),
            far: if lies_left { -1 } else { WIDTH as isize },
            stores: opaque_u32(columns.any as u32),
            // SAFETY: the caller's contract.
            above: unsafe { load(args.row(row.wrapping_sub(1)).add(column)) },
            // SAFETY: as above.
            points: unsafe { load(args.row(row).add(column)) },
            sum: 0.0,
        }
    }

    /// The points below those of row `row + ahead`, and what is beside the warp in that row. `from` is the thread's place in row `row`.
    #[inline(always)]
    unsafe fn load<const LAST: bool>(&self, from: *const f32, row: u32, ahead: usize) -> Coming {
        let pitch = self.args.pitch as usize;
        // SAFETY: the caller's contract.
        unsafe {
            let here = from.add(ahead * pitch);
            let below = if LAST {
                self.args.row(row + ahead as u32 + 1).add(self.columns.first as usize)
            } else {
                here.add(pitch)
            };
            let beside = |right: bool| {
                // A warp of one lane has both.
                let (is_far, far) = match warp::SIZE {
                    1 if right => (
                        (self.columns.any && self.columns.first + (WIDTH as u32) < self.args.pitch) as u32,
                        WIDTH as isize,
                    ),
                    _ => (self.is_far, self.far),
                };
                load_point_if(is_far, here.wrapping_offset(far))
            };
            (load(below), Far::by(self.columns, beside))
        }
    }

    /// One row.
    #[inline(always)]
    unsafe fn step(&mut self, (below, far): Coming, to: *mut f32) {
        let rows = [&self.above, &self.points, &below];
        let next = self.columns.step(rows, self.columns.beside(&self.points, far), &mut self.sum);
        // SAFETY: the caller's contract; each point is one thread's.
        unsafe { store_if(self.stores, to, &next) };
        if EACH && self.columns.any {
            each_by_itself(self.args, &self.points, &next);
        }
        self.above = self.points;
        self.points = below;
    }

    /// Rows `begin` to `end`; the squares of this thread's changes.
    #[inline(always)]
    unsafe fn rows(args: &'a StepArgs, columns: &'a Columns, begin: u32, end: u32) -> f32 {
        // SAFETY: the caller's contract: the rows, and those above and below.
        unsafe {
            let mut march = March::<EACH>::begin(args, columns, begin);
            let mut row = begin;
            while !EACH && row + 6 <= end {
                march.six(row);
                row += 6;
            }
            if !EACH && row + 4 <= end {
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

/// Rows `begin` to `end` of a tile; the squares of this thread's changes, where they are not added one by one.
#[inline(always)]
unsafe fn rows(args: &StepArgs, columns: &Columns, begin: u32, end: u32) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        if args.norm == NORM_THREAD_ATOMIC {
            March::<true>::rows(args, columns, begin, end);
            return 0.0;
        }
        March::<false>::rows(args, columns, begin, end)
    }
}

/// One iteration, or those of its tiles that this grid has.
///
/// # Safety
/// The pointers are valid for what they say while the grid runs, nobody else uses the fields, and blocks are whole warps with
/// [`SHARED_BYTES`] of shared memory.
#[kernel]
pub unsafe fn jacobi_step(args: StepArgs) {
    let wide = thread::block_dim_x() * WIDTH as u32;
    let linked = !args.link.is_null();
    if linked {
        let now = thread::global_timer_ns();
        // SAFETY: contract of the kernel.
        unsafe { &*args.link }.note(args.iteration, TRACE_BEGAN, || !now);
    }
    let mut sum = 0.0;
    let mut tile = args.first_tile + thread::block_idx_x();
    while tile < args.end_tile {
        // The first strip, the last one, and then those between: down in one iteration and up in the next, which so begins with what is
        // still in the cache.
        let index = tile / args.across;
        let strip = match index {
            0 => 0,
            1 => args.strips - 1,
            other if args.iteration.is_multiple_of(2) => args.strips - other,
            other => other - 1,
        };
        let first = (tile - index * args.across) * wide;
        let (begin, end) = (strip * args.strip, args.rows.min((strip + 1) * args.strip));
        let columns = Columns::new(first + first_of_thread(), args.nx, args.pitch);
        // Which sides it has. Most tiles have none, and code of their own: what lives across calls would take their registers.
        let sides = [linked && begin == 0, linked && end == args.rows];
        // SAFETY: contract of the kernel: the tile's rows, and those above and below.
        unsafe {
            if sides[ABOVE] || sides[BELOW] {
                wait(&args, sides);
                sum += rows(&args, &columns, begin, end);
                send(&args, sides, columns, first, wide.min(args.pitch - first));
            } else {
                sum += rows(&args, &columns, begin, end);
            }
        }
        tile += thread::grid_dim_x();
    }
    if args.norm != NORM_NEVER && args.norm != NORM_THREAD_ATOMIC {
        // SAFETY: contract of the kernel.
        unsafe { add_of_block(&*args.sum, sum) };
    }
    if linked {
        let now = thread::global_timer_ns();
        // SAFETY: contract of the kernel.
        unsafe { &*args.link }.note(args.iteration, TRACE_ENDED, || now);
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
    // SAFETY: the caller's contract.
    if unsafe { (*args.link).exchange } == EXCHANGE_NONE {
        return;
    }
    for side in [ABOVE, BELOW] {
        if sides[side] {
            let row = if side == ABOVE { 0 } else { args.rows - 1 };
            // SAFETY: the caller's contract: this block has computed its columns of that row.
            unsafe {
                let row = args.to.add(row as usize * args.pitch as usize);
                exchange::send(args.link, args.iteration, side, row, columns.first, columns.any, [first, count]);
            }
        }
    }
}

/// Adds the sum of a block's threads, once. Every thread of the block calls it.
///
/// # Safety
/// Blocks are whole warps with [`SHARED_BYTES`] of shared memory.
#[inline(always)]
unsafe fn add_of_block(word: &Word, sum: f32) {
    let sum = warp::sum_f32(sum);
    let sums = Dynamic::of_block(SHARED_BYTES);
    let (first, index, warps) = (sums.at(0), thread::thread_idx_x(), thread::block_dim_x() / warp::SIZE);
    // SAFETY: a place for each warp, of which a block has at most 1024 threads.
    unsafe {
        if index.is_multiple_of(warp::SIZE) {
            sums.store(first + index / warp::SIZE * 4, [sum.to_bits()]);
        }
        thread::sync_threads();
        if index < warp::SIZE {
            let mut all = 0.0;
            let mut other = index;
            while other < warps {
                all += f32::from_bits(sums.load::<1>(first + other * 4)[0]);
                other += warp::SIZE;
            }
            let all = warp::sum_f32(all);
            if index == 0 {
                add_relaxed_gpu_f64(word, all as f64);
            }
        }
    }
}
