//! Shared memory of a resident block: its rows, the end points of each warp in each row, the warps' sums, and the
//! addresses of the neighbours' words.

use super::NORM_NEVER;
use super::resident_args::{LEAST_ROWS, ResidentArgs};
use super::stencil::{Columns, Far, Points, WIDTH, first_of_thread};
use cuda_std::shared::Dynamic;
use cuda_std::sum::add_relaxed_gpu_f64;
use cuda_std::{thread, warp};

/// Number of warps of the largest block. Space is always reserved for this many, so that the distance between the data
/// of consecutive rows is constant and a loop over rows increments one address.
const WARPS: u32 = 1024 / warp::SIZE;
/// Maximum number of threads of a block that has some columns of its rows: two words of a row's end points are for the
/// points to the left and right of the block.
pub const MOST_THREADS_OF_PIECE: u32 = 1024 - 32;
/// Bytes of the points at both ends of each warp in a row, for one tag parity.
const ENDS: u32 = 2 * WARPS * 4;
/// Bytes of the end points of a row, for both parities.
const ENDS_OF_ROW: u32 = 2 * ENDS;
/// Bytes of the sums of all warps, for one parity.
const SUMS: u32 = WARPS * 4;
/// Number of bytes of the four addresses of the neighbours' rows.
const DOORS: u32 = 32;

/// Returns the bytes of a row of a block's points.
const fn row_bytes(threads: u32) -> u32 {
    threads * (WIDTH * 4) as u32
}

/// Returns the bytes of shared memory of a block of `threads` threads that has `rows` rows.
pub const fn bytes(rows: u32, threads: u32) -> u32 {
    (rows - LEAST_ROWS + 1) * row_bytes(threads) + rows * ENDS_OF_ROW + DOORS + 2 * SUMS
}

/// Returns the bytes of shared memory of a block of `threads` threads that has some columns of `rows` rows.
pub const fn bytes_of_piece(rows: u32, threads: u32) -> u32 {
    rows * (row_bytes(threads) + ENDS_OF_ROW) + DOORS + 2 * SUMS
}

/// Addresses of a thread's data in its block's shared memory.
#[derive(Clone, Copy)]
pub struct SharedRows {
    shared: Dynamic,
    /// Address of this thread's points in the first row that is stored in shared memory. The block's last row is also
    /// the last one in shared memory.
    pub points: u32,
    /// Address of this thread's points in the last row.
    pub last: u32,
    /// Address of the point that is next to this lane's points and belongs to another warp, in row 0 and for tags of
    /// parity 0.
    get: u32,
    /// Address of this lane's own point at the end of its warp, in row 0 and for tags of parity 0.
    put: u32,
    /// Address of the neighbours' row addresses (see [`DOORS`]), which the sums follow.
    tail: u32,
}

/// Addresses of the end points of the warps in a row: those to read, and those to write for the next values.
#[derive(Clone, Copy)]
pub struct Ends {
    get: u32,
    put: u32,
}

/// The next row that a thread computes: its address and end points, the old points of the row above, and its own.
pub struct Next {
    pub at: u32,
    pub ends: Ends,
    pub above: Points,
    pub points: Points,
}

impl Ends {
    /// Returns the addresses `rows` rows further down.
    #[inline(always)]
    pub fn down(self, rows: u32) -> Ends {
        Ends { get: self.get + rows * ENDS_OF_ROW, put: self.put + rows * ENDS_OF_ROW }
    }
}

impl SharedRows {
    /// Called by all threads of a block, which must be whole warps.
    #[inline(always)]
    pub fn new(columns: &Columns, rows: u32, bytes: u32) -> SharedRows {
        let shared = Dynamic::of_block(bytes);
        let here = (rows - LEAST_ROWS + 1) * row_bytes(thread::block_dim_x());
        let points = shared.at(first_of_thread() * 4);
        // Left and right end point of each warp. The first warp has no left neighbour and the last warp no right one.
        // The values that these two read are unused, because the field's first and last columns are fixed. Each reads
        // its own word: another word may be written at the same time, which compute-sanitizer's racecheck reports.
        let (own, number) = (here + thread::thread_idx_x() / warp::SIZE * 8, thread::thread_idx_x() / warp::SIZE);
        let last = thread::block_dim_x() / warp::SIZE - 1;
        let (left, right) = match warp::SIZE {
            1 => (own - 4, own + 8),
            _ => (if number == 0 { own } else { own - 4 }, if number == last { own } else { own + 8 }),
        };
        SharedRows {
            shared,
            points,
            last: points + here - row_bytes(thread::block_dim_x()),
            get: shared.at(columns.by_end(left, right)),
            put: shared.at(columns.by_end(own, own + 4)),
            tail: shared.at(here + rows * ENDS_OF_ROW),
        }
    }

