//! Overlapping grids of one stream: the next grid is scheduled while the previous one still runs (programmatic
//! dependent launch, compute capability 9.0 and later). A host that launches this way (`Stream::launch_early`) must
//! name kernels that call [`wait_for_grids_before`].
//!
//! In the PTX, the instructions follow the comment prefix [`LATER`], which hides them from older GPUs. The host removes
//! the prefix if the GPU supports them. Otherwise, and on the emulated device, a grid starts when the previous grid has
//! ended, and both functions do nothing.

/// Comment prefix that hides an instruction of compute capability 9.0 and later in PTX for older GPUs.
pub const LATER: &str = "//sm_90 ";

/// Waits until the preceding grids in the stream have ended and their writes are visible. Before this call, a kernel
/// that is launched early must not access memory that its predecessors read or write. It may read what the host has
/// uploaded.
#[inline(always)]
pub fn wait_for_grids_before() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: waits, and accesses no memory. The block clobbers memory for the compiler, so later accesses are not
    // moved before it.
    unsafe {
        core::arch::asm!("//sm_90 griddepcontrol.wait;", options(nostack));
    }
}

/// Allows the next grid to be scheduled once all blocks have called this function. Orders no memory: that grid still
/// waits for the end of this one.
#[inline(always)]
pub fn let_next_grid_begin() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: notifies the scheduler, and accesses no memory.
    unsafe {
        core::arch::asm!("//sm_90 griddepcontrol.launch_dependents;", options(nostack));
    }
}
