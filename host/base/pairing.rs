//! Which ranks measure together in pairs: across hosts wherever that can be.

use std::fmt::Write;

/// Half of the ranks begin, each with one partner of the other half.
///
/// Ranks are put in order by host (hosts as they first appear, so rank 0's host first) and then by number; each of the first half
/// is paired with the one half of the ranks further. A host's ranks stand side by side in that order, so no two of them are a pair
/// unless the host has more than half of all. On one host rank `r` is paired with `r + n/2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// By rank: the partner, and whether this rank begins; `None` for the one rank that an odd number leaves over.
    partners: Vec<Option<(usize, bool)>>,
    /// Pairs within a host, in the order of the ranks that begin.
    within: Vec<(usize, usize)>,
    hosts: usize,
}

impl Pairing {
    /// Pairs ranks; `hosts` says by rank where each runs.
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

    /// The number of ranks, paired or not.
    pub fn ranks(&self) -> usize {
        self.partners.len()
    }

    /// The other one of a rank's pair.
    pub fn partner(&self, rank: usize) -> Option<usize> {
        self.partners.get(rank)?.map(|(partner, _)| partner)
    }

    /// Whom this rank writes to, where it begins.
    pub fn target(&self, rank: usize) -> Option<usize> {
        self.partners.get(rank)?.filter(|(_, begins)| *begins).map(|(partner, _)| partner)
    }

    /// Who writes to this rank, where the other one begins.
    pub fn source(&self, rank: usize) -> Option<usize> {
        self.partners.get(rank)?.filter(|(_, begins)| !begins).map(|(partner, _)| partner)
    }

    /// For the header: which pairs never leave their host; `None` where all do.
    pub fn note(&self) -> Option<String> {
        if self.within.is_empty() {
            return None;
        }
        if self.hosts == 1 {
            return Some("all ranks are on one host: no pair crosses a network".to_owned());
        }
        let mut text = format!("{} hosts, but these pairs of ranks are each within one:", self.hosts);
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
        /// Everybody has one partner who has him, half of them begin, rank 0 does, and no other pairing crosses hosts more often.
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
        fn on_one_host_the_first_half_begins(half in 1usize..20) {
            let pairing = Pairing::of(&vec!["here"; half * 2]);
            for rank in 0..half {
                prop_assert_eq!((pairing.target(rank), pairing.source(rank + half)), (Some(rank + half), Some(rank)));
            }
        }
    }

    #[test]
    fn ranks_dealt_out_by_node_pair_across_nodes() {
        // mpirun --map-by node on two hosts.
        let pairing = Pairing::of(&["a", "b", "a", "b"]);
        assert_eq!((0..4).map(|rank| pairing.target(rank)).collect::<Vec<_>>(), [Some(1), None, Some(3), None]);
        assert_eq!(pairing.note(), None);
        // --map-by slot.
        let pairing = Pairing::of(&["a", "a", "b", "b"]);
        assert_eq!((0..4).map(|rank| pairing.target(rank)).collect::<Vec<_>>(), [Some(2), Some(3), None, None]);
    }

    #[test]
    fn a_pair_within_a_host_is_told() {
        let note = Pairing::of(&["a", "a", "a", "b"]).note().unwrap();
        assert_eq!(note, "2 hosts, but these pairs of ranks are each within one: 0-2");
        assert!(Pairing::of(&["a", "a"]).note().unwrap().starts_with("all ranks are on one host"));
    }
}
