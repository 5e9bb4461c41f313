//! Barriers between a CPU and a NIC, as in rdma-core (util/udma_barrier.h). A NIC's windows are write-combining memory.
//! On aarch64 a NIC is also outside the domain that is ordered by the fences of the language's memory model.

#[cfg(target_arch = "aarch64")]
use std::arch::asm;
#[cfg(not(target_arch = "aarch64"))]
use std::sync::atomic::{Ordering, fence};

/// Flushes stores to a NIC's window, before their doorbell is rung (`mmio_flush_writes`).
#[inline]
pub(super) fn flush_stores() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither registers nor memory.
    unsafe {
        asm!("dsb st", options(nostack, preserves_flags));
    }
    // A full fence: on x86, no weaker fence flushes the write-combining buffers.
    #[cfg(not(target_arch = "aarch64"))]
    fence(Ordering::SeqCst);
}

/// Orders a doorbell before later stores to a NIC's window (`mmio_wc_start`).
#[inline]
pub(super) fn start_stores() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither registers nor memory.
    unsafe {
        asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    fence(Ordering::SeqCst);
}

/// Orders a load of data that a NIC has written before later loads (`udma_from_device_barrier`).
#[inline]
pub(super) fn acquire_loads() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither registers nor memory.
    unsafe {
        asm!("dmb oshld", options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "aarch64"))]
    fence(Ordering::Acquire);
}
