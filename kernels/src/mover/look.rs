//! Reading of a ring by a block: one warp loads several entries together and passes them to all threads through shared
//! memory.

use super::steps::{BITS, ENTRY_WORDS, Entries, Step, is_copy, lap};
use cuda_std::memory::{fence_acq_rel_gpu, load_acquire_sys_u64, load_relaxed_gpu_u64};
use cuda_std::shared::Dynamic;
use cuda_std::{thread, warp};

/// Number of entries that one load of a warp reads together.
pub const LOOK: u64 = 8;
/// Number of words of the entries that one load reads.
pub const LOOK_WORDS: u32 = LOOK as u32 * ENTRY_WORDS as u32;
/// Number of bytes of shared memory of a block: the words of a load, and the result of the poll.
pub const SHARED: u32 = LOOK_WORDS * 8 + 16;

/// Access to the block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Look {
    shared: Dynamic,
    words: u32,
    /// Address of the first warp's result.
    told: u32,
}

/// Result of a wait for the host's next entries.
#[derive(Clone, Copy)]
pub(super) struct WaitResult {
    /// Whether there are new entries. False if the time has expired.
    pub any: bool,
    /// Number of entries that the first warp has already processed.
    pub done: u32,
    /// Whether there are unfenced writes.
    pub open: bool,
}

impl Look {
    /// Creates the access. All threads of the block must call it together.
    #[inline(always)]
    pub fn new() -> Look {
        let shared = Dynamic::of_block(SHARED);
        Look { shared, words: shared.at(0), told: shared.at(LOOK_WORDS * 8) }
    }

    /// Polls the host's entries from `number` with the first warp, until there is one or the time `until` has passed.
    /// Returns whether there is one.
    ///
    /// A poll takes 1.3 us over PCIe. Interleaved polls of several warps, or several polls in flight of one
    /// warp, find entries no sooner, and a fence waits for the polls in flight (`experiments/nccl/README.md`).
    ///
    /// Uses acquire order, which pairs with the release by which the host wrote the entry. This warp, and after a
    /// barrier all threads of the block, observe the writes that precede it, including the bytes to copy. A relaxed
    /// poll followed by a fence takes 0.5 us longer.
    #[inline(always)]
    pub fn wait<const N: usize>(self, entries: &Entries<N>, number: u64, lane: u32, until: u64) -> bool {
        let mask = warp::launched_mask();
        let at = number + u64::from(lane) / ENTRY_WORDS as u64;
        let place = lane as usize % ENTRY_WORDS;
        // SAFETY: both indices are below the lengths.
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

    /// Stores the result of the wait, on one lane. A barrier of the block must follow.
    #[inline(always)]
    pub fn tell(self, found: WaitResult) {
        let word = found.done << 2 | u32::from(found.open) << 1 | u32::from(found.any);
        // SAFETY: the address is in the block's shared memory. The other threads read it after the barrier, and have
        // finished reading the previous result before the barrier at the end of their loop.
        unsafe { self.shared.store(self.told, [word]) };
    }

    /// Returns the stored result; called after the barrier.
    #[inline(always)]
    pub fn told(self) -> WaitResult {
        // SAFETY: the address is in the block's shared memory, and was written before the barrier.
        let [word] = unsafe { self.shared.load::<1>(self.told) };
        WaitResult { any: word & 1 != 0, done: word >> 2, open: word & 2 != 0 }
    }

    /// Stores a lane's word for the other threads.
    #[inline(always)]
    fn keep(self, word: u64, lane: u32) {
        let at = self.words + lane * 8;
        // SAFETY: the address is in the block's shared memory. The other threads read it after a barrier, and have
        // finished reading the previous word before the barrier at the end of their loop.
        unsafe {
            self.shared.store(at, [word as u32]);
            self.shared.store(at + 4, [(word >> 32) as u32]);
        }
    }

    /// Polls once for entries that are written by another block of this GPU. A barrier of the block must follow, and
    /// another must precede the next poll.
    #[inline(always)]
    pub fn take<const N: usize>(self, entries: &Entries<N>, number: u64, me: u32) {
        if me >= LOOK_WORDS {
            return;
        }
        let number = number + u64::from(me) / ENTRY_WORDS as u64;
        let place = me as usize % ENTRY_WORDS;
        // SAFETY: both indices are below the lengths.
        let word = unsafe { entries.get_unchecked((number % N as u64) as usize).get_unchecked(place) };
        let word = load_relaxed_gpu_u64(word);
        if word >> BITS == lap(number, N as u64) && place == 2 && is_copy(word) {
            // Uses acquire order, which pairs with the fence of the lane's first block, which observed the bytes to
            // copy before it wrote the entry. The barrier that follows extends this to all threads of the block.
            fence_acq_rel_gpu();
        }
        self.keep(word, me);
    }

    /// Returns entry `number`, which is entry `seen` of the last poll; `None` if it is not complete.
    #[inline(always)]
    pub fn step(self, seen: u32, number: u64, entries: u64) -> Option<Step> {
        let mut entry = [0; ENTRY_WORDS];
        let mut index = 0;
        while index < ENTRY_WORDS {
            let at = self.words + (seen * ENTRY_WORDS as u32 + index as u32) * 8;
            // SAFETY: the addresses are in the block's shared memory, and were written before the barrier.
            let ([low], [high]) = unsafe { (self.shared.load::<1>(at), self.shared.load::<1>(at + 4)) };
            entry[index] = u64::from(low) | u64::from(high) << 32;
            index += 1;
        }
        Step::decode(entry, number, entries)
    }
}
