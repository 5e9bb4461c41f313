//! A resident block's shared memory: rows, the ends of its warps' rows, their sums, and where its neighbours' words are.

use super::NORM_NEVER;
use super::resident_args::{LEAST_ROWS, ResidentArgs};
use super::stencil::{Columns, Far, Points, WIDTH, first_of_thread};
use cuda_std::shared::Dynamic;
use cuda_std::sum::add_relaxed_gpu_f64;
use cuda_std::{thread, warp};

/// Warps of the largest block: there is room for so many, so that what belongs to a row lies at a constant distance from that of the row
/// before, and a loop over rows counts one address.
const WARPS: u32 = 1024 / warp::SIZE;
/// The points at both ends of each warp in a row, of one parity of tags.
const ENDS: u32 = 2 * WARPS * 4;
/// The same of both parities.
const ENDS_OF_ROW: u32 = 2 * ENDS;
/// The sums of all warps, of one parity.
const SUMS: u32 = WARPS * 4;
/// Four addresses of 8 bytes.
const DOORS: u32 = 32;

/// A row of a block's points.
const fn row_bytes(threads: u32) -> u32 {
    threads * (WIDTH * 4) as u32
}

/// Shared memory of a block of so many threads that has so many rows, in bytes.
pub const fn bytes(rows: u32, threads: u32) -> u32 {
    (rows - LEAST_ROWS + 1) * row_bytes(threads) + rows * ENDS_OF_ROW + DOORS + 2 * SUMS
}

/// A thread's places in its block's shared memory.
#[derive(Clone, Copy)]
pub struct Memory {
    shared: Dynamic,
    /// Its points in the first row that is here; the block's last row is here as the last one.
    pub points: u32,
    /// Its points in that last one.
    pub last: u32,
    /// In row 0, of tags of parity 0: what lies beside this lane's points and belongs to another warp.
    get: u32,
    /// As there: its own point at its warp's end.
    put: u32,
    /// The doors, and behind them the sums.
    tail: u32,
}

/// The ends of a row's warps: where they are found, and where the next values' go.
#[derive(Clone, Copy)]
pub struct Ends {
    get: u32,
    put: u32,
}

impl Ends {
    /// Those so many rows further down.
    #[inline(always)]
    pub fn down(self, rows: u32) -> Ends {
        Ends { get: self.get + rows * ENDS_OF_ROW, put: self.put + rows * ENDS_OF_ROW }
    }
}

impl Memory {
    /// By all threads of a block, which are whole warps.
    #[inline(always)]
    pub fn new(columns: &Columns, rows: u32, bytes: u32) -> Memory {
        let shared = Dynamic::of_block(bytes);
        let here = (rows - LEAST_ROWS + 1) * row_bytes(thread::block_dim_x());
        let points = shared.at(first_of_thread() * 4);
        // Left and right end of each warp. The first warp has no left and the last one no right neighbour, and what these are said to be is
        // not used, for the field's first and last points stay as they are: they read a word of their own. (Any other word may be written
        // meanwhile, which compute-sanitizer's racecheck reports.)
        let (own, number) = (here + thread::thread_idx_x() / warp::SIZE * 8, thread::thread_idx_x() / warp::SIZE);
        let last = thread::block_dim_x() / warp::SIZE - 1;
        let (left, right) = match warp::SIZE {
            1 => (own - 4, own + 8),
            _ => (if number == 0 { own } else { own - 4 }, if number == last { own } else { own + 8 }),
        };
        Memory {
            shared,
            points,
            last: points + here - row_bytes(thread::block_dim_x()),
            get: shared.at(columns.by_end(left, right)),
            put: shared.at(columns.by_end(own, own + 4)),
            tail: shared.at(here + rows * ENDS_OF_ROW),
        }
    }

    /// From a row here to the next one.
    #[inline(always)]
    pub fn row(&self) -> u32 {
        row_bytes(thread::block_dim_x())
    }

    /// A thread's points.
    #[inline(always)]
    pub unsafe fn load(&self, at: u32) -> Points {
        // SAFETY: the caller's contract.
        unsafe { self.shared.load::<WIDTH>(at) }.map(f32::from_bits)
    }

