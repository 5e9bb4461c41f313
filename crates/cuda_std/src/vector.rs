//! Ordinary loads and stores of 4, 8 and 16 bytes, each exactly one instruction.
//!
//! LLVM merges and splits ordinary accesses freely, which a kernel that studies access widths must prevent. These are
//! weak accesses of the memory model: they order nothing.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Stores `W` 4-byte words (1, 2 or 4) by one `st.global`.
///
/// # Safety
/// `address` must be global memory, valid for the store, and a multiple of its width. No other thread may access the
/// words concurrently.
#[inline(always)]
pub unsafe fn store_words<const W: usize>(address: *mut u32, words: [u32; W]) {
    const { assert!(W == 1 || W == 2 || W == 4) };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller guarantees that `address` is valid and aligned, and that no other thread accesses the words.
    unsafe {
        match W {
            1 => asm!("st.global.b32 [{address}], {a};", address = in(reg64) address, a = in(reg32) words[0],
                      options(nostack)),
            2 => asm!("st.global.v2.b32 [{address}], {{{a}, {b}}};", address = in(reg64) address,
                      a = in(reg32) words[0], b = in(reg32) words[1], options(nostack)),
            _ => asm!("st.global.v4.b32 [{address}], {{{a}, {b}, {c}, {d}}};", address = in(reg64) address,
                      a = in(reg32) words[0], b = in(reg32) words[1], c = in(reg32) words[2], d = in(reg32) words[3],
                      options(nostack)),
        }
    }
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the caller guarantees that `address` is valid and aligned, and that no other thread accesses the words.
    unsafe {
        address.cast::<[u32; W]>().write(words)
    }
}

/// Loads `W` 4-byte words (1, 2 or 4) by one `ld.global`. The compiler neither reorders these loads among each other
/// nor delays them until their values are needed.
///
/// # Safety
/// `address` must be global memory, valid for the load, and a multiple of its width. No thread may write the words
/// concurrently.
#[inline(always)]
pub unsafe fn load_words<const W: usize>(address: *const u32) -> [u32; W] {
    const { assert!(W == 1 || W == 2 || W == 4) };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller guarantees that `address` is valid and aligned, and that no thread writes the words.
    unsafe {
        let mut words = [0; W];
        match W {
            1 => asm!("ld.global.b32 {a}, [{address}];", address = in(reg64) address, a = out(reg32) words[0],
                      options(nostack)),
            2 => asm!("ld.global.v2.b32 {{{a}, {b}}}, [{address}];", address = in(reg64) address,
                      a = out(reg32) words[0], b = out(reg32) words[1], options(nostack)),
            _ => asm!("ld.global.v4.b32 {{{a}, {b}, {c}, {d}}}, [{address}];", address = in(reg64) address,
                      a = out(reg32) words[0], b = out(reg32) words[1], c = out(reg32) words[2],
                      d = out(reg32) words[3], options(nostack)),
        }
        words
    }
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the caller guarantees that `address` is valid and aligned, and that no thread writes the words.
    unsafe {
        address.cast::<[u32; W]>().read()
    }
}

/// Like [`load_words`], but only the bytes in `begin..end` are used, and the others may be written concurrently.
///
/// # Safety
/// `address` must be a multiple of the width, and the words must hold at least one byte of `begin..end`, which must be
/// global memory, valid for loads. No thread may write these bytes concurrently. A GPU maps whole pages, so words that
/// share a page with a valid byte can be loaded.
#[inline(always)]
pub unsafe fn load_words_of<const W: usize>(address: *const u32, (begin, end): (u64, u64)) -> [u32; W] {
    // A GPU loads bytes independently of their neighbours.
    #[cfg(target_arch = "nvptx64")]
    {
        let _ = (begin, end);
        // SAFETY: the words are in the page of a valid byte; the values of other bytes are not used.
        unsafe { load_words(address) }
    }
    // In Rust's memory model, loading a byte that another thread writes is a data race.
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let at = address as u64;
        if begin <= at && at + 4 * W as u64 <= end {
            // SAFETY: all bytes are in the range that the caller guarantees.
            return unsafe { load_words(address) };
        }
        // SAFETY: only bytes of the range are read.
        let byte = |at: u64| if (begin..end).contains(&at) { unsafe { *(at as *const u8) } } else { 0 };
        core::array::from_fn(|word| {
            u32::from_le_bytes(core::array::from_fn(|place| byte(at + 4 * word as u64 + place as u64)))
        })
    }
}

