//! Messages of which the receiver does not know how many come: it learns that in each round, by one of three ways.
//!
//! ```text
//! BY_SIGNAL   a signal of its own, of their number and one
//! BY_VALUE    the number as a value with its round
//! BY_SUM      nothing: the first message's signal adds what the others leave over, so that all signals of a round add the same
//! ```
//!
//! A message is a put with a signal that adds what [`Counts::adds`] says. Nobody is a round ahead: a PE announces the next round to another one when that has
//! answered this one, by a message or a bare signal, and so has waited for all of it.

use super::{Context, Scope, Signal, Sym, Thread};
use crate::ring::Status;
use cuda_std::memory::{Word, load_relaxed_gpu_u64, store_relaxed_gpu_u64};

/// See the module.
pub const BY_SIGNAL: u32 = 0;
/// See the module.
pub const BY_VALUE: u32 = 1;
/// See the module.
pub const BY_SUM: u32 = 2;

/// A signal for each PE, and how far this PE has seen it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// The first of them: PE `pe` adds to that of its number.
    pub signals: Signal,
    /// Device memory: what this PE's waits have seen of each.
    pub seen: *const Word,
}

impl Tally {
    #[inline(always)]
    fn seen(&self, pe: u32) -> &Word {
        // SAFETY: a word for each PE, as whoever makes one says.
        unsafe { &*self.seen.add(pe as usize) }
    }
}

/// How messages are counted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// [`BY_SIGNAL`], [`BY_VALUE`] or [`BY_SUM`].
    pub way: u32,
    /// Messages of one PE to another one in a round, at most; over rails less than [`MOST_ADDED`](super::MOST_ADDED), but for `BY_VALUE`.
    pub most: u32,
    /// Messages.
    pub arrived: Tally,
    /// Their numbers, as signals.
    pub signalled: Tally,
    /// Their numbers, as values: a word for each PE.
    pub values: Sym<u64>,
}

impl Counts {
    /// What a message's signal adds, where `most` and `count` are the most and the actual number of messages to that PE.
    pub const fn adds(way: u32, most: u32, count: u32, is_first: bool) -> u32 {
        if way == BY_SUM && is_first { 1 + most - count } else { 1 }
    }
}

impl Context<Thread> {
    /// Says how many messages PE `pe` will get of this PE in this round.
    ///
    /// # Errors
    /// As [`signal_op`](Context::signal_op) and [`p`](Context::p).
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
    /// Waits until PE `pe` has added `more` to its signal of a tally since the last wait for it.
    ///
    /// # Errors
    /// As [`signal_wait_until`](Context::signal_wait_until).
    #[inline(always)]
    #[track_caller]
    pub fn wait_more(&mut self, tally: &Tally, pe: u32, more: u64) -> Result<(), Status> {
        // All read it before the scope meets in the wait, and one writes it behind.
        let sum = load_relaxed_gpu_u64(tally.seen(pe)) + more;
        self.signal_wait_until(tally.signals.at(pe), sum)?;
        if self.scope.leads() {
            store_relaxed_gpu_u64(tally.seen(pe), sum);
        }
        Ok(())
    }

    /// Waits for all messages that PE `pe` sends in this round: their bytes are visible to the scope.
    ///
    /// # Errors
    /// As [`signal_wait_until`](Context::signal_wait_until).
    #[inline(always)]
    #[track_caller]
    pub fn wait_counted(&mut self, counts: &Counts, round: u32, pe: u32) -> Result<(), Status> {
        let count = match counts.way {
            BY_SIGNAL => {
                // One addition: whatever has been added is the number and one.
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
