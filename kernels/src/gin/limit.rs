//! Bounds of waits. A wait counts its polls, and at intervals it reads the clock and the host's words.
//!
//! A deadline counts from the last progress, of any thread of this PE or of any rank that the host observes. The same
//! rule applies to waits for signals, words, messages and other blocks. A short wait stores nothing. A wait that has
//! lasted 2 ms records its time as progress, because the thread has finished everything that preceded this wait. The
//! host detects the progress of short waits by hashing memory of this PE.

use crate::ring::Status;
use cuda_std::memory::{Word, load_acquire_sys_u64, load_relaxed_sys_u64, store_relaxed_sys_u64};
use cuda_std::thread;

/// Number of polls between two readings of the clock.
pub(super) const LOOKS: u32 = 64;
/// Binary logarithm of the time, in nanoseconds, before the first check of the host's word and between two checks. Each
/// check crosses PCIe. If thousands of waiting threads checked at short intervals, they would saturate the bus, and the
/// checks of each PE would delay the others.
const ASK_BITS: u32 = 21;
const APART_BITS: u32 = 16;
/// Returns the number of checks of the host's word that are due for a thread that has waited for `waited_ns`. Threads
/// of a warp check 2^[`APART_BITS`] ns apart.
#[inline(always)]
pub(super) fn due_after(waited_ns: u64) -> u32 {
    let apart = ((thread::thread_idx_x() % 32) as u64) << APART_BITS;
    (waited_ns.saturating_sub(apart) >> ASK_BITS) as u32
}

/// Number of checks of the host's word between two checks for progress, which are about 134 ms apart.
const SELDOM: u32 = 64;

/// Words in host memory with which the host ends the waits of a world and restarts their deadlines. Zeroed by the host.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    /// The [`Status`] that ends every wait, stored by the host. 0 while waits continue.
    pub abort: Word,
    /// Number of times that the host has observed progress of this PE or of another rank, stored by the host.
    pub seen: Word,
    /// Value of `seen` at the last change observed by a wait, followed by the time of the observation.
    taken: Word,
    renewed: Word,
    /// Time at which a thread of this PE last made progress. Separate from `renewed`, so that the host reports only
    /// progress of this PE to the other ranks, and not the progress that they have reported.
    pub moved: Word,
}

impl Default for Control {
    fn default() -> Control {
        let word = || Word::new(0);
        Control { abort: word(), seen: word(), taken: word(), renewed: word(), moved: word() }
    }
}

impl Control {
    /// Records progress of this PE at time `now`.
    #[inline(always)]
    pub(super) fn progressed(&self, now: u64) {
        store_relaxed_sys_u64(&self.moved, now);
    }

    /// Checks the host's words on behalf of a wait that started at `began`. `asked` is the number of checks that were
    /// due at its previous check, `due` the number now. `has_grown` returns whether the awaited value has grown since
    /// the previous call of `has_grown`.
    #[inline(always)]
    fn check(
        &self,
        (now, began): (u64, u64),
        (asked, due): (u32, u32),
        timeout_ns: u64,
        has_grown: impl FnOnce() -> bool,
    ) -> Result<(), Status> {
        let reason = load_acquire_sys_u64(&self.abort);
        if reason != 0 {
            return Err(Status(reason));
        }
        let is_over = now.wrapping_sub(began) > timeout_ns;
        if !is_over && asked != 0 && asked / SELDOM == due / SELDOM {
            return Ok(());
        }
        // On the first check, this thread has finished its previous waits.
        if has_grown() | (asked == 0) {
            self.progressed(now);
            return Ok(());
        }
        let seen = load_relaxed_sys_u64(&self.seen);
        if seen != load_relaxed_sys_u64(&self.taken) {
            store_relaxed_sys_u64(&self.taken, seen);
            store_relaxed_sys_u64(&self.renewed, now);
            return Ok(());
        }
        // Clocks of two SMs can differ slightly. A time later than `now` has age 0.
        let is_old = |time: &Word| now.saturating_sub(load_relaxed_sys_u64(time)) > timeout_ns;
        if is_over && is_old(&self.moved) && is_old(&self.renewed) { Err(Status::DEADLINE) } else { Ok(()) }
    }
}

/// Bound of one wait.
pub(super) struct Limit {
    timeout_ns: u64,
    /// Time of the first reading of the clock. 0 before this reading, because most waits end sooner.
    began: u64,
    /// Two counters in one word. The remainder by [`LOOKS`] is the number of polls since the last reading of the clock,
    /// the quotient is the number of checks of the host's word.
    looks: u32,
}

impl Limit {
    #[inline(always)]
    pub fn new(timeout_ns: u64) -> Limit {
        Limit { timeout_ns, began: 0, looks: 0 }
    }

