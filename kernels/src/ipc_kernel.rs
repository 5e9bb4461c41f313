//! The kernels of `ginlab ipc`: a grid writes into, copies into or reads from another GPU's memory.
//!
//! All go through the memory in a grid stride, so that the threads of a warp touch one piece of `32 x width` bytes. Each thread
//! has [`UNROLL`] accesses under way; what is left at the end is one more pass of as many, each behind a condition.

use crate::ipc::{IpcArgs, POISON, STEP, byte, each_byte_behind, signal, word, words};
use cuda_std::memory::{fence_acq_rel_sys, fetch_add_relaxed_gpu_u64};
use cuda_std::vector::{load_words, store_words};
use cuda_std::{kernel, thread};

/// Accesses of one thread under way.
pub const UNROLL: usize = 8;

/// The grid's way through `vectors` of `W` words: calls `whole` with the first index of each full round of [`UNROLL`], and
/// `rest` with that of the last one. Indices of a round are a grid's threads apart.
#[inline(always)]
fn each_round(vectors: u64, mut whole: impl FnMut(u64), rest: impl FnOnce(u64)) {
    let threads = grid_threads();
    let mut index = this_thread();
    while index + (UNROLL as u64 - 1) * threads < vectors {
        whole(index);
        index += UNROLL as u64 * threads;
    }
    rest(index);
}

#[inline(always)]
fn grid_threads() -> u64 {
    thread::grid_dim_x() as u64 * thread::block_dim_x() as u64
}

/// In 64 bits: a grid may have more threads than 32 hold.
#[inline(always)]
fn this_thread() -> u64 {
    thread::block_idx_x() as u64 * thread::block_dim_x() as u64 + thread::thread_idx_x() as u64
}

/// Writes the pattern.
#[inline(always)]
unsafe fn write<const W: usize>(args: &IpcArgs) {
    let (threads, vectors) = (grid_threads(), args.bytes / (4 * W as u64));
    let target = args.destination.cast::<u32>();
    // From one vector of a thread to its next.
    let step = (threads as u32).wrapping_mul(W as u32).wrapping_mul(STEP);
    let mut value = word(args.seed, this_thread() * W as u64);
    let put = |index: u64, value: u32| {
        // SAFETY: the kernel's contract; the index is below the number of vectors.
        unsafe { store_words(target.add(index as usize * W), words::<W>(value)) }
    };
    each_round(
        vectors,
        |index| {
            for round in 0..UNROLL {
                put(index + round as u64 * threads, value.wrapping_add(step.wrapping_mul(round as u32)));
            }
            value = value.wrapping_add(step.wrapping_mul(UNROLL as u32));
        },
        |index| {
            for round in 0..UNROLL as u64 {
                let index = index + round * threads;
                if index < vectors {
                    put(index, word(args.seed, index * W as u64));
                }
            }
        },
    );
    each_byte_behind(args.bytes, 4 * W as u64, |offset| {
        // SAFETY: the kernel's contract.
        unsafe { args.destination.add(offset as usize).write(byte(args.seed, offset)) }
    });
    // SAFETY: the kernel's contract.
    unsafe { signal(args) };
}

/// Copies `source`, all loads of a round before its stores.
#[inline(always)]
unsafe fn copy<const W: usize>(args: &IpcArgs) {
    let (threads, vectors) = (grid_threads(), args.bytes / (4 * W as u64));
    let (source, target) = (args.source.cast::<u32>(), args.destination.cast::<u32>());
    // SAFETY: the kernel's contract; callers stay below the number of vectors.
    let get = |index: u64| unsafe { load_words::<W>(source.add(index as usize * W)) };
    // SAFETY: as above.
    let put = |index: u64, words: [u32; W]| unsafe { store_words(target.add(index as usize * W), words) };
    each_round(
        vectors,
        |index| {
            let mut held = [[0; W]; UNROLL];
            for (round, held) in held.iter_mut().enumerate() {
                *held = get(index + round as u64 * threads);
            }
            for (round, held) in held.iter().enumerate() {
                put(index + round as u64 * threads, *held);
            }
        },
        |index| {
            let mut held = [[0; W]; UNROLL];
            for (round, held) in held.iter_mut().enumerate() {
                if index + (round as u64) * threads < vectors {
                    *held = get(index + round as u64 * threads);
                }
            }
            for (round, held) in held.iter().enumerate() {
                if index + (round as u64) * threads < vectors {
                    put(index + round as u64 * threads, *held);
                }
            }
        },
    );
    each_byte_behind(args.bytes, 4 * W as u64, |offset| {
        // SAFETY: the kernel's contract.
        unsafe { args.destination.add(offset as usize).write(args.source.add(offset as usize).read()) }
    });
    // SAFETY: the kernel's contract.
    unsafe { signal(args) };
}

