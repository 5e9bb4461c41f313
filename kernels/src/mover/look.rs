//! How a block reads a ring: some entries at once by one warp, and by shared memory to all threads.

use super::steps::{BITS, ENTRY_WORDS, Entries, Step, is_copy, lap};
use cuda_std::memory::{fence_acq_rel_gpu, fence_acq_rel_sys, load_relaxed_gpu_u64, load_relaxed_sys_u64};
use cuda_std::shared::Dynamic;

/// Entries that are looked at together: one load of a warp.
pub const LOOK: u64 = 8;
/// Words of a look.
pub const LOOK_WORDS: u32 = LOOK as u32 * ENTRY_WORDS as u32;
/// Bytes of shared memory of a block: the words of a look, and whether the wait is over.
pub const SHARED: u32 = LOOK_WORDS * 8 + 16;

/// The block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Look {
    shared: Dynamic,
    words: u32,
    over: u32,
}

impl Look {
    /// All threads call it together.
    #[inline(always)]
    pub fn new() -> Look {
        let shared = Dynamic::of_block(SHARED);
        Look { shared, words: shared.at(0), over: shared.at(LOOK_WORDS * 8) }
    }

    /// Looks at the entries from this number on; a barrier of the block must follow, and one before the next look. `HOST`: the host writes the
    /// ring, otherwise a block of this GPU.
    #[inline(always)]
    pub fn take<const HOST: bool, const N: usize>(self, entries: &Entries<N>, number: u64, me: u32) {
        if me >= LOOK_WORDS {
            return;
        }
        let number = number + u64::from(me) / ENTRY_WORDS as u64;
        let place = me as usize % ENTRY_WORDS;
        // SAFETY: both are below the lengths.
        let word = unsafe { entries.get_unchecked((number % N as u64) as usize).get_unchecked(place) };
        let word = if HOST { load_relaxed_sys_u64(word) } else { load_relaxed_gpu_u64(word) };
        if word >> BITS == lap(number, N as u64) && place == 2 && is_copy(word) {
            // Who wrote the entry (the host by a release, the lane's first block behind a fence) had the bytes to copy written before. The barrier
            // that follows carries this to all threads of the block.
            if HOST {
                fence_acq_rel_sys();
            } else {
                fence_acq_rel_gpu();
            }
        }
        let at = self.words + me * 8;
        // SAFETY: inside the block's memory; the others read it behind a barrier, and have done so before the one at their loop's end.
        unsafe {
            self.shared.store(at, [word as u32]);
            self.shared.store(at + 4, [(word >> 32) as u32]);
        }
    }

    /// The entry of this number, the `seen`th of the look.
    #[inline(always)]
    pub fn step(self, seen: u32, number: u64, entries: u64) -> Option<Step> {
        let mut entry = [0; ENTRY_WORDS];
        let mut index = 0;
        while index < ENTRY_WORDS {
            let at = self.words + (seen * ENTRY_WORDS as u32 + index as u32) * 8;
            // SAFETY: inside the block's memory, written before the barrier.
            let ([low], [high]) = unsafe { (self.shared.load::<1>(at), self.shared.load::<1>(at + 4)) };
            entry[index] = u64::from(low) | u64::from(high) << 32;
            index += 1;
        }
        Step::decode(entry, number, entries)
    }

    /// One thread says whether the wait is over, with its look.
    #[inline(always)]
    pub fn set_over(self, over: bool) {
        // SAFETY: as in `take`.
        unsafe { self.shared.store(self.over, [u32::from(over)]) };
    }

    /// What it has said.
    #[inline(always)]
    pub fn is_over(self) -> bool {
        // SAFETY: as in `step`.
        let [over] = unsafe { self.shared.load::<1>(self.over) };
        over != 0
    }
}
