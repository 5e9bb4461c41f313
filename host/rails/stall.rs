//! Stall detection: determines whether no transfer has made progress for too long.

use crate::ending::INTERRUPTED;
use ginlab_base::{progress, signals};
use std::time::{Duration, Instant};

/// Counts progress of this rank's transfers, and detects a lack of progress. Counting is cheap. A read of the clock
/// would take as long as the post of a single put, so only [`stalled`](StallClock::stalled) reads it.
#[derive(Debug)]
pub struct StallClock {
    moves: u64,
    /// Count at the last check that found progress or was not busy, and the time of that check.
    seen: (u64, Instant),
    timeout: Duration,
}

impl StallClock {
    /// Creates a clock that starts now.
    pub fn new(timeout: Duration) -> StallClock {
        StallClock { moves: 0, seen: (0, Instant::now()), timeout }
    }

    /// Returns the maximum time without progress.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Records progress, or the start of work after an idle period, so that the idle time does not count as a stall.
    #[inline(always)]
    pub fn moved(&mut self) {
        self.moves = self.moves.wrapping_add(1);
    }

    /// Returns the time without progress once it reaches the timeout. `busy` indicates whether any transfer is
    /// outstanding. Only these checks observe progress, so detecting a stall takes two of them without progress in
    /// between. Reads the clock, so it must not be called on every poll. Also records progress of the process.
    ///
    /// After an interrupt (Ctrl-C, SIGTERM) the limit is 200 ms: the peers may have exited, and then no transfer
    /// completes.
    pub fn stalled(&mut self, busy: bool) -> Option<Duration> {
        self.stalled_if(busy, signals::interrupted)
    }

    fn stalled_if(&mut self, busy: bool, interrupted: impl FnOnce() -> bool) -> Option<Duration> {
        let has_moved = self.seen.0 != self.moves;
        if has_moved {
            progress::record();
        }
        if !busy || has_moved {
            self.seen = (self.moves, Instant::now());
            return None;
        }
        let waited = self.seen.1.elapsed();
        (waited >= self.timeout || waited >= INTERRUPTED && interrupted()).then_some(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_requires_two_busy_polls_without_progress() {
        let mut clock = StallClock::new(Duration::ZERO);
        assert_eq!(clock.stalled(false), None);
        clock.moved();
        assert_eq!(clock.stalled(true), None, "it has moved");
        assert!(clock.stalled(true).is_some());
        assert_eq!(clock.stalled(false), None, "nothing is waited for");
        clock.moved();
        assert_eq!((clock.stalled(true), clock.timeout()), (None, Duration::ZERO));
    }

    #[test]
    fn stall_takes_whole_timeout() {
        let mut clock = StallClock::new(Duration::from_millis(4));
        let started = Instant::now();
        clock.moved();
        assert_eq!(clock.stalled(true), None);
        let waited = loop {
            if let Some(waited) = clock.stalled(true) {
                break waited;
            }
            std::thread::yield_now();
        };
        assert!(waited >= clock.timeout() && started.elapsed() >= waited);
        assert_eq!(StallClock::new(Duration::from_secs(3600)).stalled(true), None);
    }

    #[test]
    fn transfers_are_progress_of_the_process() {
        let mut clock = StallClock::new(Duration::from_secs(3600));
        let recorded = || progress::counter().load(std::sync::atomic::Ordering::Relaxed);
        let before = recorded();
        clock.moved();
        clock.stalled(true);
        assert_ne!(recorded(), before);
    }

    #[test]
    fn interrupt_shortens_stall() {
        let hour = Duration::from_secs(3600);
        let mut clock = StallClock::new(hour);
        clock.seen.1 = Instant::now().checked_sub(INTERRUPTED).expect("the machine has run for longer");
        assert_eq!(clock.stalled_if(true, || false), None);
        assert!(clock.stalled_if(true, || true).is_some());
        clock.moved();
        assert_eq!(clock.stalled_if(true, || true), None, "it has moved");
    }
}
