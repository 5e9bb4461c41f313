//! Copies by the lanes of a scope: the loads and stores of a put over NVLink.

use cuda_std::call::by_address;
use cuda_std::vector::{fresh_u32, load_words, opaque_u64, store_words};

/// Number of vectors per lane in flight, for few lanes and for many: a large block saturates its SM's path to memory
/// with few vectors per thread, and has few registers.
const DEEP: usize = 8;
const WIDE: usize = 4;
/// Number of lanes from which a block counts as large.
const MANY: u32 = 512;
/// Number of bytes per lane from which words assembled from two loads are faster than single bytes: the call saves
/// registers first (H200, 256 lanes: 512 B take 1.23 us by bytes and 2.07 us by words, 4 KiB 3.46 and 2.13 us).
const PARTS_FROM: u64 = 16;

/// Copies `bytes` bytes. All `lanes` lanes must call it, each with its own `rank`. Orders nothing.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `bytes` bytes. They must not overlap, and no other thread may
/// write either during the copy.
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    // Aligned copies are inlined: a call takes as long to save registers as a copy of some KiB takes (H200: 0.2 us by a
    // warp, 1 us by 1024 threads). Addresses are computed where they are used: computed before a loop, the compiler
    // would keep them in local memory, which misses L1 after each acquire.
    let (each, whole) = (fresh_u32(rank), to as u64 | from as u64 | bytes);
    // SAFETY: the caller guarantees both ranges; the inlined copies use only accesses for which both are aligned.
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

/// Like [`copy`], but always by a call.
///
/// # Safety
/// The requirements of [`copy`] must hold.
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
    // SAFETY: the caller guarantees what `copy` requires.
    unsafe { by_address(copy as unsafe fn(_, _, _, _, _))(to, from, bytes, rank, lanes) };
}

/// Copies `W` words at byte offset `at`, if that is below `bytes`.
///
/// # Safety
/// The requirements of [`copy`] must hold, and both addresses must be aligned for `W` words.
#[inline(always)]
unsafe fn one<const W: usize>(to: *mut u8, from: *const u8, bytes: u64, at: u64) {
    if at < bytes {
        // SAFETY: the caller guarantees both ranges and the alignment.
        unsafe { store_words(to.add(at as usize).cast(), load_words::<W>(from.add(at as usize).cast())) };
    }
}

/// Copies any length, at any alignment.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(never)]
unsafe fn copy_any(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    let alignment = to as u64 | from as u64;
    // SAFETY: the caller guarantees both ranges, and the alignment has been checked.
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

/// Copies data of which source, target or both are not aligned to 4 bytes. Stores whole words, each assembled from the
/// two source words that hold its bytes. Source words that extend beyond the source are not loaded.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(never)]
unsafe fn copy_parts(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    // `begin` is the offset at which the target's whole words start. Each starts `inside` bytes into a source word, and
    // the first of these source words must not start before the source.
    let inside = (from as u64).wrapping_sub(to as u64) % 4;
    let begin = (to as u64).wrapping_neg() % 4;
    let begin = if begin < inside { begin + 4 } else { begin }.min(bytes);
    // The second source word of the last target word must not extend beyond the source.
    let count = (bytes - begin + inside).saturating_sub(4) / 4;
    // SAFETY: the caller guarantees both ranges; both source words of each target word are inside the source.
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

/// Copies vectors of `W` words, for which both addresses must be aligned, and the remaining bytes. Not inlined: a
/// kernel calls it in several places, and each inlined copy would take the driver as long to compile as a kernel.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(never)]
unsafe fn copy_by<const W: usize, const UNROLL: usize>(
    to: *mut u8,
    from: *const u8,
    bytes: u64,
    rank: u32,
    lanes: u32,
) {
    let width = 4 * W as u64;
    // SAFETY: the caller guarantees both ranges. (The last bytes are copied first, so that their parameters need not be
    // kept.)
    unsafe {
        copy_bytes(to, from, bytes / width * width, bytes, rank, lanes);
        vectors::<W, UNROLL>(to, from, bytes / width, rank, lanes);
    }
}

/// Copies the bytes from offset `first` to `bytes` one by one.
///
/// # Safety
/// The requirements of [`copy`] must hold.
#[inline(always)]
unsafe fn copy_bytes(to: *mut u8, from: *const u8, first: u64, bytes: u64, rank: u32, lanes: u32) {
    let mut at = first + rank as u64;
    while at < bytes {
        // SAFETY: `at` is below `bytes`.
        unsafe { to.add(at as usize).write(from.add(at as usize).read()) };
        at += lanes as u64;
    }
}

/// Copies `count` whole vectors of `W` words. All loads of a pass precede its stores.
///
/// # Safety
/// The requirements of [`copy`] must hold for `count` vectors, for which both addresses must be aligned.
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
            // SAFETY: the vector is below `count`; the caller guarantees the ranges.
            *held = unsafe { load_words(source as *const u32) };
            source = opaque_u64(source + step);
        }
        for held in &held {
            // SAFETY: the vector is below `count`; the caller guarantees the ranges.
            unsafe { store_words(target as *mut u32, *held) };
            target = opaque_u64(target + step);
        }
        left -= UNROLL as u64 * lanes as u64;
    }
    // The rest takes one more pass, in which each access is conditional: one wait for memory instead of seven. A short
    // rest has few conditions, since a block of 1024 threads spends more time on these than on the bytes.
    let left = left as u32;
    if left == 0 {
        return;
    }
    // SAFETY: the caller guarantees the ranges, and `rest` accesses only the `left` vectors from here.
    unsafe {
        if left > 2 * lanes {
            rest::<W, UNROLL>(target, source, (rank, left), lanes, step);
        } else {
            rest::<W, 2>(target, source, (rank, left), lanes, step);
        }
    }
}

/// Copies up to `N` vectors of this lane: those with numbers `index`, `index + lanes`, ... below `left`, which are
/// `step` bytes apart.
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
            // SAFETY: the vector is below `left`; the caller guarantees the ranges.
            *held = unsafe { load_words(source as *const u32) };
        }
        source = opaque_u64(source + step);
    }
    for (round, held) in held.iter().enumerate() {
        if index + round as u32 * lanes < left {
            // SAFETY: the vector is below `left`; the caller guarantees the ranges.
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
                // SAFETY: the range is inside both vectors; `copy` handles any alignment.
                unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), bytes, rank, lanes) };
            }
            prop_assert_eq!(&target[to..to + bytes as usize], &source[from..from + bytes as usize]);
            prop_assert!(target[..to].iter().chain(&target[to + bytes as usize..]).all(|byte| *byte == 0));
        }
    }
}
