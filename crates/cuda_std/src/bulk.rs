//! Bulk stores: the copy unit of a multiprocessor (TMA, compute capability 9.0 and later) asynchronously writes shared
//! memory to global memory. Available only in modules compiled for such GPUs (feature `bulk`); the emulated device has
//! no such unit.

use core::arch::{asm, global_asm};

/// Size in bytes of the stage, the shared memory of each block that bulk stores read from. This is the maximum that a
/// kernel gets without opting in to more.
pub const STAGE_BYTES: u32 = 48 * 1024;

// The memory is declared at module level, because ptxas rejects this declaration in a function.
global_asm!(".shared .align 128 .b8 cuda_std_stage[49152];");

/// Stores 16 bytes into the stage at `offset`.
///
/// # Safety
/// `offset` must be a multiple of 16 and below [`STAGE_BYTES`], and no bulk store may still be reading the bytes.
#[inline(always)]
pub unsafe fn fill_stage(offset: u32, words: [u32; 4]) {
    // SAFETY: the caller guarantees that `offset` is aligned and inside the stage, and that no bulk store reads it.
    unsafe {
        asm!("{{ .reg .b32 at; mov.u32 at, cuda_std_stage; add.u32 at, at, {offset}; st.shared.v4.b32 [at], {{{a}, {b}, {c}, {d}}}; }}",
             offset = in(reg32) offset, a = in(reg32) words[0], b = in(reg32) words[1], c = in(reg32) words[2],
             d = in(reg32) words[3], options(nostack));
    }
}

/// `fence.proxy.async.shared::cta`: makes this thread's writes to the stage visible to bulk stores that any thread of
/// the block starts after a subsequent barrier.
#[inline(always)]
pub fn fence_proxy_async_stage() {
    // SAFETY: a fence accesses no memory.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) };
}

/// `fence.proxy.async.global`: orders bulk stores that this thread has waited for with its own accesses to global
/// memory.
#[inline(always)]
pub fn fence_proxy_async_global() {
    // SAFETY: a fence accesses no memory.
    unsafe { asm!("fence.proxy.async.global;", options(nostack)) };
}

/// `cp.async.bulk.global.shared::cta.bulk_group`: starts one bulk store from the stage, in its own group.
///
/// # Safety
/// `destination` must be global memory and valid for `bytes`. The address, offset and size must be multiples of 16. The
/// bytes of the stage must not change until [`wait_stage_read`] reports that they have been read.
#[inline(always)]
pub unsafe fn store_bulk(destination: *mut u8, offset: u32, bytes: u32) {
    // SAFETY: the caller guarantees that both ranges are valid and aligned, and that the stage keeps its bytes.
    unsafe {
        asm!("{{ .reg .b32 at; mov.u32 at, cuda_std_stage; add.u32 at, at, {offset}; cp.async.bulk.global.shared::cta.bulk_group [{destination}], [at], {bytes}; }}",
             destination = in(reg64) destination, offset = in(reg32) offset, bytes = in(reg32) bytes, options(nostack));
        asm!("cp.async.bulk.commit_group;", options(nostack));
    }
}

/// Waits until at most `PENDING` of this thread's bulk stores are still reading the stage.
#[inline(always)]
pub fn wait_stage_read<const PENDING: u32>() {
    // SAFETY: accesses no memory. The wait terminates, because the copy unit needs no other thread to make progress.
    unsafe { asm!("cp.async.bulk.wait_group.read {pending};", pending = const PENDING, options(nostack)) };
}

/// Waits until all of this thread's bulk stores are complete and their writes are visible to it.
#[inline(always)]
pub fn wait_bulk() {
    // SAFETY: accesses no memory, and terminates like `wait_stage_read`.
    unsafe { asm!("cp.async.bulk.wait_group 0;", options(nostack)) };
}
