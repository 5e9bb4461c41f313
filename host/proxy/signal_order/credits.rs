//! Credits bound the number of immediates that a target has not polled.
//!
//! A NIC writes an immediate to its completion queue, and acknowledges it, whether or not the target polls. A queue
//! that overflows loses completions, and with many peers nothing else limits the immediates. A rank therefore needs a
//! *credit* of its target to send an immediate on any rail. A command that lacks credits waits.
//!
//! A signal's immediate has no space for its sender's rank, so a target does not know whose credit an immediate used.
//! This is not necessary:
//!
//! - Every rank starts with [`window`] credits at each target. A credit is used when an immediate is sent.
//! - A target counts the credits that are *out*: those that ranks still own, and those whose immediates it has not
//!   polled. Its queues cannot contain more immediates than that.
//! - A rank with fewer than half a window left *asks* for the credits that it has used. The target *grants* them in the
//!   order of the asks, as soon as the total number of credits that are out does not exceed `ranks x window`.
//!
//! This cannot deadlock. No other rank owns more than a window, so the first ask can be granted once the target has
//! polled the immediates in flight. Asks, grants and returned slots are also immediates, but need no credit: at most
//! [`BETWEEN_ACCOUNTS`] of them per rank wait at a target.

use super::Word;
use std::collections::VecDeque;

/// Maximum number of credits of a rank at one target. Half of them suffice for signals every 20 ns while an ask is
/// answered within 10 us.
const LONGEST: usize = 1024;
/// Number of credits of all ranks together at one target, unless this would be fewer than two per rank.
const AT_A_TARGET: usize = 4096;
/// Maximum number of immediates between two accounts that need no credit: an ask, a grant and two returns of slots.
/// Each return covers half a window of slots, and is sent only for slots in use.
const BETWEEN_ACCOUNTS: usize = 4;

/// Returns the number of credits that each of `ranks` ranks has at each target. It is at least 2, because two
/// immediates suffice for a put of any length.
pub(super) fn window(ranks: usize) -> usize {
    (AT_A_TARGET / ranks.max(1)).clamp(2, LONGEST)
}

/// Returns the maximum number of immediates that `ranks` ranks leave at a target that does not poll, on all rails
/// together. Each rail's completion queue has space for these in addition to the completions of its own transfers.
#[must_use]
pub fn unpolled(ranks: usize) -> usize {
    ranks * (window(ranks) + BETWEEN_ACCOUNTS)
}

/// Credits that this rank owns at one target.
#[derive(Clone, Copy, Debug)]
struct Owned {
    left: u32,
    /// Number of remaining credits below which this rank asks for more. 0 while an ask is unanswered.
    ask_below: u32,
}

/// Credits of one proxy thread: those that it owns at its targets, and those that are out at itself.
#[derive(Debug)]
pub(super) struct Credits {
    window: u32,
    owned: Vec<Owned>,
    out: u64,
    /// Pending asks: rank and number of credits.
    asks: VecDeque<(u16, u16)>,
    /// Messages due to other ranks, including those about slots.
    pub due: Vec<(usize, Word)>,
}

impl Credits {
    /// Creates the credits of one of `ranks` ranks. `window` is the initial number of credits of each rank at each
    /// target.
    pub fn new(ranks: usize, window: usize) -> Credits {
        let window = window as u32;
        let owned = Owned { left: window, ask_below: window / 2 };
        Credits {
            window,
            owned: vec![owned; ranks],
            out: ranks as u64 * u64::from(window),
            asks: VecDeque::new(),
            due: Vec::new(),
        }
    }

    /// Returns whether `rank` exists.
    #[inline]
    pub fn has(&self, rank: usize) -> bool {
        rank < self.owned.len()
    }

    /// Returns the initial number of credits at each target.
    pub fn window(&self) -> usize {
        self.window as usize
    }

    /// Returns whether `count` credits, at most a window, are left at `rank`. If not, asks for more.
    #[inline]
    pub fn has_credits(&mut self, rank: usize, count: u32) -> bool {
        match self.owned.get(rank) {
            Some(owned) if owned.left >= count => true,
            _ => {
                self.ask(rank);
                false
            }
        }
    }

