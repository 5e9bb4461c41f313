//! Copies at any alignment, by words of 8 bytes.

use super::{LANES_OF_EDGES, WIDE};
use cuda_std::vector::{load_byte, load_words_of, opaque_u32, store_words};

/// A copy of more than 8 bytes by aligned words of 8 bytes of the target. Each target word is assembled from the two or
/// three aligned source words of 4 bytes that hold its bytes.
pub(super) struct Words {
    /// Address of the first whole target word, and of its first byte in the source.
    target: u64,
    source: u64,
    /// Number of bytes before the whole target words, in them, and after them.
    head: u32,
    whole: u32,
    tail: u32,
}

impl Words {
    #[inline(always)]
    pub fn of(to: *mut u8, from: *const u8, bytes: u32) -> Words {
        let (to, from) = (to as u64, from as u64);
        let head = (to as u32).wrapping_neg() % 8;
        let left = bytes - head;
        Words { target: to + head as u64, source: from + head as u64, head, whole: left & !7, tail: left % 8 }
    }

    /// Copies the bytes of lane `rank`. Bytes outside whole target words are copied one by one by lanes 0 to 15.
    ///
    /// # Safety
    /// The requirements of [`copy`](super::copy) must hold, for more than 8 bytes.
    #[inline(always)]
    pub unsafe fn copy(&self, rank: u32, lanes: u32) {
        // SAFETY: the caller guarantees that both ranges are valid; `edge` returns offsets inside the copy.
        unsafe {
            let edge = self.load_edge_of(rank);
            self.copy_whole(rank, lanes);
            self.store_edge_of(edge);
            let mut next = rank + lanes;
            while next < LANES_OF_EDGES {
                self.store_edge_of(self.load_edge_of(next));
                next += lanes;
            }
        }
    }

    /// Like [`copy`](Words::copy), for at least [`LANES_OF_EDGES`] lanes and at most 8 bytes per lane. The time of such
    /// a copy is that of its instructions, which depend on each other.
    ///
    /// # Safety
    /// The requirements of [`copy`](Words::copy) must hold.
    #[inline(always)]
    pub unsafe fn copy_once(&self, rank: u32) {
        // SAFETY: the caller guarantees that both ranges are valid; `edge` returns offsets inside the copy.
        unsafe {
            let edge = self.load_edge_of(rank);
            if 8 * rank < self.whole {
                self.pass::<1, 1>(8 * rank, 0);
            }
            self.store_edge_of(edge);
        }
    }

    /// Copies all bytes by one lane. The partial words at the ends are loaded before the others and stored after them,
    /// so that their latencies overlap.
    ///
    /// # Safety
    /// The requirements of [`copy`](super::copy) must hold, for more than 8 bytes.
    #[inline(always)]
    pub unsafe fn copy_alone(&self) {
        // SAFETY: the caller guarantees that both ranges are valid. More than 8 bytes are not within one word, so each
        // partial word reaches to one end of its word.
        unsafe {
            let head = if self.head != 0 { self.load_edge(0) } else { [0; 3] };
            let tail = if self.tail != 0 { self.load_edge(8 + self.whole) } else { [0; 3] };
            self.copy_whole(0, 1);
            if self.head != 0 {
                self.store_edge(self.target - 8, (8 - self.head, 8), head);
            }
            if self.tail != 0 {
                self.store_edge(self.target + self.whole as u64, (0, self.tail), tail);
            }
        }
    }

    /// Returns the offset, from the first byte of the copy, of the byte outside whole words that lane `rank` copies:
    /// lanes 0 to 7 copy those before the words, lanes 8 to 15 those after them.
    #[inline(always)]
    fn edge(&self, rank: u32) -> Option<u32> {
        let (number, count) = if rank < 8 { (rank, self.head) } else { (rank - 8, self.tail) };
        let first = if rank < 8 { 0 } else { self.head + self.whole };
        (number < count).then_some(first + number)
    }

    /// Loads the byte outside whole words that lane `rank` copies, before its words, so that their latencies overlap.
    #[inline(always)]
    unsafe fn load_edge_of(&self, rank: u32) -> Option<(u32, u32)> {
        let at = if rank < LANES_OF_EDGES { self.edge(rank) } else { None }?;
        // SAFETY: the byte is in the copy, whose ranges the caller guarantees to be valid.
        Some((at, unsafe { load_byte((self.source - self.head as u64 + at as u64) as *const u8) }))
    }

