//! Short copies out: 4 bytes and a tag in each word of 8, which is one store, so that nothing has to follow the bytes. A mark behind a fence for the
//! system takes 0.6 us (H200).

use crate::ring::CachePadded;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::memory::load_acquire_host_u64;
use cuda_std::memory::{Word, store_relaxed_sys_u64};

/// Bytes of a short copy at most: a word for each lane of a warp.
pub const QUICK: usize = 128;
/// Short copies under way at most.
pub const QUICKS: usize = 64;

/// Where one comes to. New memory is all zero.
pub type Quick = CachePadded<[Word; QUICK / 4]>;

/// The tag of the short copy of this number: never that of the one before it in its place, and never 0, which new memory has.
#[cfg(not(target_arch = "nvptx64"))]
pub fn tag(number: u64) -> u32 {
    (number / QUICKS as u64 % u64::from(u32::MAX)) as u32 + 1
}

/// The kernel's half.
///
/// # Safety
/// As many words as the bytes need at `to`, which is a multiple of 8, and the bytes at `from` are valid.
#[inline(always)]
pub(super) unsafe fn take(to: *const Word, from: *const u8, bytes: u32, tag: u32, me: u32) {
    let first = me * 4;
    if first >= bytes {
        return;
    }
    // SAFETY: inside the bytes.
    let from = unsafe { from.add(first as usize) };
    let mut word = 0;
    if from.addr().is_multiple_of(4) && first + 4 <= bytes {
        // SAFETY: four bytes are there, and aligned. The look that found this step has acquired what was written before it.
        word = unsafe { from.cast::<u32>().read() };
    } else {
        let mut index = 0;
        while index < 4 && first + index < bytes {
            // SAFETY: inside the bytes.
            word |= u32::from(unsafe { from.add(index as usize).read() }) << (8 * index);
            index += 1;
        }
    }
    // SAFETY: the contract.
    store_relaxed_sys_u64(unsafe { &*to.add(me as usize) }, u64::from(tag) << 32 | u64::from(word));
}

/// The host's half: the bytes of a short copy, once all of its words have the tag.
#[cfg(not(target_arch = "nvptx64"))]
pub fn collect(words: &[Word], tag: u32, bytes: &mut [u8]) -> bool {
    // Acquire, for the first words too, so that what follows this is behind the kernel's loads of the bytes.
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
        fn bytes_are_there_with_their_last_word(bytes in proptest::collection::vec(any::<u8>(), 1..QUICK + 9), at in 0usize..8, number in any::<u64>()) {
            let at = at.min(bytes.len() - 1);
            let from = &bytes[at..bytes.len().min(at + QUICK)];
            let words: Vec<Word> = (0..QUICK / 4).map(|_| Word::new(0)).collect();
            let mut found = vec![0xa5; from.len()];
            for me in 0..(QUICK / 4) as u32 {
                let is_last = 4 * (me as usize + 1) >= from.len();
                // SAFETY: words and bytes are as many.
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
