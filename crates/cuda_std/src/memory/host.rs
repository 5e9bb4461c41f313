//! Accesses of CPU threads: a proxy, or a software NIC.

use super::{Doorbell, Word};
use super::{Ordering, fence};

/// Returns the value of a doorbell, for a software NIC: an acquire load by a CPU thread.
#[inline(always)]
pub fn load_acquire_host_u32(doorbell: &Doorbell) -> u32 {
    doorbell.0.load(Ordering::Acquire)
}

/// Release store by a CPU thread. Like `store_release_sys_u64`, but not an access of an emulated thread, so it skips
/// the lookup of the current emulated thread. In the proxy's loop, that lookup would considerably reduce the ring's
/// throughput.
#[inline(always)]
pub fn store_release_host_u64(word: &Word, value: u64) {
    word.0.store(value, Ordering::Release);
}

/// Acquire load by a CPU thread; see [`store_release_host_u64`].
#[inline(always)]
pub fn load_acquire_host_u64(word: &Word) -> u64 {
    word.0.load(Ordering::Acquire)
}

/// Relaxed load by a CPU thread; see [`store_release_host_u64`].
#[inline(always)]
pub fn load_relaxed_host_u64(word: &Word) -> u64 {
    word.0.load(Ordering::Relaxed)
}

/// Acquire and release fence of a CPU thread; see [`store_release_host_u64`].
#[inline(always)]
pub fn fence_acq_rel_host() {
    fence(Ordering::AcqRel);
}

/// Loads adjacent words by relaxed loads, for the CPU. Returns each word exclusive-or `flip`, and whether the top bit
/// of any result is set.
///
/// An even number of words, which must be aligned to 16 bytes, is loaded 16 bytes at a time if the CPU supports it. As
/// with the device's wide accesses, each word counts as a separate load, in no particular order.
#[inline(always)]
pub fn load_relaxed_sys_words<const N: usize>(words: &[Word; N], flip: u64) -> ([u64; N], bool) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    if N.is_multiple_of(2) {
        use core::arch::x86_64::{
            __m128i, _mm_castsi128_pd, _mm_movemask_pd, _mm_or_si128, _mm_set1_epi64x, _mm_setzero_si128, _mm_xor_si128,
        };
        debug_assert!(words.as_ptr().addr().is_multiple_of(16), "words that are aligned to 16 bytes");
        let mut values = [0u64; N];
        // SAFETY: every x86-64 CPU has SSE2. The pairs are within `words`, which is aligned to 16 bytes, and within
        // `values`. The load is inline assembly because other parties write these words.
        return unsafe {
            let flip = _mm_set1_epi64x(flip as i64);
            let mut any = _mm_setzero_si128();
            for pair in 0..N / 2 {
                let mut value: __m128i;
                core::arch::asm!("movdqa {value}, [{address}]", value = out(xmm_reg) value,
                     address = in(reg) words.as_ptr().add(2 * pair), options(nostack, preserves_flags, readonly));
                value = _mm_xor_si128(value, flip);
                any = _mm_or_si128(any, value);
                values.as_mut_ptr().add(2 * pair).cast::<__m128i>().write_unaligned(value);
            }
            (values, _mm_movemask_pd(_mm_castsi128_pd(any)) != 0)
        };
    }
    let values: [u64; N] = core::array::from_fn(|index| words[index].0.load(Ordering::Relaxed) ^ flip);
    (values, values.iter().any(|value| value >> 63 != 0))
}
