//! The resident kernels for any shape: blocks that have some columns of some rows.
//!
//! `across` blocks share a row. Each has four columns per thread, and the last one has the rest. All rows of a block
//! are in shared memory, so that a block may have a single row. Rows above and below are exchanged as in
//! [`resident`](super::resident), piece by piece. The outermost points of each row are exchanged with the blocks to the
//! left and right as words of {value, iteration} in device memory:
//!
//! ```text
//! iteration i:   take the rows above and below, tag i
//!                compute the last and the first row, give them away with tag i + 1
//!                compute the rows between; the outermost threads give their points of each row away, tag i + 1
//!                take the points to the left and right, tag i + 1, while other warps still compute
//!                barrier of the block: end points of i + 1 are in shared memory, also those of adjacent blocks
//! ```
//!
//! Two places per word suffice: a block writes its points of tag `i + 2` after it has taken those of tag `i + 1`, which
//! its neighbour wrote after the barrier that followed its reads of tag `i`.

use super::halo::{Piece, finish_part, give, receive_part, send_part, tagged, take};
use super::resident::waited;
use super::resident_args::{PLACES, ResidentArgs, row_words};
pub use super::resident_args::{PiecesArgs, WORDS_BESIDE};
pub use super::shared_rows::MOST_THREADS_OF_PIECE;
use super::shared_rows::{self, Ends, Next, SharedRows, add_sums, leave_sum};
use super::stencil::{Columns, Points, WIDTH, first_of_thread, load, store};
use super::{ABOVE, BELOW, HaloLink};
use crate::gin::{Block, WaitBudget};
use crate::ring::Status;
use cuda_std::memory::{Word, load_relaxed_gpu_u64, store_relaxed_gpu_u64};
use cuda_std::{kernel, thread};

/// Maximum number of columns of a block.
pub const MOST_COLUMNS_OF_PIECE: u32 = MOST_THREADS_OF_PIECE * WIDTH as u32;
/// Returns the bytes of shared memory of a block of `threads` threads that has `rows` rows.
pub const fn shared_bytes(rows: u32, threads: u32) -> u32 {
    shared_rows::bytes_of_piece(rows, threads)
}

/// Runs all iterations. Both neighbours' heaps must be mapped.
///
/// # Safety
/// The requirements of [`jacobi_resident`](super::resident::jacobi_resident) apply.
#[kernel(resident)]
pub unsafe fn jacobi_pieces(args: PiecesArgs) {
    // SAFETY: this kernel has the safety requirements of `run`.
    unsafe { run::<false>(&args) };
}

/// Like [`jacobi_pieces`], but neighbours may be reached over rails.
///
/// # Safety
/// The requirements of [`jacobi_pieces`] apply.
#[kernel(resident)]
pub unsafe fn jacobi_pieces_rails(args: PiecesArgs) {
    // SAFETY: this kernel has the safety requirements of `run`.
    unsafe { run::<true>(&args) };
}

#[inline(always)]
unsafe fn run<const RAILS: bool>(args: &PiecesArgs) {
    // SAFETY: the caller guarantees that `args` is valid.
    unsafe {
        if (*args.field.link).world.has_failed_for(&Block) {
            return;
        }
        let Some(part) = Rows::<RAILS>::load(args) else { return };
        if part.iterate(args) {
            part.store(args);
            if RAILS {
                finish(&args.field, &part.memory, piece(args));
            }
        }
    }
}

/// Returns the position of this block: the row of blocks, and the block in that row.
#[inline(always)]
fn position(args: &PiecesArgs) -> (u32, u32) {
    let block = thread::block_idx_x();
    (block / args.across, block % args.across)
}

/// Returns the index of the block's first row in the PE's field, and the number of its rows.
#[inline(always)]
fn rows_of_block(args: &PiecesArgs) -> (u32, u32) {
    let (row, rows) = (position(args).0, thread::grid_dim_x() / args.across);
    let (least, more) = (args.field.rows / rows, args.field.rows % rows);
    (row * least + row.min(more), least + (row < more) as u32)
}

/// Returns the first column of the block, and one past its last column.
#[inline(always)]
fn columns_of_block(args: &PiecesArgs) -> (u32, u32) {
    let width = thread::block_dim_x() * WIDTH as u32;
    let first = position(args).1 * width;
    (first, (first + width).min(args.field.pitch))
}

/// Returns the block's part of the rows that are put over rails.
#[inline(always)]
fn piece(args: &PiecesArgs) -> Piece {
    let (first, end) = columns_of_block(args);
    Piece { columns: (first, end - first), signals: 2 * position(args).1 }
}

