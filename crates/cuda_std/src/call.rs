//! Calls of functions that are rarely executed.

/// Returns `function` as an opaque address, for a call inside a loop that rarely makes it.
///
/// For a direct call, the GPU's assembler (ptxas) allocates the callee's registers freely, and the caller keeps no
/// values in them. Values that live across the call are therefore spilled where they are computed and reloaded where
/// they are used. The path without the call also bears this cost, and after an acquire each reload misses L1. A call by
/// address follows the calling convention, in which the callee saves the registers that it uses. (ptxas 13.0, sm_90, a
/// get by a block in a loop: 224 and 212 bytes of spills by name, none by address.)
#[inline(always)]
pub fn by_address<F: Copy>(function: F) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>(), "by_address is for pointers to functions") };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a function pointer has 8 bytes here, as asserted, and `opaque_u64` returns its value unchanged.
    unsafe {
        let address: u64 = core::mem::transmute_copy(&function);
        core::mem::transmute_copy(&crate::vector::opaque_u64(address))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    function
}
