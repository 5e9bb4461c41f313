//! The thread that posts to modelled cards: its time, held against the modelled thread's.

use super::Picoseconds;
use std::cell::Cell;

/// The thread that posts: its rails share its time.
#[derive(Debug, Default)]
pub(super) struct Poster {
    /// By how much it is behind the modelled thread, whose posts cost [`post_us`](super::Profile) and nothing else. It
    /// catches up by not waiting for the end of a post; or by having nothing to do, as the modelled thread then has.
    pub debt: Cell<Picoseconds>,
    /// Its rails.
    pub rails: Cell<u32>,
    /// Polls, of any of its rails, since a post or a poll that found something. More than one for each rail: it has nothing to do.
    quiet_polls: Cell<u32>,
    /// Transfers that its rails have not reported.
    pub in_flight: Cell<usize>,
    /// When one of its rails looked at the clock last: to look takes as long as to poll four cards where nothing has happened.
    pub clock: Cell<Picoseconds>,
}

impl Poster {
    /// A post, or something that a poll has found.
    pub fn was_busy(&self) {
        self.quiet_polls.set(0);
    }

    /// A poll that has found nothing.
    pub fn was_quiet(&self) {
        self.quiet_polls.update(|polls| polls.saturating_add(1));
        if self.quiet_polls.get() > self.rails.get() {
            self.debt.set(0);
        }
    }
}

/// When a post ends here, and what the poster owes then: so much earlier it would have ended for the modelled thread. `due`:
/// its end without an earlier debt. A card that is busy meanwhile forgives nothing: the poster's next post may be another card's.
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
        /// A poster that is slow now and then comes back to the modelled times by waiting less, and never runs ahead of them.
        #[test]
        fn a_debt_is_paid_back_and_no_more(slow in prop::collection::vec(0u64..2_000_000, 1..20), after in 0usize..60) {
            const POST: Picoseconds = 450_000;
            let (mut now, mut debt, mut modelled) = (0, 0, 0);
            for extra in slow.iter().copied().chain(std::iter::repeat_n(0, after)) {
                let (done, owed) = charge(now + POST, debt, now + extra);
                prop_assert!(done >= now + extra && done - owed == now + POST - debt.min(now + POST));
                modelled += POST;
                prop_assert_eq!(done - owed, modelled);
                (now, debt) = (done, owed);
            }
            // With work that takes no time each post pays its own length.
            let most: Picoseconds = slow.iter().sum();
            prop_assert!(debt <= most.saturating_sub(after as Picoseconds * POST));
        }
    }
}
