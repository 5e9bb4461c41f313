//! The payload pattern that producers write and targets verify.
//!
//! The kernels write it and the host verifies it, so the functions use only `core`. They are a separate crate, so that
//! an edit of a kernel does not recompile the verification. A payload is a sequence of little-endian words; a tail
//! shorter than a word consists of the low bytes of the next one.
//!
//! Verification relies on two properties. For a fixed seed, [`word`] is a bijection of the index, so a payload that is
//! shifted by any number of words is wrong in every word. For a fixed index it is a bijection of the seed, so a payload
//! of another rank, iteration or slot is also wrong in every word.

#![no_std]

/// 2^64 over the golden ratio: an odd constant whose multiples are spread evenly.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// An odd constant with well mixed bits, for the multiplication after the first mixing.
const MIX: u64 = 0xD6E8_FEB8_6659_FD93;

/// Returns the pattern's word at `index` of the payload with this seed.
///
/// The function takes one addition per word, so memory bandwidth instead of arithmetic limits the filling of a payload.
#[inline(always)]
pub fn word(seed: u64, index: u64) -> u64 {
    seed.wrapping_add(index.wrapping_mul(STEP))
}

/// Returns the pattern's byte at `offset` of the payload with this seed, for tails shorter than a word.
#[inline(always)]
pub fn byte(seed: u64, offset: u64) -> u8 {
    (word(seed, offset / 8) >> (offset % 8 * 8)) as u8
}

/// Returns a word in which every bit depends on all bits of both numbers. If either number is fixed, the word is a
/// bijection of the other number.
#[inline(always)]
pub fn mixed(seed: u64, index: u64) -> u64 {
    let sum = word(seed, index);
    let once = (sum ^ (sum >> 32)).wrapping_mul(MIX);
    once ^ (once >> 29)
}

/// Returns the seed of one payload, given the writing rank, the iteration and the slot.
///
/// The numbers are mixed twice, so that the patterns of neighbouring ranks, iterations and slots are not shifted copies
/// of each other.
#[inline(always)]
pub fn seed(rank: u32, iteration: u32, slot: u32) -> u64 {
    mixed(mixed(slot as u64, 1), ((rank as u64) << 32) | iteration as u64)
}
