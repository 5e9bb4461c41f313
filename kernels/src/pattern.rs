//! The payload pattern: what a producer writes and what a target must find.
//!
//! The kernels write it, the host checks it, so the function stands here, in plain `core` code. A payload is a run of
//! little-endian words; a tail shorter than a word takes the low bytes of the next one.
//!
//! Two properties carry the verification. For one seed, [`word`] is a bijection of the index, so a payload that arrives
//! shifted by any number of words is wrong in every word. For one index it is a bijection of the seed, so a payload of
//! another rank, iteration or slot is wrong in every word too.

/// 2^64 over the golden ratio: an odd constant whose multiples are spread evenly.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// An odd constant with well mixed bits, for the one multiplication of a word.
const MIX: u64 = 0xD6E8_FEB8_6659_FD93;

/// The pattern's word at `index` of the payload named by `seed`.
///
/// Two multiplications and two shifts: a kernel that fills its payload must stay bound by memory, not by arithmetic.
#[inline(always)]
pub fn word(seed: u64, index: u64) -> u64 {
    let mixed = seed.wrapping_add(index.wrapping_mul(STEP));
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(MIX);
    mixed ^ (mixed >> 29)
}

/// The pattern's byte at `offset` of the payload named by `seed`, for tails that are shorter than a word.
#[inline(always)]
pub fn byte(seed: u64, offset: u64) -> u8 {
    (word(seed, offset / 8) >> (offset % 8 * 8)) as u8
}

/// The seed of one payload: which rank wrote it, in which iteration, for which slot.
///
/// Mixed twice, so that neighbouring ranks, iterations and slots do not give patterns that are shifted copies of each
/// other.
#[inline(always)]
pub fn seed(rank: u32, iteration: u32, slot: u32) -> u64 {
    word(word(slot as u64, 1), ((rank as u64) << 32) | iteration as u64)
}
