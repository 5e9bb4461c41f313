//! Bounded waits: a deadline, the interrupt flag, and poll(2) in short slices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollTimeout, poll};

use super::BootstrapError;

/// Interval at which a wait checks the interrupt flag, and at which rank 0 checks its children. Data and closed
/// connections wake it immediately.
pub(super) const SLICE: Duration = Duration::from_millis(20);

/// Maximum interval of these checks in a long wait, whose ranks would otherwise take CPU time from those that work.
const LONG_SLICE: Duration = Duration::from_millis(200);

/// Returns by descriptor whether it has bytes to read or has been closed. Does not wait.
pub(super) fn readable(fds: &mut [PollFd<'_>]) -> Result<Vec<bool>, BootstrapError> {
    match poll(fds, PollTimeout::ZERO) {
        Ok(_) | Err(Errno::EINTR | Errno::EAGAIN) => {}
        Err(error) => return Err(BootstrapError::system("check connections (poll)", error)),
    }
    Ok(fds.iter().map(|fd| fd.revents().is_none_or(|events| !events.is_empty())).collect())
}

/// Time limit of one wait.
pub(super) struct Clock {
    pub timeout: Duration,
    began: Instant,
    deadline: Instant,
    interrupt: &'static AtomicBool,
}

impl Clock {
    pub fn new(timeout: Duration, interrupt: &'static AtomicBool) -> Self {
        let now = Instant::now();
        // A limit beyond the range of the clock is replaced by one year.
        let year = Duration::from_secs(365 * 24 * 3600);
        let deadline = now.checked_add(timeout.min(year)).unwrap_or(now);
        Clock { timeout, began: now, deadline, interrupt }
    }

    /// Returns a clock with the same interrupt flag that expires after `limit`, but not later than this one.
    pub fn within(&self, limit: Duration) -> Clock {
        let timeout = limit.min(self.remaining());
        Clock { timeout, ..Clock::new(timeout, self.interrupt) }
    }

    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub fn expired(&self) -> bool {
        self.remaining().is_zero()
    }

    pub fn interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    /// Extends the deadline to at least `by` from now.
    pub fn extend(&mut self, by: Duration) {
        if let Some(later) = Instant::now().checked_add(by) {
            self.deadline = self.deadline.max(later);
        }
    }

    /// Extends the deadline to at least one whole timeout after `time`.
    pub fn count_from(&mut self, time: Instant) {
        if let Some(later) = time.checked_add(self.timeout) {
            self.deadline = self.deadline.max(later);
        }
    }

    /// Waits until one of the descriptors is ready or a slice has passed.
    pub fn poll(&self, fds: &mut [PollFd]) -> Result<(), BootstrapError> {
        let slice = (self.began.elapsed() / 16).clamp(SLICE, LONG_SLICE).min(self.remaining());
        let millis = PollTimeout::try_from(slice.as_millis()).unwrap_or(PollTimeout::ZERO);
        match poll(fds, millis) {
            Ok(_) | Err(Errno::EINTR | Errno::EAGAIN) => Ok(()),
            Err(error) => Err(BootstrapError::system("wait for the other ranks (poll)", error)),
        }
    }

    /// Waits for `delay`, or until this clock is interrupted or expires.
    pub fn pause(&self, delay: Duration) {
        let end = self.within(delay);
        while !end.expired() && !end.interrupted() {
            std::thread::sleep(SLICE.min(end.remaining()));
        }
    }
}
