//! Values that prove their round: a put without a signal, and a wait for memory.
//!
//! A network may deliver the bytes of a word one after another, and deliver them again later. Each byte of the word
//! therefore holds four bits of the value and, in the other four bits, its round modulo 8. A reader that finds the same
//! round in all bytes has the value of that round.

use super::report::{Call, Failure, NO_PE};
use super::{Context, Scope, Sym, Thread, WaitBudget};
use crate::ring::Status;
use cuda_std::memory::{Word, load_relaxed_sys_u64, store_relaxed_sys_u64};
use cuda_std::thread;

/// Returns the word of a value. Rounds are encoded as 1 to 8, which neither zeros nor the fill patterns of tests
/// contain.
pub const fn value_word(value: u32, round: u32) -> u64 {
    let (mut word, mut at) = (0, 0);
    while at < 8 {
        word |= ((1 + round % 8) << 4 | value >> (4 * at) & 15) as u64 * (1 << (8 * at));
        at += 1;
    }
    word
}

/// Returns the value of a word, or `None` if not all of its bytes have this round.
pub fn value_of(word: u64, round: u32) -> Option<u32> {
    let nibble = |at: u32| (word >> (8 * at) & 15) as u32 * (1 << (4 * at));
    let is_of_round = word & 0xf0f0_f0f0_f0f0_f0f0 == value_word(0, round);
    is_of_round.then(|| (0..8).map(nibble).sum())
}

impl Context<Thread> {
    /// Like [`p`](Context::p), for a value that is awaited by [`wait_value`](Context::wait_value) for the same round.
    /// The word must be used only for this series, by one sender, and be 0 before its first round. The sender must be
    /// at most one round ahead, and the `p` of a round must be complete before the next one.
    ///
    /// # Errors
    /// Returns the same errors as [`p`](Context::p).
    #[inline(always)]
    pub fn p_round(&mut self, to: Sym<u64>, value: u32, round: u32, pe: u32) -> Result<(), Status> {
        let word = value_word(value, round);
        match self.begin(Call::P, pe, 8, to.len() >= 1)? {
            0 => self.p(to, word, pe),
            heap => {
                // Atomic, unlike the store of `p`: the other PE loads the word at the same time.
                // SAFETY: the object is in the heap, which is mapped at `heap`, and is aligned for its type.
                store_relaxed_sys_u64(unsafe { &*((heap + to.offset()) as *const Word) }, word);
                self.stored();
                self.answer()
            }
        }
    }
}

impl<S: Scope> Context<S> {
    /// Waits until a word of this PE has the value of a round, and returns the value. The value does not prove the
    /// arrival of puts. OpenSHMEM: `shmem_wait_until`.
    ///
    /// # Errors
    /// Returns [`Status::DEADLINE`], the status with which the host ended the wait, or an earlier failure of this
    /// context.
    #[inline(always)]
    #[track_caller]
    pub fn wait_value(&mut self, at: Sym<u64>, round: u32) -> Result<u32, Status> {
        self.flush();
        // SAFETY: the word is in the heap.
        let word = unsafe { &*self.world.local(at).cast::<Word>() };
        let (mut value, mut stop, mut patience) = (None, Ok(()), WaitBudget::default());
        while value.is_none() && stop.is_ok() {
            value = value_of(load_relaxed_sys_u64(word), round);
            if value.is_none() {
                stop = patience.look(&self.world);
                thread::relax();
            }
        }
        if let Err(stop) = stop {
            self.fail(
                stop,
                Failure { call: Call::Words, pe: NO_PE, detail: at.offset(), seen: 0, wanted: round as u64 },
            );
        }
        self.agreed().map(|()| value.unwrap_or(0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Tests that any bytes of a round may have arrived over those of another round.
        #[test]
        fn value_is_complete_with_all_bytes(value: u32, before: u32, round in 1u32..1000, ahead in 1u32..8, come: u8) {
            let (old, new) = (value_word(before, round), value_word(value, round + ahead));
            let mask = (0..8).filter(|at| come >> at & 1 == 1).fold(0, |mask, at| mask | 0xffu64 << (8 * at));
            let word = old & !mask | new & mask;
            prop_assert_eq!(value_of(word, round + ahead), (come == 0xff).then_some(value));
            prop_assert_eq!(value_of(word, round), (come == 0).then_some(before));
            prop_assert_eq!(value_of(new & mask, round + ahead), (come == 0xff).then_some(value), "over zeros");
        }
    }
}
