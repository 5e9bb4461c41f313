//! Block-shared memory: on-chip memory that the threads of one block share.
//!
//! A kernel that asks for it gets [`BYTES`], each block its own, with nothing in them that it may rely on. What a thread writes
//! there the others see behind a block barrier ([`crate::thread::sync_threads`]); a warp, behind
//! [`crate::warp::synchronize`].

#[cfg(not(target_arch = "nvptx64"))]
use crate::emulation;

/// Bytes of a block's shared memory.
pub const BYTES: usize = 16 * 1024;

// Declared here and not in a function, where ptxas takes no shared memory. A kernel that does not use it is given none.
#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".shared .align 16 .b8 cuda_std_shared[16384];");

/// The first of the block's [`BYTES`], aligned to 16.
#[inline(always)]
pub fn memory<T>() -> *mut T {
    #[cfg(target_arch = "nvptx64")]
    {
        let address: *mut T;
        // SAFETY: reads an address.
        unsafe {
            core::arch::asm!("{{ .reg .b64 at; mov.u64 at, cuda_std_shared; cvta.shared.u64 {address}, at; }}",
                 address = out(reg64) address, options(pure, nomem, nostack));
        }
        address
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let memory = emulation::shared_memory(BYTES / 16);
        memory.expect("a thread outside any grid has no block whose memory it could share").cast()
    }
}