    /// Records an unsuccessful poll. Fails if the wait must end.
    #[inline(always)]
    pub fn look(&mut self, control: &Control) -> Result<(), Status> {
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS) { self.due(control, || false) } else { Ok(()) }
    }

    /// Records [`LOOKS`] unsuccessful polls, for callers that count them themselves. Fails if the wait must end.
    #[inline(always)]
    pub fn ask(&mut self, control: &Control) -> Result<(), Status> {
        self.looks += LOOKS;
        self.due(control, || false)
    }

    #[inline(always)]
    fn due(&mut self, control: &Control, has_grown: impl FnOnce() -> bool) -> Result<(), Status> {
        let now = thread::global_timer_ns();
        if self.began == 0 {
            self.began = now;
        }
        let asked = self.looks / LOOKS - 1;
        if due_after(now.wrapping_sub(self.began)) <= asked {
            self.looks -= LOOKS;
            return Ok(());
        }
        control.check((now, self.began), (asked, asked + 1), self.timeout_ns, has_grown)
    }
}

/// Like [`Limit`], for a wait for a sum: growth of the sum is progress.
pub(crate) struct GrowthLimit {
    limit: Limit,
    /// Sum at the last check for progress.
    seen: u64,
}

impl GrowthLimit {
    #[inline(always)]
    pub fn new(timeout_ns: u64) -> GrowthLimit {
        GrowthLimit { limit: Limit::new(timeout_ns), seen: 0 }
    }

    /// Records an unsuccessful poll that observed `sum`. Fails if the wait must end.
    #[inline(always)]
    pub fn look(&mut self, sum: u64, control: &Control) -> Result<(), Status> {
        self.limit.looks += 1;
        if !self.limit.looks.is_multiple_of(LOOKS) {
            return Ok(());
        }
        let seen = &mut self.seen;
        self.limit.due(control, || core::mem::replace(seen, sum) != sum)
    }
}

/// Bound of a kernel's own spin loop on words that another block or PE stores (a value with its tag, like those of an
/// [`Inbox`](super::Inbox)). The loop calls [`look`](WaitBudget::look) after each unsuccessful poll. It is always
/// inlined, so the loop keeps its registers. A kernel whose wait failed reports it after the loop with
/// [`WorldView::gave_up`](super::WorldView::gave_up). Each wait needs a new `WaitBudget`.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitBudget {
    looks: u32,
    /// Number of checks of the host's word.
    asked: u32,
    began: u64,
}

/// Number of polls of a [`WaitBudget`] between two readings of the clock.
const VAIN_LOOKS: u32 = 256;

impl WaitBudget {
    /// Records an unsuccessful poll. Returns `Ok` if the loop should poll again.
    ///
    /// The host's word is checked as rarely as in the API's own waits. All threads of a grid may wait at the same time,
    /// and if a PE starts late, checks over PCIe would delay it further.
    ///
    /// # Errors
    /// Returns [`Status::DEADLINE`] if there was no progress for the world's timeout, [`Status::ENDED`] if another call
    /// of this PE has failed, or the status with which the host ended the wait.
    #[inline(always)]
    pub fn look(&mut self, world: &super::WorldView) -> Result<(), Status> {
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
        let asked = self.asked;
        self.asked = due;
        if world.has_failed() {
            return Err(Status::ENDED);
        }
        // SAFETY: the host's words outlive the grid.
        unsafe { &*world.abort }.check((now, self.began), (asked, due), world.timeout_ns, || false)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const TIMEOUT: u64 = 1000;

    /// Performs a check, but not the first one, of a wait that started at time 0.
    fn check(control: &Control, now: u64, has_grown: bool) -> Result<(), Status> {
        control.check((now, 0), (1, SELDOM), TIMEOUT, || has_grown)
    }

    /// The test passes times as arguments instead of waiting.
    #[test]
    fn deadline_counts_from_last_progress() {
        let control = Control::default();
        assert_eq!(check(&control, TIMEOUT, false), Ok(()));
        assert_eq!(check(&control, TIMEOUT + 1, false), Err(Status::DEADLINE), "nothing has moved");
        assert_eq!(check(&control, 1500, true), Ok(()), "what is waited for has grown");
        assert_eq!(check(&control, 2500, false), Ok(()));
        assert_eq!(check(&control, 2501, false), Err(Status::DEADLINE));
        assert_eq!(control.check((2600, 2600), (0, 1), TIMEOUT, || false), Ok(()), "another thread begins to wait");
        assert_eq!(check(&control, 3600, false), Ok(()));
        store_relaxed_sys_u64(&control.seen, 7);
        assert_eq!(check(&control, 4000, false), Ok(()), "the host has seen something");
        assert_eq!(check(&control, 5000, false), Ok(()));
        assert_eq!(check(&control, 5001, false), Err(Status::DEADLINE), "nothing since");
        assert_eq!(load_relaxed_sys_u64(&control.moved), 2600, "progress that the host has seen is not reported again");
        // With continued progress a wait never ends.
        assert!((6..1000).all(|step| check(&control, step * 900, true).is_ok()));
    }

    #[test]
    fn sum_that_stays_is_not_progress() {
        let (control, mut limit) = (Control::default(), GrowthLimit::new(0));
        // Checks are due every 2 ms.
        let ends = (0..1 << 30).any(|_| {
            limit.look(3, &control) == Err(Status::DEADLINE) || {
                limit.limit.began = 1;
                false
            }
        });
        assert!(ends);
    }

    #[test]
    fn abort_takes_precedence_over_progress() {
        let control = Control::default();
        store_relaxed_sys_u64(&control.abort, Status::ENDED.0);
        assert_eq!(check(&control, 1, true), Err(Status::ENDED));
    }
}
