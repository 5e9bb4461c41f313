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

// As long as the launch says.
#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 16 .b8 cuda_std_dynamic[];");

/// Shared memory whose length the launch chooses (`Function::with_shared_memory` of host/cuda); up to 227 KB of a block on an H100. It
/// is reached by offsets, since addresses of 32 bits take half the registers. A kernel that has it does not use [`memory`].
#[derive(Clone, Copy, Debug)]
pub struct Dynamic {
    #[cfg(not(target_arch = "nvptx64"))]
    first: *mut u8,
    #[cfg(not(target_arch = "nvptx64"))]
    bytes: u32,
}

impl Dynamic {
    /// This block's, of so many bytes: those of the launch.
    #[inline(always)]
    pub fn of_block(bytes: u32) -> Dynamic {
        #[cfg(target_arch = "nvptx64")]
        {
            let _ = bytes;
            Dynamic {}
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            let memory = emulation::shared_memory(bytes.div_ceil(16) as usize);
            Dynamic {
                first: memory.expect("a thread outside any grid has no block whose memory it could share"),
                bytes,
            }
        }
    }

    /// Loads `W` words of 4 bytes (1 or 4) from byte `at` on, by one instruction.
    ///
    /// # Safety
    /// They lie in the block's memory, `at` is a multiple of their length, and nobody writes them meanwhile.
    #[inline(always)]
    pub unsafe fn load<const W: usize>(self, at: u32) -> [u32; W] {
        const { assert!(W == 1 || W == 4) };
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            let mut words = [0; W];
            if W == 1 {
                core::arch::asm!("{{ .reg .b32 at; mov.u32 at, cuda_std_dynamic; add.u32 at, at, {at}; ld.shared.b32 {a}, [at]; }}",
                     at = in(reg32) at, a = out(reg32) words[0], options(nostack));
            } else {
                core::arch::asm!("{{ .reg .b32 at; mov.u32 at, cuda_std_dynamic; add.u32 at, at, {at}; ld.shared.v4.b32 {{{a}, {b}, {c}, {d}}}, [at]; }}",
                     at = in(reg32) at, a = out(reg32) words[0], b = out(reg32) words[1], c = out(reg32) words[2],
                     d = out(reg32) words[3], options(nostack));
            }
            words
        }
        #[cfg(not(target_arch = "nvptx64"))]
        // SAFETY: inside, as asserted; the rest is the caller's contract.
        unsafe {
            assert!(at + 4 * W as u32 <= self.bytes, "{W} words at {at} of {} bytes of shared memory", self.bytes);
            self.first.add(at as usize).cast::<[u32; W]>().read()
        }
    }

    /// Stores `W` words of 4 bytes (1 or 4) from byte `at` on, by one instruction.
    ///
    /// # Safety
    /// They lie in the block's memory, `at` is a multiple of their length, and nobody else accesses them meanwhile.
    #[inline(always)]
    pub unsafe fn store<const W: usize>(self, at: u32, words: [u32; W]) {
        const { assert!(W == 1 || W == 4) };
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            if W == 1 {
                core::arch::asm!("{{ .reg .b32 at; mov.u32 at, cuda_std_dynamic; add.u32 at, at, {at}; st.shared.b32 [at], {a}; }}",
                     at = in(reg32) at, a = in(reg32) words[0], options(nostack));
            } else {
                core::arch::asm!("{{ .reg .b32 at; mov.u32 at, cuda_std_dynamic; add.u32 at, at, {at}; st.shared.v4.b32 [at], {{{a}, {b}, {c}, {d}}}; }}",
                     at = in(reg32) at, a = in(reg32) words[0], b = in(reg32) words[1], c = in(reg32) words[2],
                     d = in(reg32) words[3], options(nostack));
            }
        }
        #[cfg(not(target_arch = "nvptx64"))]
        // SAFETY: inside, as asserted; the rest is the caller's contract.
        unsafe {
            assert!(at + 4 * W as u32 <= self.bytes, "{W} words at {at} of {} bytes of shared memory", self.bytes);
            self.first.add(at as usize).cast::<[u32; W]>().write(words);
        }
    }

    /// As [`load`](Dynamic::load) of one word, where `value` is `IS`, and 0 otherwise: by a predicate and no branch.
    ///
    /// # Safety
    /// As [`load`](Dynamic::load), where it loads.
    #[inline(always)]
    pub unsafe fn load_if<const IS: u32>(self, value: u32, at: u32) -> u32 {
        #[cfg(target_arch = "nvptx64")]
        {
            let word;
            // SAFETY: the caller's contract.
            unsafe {
                core::arch::asm!("{{ .reg .pred is; .reg .b32 at; setp.eq.u32 is, {value}, {is}; mov.u32 at, cuda_std_dynamic; add.u32 at, at, {at}; mov.b32 {word}, 0; @is ld.shared.b32 {word}, [at]; }}",
                     value = in(reg32) value, is = const IS, at = in(reg32) at, word = out(reg32) word, options(nostack));
            }
            word
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            // SAFETY: the caller's contract.
            let load = || unsafe { self.load::<1>(at) };
            if value == IS { load()[0] } else { 0 }
        }
    }

    /// As [`store`](Dynamic::store) of one word, where `value` is `IS`: by a predicate and no branch.
    ///
    /// # Safety
    /// As [`store`](Dynamic::store), where it stores.
    #[inline(always)]
    pub unsafe fn store_if<const IS: u32>(self, value: u32, at: u32, word: u32) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            core::arch::asm!("{{ .reg .pred is; .reg .b32 at; setp.eq.u32 is, {value}, {is}; mov.u32 at, cuda_std_dynamic; add.u32 at, at, {at}; @is st.shared.b32 [at], {word}; }}",
                 value = in(reg32) value, is = const IS, at = in(reg32) at, word = in(reg32) word, options(nostack));
        }
        #[cfg(not(target_arch = "nvptx64"))]
        if value == IS {
            // SAFETY: the caller's contract.
            unsafe { self.store(at, [word]) };
        }
    }
}
