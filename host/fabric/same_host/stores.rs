//! Copies whose bytes a GPU reads next.

/// How movers store bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// As `memmove` does. What is written again soon is still in the cache of the thread's core.
    Cached,
    /// Past the caches. A GPU that reads what lies changed in a core's own cache waits for that core: 4 MiB that two threads had just copied went
    /// to the GPU at 18 to 29 GB/s, and at 51 where they had stored past their caches (H100; experiments/nccl/caches.cu).
    Streamed,
}

impl Stores {
    /// Copies.
    ///
    /// # Safety
    /// As [`std::ptr::copy`]; for [`Stores::Streamed`] the two do not overlap, or are the same.
    pub unsafe fn copy(self, source: *const u8, target: *mut u8, bytes: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Stores::Cached => std::ptr::copy(source, target, bytes),
                Stores::Streamed => streamed(source, target, bytes),
            }
        }
    }
}

/// # Safety
/// That of [`Stores::copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn streamed(source: *const u8, target: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_setzero_si128, _mm_sfence, _mm_stream_si128};
    /// A line of a cache, and its vectors.
    const LINE: usize = 64;
    const VECTORS: usize = LINE / size_of::<__m128i>();
    // Whole lines alone: a part of one that is stored so is written to memory twice.
    let before = target.align_offset(LINE).min(bytes);
    let whole = (bytes - before) / LINE * LINE;
    let mut at = before;
    // SAFETY: the caller's contract; each line of the target begins on a multiple of its length. SSE2 is part of x86-64.
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
        // Such stores are in no order with later ones: behind this they are seen by whoever acquires what the caller releases next.
        _mm_sfence();
    }
}

/// # Safety
/// That of [`Stores::copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn streamed(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract.
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
            // SAFETY: both are inside their memory.
            unsafe { stores.copy(source[from..].as_ptr(), target[to..].as_mut_ptr(), bytes) };
            prop_assert_eq!(&target[to..to + bytes], &source[from..from + bytes]);
            prop_assert!(target[..to].iter().chain(&target[to + bytes..]).all(|byte| *byte == 0));
        }
    }
}
