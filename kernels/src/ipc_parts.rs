//! Writing to another GPU's memory in parts that warps take dynamically: warps that share an SM take fewer.
//!
//! With a grid-stride loop each block's share is fixed before the launch. If several launches run concurrently and
//! their blocks are distributed unevenly over the SMs, the blocks that share an SM finish last, while the others are
//! idle.

use crate::ipc::{IpcKernelArgs, STEP, byte, each_tail_byte, signal, word, words};
use crate::ipc_kernel::UNROLL;
use cuda_std::memory::{Word, fetch_add_relaxed_gpu_u64};
use cuda_std::vector::{opaque_u32, store_words};
use cuda_std::{kernel, thread, warp};

/// Number of 16-byte vectors of a part: 32 KiB. One SM of an H200 stores a part in 0.65 us, about the duration of an
/// atomic operation.
const PART: u64 = 2048;

/// Returns the number of warps of a launch. Each warp takes part numbers.
#[inline(always)]
fn warps() -> u64 {
    u64::from(thread::grid_dim_x()) * u64::from(thread::block_dim_x().div_ceil(warp::SIZE))
}

/// Calls `part_of` for each part (of `PART` vectors) that this warp takes, with the part's first vector, its end, the
/// lane, and the number of lanes.
///
/// Each launch takes one number per part, and one per warp that indicates that no part is left. The numbers of a launch
/// therefore start where those of the previous launch end, and `taken` is never reset. Relaxed ordering suffices: a
/// number publishes no other data, and launches of a stream are ordered.
///
/// # Safety
/// `taken` must be in device memory and initially 0. Only launches with the same numbers of parts and warps may use it,
/// one after another.
#[inline(always)]
pub(crate) unsafe fn each_part<const PART: u64>(
    taken: *const Word,
    vectors: u64,
    mut part_of: impl FnMut(u64, u64, u64, u64),
) {
    let (mask, lane) = (warp::launched_mask(), u64::from(warp::lane()));
    let lanes = u64::from(mask.count_ones());
    let parts = vectors.div_ceil(PART);
    let each = parts + warps();
    let take = || {
        // SAFETY: the caller guarantees that `taken` is valid.
        if lane == 0 { fetch_add_relaxed_gpu_u64(unsafe { &*taken }, 1) } else { 0 }
    };
    let mut next = take();
    loop {
        let part = warp::broadcast_u64(mask, next, 0) % each;
        if part >= parts {
            break;
        }
        // Takes one number in advance, so that it arrives while this part is written.
        next = take();
        let end = if (part + 1) * PART < vectors { (part + 1) * PART } else { vectors };
        part_of(part * PART, end, lane, lanes);
    }
}

/// Writes the pattern, with stores of 16 bytes.
///
/// # Safety
/// The requirements of `ipc_write_16` must hold. `taken` must be in device memory and initially 0. Only launches with
/// the same numbers of parts and warps may use it, one after another.
#[kernel]
pub unsafe fn ipc_parts_write(args: IpcKernelArgs) {
    let write = |first: u64, end: u64, lane: u64, lanes: u64| {
        let step = opaque_u32((4 * lanes as u32).wrapping_mul(STEP));
        let mut index = first + lane;
        let mut value = word(args.seed, index * 4);
        let mut put = |index: u64| {
            // SAFETY: the caller guarantees that `bytes` bytes are valid; the vector is below the number of vectors.
            unsafe { store_words(args.destination.add(index as usize * 16).cast(), words::<4>(value)) };
            value = opaque_u32(value.wrapping_add(step));
        };
        while index + (UNROLL as u64 - 1) * lanes < end {
            for access in 0..UNROLL as u64 {
                put(index + access * lanes);
            }
            index += UNROLL as u64 * lanes;
        }
        while index < end {
            put(index);
            index += lanes;
        }
    };
    // SAFETY: the caller upholds the requirements on `taken`.
    unsafe { each_part::<PART>(args.taken, args.bytes / 16, write) };
    each_tail_byte(args.bytes, 16, |offset| {
        // SAFETY: the caller guarantees that `bytes` bytes are valid, and `offset` is below `bytes`.
        unsafe { args.destination.add(offset as usize).write(byte(args.seed, offset)) }
    });
    // SAFETY: the caller guarantees that `counter` and `flag` are valid.
    unsafe { signal(&args) };
}
