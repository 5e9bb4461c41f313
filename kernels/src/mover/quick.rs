//! Short copies to the host: each 8-byte word holds 4 bytes of data and a tag and is written by one store, so that no
//! mark is needed. A mark after a system-scope fence would take 0.6 us.

use crate::ring::CachePadded;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::memory::load_acquire_host_u64;
use cuda_std::memory::{Word, store_relaxed_sys_u64};

/// Maximum number of bytes of a short copy: one word per lane of a warp.
pub const QUICK: usize = 128;
/// Maximum number of short copies in flight.
pub const QUICKS: usize = 64;

/// Destination of a short copy. The initial memory is all zero.
pub type InlineCopy = CachePadded<[Word; QUICK / 4]>;

/// Returns the tag of short copy `number`. It differs from the tag of the previous copy to the same destination, and
/// from 0, the content of new memory.
#[cfg(not(target_arch = "nvptx64"))]
pub fn tag(number: u64) -> u32 {
    (number / QUICKS as u64 % u64::from(u32::MAX)) as u32 + 1
}

/// Performs the kernel's half of a short copy.
///
/// # Safety
/// `to` must be a multiple of 8 and valid for the words of `bytes` bytes; `from` must be valid for reads of `bytes`
/// bytes.
#[inline(always)]
pub(super) unsafe fn take(to: *const Word, from: *const u8, bytes: u32, tag: u32, me: u32) {
    let first = me * 4;
    if first >= bytes {
        return;
    }
    // SAFETY: `first` is below `bytes`.
    let from = unsafe { from.add(first as usize) };
    let mut word = 0;
    if from.addr().is_multiple_of(4) && first + 4 <= bytes {
        // SAFETY: four bytes are left, and the address is aligned. The poll that found this step has acquired the
        // preceding writes.
        word = unsafe { from.cast::<u32>().read() };
    } else {
        let mut index = 0;
        while index < 4 && first + index < bytes {
            // SAFETY: the index is below `bytes`.
            word |= u32::from(unsafe { from.add(index as usize).read() }) << (8 * index);
            index += 1;
        }
    }
    // SAFETY: the caller guarantees a word for every 4 bytes, and lane `me` has bytes.
    store_relaxed_sys_u64(unsafe { &*to.add(me as usize) }, u64::from(tag) << 32 | u64::from(word));
}

/// Performs the host's half of a short copy: stores its bytes once all of its words have the tag. Returns whether they
/// have it.
#[cfg(not(target_arch = "nvptx64"))]
pub fn collect(words: &[Word], tag: u32, bytes: &mut [u8]) -> bool {
    // Acquires every word, so that later actions of the host are ordered after the kernel's loads of the bytes.
    let is_here = |word: &Word| load_acquire_host_u64(word) >> 32 == u64::from(tag);
    if !words.iter().take(bytes.len().div_ceil(4)).all(is_here) {
        return false;
    }
    for (word, part) in words.iter().zip(bytes.chunks_mut(4)) {
        part.copy_from_slice(&(load_acquire_host_u64(word) as u32).to_le_bytes()[..part.len()]);
    }
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_are_complete_with_last_word(bytes in proptest::collection::vec(any::<u8>(), 1..QUICK + 9), at in 0usize..8, number in any::<u64>()) {
            let at = at.min(bytes.len() - 1);
            let from = &bytes[at..bytes.len().min(at + QUICK)];
            let words: Vec<Word> = (0..QUICK / 4).map(|_| Word::new(0)).collect();
            let mut found = vec![0xa5; from.len()];
            for me in 0..(QUICK / 4) as u32 {
                let is_last = 4 * (me as usize + 1) >= from.len();
                // SAFETY: there are enough words for the bytes.
                unsafe { take(words.as_ptr(), from.as_ptr(), from.len() as u32, tag(number), me) };
                if collect(&words, tag(number), &mut found) {
                    prop_assert!(is_last);
                    break;
                }
                prop_assert!(!is_last);
            }
            prop_assert_eq!(found, from);
            prop_assert_ne!(tag(number), tag(number.wrapping_add(QUICKS as u64)));
        }
    }
}
