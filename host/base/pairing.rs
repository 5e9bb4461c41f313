//! Pairs of ranks that measure together, across hosts if possible.

use std::fmt::Write;

/// Pairing of ranks. Half of the ranks initiate, each with one partner of the other half.
///
/// Ranks are ordered by host (in order of first appearance, so rank 0's host comes first) and then by number. Each rank
/// of the first half is paired with the rank at the same position of the second half. The ranks of a host are adjacent
/// in this order, so no two of them form a pair unless the host has more than half of all ranks. On a single host, rank
/// `r` is paired with `r + n/2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// Partner of each rank, and whether the rank initiates; `None` for the rank that is left over if the number is
    /// odd.
    partners: Vec<Option<(usize, bool)>>,
    /// Pairs within a host, in the order of the ranks that initiate.
    within: Vec<(usize, usize)>,
    hosts: usize,
}

impl Pairing {
    /// Pairs ranks. `hosts` contains the host of each rank.
    pub fn of<H: PartialEq>(hosts: &[H]) -> Pairing {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (rank, host) in hosts.iter().enumerate() {
            match groups.iter_mut().find(|group| hosts[group[0]] == *host) {
                Some(group) => group.push(rank),
                None => groups.push(vec![rank]),
            }
        }
        let order = groups.concat();
        let half = order.len() / 2;
        let mut pairing = Pairing { partners: vec![None; order.len()], within: Vec::new(), hosts: groups.len() };
        for (&from, &to) in order.iter().zip(&order[half..]).take(half) {
            pairing.partners[from] = Some((to, true));
            pairing.partners[to] = Some((from, false));
            if hosts[from] == hosts[to] {
                pairing.within.push((from, to));
            }
        }
        pairing
    }

    /// Returns the number of ranks, whether paired or not.
    pub fn ranks(&self) -> usize {
        self.partners.len()
    }

    /// Returns the partner of a rank.
    pub fn partner(&self, rank: usize) -> Option<usize> {
        self.partners.get(rank)?.map(|(partner, _)| partner)
    }

    /// Returns the rank that `rank` writes to, if `rank` initiates.
    pub fn target(&self, rank: usize) -> Option<usize> {
        self.partners.get(rank)?.filter(|(_, begins)| *begins).map(|(partner, _)| partner)
    }

    /// Returns the rank that writes to `rank`, if that rank initiates.
    pub fn source(&self, rank: usize) -> Option<usize> {
        self.partners.get(rank)?.filter(|(_, begins)| !begins).map(|(partner, _)| partner)
    }

    /// Returns a note for the header with the pairs that are within a host; `None` if all pairs cross hosts.
    pub fn note(&self) -> Option<String> {
        if self.within.is_empty() {
            return None;
        }
        if self.hosts == 1 {
            return Some("all ranks are on one host: no pair crosses a network".to_owned());
        }
        let mut text = format!("{} hosts, but these pairs of ranks are within one host:", self.hosts);
        for (from, to) in &self.within {
            // Writing to a String cannot fail.
            let _ = write!(text, " {from}-{to}");
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Partners are mutual, half of the ranks including rank 0 initiate, and no other pairing has more pairs across
        /// hosts.
        #[test]
        fn pairs_cross_hosts_wherever_they_can(hosts in prop::collection::vec(0u8..5, 1..40)) {
            let pairing = Pairing::of(&hosts);
            let ranks = hosts.len();
            let begins: Vec<usize> = (0..ranks).filter(|rank| pairing.target(*rank).is_some()).collect();
            prop_assert_eq!(begins.len(), ranks / 2);
            prop_assert_eq!(begins.first().copied(), (ranks > 1).then_some(0));
            for rank in 0..ranks {
                match pairing.partner(rank) {
                    Some(other) => {
                        prop_assert_ne!(other, rank);
                        prop_assert_eq!(pairing.partner(other), Some(rank));
                        prop_assert_eq!(pairing.target(rank), pairing.source(other).and(Some(other)));
                    }
                    None => prop_assert!(ranks % 2 == 1),
                }
            }
            prop_assert!((0..ranks).filter(|rank| pairing.partner(*rank).is_none()).count() == ranks % 2);
            let crossing = begins.iter().filter(|rank| hosts[**rank] != hosts[pairing.target(**rank).unwrap()]).count();
            let largest = (0..5).map(|host| hosts.iter().filter(|other| **other == host).count()).max().unwrap();
            if ranks % 2 == 0 {
                prop_assert_eq!(crossing, (ranks / 2).min(ranks - largest));
            }
            prop_assert_eq!(crossing == ranks / 2, pairing.note().is_none());
        }

        #[test]
        fn first_half_of_host_targets_second_half(half in 1usize..20) {
            let pairing = Pairing::of(&vec!["here"; half * 2]);
            for rank in 0..half {
                prop_assert_eq!((pairing.target(rank), pairing.source(rank + half)), (Some(rank + half), Some(rank)));
            }
        }
    }

    #[test]
    fn ranks_dealt_out_by_node_pair_across_nodes() {
        // Order of mpirun --map-by node on two hosts.
        let pairing = Pairing::of(&["a", "b", "a", "b"]);
        assert_eq!((0..4).map(|rank| pairing.target(rank)).collect::<Vec<_>>(), [Some(1), None, Some(3), None]);
        assert_eq!(pairing.note(), None);
        // Hosts in the order of --map-by slot.
        let pairing = Pairing::of(&["a", "a", "b", "b"]);
        assert_eq!((0..4).map(|rank| pairing.target(rank)).collect::<Vec<_>>(), [Some(2), Some(3), None, None]);
    }

    #[test]
    fn pair_within_host_is_noted() {
        let note = Pairing::of(&["a", "a", "a", "b"]).note().unwrap();
        assert_eq!(note, "2 hosts, but these pairs of ranks are within one host: 0-2");
        assert!(Pairing::of(&["a", "a"]).note().unwrap().starts_with("all ranks are on one host"));
    }
}
