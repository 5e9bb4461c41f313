//! Grids of one stream that overlap: the next one comes onto the multiprocessors while the one before still runs (programmatic dependent
//! launch, compute capability 9.0 and later). A host that launches so (`Stream::launch_early`) names kernels that call
//! [`wait_for_grids_before`].
//!
//! The instructions stand in the PTX behind [`LATER`], a comment on older GPUs; the host takes it away where the GPU has them. Elsewhere, and
//! on the emulated device, a grid begins when the one before has ended, and both calls do nothing.

/// What hides an instruction of compute capability 9.0 and later in PTX for older ones.
pub const LATER: &str = "//sm_90 ";

/// Returns when the grids before this one in its stream have ended, and what they wrote is visible. A kernel that is launched early touches
/// nothing before that its predecessors write or read; what the host has uploaded, it may read.
#[inline(always)]
pub fn wait_for_grids_before() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: waits, touches nothing. It clobbers memory for the compiler: no access of behind is moved before.
    unsafe {
        core::arch::asm!("//sm_90 griddepcontrol.wait;", options(nostack));
    }
}

/// The grid behind this one may come onto the multiprocessors once all blocks have called this. It says nothing of memory: that grid waits
/// for the end of this one.
#[inline(always)]
pub fn let_next_grid_begin() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: tells the scheduler, touches nothing.
    unsafe {
        core::arch::asm!("//sm_90 griddepcontrol.launch_dependents;", options(nostack));
    }
}
