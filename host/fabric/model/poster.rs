//! The thread that posts to modelled cards, and its time compared with that of the modelled thread.

use super::Picoseconds;
use std::cell::Cell;

/// State of a posting thread, shared by its rails.
#[derive(Debug, Default)]
pub(super) struct Poster {
    /// Delay compared with the modelled thread, whose posts take exactly [`post_us`](super::Profile). The thread
    /// catches up by not waiting for the end of a post, or when it is idle, because the modelled thread is then idle as
    /// well.
    pub debt: Cell<Picoseconds>,
    /// Number of rails of this thread.
    pub rails: Cell<u32>,
    /// Number of polls of any of these rails since the last post or successful poll. If it exceeds the number of rails,
    /// the thread has nothing to do.
    quiet_polls: Cell<u32>,
    /// Number of transfers that these rails have not completed.
    pub in_flight: Cell<usize>,
    /// Time at which one of the thread's rails last read the clock. A reading takes as long as polling four idle cards.
    pub clock: Cell<Picoseconds>,
}

impl Poster {
    /// Records a post, or a poll with a result.
    pub fn was_busy(&self) {
        self.quiet_polls.set(0);
    }

    /// Records a poll without a result.
    pub fn was_quiet(&self) {
        self.quiet_polls.update(|polls| polls.saturating_add(1));
        if self.quiet_polls.get() > self.rails.get() {
            self.debt.set(0);
        }
    }
}

/// Returns the end of a post on this machine, and the poster's debt at that time, by which the modelled thread would
/// have finished earlier. `due` is the end without an earlier debt. A busy card does not cancel the debt, because the
/// poster's next post may be to another card.
pub(super) fn charge(due: Picoseconds, debt: Picoseconds, now: Picoseconds) -> (Picoseconds, Picoseconds) {
    let modelled = due.saturating_sub(debt);
    let done = now.max(modelled);
    (done, done - modelled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A poster with occasional slow posts returns to the modelled times by waiting less, and is never ahead of
        /// them.
        #[test]
        fn poster_repays_debt_without_running_ahead(slow in prop::collection::vec(0u64..2_000_000, 1..20), after in 0usize..60) {
            const POST: Picoseconds = 450_000;
            let (mut now, mut debt, mut modelled) = (0, 0, 0);
            for extra in slow.iter().copied().chain(std::iter::repeat_n(0, after)) {
                let (done, owed) = charge(now + POST, debt, now + extra);
                prop_assert!(done >= now + extra && done - owed == now + POST - debt.min(now + POST));
                modelled += POST;
                prop_assert_eq!(done - owed, modelled);
                (now, debt) = (done, owed);
            }
            // If posts take no time on this machine, each one repays its modelled duration.
            let most: Picoseconds = slow.iter().sum();
            prop_assert!(debt <= most.saturating_sub(after as Picoseconds * POST));
        }
    }
}
