//! Waits on memory: for a signal's two planes to reach a sum. Every wait is bounded.

use super::World;
use super::report::{Call, Failure, NO_PE};
use crate::ring::Status;
use cuda_std::memory::{Word, load_acquire_sys_u64};
use cuda_std::thread;

/// Looks between two looks at the clock.
pub(super) const LOOKS: u32 = 64;
/// The time between two looks at the host's word, which is across the bus, and until the first one: 2^21 ns. Threads of a block look
/// 2^16 ns apart. Some thousand threads that wait for words of a message would take all the bus has (two H200: 16384 of them, 250 us for
/// an exchange of 4 us, since each PE's looks made the other one wait and look).
const ASK_BITS: u32 = 21;
const APART_BITS: u32 = 16;
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
    pub fn wait(&self, wanted: u64, timeout_ns: u64, abort: &Word) -> Result<(), (Status, u64)> {
        // In place, since a call keeps the caller's registers in local memory, which the acquire has thrown out of L1. Host memory is
        // looked at once and then with pauses.
        let looks = if self.far.is_some() { 1 } else { LOOKS };
        for _ in 0..looks {
            if self.sum() >= wanted {
                return Ok(());
            }
            thread::relax();
        }
        let stop = wait_long(self.near, self.far, self.mapped, wanted, timeout_ns, abort);
        if stop == 0 { Ok(()) } else { Err((Status(stop), self.sum())) }
    }
}

/// The first looks were in vain. 0, or the reason to stop. Out of line: there is one such loop for all calls of a kernel.
#[inline(never)]
fn wait_long(near: &Word, far: Option<&Word>, mapped: bool, wanted: u64, timeout_ns: u64, abort: &Word) -> u64 {
    let mut own = 0;
    let mut limit = Limit::new(timeout_ns);
    let mut looks = 0u32;
    let mut sleep = 0;
    loop {
        if mapped || looks.is_multiple_of(SELDOM) {
            own = load_acquire_sys_u64(near);
        }
        if own + far.map_or(0, load_acquire_sys_u64) >= wanted {
            return 0;
        }
        looks = looks.wrapping_add(1);
        if let Err(stop) = limit.look(abort) {
            // Once more: it may have come since.
            let seen = load_acquire_sys_u64(near) + far.map_or(0, load_acquire_sys_u64);
            return if seen >= wanted { 0 } else { stop.0 };
        }
        if far.is_some() && !mapped {
            sleep = (sleep * 2).clamp(16, LONGEST_SLEEP);
            thread::nanosleep(sleep);
        }
        thread::relax();
    }
}

/// Looks at the host's word that are due to a thread that has waited so long.
#[inline(always)]
fn due_after(waited_ns: u64) -> u32 {
    let apart = ((thread::thread_idx_x() % 32) as u64) << APART_BITS;
    (waited_ns.saturating_sub(apart) >> ASK_BITS) as u32
}

/// What ends a wait that nobody answers.
pub(super) struct Limit {
    timeout_ns: u64,
    /// When it was first asked for the time; 0 before, since most waits end sooner.
    began: u64,
    /// Looks since the clock was asked, below [`LOOKS`], and above them the looks at the host's word.
    looks: u32,
}

impl Limit {
    #[inline(always)]
    pub fn new(timeout_ns: u64) -> Limit {
        Limit { timeout_ns, began: 0, looks: 0 }
    }

    /// After a look in vain.
    #[inline(always)]
    pub fn look(&mut self, abort: &Word) -> Result<(), Status> {
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS) { self.due(abort) } else { Ok(()) }
    }

    /// After [`LOOKS`] looks in vain, by whoever counts them himself.
    #[inline(always)]
    pub fn ask(&mut self, abort: &Word) -> Result<(), Status> {
        self.looks += LOOKS;
        self.due(abort)
    }

    #[inline(always)]
    fn due(&mut self, abort: &Word) -> Result<(), Status> {
        let now = thread::global_timer_ns();
        if self.began == 0 {
            self.began = now;
        }
        let waited = now.wrapping_sub(self.began);
        let asked = self.looks / LOOKS - 1;
        if due_after(waited) <= asked {
            self.looks -= LOOKS;
            return Ok(());
        }
        match load_acquire_sys_u64(abort) {
            0 if waited > self.timeout_ns => Err(Status::DEADLINE),
            0 => Ok(()),
            reason => Err(Status(reason)),
        }
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
}