/// Like [`halo::of`](super::halo::of), for the part of the rows that belongs to this block's columns.
#[inline(always)]
unsafe fn doors(args: &PiecesArgs, side: usize) -> (u64, u64) {
    let (block, across) = (thread::block_idx_x(), args.across);
    let row = row_words(thread::block_dim_x()) * 8;
    let (here, there) = (side as u64 * row, (1 - side) as u64 * row);
    let of_block = |block: u32| args.field.words as u64 + block as u64 * PLACES * row;
    let inner = if side == ABOVE { block >= across } else { block + across < thread::grid_dim_x() };
    if inner {
        let other = if side == ABOVE { block - across } else { block + across };
        return (of_block(block) + here, of_block(other) + there);
    }
    // SAFETY: `link` is valid (contract of the kernel).
    let link = unsafe { &*args.field.link };
    let far = link.world.ptr(args.field.inbox, link.peers[side]) as u64;
    if far == 0 {
        return (0, 0);
    }
    let own = position(args).1 as u64 * PLACES * row;
    (link.world.local(args.field.inbox) as u64 + own + here, far + own + there)
}

/// A thread's position in its block's rows.
struct Rows<const RAILS: bool> {
    columns: Columns,
    memory: SharedRows,
    /// Number of rows of the block.
    rows: u32,
    /// Whether there is a block to the left, and to the right.
    is_beside: [bool; 2],
    /// Address, for row 0 and even tags, of the words of the left or right block that receive this thread's outermost
    /// points. 0 for threads that are not next to another block.
    gives: u64,
}

impl<const RAILS: bool> Rows<RAILS> {
    /// Returns the address of this thread's points of a row of the block in the PE's field.
    #[inline(always)]
    unsafe fn place(&self, args: &PiecesArgs, row: u32) -> *mut f32 {
        let at = (rows_of_block(args).0 + row) as usize * args.field.pitch as usize + self.columns.first as usize;
        // SAFETY: the caller guarantees that `row` is a row of the block.
        unsafe { args.field.field.add(at) }
    }

    /// Returns the address of the word of a block for the point to its left or right in row 0, for even tags.
    #[inline(always)]
    fn word_beside(args: &PiecesArgs, block: u32, right: bool) -> u64 {
        let rows = args.most_rows as u64;
        args.beside as u64 + (block as u64 * WORDS_BESIDE * rows + right as u64 * 2 * rows) * 8
    }

    /// Loads the rows from the PE's field. Stores the end points of the warps, and gives the points and rows at the
    /// borders of the block to its neighbours. Returns `None` after a failure, which is recorded in the world's report.
    #[inline(always)]
    unsafe fn load(args: &PiecesArgs) -> Option<Rows<RAILS>> {
        let (_, rows) = rows_of_block(args);
        let (first, end) = columns_of_block(args);
        let columns = Columns::or(first + first_of_thread(), first, args.field.nx, end);
        let memory = SharedRows::of_piece(&columns, rows, args.field.shared_bytes);
        let (thread, last) = (thread::thread_idx_x(), thread::block_dim_x() - 1);
        let is_beside = [first > 0, end < args.field.pitch];
        let block = thread::block_idx_x();
        let gives = match thread {
            0 if is_beside[0] => Self::word_beside(args, block - 1, true),
            _ if thread == last && is_beside[1] => Self::word_beside(args, block + 1, false),
            _ => 0,
        };
        let part = Rows { columns, memory, rows, is_beside, gives };
        let tag = args.field.first;
        // SAFETY: the caller guarantees that `args` is valid. All accesses are to rows of the field, and to their
        // places in the block's shared memory.
        unsafe {
            // As the previous iteration would have stored them.
            let ends = memory.ends(tag.wrapping_sub(1));
            let (mut row, mut at) = (0, memory.points);
            let mut to = part.words_to_give(args, tag);
            while row < rows {
                let points = load(part.place(args, row));
                memory.store(at, &points);
                memory.set_ends(&columns, ends.down(row), &points);
                to = part.give_beside(to, tag, &points);
                row += 1;
                at += memory.row();
            }
            let mut at = thread;
            while at < rows {
                for right in [false, true] {
                    if !part.has_beside(right) {
                        memory.set_beside(rows, at, right, 0, 0);
                        memory.set_beside(rows, at, right, 1, 0);
                    }
                }
                at += last + 1;
            }
            if thread == 0 {
                let (above, below) = (doors(args, ABOVE), doors(args, BELOW));
                memory.set_doors([above.0, below.0], [above.1, below.1]);
            }
            let failed = part.take_beside(args, tag);
            if thread::sync_threads_or(failed != 0) {
                report(args, tag, failed);
                return None;
            }
            part.give(args, tag, &memory.load(memory.points), &memory.load(memory.last));
        }
        Some(part)
    }

