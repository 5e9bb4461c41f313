//! Backoff of polling threads that share their core.

use std::time::Duration;

/// Number of consecutive unsuccessful yields after which the thread sleeps instead. By then, every ready thread has run
/// on the core.
const AWAKE: u32 = 512;
/// Minimum sleep. It is short compared with the response time of a kernel or peer that has not responded during 512
/// yields. The system extends it to about 100 us.
const REST: Duration = Duration::from_micros(50);
/// Number of sleeps after which the sleep grows by [`REST`], up to the limit. The sleep reaches 1 ms after about 150
/// sleeps, or 90 ms.
const RESTS: u32 = 8;

/// Yields the core after every `every` unsuccessful polls, and sleeps briefly instead after many unsuccessful yields,
/// because yielding threads keep all cores busy. Used on machines with fewer cores than busy threads; on other
/// machines, polling threads keep their cores.
///
/// The thread does not yield after every poll: the polls of a rank that only receives writes have no result either, but
/// over tcp they drive the responses to the writer.
#[derive(Debug)]
pub struct Backoff {
    every: u32,
    vain: u32,
    longest: Duration,
}

impl Backoff {
    /// Creates a backoff that yields after every `polls` unsuccessful polls.
    pub const fn every(polls: u32) -> Backoff {
        Backoff { every: polls, vain: 0, longest: REST }
    }

    /// Lets sleeps grow to at most `longest`. Suitable for threads that only observe, but not for threads whose polls
    /// may be required to respond to a peer.
    #[must_use]
    pub const fn max_sleep(self, longest: Duration) -> Backoff {
        Backoff { longest, ..self }
    }

    /// Resets the backoff after progress.
    #[inline]
    pub fn reset(&mut self) {
        self.vain = 0;
    }

    /// Records an unsuccessful poll. Returns whether the thread yielded or slept.
    #[inline]
    pub fn idle(&mut self) -> bool {
        self.vain = self.vain.wrapping_add(1);
        if !self.vain.is_multiple_of(self.every) {
            return false;
        }
        let awake = AWAKE * self.every;
        if self.vain <= awake {
            std::thread::yield_now();
        } else {
            let rests = (self.vain - awake) / self.every;
            std::thread::sleep((REST * (1 + rests / RESTS)).min(self.longest));
        }
        true
    }
}