    #[inline(always)]
    unsafe fn store_edge_of(&self, edge: Option<(u32, u32)>) {
        if let Some((at, byte)) = edge {
            // SAFETY: the byte is in the copy, whose ranges the caller guarantees to be valid.
            unsafe { ((self.target - self.head as u64 + at as u64) as *mut u8).write(byte as u8) };
        }
    }

    /// Copies the whole target words of lane `rank`.
    ///
    /// # Safety
    /// The requirements of [`copy`](super::copy) must hold.
    #[inline(always)]
    unsafe fn copy_whole(&self, rank: u32, lanes: u32) {
        let (step, mut at) = (8 * lanes, 8 * rank);
        // The count is the same for all lanes with words, so that they stay converged.
        let mut left = self.whole as i32;
        // SAFETY: the caller guarantees that both ranges are valid.
        unsafe {
            while left > 2 * step as i32 {
                self.pass::<WIDE, 2>(at, step);
                at += WIDE as u32 * step;
                left -= (WIDE as u32 * step) as i32;
            }
            // For a large block the conditions of a pass take longer than copying the bytes.
            if left > step as i32 {
                self.pass::<2, 1>(at, step);
            } else if at < self.whole {
                self.pass::<1, 1>(at, step);
            }
        }
    }

    /// Copies the words at offsets `at`, `at + step`, ... of the whole words, at most `N`; the first `SURE` must
    /// exist. All loads precede the stores. A lane without a word loads the last one, because a condition on a load
    /// would make the compiler wait for each load.
    #[inline(always)]
    unsafe fn pass<const N: usize, const SURE: usize>(&self, at: u32, step: u32) {
        let mut held = [[0; 3]; N];
        for (round, held) in held.iter_mut().enumerate() {
            let at = at + round as u32 * step;
            // SAFETY: the target word is whole, so all source words hold bytes of the source.
            *held = unsafe { self.load(if round < SURE { at } else { at.min(self.whole - 8) }) };
        }
        for (round, held) in held.into_iter().enumerate() {
            let at = at + round as u32 * step;
            if round < SURE || at < self.whole {
                // SAFETY: the target word is whole.
                unsafe { store_words((self.target + at as u64) as *mut u32, self.assemble(held)) };
            }
        }
    }

    /// Loads the source words of the whole target word at offset `at`. The third is the one with its last byte: the
    /// second again if the source is aligned.
    #[inline(always)]
    unsafe fn load(&self, at: u32) -> [u32; 3] {
        let inside = self.source as u32 % 4;
        let first = self.source - inside as u64 + at as u64;
        let third = first + ((inside + 7) & !3) as u64;
        // SAFETY: the words hold bytes of the source.
        unsafe { [self.load_word(first), self.load_word(first + 4), self.load_word(third)] }
    }

    /// Returns the target word for its source words.
    #[inline(always)]
    fn assemble(&self, [low, middle, high]: [u32; 3]) -> [u32; 2] {
        let shift = 8 * (self.source as u32 % 4);
        [(low, middle), (middle, high)].map(|(low, high)| ((u64::from(high) << 32 | u64::from(low)) >> shift) as u32)
    }

    /// Loads the source words for the partial target word at offset `at` from 8 bytes before the first whole word. If
    /// one of them holds no byte of the source, loads a neighbour that does, whose value is not used.
    #[inline(always)]
    unsafe fn load_edge(&self, at: u32) -> [u32; 3] {
        let inside = self.source as u32 % 4;
        let base = self.source.wrapping_sub(8 + inside as u64);
        let (first, end) = (8 + inside - self.head, 8 + inside + self.whole + self.tail);
        let near = |at: u32| base.wrapping_add(at.clamp(first & !3, (end - 1) & !3) as u64);
        // SAFETY: the words hold a byte of the source.
        [at, at + 4, at + 8].map(|at| unsafe { self.load_word(near(at)) })
    }

    /// Loads the source word at address `word`, which must hold a byte of the source.
    #[inline(always)]
    unsafe fn load_word(&self, word: u64) -> u32 {
        let used = (self.source - self.head as u64, self.source + (self.whole + self.tail) as u64);
        // SAFETY: the caller guarantees that the word holds a byte of the source.
        unsafe { load_words_of::<1>(word as *const u32, used)[0] }
    }

    /// Stores bytes `begin..end` of the target word at address `target`, which extend to one end of the word. Uses
    /// aligned stores of one, two and four bytes.
    #[inline(always)]
    unsafe fn store_edge(&self, target: u64, (begin, end): (u32, u32), held: [u32; 3]) {
        // The compiler would otherwise shift directly after each load, and wait there.
        let [low, high] = self.assemble(held.map(opaque_u32));
        let word = u64::from(high) << 32 | u64::from(low);
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
