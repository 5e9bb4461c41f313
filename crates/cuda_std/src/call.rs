//! Calls of functions that are seldom needed.

/// The function, by an address that nobody looks through, for a call out of a loop that mostly does not come to it.
///
/// The assembler of a GPU gives a function that is called by its name the registers it likes, and the caller keeps nothing in those: what lives
/// across the call is stored to local memory where it is made and loaded where it is used, also on the way that does not call, and behind an
/// acquire each of these loads misses L1. A call by address keeps to the calling convention, in which the callee saves what it
/// takes. (ptxas 13.0, sm_90, a get by a block in a loop: 224 and 212 bytes of spills by name, none by address.)
#[inline(always)]
pub fn by_address<F: Copy>(function: F) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>(), "by_address is for pointers to functions") };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a pointer has 8 bytes here, as asserted, and comes back as it was.
    unsafe {
        let address: u64 = core::mem::transmute_copy(&function);
        core::mem::transmute_copy(&crate::vector::opaque_u64(address))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    function
}
