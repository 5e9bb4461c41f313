//! Rates between all pairs of nodes: the schedule of the measurements, and the rule that distinguishes a slow NIC from
//! a slow pair.
//!
//! **Schedule.** A round-robin tournament by the circle method: in each round every node measures with one other node,
//! and after all rounds every pair has met once. Therefore, no node measures with two others at the same time.
//!
//! **Rule.** Rail `i` of a node is measured with rail `i` of each partner, in both directions. A NIC is slow if more
//! than half of its partners measure less than the limit with it, in the same direction: its median over the partners
//! is then below the limit. A slow measurement between two NICs that are not slow is a slow pair.

use super::{Finding, fail, of, ok, warn};
use ginlab_base::stats::upper_median;
use serde::Serialize;

/// Returns the number of rounds in which all pairs of `nodes` nodes meet.
#[must_use]
pub fn rounds(nodes: usize) -> usize {
    match nodes {
        0 | 1 => 0,
        _ => nodes - 1 + nodes % 2,
    }
}

/// Returns the node that `node` meets in round `round`. `None` if `node` pauses, which happens only if the number of
/// nodes is odd.
#[must_use]
pub fn partner(node: usize, round: usize, nodes: usize) -> Option<usize> {
    let turning = rounds(nodes);
    if turning == 0 {
        return None;
    }
    // All nodes except the last form a circle. In each round, two nodes meet if their sum is the round number modulo
    // the size of the circle. The node that would meet itself meets the last node, which does not exist if the number
    // is odd.
    let met = if node == turning {
        round * turning.div_ceil(2) % turning
    } else {
        let other = (round % turning + turning - node) % turning;
        if other == node { turning } else { other }
    };
    (met < nodes).then_some(met)
}

/// A node of the tournament.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TournamentNode {
    /// Host name.
    pub host: String,
    /// Names of the host's rails.
    pub nics: Vec<String>,
}

/// Rates of all pairs in Gb/s.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// The nodes.
    pub nodes: Vec<TournamentNode>,
    /// Rates by sender, receiver and rail. 0 for a transfer that failed; `None` if it was not measured.
    pub rates: Vec<Vec<Vec<Option<f32>>>>,
}

/// Verdict on one NIC.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NicRate {
    /// Host name of its node.
    pub host: String,
    /// Number of the rank's node.
    pub node: usize,
    /// Number of the rail.
    pub rail: usize,
    /// Name of the rail.
    pub nic: String,
    /// Number of partners with which the NIC was measured.
    pub partners: usize,
    /// Median rate of its transfers to its partners, in Gb/s.
    pub sends_gbits_s: f32,
    /// Median rate of the transfers of its partners to it, in Gb/s.
    pub receives_gbits_s: f32,
    /// Whether a median is below the limit. Only for a NIC with at least two partners.
    pub slow: bool,
}

/// A slow transfer between two NICs neither of which is slow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowPair {
    /// Host name of the sender.
    pub from: String,
    /// Host name of the receiver.
    pub to: String,
    /// Numbers of the sender and the receiver.
    pub nodes: (usize, usize),
    /// Number of the rail.
    pub rail: usize,
    /// Rate in Gb/s.
    pub gbits_s: f32,
}

/// Verdict on all NICs and pairs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TournamentVerdict {
    /// Median of the medians of all NICs in Gb/s.
    pub median_gbits_s: f32,
    /// Rate below which a NIC or a pair is slow, in Gb/s: a fraction of the median.
    pub limit_gbits_s: f32,
    /// All NICs, by node and rail.
    pub nics: Vec<NicRate>,
    /// Slow pairs.
    pub pairs: Vec<SlowPair>,
}

