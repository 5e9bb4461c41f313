//! Copies by the lanes of a scope: the loads and stores of a put over NVLink.

mod words;

use super::Scope;
use cuda_std::call::by_address;
use cuda_std::vector::{fresh_u32, fresh_u64, load_byte, load_words, opaque_u64, store_words};
use words::Words;

/// Number of vectors per lane in flight, for few lanes and for many. A large block saturates its SM's path to memory
/// with few vectors per thread, and has few registers.
const DEEP: usize = 8;
const WIDE: usize = 4;
/// Minimum number of lanes of a large block.
const MANY: u32 = 512;
/// Number of lanes that copy one byte each after the last vector.
const LANES_OF_REST: u32 = 16;
/// Number of lanes that copy the bytes outside whole words of 8 bytes, at most 7 at each end.
const LANES_OF_EDGES: u32 = 16;
/// Number of bytes per lane and pass of [`copy_bytes`].
const BYTES: u32 = 4;
/// Minimum number of bytes per lane for which a call that copies words without assembling them is worthwhile.
const LONG: u32 = 128;
/// Maximum number of bytes of one pass; longer copies are split, so that [`Words`] counts in 32 bits.
const PIECE: u64 = 1 << 30;

/// The threads that copy together, and which of them this thread is.
#[derive(Clone, Copy)]
pub(crate) struct Lanes {
    rank: u32,
    count: u32,
    /// Known at compile time: a copy by one thread is different code.
    alone: bool,
}

impl Lanes {
    #[inline(always)]
    pub fn of<S: Scope>(scope: &S) -> Lanes {
        Lanes { rank: scope.rank(), count: scope.size(), alone: S::ALONE }
    }
}

/// Copies `bytes` bytes. All lanes must call it. Does not order memory.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `bytes` bytes. They must not overlap, and no other thread may
/// write either during the copy. Bytes that share an aligned word of 8 bytes with `from` may also be loaded, and are
/// not used.
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: u64, by: Lanes) {
    // Inlined, because saving the registers for a call takes as long as a copy of some KiB: 0.2 us by a warp, 1 us by
    // 1024 threads. Addresses are computed where they are used. If they were computed before a loop, the compiler would
    // keep them in local memory, which misses L1 after each acquire.
    let (each, lanes, bases) = (fresh_u32(by.rank), by.count, to as u64 | from as u64);
    // SAFETY: the caller guarantees that both ranges are valid. Accesses of several bytes are used only for addresses
    // that are aligned for them.
    unsafe {
        if (bases | bytes).is_multiple_of(16) {
            if bytes <= lanes as u64 * 16 {
                one::<4>(to, from, bytes, each as u64 * 16);
            } else if lanes >= MANY {
                vectors::<4, WIDE>(to, from, bytes / 16, each, lanes);
            } else {
                vectors::<4, DEEP>(to, from, bytes / 16, each, lanes);
            }
        } else if (bases | bytes).is_multiple_of(8) && bytes <= lanes as u64 * 8 {
            one::<2>(to, from, bytes, each as u64 * 8);
        } else {
            let (to, from) = (fresh_u64(to as u64) as *mut u8, fresh_u64(from as u64) as *const u8);
            copy_unaligned(to, from, bytes, Lanes { rank: each, ..by });
        }
    }
}

/// Copies bytes whose length or addresses are not multiples of 16.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(always)]
unsafe fn copy_unaligned(to: *mut u8, from: *const u8, bytes: u64, Lanes { rank, count, alone }: Lanes) {
    let bases = to as u64 | from as u64;
    let once = if count >= LANES_OF_EDGES { 8 * count } else { 0 };
    // A closure, because the comparisons would otherwise precede the short paths.
    let is_long = || bytes > (count * LONG) as u64 && (bases.is_multiple_of(16) || (bases | bytes).is_multiple_of(8));
    // SAFETY: the caller guarantees that both ranges are valid.
    unsafe {
        if alone && bytes <= 8 {
            copy_bytes(to, from, bytes as u32, rank, count);
        } else if bytes <= count as u64 {
            if (rank as u64) < bytes {
                to.add(rank as usize).write(from.add(rank as usize).read());
            }
        } else if bytes <= 2 * count as u64 {
            copy_twice(to, from, bytes as u32, rank, count);
        } else if bytes <= once as u64 {
            Words::of(to, from, bytes as u32).copy_once(rank);
        } else if bytes <= 8 || bytes > PIECE || is_long() {
            copy_apart(to, from, bytes, rank, count);
        } else if alone {
            Words::of(to, from, bytes as u32).copy_alone();
        } else {
            Words::of(to, from, bytes as u32).copy(rank, count);
        }
    }
}

