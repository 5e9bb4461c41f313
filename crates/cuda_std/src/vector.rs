//! Plain loads and stores of 4, 8 and 16 bytes, each exactly one instruction.
//!
//! LLVM joins and splits ordinary accesses as it likes; a kernel that studies their width must not leave it to that. These are
//! weak accesses of the memory model: they order nothing.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// Stores `W` words of 4 bytes (1, 2 or 4) by one `st.global`.
///
/// # Safety
/// `address` is global memory, valid for the store, and a multiple of its width; nobody else accesses it meanwhile.
#[inline(always)]
pub unsafe fn store_words<const W: usize>(address: *mut u32, words: [u32; W]) {
    const { assert!(W == 1 || W == 2 || W == 4) };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
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
    // SAFETY: the caller's contract.
    unsafe {
        address.cast::<[u32; W]>().write(words)
    }
}

/// Loads `W` words of 4 bytes (1, 2 or 4) by one `ld.global`. Loads stay in the order they are written in, and are not put
/// off until their values are needed.
///
/// # Safety
/// `address` is global memory, valid for the load, and a multiple of its width; nobody writes it meanwhile.
#[inline(always)]
pub unsafe fn load_words<const W: usize>(address: *const u32) -> [u32; W] {
    const { assert!(W == 1 || W == 2 || W == 4) };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
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
    // SAFETY: the caller's contract.
    unsafe {
        address.cast::<[u32; W]>().read()
    }
}

/// As [`store_words`] of four words, where `condition` is not 0: by a predicate and no branch, behind which a warp must meet again.
///
/// # Safety
/// As [`store_words`], where it stores.
#[inline(always)]
pub unsafe fn store_words_if(condition: u32, address: *mut u32, words: [u32; 4]) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        asm!("{{ .reg .pred is; setp.ne.u32 is, {condition}, 0; @is st.global.v4.b32 [{address}], {{{a}, {b}, {c}, {d}}}; }}",
             condition = in(reg32) condition, address = in(reg64) address, a = in(reg32) words[0], b = in(reg32) words[1],
             c = in(reg32) words[2], d = in(reg32) words[3], options(nostack));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    if condition != 0 {
        // SAFETY: the caller's contract.
        unsafe { store_words(address, words) };
    }
}

/// As [`load_words`] of one word, where `condition` is not 0, and 0 otherwise: by a predicate and no branch.
///
/// # Safety
/// As [`load_words`], where it loads.
#[inline(always)]
pub unsafe fn load_word_if(condition: u32, address: *const u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the caller's contract.
    unsafe {
        written!(reg32, "{{ .reg .pred is; setp.ne.u32 is, {condition}, 0; mov.b32 {out}, 0; @is ld.global.b32 {out}, [{address}]; }}",
                 condition = in(reg32) condition, address = in(reg64) address, options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        // SAFETY: the caller's contract.
        let load = || unsafe { load_words::<1>(address) };
        if condition != 0 { load()[0] } else { 0 }
    }
}

/// The value, of which the optimiser then knows nothing. A sum that is carried through an unrolled loop stays a sum: LLVM would
/// make a product of each step and compute them all before the loop, which a short kernel spends more time on than on its loop.
#[inline(always)]
pub fn opaque_u64(value: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a copy from register to register, which ptxas leaves out.
    unsafe {
        written!(reg64, "mov.b64 {out}, {value};", value = in(reg64) value, options(pure, nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}

/// As [`opaque_u64`].
#[inline(always)]
pub fn opaque_u32(value: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: as above.
    unsafe {
        written!(reg32, "mov.b32 {out}, {value};", value = in(reg32) value, options(pure, nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}

/// The value, which the optimiser takes for another one at each call. What is made of it inside a loop is made there, where it is needed:
/// otherwise all ways that a loop may take have their addresses computed before it, by a kernel that takes one way once.
#[inline(always)]
pub fn fresh_u64(value: u64) -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: a copy from register to register. Not `pure`: it stays where it is written.
    unsafe {
        written!(reg64, "mov.b64 {out}, {value};", value = in(reg64) value, options(nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}

/// As [`fresh_u64`].
#[inline(always)]
pub fn fresh_u32(value: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: as above.
    unsafe {
        written!(reg32, "mov.b32 {out}, {value};", value = in(reg32) value, options(nomem, nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    value
}
