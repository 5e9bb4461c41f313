//! Batches: many small puts of one scope, published together.
//!
//! A put is a command in the ring, and a system-scope fence for its payload precedes the command. That fence waits
//! until the commands that this thread stored earlier have arrived over PCIe: single puts therefore reach 0.6 Mops at
//! any size. A scope can therefore batch its puts: each of its first lanes keeps one command in its registers, and one
//! warp instruction pushes all of them after a single fence: 4 commands per fence reach 2.4 Mops, 16 reach 9.6, 32
//! reach 19.
//!
//! The ordering is unchanged: a put's payload was written before the put's call, whose barrier every lane has passed
//! before it fences. The price is latency: a put waits until its batch is full, until a call that publishes
//! ([`Context::batched`](crate::gin::Context::batched) lists them), or until the first put after [`LONGEST`]. A put's
//! own signal waits with it. A scope that puts and then computes for a long time without any of these should flush.

use crate::command::Command;
use crate::ring::Status;
use cuda_std::{thread, warp};

/// Age of a batch after which the next put publishes it: several times what filling a batch takes. In clock cycles on
/// the GPU (20 us at 2 GHz), in nanoseconds on the host. (Reading the GPU's nanosecond timer takes longer than adding a
/// put.)
pub const LONGEST: u64 = 40_000;

/// The commands of a batch, one in each of the scope's first threads, which are in the same warp.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// This thread's command, valid if one is pending.
    command: Command,
    pending: u32,
    capacity: u32,
    /// Number of the scope's lanes in the first warp.
    lanes: u32,
    opened: u64,
}

impl Batch {
    /// Creates a batch of at most `wanted` commands, for a scope of `threads` threads whose first ones are in the same
    /// warp. If `wanted` is 1, no put is deferred.
    #[inline(always)]
    pub fn new(wanted: u32, threads: u32) -> Batch {
        let lanes = threads.clamp(1, u32::BITS);
        Batch { command: Command::signal(0, 0), pending: 0, capacity: wanted.clamp(1, lanes), lanes, opened: 0 }
    }

    /// Returns the maximum number of commands.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of pending commands. The result is valid only in threads that can hold a command.
    #[inline(always)]
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// Adds a command. Every thread of the scope must call it with the same command. Returns whether the batch must be
    /// published, in all threads that can hold a command.
    #[inline(always)]
    #[track_caller]
    pub fn add(&mut self, rank: u32, command: &Command) -> bool {
        if rank == self.pending {
            self.command = *command;
        }
        self.pending += 1;
        self.pending >= self.capacity || self.is_old(rank)
    }

    /// Returns whether the batch has been open for longer than [`LONGEST`], by the clock of the first lane. Threads
    /// beyond the first warp hold no command and do not check.
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

    /// Pushes the pending commands. Every thread of the scope must call it; the threads that hold a command push
    /// together. In those threads it returns the watermark that [`Outlet::wait`](crate::outlet::Outlet::wait) must
    /// reach for all of them, and 0 in the others.
    ///
    /// # Errors
    /// Returns the same errors as [`Outlet::push`](crate::outlet::Outlet::push), in the threads whose command could
    /// not be pushed.
    #[inline(always)]
    #[track_caller]
    pub fn publish(&mut self, push: impl FnOnce(&Command) -> Result<u64, Status>, rank: u32) -> Result<u64, Status> {
        let count = core::mem::take(&mut self.pending);
        // Copied, because a push takes the command by address, which would keep the batch in local memory.
        let command = self.command;
        if rank >= count { Ok(0) } else { push_together(|| push(&command), rank, count) }
    }
}

/// Pushes one command of each of a scope's first `count` threads after a single fence. Exactly those threads must call
/// it. Returns the watermark that [`Outlet::wait`](crate::outlet::Outlet::wait) must reach for all of them: the
/// largest ticket plus 1. (Lanes that are not converged push one after another, in any order.)
///
/// # Errors
/// Returns the same errors as [`Outlet::push`](crate::outlet::Outlet::push), in the threads whose command could not
/// be pushed.
#[inline(always)]
#[track_caller]
pub(crate) fn push_together(push: impl FnOnce() -> Result<u64, Status>, rank: u32, count: u32) -> Result<u64, Status> {
    let pushed = push();
    let own = pushed.as_ref().map_or(0, |ticket| ticket + 1);
    let end = if warp::SIZE == 1 { own } else { largest(own, rank, count) };
    pushed.map(|_| end)
}

/// Returns the largest of the first `count` lanes' values, in all of these lanes.
#[inline(always)]
#[track_caller]
fn largest(value: u64, rank: u32, count: u32) -> u64 {
    let mask = u32::MAX >> (u32::BITS - count);
    let mut largest = value;
    let mut step = u32::BITS / 2;
    while step > 0 {
        // A missing lane is replaced by this lane.
        let source = if rank + step < count { rank + step } else { rank };
        largest = largest.max(warp::shuffle_u64(mask, largest, source));
        step /= 2;
    }
    warp::broadcast_u64(mask, largest, 0)
}
