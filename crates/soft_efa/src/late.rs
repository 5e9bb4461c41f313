//! How long timed cards have waited for this machine: for a poll, or for bytes that it could not move as fast.

use card_model::Picoseconds;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of one card, in this process.
#[derive(Debug, Default)]
pub struct Late {
    until: AtomicU64,
    sum: AtomicU64,
}

impl Late {
    /// What was due then is done now. Time in which several were late counts once.
    pub fn add(&self, due: Picoseconds, now: Picoseconds) {
        let counted = self.until.fetch_max(now, Ordering::Relaxed);
        self.sum.fetch_add(now.saturating_sub(due.max(counted)), Ordering::Relaxed);
    }

    /// So far, in nanoseconds.
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