    /// Uses credits that the caller has checked to be available.
    #[inline]
    pub fn consume(&mut self, rank: usize, count: u32) {
        if let Some(owned) = self.owned.get_mut(rank) {
            owned.left = owned.left.saturating_sub(count);
            if owned.left < owned.ask_below {
                self.ask(rank);
            }
        }
    }

    #[cold]
    fn ask(&mut self, rank: usize) {
        if let Some(owned) = self.owned.get_mut(rank)
            && owned.ask_below > 0
        {
            owned.ask_below = 0;
            self.due.push((rank, Word::Ask((self.window - owned.left) as u16)));
        }
    }

    /// Adds `count` credits granted by `rank`.
    pub fn granted(&mut self, rank: usize, count: u16) {
        if let Some(owned) = self.owned.get_mut(rank) {
            *owned = Owned { left: (owned.left + u32::from(count)).min(self.window), ask_below: self.window / 2 };
        }
    }

    /// Records that an immediate that used a credit was polled here.
    #[inline]
    pub fn polled(&mut self) {
        self.out = self.out.saturating_sub(1);
        if !self.asks.is_empty() {
            self.answer();
        }
    }

    /// Handles an ask from `rank`. Ignores a second pending ask, and an ask for more than a window, which are errors of
    /// the peer.
    pub fn asked(&mut self, rank: u16, count: u16) {
        let known = self.has(usize::from(rank)) && u32::from(count) <= self.window;
        if known && self.asks.iter().all(|(other, _)| *other != rank) {
            self.asks.push_back((rank, count));
            self.answer();
        }
    }