    #[inline(always)]
    pub unsafe fn store(&self, at: u32, points: &Points) {
        // SAFETY: the caller's contract.
        unsafe { self.shared.store(at, points.map(f32::to_bits)) };
    }

    /// The ends of the block's first row that iteration `tag` reads, and where it leaves the next.
    #[inline(always)]
    pub fn ends(&self, tag: u32) -> Ends {
        Ends { get: self.get + (tag & 1) * ENDS, put: self.put + (!tag & 1) * ENDS }
    }

    /// Leaves the ends of this warp's points in a row for its neighbours.
    #[inline(always)]
    pub unsafe fn set_ends(&self, columns: &Columns, ends: Ends, points: &Points) {
        let [left, right] = [points[0].to_bits(), points[WIDTH - 1].to_bits()];
        // SAFETY: the caller's contract: one place for each warp and side.
        unsafe {
            self.shared.store_if(columns.is_end(), ends.put, columns.by_end(left, right));
            if warp::SIZE == 1 {
                self.shared.store(ends.put + 4, [right]);
            }
        }
    }

    /// The next values of a row's points, and their ends for the neighbours.
    #[inline(always)]
    pub unsafe fn step(&self, columns: &Columns, ends: Ends, rows: [&Points; 3], sum: &mut f32) -> Points {
        // Where a warp is one lane, what is to the right lies three words behind what is to the left.
        let beyond = |right: bool| if warp::SIZE == 1 && right { 12 } else { 0 };
        // SAFETY: the caller's contract.
        let far =
            Far::by(columns, |right| f32::from_bits(unsafe { self.shared.load::<1>(ends.get + beyond(right)) }[0]));
        let next = columns.step(rows, columns.beside(rows[1], far), sum);
        // SAFETY: as above.
        unsafe { self.set_ends(columns, ends, &next) };
        next
    }

    /// Where the threads find the points beside the block's rows, above and below, and where they leave its own. They lie here, since
    /// each would take two registers. By one thread; a barrier of the block is behind it.
    #[inline(always)]
    pub unsafe fn set_doors(&self, take: [u64; 2], give: [u64; 2]) {
        let words = |[above, below]: [u64; 2]| [above as u32, (above >> 32) as u32, below as u32, (below >> 32) as u32];
        // SAFETY: the caller's contract.
        unsafe {
            self.shared.store(self.tail, words(take));
            self.shared.store(self.tail + 16, words(give));
        }
    }

    #[inline(always)]
    pub unsafe fn take(&self) -> [u64; 2] {
        // SAFETY: behind the barrier that is behind `set_doors`.
        addresses(unsafe { self.shared.load(self.tail) })
    }

    #[inline(always)]
    pub unsafe fn give(&self) -> [u64; 2] {
        // SAFETY: as above.
        addresses(unsafe { self.shared.load(self.tail + 16) })
    }

    /// Where the warps leave their sums.
    #[inline(always)]
    fn sums(&self, tag: u32) -> u32 {
        self.tail + DOORS + (tag & 1) * SUMS
    }
}

#[inline(always)]
fn addresses([a, b, c, d]: [u32; 4]) -> [u64; 2] {
    [(b as u64) << 32 | a as u64, (d as u64) << 32 | c as u64]
}

/// A warp's part of an iteration's sum, for [`add_sums`] behind the block's barrier.
#[inline(always)]
pub unsafe fn leave_sum(args: &ResidentArgs, memory: &Memory, tag: u32, sum: f32) {
    if args.norm == NORM_NEVER {
        return;
    }
    let sum = warp::sum_f32(sum);
    if warp::lane() == 0 {
        let own = memory.sums(tag) + thread::thread_idx_x() / warp::SIZE * 4;
        // SAFETY: one place for each warp, in two parities: the other one's may still be read.
        unsafe { memory.shared.store(own, [sum.to_bits()]) };
    }
}

/// One warp adds the block's sum, in turns: nobody waits for it.
#[inline(always)]
pub unsafe fn add_sums(args: &ResidentArgs, memory: &Memory, tag: u32) {
    let warps = thread::block_dim_x() / warp::SIZE;
    if args.norm == NORM_NEVER || tag % warps != thread::thread_idx_x() / warp::SIZE {
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
