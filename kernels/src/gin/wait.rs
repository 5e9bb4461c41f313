//! Waits on memory: for a signal's two planes to reach a sum. Every wait is bounded.

use super::World;
use super::arrivals::{self, Arrivals};
use super::limit::{GrowthLimit, LOOKS, due_after};
use super::report::{Call, Failure, NO_PE};
use super::wanted::Wanted;
use crate::ring::Status;
use cuda_std::call::by_address;
use cuda_std::memory::{Word, load_acquire_sys_u64};
use cuda_std::thread;

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
    /// Not null: waiting kernels read themselves what cards bring.
    pub arrivals: *const Arrivals,
}

impl Planes<'_> {
    /// The signal's value. Both planes are acquired: what was signalled is visible.
    ///
    /// Each word only grows, so the sum of two readings one after the other is no more than the signal's value at the second.
    #[inline(always)]
    pub fn sum(&self) -> u64 {
        if !self.arrivals.is_null() {
            // SAFETY: contract of the world: it is there while the grid runs.
            arrivals::look(unsafe { &*self.arrivals }, self.far);
        }
        let near = load_acquire_sys_u64(self.near);
        near + self.far.map_or(0, load_acquire_sys_u64)
    }

    /// Whether all of the signal is in memory of this device: a look is no trip over the bus.
    #[inline(always)]
    pub fn is_near(&self) -> bool {
        self.arrivals.is_null() && self.far.is_none()
    }

    /// Whether the sum of a signal that [is near](Planes::is_near) becomes what is wanted in the next few looks; as [`wait`](Planes::wait), which then
    /// need not be called.
    #[inline(always)]
    pub fn is_met_soon(&self, wanted: Wanted) -> bool {
        // In place, since a call keeps the caller's registers in local memory, which the acquire has thrown out of L1.
        let mut left = LOOKS;
        loop {
            thread::keep_rolled();
            let sum = self.sum();
            // While the look is under way.
            left -= 1;
            if wanted.is_met(sum) {
                return true;
            }
            if left == 0 {
                return false;
            }
            thread::relax();
        }
    }

    /// Waits until the signal's sum is what is wanted.
    ///
    /// Whoever adds does so behind its bytes: a PE that has this heap mapped by a system fence and an atomic, a proxy by a
    /// release, after a flush where the device does not order what cards write into its memory. The acquire of the word that completes the
    /// sum brings those bytes, and the acquire of the other plane those of its share.
    ///
    /// The deadline begins again when the signal grows: a sum that comes late, step by step, is no stall.
    ///
    /// # Errors
    /// What it had reached, and [`Status::DEADLINE`] or the reason in `abort`.
    #[inline(always)]
    pub fn wait(&self, wanted: Wanted, timeout_ns: u64, abort: &Word) -> Result<(), (Status, u64)> {
        if !self.arrivals.is_null() {
            // SAFETY: as above.
            let arrivals = unsafe { &*self.arrivals };
            let stop = arrivals::wait(arrivals, (self.near, self.far, self.mapped), wanted, timeout_ns, abort);
            return if stop == 0 { Ok(()) } else { Err((Status(stop), self.sum())) };
        }
        let wait_long = by_address(wait_long as fn(&_, Option<&_>, _, _, _, &_) -> _);
        let stop = wait_long(self.near, self.far, self.mapped, wanted, timeout_ns, abort);
        if stop == 0 { Ok(()) } else { Err((Status(stop), self.sum())) }
    }
}

/// Behind the first looks, where there were some. 0, or the reason to stop. Out of line: there is one such loop for all calls of a kernel.
#[inline(never)]
fn wait_long(near: &Word, far: Option<&Word>, mapped: bool, wanted: Wanted, timeout_ns: u64, abort: &Word) -> u64 {
    let mut own = 0;
    let mut limit = GrowthLimit::new(timeout_ns);
    let mut looks = 0u32;
    let mut sleep = 0;
    loop {
        if mapped || looks.is_multiple_of(SELDOM) {
            own = load_acquire_sys_u64(near);
        }
        let sum = own + far.map_or(0, load_acquire_sys_u64);
        if wanted.is_met(sum) {
            return 0;
        }
        looks = looks.wrapping_add(1);
        if let Err(stop) = limit.look(sum, abort) {
            // Once more: it may have come since.
            let seen = load_acquire_sys_u64(near) + far.map_or(0, load_acquire_sys_u64);
            return if wanted.is_met(seen) { 0 } else { stop.0 };
        }
        if far.is_some() && !mapped {
            sleep = (sleep * 2).clamp(16, LONGEST_SLEEP);
            thread::nanosleep(sleep);
        }
        thread::relax();
    }
}

/// The bound of a program's own spin on words that another block or PE stores (a value with its tag, as [`Inbox`](super::Inbox) has
/// them): each look that was in vain asks it whether to go on. It calls nothing, so the spin keeps its registers; behind the loop
/// whoever has given up says so by [`World::gave_up`]. Each wait begins with a new one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    looks: u32,
    /// Looks at the host's word.
    asked: u32,
    began: u64,
}

/// Looks of a [`Patience`] between two looks at the clock.
const VAIN_LOOKS: u32 = 256;

impl Patience {
    /// Whether to look again; otherwise the reason why not: the world's deadline, the host's word, or another call of this PE that has
    /// failed. The host's word is asked for as seldom as calls do: all threads of a grid may wait at once, and when a PE is late at the
    /// beginning, looks over the bus make it later (two H200, 32768 threads: 230 us an iteration in place of 1.6, for good).
    ///
    /// # Errors
    /// The reason.
    #[inline(always)]
    pub fn look(&mut self, world: &World) -> Result<(), Status> {
        self.looks += 1;
        if !self.looks.is_multiple_of(VAIN_LOOKS) {
            return Ok(());
        }
        let now = thread::global_timer_ns();
        if self.began == 0 {
            self.began = now;
        }
        let due = due_after(now - self.began);
        if due <= self.asked {
            return Ok(());
        }
        self.asked = due;
        // SAFETY: the host's word is there while the grid runs.
        match load_acquire_sys_u64(unsafe { &*world.abort }) {
            0 if world.has_failed() => Err(Status::ENDED),
            0 if now - self.began > world.timeout_ns => Err(Status::DEADLINE),
            0 => Ok(()),
            reason => Err(Status(reason)),
        }
    }
}

impl World {
    /// Notes in the report that a spin has ended in vain, for this reason, unless something has been noted. `wanted`: the number of the
    /// words that did not come.
    #[inline(never)]
    pub fn gave_up(&self, stop: Status, wanted: u64) {
        super::report::note(self, stop, Failure { call: Call::Words, pe: NO_PE, detail: 0, seen: 0, wanted });
    }

    /// As [`gave_up`](World::gave_up), of a signal that has reached `seen`.
    #[inline(never)]
    pub(crate) fn gave_up_signal(&self, stop: Status, signal: super::Signal, seen: u64, wanted: u64) {
        let detail = signal.0 as u64;
        super::report::note(self, stop, Failure { call: Call::Wait, pe: NO_PE, detail, seen, wanted });
    }
}
