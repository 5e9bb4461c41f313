//! The payload pattern on the host: fills sources, poisons destinations and checks received data.
//!
//! The pattern itself is in [`payload_pattern`], because kernels write it as well.

use super::progress;
pub use payload_pattern::{byte, seed, word};

/// Minimum number of bytes of a check that counts as progress of the process.
const LONG: usize = 4096;

/// Value that [`poison`] XORs with every byte of the pattern. Any nonzero value would do; this one is easy to recognize
/// in a dump.
const POISON: u8 = 0xA5;

/// Writes the pattern of `seed` into `bytes`.
pub fn fill(bytes: &mut [u8], seed: u64) {
    fill_xor(bytes, seed, 0);
}

/// Makes every byte of `bytes` differ from the pattern of `seed`, so that a byte that was never written cannot pass
/// [`check`]. A constant would equal one byte in 256 of the pattern.
pub fn poison(bytes: &mut [u8], seed: u64) {
    fill_xor(bytes, seed, u64::from_ne_bytes([POISON; 8]));
}

/// Counts the bytes that differ from the pattern of `seed`.
pub fn check(bytes: &[u8], seed: u64) -> usize {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut wrong = 0;
    for (index, chunk) in words.iter().enumerate() {
        let difference = u64::from_le_bytes(*chunk) ^ word(seed, index as u64);
        if difference != 0 {
            wrong += difference.to_ne_bytes().iter().filter(|byte| **byte != 0).count();
        }
    }
    if bytes.len() >= LONG {
        progress::record();
    }
    let expected = word(seed, words.len() as u64).to_le_bytes();
    wrong + tail.iter().zip(expected).filter(|(found, expected)| **found != *expected).count()
}

fn fill_xor(bytes: &mut [u8], seed: u64, xor: u64) {
    let (words, tail) = bytes.as_chunks_mut::<8>();
    let last = (word(seed, words.len() as u64) ^ xor).to_le_bytes();
    for (index, chunk) in words.iter_mut().enumerate() {
        *chunk = (word(seed, index as u64) ^ xor).to_le_bytes();
    }
    for (byte, value) in tail.iter_mut().zip(last) {
        *byte = value;
    }
    if bytes.len() >= LONG {
        progress::record();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn filled_payload_verifies(len in 0usize..4096, seed in any::<u64>()) {
            let mut bytes = vec![0; len];
            fill(&mut bytes, seed);
            prop_assert_eq!(check(&bytes, seed), 0);
            for (offset, found) in bytes.iter().enumerate() {
                prop_assert_eq!(*found, byte(seed, offset as u64));
            }
        }

        #[test]
        fn every_poisoned_byte_is_counted_once(len in 0usize..4096, seed in any::<u64>()) {
            let mut bytes = vec![0; len];
            poison(&mut bytes, seed);
            prop_assert_eq!(check(&bytes, seed), len);
        }

        #[test]
        fn one_flipped_bit_is_one_wrong_byte(len in 1usize..4096, at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 7);
            bytes[at.index(len)] ^= 1 << bit;
            prop_assert_eq!(check(&bytes, 7), 1);
        }

        #[test]
        fn every_position_is_checked_exactly_once(len in 1usize..512, wrong in prop::collection::vec(any::<bool>(), 512)) {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 3);
            let mut expected = 0;
            for (byte, flip) in bytes.iter_mut().zip(wrong) {
                if flip {
                    *byte = !*byte;
                    expected += 1;
                }
            }
            prop_assert_eq!(check(&bytes, 3), expected);
        }

        #[test]
        fn another_rank_iteration_slot_or_offset_differs(
            a in (0u32..64, any::<u32>(), 0u32..1024),
            b in (0u32..64, any::<u32>(), 0u32..1024),
            shift in 1u64..1_000_000,
            index in 0u64..1_000_000,
        ) {
            let one = seed(a.0, a.1, a.2);
            prop_assert_ne!(word(one, index), word(one, index + shift));
            if a != b {
                let two = seed(b.0, b.1, b.2);
                prop_assert_ne!(one, two);
                prop_assert_ne!(word(one, index), word(two, index));
            }
        }
    }

    #[test]
    fn neighbouring_seeds_are_no_shifted_copies() {
        // Payloads are often ordered by rank and iteration, so misplaced data must be detected.
        let first = seed(0, 0, 0);
        let words: std::collections::HashSet<u64> = (0..4096).map(|index| word(first, index)).collect();
        for other in [seed(1, 0, 0), seed(0, 1, 0), seed(0, 0, 1)] {
            assert!((0..4096).all(|index| !words.contains(&word(other, index))));
        }
    }
}
