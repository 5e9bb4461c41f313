//! Parts shared by the kernels that write to another GPU's memory: arguments, pattern, and the flag after the data.
//!
//! ```text
//!   GPU a                                        GPU b (its memory is mapped in a through an IPC handle)
//!   block 0..n: stores ----------------------->  destination
//!   block barrier, fence.acq_rel.sys by one thread, add to `counter`
//!   the last block: fence, release store ----->  flag  -> the receiver's kernel acquires it
//! ```

use cuda_std::memory::{Word, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, store_release_sys_u64};
use cuda_std::{args, thread};

/// Arguments of all kernels that move or check bytes. experiments/ipc/baseline has the same in C++.
#[args]
pub struct IpcKernelArgs {
    /// Address of the first byte to write, or to check; a multiple of 16.
    pub destination: *mut u8,
    /// Address of the first byte to read; a multiple of 16.
    pub source: *const u8,
    /// Number of bytes to move; any number.
    pub bytes: u64,
    /// Seed of the pattern.
    pub seed: u32,
    /// Value that is combined with each word of the pattern by XOR: 0, or [`POISON`].
    pub xor: u32,
    /// Sums of reads, one per thread of the grid.
    pub sums: *mut u32,
    /// Number of blocks that have finished, counted from 0 over all launches of a pass, or number of wrong bytes. In
    /// device memory.
    pub counter: *const Word,
    /// The receiver's flag, in its memory, which is set to the number of the launch, from 1; null if there is none.
    pub flag: *const Word,
    /// Number of the next part, in device memory; used only by `ipc_parts_write`.
    pub taken: *const Word,
}

/// Difference between consecutive words of the pattern; odd.
pub const STEP: u32 = 0x9E37_79B9;

/// XOR mask of poisoned memory, in which every byte is wrong.
pub const POISON: u32 = 0xA5A5_A5A5;

/// Returns the pattern's word (of 4 bytes) at `index`.
///
/// Consecutive words differ by one addition, so that a kernel that writes the pattern is limited by its stores. A
/// payload that arrives shifted by any number of words below 2^32 is wrong in every word, and so is one with another
/// seed.
#[inline(always)]
pub fn word(seed: u32, index: u64) -> u32 {
    seed.wrapping_add((index as u32).wrapping_mul(STEP))
}

/// Returns the pattern's byte at `offset`, for the bytes after the last whole word.
#[inline(always)]
pub fn byte(seed: u32, offset: u64) -> u8 {
    (word(seed, offset / 4) >> (offset % 4 * 8)) as u8
}

/// Returns the sum of all words and remaining bytes of a payload, modulo 2^32. A kernel that reads the payload must
/// compute the same sum.
pub fn sum(seed: u32, bytes: u64) -> u32 {
    let words = bytes / 4;
    let pairs = (words as u128 * (words as u128).saturating_sub(1) / 2) as u32;
    let whole = seed.wrapping_mul(words as u32).wrapping_add(STEP.wrapping_mul(pairs));
    (words * 4..bytes).fold(whole, |sum, offset| sum.wrapping_add(byte(seed, offset) as u32))
}

/// Returns `W` consecutive words of the pattern, starting with `first`.
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

/// Calls `visit` with the offset of each byte after the last whole vector. There are at most `width - 1` of them,
/// distributed over the threads of the first block.
#[inline(always)]
pub(crate) fn each_tail_byte(bytes: u64, width: u64, mut visit: impl FnMut(u64)) {
    if thread::block_idx_x() != 0 {
        return;
    }
    let mut offset = bytes / width * width + thread::thread_idx_x() as u64;
    while offset < bytes {
        visit(offset);
        offset += thread::block_dim_x() as u64;
    }
}

/// Raises the receiver's flag after all stores of the grid, if there is a flag.
///
/// A receiver that acquires the flag observes every store. Each thread's stores precede its block's barrier. After the
/// barrier, one thread fences at system scope for the whole block (fences are cumulative), and only then counts the
/// block. The thread that counts the last block has observed the counts of all other blocks, fences again and releases
/// the flag.
///
/// # Safety
/// `counter` must be valid, and so must `flag` unless it is null.
#[inline(always)]
pub(crate) unsafe fn signal(args: &IpcKernelArgs) {
    if args.flag.is_null() {
        return;
    }
    thread::sync_threads();
    if thread::thread_idx_x() != 0 {
        return;
    }
    fence_acq_rel_sys();
    let blocks = thread::grid_dim_x() as u64;
    // SAFETY: the caller guarantees that `counter` is valid, and `flag` is not null here.
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
        fn sum_covers_all_words_and_bytes(seed in any::<u32>(), bytes in 0u64..5000) {
            let words = (0..bytes / 4).fold(0u32, |sum, index| sum.wrapping_add(word(seed, index)));
            let all = (bytes / 4 * 4..bytes).fold(words, |sum, offset| sum.wrapping_add(byte(seed, offset) as u32));
            prop_assert_eq!(sum(seed, bytes), all);
        }

        #[test]
        fn word_depends_on_position_and_seed(
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
