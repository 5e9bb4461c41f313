//! Credits: they bound the immediates that a target has not polled.
//!
//! A card writes an immediate into its completion queue whether or not anybody polls, and acknowledges it. A queue that overflows loses
//! completions, and with many peers nothing else holds them back. So a rank sends an immediate against a *credit* of its target,
//! whichever rail carries it, and a command that lacks credits waits.
//!
//! A signal's immediate has no room for its sender's number, so a target cannot say whose credit an immediate has used. It need not:
//!
//! - Every rank starts with [`window`] credits at each target. One is used up when its immediate is sent.
//! - A target counts the credits that are *out*: those that ranks still own, and those whose immediates it has not polled. These are all
//!   that can stand in its queues.
//! - A rank that has fewer than half a window left *asks* for what it has used. The target *grants* that as soon as no more than
//!   `ranks x window` are out then, in the order of the asks.
//!
//! This cannot get stuck: no other rank owns more than a window, so once the target has polled what is under way, what the first ask
//! wants fits. Asks, grants and the credits of slots are immediates too, but need no credit: of these at most [`BETWEEN_ACCOUNTS`] of
//! each rank wait at a target.

use super::Word;
use std::collections::VecDeque;

/// Most credits of a rank at one target: enough that a signal every 20 ns does not wait for an answer after 10 us.
const LONGEST: usize = 1024;
/// Credits of all ranks at one target, unless that is fewer than two for each.
const AT_A_TARGET: usize = 4096;
/// An ask, a grant, and two credits of slots: each of these is half a window of slots, and is sent only for slots in use.
const BETWEEN_ACCOUNTS: usize = 4;

/// Credits that each of so many ranks has at each target: at least 2, since a put of any length gets along with two immediates.
pub(super) fn window(ranks: usize) -> usize {
    (AT_A_TARGET / ranks.max(1)).clamp(2, LONGEST)
}

/// The most immediates that so many ranks leave at a target that does not poll, on all rails together: each rail's completion queue has
/// room for so many beside the completions of its own transfers.
#[must_use]
pub fn unpolled(ranks: usize) -> usize {
    ranks * (window(ranks) + BETWEEN_ACCOUNTS)
}

/// What we own at one target.
#[derive(Clone, Copy, Debug)]
struct Owned {
    left: u32,
    /// With fewer we ask; 0 while an ask is not answered.
    ask_below: u32,
}

/// The credits of one proxy thread: those it owns at its targets, and those that are out at itself.
#[derive(Debug)]
pub(super) struct Credits {
    window: u32,
    owned: Vec<Owned>,
    out: u64,
    /// Ranks that have asked, and for how many.
    asks: VecDeque<(u16, u16)>,
    /// What other ranks are to be told, of slots too.
    pub due: Vec<(usize, Word)>,
}

impl Credits {
    /// Those of one of so many ranks; `window`: what each has at each target.
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

    /// Whether we know this rank.
    #[inline]
    pub fn has(&self, rank: usize) -> bool {
        rank < self.owned.len()
    }

    /// Credits at each target, when none is used.
    pub fn window(&self) -> usize {
        self.window as usize
    }

    /// Whether so many are left at this rank, at most a window; when not, it has been asked.
    #[inline]
    pub fn are_there(&mut self, rank: usize, count: u32) -> bool {
        match self.owned.get(rank) {
            Some(owned) if owned.left >= count => true,
            _ => {
                self.ask(rank);
                false
            }
        }
    }

    /// Uses credits that are there.
    #[inline]
    pub fn spend(&mut self, rank: usize, count: u32) {
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

    /// A rank has granted us so many.
    pub fn granted(&mut self, rank: usize, count: u16) {
        if let Some(owned) = self.owned.get_mut(rank) {
            *owned = Owned { left: (owned.left + u32::from(count)).min(self.window), ask_below: self.window / 2 };
        }
    }

    /// An immediate that has used a credit has been polled here.
    #[inline]
    pub fn polled(&mut self) {
        self.out = self.out.saturating_sub(1);
        if !self.asks.is_empty() {
            self.answer();
        }
    }

    /// A rank asks us. One that asks twice, or for more than a window, makes a mistake.
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

    /// What is under way to a target, without any order, and what its queue holds.
    #[derive(Clone, Copy, Debug)]
    enum Sent {
        Immediate,
        Word { from: usize, word: Word },
    }

    /// Ranks whose puts want credits.
    struct Ranks {
        credits: Vec<Credits>,
        under_way: Vec<(usize, Sent)>,
        queues: Vec<Vec<Sent>>,
        /// What each rank still has to send: target and immediates.
        puts: Vec<VecDeque<(usize, u32)>>,
    }

    impl Ranks {
        fn put(&mut self, rank: usize) -> bool {
            let Some(&(target, count)) = self.puts[rank].front() else { return false };
            let there = self.credits[rank].are_there(target, count);
            if there {
                self.credits[rank].spend(target, count);
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

        /// The card takes one of those under way, polled or not.
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
        /// However puts, arrivals and polls follow one another: a queue never holds more than it has room for, and in the end, once
        /// everybody polls, everything has been sent.
        #[test]
        fn a_queue_never_overflows_and_nobody_is_stuck(
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
            // Slots' credits are not told here.
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
            // What is used and not asked for is less than half a window each, and nothing has got lost.
            for (target, credits) in all.credits.iter().enumerate() {
                let owned: u64 = all.credits.iter().map(|rank| u64::from(rank.owned[target].left)).sum();
                prop_assert_eq!(credits.out, owned);
            }
        }
    }

    #[test]
    fn a_rank_asks_once_at_half_a_window() {
        let mut credits = Credits::new(2, 8);
        for _ in 0..4 {
            assert!(credits.are_there(1, 1));
            credits.spend(1, 1);
        }
        assert_eq!(credits.due, []);
        credits.spend(1, 1);
        assert_eq!(std::mem::take(&mut credits.due), [(1, Word::Ask(5))]);
        assert!(!credits.are_there(1, 4) && credits.due.is_empty(), "asked already");
        credits.granted(1, 5);
        assert!(credits.are_there(1, 8) && credits.due.is_empty());
        // Not at half a window, but short all the same.
        credits.spend(1, 1);
        assert!(!credits.are_there(1, 8));
        assert_eq!(credits.due, [(1, Word::Ask(1))]);
        assert!(credits.are_there(0, 8) && !credits.are_there(2, 1), "each target has its own, and there is no third");
    }

    #[test]
    fn a_target_grants_what_fits_and_in_order() {
        let mut target = Credits::new(2, 4);
        (0..3).for_each(|_| target.polled());
        target.asked(1, 4);
        target.asked(0, 1);
        assert_eq!(target.due, [], "the first ask does not fit yet, and the second one is behind it");
        target.polled();
        assert_eq!(std::mem::take(&mut target.due), [(1, Word::Grant(4))]);
        target.polled();
        assert_eq!(target.due, [(0, Word::Grant(1))]);
        // Mistakes of peers: unknown, too much, twice.
        target.due.clear();
        (0..4).for_each(|_| target.polled());
        target.asked(2, 1);
        target.asked(1, 5);
        assert_eq!(target.due, []);
    }

    #[test]
    fn windows_shrink_with_the_number_of_ranks_and_never_below_two() {
        assert_eq!([1, 2, 4, 16, 100, 2048, 8192].map(window), [1024, 1024, 1024, 256, 40, 2, 2]);
        assert_eq!((unpolled(2), unpolled(16), unpolled(8192)), (2056, 4160, 49152));
    }
}
