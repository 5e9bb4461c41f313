//! Writing to the memory of several other GPUs with one launch: each thread stores each vector to all of them.
//!
//! With one launch per target, each on its own stream, the launches would diverge. Their blocks share SMs unevenly, so
//! one target receives more than its share while the links to the others are idle. Warps take parts dynamically
//! ([`crate::ipc_parts`]), because blocks that share an SM store less.

use crate::ipc::{IpcKernelArgs, STEP, byte, each_tail_byte, signal, word, words};
use crate::ipc_parts::each_part;
use cuda_std::memory::Word;
use cuda_std::vector::{opaque_u32, store_words};
use cuda_std::{args, kernel};

/// Number of targets whose addresses a thread keeps in registers. More targets take several passes.
const AT_ONCE: usize = 8;

/// Number of 16-byte vectors of a part: 2 KiB to each target. All warps then write within one short range and finish at
/// about the same time. Larger parts are slower: on four GPUs, 64 MiB by 16 to 128 blocks reach at least 1428 GB/s with
/// 2 KiB, 1404 with 32 KiB, 757 with 1 MiB.
const PART: u64 = 128;

/// Arguments of [`ipc_together_write`].
#[args]
pub struct TogetherArgs {
    /// Arguments for each target, in device memory. All have the same number of bytes and the same seed.
    pub flows: *const IpcKernelArgs,
    /// Number of targets, at least one.
    pub count: u32,
    /// Number of the next part, in device memory.
    pub taken: *const Word,
}

/// Writes the pattern, with stores of 16 bytes.
///
/// # Safety
/// The requirements of `ipc_write_16` must hold for each of the flows, which no other thread may write while the grid
/// runs. `taken` must meet the requirements of `ipc_parts_write`.
#[kernel]
pub unsafe fn ipc_together_write(args: TogetherArgs) {
    // SAFETY: the caller guarantees that there are `count` flows that no other thread writes.
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
                        // SAFETY: the caller guarantees `bytes` bytes per target; the vector is below the number of
                        // vectors.
                        unsafe { store_words(target.add(index as usize * 16).cast(), words) };
                    }
                }
                value = opaque_u32(value.wrapping_add(step));
                index += lanes;
            }
            base += AT_ONCE;
        }
    };
    // SAFETY: the caller upholds the requirements on `taken`.
    unsafe { each_part::<PART>(args.taken, bytes / 16, write) };
    for flow in flows {
        each_tail_byte(bytes, 16, |offset| {
            // SAFETY: the caller guarantees that `bytes` bytes per target are valid, and `offset` is below `bytes`.
            unsafe { flow.destination.add(offset as usize).write(byte(seed, offset)) }
        });
        // SAFETY: the caller guarantees that `counter` and `flag` of each flow are valid.
        unsafe { signal(flow) };
    }
}
