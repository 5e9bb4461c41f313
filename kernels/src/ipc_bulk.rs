//! Writing to another GPU's memory with bulk stores (TMA): the threads fill a stage in shared memory, and the SM's copy
//! unit stores it while they fill the next one. A separate PTX module, for compute capability 9.0 and later.
//!
//! ```text
//! threads: fill stage k   fill k+1   fill k+2   (wait until k is read)  fill k ...
//!   copy unit:              store k    store k+1  store k+2
//! ```

use crate::ipc::IpcKernelArgs;
#[cfg(target_arch = "nvptx64")]
use crate::ipc::{byte, each_tail_byte, signal, word, words};
#[cfg(target_arch = "nvptx64")]
use cuda_std::{bulk::*, thread, vector::load_words};

use cuda_std::kernel;

/// Number of stages of a block: one is filled while the others are read.
#[cfg(target_arch = "nvptx64")]
const STAGES: u32 = 3;
/// Number of bytes of one bulk store.
#[cfg(target_arch = "nvptx64")]
const CHUNK: u32 = STAGE_BYTES / STAGES;

/// Writes the destination chunk by chunk. `words_at` returns the four words at an index of 16-byte vectors, `byte_at`
/// the byte at an offset.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
unsafe fn stores(args: &IpcKernelArgs, words_at: impl Fn(u64) -> [u32; 4], byte_at: impl Fn(u64) -> u8) {
    let whole = args.bytes / 16 * 16;
    let leads = thread::thread_idx_x() == 0;
    let mut start = thread::block_idx_x() as u64 * CHUNK as u64;
    let mut stage = 0;
    while start < whole {
        // The copy unit has finished reading this stage when at most STAGES - 1 later stores are still reading theirs.
        if leads {
            wait_stage_read::<{ STAGES - 1 }>();
        }
        thread::sync_threads();
        let length = if whole - start < CHUNK as u64 { (whole - start) as u32 } else { CHUNK };
        let mut offset = thread::thread_idx_x() * 16;
        while offset < length {
            // SAFETY: the address is below the stage's end, and the copy unit has finished reading the stage.
            unsafe { fill_stage(stage * CHUNK + offset, words_at((start + offset as u64) / 16)) };
            offset += thread::block_dim_x() * 16;
        }
        // Each thread's words must be visible to the async proxy before the barrier.
        fence_proxy_async_stage();
        thread::sync_threads();
        if leads {
            // SAFETY: the caller guarantees that `bytes` bytes are valid; start and length are multiples of 16.
            unsafe { store_bulk(args.destination.add(start as usize), stage * CHUNK, length) };
        }
        stage = (stage + 1) % STAGES;
        start += thread::grid_dim_x() as u64 * CHUNK as u64;
    }
    each_tail_byte(args.bytes, 16, |offset| {
        // SAFETY: the caller guarantees that `bytes` bytes are valid, and `offset` is below `bytes`.
        unsafe { args.destination.add(offset as usize).write(byte_at(offset)) }
    });
    if leads {
        // This wait must precede the flag, and the reuse of the block's shared memory by another block.
        wait_bulk();
        fence_proxy_async_global();
    }
    // SAFETY: the caller guarantees that `counter` and `flag` are valid.
    unsafe { signal(args) };
}

/// Writes the pattern.
///
/// # Safety
/// The requirements of `ipc_write_16` must hold.
#[kernel(bulk)]
pub unsafe fn ipc_bulk_write(args: IpcKernelArgs) {
    // SAFETY: the caller guarantees that `bytes` bytes at the destination, `counter` and `flag` are valid.
    unsafe { stores(&args, |index| words(word(args.seed, index * 4)), |offset| byte(args.seed, offset)) };
}

/// Copies the source.
///
/// # Safety
/// The requirements of `ipc_copy_16` must hold.
#[kernel(bulk)]
pub unsafe fn ipc_bulk_copy(args: IpcKernelArgs) {
    let source = args.source.cast::<u32>();
    // SAFETY: the caller guarantees `bytes` bytes at source and destination; index and offset are within them.
    unsafe {
        stores(
            &args,
            |index| load_words(source.add(index as usize * 4)),
            |offset| args.source.add(offset as usize).read(),
        )
    };
}
