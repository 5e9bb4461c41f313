//! Waits of the host for work of its device: the checks during a wait, and the rules by which it ends.
//!
//! An interrupt, a failed peer or a lack of progress ends a wait and aborts the work. The deadline counts from the last
//! progress of the work or of another rank, so that work that makes progress may run indefinitely. Progress of the work
//! is reported to the other ranks.

use super::GinError;
use ginlab_base::{progress, signals};
use ginlab_bootstrap::{Bootstrap, BootstrapError};
use ginlab_cuda::{DeviceError, wait_for};
use kernels::ring::Status;
use std::time::{Duration, Instant};

/// Work of a device that the host waits for.
pub trait Work {
    /// Error of a wait.
    type Error: From<StopReason>;

    /// Returns a number that changes if the work makes progress, or `None` if it is not read this time. `is_due` is set
    /// once per interval of the watch, for numbers that are expensive to read.
    ///
    /// # Errors
    /// Returns an error if the work has failed.
    fn pulse(&mut self, is_due: bool) -> Result<Option<u64>, Self::Error>;

    /// Called after progress of this or another rank, so that waits of the work can restart their deadlines.
    ///
    /// # Errors
    /// Returns the device's error.
    fn progressed(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Returns the error after `limit` without progress.
    fn late(&mut self, limit: Duration) -> Self::Error {
        StopReason::Late(limit).into()
    }

    /// Asks the work to end because of `error`.
    fn abort(&mut self, error: &Self::Error);
}

/// Reason for ending a wait.
#[derive(Clone, Debug)]
pub enum StopReason {
    /// The run was interrupted, for example with Ctrl-C.
    Interrupted,
    /// A peer has failed or disconnected.
    Ranks(BootstrapError),
    /// Time without progress of this or another rank.
    Late(Duration),
}

impl From<StopReason> for GinError {
    fn from(stop: StopReason) -> GinError {
        match stop {
            StopReason::Interrupted => GinError::Interrupted,
            StopReason::Ranks(error) => GinError::Ranks(error),
            StopReason::Late(limit) => {
                let text = format!("no progress within {:.0} s", limit.as_secs_f64());
                GinError::Call { text, stop: Status::DEADLINE, timed_out: true }
            }
        }
    }
}

/// State of a wait.
#[derive(Debug)]
pub struct HostWait<'a> {
    ranks: &'a mut Bootstrap,
    every: Duration,
    /// Maximum time without progress; `None` if the work's own waits are bounded.
    limit: Option<Duration>,
    seen: SeenProgress,
}

/// Progress seen during a wait.
#[derive(Debug)]
struct SeenProgress {
    /// Time of the last progress of this or another rank.
    since: Instant,
    /// Time of the last due pulse.
    looked: Instant,
    pulse: Option<u64>,
    others: u64,
}

impl<'a> HostWait<'a> {
    /// Starts a wait without a deadline, for work whose own waits are bounded. Expensive pulses are due every `every`.
    pub fn new(ranks: &'a mut Bootstrap, every: Duration) -> HostWait<'a> {
        let now = Instant::now();
        HostWait { ranks, every, limit: None, seen: SeenProgress { since: now, looked: now, pulse: None, others: 0 } }
    }

    /// Sets the maximum time without progress.
    #[must_use]
    pub fn with_limit(self, limit: Duration) -> HostWait<'a> {
        HostWait { limit: Some(limit), ..self }
    }

    /// Performs one check.
    ///
    /// # Errors
    /// Returns an error if the wait must end. The work has then been requested to end.
    pub fn check<W: Work>(&mut self, work: &mut W) -> Result<(), W::Error> {
        self.look(work).inspect_err(|error| work.abort(error))
    }

    fn look<W: Work>(&mut self, work: &mut W) -> Result<(), W::Error> {
        if signals::interrupted() {
            return Err(StopReason::Interrupted.into());
        }
        self.ranks.check_peers().map_err(StopReason::Ranks)?;
        let is_due = self.seen.looked.elapsed() > self.every;
        if is_due {
            self.seen.looked = Instant::now();
        }
        let is_alive = work.pulse(is_due)?.is_some_and(|pulse| self.seen.own(pulse));
        if is_alive {
            progress::record();
        }
        // Progress of other ranks is not progress of this rank and is not reported back to them.
        if self.seen.others(self.ranks.progress_of_others()) | is_alive {
            work.progressed()?;
        }
        match self.limit {
            Some(limit) if self.seen.since.elapsed() > limit => Err(work.late(limit)),
            _ => Ok(()),
        }
    }

