//! Many small puts of one group of threads, published together.
//!
//! A put is a command in the ring, and before a command stands a system fence for the payload it speaks of. That fence waits until
//! the commands that this thread has stored before have arrived over PCIe: one put at a time is 0.6 Mops (H200), whatever its
//! size. So a group may let its puts wait for each other: each of the first lanes keeps one command in its registers, and all are
//! pushed by one instruction of the warp, behind one fence. (H200, commands behind one fence: 1: 0.6, 4: 2.4, 16: 9.6, 32: 19 Mops.)
//!
//! The order is what it was: a put's payload was written before its call, whose barrier every lane has passed before it fences.
//! The price is latency: a put waits until its batch is full, until a call that publishes (`quiet`, `fence`, `signal_op`, `flush`, a
//! wait for a signal), or until the first call after [`LONGEST`]. A put's own signal waits with it. A group that puts and then computes for long without any of these should flush.

use crate::command::Command;
use crate::ring::Status;
use crate::ring::producer::Words;
use cuda_std::{thread, warp};

/// A put that has waited so long goes out with the next call: several times what a full batch takes. Cycles on the GPU, 20 us at 2 GHz;
/// nanoseconds on the host. (The clock of nanoseconds takes longer to read than a put to add.)
pub const LONGEST: u64 = 40_000;

/// The commands that wait: one in each of the group's first threads, which are of one warp.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// This thread's command.
    words: Words,
    pending: u32,
    capacity: u32,
    /// The group's lanes of the first warp.
    lanes: u32,
    opened: u64,
}

impl Batch {
    /// A batch of at most `wanted` commands, for a group of so many threads whose first ones are of one warp. One: nothing waits.
    #[inline(always)]
    pub fn new(wanted: u32, threads: u32) -> Batch {
        let lanes = threads.clamp(1, u32::BITS);
        Batch { words: [0; 4], pending: 0, capacity: wanted.clamp(1, lanes), lanes, opened: 0 }
    }

    /// Commands that fit.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Commands that wait, in the threads that may hold one.
    #[inline(always)]
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// Takes a command; every thread of the group calls this with it. True when the batch is to be published, in all threads that may
    /// hold a command.
    #[inline(always)]
    #[track_caller]
    pub fn add(&mut self, rank: u32, command: &Command) -> bool {
        if rank == self.pending {
            self.words = command.encode();
        }
        self.pending += 1;
        self.pending >= self.capacity || self.is_old(rank)
    }

    /// Whether the first command has waited for long enough, by the clock of the first lane. Beyond the first warp nobody holds a
    /// command, and nobody asks.
    #[inline(always)]
    #[track_caller]
    fn is_old(&mut self, rank: u32) -> bool {
        if warp::SIZE == 1 || rank >= self.lanes {
            return false;
        }
        let now = warp::broadcast_u64(u32::MAX >> (u32::BITS - self.lanes), thread::clock(), 0);
        if self.pending == 1 {
            self.opened = now;
        }
        now - self.opened > LONGEST
    }

    /// Pushes what waits; every thread of the group calls this, and those that hold a command push together. Returns what [`Ring::wait`](crate::ring::Ring::wait)
    /// must pass for all of them, in those threads; 0 in the others.
    ///
    /// # Errors
    /// As [`Ring::push`](crate::ring::Ring::push), in the threads whose command could not be pushed.
    #[inline(always)]
    #[track_caller]
    pub fn publish(&mut self, push: impl FnOnce(Words) -> Result<u64, Status>, rank: u32) -> Result<u64, Status> {
        let count = core::mem::take(&mut self.pending);
        if rank >= count { Ok(0) } else { push_together(push, self.words, rank, count) }
    }
}

/// Pushes a command of each of a group's first `count` threads behind one fence; those threads call it, and nobody else. Returns
/// what [`Ring::wait`](crate::ring::Ring::wait) must pass for all of them: one more than the largest ticket. (Lanes that do not come together push one after
/// another, in any order.)
///
/// # Errors
/// As [`Ring::push`](crate::ring::Ring::push), in the threads whose command could not be pushed.
#[inline(always)]
#[track_caller]
pub(crate) fn push_together(
    push: impl FnOnce(Words) -> Result<u64, Status>,
    words: Words,
    rank: u32,
    count: u32,
) -> Result<u64, Status> {
    let pushed = push(words);
    let own = pushed.as_ref().map_or(0, |ticket| ticket + 1);
    let end = if warp::SIZE == 1 { own } else { largest(own, rank, count) };
    pushed.map(|_| end)
}

/// The largest of the first `count` lanes' values, in all of them.
#[inline(always)]
#[track_caller]
fn largest(value: u64, rank: u32, count: u32) -> u64 {
    let mask = u32::MAX >> (u32::BITS - count);
    let mut largest = value;
    let mut step = u32::BITS / 2;
    while step > 0 {
        // A lane that is not there is replaced by oneself.
        let source = if rank + step < count { rank + step } else { rank };
        largest = largest.max(warp::shuffle_u64(mask, largest, source));
        step /= 2;
    }
    warp::broadcast_u64(mask, largest, 0)
}
