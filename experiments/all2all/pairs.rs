//! Which rail carries a message, when every rank has one for every other rank.
//!
//! Rails pair by number: what leaves by a rank's rail 2 arrives by its peer's rail 2, since the rails may be networks that
//! do not meet. So one number has to suit both sides. It depends on the round and on the distance from sender to receiver,
//! counted around the circle of ranks, and on nothing else. A sender has each distance once and so has a receiver, so that
//! both see the same numbers, and these count on from message to message and from round to round.

/// The rail of the message from rank `from` to rank `to` in a round: below `rails`.
///
/// Of a rank's messages of one round, sent as well as received, no rail carries more than one beyond another's; the same
/// holds for any number of rounds in a row together. The two directions of a pair are messages of their own, mostly on
/// different rails. A pair goes through all rails, one per round, where the number of other ranks and that of rails have no
/// divisor in common; otherwise through some of them, and the others belong to other pairs.
///
/// `from` and `to` are different ranks below `ranks`, and `rails` is at least 1.
#[must_use]
pub fn rail(round: u64, from: usize, to: usize, ranks: usize, rails: usize) -> usize {
    let distance = (to + ranks - from) % ranks;
    // The round modulo the rails: the product cannot overflow, and the remainder is the same.
    let rounds = (round % rails as u64) as usize;
    (rounds * (ranks - 1) + (distance - 1)) % rails
}

/// The ranks that a rank sends to, in the order of their distance: if all begin with the next one, nobody is sent to by two
/// at once.
pub fn targets(from: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (1..ranks).map(move |distance| (from + distance) % ranks)
}

/// Where a rank's messages of a round begin, and in which order they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString)]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown)]
pub enum Start {
    /// By the distance to the receiver, as [`rail`] has it: every receiver's rails are loaded alike in every round.
    Spread,
    /// Every rank goes through the others by number and through the rails from rail 0 on, as a library does whose ranks all begin
    /// alike: at any moment all of them write to one receiver, over one rail.
    Same,
    /// The same, and rank `r` begins at rail `r`.
    ByRank,
}

impl Start {
    /// The rail of a message, as [`rail`].
    #[must_use]
    pub fn rail(self, round: u64, from: usize, to: usize, ranks: usize, rails: usize) -> usize {
        let place = if to > from { to - 1 } else { to };
        let counted = (round % rails as u64) as usize * (ranks - 1) + place;
        match self {
            Start::Spread => rail(round, from, to, ranks, rails),
            Start::Same => counted % rails,
            Start::ByRank => (counted + from) % rails,
        }
    }

    /// The receivers of a rank's messages, in their order.
    #[must_use]
    pub fn targets(self, from: usize, ranks: usize) -> Vec<usize> {
        match self {
            Start::Spread => targets(from, ranks).collect(),
            Start::Same | Start::ByRank => (0..ranks).filter(|to| *to != from).collect(),
        }
    }

    /// By how many percent the busiest rail of a receiver carries more than the mean of its rails, over so many rounds, each for
    /// itself: the mean over rounds and receivers. Messages are whole.
    #[must_use]
    pub fn received_imbalance_pct(self, rounds: u64, ranks: usize, rails: usize) -> f64 {
        // After as many rounds as rails it begins again.
        let rounds = rounds.min(rails as u64).max(1);
        let of = |round: u64, to: usize| {
            let mut loads = vec![0; rails];
            (0..ranks).filter(|from| *from != to).for_each(|from| loads[self.rail(round, from, to, ranks, rails)] += 1);
            imbalance_pct(&loads)
        };
        let sum: f64 =
            (0..rounds).flat_map(|round| (0..ranks).map(move |to| (round, to))).map(|(round, to)| of(round, to)).sum();
        sum / (rounds * ranks as u64) as f64
    }
}

fn unknown(text: &str) -> String {
    format!("{text:?} is none of spread, same, by-rank")
}

