//! The payload pattern: what a producer writes and what a target must find.
//!
//! The kernels write it, the host checks it, so the function stands here, in plain `core` code; a crate of its own, so that an edited
//! kernel does not compile what checks. A payload is a run of little-endian words; a tail shorter than a word takes the low bytes of the next one.
//!
//! Two properties carry the verification. For one seed, [`word`] is a bijection of the index, so a payload that arrives
//! shifted by any number of words is wrong in every word. For one index it is a bijection of the seed, so a payload of
//! another rank, iteration or slot is wrong in every word too.

#![no_std]

/// 2^64 over the golden ratio: an odd constant whose multiples are spread evenly.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// An odd constant with well mixed bits, for the one multiplication behind the first mixing.
const MIX: u64 = 0xD6E8_FEB8_6659_FD93;

/// The pattern's word at `index` of the payload named by `seed`.
///
/// One addition from word to word: whoever fills a payload must stay bound by memory, not by arithmetic. (With [`mixed`] words a core wrote
/// 64 KiB in 6.8 us, EPYC.)
#[inline(always)]
pub fn word(seed: u64, index: u64) -> u64 {
    seed.wrapping_add(index.wrapping_mul(STEP))
}

/// The pattern's byte at `offset` of the payload named by `seed`, for tails that are shorter than a word.
#[inline(always)]
pub fn byte(seed: u64, offset: u64) -> u8 {
    (word(seed, offset / 8) >> (offset % 8 * 8)) as u8
}

/// A word of which every bit depends on all of both numbers; for one of them a bijection of the other.
#[inline(always)]
pub fn mixed(seed: u64, index: u64) -> u64 {
    let sum = word(seed, index);
    let once = (sum ^ (sum >> 32)).wrapping_mul(MIX);
    once ^ (once >> 29)
}

/// The seed of one payload: which rank wrote it, in which iteration, for which slot.
///
/// Mixed twice, so that neighbouring ranks, iterations and slots do not give patterns that are shifted copies of each
/// other.
#[inline(always)]
pub fn seed(rank: u32, iteration: u32, slot: u32) -> u64 {
    mixed(mixed(slot as u64, 1), ((rank as u64) << 32) | iteration as u64)
}
