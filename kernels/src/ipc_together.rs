//! Writing into several other GPUs' memories by one launch: each thread stores each vector to all of them.
//!
//! By a launch for each, on streams of their own, the launches get out of step: their blocks share multiprocessors unevenly, one target gets more
//! than its part, and the links to the others rest. Warps take parts as they come ([`crate::ipc_parts`]), as where some blocks share a multiprocessor
//! those store less.

use crate::ipc::{IpcArgs, STEP, byte, each_byte_behind, signal, word, words};
use crate::ipc_parts::each_part;
use cuda_std::memory::Word;
use cuda_std::vector::{opaque_u32, store_words};
use cuda_std::{args, kernel};

/// Targets whose addresses a thread keeps in registers. More are written in several passes.
const AT_ONCE: usize = 8;

/// Vectors of 16 bytes of a part: 2 KiB to each target. All warps are in one short stretch then, and end together: four H200, 64 MiB, 1428 to 1444 GB/s
/// by grids of 16 to 128 blocks; 1404 to 1429 with parts of 32 KiB (2048 for 1152 warps), 1419 to 1435 with 8 KiB; 1 MiB 1003, 757 and 957.
const PART: u64 = 128;

/// Arguments of [`ipc_together_write`].
#[args]
pub struct TogetherArgs {
    /// One for each target, in device memory. They have the same bytes and seed.
    pub flows: *const IpcArgs,
    /// How many; at least one.
    pub count: u32,
    /// Device memory: the number of the next part.
    pub taken: *const Word,
}

/// Writes the pattern, 16 bytes a store.
///
/// # Safety
/// As `ipc_write_16`, for each of the flows; nobody writes these meanwhile; `taken` as for `ipc_parts_write`.
#[kernel]
pub unsafe fn ipc_together_write(args: TogetherArgs) {
    // SAFETY: contract of the kernel.
    let flows = unsafe { core::slice::from_raw_parts(args.flows, args.count as usize) };
    let (first, last) = (&flows[0], flows.len() - 1);
    let (bytes, seed) = (first.bytes, first.seed);
    let write = |first: u64, end: u64, lane: u64, lanes: u64| {
        let step = opaque_u32((4 * lanes as u32).wrapping_mul(STEP));
        let mut base = 0;
        while base < flows.len() {
            let targets: [*mut u8; AT_ONCE] = core::array::from_fn(|place| flows[(base + place).min(last)].destination);
            let mut index = first + lane;
            let mut value = word(seed, index * 4);
            while index < end {
                let words = words::<4>(value);
                for (place, target) in targets.iter().enumerate() {
                    if base + place < flows.len() {
                        // SAFETY: contract of the kernel; below the number of vectors.
                        unsafe { store_words(target.add(index as usize * 16).cast(), words) };
                    }
                }
                value = opaque_u32(value.wrapping_add(step));
                index += lanes;
            }
            base += AT_ONCE;
        }
    };
    // SAFETY: contract of the kernel.
    unsafe { each_part::<PART>(args.taken, bytes / 16, write) };
    for flow in flows {
        each_byte_behind(bytes, 16, |offset| {
            // SAFETY: contract of the kernel.
            unsafe { flow.destination.add(offset as usize).write(byte(seed, offset)) }
        });
        // SAFETY: contract of the kernel.
        unsafe { signal(flow) };
    }
}