    /// Like [`new`](SharedRows::new), for a block that has some columns of its rows, all of which are in shared memory.
    /// The end points of a row start and end with those of the left and right block.
    #[inline(always)]
    pub fn of_piece(columns: &Columns, rows: u32, bytes: u32) -> SharedRows {
        let shared = Dynamic::of_block(bytes);
        let here = rows * row_bytes(thread::block_dim_x());
        let points = shared.at(first_of_thread() * 4);
        let own = here + 4 + thread::thread_idx_x() / warp::SIZE * 8;
        SharedRows {
            shared,
            points,
            last: points + here - row_bytes(thread::block_dim_x()),
            get: shared.at(columns.by_end(own - 4, own + 8)),
            put: shared.at(columns.by_end(own, own + 4)),
            tail: shared.at(here + rows * ENDS_OF_ROW),
        }
    }

    /// Stores the point to the left or right of the block in row `row` of `rows`, for iteration `tag`.
    #[inline(always)]
    pub unsafe fn set_beside(&self, rows: u32, row: u32, right: bool, tag: u32, point: u32) {
        let own = if right { 4 + thread::block_dim_x() / warp::SIZE * 8 } else { 0 };
        let at = self.tail - (rows - row) * ENDS_OF_ROW + (tag & 1) * ENDS + own;
        // SAFETY: the caller guarantees that `row` is a row of the block. Each row and side has its own word, and those
        // of the other parity may still be read.
        unsafe { self.shared.store(at, [point]) };
    }

    /// Returns the bytes from a row to the next.
    #[inline(always)]
    pub fn row(&self) -> u32 {
        row_bytes(thread::block_dim_x())
    }

    #[inline(always)]
    pub unsafe fn load(&self, at: u32) -> Points {
        // SAFETY: the caller guarantees that `at` is the address of a thread's points.
        unsafe { self.shared.load::<WIDTH>(at) }.map(f32::from_bits)
    }

    #[inline(always)]
    pub unsafe fn store(&self, at: u32, points: &Points) {
        // SAFETY: the caller guarantees that `at` is the address of this thread's points.
        unsafe { self.shared.store(at, points.map(f32::to_bits)) };
    }

    /// Returns the addresses of the end points of the block's first row: those that iteration `tag` reads, and those
    /// that it writes for the next iteration.
    #[inline(always)]
    pub fn ends(&self, tag: u32) -> Ends {
        Ends { get: self.get + (tag & 1) * ENDS, put: self.put + (!tag & 1) * ENDS }
    }

    /// Stores the end points of this warp in a row for the adjacent warps.
    #[inline(always)]
    pub unsafe fn set_ends(&self, columns: &Columns, ends: Ends, points: &Points) {
        let [left, right] = [points[0].to_bits(), points[WIDTH - 1].to_bits()];
        // SAFETY: the caller guarantees that `ends` is in a row of the block. Each warp and side has its own word.
        unsafe {
            self.shared.store_if(columns.is_end(), ends.put, columns.by_end(left, right));
            if warp::SIZE == 1 {
                self.shared.store(ends.put + 4, [right]);
            }
        }
    }

    /// Computes the next values of a row's points, and stores their end points for the adjacent warps.
    #[inline(always)]
    pub unsafe fn step(&self, columns: &Columns, ends: Ends, rows: [&Points; 3], sum: &mut f32) -> Points {
        // If a warp is a single lane, the right neighbour's point is three words after the left neighbour's point.
        let beyond = |right: bool| if warp::SIZE == 1 && right { 12 } else { 0 };
        // SAFETY: the caller guarantees that `ends` is in a row of the block and that its points of this iteration have
        // been stored.
        let far =
            Far::by(columns, |right| f32::from_bits(unsafe { self.shared.load::<1>(ends.get + beyond(right)) }[0]));
        let next = columns.step(rows, columns.beside(rows[1], far), sum);
        // SAFETY: the caller guarantees that `ends` is in a row of the block.
        unsafe { self.set_ends(columns, ends, &next) };
        next
    }