/// Reads `source`; every thread leaves the sum of what it read, without which the loads would be nobody's and left out.
#[inline(always)]
unsafe fn read<const W: usize>(args: &IpcArgs) {
    let (threads, vectors) = (grid_threads(), args.bytes / (4 * W as u64));
    let source = args.source.cast::<u32>();
    // SAFETY: the kernel's contract; callers stay below the number of vectors.
    let get = |index: u64| unsafe { load_words::<W>(source.add(index as usize * W)) };
    let all = |words: [u32; W]| words.iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
    let (mut sum, mut last) = (0u32, 0u32);
    each_round(
        vectors,
        |index| {
            let mut held = [[0; W]; UNROLL];
            for (round, held) in held.iter_mut().enumerate() {
                *held = get(index + round as u64 * threads);
            }
            for held in &held {
                sum = sum.wrapping_add(all(*held));
            }
        },
        |index| {
            let mut held = [[0; W]; UNROLL];
            for (round, held) in held.iter_mut().enumerate() {
                if index + (round as u64) * threads < vectors {
                    *held = get(index + round as u64 * threads);
                }
            }
            for held in &held {
                last = last.wrapping_add(all(*held));
            }
        },
    );
    // The ends: whole words behind the last vector, then single bytes, as `ipc::sum` counts them.
    let mut behind = 0u32;
    each_byte_behind(args.bytes, 4 * W as u64, |offset| {
        // SAFETY: the kernel's contract.
        let value = unsafe { args.source.add(offset as usize).read() } as u32;
        let in_word = offset < args.bytes / 4 * 4;
        behind = behind.wrapping_add(if in_word { value << (offset % 4 * 8) } else { value });
    });
    let sum = sum.wrapping_add(last).wrapping_add(behind);
    // SAFETY: one sum per thread of the grid, contract of the kernel.
    unsafe { args.sums.add(this_thread() as usize).write(sum) };
}

/// Defines the kernels of one operation, one for each width.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident = $body:ident $words:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// What is read and written is valid for `bytes` while the grid runs, nobody else writes it, and nobody else reads
        /// what is written; `counter` and `flag` as [`signal`] wants them; `sums` for every thread of the grid.
        #[kernel]
        pub unsafe fn $name(args: IpcArgs) {
            // SAFETY: contract of the kernel.
            unsafe { $body::<$words>(&args) };
        }
    )*};
}

kernels! {
    /// Writes the pattern, 4 bytes a store.
    ipc_write_4 = write 1;
    /// Writes the pattern, 8 bytes a store.
    ipc_write_8 = write 2;
    /// Writes the pattern, 16 bytes a store.
    ipc_write_16 = write 4;
    /// Copies, 4 bytes a load and a store.
    ipc_copy_4 = copy 1;
    /// Copies, 8 bytes a load and a store.
    ipc_copy_8 = copy 2;
    /// Copies, 16 bytes a load and a store.
    ipc_copy_16 = copy 4;
    /// Reads, 4 bytes a load.
    ipc_read_4 = read 1;
    /// Reads, 8 bytes a load.
    ipc_read_8 = read 2;
    /// Reads, 16 bytes a load.
    ipc_read_16 = read 4;
}

/// The loop of ginlab's C++ predecessor (Libefaxx): a word of 4 bytes at a time, nothing unrolled by hand, and a system fence by
/// every thread at the end. Its words are the pattern's, so that they are checked like the others.
///
/// # Safety
/// As [`ipc_write_4`].
#[kernel]
pub unsafe fn ipc_int_loop(args: IpcArgs) {
    let (mut index, threads, count) = (this_thread(), grid_threads(), args.bytes / 4);
    let target = args.destination.cast::<u32>();
    while index < count {
        // SAFETY: contract of the kernel.
        unsafe { store_words(target.add(index as usize), [word(args.seed, index)]) };
        index += threads;
    }
    each_byte_behind(args.bytes, 4, |offset| {
        // SAFETY: contract of the kernel.
        unsafe { args.destination.add(offset as usize).write(byte(args.seed, offset)) }
    });
    fence_acq_rel_sys();
    // SAFETY: contract of the kernel.
    unsafe { signal(&args) };
}

/// Fills `destination` with the pattern under `xor`: sources, and the poison of destinations.
///
/// # Safety
/// As [`ipc_write_4`].
#[kernel]
pub unsafe fn ipc_fill(args: IpcArgs) {
    let (mut index, threads) = (this_thread(), grid_threads());
    let target = args.destination.cast::<u32>();
    while index < args.bytes / 4 {
        // SAFETY: contract of the kernel.
        unsafe { store_words(target.add(index as usize), [word(args.seed, index) ^ args.xor]) };
        index += threads;
    }
    each_byte_behind(args.bytes, 4, |offset| {
        // SAFETY: contract of the kernel.
        unsafe { args.destination.add(offset as usize).write(byte(args.seed, offset) ^ args.xor as u8) }
    });
}

/// Adds the number of bytes of `destination` that differ from the pattern to `counter`.
///
/// # Safety
/// `destination` is valid for `bytes`, and nobody writes it meanwhile; `counter` is valid.
#[kernel]
pub unsafe fn ipc_check(args: IpcArgs) {
    let (mut index, threads) = (this_thread(), grid_threads());
    let found = args.destination.cast::<u32>();
    let mut wrong = 0u64;
    while index < args.bytes / 4 {
        // SAFETY: contract of the kernel.
        let [value] = unsafe { load_words::<1>(found.add(index as usize)) };
        let difference = value ^ word(args.seed, index);
        for byte in 0..4 {
            wrong += (difference >> (byte * 8) & 0xFF != 0) as u64;
        }
        index += threads;
    }
    each_byte_behind(args.bytes, 4, |offset| {
        // SAFETY: contract of the kernel.
        let value = unsafe { args.destination.add(offset as usize).read() };
        wrong += (value != byte(args.seed, offset)) as u64;
    });
    if wrong > 0 {
        // SAFETY: contract of the kernel.
        fetch_add_relaxed_gpu_u64(unsafe { &*args.counter }, wrong);
    }
}

/// What poison and pattern have in common: no byte.
const _: () = assert!(POISON & 0xFF != 0 && POISON == (POISON & 0xFF) * 0x0101_0101);
