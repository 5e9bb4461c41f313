//! Assignment of messages to rails in an all-to-all.
//!
//! Rails are paired by number: a message sent on a rank's rail 2 arrives on its peer's rail 2, because rails may be
//! separate networks. The same number must therefore balance both sides. This number depends only on the round and on
//! the distance from sender to receiver around the circle of ranks. Each sender and each receiver has every distance
//! once per round, so both use the same numbers. The numbers continue from message to message and from round to round.

/// Returns the rail of the message from rank `from` to rank `to` in `round`, below `rails`.
///
/// Over any number of consecutive rounds, the message counts of a rank's rails differ by at most one, both for sent and
/// for received messages. The two directions of a pair are separate messages, usually on different rails. If the number
/// of other ranks and `rails` are coprime, a pair uses all rails, one per round. Otherwise it uses a subset, and other
/// pairs use the remaining rails.
///
/// `from` and `to` must be different ranks below `ranks`, and `rails` must be at least 1.
#[must_use]
pub fn rail(round: u64, from: usize, to: usize, ranks: usize, rails: usize) -> usize {
    let distance = (to + ranks - from) % ranks;
    // Reduce `round` modulo `rails` first, so that the product cannot overflow. The result is the same.
    let rounds = (round % rails as u64) as usize;
    (rounds * (ranks - 1) + (distance - 1)) % rails
}

/// Returns the ranks to which a rank sends, in the order of their distance. If all ranks start at the same time, no two
/// of them send to the same receiver.
pub fn targets(from: usize, ranks: usize) -> impl Iterator<Item = usize> {
    (1..ranks).map(move |distance| (from + distance) % ranks)
}

/// Order of a rank's messages in a round, and the rail of the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString)]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = unknown)]
pub enum Start {
    /// The rail depends on the distance to the receiver, as in [`rail`]. Every receiver's rails have equal load in
    /// every round.
    Spread,
    /// Receivers in the order of their numbers, and rails from rail 0. This is the order of a library whose ranks all
    /// start identically: at any time all of them write to one receiver over one rail.
    Same,
    /// Like [`Start::Same`], but rank `r` starts at rail `r`.
    ByRank,
}

impl Start {
    /// Returns the rail of a message, like [`rail`].
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

    /// Returns the receivers of a rank's messages, in order.
    #[must_use]
    pub fn targets(self, from: usize, ranks: usize) -> Vec<usize> {
        match self {
            Start::Spread => targets(from, ranks).collect(),
            Start::Same | Start::ByRank => (0..ranks).filter(|to| *to != from).collect(),
        }
    }

    /// Returns the percentage by which a receiver's busiest rail exceeds the mean of its rails in one round, averaged
    /// over `rounds` rounds and all receivers. Messages are not split.
    #[must_use]
    pub fn received_imbalance_pct(self, rounds: u64, ranks: usize, rails: usize) -> f64 {
        // The assignment repeats after `rails` rounds.
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
    format!("invalid start {text:?}: expected spread, same or by-rank")
}

/// Returns the percentage by which the largest load exceeds the mean load, or 0 if all loads are 0.
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

    /// Returns the messages of one rank per rail, over `rounds` consecutive rounds.
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
        fn ranks_balance_rails_when_sending_and_receiving(
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
        fn consecutive_messages_use_consecutive_rails(ranks in 2usize..70, rails in 1usize..33, from: prop::sample::Index, round in 0u64..1000) {
            let from = from.index(ranks);
            let of_round = |round| targets(from, ranks).map(move |to| rail(round, from, to, ranks, rails));
            let rails_used: Vec<usize> = of_round(round).chain(of_round(round + 1)).collect();
            prop_assert!(rails_used.windows(2).all(|pair| pair[1] == (pair[0] + 1) % rails), "{:?}", rails_used);
        }

        #[test]
        fn pair_uses_every_rail_over_rounds(ranks in 2usize..70, rails in 1usize..33, pair: (prop::sample::Index, prop::sample::Index), first in 0u64..1000) {
            let (from, to) = (pair.0.index(ranks), pair.1.index(ranks));
            prop_assume!(from != to && common_divisor(ranks - 1, rails) == 1);
            let mut met: Vec<usize> = (first..first + rails as u64).map(|round| rail(round, from, to, ranks, rails)).collect();
            met.sort_unstable();
            prop_assert_eq!(met, (0..rails).collect::<Vec<_>>());
        }

        #[test]
        fn steps_visit_every_other_rank_without_shared_targets(ranks in 1usize..40) {
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
        fn imbalance_compares_busiest_rail_with_mean(loads in prop::collection::vec(0u64..1 << 40, 1..17)) {
            let imbalance = imbalance_pct(&loads);
            let mean = loads.iter().sum::<u64>() as f64 / loads.len() as f64;
            prop_assert!((mean * (1.0 + imbalance / 100.0) - loads.iter().copied().max().unwrap_or(0) as f64).abs() <= 1e-3);
            prop_assert_eq!(imbalance_pct(&vec![loads[0]; loads.len()]), 0.0);
        }
    }

    #[test]
    fn equal_starts_overload_one_rail_per_receiver() {
        // Nine ranks and four rails: eight messages per receiver.
        let imbalance = |start: Start| start.received_imbalance_pct(100, 9, 4).round();
        assert_eq!(imbalance(Start::Spread), 0.0);
        // Lower ranks reach a receiver on one rail, and higher ranks on the next.
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
    fn directions_of_most_pairs_use_different_rails() {
        let same = |ranks: usize, rails: usize| {
            let pairs = (0..ranks).flat_map(|a| (0..a).map(move |b| (a, b)));
            pairs.filter(|&(a, b)| rail(0, a, b, ranks, rails) == rail(0, b, a, ranks, rails)).count()
        };
        // Number of the 28 pairs whose distances d and 8 - d use the same rail of 3, 4 or 8 rails.
        assert_eq!([same(8, 1), same(8, 3), same(8, 4), same(8, 8)], [28, 12, 12, 4]);
    }

    #[test]
    fn eight_ranks_use_four_rails() {
        let row = |round| targets(0, 8).map(|to| rail(round, 0, to, 8, 4)).collect::<Vec<_>>();
        assert_eq!([row(0), row(1)], [[0, 1, 2, 3, 0, 1, 2], [3, 0, 1, 2, 3, 0, 1]]);
    }
}
