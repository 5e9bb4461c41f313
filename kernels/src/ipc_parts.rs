//! Writing into another GPU's memory in parts that warps take as they come: who shares a multiprocessor takes fewer.
//!
//! With a grid stride each block's part is fixed before the launch. Where several launches run at once and their blocks do not go evenly over
//! the multiprocessors, the blocks that share one end last, and the others wait for nothing.

use crate::ipc::{IpcArgs, STEP, byte, each_byte_behind, signal, word, words};
use crate::ipc_kernel::UNROLL;
use cuda_std::memory::{Word, fetch_add_relaxed_gpu_u64};
use cuda_std::vector::{opaque_u32, store_words};
use cuda_std::{kernel, thread, warp};

/// Vectors of 16 bytes of a part: 32 KiB. One multiprocessor stores that in 0.65 us on an H200, about as long as an atomic operation takes.
const PART: u64 = 2048;

/// What takes numbers: the warps of a launch.
#[inline(always)]
fn warps() -> u64 {
    u64::from(thread::grid_dim_x()) * u64::from(thread::block_dim_x().div_ceil(warp::SIZE))
}

/// Calls `part_of` with the first vector of each part (of `PART` vectors) that this warp takes, the one behind its last, and the lane and their
/// number.
///
/// Each launch takes as many numbers as it has parts and warps: every part, and for each warp one that says there are none left. So the numbers of
/// a launch begin where those of the launch before end, and nobody has to set `taken` back. Relaxed is enough: a number carries nothing
/// else, and launches of a stream follow one another.
///
/// # Safety
/// `taken` is device memory that began as 0 and that launches of this many parts and warps alone have used, one behind another.
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
        // SAFETY: the caller's contract.
        if lane == 0 { fetch_add_relaxed_gpu_u64(unsafe { &*taken }, 1) } else { 0 }
    };
    let mut next = take();
    loop {
        let part = warp::broadcast_u64(mask, next, 0) % each;
        if part >= parts {
            break;
        }
        // One ahead: the number comes while this part is written.
        next = take();
        let end = if (part + 1) * PART < vectors { (part + 1) * PART } else { vectors };
        part_of(part * PART, end, lane, lanes);
    }
}

/// Writes the pattern, 16 bytes a store.
///
/// # Safety
/// As `ipc_write_16`; `taken` is device memory that began as 0 and that launches of this many parts and warps alone have used, one behind another.
#[kernel]
pub unsafe fn ipc_parts_write(args: IpcArgs) {
    let write = |first: u64, end: u64, lane: u64, lanes: u64| {
        let step = opaque_u32((4 * lanes as u32).wrapping_mul(STEP));
        let mut index = first + lane;
        let mut value = word(args.seed, index * 4);
        let mut put = |index: u64| {
            // SAFETY: contract of the kernel; below the number of vectors.
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
    // SAFETY: contract of the kernel.
    unsafe { each_part::<PART>(args.taken, args.bytes / 16, write) };
    each_byte_behind(args.bytes, 16, |offset| {
        // SAFETY: contract of the kernel.
        unsafe { args.destination.add(offset as usize).write(byte(args.seed, offset)) }
    });
    // SAFETY: contract of the kernel.
    unsafe { signal(&args) };
}