/// By how many percent the busiest of several loads is above their mean; 0 where nothing is loaded.
#[must_use]
pub fn imbalance_pct(loads: &[u64]) -> f64 {
    let sum: u64 = loads.iter().sum();
    match loads.iter().max() {
        Some(most) if sum > 0 => 100.0 * (*most as f64 * loads.len() as f64 / sum as f64 - 1.0),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Messages by rail of one rank, in so many rounds in a row.
    fn loads(first: u64, rounds: u64, ranks: usize, rails: usize, pair: impl Fn(usize) -> (usize, usize)) -> Vec<u64> {
        let mut loads = vec![0; rails];
        for round in first..first + rounds {
            for peer in 0..ranks {
                let (from, to) = pair(peer);
                if from != to {
                    loads[rail(round, from, to, ranks, rails)] += 1;
                }
            }
        }
        loads
    }

    fn spread(loads: &[u64]) -> u64 {
        loads.iter().max().unwrap_or(&0) - loads.iter().min().unwrap_or(&0)
    }

    fn common_divisor(a: usize, b: usize) -> usize {
        if b == 0 { a } else { common_divisor(b, a % b) }
    }

    proptest! {
        #[test]
        fn every_rank_loads_its_rails_alike_sending_and_receiving(
            ranks in 2usize..70, rails in 1usize..33, rank: prop::sample::Index, first in any::<u32>(), rounds in 1u64..12,
        ) {
            let rank = rank.index(ranks);
            for (first, rounds) in [(u64::from(first), 1), (u64::from(first), rounds), (u64::MAX - 20, rounds)] {
                let sent = loads(first, rounds, ranks, rails, |peer| (rank, peer));
                let received = loads(first, rounds, ranks, rails, |peer| (peer, rank));
                prop_assert_eq!(sent.iter().sum::<u64>(), rounds * (ranks as u64 - 1));
                prop_assert!(spread(&sent) <= 1, "{:?}", sent);
                prop_assert_eq!(sent, received);
            }
        }

        #[test]
        fn messages_in_a_row_take_rails_in_a_row(ranks in 2usize..70, rails in 1usize..33, from: prop::sample::Index, round in 0u64..1000) {
            let from = from.index(ranks);
            let of_round = |round| targets(from, ranks).map(move |to| rail(round, from, to, ranks, rails));
            let rails_used: Vec<usize> = of_round(round).chain(of_round(round + 1)).collect();
            prop_assert!(rails_used.windows(2).all(|pair| pair[1] == (pair[0] + 1) % rails), "{:?}", rails_used);
        }

        #[test]
        fn a_pair_meets_every_rail_in_its_time(ranks in 2usize..70, rails in 1usize..33, pair: (prop::sample::Index, prop::sample::Index), first in 0u64..1000) {
            let (from, to) = (pair.0.index(ranks), pair.1.index(ranks));
            prop_assume!(from != to && common_divisor(ranks - 1, rails) == 1);
            let mut met: Vec<usize> = (first..first + rails as u64).map(|round| rail(round, from, to, ranks, rails)).collect();
            met.sort_unstable();
            prop_assert_eq!(met, (0..rails).collect::<Vec<_>>());
        }

        #[test]
        fn targets_are_all_others_once_and_no_two_ranks_have_the_same_at_a_time(ranks in 1usize..40) {
            for from in 0..ranks {
                let mut all: Vec<usize> = targets(from, ranks).collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..ranks).filter(|rank| *rank != from).collect::<Vec<_>>());
            }
            for step in 0..ranks.saturating_sub(1) {
                let mut at_once: Vec<_> = (0..ranks).filter_map(|from| targets(from, ranks).nth(step)).collect();
                at_once.sort_unstable();
                at_once.dedup();
                prop_assert_eq!(at_once.len(), ranks);
            }
        }

        #[test]
        fn imbalance_is_that_of_the_busiest(loads in prop::collection::vec(0u64..1 << 40, 1..17)) {
            let imbalance = imbalance_pct(&loads);
            let mean = loads.iter().sum::<u64>() as f64 / loads.len() as f64;
            prop_assert!((mean * (1.0 + imbalance / 100.0) - loads.iter().copied().max().unwrap_or(0) as f64).abs() <= 1e-3);
            prop_assert_eq!(imbalance_pct(&vec![loads[0]; loads.len()]), 0.0);
        }
    }

    #[test]
    fn ranks_that_begin_alike_crowd_one_rail_of_each_receiver() {
        // Nine ranks, four rails: eight messages for each receiver.
        let imbalance = |start: Start| start.received_imbalance_pct(100, 9, 4).round();
        assert_eq!(imbalance(Start::Spread), 0.0);
        // Lower ranks reach a receiver by one rail, higher ones by the next.
        assert_eq!(imbalance(Start::Same), 211.0);
        assert_eq!(imbalance(Start::ByRank), 33.0);
        for start in [Start::Spread, Start::Same, Start::ByRank] {
            assert_eq!(start.to_string().parse(), Ok(start));
            for from in 0..5 {
                let mut targets = start.targets(from, 5);
                targets.sort_unstable();
                assert_eq!(targets, (0..5).filter(|rank| *rank != from).collect::<Vec<_>>());
            }
        }
        assert!("first".parse::<Start>().is_err());
    }

    #[test]
    fn the_two_directions_of_most_pairs_use_different_rails() {
        let same = |ranks: usize, rails: usize| {
            let pairs = (0..ranks).flat_map(|a| (0..a).map(move |b| (a, b)));
            pairs.filter(|&(a, b)| rail(0, a, b, ranks, rails) == rail(0, b, a, ranks, rails)).count()
        };
        // Of 28 pairs: distances d and 8 - d on the same one of 3, 4, 8 rails.
        assert_eq!([same(8, 1), same(8, 3), same(8, 4), same(8, 8)], [28, 12, 12, 4]);
    }

    #[test]
    fn eight_ranks_and_four_rails() {
        let row = |round| targets(0, 8).map(|to| rail(round, 0, to, 8, 4)).collect::<Vec<_>>();
        assert_eq!([row(0), row(1)], [[0, 1, 2, 3, 0, 1, 2], [3, 0, 1, 2, 3, 0, 1]]);
    }
}
