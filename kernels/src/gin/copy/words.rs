//! Copies at any alignment, by words of 8 bytes.

use super::WIDE;
use cuda_std::vector::{load_words_of, opaque_u64, store_words};

/// A copy of more than 8 bytes by aligned words of 8 bytes of the target. Each target word is assembled from the one or
/// two aligned source words that hold its bytes. In the first and last target word, only the bytes of the copy are
/// stored.
pub(super) struct Words {
    /// Address of the first target word, followed by that of the source word in which its bytes start.
    target: u64,
    source: u64,
    /// Number of bytes of the first target word that precede the copy.
    skip: u32,
    /// Offset in a source word at which the bytes of a target word start.
    inside: u32,
    /// Number of bytes from the start of the first target word to the end of the copy.
    span: u32,
}

impl Words {
    #[inline(always)]
    pub fn of(to: *mut u8, from: *const u8, bytes: u32) -> Words {
        let (to, from) = (to as u64, from as u64);
        let skip = to as u32 % 8;
        let start = from.wrapping_sub(skip as u64);
        let inside = start as u32 % 8;
        Words { target: to - skip as u64, source: start.wrapping_sub(inside as u64), skip, inside, span: skip + bytes }
    }

    /// Copies the words of lane `rank`. The partial words at the ends are loaded before the others and stored after
    /// them, so that their latencies overlap. The partial words belong to the first two lanes, so warps without words
    /// do nothing.
    ///
    /// # Safety
    /// The requirements of [`copy`](super::copy) must hold, for more than 8 bytes.
    #[inline(always)]
    pub unsafe fn copy(&self, rank: u32, lanes: u32) {
        if 8 * rank >= self.span {
            return;
        }
        let (step, whole) = (8 * lanes, self.span & !7);
        let (head, tail) = ((0, self.skip, 8), (whole, 0, self.span & 7));
        let edge = if rank == 0 { head } else { tail };
        let has_edge = if rank == 0 { self.skip != 0 } else { rank == 1 && whole != self.span };
        let has_both = lanes == 1 && whole != self.span;
        // SAFETY: the caller guarantees that both ranges are valid. More than 8 bytes are not within one word, so each
        // partial word reaches to one end of its word.
        unsafe {
            let held = if has_edge { self.load_edge(edge.0) } else { [0; 2] };
            let held_tail = if has_both { self.load_edge(whole) } else { [0; 2] };
            let begin = if self.skip != 0 { 8 } else { 0 };
            let mut at = begin + 8 * rank;
            // The count is the same for all lanes with words, so that they stay converged.
            let mut left = whole as i32 - begin as i32;
            while left > 2 * step as i32 {
                self.pass::<WIDE>(at, step, whole);
                at += WIDE as u32 * step;
                left -= (WIDE as u32 * step) as i32;
            }
            // For a large block the conditions of a pass take longer than copying the bytes.
            if left > step as i32 {
                self.pass::<2>(at, step, whole);
            } else if at < whole {
                self.pass::<1>(at, step, whole);
            }
            if has_edge {
                self.store_edge(edge, held);
            }
            if has_both {
                self.store_edge(tail, held_tail);
            }
        }
    }

    /// Copies the words at offsets `at`, `at + step`, ... that are below `end`, at most `N`. All these words must be
    /// whole. All loads precede the stores. A lane without a word loads the last one, because a condition on a load
    /// would make the compiler wait for each load.
    #[inline(always)]
    unsafe fn pass<const N: usize>(&self, at: u32, step: u32, end: u32) {
        let high = if self.inside != 0 { 8 } else { 0 };
        let mut held = [[0; 2]; N];
        for (round, held) in held.iter_mut().enumerate() {
            let at = (at + round as u32 * step).min(end - 8);
            // SAFETY: the target word is whole, so both source words hold bytes of the source.
            *held = unsafe { [self.load(at), self.load(at + high)] };
        }
        for (round, held) in held.into_iter().enumerate() {
            let at = at + round as u32 * step;
            if at < end {
                let word = self.assemble(held);
                // SAFETY: the target word is whole.
                unsafe { store_words((self.target + at as u64) as *mut u32, [word as u32, (word >> 32) as u32]) };
            }
        }
    }

    /// Returns the target word for its two source words.
    #[inline(always)]
    fn assemble(&self, [low, high]: [u64; 2]) -> u64 {
        let shift = 8 * self.inside;
        // Shifts in two steps, because a 64-bit value cannot be shifted by 64. Without a shift both words are the same,
        // and no bit of the second remains.
        low >> shift | high << 1 << (63 - shift)
    }

    /// Loads the source words for the partial target word at offset `at`. If one of them holds no byte of the source,
    /// loads a neighbour that does, whose value is not used.
    #[inline(always)]
    unsafe fn load_edge(&self, at: u32) -> [u64; 2] {
        let (first, last) = ((self.skip + self.inside) & !7, (self.inside + self.span - 1) & !7);
        let high = if self.inside != 0 { 8 } else { 0 };
        // SAFETY: both words hold a byte of the source.
        unsafe { [self.load(at.clamp(first, last)), self.load((at + high).clamp(first, last))] }
    }

    /// Loads the source word at offset `at`, which must hold a byte of the source.
    #[inline(always)]
    unsafe fn load(&self, at: u32) -> u64 {
        let word = self.source.wrapping_add(at as u64);
        let (begin, end) = (self.skip + self.inside, self.inside + self.span);
        let used = (self.source.wrapping_add(begin as u64), self.source.wrapping_add(end as u64));
        // SAFETY: the caller guarantees that the word holds a byte of the source.
        let [low, high] = unsafe { load_words_of(word as *const u32, used) };
        (high as u64) << 32 | low as u64
    }

    /// Stores bytes `begin..end` of the target word at offset `at`, which extend to one end of the word. Uses aligned
    /// stores of one, two and four bytes.
    #[inline(always)]
    unsafe fn store_edge(&self, (at, begin, end): (u32, u32, u32), held: [u64; 2]) {
        // The compiler would otherwise shift directly after each load, and wait there.
        let (word, target) = (self.assemble(held.map(opaque_u64)), self.target + at as u64);
        let (begin_2, end_2) = (begin + (begin & 1), end - (end & 1));
        let (begin_4, end_4) = (begin_2 + (begin_2 & 2), end_2 - (end_2 & 2));
        // SAFETY: each store is aligned and inside the target.
        unsafe {
            if (begin | end) & 1 != 0 {
                let at = if begin & 1 != 0 { begin } else { end_2 };
                ((target + at as u64) as *mut u8).write((word >> (8 * at)) as u8);
            }
            if (begin_2 | end_2) & 2 != 0 {
                let at = if begin_2 & 2 != 0 { begin_2 } else { end_4 };
                ((target + at as u64) as *mut u16).write((word >> (8 * at)) as u16);
            }
            if begin_4 < end_4 {
                ((target + begin_4 as u64) as *mut u32).write((word >> (8 * begin_4)) as u32);
            }
        }
    }
}