/// Loads one byte by one `ld.global`, ordered among the other loads of this module like [`load_words`].
///
/// # Safety
/// `address` must be global memory and valid for the load. No thread may write the byte concurrently.
#[inline(always)]
pub unsafe fn load_byte(address: *const u8) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller guarantees that `address` is valid and that no thread writes the byte.
    unsafe {
        written!(reg32, "ld.global.u8 {out}, [{address}];", address = in(reg64) address, options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    // SAFETY: the caller guarantees that `address` is valid and that no thread writes the byte.
    unsafe {
        address.read() as u32
    }
}

/// Like [`store_words`] of four words, but only if `condition` is not 0. Uses a predicate instead of a branch, after
/// which a warp would have to reconverge.
///
/// # Safety
/// If `condition` is not 0, the requirements of [`store_words`] apply.
#[inline(always)]
pub unsafe fn store_words_if(condition: u32, address: *mut u32, words: [u32; 4]) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller meets the requirements of `store_words` if `condition` is not 0.
    unsafe {
        asm!("{{ .reg .pred is; setp.ne.u32 is, {condition}, 0; @is st.global.v4.b32 [{address}], {{{a}, {b}, {c}, {d}}}; }}",
             condition = in(reg32) condition, address = in(reg64) address, a = in(reg32) words[0], b = in(reg32) words[1],
             c = in(reg32) words[2], d = in(reg32) words[3], options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    if condition != 0 {
        // SAFETY: the caller meets the requirements of `store_words`.
        unsafe { store_words(address, words) };
    }
}

/// Like [`load_words`] of one word if `condition` is not 0; returns 0 otherwise. Uses a predicate instead of a branch.
///
/// # Safety
/// If `condition` is not 0, the requirements of [`load_words`] apply.
#[inline(always)]
pub unsafe fn load_word_if(condition: u32, address: *const u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller meets the requirements of `load_words` if `condition` is not 0.
    unsafe {
        written!(reg32, "{{ .reg .pred is; setp.ne.u32 is, {condition}, 0; mov.b32 {out}, 0; @is ld.global.b32 {out}, [{address}]; }}",
                 condition = in(reg32) condition, address = in(reg64) address, options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        // SAFETY: the call is made only if `condition` is not 0, and the caller then meets the requirements of
        // `load_words`.
        let load = || unsafe { load_words::<1>(address) };
        if condition != 0 { load()[0] } else { 0 }
    }
}

/// Returns the value, hidden from the optimizer. This preserves a sum that is carried through an unrolled loop.
/// Otherwise LLVM turns each step into a product and computes all of them before the loop, which takes a short kernel
/// longer than the loop.
#[inline(always)]
pub fn opaque_u64(value: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a register copy, which ptxas removes.
    unsafe {
        written!(reg64, "mov.b64 {out}, {value};", value = in(reg64) value, options(pure, nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}

/// Like [`opaque_u64`], for 32 bits.
#[inline(always)]
pub fn opaque_u32(value: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a register copy, which ptxas removes.
    unsafe {
        written!(reg32, "mov.b32 {out}, {value};", value = in(reg32) value, options(pure, nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}

/// Returns the value, which the optimizer assumes to differ on each call. Values derived from it inside a loop are
/// computed where they are used. Otherwise the addresses of all paths through the loop are computed before it, even in
/// a kernel that takes one path once.
#[inline(always)]
pub fn fresh_u64(value: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the instruction only copies a register. The assembly is not `pure`, so it stays where it is written.
    unsafe {
        written!(reg64, "mov.b64 {out}, {value};", value = in(reg64) value, options(nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}

/// Like [`fresh_u64`], for 32 bits.
#[inline(always)]
pub fn fresh_u32(value: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the instruction only copies a register. The assembly is not `pure`, so it stays where it is written.
    unsafe {
        written!(reg32, "mov.b32 {out}, {value};", value = in(reg32) value, options(nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}
