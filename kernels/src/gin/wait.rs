//! Waits for the two words of a signal to reach a sum. Every wait is bounded.

use super::WorldView;
use super::arrivals::{self, Arrivals};
use super::limit::{Control, GrowthLimit, LOOKS};
use super::report::{Call, Failure, NO_PE};
use super::wanted::WaitCondition;
use crate::ring::Status;
use cuda_std::call::by_address;
use cuda_std::memory::{Word, load_acquire_sys_u64};
use cuda_std::thread;

/// Number of polls between two loads of the word in the heap if only proxies add. (This PE may signal itself.)
const SELDOM: u32 = 8;
/// Maximum sleep between two polls of host memory, in nanoseconds. Each poll is a round trip over PCIe and competes
/// with those of other threads.
const LONGEST_SLEEP: u32 = 256;

/// The two words of a signal.
#[derive(Clone, Copy, Debug)]
pub struct SignalPair<'a> {
    /// The word in this PE's heap.
    pub near: &'a Word,
    /// The word in host memory, or in device memory if kernels read [`Arrivals`]. `None` if there are no rails.
    pub far: Option<&'a Word>,
    /// Whether other PEs add to the near word.
    pub mapped: bool,
    /// Queues and counters that waiting kernels read themselves; null if there are none.
    pub arrivals: *const Arrivals,
}

impl SignalPair<'_> {
    /// Returns the signal's value. Both words are acquired, so data that was put before the signal is visible.
    ///
    /// Each word only grows, so the sum of two successive loads is at most the signal's value at the second load.
    #[inline(always)]
    pub fn sum(&self) -> u64 {
        if !self.arrivals.is_null() {
            // SAFETY: the host keeps `arrivals` valid while the grid runs.
            arrivals::look(unsafe { &*self.arrivals }, self.far);
        }
        let near = load_acquire_sys_u64(self.near);
        near + self.far.map_or(0, load_acquire_sys_u64)
    }

    /// Returns whether all words of the signal are in memory of this device, so that a poll does not cross PCIe.
    #[inline(always)]
    pub fn is_near(&self) -> bool {
        self.arrivals.is_null() && self.far.is_none()
    }

    /// Returns whether the sum of a signal that [is near](SignalPair::is_near) meets `wanted` within the next few
    /// polls. If so, [`wait`](SignalPair::wait) need not be called.
    #[inline(always)]
    pub fn is_met_soon(&self, wanted: WaitCondition) -> bool {
        // Inlined: a call would save the caller's registers to local memory, which the acquire has evicted from L1.
        let mut left = LOOKS;
        loop {
            thread::keep_rolled();
            let sum = self.sum();
            // Overlaps with the poll.
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

    /// Waits until the signal's sum meets `wanted`.
    ///
    /// Every writer adds to the signal after it has written its bytes. A PE that has this heap mapped uses a
    /// system-scope fence and an atomic. A proxy uses a release, after a flush if the device does not order what NICs
    /// write to its memory. The acquire of the word that completes the sum makes those bytes visible, and the acquire
    /// of the other word the bytes of its share.
    ///
    /// The deadline restarts with progress ([`Control`]), which includes growth of the signal: a signal that grows
    /// slowly but steadily is not a stall.
    ///
    /// # Errors
    /// Returns [`Status::DEADLINE`] or the status in `abort`, and the sum that the signal had reached.
    #[inline(always)]
    pub fn wait(&self, wanted: WaitCondition, timeout_ns: u64, abort: &Control) -> Result<(), (Status, u64)> {
        if !self.arrivals.is_null() {
            // SAFETY: the host keeps `arrivals` valid while the grid runs.
            let arrivals = unsafe { &*self.arrivals };
            let stop = arrivals::wait(arrivals, (self.near, self.far, self.mapped), wanted, timeout_ns, abort);
            return if stop == 0 { Ok(()) } else { Err((Status(stop), self.sum())) };
        }
        let wait_long = by_address(wait_long as fn(&_, Option<&_>, _, _, _, &_) -> _);
        let stop = wait_long(self.near, self.far, self.mapped, wanted, timeout_ns, abort);
        if stop == 0 { Ok(()) } else { Err((Status(stop), self.sum())) }
    }
}

/// Implements the wait after the first polls, if there were any. Returns 0, or the status that ended the wait. Not
/// inlined, so that all calls of a kernel share one loop.
#[inline(never)]
fn wait_long(
    near: &Word,
    far: Option<&Word>,
    mapped: bool,
    wanted: WaitCondition,
    timeout_ns: u64,
    abort: &Control,
) -> u64 {
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
            // Checks the sum once more, because it may have been reached since the last poll.
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

impl WorldView {
    /// Records in the report that a spin loop ended without success, with this status, unless a failure has already
    /// been recorded. `wanted` is the number of the words that did not arrive.
    #[inline(never)]
    pub fn gave_up(&self, stop: Status, wanted: u64) {
        super::report::note(self, stop, Failure { call: Call::Words, pe: NO_PE, detail: 0, seen: 0, wanted });
    }

    /// Like [`gave_up`](WorldView::gave_up), for a [`Grid::sync`](super::Grid::sync) that `seen` of `wanted` blocks
    /// have reached.
    #[inline(never)]
    pub(super) fn gave_up_sync(&self, stop: Status, seen: u64, wanted: u64) {
        super::report::note(self, stop, Failure { call: Call::GridSync, pe: NO_PE, detail: 0, seen, wanted });
    }

    /// Records progress of this PE. A kernel that computes for longer than the world's timeout without a call uses it
    /// to extend the waits of its other threads and of other ranks. The store is to host memory, so one thread should
    /// call this occasionally, not in each step of a loop.
    #[inline(always)]
    pub fn progressed(&self) {
        // SAFETY: the host's words outlive the grid.
        unsafe { &*self.abort }.progressed(cuda_std::thread::global_timer_ns());
    }

    /// Like [`gave_up`](WorldView::gave_up), for a signal that has reached `seen`.
    #[inline(never)]
    pub(crate) fn gave_up_signal(&self, stop: Status, signal: super::Signal, seen: u64, wanted: u64) {
        let detail = signal.0 as u64;
        super::report::note(self, stop, Failure { call: Call::Wait, pe: NO_PE, detail, seen, wanted });
    }
}
