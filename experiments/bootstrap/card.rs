//! What a rank tells the others about itself and its rails, and whether the lists fit together.

use crate::error::Failure;
use crate::job::Job;
use ginlab::bootstrap::BootstrapError;
use ginlab::fabric::any::AnyRail;
use ginlab::flow::{Offer, Region};
use serde::{Deserialize, Serialize};

/// One rail of a rank, for people and for [`crossed`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RailCard {
    pub domain: String,
    pub fabric: String,
    pub provider_version: String,
    pub link_bits_per_second: Option<u64>,
    pub address_text: String,
}

/// One rank: what peers must know to write into its memory, and its rails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub local_rank: usize,
    pub offer: Offer,
    pub rails: Vec<RailCard>,
}

impl Card {
    pub fn of(job: &Job, region: &Region<AnyRail>, local_rank: usize) -> Result<Card, Failure> {
        let mut rails = Vec::new();
        for (number, domain) in job.domains().iter().enumerate() {
            let told = job.flow.with_rail(number, |rail| match rail {
                AnyRail::Libfabric(rail) => Some(rail.address_text().map(|text| (rail.provider_version(), text))),
                AnyRail::Verbs(_) | AnyRail::Worst(_) => None,
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
        Ok(Card { local_rank, offer: job.flow.offer(&[region])?, rails })
    }
}

impl RailCard {
    fn place(&self) -> String {
        format!("{} in {}", self.domain, self.fabric)
    }
}

/// Rails pair by number. A rail of a rank must not be in the network of another rail of rank 0: then the lists are in
/// different orders, and what is written by this number arrives nowhere. Networks that rank 0 has not at all may be routed;
/// see [`routed`].
pub fn crossed(cards: &[Card]) -> Option<BootstrapError> {
    let first = &cards.first()?.rails;
    let is_crossed = |(number, rail): (usize, &RailCard)| {
        let here = first.get(number).is_none_or(|ours| ours.fabric != rail.fabric);
        here && first.iter().any(|ours| ours.fabric == rail.fabric)
    };
    let (number, other) = cards.iter().find_map(|card| {
        let number = card.rails.iter().enumerate().position(is_crossed)?;
        Some((number, card.rails[number].place()))
    })?;
    let has_it = |card: &Card| card.rails.get(number).is_some_and(|rail| rail.place() == other);
    let ours = first.get(number).map(RailCard::place).unwrap_or_default();
    let ranks: Vec<usize> = (0..cards.len()).filter(|rank| has_it(&cards[*rank])).collect();
    Some(BootstrapError::differ(&format!("rail {number}"), &format!("{ours:?}"), &format!("{other:?}"), &ranks))
}

/// The first rail whose network is not that of rank 0's rail of the same number, with both networks and the rank.
pub fn routed(cards: &[Card]) -> Option<(usize, usize, &str, &str)> {
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

    fn card(fabrics: &[&str]) -> Card {
        let rail = |fabric: &&str| RailCard {
            domain: format!("if-{fabric}"),
            fabric: (*fabric).to_owned(),
            provider_version: "117.0".to_owned(),
            link_bits_per_second: None,
            address_text: String::new(),
        };
        Card { local_rank: 0, offer: Offer::default(), rails: fabrics.iter().map(rail).collect() }
    }

    #[test]
    fn the_same_networks_in_another_order_are_crossed() {
        assert_eq!(crossed(&[card(&["a", "b"]), card(&["a", "b"])]), None);
        let cards = [card(&["a", "b", "c"]), card(&["a", "b", "c"]), card(&["a", "c", "b"]), card(&["a", "c", "c"])];
        let error = crossed(&cards).map(|error| error.to_string());
        let line = "ranks differ: rail 1 is \"if-b in b\" on rank 0 but \"if-c in c\" on ranks 2, 3";
        assert_eq!(error.as_deref(), Some(line));
    }

    #[test]
    fn networks_that_rank_0_has_not_are_routed() {
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
