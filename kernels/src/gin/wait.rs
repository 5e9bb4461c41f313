//! Waits on memory: for a signal's two planes to reach a sum. Every wait is bounded.

use super::World;
use super::arrivals::{self, Arrivals};
use super::report::{Call, Failure, NO_PE};
use crate::ring::Status;
use cuda_std::call::by_address;
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

/// What a wait wants of a signal's sum: at least a number, or one round.
///
/// Odd rounds add 1 and even rounds add 2 ([`Wanted::added`]). Whoever waits for a round has received all before it, and the sender is at
/// most one round ahead. So the sum is that of all rounds before, plus 0 to 3: the bit of a round's own number says whether it is among
/// what has come, also where the next one has come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The least sum; of a round: what all rounds up to it have added.
    sum: u64,
    /// 0, or what the round adds.
    bit: u64,
}

impl Wanted {
    /// This sum or more.
    #[inline(always)]
    pub const fn at_least(sum: u64) -> Wanted {
        Wanted { sum, bit: 0 }
    }

    /// This round, counted from 1.
    #[inline(always)]
    pub const fn round(round: u32) -> Wanted {
        Wanted { sum: 3 * (round as u64 / 2) + round as u64 % 2, bit: Wanted::added(round) }
    }

    /// What a round adds to its signal.
    #[inline(always)]
    pub const fn added(round: u32) -> u64 {
        2 - round as u64 % 2
    }

    /// Whether a sum says that it has come.
    #[inline(always)]
    pub const fn is_met(self, sum: u64) -> bool {
        if self.bit == 0 {
            return sum >= self.sum;
        }
        // With all rounds before and `x` of {0, own, other, own + other} the difference is `x - own`, whose bit is clear where own has come.
        // Two bits of the sum decide, so it does not matter when the round's number begins again at 0.
        !sum.wrapping_sub(self.sum) & self.bit != 0
    }

    /// What a report says was seen and wanted in vain: sums, or rounds, of which the next one may have come and does not count.
    pub(super) fn told(self, sum: u64) -> (u64, u64) {
        if self.bit == 0 {
            return (sum, self.sum);
        }
        let rounds = |sum: u64| sum / 3 * 2 + !sum.is_multiple_of(3) as u64;
        (rounds(sum).min(rounds(self.sum).saturating_sub(1)), rounds(self.sum))
    }
}

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
            let stop = arrivals::wait(*self, unsafe { &*self.arrivals }, wanted, timeout_ns, abort);
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

/// As [`Limit`], for a sum: its deadline begins again when the sum grows. The time is cut into parts, and it is over after as many in a row
/// without growth as make the whole: so a look costs no more, and the end comes at most a part late.
pub(crate) struct GrowthLimit {
    part: Limit,
    /// The sum at the end of the last part, and how many ended without growth.
    seen: u64,
    still: u32,
}

/// Parts of a timeout.
const PARTS: u32 = 4;

impl GrowthLimit {
    #[inline(always)]
    pub fn new(timeout_ns: u64) -> GrowthLimit {
        GrowthLimit { part: Limit::new(timeout_ns / PARTS as u64), seen: 0, still: 0 }
    }

    /// After a look in vain that saw this sum.
    #[inline(always)]
    pub fn look(&mut self, sum: u64, abort: &Word) -> Result<(), Status> {
        match self.part.look(abort) {
            Err(Status::DEADLINE) => self.part_is_over(sum),
            answer => answer,
        }
    }

    fn part_is_over(&mut self, sum: u64) -> Result<(), Status> {
        self.still = if sum > self.seen { 0 } else { self.still + 1 };
        self.seen = sum;
        self.part = Limit::new(self.part.timeout_ns);
        if self.still < PARTS { Ok(()) } else { Err(Status::DEADLINE) }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ends of parts are given, not waited for.
    #[test]
    fn the_deadline_begins_again_when_the_sum_grows() {
        let mut limit = GrowthLimit::new(1000);
        let mut end = |sum| limit.part_is_over(sum);
        for _ in 1..PARTS {
            assert_eq!(end(0), Ok(()));
        }
        assert_eq!(end(1), Ok(()), "it has grown at last");
        for _ in 1..PARTS {
            assert_eq!(end(1), Ok(()));
        }
        assert_eq!(end(1), Err(Status::DEADLINE), "a whole timeout without growth");
        // However long it takes.
        let mut limit = GrowthLimit::new(1000);
        assert!((1..1000).all(|sum| limit.part_is_over(sum).is_ok()));
        assert_eq!(limit.part.timeout_ns, 250);
    }

    /// What all rounds up to one have added.
    fn added_up_to(round: u32) -> u64 {
        (1..=round).map(Wanted::added).sum()
    }

    proptest! {
        #[test]
        fn a_round_is_met_by_its_own_signal_alone(round in 1u32..5000, own: bool, next: bool) {
            let before = added_up_to(round - 1);
            let sum = before + u64::from(own) * Wanted::added(round) + u64::from(next) * Wanted::added(round + 1);
            prop_assert_eq!(Wanted::round(round).is_met(sum), own);
            if !own {
                prop_assert_eq!(Wanted::round(round).told(sum), (u64::from(round) - 1, u64::from(round)));
            }
        }

        #[test]
        fn rounds_go_on_behind_the_largest_number(ahead in 0u32..4, own: bool, next: bool) {
            // All rounds up to the largest number have added what the two lowest bits say.
            let mut sum = 3 * (u64::from(u32::MAX) / 2) + 1;
            for round in 0..ahead {
                sum += Wanted::added(round);
            }
            sum += u64::from(own) * Wanted::added(ahead) + u64::from(next) * Wanted::added(ahead + 1);
            prop_assert_eq!(Wanted::round(ahead).is_met(sum), own);
        }

        #[test]
        fn a_least_sum_is_met_by_it_and_more(wanted: u64, sum: u64) {
            prop_assert_eq!(Wanted::at_least(wanted).is_met(sum), sum >= wanted);
            prop_assert!(Wanted::at_least(wanted).is_met(wanted) && !Wanted::at_least(u64::MAX).is_met(u64::MAX - 1));
        }
    }
}
