//! What the kernels that write into another GPU's memory share: their arguments, the pattern, the flag behind the data.
//!
//! ```text
//!   GPU a                                        GPU b (its memory opened in a by an IPC handle)
//!   block 0..n: stores ----------------------->  destination
//!   block barrier, fence.acq_rel.sys by one thread, add to `counter`
//!   the last block: fence, release store ----->  flag  -> the receiver's kernel acquires it
//! ```

use cuda_std::memory::{Word, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, store_release_sys_u64};
use cuda_std::{args, thread};

/// Arguments of all kernels that move or look at bytes. experiments/ipc/baseline has the same in C++.
#[args]
pub struct IpcArgs {
    /// First byte to write, or to check. A multiple of 16.
    pub destination: *mut u8,
    /// First byte to read. A multiple of 16.
    pub source: *const u8,
    /// Bytes to move, any number.
    pub bytes: u64,
    /// Names the pattern.
    pub seed: u32,
    /// What is put over each word of the pattern: 0, or the poison.
    pub xor: u32,
    /// Reads: one sum for each thread of the grid.
    pub sums: *mut u32,
    /// Device memory. Counts blocks that are done, from 0 and over all launches of a pass; or wrong bytes.
    pub counter: *const Word,
    /// The receiver's flag, in its memory: raised to the number of the launch, from 1. Null for none.
    pub flag: *const Word,
    /// Device memory, for `ipc_parts_write` alone: the number of the next part.
    pub taken: *const Word,
}

/// An odd constant: the step from one word of the pattern to the next.
pub const STEP: u32 = 0x9E37_79B9;

/// What the poison puts over each word: every byte of a poisoned payload is wrong.
pub const POISON: u32 = 0xA5A5_A5A5;

/// The pattern's word (of 4 bytes) at `index`.
///
/// One addition from one word to the next: a kernel that writes it is bound by its stores. For one seed a payload that arrives
/// shifted by any number of words (below 2^32) is wrong in every word; for one index it is wrong for every other seed.
#[inline(always)]
pub fn word(seed: u32, index: u64) -> u32 {
    seed.wrapping_add((index as u32).wrapping_mul(STEP))
}

/// The pattern's byte at `offset`, for ends that are shorter than a word.
#[inline(always)]
pub fn byte(seed: u32, offset: u64) -> u8 {
    (word(seed, offset / 4) >> (offset % 4 * 8)) as u8
}

/// What all words and bytes of a payload sum up to, modulo 2^32: what a kernel that reads it must find.
pub fn sum(seed: u32, bytes: u64) -> u32 {
    let words = bytes / 4;
    let pairs = (words as u128 * (words as u128).saturating_sub(1) / 2) as u32;
    let whole = seed.wrapping_mul(words as u32).wrapping_add(STEP.wrapping_mul(pairs));
    (words * 4..bytes).fold(whole, |sum, offset| sum.wrapping_add(byte(seed, offset) as u32))
}

/// The `W` words of the pattern from a first word on.
#[inline(always)]
pub(crate) fn words<const W: usize>(first: u32) -> [u32; W] {
    let mut words = [first; W];
    let mut next = 1;
    while next < W {
        words[next] = words[next - 1].wrapping_add(STEP);
        next += 1;
    }
    words
}

/// The bytes behind the last whole vector: at most `width - 1`, by as many threads of the first block, or one after another
/// where it has fewer.
#[inline(always)]
pub(crate) fn each_byte_behind(bytes: u64, width: u64, mut visit: impl FnMut(u64)) {
    if thread::block_idx_x() != 0 {
        return;
    }
    let mut offset = bytes / width * width + thread::thread_idx_x() as u64;
    while offset < bytes {
        visit(offset);
        offset += thread::block_dim_x() as u64;
    }
}

/// Raises the receiver's flag behind all stores of the grid, when there is one to raise.
///
/// The receiver that acquires the flag sees every store: each thread's stores come before its block's barrier, behind which
/// one thread fences at system scope, for the whole block (cumulativity), and only then counts the block. Who counts last has
/// read the counts of all other blocks, fences again and releases the flag.
///
/// # Safety
/// The kernel's contract: `counter` is valid, and so is `flag` unless it is null.
#[inline(always)]
pub(crate) unsafe fn signal(args: &IpcArgs) {
    if args.flag.is_null() {
        return;
    }
    thread::sync_threads();
    if thread::thread_idx_x() != 0 {
        return;
    }
    fence_acq_rel_sys();
    let blocks = thread::grid_dim_x() as u64;
    // SAFETY: the caller's contract.
    let (counter, flag) = unsafe { (&*args.counter, &*args.flag) };
    let done = fetch_add_relaxed_gpu_u64(counter, 1) + 1;
    if done.is_multiple_of(blocks) {
        fence_acq_rel_sys();
        store_release_sys_u64(flag, done / blocks);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_sum_is_that_of_all_words_and_bytes(seed in any::<u32>(), bytes in 0u64..5000) {
            let words = (0..bytes / 4).fold(0u32, |sum, index| sum.wrapping_add(word(seed, index)));
            let all = (bytes / 4 * 4..bytes).fold(words, |sum, offset| sum.wrapping_add(byte(seed, offset) as u32));
            prop_assert_eq!(sum(seed, bytes), all);
        }

        #[test]
        fn a_word_elsewhere_or_of_another_seed_is_another(
            seed in any::<u32>(), other in any::<u32>(), index in 0u64..1 << 32, shift in 1u64..1 << 31,
        ) {
            prop_assert_ne!(word(seed, index), word(seed, index + shift));
            prop_assume!(seed != other);
            prop_assert_ne!(word(seed, index), word(other, index));
        }

        #[test]
        fn vectors_are_words_side_by_side(seed in any::<u32>(), index in 0u64..1 << 30) {
            prop_assert_eq!(words::<4>(word(seed, index)), [0, 1, 2, 3].map(|next| word(seed, index + next)));
        }
    }
}
