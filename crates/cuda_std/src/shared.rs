//! Block-shared memory: on-chip memory that the threads of one block share.
//!
//! Each block has its own; its initial content is undefined. A thread's writes are visible to the other threads of the
//! block after a block barrier ([`crate::thread::sync_threads`]), and to its warp after [`crate::warp::synchronize`].

#[cfg(not(target_arch = "nvptx64"))]
use crate::emulation;

// The launch specifies the length. The memory is declared at module level, because ptxas rejects this declaration in a
// function.
#[cfg(target_arch = "nvptx64")]
core::arch::global_asm!(".extern .shared .align 16 .b8 cuda_std_dynamic[];");

/// Shared memory whose length the launch specifies (`Function::with_shared_memory` of host/cuda), up to 227 KB per
/// block on an H100.
///
/// Accesses use 32-bit addresses, which need half the registers. Callers obtain an address once from
/// [`at`](Dynamic::at) and increment it, so that each access in a loop is one instruction.
#[derive(Clone, Copy, Debug)]
pub struct Dynamic {
    #[cfg(not(target_arch = "nvptx64"))]
    first: *mut u8,
    #[cfg(not(target_arch = "nvptx64"))]
    bytes: u32,
}

impl Dynamic {
    /// Returns this block's shared memory. `bytes` must be the length that the launch specifies.
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
                first: memory.expect("a thread outside a grid has no shared memory: it belongs to no block"),
                bytes,
            }
        }
    }

    /// Returns the address of byte `offset`. All lanes of a full warp must call it together.
    ///
    /// The shuffle hides from ptxas how the address is computed. If registers are scarce, ptxas would otherwise
    /// recompute it for each access from the block's window and the thread index. That takes longer than the access
    /// (ptxas 13, a kernel of 64 registers).
    #[inline(always)]
    pub fn at(self, offset: u32) -> u32 {
        #[cfg(target_arch = "nvptx64")]
        {
            // SAFETY: the instruction only reads the address of a symbol.
            let first: u32 =
                unsafe { written!(reg32, "mov.u32 {out}, cuda_std_dynamic;", options(pure, nomem, nostack)) };
            crate::warp::shuffle_f32(u32::MAX, f32::from_bits(first + offset), crate::warp::lane()).to_bits()
        }
        #[cfg(not(target_arch = "nvptx64"))]
        offset
    }

    /// Loads `W` 4-byte words (1 or 4) at `address` by one instruction.
    ///
    /// # Safety
    /// The words must be in the block's memory, `address` must be a multiple of their total size, and no thread may
    /// write them concurrently.
    #[inline(always)]
    pub unsafe fn load<const W: usize>(self, address: u32) -> [u32; W] {
        const { assert!(W == 1 || W == 4) };
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller guarantees that the words are in the block's memory, aligned and not being written.
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
        // SAFETY: the caller guarantees that the words are aligned and not being written; `words` checks the bounds.
        unsafe {
            self.words::<W>(address).read()
        }
    }

    /// Stores `W` 4-byte words (1 or 4) at `address` by one instruction.
    ///
    /// # Safety
    /// The words must be in the block's memory, `address` must be a multiple of their total size, and no other thread
    /// may access them concurrently.
    #[inline(always)]
    pub unsafe fn store<const W: usize>(self, address: u32, words: [u32; W]) {
        const { assert!(W == 1 || W == 4) };
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller guarantees that the words are in the block's memory, aligned and not accessed by other
        // threads.
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
        // SAFETY: the caller guarantees that the words are aligned and not accessed by other threads; `words` checks
        // the bounds.
        unsafe {
            self.words::<W>(address).write(words);
        }
    }

    /// Returns the address of `W` words of the block's memory. Panics if they are out of bounds.
    #[cfg(not(target_arch = "nvptx64"))]
    fn words<const W: usize>(self, address: u32) -> *mut [u32; W] {
        assert!(
            address + 4 * W as u32 <= self.bytes,
            "{W} words at {address} of {} bytes of shared memory",
            self.bytes
        );
        // SAFETY: in bounds, as asserted.
        unsafe { self.first.add(address as usize).cast() }
    }

    /// Like [`store`](Dynamic::store) of one word, but only if `condition` is not 0; uses a predicate instead of a
    /// branch.
    ///
    /// # Safety
    /// If `condition` is not 0, the requirements of [`store`](Dynamic::store) apply.
    #[inline(always)]
    pub unsafe fn store_if(self, condition: u32, address: u32, word: u32) {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller meets the requirements of `store` if `condition` is not 0.
        unsafe {
            core::arch::asm!("{{ .reg .pred is; setp.ne.u32 is, {condition}, 0; @is st.shared.b32 [{address}], {word}; }}",
                 condition = in(reg32) condition, address = in(reg32) address, word = in(reg32) word, options(nostack));
        }
        #[cfg(not(target_arch = "nvptx64"))]
        if condition != 0 {
            // SAFETY: the caller meets the requirements of `store`.
            unsafe { self.store(address, [word]) };
        }
    }
}