/// Like [`copy`], but not inlined, for lane `rank` of `lanes`.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(always)]
pub(crate) unsafe fn copy_apart(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    let bases = to as u64 | from as u64;
    let copy = if bases.is_multiple_of(16) && lanes >= LANES_OF_REST {
        copy_vectors
    } else if (bases | bytes).is_multiple_of(8) {
        copy_aligned_words
    } else {
        copy_words
    };
    // SAFETY: the caller upholds the requirements of `copy`.
    unsafe { by_address(copy as unsafe fn(_, _, _, _, _))(to, from, bytes, rank, lanes) };
}

/// Copies `W` words at byte offset `at`, if `at` is below `bytes`.
///
/// # Safety
/// The requirements of [`copy`] must hold, and both addresses must be aligned for `W` words.
#[inline(always)]
unsafe fn one<const W: usize>(to: *mut u8, from: *const u8, bytes: u64, at: u64) {
    if at < bytes {
        // SAFETY: the caller guarantees that both ranges are valid and aligned.
        unsafe { store_words(to.add(at as usize).cast(), load_words::<W>(from.add(at as usize).cast())) };
    }
}

/// Copies 16-byte vectors and the remaining bytes with at least [`LANES_OF_REST`] lanes. Both addresses must be aligned
/// to 16 bytes. Not inlined: a kernel calls it in several places, and the driver would compile each inlined copy for as
/// long as a kernel.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(never)]
unsafe fn copy_vectors(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    // The lanes with the fewest vectors also copy one byte after the last vector. They load it before the vectors and
    // store it after them, so that they wait for memory only once.
    let at = bytes / 16 * 16 + (lanes - 1 - rank) as u64;
    // SAFETY: the caller guarantees that both ranges are valid and aligned; `at` is below `bytes` at each use.
    unsafe {
        let byte = if at < bytes { load_byte(from.add(at as usize)) } else { 0 };
        vectors::<4, DEEP>(to, from, bytes / 16, rank, lanes);
        if at < bytes {
            to.add(at as usize).write(byte as u8);
        }
    }
}

/// Copies 8-byte words. Addresses and length must be multiples of 8.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(never)]
unsafe fn copy_aligned_words(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    // SAFETY: the caller guarantees that both ranges are valid and aligned.
    unsafe { vectors::<2, DEEP>(to, from, bytes / 8, rank, lanes) };
}

/// Copies any length, at any alignment.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(never)]
unsafe fn copy_words(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    if bytes <= 8 {
        // SAFETY: the caller guarantees that both ranges are valid.
        return unsafe { copy_bytes(to, from, bytes as u32, rank, lanes) };
    }
    let mut done = 0;
    while done < bytes {
        // No piece of 8 bytes or less remains.
        let piece = if bytes - done > PIECE + 8 { PIECE } else { bytes - done };
        // SAFETY: the piece is inside the ranges that the caller guarantees.
        unsafe {
            let words = Words::of(to.add(done as usize), from.add(done as usize), piece as u32);
            if lanes == 1 { words.copy_alone() } else { words.copy(rank, lanes) }
        }
        done += piece;
    }
}

/// Copies bytes one by one, at least one and at most two per lane.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(always)]
unsafe fn copy_twice(to: *mut u8, from: *const u8, bytes: u32, rank: u32, lanes: u32) {
    let second = rank + lanes;
    // SAFETY: the offsets are below `bytes`.
    unsafe {
        // A lane without a second byte loads the last one, because it would otherwise wait for the first load.
        let held = [load_byte(from.add(rank as usize)), load_byte(from.add(second.min(bytes - 1) as usize))];
        to.add(rank as usize).write(held[0] as u8);
        if second < bytes {
            to.add(second as usize).write(held[1] as u8);
        }
    }
}