    /// Returns whether there is a block on this side.
    #[inline(always)]
    fn has_beside(&self, right: bool) -> bool {
        if right { self.is_beside[1] } else { self.is_beside[0] }
    }

    /// Stores the rows to the PE's field.
    #[inline(always)]
    unsafe fn store(&self, args: &PiecesArgs) {
        if !self.columns.any {
            return;
        }
        let (mut row, mut at) = (0, self.memory.points);
        while row < self.rows {
            // SAFETY: the row is in the field and in shared memory, and no other thread accesses these points.
            unsafe { store(self.place(args, row), &self.memory.load(at)) };
            row += 1;
            at += self.memory.row();
        }
    }

    /// Runs all iterations. Returns `false` after a failure, which is recorded in the world's report.
    #[inline(always)]
    unsafe fn iterate(&self, args: &PiecesArgs) -> bool {
        let field = &args.field;
        // SAFETY: the caller guarantees that `link` is valid.
        let traced = unsafe { !(*field.link).trace.is_null() };
        let end = field.first + field.iterations;
        let mut tag = field.first;
        while tag != end {
            let began = if traced { thread::global_timer_ns() } else { 0 };
            // SAFETY: the caller guarantees that `args` is valid, and `load` has stored the doors.
            let ([up, down], failed) = unsafe {
                take::<RAILS>(field, &self.memory, tag, |side| {
                    receive(field.link, tag, side, self.columns, piece(args))
                })
            };
            if traced {
                // SAFETY: the caller guarantees that `link` is valid.
                unsafe { waited(field, tag, began) };
            }
            let mut sum = 0.0;
            let mut beside = 0;
            // SAFETY: the warps stored all their end points of this tag before the last block barrier.
            unsafe {
                self.step(args, tag, (&up, &down), tag + 1 != end, &mut sum);
                // Threads without columns have computed those of another thread.
                let sum = if self.columns.any { sum } else { 0.0 };
                leave_sum(field, &self.memory, tag, sum);
                if tag + 1 != end {
                    beside = self.take_beside(args, tag + 1);
                }
            }
            let failed = failed.max(beside);
            if thread::sync_threads_or(failed != 0) {
                // SAFETY: the caller guarantees that `args` is valid.
                unsafe { report(args, tag, failed) };
                return false;
            }
            // SAFETY: the caller guarantees that `args` is valid, and the block barrier follows `leave_sum`.
            unsafe { add_sums(field, &self.memory, tag) };
            tag += 1;
        }
        true
    }

    /// Computes the next values of all rows. Gives those at the borders to the neighbours if `gives` is set.
    #[inline(always)]
    unsafe fn step(&self, args: &PiecesArgs, tag: u32, (up, down): (&Points, &Points), gives: bool, sum: &mut f32) {
        let (memory, columns) = (&self.memory, &self.columns);
        let ends: Ends = memory.ends(tag);
        let words = if gives { self.words_to_give(args, tag + 1) } else { 0 };
        let last_word = if words == 0 { 0 } else { words + (self.rows as u64 - 1) * 8 };
        // SAFETY: the caller guarantees that the end points in `ends` have been stored.
        unsafe {
            let first = memory.load(memory.points);
            let (top, bottom) = if memory.points == memory.last {
                let only = memory.step(columns, ends, [up, &first, down], sum);
                (only, only)
            } else {
                let last = memory.load(memory.last);
                let above = memory.load(memory.last - memory.row());
                let bottom = memory.step(columns, ends.down(self.rows - 1), [&above, &last, down], sum);
                let second = memory.load(memory.points + memory.row());
                (memory.step(columns, ends, [up, &first, &second], sum), bottom)
            };
            if gives {
                self.give(args, tag + 1, &top, &bottom);
            }
            self.give_beside(last_word, tag + 1, &bottom);
            let mut word = self.give_beside(words, tag + 1, &top);
            let at = memory.points + memory.row();
            if at < memory.last {
                let next = Next { at, ends: ends.down(1), above: first, points: memory.load(at) };
                memory.step_rows(columns, next, sum, |points| word = self.give_beside(word, tag + 1, points));
            }
            memory.store(memory.points, &top);
            memory.store(memory.last, &bottom);
        }
    }

