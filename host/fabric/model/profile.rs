//! Parameters of modelled NICs, each with its source.

use serde::Deserialize;
use std::collections::BTreeMap;

/// The data file, compiled in.
const PROFILES: &str = include_str!("profiles.toml");

/// One parameter.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ProfileParameter {
    /// Value, in the unit given by the parameter's name.
    pub value: f64,
    /// Source of a measured or published value. `None` if it is assumed.
    pub source: Option<String>,
    /// Assumption on which an unpublished value is based, and its reason.
    pub assumption: Option<String>,
}

/// A kind of NIC in a kind of machine. Every rail is one card.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Number of GPUs of a machine.
    pub gpus: ProfileParameter,
    /// Number of cards of a machine.
    pub cards: ProfileParameter,
    /// Line rate of a card in Gb/s, one direction.
    pub line_rate_gbps: ProfileParameter,
    /// Share of the line rate that the payload of very large writes reaches.
    pub peak_share: ProfileParameter,
    /// Time that a post takes on the posting thread, in us.
    pub post_us: ProfileParameter,
    /// Maximum rate at which a card starts writes, in millions per second.
    pub rate_per_rail_mops: ProfileParameter,
    /// Time from the last byte on the wire to its arrival, in us. The acknowledgement takes the same time.
    pub one_way_us: ProfileParameter,
    /// Half the range over which the one-way latency varies, in us.
    pub one_way_spread_us: ProfileParameter,
    /// Payload of a packet in bytes. Between two writes the wire is idle for the duration of one packet.
    pub mtu_bytes: ProfileParameter,
    /// Relative amount by which a write takes longer than its bytes at the peak rate. The additional time is at most
    /// `start_up_most_us`.
    pub start_up_share: ProfileParameter,
    /// Maximum additional time of a write due to `start_up_share`, in us.
    pub start_up_most_us: ProfileParameter,
    /// Maximum number of writes that a card holds. Further posts return [`Post::Again`](crate::Post::Again).
    pub queue_depth: ProfileParameter,
    /// 1 if the card writes directly to a peer's memory. 0 if the provider sends messages, which the peer's CPU copies.
    pub rdma_write: ProfileParameter,
    /// Rate at which kernels of a GPU store to the other GPUs of its machine, in GB/s.
    pub nvlink_gbytes_s: ProfileParameter,
}

impl Profile {
    /// Returns the profile of this name.
    ///
    /// # Errors
    /// Returns a one-line error that lists the existing names if there is no such profile.
    pub fn named(name: &str) -> Result<Profile, String> {
        let mut all = Self::all()?;
        all.remove(name).ok_or_else(|| {
            let names: Vec<String> = all.into_keys().map(|name| format!("model:{name}")).collect();
            format!("unknown profile {name:?}: expected one of {}", names.join(", "))
        })
    }

    /// Returns all profiles by name.
    ///
    /// # Errors
    /// Returns an error if the data file is invalid.
    pub fn all() -> Result<BTreeMap<String, Profile>, String> {
        Self::read(PROFILES).map_err(|error| format!("profiles.toml: {error}"))
    }

    /// Parses profiles from a text in the format of profiles.toml.
    ///
    /// # Errors
    /// Returns an error with its position if the text is invalid.
    pub fn read(text: &str) -> Result<BTreeMap<String, Profile>, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// Returns the number of rails per GPU when all GPUs of the machine use theirs.
    #[must_use]
    pub fn cards_per_gpu(&self) -> f64 {
        self.cards.value / self.gpus.value
    }

    /// Returns the names of the parameters that are assumed.
    pub fn assumed(&self) -> impl Iterator<Item = &'static str> {
        self.figures().into_iter().filter(|(_, figure)| figure.assumption.is_some()).map(|(name, _)| name)
    }

    /// Returns every parameter with its name.
    #[must_use]
    pub fn figures(&self) -> [(&'static str, &ProfileParameter); 14] {
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
    fn unknown_profile_lists_profiles() {
        assert_eq!(
            Profile::named("p3").expect_err("unknown"),
            "unknown profile \"p3\": expected one of model:p4d, model:p5, model:p5en, model:p6-b200"
        );
    }
}