    #[cold]
    fn answer(&mut self) {
        let most = self.owned.len() as u64 * u64::from(self.window);
        while let Some(&(rank, count)) = self.asks.front()
            && self.out + u64::from(count) <= most
        {
            self.asks.pop_front();
            self.out += u64::from(count);
            self.due.push((usize::from(rank), Word::Grant(count)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Messages to a target, either in flight without order or in its queue.
    #[derive(Clone, Copy, Debug)]
    enum Sent {
        Immediate,
        Word { from: usize, word: Word },
    }

    /// Ranks whose puts need credits.
    struct Ranks {
        credits: Vec<Credits>,
        under_way: Vec<(usize, Sent)>,
        queues: Vec<Vec<Sent>>,
        /// Puts that each rank still has to send: target and number of immediates.
        puts: Vec<VecDeque<(usize, u32)>>,
    }

    impl Ranks {
        fn put(&mut self, rank: usize) -> bool {
            let Some(&(target, count)) = self.puts[rank].front() else { return false };
            let there = self.credits[rank].has_credits(target, count);
            if there {
                self.credits[rank].consume(target, count);
                self.under_way.extend((0..count).map(|_| (target, Sent::Immediate)));
                self.puts[rank].pop_front();
            }
            self.tell(rank);
            there
        }

        fn tell(&mut self, from: usize) {
            let due = std::mem::take(&mut self.credits[from].due);
            self.under_way.extend(due.into_iter().map(|(target, word)| (target, Sent::Word { from, word })));
        }

        /// Moves one of the messages in flight to its target's queue, whether or not the target polls.
        fn arrive(&mut self, choice: usize) -> bool {
            if self.under_way.is_empty() {
                return false;
            }
            let (target, sent) = self.under_way.swap_remove(choice % self.under_way.len());
            self.queues[target].push(sent);
            true
        }

        fn poll(&mut self, rank: usize) -> bool {
            let polled = std::mem::take(&mut self.queues[rank]);
            for sent in &polled {
                match *sent {
                    Sent::Immediate => self.credits[rank].polled(),
                    Sent::Word { from, word: Word::Ask(count) } => self.credits[rank].asked(from as u16, count),
                    Sent::Word { from, word: Word::Grant(count) } => self.credits[rank].granted(from, count),
                    Sent::Word { .. } => {}
                }
            }
            self.tell(rank);
            !polled.is_empty()
        }
    }

    proptest! {
        /// No queue exceeds its capacity in any interleaving of puts, arrivals and polls. Once all ranks poll, all
        /// messages are sent.
        #[test]
        fn queue_never_overflows_or_deadlocks(
            ranks in 1usize..5, window in 2usize..9,
            puts in prop::collection::vec((0usize..5, 0usize..5, 1u32..9), 0..120),
            steps in prop::collection::vec((0u8..5, 0usize..5, any::<prop::sample::Index>()), 0..600),
        ) {
            let mut all = Ranks {
                credits: (0..ranks).map(|_| Credits::new(ranks, window)).collect(),
                under_way: Vec::new(),
                queues: vec![Vec::new(); ranks],
                puts: vec![VecDeque::new(); ranks],
            };
            for &(from, to, count) in &puts {
                all.puts[from % ranks].push_back((to % ranks, count.min(window as u32)));
            }
            // Messages about slots do not occur here.
            let room = ranks * (window + 2);
            for (step, rank, choice) in steps {
                match step {
                    0 => drop(all.poll(rank % ranks)),
                    1 | 2 => drop(all.put(rank % ranks)),
                    _ => drop(all.arrive(choice.index(1 << 16))),
                }
                prop_assert!(all.queues.iter().all(|queue| queue.len() <= room));
            }
            for turn in 0.. {
                let moved = (0..ranks).fold(false, |moved, rank| all.put(rank) | all.arrive(turn) | all.poll(rank) | moved);
                prop_assert!(all.queues.iter().all(|queue| queue.len() <= room));
                if !moved {
                    break;
                }
            }
            prop_assert!(all.puts.iter().all(VecDeque::is_empty), "stuck: {:?}", all.puts);
            // Each rank has used fewer than half a window of credits without asking for more, and no credit was lost.
            for (target, credits) in all.credits.iter().enumerate() {
                let owned: u64 = all.credits.iter().map(|rank| u64::from(rank.owned[target].left)).sum();
                prop_assert_eq!(credits.out, owned);
            }
        }
    }

    #[test]
    fn rank_requests_credits_once_at_half_window() {
        let mut credits = Credits::new(2, 8);
        for _ in 0..4 {
            assert!(credits.has_credits(1, 1));
            credits.consume(1, 1);
        }
        assert_eq!(credits.due, []);
        credits.consume(1, 1);
        assert_eq!(std::mem::take(&mut credits.due), [(1, Word::Ask(5))]);
        assert!(!credits.has_credits(1, 4) && credits.due.is_empty(), "asked already");
        credits.granted(1, 5);
        assert!(credits.has_credits(1, 8) && credits.due.is_empty());
        // Above half a window, but too few for the request.
        credits.consume(1, 1);
        assert!(!credits.has_credits(1, 8));
        assert_eq!(credits.due, [(1, Word::Ask(1))]);
        assert!(
            credits.has_credits(0, 8) && !credits.has_credits(2, 1),
            "each target has its own, and there is no third"
        );
    }

    #[test]
    fn target_grants_fitting_credits_in_order() {
        let mut target = Credits::new(2, 4);
        (0..3).for_each(|_| target.polled());
        target.asked(1, 4);
        target.asked(0, 1);
        assert_eq!(target.due, [], "the first ask does not fit yet, and the second one is behind it");
        target.polled();
        assert_eq!(std::mem::take(&mut target.due), [(1, Word::Grant(4))]);
        target.polled();
        assert_eq!(target.due, [(0, Word::Grant(1))]);
        // Errors of peers: an unknown rank, too many credits, a second ask.
        target.due.clear();
        (0..4).for_each(|_| target.polled());
        target.asked(2, 1);
        target.asked(1, 5);
        assert_eq!(target.due, []);
    }

    #[test]
    fn windows_shrink_with_ranks_to_minimum_of_two() {
        assert_eq!([1, 2, 4, 16, 100, 2048, 8192].map(window), [1024, 1024, 1024, 256, 40, 2, 2]);
        assert_eq!((unpolled(2), unpolled(16), unpolled(8192)), (2056, 4160, 49152));
    }
}
