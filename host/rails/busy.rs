//! Time during which a rail has transfers in flight.

use ginlab_fabric::Completion;
use std::time::{Duration, Instant};

/// Sum of the intervals with at least one transfer in flight.
///
/// A strategy assigns equal shares of the bytes to all rails. A slow rail is therefore visible only in its own time:
/// the others are idle while it completes its share. The clock is read only when the rail becomes busy or idle.
#[derive(Debug, Default)]
pub(super) struct Busy {
    in_flight: u64,
    /// Start of the current interval. Valid only while transfers are in flight.
    since: Option<Instant>,
    /// Sum of the previous intervals.
    before: Duration,
}

impl Busy {
    /// Records the start of a post, because a provider may move the bytes during the post.
    #[inline]
    pub fn start(&mut self) {
        if self.in_flight == 0 {
            self.since = Some(Instant::now());
        }
    }

    /// Records that `count` transfers were accepted.
    #[inline]
    pub fn posted(&mut self, count: u64) {
        self.in_flight += count;
    }

    /// Records the completions of transfers among `completions`. Incoming immediates and failures of peers' transfers
    /// do not count.
    #[inline]
    pub fn completed(&mut self, completions: &[Completion]) {
        let own = |completion: &&Completion| {
            !matches!(completion, Completion::Immediate { .. } | Completion::Failed { token: None, .. })
        };
        let count = completions.iter().filter(own).count() as u64;
        if count == 0 || self.in_flight == 0 {
            return;
        }
        self.in_flight = self.in_flight.saturating_sub(count);
        if self.in_flight == 0 {
            self.before += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        }
    }

    /// Returns the sum so far, including the current interval.
    pub fn total(&self) -> Duration {
        let current = self.since.filter(|_| self.in_flight > 0).map_or(Duration::ZERO, |since| since.elapsed());
        self.before + current
    }
}
