//! Copies by the lanes of a scope: the loads and stores of a put over NVLink.

use cuda_std::call::by_address;
use cuda_std::vector::{fresh_u32, load_words, opaque_u64, store_words};

/// Vectors of one lane under way.
const UNROLL: usize = 8;

/// Copies `bytes`; this is lane `rank` of `lanes`, which all call it. Nothing is ordered.
///
/// # Safety
/// Both are valid for `bytes`, and do not overlap; nobody else writes either meanwhile.
#[inline(always)]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    // What is at most one access of each lane is copied in place: a call takes as long as the copy.
    // (Addresses are made where they are used: before a loop they would be kept in local memory, and each acquire makes it miss.)
    let (each, whole) = (fresh_u32(rank) as u64, to as u64 | from as u64 | bytes);
    // SAFETY: the caller's contract; what is copied in place begins below `bytes`, which are as many whole accesses.
    unsafe {
        if whole.is_multiple_of(16) && bytes <= lanes as u64 * 16 {
            one::<4>(to, from, bytes, each * 16);
        } else if whole.is_multiple_of(8) && bytes <= lanes as u64 * 8 {
            one::<2>(to, from, bytes, each * 8);
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
pub(super) unsafe fn copy_apart(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    // SAFETY: the caller's contract.
    unsafe { by_address(copy_any as unsafe fn(_, _, _, _, _))(to, from, bytes, rank, lanes) };
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

/// Of any length. Out of line: a kernel calls it in several places, and each copy of it takes the driver as long to compile as a kernel.
///
/// # Safety
/// As [`copy`].
#[inline(never)]
unsafe fn copy_any(to: *mut u8, from: *const u8, bytes: u64, rank: u32, lanes: u32) {
    let alignment = to as u64 | from as u64;
    let (rank, lanes) = (rank as u64, lanes as u64);
    let behind = if alignment.is_multiple_of(16) {
        // SAFETY: the caller's contract.
        unsafe { vectors::<4>(to, from, bytes / 16, rank, lanes) };
        bytes / 16 * 16
    } else if alignment.is_multiple_of(4) {
        // SAFETY: the caller's contract.
        unsafe { vectors::<1>(to, from, bytes / 4, rank, lanes) };
        bytes / 4 * 4
    } else {
        0
    };
    let mut at = behind + rank;
    while at < bytes {
        // SAFETY: below `bytes`.
        unsafe { to.add(at as usize).write(from.add(at as usize).read()) };
        at += lanes;
    }
}

/// Whole vectors of `W` words; all loads of a round before its stores.
#[inline(always)]
unsafe fn vectors<const W: usize>(to: *mut u8, from: *const u8, count: u64, rank: u64, lanes: u64) {
    let width = 4 * W as u64;
    let step = opaque_u64(lanes * width);
    let mut index = rank;
    while index + (UNROLL as u64 - 1) * lanes < count {
        let mut held = [[0; W]; UNROLL];
        let mut source = from as u64 + index * width;
        for held in &mut held {
            // SAFETY: below `count`, the caller's contract.
            *held = unsafe { load_words(source as *const u32) };
            source = opaque_u64(source + step);
        }
        let mut target = to as u64 + index * width;
        for held in &held {
            // SAFETY: as above.
            unsafe { store_words(target as *mut u32, *held) };
            target = opaque_u64(target + step);
        }
        index += UNROLL as u64 * lanes;
    }
    // What is left is one more round, each access behind a condition: one wait for memory and not seven.
    if index < count {
        let mut held = [[0; W]; UNROLL];
        for (round, held) in held.iter_mut().enumerate() {
            let at = index + round as u64 * lanes;
            if at < count {
                // SAFETY: as above.
                *held = unsafe { load_words((from as u64 + at * width) as *const u32) };
            }
        }
        for (round, held) in held.iter().enumerate() {
            let at = index + round as u64 * lanes;
            if at < count {
                // SAFETY: as above.
                unsafe { store_words((to as u64 + at * width) as *mut u32, *held) };
            }
        }
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