impl TournamentVerdict {
    /// Returns a finding for each slow NIC, one for the slow pairs, and one for all. `line` is the line rate of a NIC
    /// in Gb/s, if it is known. `at_least` is the fraction of it that the median must reach.
    #[must_use]
    pub fn findings(&self, nodes: usize, line: Option<f64>, at_least: f64) -> Vec<Finding> {
        const CHECK: &str = "peers-rates";
        const EXAMINED: &str = "rates between all pairs of nodes on each rail";
        let limit = format!("limit {}, median of all {}", digits(self.limit_gbits_s), digits(self.median_gbits_s));
        let of_nic = |nic: &NicRate| {
            let NicRate { nic, rail, partners, sends_gbits_s: sends, receives_gbits_s: receives, .. } = nic;
            let (sends, receives) = (digits(*sends), digits(*receives));
            let found = format!(
                "{nic} (rail {rail}) sends {sends} and receives {receives} Gb/s with {partners} partners; {limit}"
            );
            fail(found, "`ginlab doctor --gate` on this host; replace the instance if only its NIC is slow")
        };
        let slow = self.nics.iter().filter(|nic| nic.slow);
        let mut findings: Vec<Finding> = slow.map(|nic| of(&nic.host, CHECK, EXAMINED, of_nic(nic))).collect();
        if !self.pairs.is_empty() {
            let line = |pair: &SlowPair| {
                format!("{} to {} on rail {}: {} Gb/s", pair.from, pair.to, pair.rail, digits(pair.gbits_s))
            };
            let shown: Vec<String> = self.pairs.iter().take(4).map(line).collect();
            let more = self.pairs.len() - shown.len();
            let more = if more > 0 { format!(" ({more} more)") } else { String::new() };
            let why = if nodes > 2 { "" } else { "; two nodes do not show which of both NICs is slow" };
            let found = format!("slow pairs: {}{more}; {limit}{why}", shown.join("; "));
            let mend = "run it again; a pair that stays slow has a slow path between its hosts: place the nodes in one \
                        placement group, or leave one of them out";
            findings.push(of("all", CHECK, EXAMINED, warn(found, mend)));
        }
        let rates = self.nics.iter().flat_map(|nic| [nic.sends_gbits_s, nic.receives_gbits_s]);
        let (least, most) = rates.fold((f32::MAX, 0.0f32), |(least, most), rate| (least.min(rate), most.max(rate)));
        let share = line.map(|line| f64::from(self.median_gbits_s) / line);
        let of_line = share.map_or(String::new(), |share| format!(", {:.0} % of the line rate", share * 100.0));
        let found = format!(
            "{nodes} nodes, {} NICs: medians from {} to {} Gb/s, median of all {}{of_line}",
            self.nics.len(),
            digits(least),
            digits(most),
            digits(self.median_gbits_s)
        );
        let said = match share {
            _ if self.nics.iter().all(|nic| nic.partners == 0) => {
                warn("no rate was measured: fewer than two nodes have rails", "see peers-rails")
            }
            // All NICs are equally slow, so the cause is common to all.
            Some(share) if share < at_least => warn(
                found,
                "payloads are in host memory: compare with `ginlab write --bare`; is another job running on these nodes?",
            ),
            _ => ok(found),
        };
        findings.push(of("all", CHECK, EXAMINED, said));
        findings
    }
}

/// Formats a rate with enough digits even for NICs of a modelled network.
fn digits(gbits_s: f32) -> String {
    match gbits_s {
        10.0.. => format!("{gbits_s:.1}"),
        0.1.. => format!("{gbits_s:.2}"),
        _ => format!("{gbits_s:.4}"),
    }
}

impl Rates {
    fn of(&self, from: usize, to: usize, rail: usize) -> Option<f32> {
        self.rates.get(from)?.get(to)?.get(rail).copied().flatten()
    }

    /// Judges all NICs and pairs. `at_least` is the fraction of the median of all NICs below which a rate is slow.
    #[must_use]
    pub fn judge(&self, at_least: f64) -> TournamentVerdict {
        let mut nics = Vec::new();
        for (node, known) in self.nodes.iter().enumerate() {
            nics.extend(known.nics.iter().enumerate().map(|(rail, name)| self.nic(node, rail, name)));
        }
        // A median of all rates would not suffice: one slow NIC slows the rates of all its partners.
        let all: Vec<f32> = nics.iter().flat_map(|nic| [nic.sends_gbits_s, nic.receives_gbits_s]).collect();
        let median_gbits_s = upper_median(&all).unwrap_or(0.0);
        let limit = (f64::from(median_gbits_s) * at_least) as f32;
        for nic in &mut nics {
            // A slow NIC with only one partner cannot be distinguished from a slow partner.
            nic.slow = nic.partners > 1 && (nic.sends_gbits_s < limit || nic.receives_gbits_s < limit);
        }
        let mut slow = vec![Vec::new(); self.nodes.len()];
        nics.iter().for_each(|nic: &NicRate| slow[nic.node].push(nic.slow));
        let is_slow = |node: usize, rail: usize| slow[node].get(rail).copied().unwrap_or(false);
        let mut pairs = Vec::new();
        for (from, rails) in slow.iter().enumerate() {
            for (to, rail) in (0..self.nodes.len()).flat_map(|to| (0..rails.len()).map(move |rail| (to, rail))) {
                let Some(gbits_s) = self.of(from, to, rail).filter(|rate| *rate < limit) else { continue };
                if !is_slow(from, rail) && !is_slow(to, rail) {
                    let host = |node: usize| self.nodes[node].host.clone();
                    pairs.push(SlowPair { from: host(from), to: host(to), nodes: (from, to), rail, gbits_s });
                }
            }
        }
        TournamentVerdict { median_gbits_s, limit_gbits_s: limit, nics, pairs }
    }

    fn nic(&self, node: usize, rail: usize, name: &str) -> NicRate {
        let others = || 0..self.nodes.len();
        let sends: Vec<f32> = others().filter_map(|to| self.of(node, to, rail)).collect();
        let receives: Vec<f32> = others().filter_map(|from| self.of(from, node, rail)).collect();
        let partners = sends.len().max(receives.len());
        let [sends_gbits_s, receives_gbits_s] = [sends, receives].map(|rates| upper_median(&rates).unwrap_or(0.0));
        let host = self.nodes[node].host.clone();
        NicRate { host, node, rail, nic: name.to_owned(), partners, sends_gbits_s, receives_gbits_s, slow: false }
    }
}
