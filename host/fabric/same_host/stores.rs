//! Kinds of copies, selected by the next reader of the bytes: a core or a GPU.

/// The kind of stores that copy threads use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// Ordinary stores, as `memmove` uses. Bytes that are soon written again are still in the core's cache.
    Cached,
    /// Non-temporal stores, which bypass the caches. A GPU that reads bytes that are modified in a core's private cache
    /// waits for that core. This reduces its read bandwidth to half or less (experiments/nccl/caches.cu).
    Streamed,
}

impl Stores {
    /// Copies `bytes` bytes.
    ///
    /// # Safety
    /// The requirements of [`std::ptr::copy`] must hold. For [`Stores::Streamed`] the ranges must not overlap, or must
    /// be identical.
    pub unsafe fn copy(self, source: *const u8, target: *mut u8, bytes: usize) {
        // SAFETY: the caller upholds the requirements of both copies.
        unsafe {
            match self {
                Stores::Cached => std::ptr::copy(source, target, bytes),
                Stores::Streamed => streamed(source, target, bytes),
            }
        }
    }
}

/// Copies with non-temporal stores.
///
/// # Safety
/// The requirements of [`Stores::copy`] must hold.
#[cfg(target_arch = "x86_64")]
unsafe fn streamed(source: *const u8, target: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_setzero_si128, _mm_sfence, _mm_stream_si128};
    /// Size of a cache line, and number of its vectors.
    const LINE: usize = 64;
    const VECTORS: usize = LINE / size_of::<__m128i>();
    // Copies only whole lines this way: a partial line that bypasses the cache is written to memory twice.
    let before = target.align_offset(LINE).min(bytes);
    let whole = (bytes - before) / LINE * LINE;
    let mut at = before;
    // SAFETY: the caller guarantees that both ranges are valid, and each line of the target is aligned to its size.
    // SSE2 is part of x86-64.
    unsafe {
        std::ptr::copy(source, target, before);
        while at < before + whole {
            let mut line = [_mm_setzero_si128(); VECTORS];
            for (index, vector) in line.iter_mut().enumerate() {
                *vector = _mm_loadu_si128(source.add(at).cast::<__m128i>().add(index));
            }
            for (index, vector) in line.iter().enumerate() {
                _mm_stream_si128(target.add(at).cast::<__m128i>().add(index), *vector);
            }
            at += LINE;
        }
        std::ptr::copy(source.add(at), target.add(at), bytes - at);
        // Non-temporal stores are not ordered with later stores. After this fence, a thread that acquires the caller's
        // next release observes them.
        _mm_sfence();
    }
}

/// Copies with ordinary stores.
///
/// # Safety
/// The requirements of [`Stores::copy`] must hold.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn streamed(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller upholds the requirements of `std::ptr::copy`.
    unsafe { std::ptr::copy(source, target, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_copied_and_no_other(
            bytes in 0usize..700, from in 0usize..80, to in 0usize..80, streamed in any::<bool>(),
        ) {
            let source: Vec<u8> = (0..1024u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8 | 1).collect();
            let mut target = vec![0u8; 1024];
            let stores = if streamed { Stores::Streamed } else { Stores::Cached };
            // SAFETY: both ranges are in bounds.
            unsafe { stores.copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), bytes) };
            prop_assert_eq!(&target[to..to + bytes], &source[from..from + bytes]);
            prop_assert!(target[..to].iter().chain(&target[to + bytes..]).all(|byte| *byte == 0));
        }
    }
}
