//! The five-point stencil of four adjacent points, and the columns of a thread.

use cuda_std::sum::square_onto;
use cuda_std::vector::{load_word_if, load_words, opaque_u32, store_words, store_words_if};
use cuda_std::{thread, warp};

/// Number of points of a thread in a row, which one instruction loads or stores.
pub const WIDTH: usize = 4;
/// Four adjacent points.
pub type Points = [f32; WIDTH];

/// The columns of a thread.
#[derive(Clone, Copy)]
pub struct Columns {
    /// The first of four columns; for a thread without columns, the first one that it reads.
    pub first: u32,
    /// Whether the thread has columns.
    pub any: bool,
    /// All bits set for each fixed point: the first and the last column of the field, and all columns after it. (Stored
    /// as words: for booleans the compiler generates branches, after each of which the warp reconverges.)
    keeps: [u32; WIDTH],
    /// Whether this is the first lane of its warp, and whether it is the last. The adjacent point then belongs to
    /// another warp.
    first_lane: bool,
    last_lane: bool,
}

impl Columns {
    /// Creates the columns of the thread that starts at column `first` of a field of `nx` columns, whose rows are
    /// `pitch` points apart.
    #[inline(always)]
    pub fn new(first: u32, nx: u32, pitch: u32) -> Columns {
        Columns::or(first, 0, nx, pitch)
    }

    /// Like [`new`](Columns::new), but a thread without columns reads those from `otherwise` on.
    #[inline(always)]
    pub fn or(first: u32, otherwise: u32, nx: u32, pitch: u32) -> Columns {
        let any = first < pitch;
        let first = if any { first } else { otherwise };
        let lane = warp::lane();
        let keeps = |column: u32| opaque_u32(((column == 0 || column + 1 >= nx) as u32).wrapping_neg());
        let keeps = [keeps(first), keeps(first + 1), keeps(first + 2), keeps(first + 3)];
        Columns { first, any, keeps, first_lane: lane == 0, last_lane: lane == warp::SIZE - 1 }
    }

    /// Returns a nonzero value if this lane is the first or the last of its warp.
    #[inline(always)]
    pub fn is_end(&self) -> u32 {
        (self.first_lane | self.last_lane) as u32
    }

    /// Returns `first` on the first lane of a warp, and `otherwise` on all other lanes.
    #[inline(always)]
    pub fn by_end<T>(&self, first: T, otherwise: T) -> T {
        if self.first_lane { first } else { otherwise }
    }

    /// Returns the points adjacent to those of a thread: those of the adjacent lanes or, at the ends of the warp, those
    /// in `far`.
    ///
    /// Must be called by every lane of a full warp.
    #[inline(always)]
    pub fn beside(&self, points: &Points, far: Far) -> (f32, f32) {
        let left = warp::from_lane_below_f32(points[WIDTH - 1]);
        let right = warp::from_lane_above_f32(points[0]);
        (if self.first_lane { far.left } else { left }, if self.last_lane { far.right } else { right })
    }

    /// Returns the next values of `points`, and adds the squares of their changes to `sum`. The order of the additions
    /// determines the result: right, left, below, above.
    #[inline(always)]
    pub fn step(&self, [above, points, below]: [&Points; 3], (left, right): (f32, f32), sum: &mut f32) -> Points {
        let mut next = *points;
        for point in 0..WIDTH {
            let left = if point == 0 { left } else { points[point - 1] };
            let right = if point == WIDTH - 1 { right } else { points[point + 1] };
            let mean = 0.25 * (right + left + below[point] + above[point]);
            let keeps = self.keeps[point];
            next[point] = f32::from_bits(points[point].to_bits() & keeps | mean.to_bits() & !keeps);
            *sum = square_onto(*sum, next[point] - points[point]);
        }
        next
    }
}

/// The points adjacent to those of a warp, left of its first lane and right of its last lane. In a warp of 32 lanes, a
/// lane is at most one of the two, and loads its point into both fields.
#[derive(Clone, Copy)]
pub struct Far {
    pub left: f32,
    pub right: f32,
}

impl Far {
    /// Loads the adjacent points with `load`, whose argument is false for the left side.
    #[inline(always)]
    pub fn by(columns: &Columns, load: impl Fn(bool) -> f32) -> Far {
        if warp::SIZE == 1 {
            return Far { left: load(false), right: load(true) };
        }
        let found = load(!columns.first_lane);
        Far { left: found, right: found }
    }
}

/// Loads four points with one instruction.
///
/// # Safety
/// The points must be valid for reads, aligned to 16 bytes, and not written at the same time.
#[inline(always)]
pub unsafe fn load(from: *const f32) -> Points {
    // SAFETY: the caller guarantees that the points are valid and aligned.
    unsafe { load_words::<WIDTH>(from.cast()) }.map(f32::from_bits)
}

/// Loads one point if `condition` is nonzero, and otherwise returns 0.
///
/// # Safety
/// If `condition` is nonzero, the point must be valid for reads, aligned to 4 bytes, and not written at the same time.
#[inline(always)]
pub unsafe fn load_point_if(condition: u32, from: *const f32) -> f32 {
    // SAFETY: the caller guarantees that the point is valid if it is loaded.
    f32::from_bits(unsafe { load_word_if(condition, from.cast()) })
}

/// Stores four points with one instruction if `condition` is nonzero.
///
/// # Safety
/// The requirements of [`store`] apply if `condition` is nonzero.
#[inline(always)]
pub unsafe fn store_if(condition: u32, to: *mut f32, points: &Points) {
    // SAFETY: the caller guarantees that the points are valid if they are stored.
    unsafe { store_words_if(condition, to.cast(), points.map(f32::to_bits)) };
}

/// Stores four points with one instruction.
///
/// # Safety
/// The points must be valid for writes, aligned to 16 bytes, and not accessed by another thread at the same time.
#[inline(always)]
pub unsafe fn store(to: *mut f32, points: &Points) {
    // SAFETY: the caller guarantees that the points are valid and aligned.
    unsafe { store_words(to.cast(), points.map(f32::to_bits)) };
}

/// Returns the first column of this thread within the columns of its block.
#[inline(always)]
pub fn first_of_thread() -> u32 {
    thread::thread_idx_x() * WIDTH as u32
}
