//! Information that ranks exchange about themselves and their rails, and checks of its consistency.

use crate::error::Failure;
use crate::job::Job;
use ginlab::bootstrap::BootstrapError;
use ginlab::fabric::any::AnyRail;
use ginlab::flow::{Offer, Region};
use serde::{Deserialize, Serialize};

/// Information about one rail of a rank, for output and for [`crossed`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailCard {
    pub domain: String,
    pub fabric: String,
    pub provider_version: String,
    pub link_bits_per_second: Option<u64>,
    pub address_text: String,
}

/// Information about one rank: what peers need to write to its memory, and its rails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootstrapRankInfo {
    pub local_rank: usize,
    pub offer: Offer,
    pub rails: Vec<RailCard>,
}

impl BootstrapRankInfo {
    pub fn of(job: &Job, region: &Region<AnyRail>, local_rank: usize) -> Result<BootstrapRankInfo, Failure> {
        let mut rails = Vec::new();
        for (number, domain) in job.domains().iter().enumerate() {
            let told = job.flow.with_rail(number, |rail| match rail {
                AnyRail::Libfabric(rail) => Some(rail.address_text().map(|text| (rail.provider_version(), text))),
                _ => None,
            });
            let Some((provider_version, address_text)) = told.flatten().transpose()? else { continue };
            rails.push(RailCard {
                domain: domain.name.clone(),
                fabric: domain.fabric.clone(),
                provider_version,
                link_bits_per_second: domain.link_bits_per_second,
                address_text,
            });
        }
        Ok(BootstrapRankInfo { local_rank, offer: job.flow.offer(&[region])?, rails })
    }
}

impl RailCard {
    fn place(&self) -> String {
        format!("{} in {}", self.domain, self.fabric)
    }
}

/// Returns an error if a rail of a rank is in the network of another rail of rank 0. Rails are paired by number, so the
/// ranks' lists are then in different orders, and writes on this rail would not arrive. Networks that rank 0 lacks may
/// be routed; see [`routed`].
pub fn crossed(cards: &[BootstrapRankInfo]) -> Option<BootstrapError> {
    let first = &cards.first()?.rails;
    let is_crossed = |(number, rail): (usize, &RailCard)| {
        let here = first.get(number).is_none_or(|ours| ours.fabric != rail.fabric);
        here && first.iter().any(|ours| ours.fabric == rail.fabric)
    };
    let (number, other) = cards.iter().find_map(|card| {
        let number = card.rails.iter().enumerate().position(is_crossed)?;
        Some((number, card.rails[number].place()))
    })?;
    let has_it = |card: &BootstrapRankInfo| card.rails.get(number).is_some_and(|rail| rail.place() == other);
    let ours = first.get(number).map(RailCard::place).unwrap_or_default();
    let ranks: Vec<usize> = (0..cards.len()).filter(|rank| has_it(&cards[*rank])).collect();
    Some(BootstrapError::differ(&format!("rail {number}"), &format!("{ours:?}"), &format!("{other:?}"), &ranks))
}

/// Returns the first rail whose network differs from that of rank 0's rail of the same number: the rail's number, the
/// rank, and both networks.
pub fn routed(cards: &[BootstrapRankInfo]) -> Option<(usize, usize, &str, &str)> {
    let first = &cards.first()?.rails;
    cards.iter().enumerate().find_map(|(rank, card)| {
        let mut pairs = first.iter().zip(&card.rails).enumerate();
        let (number, (ours, theirs)) = pairs.find(|(_, (ours, theirs))| ours.fabric != theirs.fabric)?;
        Some((number, rank, ours.fabric.as_str(), theirs.fabric.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(fabrics: &[&str]) -> BootstrapRankInfo {
        let rail = |fabric: &&str| RailCard {
            domain: format!("if-{fabric}"),
            fabric: (*fabric).to_owned(),
            provider_version: "117.0".to_owned(),
            link_bits_per_second: None,
            address_text: String::new(),
        };
        BootstrapRankInfo { local_rank: 0, offer: Offer::default(), rails: fabrics.iter().map(rail).collect() }
    }

    #[test]
    fn reordered_networks_are_reported_as_crossed() {
        assert_eq!(crossed(&[card(&["a", "b"]), card(&["a", "b"])]), None);
        let cards = [card(&["a", "b", "c"]), card(&["a", "b", "c"]), card(&["a", "c", "b"]), card(&["a", "c", "c"])];
        let error = crossed(&cards).map(|error| error.to_string());
        let line = "ranks differ: rail 1 is \"if-b in b\" on rank 0 but \"if-c in c\" on ranks 2, 3";
        assert_eq!(error.as_deref(), Some(line));
    }

    #[test]
    fn networks_unknown_to_rank_0_are_routed() {
        let cards = [card(&["a", "b"]), card(&["a", "b"]), card(&["a", "d"])];
        assert_eq!(crossed(&cards), None);
        assert_eq!(routed(&cards), Some((1, 2, "b", "d")));
        assert_eq!(routed(&cards[..2]), None);
        assert_eq!(routed(&[]), None);
    }

    #[test]
    fn endpoints_on_one_domain_are_not_crossed() {
        assert_eq!(crossed(&[card(&["lo", "lo"]), card(&["lo", "lo"])]), None);
    }
}
