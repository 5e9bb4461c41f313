//! How a block reads a ring: some entries at once by a warp, and by shared memory to all threads.

use super::steps::{BITS, ENTRY_WORDS, Entries, Step, is_copy, lap};
use cuda_std::memory::{fence_acq_rel_gpu, load_acquire_sys_u64, load_relaxed_gpu_u64};
use cuda_std::shared::Dynamic;
use cuda_std::{thread, warp};

/// Entries that are looked at together: one load of a warp.
pub const LOOK: u64 = 8;
/// Words of a look.
pub const LOOK_WORDS: u32 = LOOK as u32 * ENTRY_WORDS as u32;
/// Bytes of shared memory of a block: the words of a look, and what became of it.
pub const SHARED: u32 = LOOK_WORDS * 8 + 16;

/// The block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Look {
    shared: Dynamic,
    words: u32,
    /// What the first warp has told.
    told: u32,
}

/// What became of a wait for the host's next entries.
#[derive(Clone, Copy)]
pub(super) struct Found {
    /// Whether there are some; otherwise the time is over.
    pub any: bool,
    /// As many the first warp has done itself.
    pub done: u32,
    /// Something was written that no fence is behind.
    pub open: bool,
}

impl Look {
    /// All threads call it together.
    #[inline(always)]
    pub fn new() -> Look {
        let shared = Dynamic::of_block(SHARED);
        Look { shared, words: shared.at(0), told: shared.at(LOOK_WORDS * 8) }
    }

    /// The first warp looks at the host's entries from this number on until there is one, or until `until`; whether there is. A look takes 1.3 us over
    /// the bus (H200). Looks of three warps in turns, or three of one warp under way, find nothing sooner, and a fence waits for those that are
    /// under way: 4.2 us there and back where this takes 2.2 (`experiments/nccl/README.md`).
    ///
    /// Acquire, against the release by which the host wrote the entry: this warp, and behind a barrier all threads of the block see what was written
    /// before it, the bytes to copy. A look without it and a fence behind it take 0.5 us longer.
    #[inline(always)]
    pub fn wait<const N: usize>(self, entries: &Entries<N>, number: u64, lane: u32, until: u64) -> bool {
        let mask = warp::launched_mask();
        let at = number + u64::from(lane) / ENTRY_WORDS as u64;
        let place = lane as usize % ENTRY_WORDS;
        // SAFETY: both are below the lengths.
        let word = unsafe { entries.get_unchecked((at % N as u64) as usize).get_unchecked(place) };
        loop {
            let value = load_acquire_sys_u64(word);
            let missing = lane < ENTRY_WORDS as u32 && value >> BITS != lap(number, N as u64);
            if !warp::any(mask, missing) {
                self.keep(value, lane);
                warp::synchronize(mask);
                return true;
            }
            if warp::any(mask, lane == 0 && thread::global_timer_ns() > until) {
                return false;
            }
            thread::relax();
        }
    }

    /// One lane says what became of it. A barrier of the block must follow.
    #[inline(always)]
    pub fn tell(self, found: Found) {
        let word = found.done << 2 | u32::from(found.open) << 1 | u32::from(found.any);
        // SAFETY: inside the block's memory; the others read it behind the barrier, and have done so before the one at their loop's end.
        unsafe { self.shared.store(self.told, [word]) };
    }

    /// What it has said, behind the barrier.
    #[inline(always)]
    pub fn told(self) -> Found {
        // SAFETY: inside the block's memory, written before the barrier.
        let [word] = unsafe { self.shared.load::<1>(self.told) };
        Found { any: word & 1 != 0, done: word >> 2, open: word & 2 != 0 }
    }

    /// A lane keeps its word of a look for the others.
    #[inline(always)]
    fn keep(self, word: u64, lane: u32) {
        let at = self.words + lane * 8;
        // SAFETY: inside the block's memory; the others read it behind a barrier, and have done so before the one at their loop's end.
        unsafe {
            self.shared.store(at, [word as u32]);
            self.shared.store(at + 4, [(word >> 32) as u32]);
        }
    }

    /// Looks once at entries that a block of this GPU writes; a barrier of the block must follow, and one before the next look.
    #[inline(always)]
    pub fn take<const N: usize>(self, entries: &Entries<N>, number: u64, me: u32) {
        if me >= LOOK_WORDS {
            return;
        }
        let number = number + u64::from(me) / ENTRY_WORDS as u64;
        let place = me as usize % ENTRY_WORDS;
        // SAFETY: both are below the lengths.
        let word = unsafe { entries.get_unchecked((number % N as u64) as usize).get_unchecked(place) };
        let word = load_relaxed_gpu_u64(word);
        if word >> BITS == lap(number, N as u64) && place == 2 && is_copy(word) {
            // The lane's first block had the bytes to copy visible to it before it wrote the entry, behind a fence. The barrier that follows carries
            // this to all threads of the block.
            fence_acq_rel_gpu();
        }
        self.keep(word, me);
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
}
