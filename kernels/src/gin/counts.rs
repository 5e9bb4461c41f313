//! Rounds of messages whose number is not known to the receiver in advance. In each round the receiver obtains the
//! number in one of three ways.
//!
//! ```text
//! BY_SIGNAL   a separate signal, which adds the number plus one
//! BY_VALUE    the number as a value with its round
//! BY_SUM      no separate transfer: the first message's signal also adds the difference to the maximum number,
//!             so that the sum of a round's signals is always the same
//! ```
//!
//! A message is a put with a signal that adds the result of [`Counts::adds`]. No PE is one round ahead. A PE announces
//! the next round to another PE only after that PE has answered the current round, with a message or a separate signal.
//! Before it answers, a PE waits for all messages of the round.

use super::{Context, Scope, Signal, Sym, Thread};
use crate::ring::Status;
use cuda_std::memory::{Word, load_relaxed_gpu_u64, store_relaxed_gpu_u64};

/// A separate signal adds the number plus one; see the module documentation.
pub const BY_SIGNAL: u32 = 0;
/// The number is sent as a value with its round; see the module documentation.
pub const BY_VALUE: u32 = 1;
/// The signals of a round always add up to the maximum number; see the module documentation.
pub const BY_SUM: u32 = 2;

/// One signal per PE, and the sums observed by this PE.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// First of the signals: PE `pe` adds to the one at index `pe`.
    pub signals: Signal,
    /// Sum of each signal up to this PE's last wait, in device memory.
    pub seen: *const Word,
}

impl Tally {
    #[inline(always)]
    fn seen(&self, pe: u32) -> &Word {
        // SAFETY: `seen` has one word per PE.
        unsafe { &*self.seen.add(pe as usize) }
    }
}

/// Parameters and memory for counting messages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// [`BY_SIGNAL`], [`BY_VALUE`] or [`BY_SUM`].
    pub way: u32,
    /// Maximum number of messages from one PE to another in a round. Over rails it must be below
    /// [`MOST_ADDED`](super::MOST_ADDED), except with `BY_VALUE`.
    pub most: u32,
    /// Signals of the messages.
    pub arrived: Tally,
    /// Numbers of messages, as signals.
    pub signalled: Tally,
    /// Numbers of messages, as values: one word per PE.
    pub values: Sym<u64>,
}

impl Counts {
    /// Returns the value that a message's signal adds. `most` and `count` are the maximum and the actual number of
    /// messages to that PE.
    pub const fn adds(way: u32, most: u32, count: u32, is_first: bool) -> u32 {
        if way == BY_SUM && is_first { 1 + most - count } else { 1 }
    }
}

impl Context<Thread> {
    /// Announces to PE `pe` that this PE sends it `count` messages in this round.
    ///
    /// # Errors
    /// Returns the same errors as [`signal_op`](Context::signal_op) and [`p`](Context::p).
    #[inline(always)]
    pub fn announce(&mut self, counts: &Counts, count: u32, round: u32, pe: u32) -> Result<(), Status> {
        let me = self.world.me;
        match counts.way {
            BY_SIGNAL => self.signal_op(counts.signalled.signals.at(me), count as u64 + 1, pe),
            BY_VALUE => self.p_round(counts.values.at(me as u64), count, round, pe),
            _ if count == 0 => self.signal_op(counts.arrived.signals.at(me), counts.most as u64, pe),
            _ => Ok(()),
        }
    }
}

impl<S: Scope> Context<S> {
    /// Waits until PE `pe` has added `more` to its signal of `tally` since the last wait for it.
    ///
    /// # Errors
    /// Returns the same errors as [`signal_wait_until`](Context::signal_wait_until).
    #[inline(always)]
    #[track_caller]
    pub fn wait_more(&mut self, tally: &Tally, pe: u32, more: u64) -> Result<(), Status> {
        // All threads load the word before the scope's barrier in the wait; one thread stores it after that barrier.
        let sum = load_relaxed_gpu_u64(tally.seen(pe)) + more;
        self.signal_wait_until(tally.signals.at(pe), sum)?;
        if self.scope.leads() {
            store_relaxed_gpu_u64(tally.seen(pe), sum);
        }
        Ok(())
    }

    /// Waits for all messages that PE `pe` sends in this round. Their bytes are then visible to the scope.
    ///
    /// # Errors
    /// Returns the same errors as [`signal_wait_until`](Context::signal_wait_until).
    #[inline(always)]
    #[track_caller]
    pub fn wait_counted(&mut self, counts: &Counts, round: u32, pe: u32) -> Result<(), Status> {
        let count = match counts.way {
            BY_SIGNAL => {
                // Each round has one addition, so the increase is the number plus 1.
                let (signal, seen) = (counts.signalled.signals.at(pe), load_relaxed_gpu_u64(counts.signalled.seen(pe)));
                self.signal_wait_until(signal, seen + 1)?;
                let more = self.world.planes(signal).sum() - seen;
                self.wait_more(&counts.signalled, pe, more)?;
                more - 1
            }
            BY_VALUE => self.wait_value(counts.values.at(pe as u64), round)? as u64,
            _ => counts.most as u64,
        };
        self.wait_more(&counts.arrived, pe, count)
    }
}
