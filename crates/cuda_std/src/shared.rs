//! Block-shared memory: on-chip memory that the threads of one block share.
//!
//! Each block has its own, with nothing in it that it may rely on. What a thread writes there the others see behind a block
//! barrier ([`crate::thread::sync_threads`]); a warp, behind [`crate::warp::synchronize`].

#[cfg(not(target_arch = "nvptx64"))]
use crate::emulation;

// As long as the launch says. Declared here and not in a function, where ptxas takes no shared memory.
#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 16 .b8 cuda_std_dynamic[];");

/// Shared memory whose length the launch chooses (`Function::with_shared_memory` of host/cuda); up to 227 KB of a block on an H100.
///
/// It is reached by addresses of 32 bits, which take half the registers. An address is given by [`at`](Dynamic::at) once and then counted
/// on from: in a loop each access is one instruction.
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

    /// The address of its byte `offset`. All lanes of a full warp call it together: the driver's compiler is not to know what the address is
    /// made of. Where registers are scarce it makes it again for each access, from the block's window and the thread's number, which
    /// takes longer than the access (ptxas 13, a kernel of 64 registers).
    #[inline(always)]
    pub fn at(self, offset: u32) -> u32 {
        #[cfg(target_arch = "nvptx64")]
        {
            // SAFETY: reads an address.
            let first: u32 =
                unsafe { written!(reg32, "mov.u32 {out}, cuda_std_dynamic;", options(pure, nomem, nostack)) };
            crate::warp::shuffle_f32(u32::MAX, f32::from_bits(first + offset), crate::warp::lane()).to_bits()
        }
        #[cfg(not(target_arch = "nvptx64"))]
        offset
    }

    /// Loads `W` words of 4 bytes (1 or 4) from an address on, by one instruction.
    ///
    /// # Safety
    /// They lie in the block's memory, the address is a multiple of their length, and nobody writes them meanwhile.
    #[inline(always)]
    pub unsafe fn load<const W: usize>(self, address: u32) -> [u32; W] {
        const { assert!(W == 1 || W == 4) };
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            let mut words = [0; W];
            if W == 1 {
                core::arch::asm!("ld.shared.b32 {a}, [{address}];", address = in(reg32) address, a = out(reg32) words[0], options(nostack));
            } else {
                core::arch::asm!("ld.shared.v4.b32 {{{a}, {b}, {c}, {d}}}, [{address}];", address = in(reg32) address,
                     a = out(reg32) words[0], b = out(reg32) words[1], c = out(reg32) words[2], d = out(reg32) words[3],
                     options(nostack));
            }
            words
        }
        #[cfg(not(target_arch = "nvptx64"))]
        // SAFETY: the caller's contract.
        unsafe {
            self.words::<W>(address).read()
        }
    }

    /// Stores `W` words of 4 bytes (1 or 4) from an address on, by one instruction.
    ///
    /// # Safety
    /// They lie in the block's memory, the address is a multiple of their length, and nobody else accesses them meanwhile.
    #[inline(always)]
    pub unsafe fn store<const W: usize>(self, address: u32, words: [u32; W]) {
        const { assert!(W == 1 || W == 4) };
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            if W == 1 {
                core::arch::asm!("st.shared.b32 [{address}], {a};", address = in(reg32) address, a = in(reg32) words[0], options(nostack));
            } else {
                core::arch::asm!("st.shared.v4.b32 [{address}], {{{a}, {b}, {c}, {d}}};", address = in(reg32) address,
                     a = in(reg32) words[0], b = in(reg32) words[1], c = in(reg32) words[2], d = in(reg32) words[3],
                     options(nostack));
            }
        }
        #[cfg(not(target_arch = "nvptx64"))]
        // SAFETY: the caller's contract.
        unsafe {
            self.words::<W>(address).write(words);
        }
    }

    /// Where `W` words of the block's memory lie, which are inside it.
    #[cfg(not(target_arch = "nvptx64"))]
    fn words<const W: usize>(self, address: u32) -> *mut [u32; W] {
        assert!(
            address + 4 * W as u32 <= self.bytes,
            "{W} words at {address} of {} bytes of shared memory",
            self.bytes
        );
        // SAFETY: inside, as asserted.
        unsafe { self.first.add(address as usize).cast() }
    }

    /// As [`store`](Dynamic::store) of one word, where `condition` is not 0: by a predicate and no branch.
    ///
    /// # Safety
    /// As [`store`](Dynamic::store), where it stores.
    #[inline(always)]
    pub unsafe fn store_if(self, condition: u32, address: u32, word: u32) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's contract.
        unsafe {
            core::arch::asm!("{{ .reg .pred is; setp.ne.u32 is, {condition}, 0; @is st.shared.b32 [{address}], {word}; }}",
                 condition = in(reg32) condition, address = in(reg32) address, word = in(reg32) word, options(nostack));
        }
        #[cfg(not(target_arch = "nvptx64"))]
        if condition != 0 {
            // SAFETY: the caller's contract.
            unsafe { self.store(address, [word]) };
        }
    }
}