    /// Returns the address of the words for this thread's outermost points of iteration `tag`: 0 if it gives none.
    #[inline(always)]
    fn words_to_give(&self, args: &PiecesArgs, tag: u32) -> u64 {
        if self.gives == 0 { 0 } else { self.gives + ((tag & 1) * args.most_rows) as u64 * 8 }
    }

    /// Stores a row's outermost point to `word` if that is not 0. Returns the address of the next row's word.
    #[inline(always)]
    unsafe fn give_beside(&self, word: u64, tag: u32, points: &Points) -> u64 {
        if word == 0 {
            return 0;
        }
        let point = if thread::thread_idx_x() == 0 { points[0] } else { points[WIDTH - 1] };
        // SAFETY: the caller guarantees that the address is that of a word.
        store_relaxed_gpu_u64(unsafe { &*(word as *const Word) }, tagged(point, tag));
        word + 8
    }

    /// Waits for the points to the left and right of all rows, one per thread, and stores them with the end points.
    /// Returns 0, or the [`Status`] of a failure.
    #[inline(always)]
    unsafe fn take_beside(&self, args: &PiecesArgs, tag: u32) -> u32 {
        let mut at = thread::thread_idx_x();
        while at < 2 * self.rows {
            let right = at >= self.rows;
            let row = if right { at - self.rows } else { at };
            if self.has_beside(right) {
                let words = Self::word_beside(args, thread::block_idx_x(), right);
                let word = words + ((tag & 1) * args.most_rows + row) as u64 * 8;
                let mut patience = WaitBudget::default();
                // SAFETY: the caller guarantees that `args` is valid. The word belongs to a row of this block.
                unsafe {
                    loop {
                        let found = load_relaxed_gpu_u64(&*(word as *const Word));
                        if (found >> 32) as u32 == tag {
                            self.memory.set_beside(self.rows, row, right, tag, found as u32);
                            break;
                        }
                        if let Err(stop) = patience.look(&(*args.field.link).world) {
                            return stop.0 as u32;
                        }
                        thread::relax();
                    }
                }
            }
            at += thread::block_dim_x();
        }
        0
    }

    /// Gives the block's first and last row to the adjacent blocks or PEs.
    #[inline(always)]
    unsafe fn give(&self, args: &PiecesArgs, tag: u32, top: &Points, bottom: &Points) {
        // SAFETY: the caller guarantees that `args` is valid, and `load` has stored the doors.
        unsafe {
            let [above, below] = self.memory.give();
            self.give_row(args, tag, (above, ABOVE), top);
            self.give_row(args, tag, (below, BELOW), bottom);
        }
    }

    #[inline(always)]
    unsafe fn give_row(&self, args: &PiecesArgs, tag: u32, (place, side): (u64, usize), row: &Points) {
        // SAFETY: the caller guarantees that `place` is 0 or a row of words.
        unsafe {
            if !RAILS || place != 0 {
                give(place, row, tag);
            } else {
                send(args.field.link, tag, side, *row, self.columns, piece(args));
            }
        }
    }
}

/// Records a failure of this thread, if there is one.
#[inline(always)]
unsafe fn report(args: &PiecesArgs, tag: u32, failed: u32) {
    if failed != 0 {
        // SAFETY: the caller guarantees that `link` is valid.
        unsafe { (*args.field.link).world.gave_up(Status(failed as u64), tag as u64) };
    }
}

/// Like [`halo::send`](super::halo::send), for the columns of a block.
#[inline(never)]
unsafe fn send(link: *const HaloLink, tag: u32, side: usize, points: Points, columns: Columns, piece: Piece) {
    // SAFETY: this function has the safety requirements of `send_part`.
    unsafe { send_part(link, tag, side, points, columns, Some(piece)) };
}

/// Like [`halo::receive`](super::halo::receive), for the columns of a block.
#[inline(never)]
unsafe fn receive(link: *const HaloLink, tag: u32, side: usize, columns: Columns, piece: Piece) -> (Points, u32) {
    // SAFETY: this function has the safety requirements of `receive_part`.
    unsafe { receive_part(link, tag, side, columns, Some(piece)) }
}

/// Like [`halo::finish`](super::halo::finish), for the columns of a block.
#[inline(never)]
unsafe fn finish(args: &ResidentArgs, memory: &SharedRows, piece: Piece) {
    // SAFETY: this function has the safety requirements of `finish_part`.
    unsafe { finish_part(args, memory, Some(piece)) };
}
