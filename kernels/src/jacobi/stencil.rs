//! The five-point stencil of four neighbouring points, and the columns that a thread has.

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
    /// A bit for each that stays as it is: the first and the last of the field, and what is behind that.
    keeps: u32,
    /// Not 0 in lanes whose neighbours are those of another warp. (Conditions of accesses are words: of truth values the compiler makes
    /// branches.)
    pub left_is_far: u32,
    pub right_is_far: u32,
    /// Not 0 where a thread has any columns.
    pub stores: u32,
    pub lane: u32,
}

impl Columns {
    /// Those of the thread that begins at column `first` of a field of `nx`, whose rows are `pitch` points apart.
    #[inline(always)]
    pub fn new(first: u32, nx: u32, pitch: u32) -> Columns {
        let any = first < pitch;
        let first = if any { first } else { 0 };
        let lane = warp::lane();
        Columns {
            first,
            any,
            keeps: (0..WIDTH as u32).fold(0, |keeps, point| {
                keeps | ((first + point == 0 || first + point + 1 >= nx) as u32) << point
            }),
            left_is_far: opaque_u32((any && lane == 0 && first > 0) as u32),
            right_is_far: opaque_u32((any && lane == warp::SIZE - 1 && first + (WIDTH as u32) < pitch) as u32),
            stores: opaque_u32(any as u32),
            lane,
        }
    }

    /// The points beside a thread's: those of the lanes beside it, or what it has found for itself at the ends of its warp.
    ///
    /// Every lane of a full warp calls it.
    #[inline(always)]
    pub fn beside(&self, points: &Points, far_left: f32, far_right: f32) -> (f32, f32) {
        let mask = u32::MAX >> (u32::BITS - warp::SIZE);
        let last = warp::SIZE - 1;
        let left = warp::shuffle_f32(mask, points[WIDTH - 1], self.lane.wrapping_sub(1) & last);
        let right = warp::shuffle_f32(mask, points[0], (self.lane + 1) & last);
        (if self.lane == 0 { far_left } else { left }, if self.lane == last { far_right } else { right })
    }

    /// The next values of `points`, and the sum of the squares of their changes on top of `sum`. The order of the additions is part of
    /// the result: right, left, below, above.
    #[inline(always)]
    pub fn step(&self, above: &Points, points: &Points, below: &Points, left: f32, right: f32, sum: &mut f32) -> Points {
        let mut next = *points;
        for point in 0..WIDTH {
            let left = if point == 0 { left } else { points[point - 1] };
            let right = if point == WIDTH - 1 { right } else { points[point + 1] };
            let mean = 0.25 * (right + left + below[point] + above[point]);
            // All bits, of which the compiler knows nothing: of a truth value it makes a branch, and a warp meets again behind each point.
            let keeps = opaque_u32(((self.keeps << (31 - point)) as i32 >> 31) as u32);
            next[point] = f32::from_bits(points[point].to_bits() & keeps | mean.to_bits() & !keeps);
            let change = next[point] - points[point];
            *sum += change * change;
        }
        next
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
