//! Bulk stores: the copy unit of a multiprocessor (TMA, compute capability 9.0 and later) writes shared memory to global memory
//! by itself. Only in modules that are compiled for such GPUs (feature `bulk`); the emulated device has no such unit.

use core::arch::{asm, global_asm};

/// Bytes of the stage, the shared memory of each block that bulk stores read from: all that a kernel gets without asking.
pub const STAGE_BYTES: u32 = 48 * 1024;

// Declared here and not in a function, where ptxas takes no shared memory.
global_asm!(".shared .align 128 .b8 cuda_std_stage[49152];");

/// Stores 16 bytes into the stage at `offset`.
///
/// # Safety
/// `offset` is a multiple of 16 below [`STAGE_BYTES`], and no bulk store still reads the bytes.
#[inline(always)]
pub unsafe fn fill_stage(offset: u32, words: [u32; 4]) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("{{ .reg .b32 at; mov.u32 at, cuda_std_stage; add.u32 at, at, {offset}; st.shared.v4.b32 [at], {{{a}, {b}, {c}, {d}}}; }}",
             offset = in(reg32) offset, a = in(reg32) words[0], b = in(reg32) words[1], c = in(reg32) words[2],
             d = in(reg32) words[3], options(nostack));
    }
}

/// `fence.proxy.async.shared::cta`: what this thread wrote to the stage is there for a bulk store that any thread of the block
/// starts after a barrier.
#[inline(always)]
pub fn fence_proxy_async_stage() {
    // SAFETY: a fence touches no memory of ours.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) };
}

/// `fence.proxy.async.global`: orders bulk stores that this thread has waited for and its own accesses to global memory.
#[inline(always)]
pub fn fence_proxy_async_global() {
    // SAFETY: as above.
    unsafe { asm!("fence.proxy.async.global;", options(nostack)) };
}

/// `cp.async.bulk.global.shared::cta.bulk_group`: starts one bulk store from the stage, in a group of its own.
///
/// # Safety
/// `destination` is global memory, valid for `bytes`; address, offset and bytes are multiples of 16. The stage's bytes stay
/// until [`wait_stage_read`] says that they were read.
#[inline(always)]
pub unsafe fn store_bulk(destination: *mut u8, offset: u32, bytes: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("{{ .reg .b32 at; mov.u32 at, cuda_std_stage; add.u32 at, at, {offset}; cp.async.bulk.global.shared::cta.bulk_group [{destination}], [at], {bytes}; }}",
             destination = in(reg64) destination, offset = in(reg32) offset, bytes = in(reg32) bytes, options(nostack));
        asm!("cp.async.bulk.commit_group;", options(nostack));
    }
}

/// Waits until at most `PENDING` of this thread's bulk stores still read the stage.
#[inline(always)]
pub fn wait_stage_read<const PENDING: u32>() {
    // SAFETY: waits, touches nothing. It ends: the copy unit needs nobody's help.
    unsafe { asm!("cp.async.bulk.wait_group.read {pending};", pending = const PENDING, options(nostack)) };
}

/// Waits until all of this thread's bulk stores are done and their writes visible to it.
#[inline(always)]
pub fn wait_bulk() {
    // SAFETY: as above.
    unsafe { asm!("cp.async.bulk.wait_group 0;", options(nostack)) };
}