    /// Computes the next values of the rows from `next` up to the last row, which it reads but does not change. Passes
    /// those of each row to `each`.
    #[inline(always)]
    pub unsafe fn step_rows(&self, columns: &Columns, next: Next, sum: &mut f32, mut each: impl FnMut(&Points)) {
        let Next { mut at, mut ends, mut above, mut points } = next;
        let row = self.row();
        // SAFETY: the caller guarantees that `at` is the address of a row after the first one, and that the end points
        // in `ends` have been stored.
        unsafe {
            // Three rows per iteration: the variables rotate without register moves.
            while at + 2 * row < self.last {
                let first = self.load(at + row);
                let next = self.step(columns, ends, [&above, &points, &first], sum);
                self.store(at, &next);
                each(&next);
                let second = self.load(at + 2 * row);
                let next = self.step(columns, ends.down(1), [&points, &first, &second], sum);
                self.store(at + row, &next);
                each(&next);
                let third = self.load(at + 3 * row);
                let next = self.step(columns, ends.down(2), [&first, &second, &third], sum);
                self.store(at + 2 * row, &next);
                each(&next);
                (above, points) = (second, third);
                at += 3 * row;
                ends = ends.down(3);
            }
            while at != self.last {
                let below = self.load(at + row);
                let next = self.step(columns, ends, [&above, &points, &below], sum);
                self.store(at, &next);
                each(&next);
                (above, points) = (points, below);
                at += row;
                ends = ends.down(1);
            }
        }
    }

    /// Stores the addresses at which the threads read the rows above and below the block (`take`) and write its own
    /// (`give`). They are kept in shared memory, because each would need two registers. Called by one thread, before a
    /// block barrier.
    #[inline(always)]
    pub unsafe fn set_doors(&self, take: [u64; 2], give: [u64; 2]) {
        let words = |[above, below]: [u64; 2]| [above as u32, (above >> 32) as u32, below as u32, (below >> 32) as u32];
        // SAFETY: the caller is the only thread that writes these words, before a block barrier.
        unsafe {
            self.shared.store(self.tail, words(take));
            self.shared.store(self.tail + 16, words(give));
        }
    }

    #[inline(always)]
    pub unsafe fn take(&self) -> [u64; 2] {
        // SAFETY: this is called after the barrier that follows `set_doors`.
        addresses(unsafe { self.shared.load(self.tail) })
    }

    #[inline(always)]
    pub unsafe fn give(&self) -> [u64; 2] {
        // SAFETY: this is called after the barrier that follows `set_doors`.
        addresses(unsafe { self.shared.load(self.tail + 16) })
    }

    /// Returns the address of the warps' sums.
    #[inline(always)]
    fn sums(&self, tag: u32) -> u32 {
        self.tail + DOORS + (tag & 1) * SUMS
    }
}

#[inline(always)]
fn addresses([a, b, c, d]: [u32; 4]) -> [u64; 2] {
    [(b as u64) << 32 | a as u64, (d as u64) << 32 | c as u64]
}

/// Stores this warp's part of an iteration's sum. [`add_sums`] reads it after the block barrier.
#[inline(always)]
pub unsafe fn leave_sum(args: &ResidentArgs, memory: &SharedRows, tag: u32, sum: f32) {
    if args.norm == NORM_NEVER {
        return;
    }
    let sum = warp::sum_f32(sum);
    if warp::lane() == 0 {
        let own = memory.sums(tag) + thread::thread_idx_x() / warp::SIZE * 4;
        // SAFETY: each warp has its own word. The words of the other parity may still be read, so each parity has its
        // own.
        unsafe { memory.shared.store(own, [sum.to_bits()]) };
    }
}

/// Adds the block's sum to that of the PE. The warps alternate, so that the other warps need not wait.
#[inline(always)]
pub unsafe fn add_sums(args: &ResidentArgs, memory: &SharedRows, tag: u32) {
    let warps = thread::block_dim_x() / warp::SIZE;
    if args.norm == NORM_NEVER || tag % warps != thread::thread_idx_x() / warp::SIZE {
        return;
    }
    let mut sum = 0.0;
    let mut other = warp::lane();
    while other < warps {
        // SAFETY: `leave_sum` has stored these words before the block barrier.
        sum += f32::from_bits(unsafe { memory.shared.load::<1>(memory.sums(tag) + other * 4) }[0]);
        other += warp::SIZE;
    }
    let sum = warp::sum_f32(sum);
    if warp::lane() == 0 {
        // SAFETY: `sums` has one word per iteration.
        add_relaxed_gpu_f64(unsafe { &*args.sums.add((tag - args.first) as usize) }, sum as f64);
    }
}