/// Copies bytes one by one, [`BYTES`] per lane and pass. All loads of a pass precede its stores.
///
/// # Safety
/// The requirements of [`copy`] must hold, for at least one byte.
#[inline(always)]
unsafe fn copy_bytes(to: *mut u8, from: *const u8, bytes: u32, rank: u32, lanes: u32) {
    let mut first = rank;
    while first < bytes {
        // SAFETY: the offset is below `bytes`.
        let load = |at: u32| unsafe { load_byte(from.add(at.min(bytes - 1) as usize)) };
        let store = |at: u32, byte: u32| {
            if at < bytes {
                // SAFETY: the offset is below `bytes`.
                unsafe { to.add(at as usize).write(byte as u8) };
            }
        };
        // Written out, because the compiler does not unroll the loop and would keep its array in local memory. For a
        // large block unused accesses take longer than the copy itself.
        let at = [first, first + lanes, first + 2 * lanes, first + 3 * lanes];
        let more = bytes - (first - rank) > 2 * lanes;
        let held = [load(at[0]), load(at[1])];
        let further = if more { [load(at[2]), load(at[3])] } else { [0; 2] };
        store(at[0], held[0]);
        store(at[1], held[1]);
        if more {
            store(at[2], further[0]);
            store(at[3], further[1]);
        }
        first += BYTES * lanes;
    }
}

/// Copies `count` whole vectors of `W` words. All loads of a pass precede its stores.
///
/// # Safety
/// The requirements of [`copy`] must hold for `count` vectors, and both addresses must be aligned for them.
#[inline(always)]
unsafe fn vectors<const W: usize, const UNROLL: usize>(
    to: *mut u8,
    from: *const u8,
    count: u64,
    rank: u32,
    lanes: u32,
) {
    let width = 4 * W as u64;
    let step = opaque_u64(lanes as u64 * width);
    let (mut source, mut target) = (from as u64 + rank as u64 * width, to as u64 + rank as u64 * width);
    let mut left = count;
    while left >= UNROLL as u64 * lanes as u64 {
        let mut held = [[0; W]; UNROLL];
        for held in &mut held {
            // SAFETY: the vector is below `count`; the caller guarantees that the ranges are valid.
            *held = unsafe { load_words(source as *const u32) };
            source = opaque_u64(source + step);
        }
        for held in &held {
            // SAFETY: the vector is below `count`; the caller guarantees that the ranges are valid.
            unsafe { store_words(target as *mut u32, *held) };
            target = opaque_u64(target + step);
        }
        left -= UNROLL as u64 * lanes as u64;
    }
    // The remaining vectors take one more pass, in which each access is conditional: one wait for memory instead of
    // seven. A short remainder uses few conditions, because a block of 1024 threads spends more time on conditions than
    // on the bytes.
    let left = left as u32;
    if left == 0 {
        return;
    }
    // SAFETY: the caller guarantees that the ranges are valid, and `rest` accesses only the `left` vectors from here.
    unsafe {
        if left > 2 * lanes {
            rest::<W, UNROLL>(target, source, (rank, left), lanes, step);
        } else {
            rest::<W, 2>(target, source, (rank, left), lanes, step);
        }
    }
}

/// Copies up to `N` vectors of this lane, `step` bytes apart: those with numbers `index`, `index + lanes`, ... below
/// `left`.
///
/// # Safety
/// The requirements of [`vectors`] must hold.
#[inline(always)]
unsafe fn rest<const W: usize, const N: usize>(
    mut target: u64,
    mut source: u64,
    (index, left): (u32, u32),
    lanes: u32,
    step: u64,
) {
    let mut held = [[0; W]; N];
    for (round, held) in held.iter_mut().enumerate() {
        if index + round as u32 * lanes < left {
            // SAFETY: the vector is below `left`; the caller guarantees that the ranges are valid.
            *held = unsafe { load_words(source as *const u32) };
        }
        source = opaque_u64(source + step);
    }
    for (round, held) in held.iter().enumerate() {
        if index + round as u32 * lanes < left {
            // SAFETY: the vector is below `left`; the caller guarantees that the ranges are valid.
            unsafe { store_words(target as *mut u32, *held) };
        }
        target = opaque_u64(target + step);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_copied_and_no_other(
            bytes in 0u64..3000, to in 0usize..20, from in 0usize..20, lanes in 1u32..40,
        ) {
            let source: Vec<u8> = (0..4096u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8 | 1).collect();
            let mut target = vec![0u8; 4096];
            for rank in 0..lanes {
                let by = Lanes { rank, count: lanes, alone: lanes == 1 };
                // SAFETY: the range is inside both vectors; `copy` handles any alignment.
                unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), bytes, by) };
            }
            prop_assert_eq!(&target[to..to + bytes as usize], &source[from..from + bytes as usize]);
            prop_assert!(target[..to].iter().chain(&target[to + bytes as usize..]).all(|byte| *byte == 0));
        }
    }
}
