//! The five-point stencil of four neighbouring points, and the columns that a thread has.

use cuda_std::sum::square_onto;
use cuda_std::vector::{load_word_if, load_words, opaque_u32, store_words, store_words_if};
use cuda_std::{thread, warp};

/// Points of a thread in a row, loaded and stored by one instruction.
pub const WIDTH: usize = 4;
/// Four neighbouring points.
pub type Points = [f32; WIDTH];

/// Which columns a thread has.
#[derive(Clone, Copy)]
pub struct Columns {
    /// The first of four; 0 for a thread that has none.
    pub first: u32,
    /// Whether it has any.
    pub any: bool,
    /// All bits set for each point that stays as it is: the first and the last of the field, and what is behind that. (Words: of truth values
    /// the compiler makes branches, behind each of which a warp meets again.)
    keeps: [u32; WIDTH],
    /// Whether this is the first lane of its warp, and the last one: what is beside its points belongs to another warp.
    first_lane: bool,
    last_lane: bool,
}

impl Columns {
    /// Those of the thread that begins at column `first` of a field of `nx`, whose rows are `pitch` points apart.
    #[inline(always)]
    pub fn new(first: u32, nx: u32, pitch: u32) -> Columns {
        let any = first < pitch;
        let first = if any { first } else { 0 };
        let lane = warp::lane();
        let keeps = |column: u32| opaque_u32(((column == 0 || column + 1 >= nx) as u32).wrapping_neg());
        let keeps = [keeps(first), keeps(first + 1), keeps(first + 2), keeps(first + 3)];
        Columns { first, any, keeps, first_lane: lane == 0, last_lane: lane == warp::SIZE - 1 }
    }

    /// Not 0 where this lane is the first or the last one of its warp.
    #[inline(always)]
    pub fn is_end(&self) -> u32 {
        (self.first_lane | self.last_lane) as u32
    }

    /// Of two values the first one's for the first lane of a warp, and the second one's for others.
    #[inline(always)]
    pub fn by_end<T>(&self, first: T, otherwise: T) -> T {
        if self.first_lane { first } else { otherwise }
    }

    /// The points beside a thread's: those of the lanes beside it, or what it has found for itself at the ends of its warp.
    ///
    /// Every lane of a full warp calls it.
    #[inline(always)]
    pub fn beside(&self, points: &Points, far: Far) -> (f32, f32) {
        let left = warp::from_lane_below_f32(points[WIDTH - 1]);
        let right = warp::from_lane_above_f32(points[0]);
        (if self.first_lane { far.left } else { left }, if self.last_lane { far.right } else { right })
    }

    /// The next values of `points`, and the sum of the squares of their changes on top of `sum`. The order of the additions is part of
    /// the result: right, left, below, above.
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

/// What lies beside the points of a warp: to the left of its first lane's, and to the right of its last lane's. A lane is one of the two
/// where a warp has 32, and finds both by one load.
#[derive(Clone, Copy)]
pub struct Far {
    pub left: f32,
    pub right: f32,
}

impl Far {
    /// `load` is given the side: false is left.
    #[inline(always)]
    pub fn by(columns: &Columns, load: impl Fn(bool) -> f32) -> Far {
        if warp::SIZE == 1 {
            return Far { left: load(false), right: load(true) };
        }
        let found = load(!columns.first_lane);
        Far { left: found, right: found }
    }
}

/// Four points by one load.
///
/// # Safety
/// Valid for the load, aligned to 16 bytes, and nobody writes them meanwhile.
#[inline(always)]
pub unsafe fn load(from: *const f32) -> Points {
    // SAFETY: the caller's contract.
    unsafe { load_words::<WIDTH>(from.cast()) }.map(f32::from_bits)
}

/// One point where `condition` is not 0; 0 otherwise.
///
/// # Safety
/// As [`load`], aligned to 4 bytes, where it loads.
#[inline(always)]
pub unsafe fn load_point_if(condition: u32, from: *const f32) -> f32 {
    // SAFETY: the caller's contract.
    f32::from_bits(unsafe { load_word_if(condition, from.cast()) })
}

/// Four points by one store where `condition` is not 0.
///
/// # Safety
/// As [`store`], where it stores.
#[inline(always)]
pub unsafe fn store_if(condition: u32, to: *mut f32, points: &Points) {
    // SAFETY: the caller's contract.
    unsafe { store_words_if(condition, to.cast(), points.map(f32::to_bits)) };
}

/// Four points by one store.
///
/// # Safety
/// Valid for the store, aligned to 16 bytes, and nobody else accesses them meanwhile.
#[inline(always)]
pub unsafe fn store(to: *mut f32, points: &Points) {
    // SAFETY: the caller's contract.
    unsafe { store_words(to.cast(), points.map(f32::to_bits)) };
}

/// This thread's number in its block, times what each has.
#[inline(always)]
pub fn first_of_thread() -> u32 {
    thread::thread_idx_x() * WIDTH as u32
}
