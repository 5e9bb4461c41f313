//! What ends a wait that nobody answers: looks are counted, and now and then the clock and the host's word are asked.

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
/// Looks at the host's word that are due to a thread that has waited so long.
#[inline(always)]
pub(super) fn due_after(waited_ns: u64) -> u32 {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
}
