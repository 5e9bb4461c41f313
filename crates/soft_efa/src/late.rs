//! Delays of timed devices that this machine caused: by a missing poll, or because it could not copy the bytes as fast.

use card_model::Picoseconds;
use std::sync::atomic::{AtomicU64, Ordering};

/// Total delay of one device in this process.
#[derive(Debug, Default)]
pub struct Late {
    until: AtomicU64,
    sum: AtomicU64,
}

impl Late {
    /// Records that a request that was due at `due` is done at `now`. Time in which several requests were late counts
    /// once.
    pub fn add(&self, due: Picoseconds, now: Picoseconds) {
        let counted = self.until.fetch_max(now, Ordering::Relaxed);
        self.sum.fetch_add(now.saturating_sub(due.max(counted)), Ordering::Relaxed);
    }

    /// Returns the total delay in nanoseconds.
    pub fn nanoseconds(&self) -> u64 {
        self.sum.load(Ordering::Relaxed) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once() {
        let late = Late::default();
        late.add(10_000, 20_000);
        late.add(15_000, 25_000);
        late.add(12_000, 18_000);
        assert_eq!(late.nanoseconds(), 15);
        late.add(30_000, 30_000);
        assert_eq!(late.nanoseconds(), 15);
    }
}
