//! Copies by the lanes of a scope: the loads and stores of a put over NVLink.

use cuda_std::call::by_address;
use cuda_std::vector::{fresh_u32, load_words, opaque_u64, store_words};

/// Vectors of one lane under way, of few lanes and of many: a large block fills its multiprocessor's way to memory with few of each thread, and
/// has few registers.
const DEEP: usize = 8;
const WIDE: usize = 4;
/// So many lanes are many.
const MANY: u32 = 512;
/// Bytes of a lane from which words that are made of two are quicker than bytes one by one: whoever makes them saves registers first (one H200: 512 B by
/// 256 lanes 1.23 us by bytes and 2.07 so, 4 KiB 3.46 and 2.13).
const PARTS_FROM: u64 = 16;

/// Copies `bytes`; this is lane `rank` of `lanes`, which all call it. Nothing is ordered.
///
/// # Safety
/// Both are valid for `bytes`, and do not overlap; nobody else writes either meanwhile.
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    // In place what is aligned: a call takes as long to save registers as some KiB take (H200: 0.2 us by a warp, 1 us by 1024 threads).
    // (Addresses are made where they are used: before a loop they would be kept in local memory, and each acquire makes it miss.)
    let (each, whole) = (fresh_u32(rank), to as u64 | from as u64 | bytes);
    // SAFETY: the caller's contract; what is copied in place is whole accesses.
    unsafe {
        if whole.is_multiple_of(16) {
            if bytes <= lanes as u64 * 16 {
                one::<4>(to, from, bytes, each as u64 * 16);
            } else if lanes >= MANY {
                vectors::<4, WIDE>(to, from, bytes / 16, each, lanes);
            } else {
                vectors::<4, DEEP>(to, from, bytes / 16, each, lanes);
            }
        } else if whole.is_multiple_of(8) && bytes <= lanes as u64 * 8 {
            one::<2>(to, from, bytes, each as u64 * 8);
        } else {
            copy_apart(to, from, bytes, rank, lanes);
        }
    }
}

/// As [`copy`], by a call in any case.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub(crate) unsafe fn copy_apart(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    let alignment = to as u64 | from as u64;
    let copy = if alignment.is_multiple_of(16) {
        copy_by::<4, DEEP>
    } else if alignment.is_multiple_of(4) || bytes < lanes as u64 * PARTS_FROM {
        copy_any
    } else {
        copy_parts
    };
    // SAFETY: the caller's contract.
    unsafe { by_address(copy as unsafe fn(_, _, _, _, _))(to, from, bytes, rank, lanes) };
}

/// `W` words from byte `at` on, where that is below `bytes`.
///
/// # Safety
/// As [`copy`]; both are aligned for it.
#[inline(always)]
unsafe fn one<const W: usize>(to: *mut u8, from: *const u8, bytes: u64, at: u64) {
    if at < bytes {
        // SAFETY: the caller's contract.
        unsafe { store_words(to.add(at as usize).cast(), load_words::<W>(from.add(at as usize).cast())) };
    }
}

/// Of any length and alignment.
///
/// # Safety
/// As [`copy`].
#[inline(never)]
unsafe fn copy_any(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    let alignment = to as u64 | from as u64;
    // SAFETY: the caller's contract, aligned as asked.
    unsafe {
        if alignment.is_multiple_of(8) {
            copy_by::<2, WIDE>(to, from, bytes, rank, lanes);
        } else if alignment.is_multiple_of(4) {
            copy_by::<1, WIDE>(to, from, bytes, rank, lanes);
        } else {
            copy_bytes(to, from, 0, bytes, rank, lanes);
        }
    }
}

