//! Waits on memory: for a signal's two planes to reach a sum. Every wait is bounded.

use crate::ring::Status;
use cuda_std::memory::{Word, load_acquire_sys_u64};
use cuda_std::thread;

/// Looks between two looks at the clock and at the host's word, which is across the bus.
const LOOKS: u32 = 64;
/// With proxies alone adding, the plane of this device is looked at once in so many looks: this PE may signal itself.
const SELDOM: u32 = 8;
/// Longest pause between two looks at host memory (nanoseconds): each is a round trip over PCIe beside those of others.
const LONGEST_SLEEP: u32 = 256;

/// The two words of a signal.
#[derive(Clone, Copy, Debug)]
pub struct Planes<'a> {
    /// In this PE's heap.
    pub near: &'a Word,
    /// In host memory, where rails are.
    pub far: Option<&'a Word>,
    /// Whether other PEs add to the near one.
    pub mapped: bool,
}

impl Planes<'_> {
    /// The signal's value. Both planes are acquired: what was signalled is visible.
    ///
    /// Each word only grows, so the sum of two readings one after the other is no more than the signal's value at the second.
    #[inline(always)]
    pub fn sum(&self) -> u64 {
        let near = load_acquire_sys_u64(self.near);
        near + self.far.map_or(0, load_acquire_sys_u64)
    }

    /// Waits until the signal is at least `wanted`; returns what it was then.
    ///
    /// Whoever adds does so behind its bytes: a PE that has this heap mapped by a system fence and an atomic, a proxy by a
    /// release. The acquire of the word that completes the sum brings those bytes, and the acquire of the other plane those of its
    /// share.
    ///
    /// # Errors
    /// What it had reached, and [`Status::DEADLINE`] or the reason in `abort`.
    #[inline(always)]
    pub fn wait(&self, wanted: u64, timeout_ns: u64, abort: &Word) -> Result<u64, (Status, u64)> {
        let seen = self.sum();
        if seen >= wanted { Ok(seen) } else { self.wait_long(wanted, timeout_ns, abort) }
    }

    /// The first look was in vain. Out of line: there is one such loop for all calls of a kernel.
    #[inline(never)]
    fn wait_long(self, wanted: u64, timeout_ns: u64, abort: &Word) -> Result<u64, (Status, u64)> {
        let mut near = load_acquire_sys_u64(self.near);
        let mut limit = Limit::new(timeout_ns);
        let mut looks = 0u32;
        let mut sleep = 0;
        loop {
            if self.mapped || looks.is_multiple_of(SELDOM) {
                near = load_acquire_sys_u64(self.near);
            }
            let seen = near + self.far.map_or(0, load_acquire_sys_u64);
            if seen >= wanted {
                return Ok(seen);
            }
            looks = looks.wrapping_add(1);
            if let Err(stop) = limit.look(abort) {
                // Once more: it may have come since.
                let seen = self.sum();
                return if seen >= wanted { Ok(seen) } else { Err((stop, seen)) };
            }
            if self.far.is_some() && !self.mapped {
                sleep = (sleep * 2).clamp(16, LONGEST_SLEEP);
                thread::nanosleep(sleep);
            }
            thread::relax();
        }
    }
}

/// What ends a wait that nobody answers.
pub(super) struct Limit {
    timeout_ns: u64,
    began: u64,
    looks: u32,
}

impl Limit {
    #[inline(always)]
    pub fn new(timeout_ns: u64) -> Limit {
        Limit { timeout_ns, began: thread::global_timer_ns(), looks: 0 }
    }

    /// After a look in vain.
    #[inline(always)]
    pub fn look(&mut self, abort: &Word) -> Result<(), Status> {
        self.looks += 1;
        if self.looks < LOOKS {
            return Ok(());
        }
        self.looks = 0;
        match load_acquire_sys_u64(abort) {
            0 if thread::global_timer_ns().wrapping_sub(self.began) > self.timeout_ns => Err(Status::DEADLINE),
            0 => Ok(()),
            reason => Err(Status(reason)),
        }
    }
}
