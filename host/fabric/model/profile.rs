//! The figures of a modelled NIC, each with where it comes from.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The data file, as it was built in.
const PROFILES: &str = include_str!("profiles.toml");

/// One figure.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// In the unit that the figure's name says.
    pub value: f64,
    /// Who measured or published it; nothing when it is assumed.
    pub source: Option<String>,
    /// What stands in for a figure that nobody has published, and why.
    pub assumption: Option<String>,
}

/// A kind of NIC in a kind of machine. Every rail is one card.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// GPUs of a machine.
    pub gpus: Figure,
    /// Cards of a machine.
    pub cards: Figure,
    /// Line rate of a card, one way.
    pub line_rate_gbps: Figure,
    /// Share of the line rate that the payload of very large writes reaches.
    pub peak_share: Figure,
    /// What a post costs the thread that posts.
    pub post_us: Figure,
    /// Most writes a second that a card begins, in millions.
    pub rate_per_rail_mops: Figure,
    /// From the last byte on the wire to its arrival; the acknowledgement takes as long again.
    pub one_way_us: Figure,
    /// Half the range over which the one-way latency varies.
    pub one_way_spread_us: Figure,
    /// Payload of a packet. Between two writes the wire is idle for as long as one takes.
    pub mtu_bytes: Figure,
    /// By this share a write takes longer than its bytes at the peak rate ...
    pub start_up_share: Figure,
    /// ... until so much is lost.
    pub start_up_most_us: Figure,
    /// Writes that a card holds; beyond that a post is answered "again".
    pub queue_depth: Figure,
    /// 1 when it writes into a peer's memory itself; otherwise the provider sends messages that the peer's processor copies.
    pub rdma_write: Figure,
    /// What kernels of a GPU store to the other GPUs of its machine, in GB/s.
    pub nvlink_gbytes_s: Figure,
}

impl Profile {
    /// The profile of this name; the names there are otherwise.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn named(name: &str) -> Result<Profile, String> {
        let mut all = Self::all()?;
        all.remove(name).ok_or_else(|| {
            let names: Vec<String> = all.into_keys().map(|name| format!("model:{name}")).collect();
            format!("there is no profile {name:?}; known are {}", names.join(", "))
        })
    }

    /// All profiles by name.
    ///
    /// # Errors
    /// What cannot be read in the data file.
    pub fn all() -> Result<BTreeMap<String, Profile>, String> {
        Self::read(PROFILES).map_err(|error| format!("profiles.toml: {error}"))
    }

    /// The profiles of a text like profiles.toml.
    ///
    /// # Errors
    /// What cannot be read, and where.
    pub fn read(text: &str) -> Result<BTreeMap<String, Profile>, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// Rails that a GPU has for itself when all GPUs of the machine use theirs.
    #[must_use]
    pub fn cards_per_gpu(&self) -> f64 {
        self.cards.value / self.gpus.value
    }

    /// Names of the figures that nobody has published.
    pub fn assumed(&self) -> impl Iterator<Item = &'static str> {
        self.figures().into_iter().filter(|(_, figure)| figure.assumption.is_some()).map(|(name, _)| name)
    }

    /// Every figure with its name.
    #[must_use]
    pub fn figures(&self) -> [(&'static str, &Figure); 14] {
        [
            ("gpus", &self.gpus),
            ("cards", &self.cards),
            ("line_rate_gbps", &self.line_rate_gbps),
            ("peak_share", &self.peak_share),
            ("post_us", &self.post_us),
            ("rate_per_rail_mops", &self.rate_per_rail_mops),
            ("one_way_us", &self.one_way_us),
            ("one_way_spread_us", &self.one_way_spread_us),
            ("mtu_bytes", &self.mtu_bytes),
            ("start_up_share", &self.start_up_share),
            ("start_up_most_us", &self.start_up_most_us),
            ("queue_depth", &self.queue_depth),
            ("rdma_write", &self.rdma_write),
            ("nvlink_gbytes_s", &self.nvlink_gbytes_s),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_one_source_or_one_assumption() {
        let all = Profile::all().expect("the file is readable");
        assert_eq!(all.keys().collect::<Vec<_>>(), ["p4d", "p5", "p5en", "p6-b200"]);
        for (name, profile) in &all {
            for (figure, value) in profile.figures() {
                let said = [&value.source, &value.assumption].into_iter().flatten().filter(|text| !text.is_empty());
                assert_eq!(said.count(), 1, "{name}.{figure}");
                assert!((value.value > 0.0 || figure == "rdma_write") && value.value.is_finite(), "{name}.{figure}");
            }
        }
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        assert_eq!(
            Profile::named("p3").expect_err("unknown"),
            "there is no profile \"p3\"; known are model:p4d, model:p5, model:p5en, model:p6-b200"
        );
    }
}
