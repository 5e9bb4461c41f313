//! Role 0 of a litmus test with bulk stores: the copy unit of the multiprocessor writes the payload (`cp.async.bulk`),
//! and the thread stores the signal. Part of the module of bulk stores, which requires compute capability 9.0 or later.

use crate::litmus::LitmusKernelArgs;
#[cfg(target_arch = "nvptx64")]
use crate::litmus::{Participant, run};
use cuda_std::kernel;
#[cfg(target_arch = "nvptx64")]
use cuda_std::{bulk::*, litmus::*, thread};

/// Size in bytes of each thread's part of the stage, for blocks of 384 threads.
pub const PART: u32 = 128;

/// Order between a bulk store and the signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum BulkOrder {
    /// No order: the signal is a relaxed store.
    Nothing,
    /// Wait until the bulk store has read its source, then store the signal with release semantics.
    SourceRead,
    /// Wait until the bulk store is complete, then store the signal with release semantics.
    Complete,
    /// Wait until the bulk store is complete, then execute `fence.proxy.async`, then store the signal with release
    /// semantics.
    CompleteFence,
    /// Like [`CompleteFence`](BulkOrder::CompleteFence), but without the fence between the stores to the stage and the
    /// bulk store that reads it.
    Unfenced,
}

/// Runs role 0 with bulk stores.
///
/// # Safety
/// The requirements of `litmus_threads` must hold, for blocks of at most 384 threads. The payload must be a multiple of
/// 2 words and at most [`PART`] bytes.
#[kernel(bulk, resident)]
pub unsafe fn litmus_bulk(args: LitmusKernelArgs) {
    // SAFETY: the caller guarantees that the pointers are valid.
    unsafe {
        run(&args, |mine, lane, round| {
            write(mine, lane, round);
            0
        })
    };
}

#[cfg(target_arch = "nvptx64")]
#[inline(always)]
unsafe fn write(mine: &Participant<'_>, lane: u32, round: u64) {
    let (args, value) = (mine.args(), Participant::value(round));
    let (low, high) = (value as u32, (value >> 32) as u32);
    let (part, bytes) = (thread::thread_idx_x() * PART, args.payload * 8);
    let mut offset = 0;
    while offset < bytes {
        // SAFETY: the part of this thread is in the stage, and the bulk store of the last round is complete.
        unsafe { fill_stage(part + offset, [low, high, low, high]) };
        offset += 16;
    }
    if args.order != BulkOrder::Unfenced as u32 {
        fence_proxy_async_stage();
    }
    // SAFETY: the caller guarantees that the locations are valid.
    let (payload, signal) = unsafe { (mine.word(0, lane, round), mine.word(1, lane, round)) };
    // SAFETY: the location has as many words as the payload, and is aligned to 128 bytes.
    unsafe { store_bulk(payload.cast_mut().cast(), part, bytes) };
    let order = match args.order {
        0 => AccessOrder::Nothing,
        1 => {
            wait_stage_read::<0>();
            AccessOrder::ReleaseAcquire
        }
        2 => {
            wait_bulk();
            AccessOrder::ReleaseAcquire
        }
        _ => {
            wait_bulk();
            fence_proxy_async_global();
            AccessOrder::ReleaseAcquire
        }
    };
    // SAFETY: the caller guarantees that the location is valid.
    let signal = unsafe { &*signal };
    pair(AccessPair::Write, MemoryScope::of(args.scope), order, [signal, signal], [value + 1, 0]);
    // This wait precedes the next filling of the stage, and the end of the round.
    wait_bulk();
    fence_proxy_async_global();
}
