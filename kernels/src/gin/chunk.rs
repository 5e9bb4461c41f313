//! Chunks of 8 bytes: their representation in memory, and the two words that carry a chunk, each tagged with the round.

/// Returns the word that carries half of a chunk and its round.
#[inline(always)]
pub(super) fn tagged(half: u32, round: u32) -> u64 {
    (round as u64) << 32 | half as u64
}

/// Returns whether both words of a chunk have this round.
#[inline(always)]
pub(super) fn is_of((low, high): (u64, u64), round: u32) -> bool {
    (low >> 32) as u32 == round && (high >> 32) as u32 == round
}

/// Returns the round of the first pair that does not have this round; `None` if all pairs have it.
#[inline(always)]
pub(super) fn missing(pairs: &[(u64, u64)], round: u32) -> Option<u64> {
    pairs.iter().fold(None, |found, &pair| if is_of(pair, round) { found } else { Some(pair.0 >> 32) })
}

/// Returns the chunk that a pair of words carries.
#[inline(always)]
pub(super) fn joined((low, high): (u64, u64)) -> u64 {
    low & 0xffff_ffff | high << 32
}

/// Reads the first 8 of `left` bytes, or all of them if fewer.
///
/// # Safety
/// `from` must be valid for reads of `left` bytes, at least one.
#[inline(always)]
pub(super) unsafe fn read_chunk(from: *const u8, left: u64) -> u64 {
    if left >= 8 && (from as u64).is_multiple_of(8) {
        // SAFETY: the caller guarantees validity, and the alignment has been checked.
        return unsafe { from.cast::<u64>().read() };
    }
    if (from as u64 | left.min(8)).is_multiple_of(4) {
        // For values of 4 bytes: reading them byte by byte would take longer than the one-way time of a signal.
        let word = from.cast::<u32>();
        // SAFETY: the caller guarantees validity, and the alignment has been checked; the second word exists if `left`
        // exceeds 4.
        return unsafe { word.read() as u64 | if left > 4 { (word.add(1).read() as u64) << 32 } else { 0 } };
    }
    let mut value = 0;
    for at in 0..left.min(8) {
        // SAFETY: `at` is below `left`.
        value |= (unsafe { from.add(at as usize).read() } as u64) << (8 * at);
    }
    value
}

/// Writes the first 8 of `left` bytes, or all of them if fewer.
///
/// # Safety
/// `to` must be valid for writes of `left` bytes, at least one.
#[inline(always)]
pub(super) unsafe fn write_chunk(to: *mut u8, value: u64, left: u64) {
    if left >= 8 && (to as u64).is_multiple_of(8) {
        // SAFETY: the caller guarantees validity, and the alignment has been checked.
        return unsafe { to.cast::<u64>().write(value) };
    }
    if (to as u64 | left.min(8)).is_multiple_of(4) {
        let word = to.cast::<u32>();
        // SAFETY: the caller guarantees validity, and the alignment has been checked; the second word exists if `left`
        // exceeds 4.
        unsafe {
            word.write(value as u32);
            if left > 4 {
                word.add(1).write((value >> 32) as u32);
            }
        }
        return;
    }
    for at in 0..left.min(8) {
        // SAFETY: `at` is below `left`.
        unsafe { to.add(at as usize).write((value >> (8 * at)) as u8) };
    }
}