    /// Waits until `done` returns `true`. If the wait must end earlier, aborts the work and returns the reason after
    /// the work has ended. If the work does not end within `ending`, the process exits.
    ///
    /// # Errors
    /// Returns the error of `done`, or the reason why the wait ended.
    pub fn wait<W: Work>(
        mut self,
        work: &mut W,
        ending: Duration,
        done: impl FnMut() -> Result<bool, DeviceError>,
    ) -> Result<(), W::Error>
    where
        W::Error: From<DeviceError>,
    {
        wait_for(ending, done, || self.check(work))?;
        progress::record();
        Ok(())
    }
}

impl SeenProgress {
    /// Records the work's pulse. Returns whether it differs from the previous one.
    fn own(&mut self, pulse: u64) -> bool {
        let is_new = self.pulse.replace(pulse).is_some_and(|before| before != pulse);
        self.restart(is_new)
    }

    /// Records the progress count of other ranks. Returns whether it has changed.
    fn others(&mut self, others: u64) -> bool {
        let is_new = std::mem::replace(&mut self.others, others) != others;
        self.restart(is_new)
    }

    fn restart(&mut self, is_new: bool) -> bool {
        if is_new {
            self.since = Instant::now();
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Work with a given pulse, and the errors with which it was aborted.
    #[derive(Default)]
    struct Fake {
        pulse: u64,
        step: u64,
        fails: bool,
        progressed: usize,
        aborted: Vec<String>,
    }

    impl Work for Fake {
        type Error = GinError;

        fn pulse(&mut self, _: bool) -> Result<Option<u64>, GinError> {
            self.pulse += self.step;
            if self.fails { Err(GinError::Usage("the work failed".into())) } else { Ok(Some(self.pulse)) }
        }

        fn progressed(&mut self) -> Result<(), GinError> {
            self.progressed += 1;
            Ok(())
        }

        fn abort(&mut self, error: &GinError) {
            self.aborted.push(error.to_string());
        }
    }

    #[test]
    fn only_changes_extend_wait() {
        let began = Instant::now();
        let mut seen = SeenProgress { since: began, looked: began, pulse: None, others: 0 };
        assert!(!seen.own(7) && !seen.own(7));
        assert_eq!(seen.since, began, "the first pulse, and an equal one");
        assert!(seen.own(8) && seen.since > began);
        let since = seen.since;
        assert!(!seen.others(0) && seen.since == since, "no other rank has reported anything");
        assert!(seen.others(1) && !seen.others(1) && seen.since > since);
    }

    #[test]
    fn work_without_progress_is_aborted_once() {
        let mut ranks = Bootstrap::alone().unwrap();
        let mut work = Fake::default();
        let mut polls = 0;
        let done = || {
            polls += 1;
            // The work ends only after it was aborted, like a kernel.
            Ok(polls > 5)
        };
        let watch = HostWait::new(&mut ranks, Duration::ZERO).with_limit(Duration::ZERO);
        let error = watch.wait(&mut work, Duration::from_secs(60), done).unwrap_err();
        assert!(error.is_timeout());
        assert_eq!(work.aborted, ["no progress within 0 s"]);
    }

    #[test]
    fn failed_work_is_aborted_and_progress_is_relayed() {
        let mut ranks = Bootstrap::alone().unwrap();
        let mut work = Fake { step: 1, ..Fake::default() };
        let mut watch = HostWait::new(&mut ranks, Duration::ZERO).with_limit(Duration::from_secs(3600));
        watch.check(&mut work).unwrap();
        assert_eq!(work.progressed, 0, "the first pulse is no progress");
        watch.check(&mut work).unwrap();
        assert_eq!(work.progressed, 1);
        work.fails = true;
        assert!(watch.check(&mut work).is_err());
        assert_eq!(work.aborted, ["the work failed"]);
    }
}
