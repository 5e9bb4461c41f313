//! Values that prove their round: a put without a signal, and a wait for memory.
//!
//! A network may bring the bytes of a word one after another, and again later. So each byte of the word has four bits of the value and says, by
//! the other four, which of eight rounds it is of: whoever finds one round in all of them has the value of that round.

use super::report::{Call, Failure, NO_PE};
use super::{Context, Patience, Scope, Sym, Thread};
use crate::ring::Status;
use cuda_std::memory::{Word, load_relaxed_sys_u64};
use cuda_std::thread;

/// The word of a value. Rounds are 1 to 8 there, which neither zeros nor what tests leave in memory have.
pub const fn value_word(value: u32, round: u32) -> u64 {
    let (mut word, mut at) = (0, 0);
    while at < 8 {
        word |= ((1 + round % 8) << 4 | value >> (4 * at) & 15) as u64 * (1 << (8 * at));
        at += 1;
    }
    word
}

/// The value of a word whose bytes are all of this round.
pub fn value_of(word: u64, round: u32) -> Option<u32> {
    let nibble = |at: u32| (word >> (8 * at) & 15) as u32 * (1 << (4 * at));
    let is_of_round = word & 0xf0f0_f0f0_f0f0_f0f0 == value_word(0, round);
    is_of_round.then(|| (0..8).map(nibble).sum())
}

impl Context<Thread> {
    /// As [`p`](Context::p), for a value that [`wait_value`](Context::wait_value) of the same round waits for. The word is this series' alone, of one sender, and 0
    /// before its first round; the sender is at most one round ahead, and a round's `p` is complete before the next one.
    ///
    /// # Errors
    /// As [`p`](Context::p).
    #[inline(always)]
    pub fn p_round(&mut self, to: Sym<u64>, value: u32, round: u32, pe: u32) -> Result<(), Status> {
        self.p(to, value_word(value, round), pe)
    }
}

impl<S: Scope> Context<S> {
    /// Waits until a word of this PE has the value of a round, and returns it. It proves nothing about puts. OpenSHMEM: `shmem_wait_until`.
    ///
    /// # Errors
    /// [`Status::DEADLINE`], the reason the host gave, or an earlier failure of this context.
    #[inline(always)]
    #[track_caller]
    pub fn wait_value(&mut self, at: Sym<u64>, round: u32) -> Result<u32, Status> {
        self.flush();
        // SAFETY: a word of the heap.
        let word = unsafe { &*self.world.local(at).cast::<Word>() };
        let (mut value, mut stop, mut patience) = (None, Ok(()), Patience::default());
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
        /// However many bytes of a round have come over those of another one.
        #[test]
        fn a_value_is_there_when_all_its_bytes_are(value: u32, before: u32, round in 1u32..1000, ahead in 1u32..8, come: u8) {
            let (old, new) = (value_word(before, round), value_word(value, round + ahead));
            let mask = (0..8).filter(|at| come >> at & 1 == 1).fold(0, |mask, at| mask | 0xffu64 << (8 * at));
            let word = old & !mask | new & mask;
            prop_assert_eq!(value_of(word, round + ahead), (come == 0xff).then_some(value));
            prop_assert_eq!(value_of(word, round), (come == 0).then_some(before));
            prop_assert_eq!(value_of(new & mask, round + ahead), (come == 0xff).then_some(value), "over zeros");
        }
    }
}