/// Of which one or both are no multiple of 4: whole words are stored, each made of the two that hold its bytes. Words that are not wholly the source's
/// are not loaded.
///
/// # Safety
/// As [`copy`].
#[inline(never)]
unsafe fn copy_parts(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    // Where the target's words begin, so many bytes into a word of the source, which begins at or behind the source.
    let inside = (from as u64).wrapping_sub(to as u64) % 4;
    let begin = (to as u64).wrapping_neg() % 4;
    let begin = if begin < inside { begin + 4 } else { begin }.min(bytes);
    // The second word of the last one ends with the source, or before.
    let count = (bytes - begin + inside).saturating_sub(4) / 4;
    // SAFETY: the caller's contract; both words of each are inside the source.
    unsafe {
        copy_bytes(to, from, 0, begin, rank, lanes);
        copy_bytes(to, from, begin + 4 * count, bytes, rank, lanes);
        let source = from.add(begin as usize).wrapping_sub(inside as usize) as *const u32;
        let target = to.add(begin as usize) as *mut u32;
        let mut first = rank as u64;
        while first < count {
            let mut held = [[0; 2]; WIDE];
            for (round, held) in held.iter_mut().enumerate() {
                let at = (first + round as u64 * lanes as u64) as usize;
                if (at as u64) < count {
                    let [low] = load_words(source.add(at));
                    let [high] = load_words(source.add(at + 1));
                    *held = [low, high];
                }
            }
            for (round, [low, high]) in held.into_iter().enumerate() {
                let at = (first + round as u64 * lanes as u64) as usize;
                if (at as u64) < count {
                    store_words(
                        target.add(at),
                        [((high as u64) << 32 | low as u64).wrapping_shr(8 * inside as u32) as u32],
                    );
                }
            }
            first += WIDE as u64 * lanes as u64;
        }
    }
}

/// By vectors of `W` words, to which both are aligned. Out of line: a kernel calls it in several places, and each copy of it takes the driver as
/// long to compile as a kernel.
///
/// # Safety
/// As [`copy`].
#[inline(never)]
unsafe fn copy_by<const W: usize, const UNROLL: usize>(
    to: *mut u8,
    from: *const u8,
    bytes: u64,
    rank: u32,
    lanes: u32,
) {
    let width = 4 * W as u64;
    // SAFETY: the caller's contract. (The last bytes first: so what they need is not kept while the others are copied.)
    unsafe {
        copy_bytes(to, from, bytes / width * width, bytes, rank, lanes);
        vectors::<W, UNROLL>(to, from, bytes / width, rank, lanes);
    }
}

/// From byte `first` on, one by one.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn copy_bytes(to: *mut u8, from: *const u8, first: u64, bytes: u64, rank: u32, lanes: u32) {
    let mut at = first + rank as u64;
    while at < bytes {
        // SAFETY: below `bytes`.
        unsafe { to.add(at as usize).write(from.add(at as usize).read()) };
        at += lanes as u64;
    }
}

/// Whole vectors of `W` words; all loads of a round before its stores.
///
/// # Safety
/// As [`copy`], of `count` vectors, for whose width both are aligned.
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
            // SAFETY: below `count`, the caller's contract.
            *held = unsafe { load_words(source as *const u32) };
            source = opaque_u64(source + step);
        }
        for held in &held {
            // SAFETY: as above.
            unsafe { store_words(target as *mut u32, *held) };
            target = opaque_u64(target + step);
        }
        left -= UNROLL as u64 * lanes as u64;
    }
    // What is left is one more round, each access behind a condition: one wait for memory and not seven. A short one has few conditions,
    // since a block of 1024 threads spends more time on these than on the bytes.
    let left = left as u32;
    if left == 0 {
        return;
    }
    // SAFETY: the caller's contract.
    unsafe {
        if left > 2 * lanes {
            rest::<W, UNROLL>(target, source, (rank, left), lanes, step);
        } else {
            rest::<W, 2>(target, source, (rank, left), lanes, step);
        }
    }
}

/// Up to `N` vectors of this lane, those of number `index`, `index + lanes`, ... below `left`, `step` bytes apart.
///
/// # Safety
/// As [`vectors`].
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
            // SAFETY: the caller's contract.
            *held = unsafe { load_words(source as *const u32) };
        }
        source = opaque_u64(source + step);
    }
    for (round, held) in held.iter().enumerate() {
        if index + round as u32 * lanes < left {
            // SAFETY: as above.
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
                // SAFETY: inside both, whose alignment the copy looks at itself.
                unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), bytes, rank, lanes) };
            }
            prop_assert_eq!(&target[to..to + bytes as usize], &source[from..from + bytes as usize]);
            prop_assert!(target[..to].iter().chain(&target[to + bytes as usize..]).all(|byte| *byte == 0));
        }
    }
}
