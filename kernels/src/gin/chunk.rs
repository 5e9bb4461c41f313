//! A chunk of 8 bytes: as the two words that carry it, each with the round, and in memory.

/// Half of a chunk of 8 bytes, with its round.
#[inline(always)]
pub(super) fn tagged(half: u32, round: u32) -> u64 {
    (round as u64) << 32 | half as u64
}

/// Whether the words of a chunk are those of this round.
#[inline(always)]
pub(super) fn is_of((low, high): (u64, u64), round: u32) -> bool {
    (low >> 32) as u32 == round && (high >> 32) as u32 == round
}

/// The round in one of several pairs that is not of this round; nothing where all are.
#[inline(always)]
pub(super) fn missing(pairs: &[(u64, u64)], round: u32) -> Option<u64> {
    pairs.iter().fold(None, |found, &pair| if is_of(pair, round) { found } else { Some(pair.0 >> 32) })
}

/// The chunk that its words carry.
#[inline(always)]
pub(super) fn joined((low, high): (u64, u64)) -> u64 {
    low & 0xffff_ffff | high << 32
}

/// Up to 8 bytes.
///
/// # Safety
/// `left` bytes can be read, at least one.
#[inline(always)]
pub(super) unsafe fn read_chunk(from: *const u8, left: u64) -> u64 {
    if left >= 8 && (from as u64).is_multiple_of(8) {
        // SAFETY: the caller's contract, aligned as asked.
        return unsafe { from.cast::<u64>().read() };
    }
    if (from as u64 | left.min(8)).is_multiple_of(4) {
        // Numbers of 4 bytes: not byte by byte, which takes longer than the trip of a signal.
        let word = from.cast::<u32>();
        // SAFETY: the caller's contract, aligned as asked; the second word is there where more than 4 bytes are.
        return unsafe { word.read() as u64 | if left > 4 { (word.add(1).read() as u64) << 32 } else { 0 } };
    }
    let mut value = 0;
    for at in 0..left.min(8) {
        // SAFETY: below `left`.
        value |= (unsafe { from.add(at as usize).read() } as u64) << (8 * at);
    }
    value
}

/// Up to 8 bytes.
///
/// # Safety
/// `left` bytes can be written, at least one.
#[inline(always)]
pub(super) unsafe fn write_chunk(to: *mut u8, value: u64, left: u64) {
    if left >= 8 && (to as u64).is_multiple_of(8) {
        // SAFETY: the caller's contract, aligned as asked.
        return unsafe { to.cast::<u64>().write(value) };
    }
    if (to as u64 | left.min(8)).is_multiple_of(4) {
        let word = to.cast::<u32>();
        // SAFETY: as for `read_chunk`.
        unsafe {
            word.write(value as u32);
            if left > 4 {
                word.add(1).write((value >> 32) as u32);
            }
        }
        return;
    }
    for at in 0..left.min(8) {
        // SAFETY: below `left`.
        unsafe { to.add(at as usize).write((value >> (8 * at)) as u8) };
    }
}
