//! When nothing moves any more.

use std::time::{Duration, Instant};

/// Counts what moves our own transfers on, and says when nothing has for too long. A count costs nothing; reading the clock
/// each time would cost a lone put as much as its post, so that is done only when somebody looks.
#[derive(Debug)]
pub struct StallClock {
    moves: u64,
    /// The count when somebody last looked and something had moved, and when that was.
    seen: (u64, Instant),
    timeout: Duration,
}

impl StallClock {
    /// A clock that begins now.
    pub fn new(timeout: Duration) -> StallClock {
        StallClock { moves: 0, seen: (0, Instant::now()), timeout }
    }

    /// How long nothing may move.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Something has moved, or begins after an idle time: what was idle for long is not stalled.
    #[inline(always)]
    pub fn moved(&mut self) {
        self.moves = self.moves.wrapping_add(1);
    }

    /// How long nothing has moved, once that is too long. `busy`: something is waited for. Two looks without a move between them
    /// are needed, since a look is what sees a move. Reads the clock: not for every poll.
    pub fn stalled(&mut self, busy: bool) -> Option<Duration> {
        if !busy || self.seen.0 != self.moves {
            self.seen = (self.moves, Instant::now());
            return None;
        }
        let waited = self.seen.1.elapsed();
        (waited >= self.timeout).then_some(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_two_busy_looks_without_a_move() {
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
    fn a_stall_takes_the_whole_timeout() {
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
}
