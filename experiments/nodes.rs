//! Sums per node and per job. In addition to a row that covers all senders, there is a row per node and one for the
//! job. These rows have the rates of the slowest and fastest sender and rail, and the percentage of the line rate of
//! all NICs used.
//!
//! All senders run concurrently. A repeat of a node therefore takes as long as its slowest sender, and the node's
//! bandwidth is the sum of all bytes over that time. It never exceeds the sum of the senders' own bandwidths.

use crate::columns::{COLD, RAIL_BYTES};
use crate::runner::{added, slowest, timed};
use ginlab::bootstrap::{Bootstrap, Member};
use ginlab::measure::stats::{Micros, Summary};
use ginlab::report::{Column, Row};
use serde::{Deserialize, Serialize};

/// Case that a row sums up.
pub const OF: Column = Column::chosen("summarized_case", "", "Case that a row of the case `node` or `job` summarizes");
/// Node that a row sums up.
pub const NODE: Column = Column::chosen("node", "", "Node that a row of the case `node` summarizes");
/// Number of ranks that sent.
pub const SENDERS: Column = Column::measured("senders", "", "Number of sending ranks of the node");
/// Rate of the slowest sender.
pub const GPU_MIN: Column =
    Column::measured("gpu_gbits_s_min", "Gb/s", "Rate of the slowest sender, one rank per GPU, over its own time");
/// Rate of the fastest sender.
pub const GPU_MAX: Column = Column::measured("gpu_gbits_s_max", "Gb/s", "Rate of the fastest sender");
/// Rate of the slowest rail of any sender.
pub const RAIL_MIN: Column = Column::measured(
    "rail_gbits_s_min",
    "Gb/s",
    "Rate of the slowest rail of any sender, over the time in which it had transfers in flight; empty if rails are not \
     timed",
);
/// Rate of the fastest rail of any sender.
pub const RAIL_MAX: Column = Column::measured("rail_gbits_s_max", "Gb/s", "Rate of the fastest rail of any sender");

/// One rank's contribution to a row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankContribution {
    /// Rank of the sender.
    pub rank: usize,
    /// Time of each repeat per operation, in microseconds.
    pub times: Vec<f64>,
    /// Bytes moved in each of these times.
    pub bytes: u64,
    /// Operations completed in each of these times.
    pub operations: u64,
    /// Bytes per rail over all repeats.
    pub rail_bytes: Vec<u64>,
    /// Microseconds over all repeats in which each rail had transfers in flight. Empty if rails are not timed.
    pub rail_us: Vec<f64>,
}

impl RankContribution {
    /// Returns the sender's rate at the median time, in Gb/s, and the rates of its rails.
    fn rates(&self) -> Option<(f64, Vec<f64>)> {
        let rate = Micros(Summary::of(&self.times)?.p50).gbytes_s(self.bytes)? * 8.0;
        let rails = self.rail_rates().into_iter().flatten().collect();
        Some((rate, rails))
    }

    /// Returns the rate of each rail in Gb/s over the time in which it had transfers in flight, or `None` for a rail
    /// that carried no bytes.
    ///
    /// A share of the sender's rate would hide a slow rail: strategies give all rails equal shares of the bytes, and a
    /// fast rail is idle until the slow one has completed its share.
    pub fn rail_rates(&self) -> Vec<Option<f64>> {
        let rate = |(bytes, us): (&u64, &f64)| Some(Micros(*us).gbytes_s(*bytes)? * 8.0).filter(|rate| *rate > 0.0);
        self.rail_bytes.iter().zip(&self.rail_us).map(rate).collect()
    }
}

/// The node on which a rank runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Identity that distinguishes nodes. Two containers on one machine are two nodes.
    identity: String,
    /// Name shown in rows.
    name: String,
}

/// Returns the node of each rank. If `size` is given, every `size` consecutive ranks form a node, even on one machine.
pub fn of_ranks(ranks: &Bootstrap, size: Option<usize>) -> Vec<Node> {
    let node = |(rank, member): (usize, &Member)| {
        let part = size.map(|size| format!("/{}", rank / size.max(1))).unwrap_or_default();
        Node { identity: format!("{}{part}", member.identity), name: format!("{}{part}", member.host) }
    };
    ranks.members().iter().enumerate().map(node).collect()
}

/// Returns a row per node that sent, ordered by the node's first rank, and one for the job. `base` is the row of all
/// pairs together. `line` is the line rate of one sender's NICs in bits per second. Samples are in microseconds per
/// operation and sender.
pub fn sums(base: &Row, senders: &[RankContribution], line: Option<u64>, of_rank: &[Node]) -> Vec<(Row, Vec<f64>)> {
    let mut nodes: Vec<(&Node, Vec<&RankContribution>)> = Vec::new();
    let sent = senders.iter().filter(|sender| !sender.times.is_empty());
    for (sender, node) in sent.filter_map(|sender| Some((sender, of_rank.get(sender.rank)?))) {
        match nodes.iter_mut().find(|(known, _)| known.identity == node.identity) {
            Some((_, of_node)) => of_node.push(sender),
            None => nodes.push((node, vec![sender])),
        }
    }
    let all: Vec<&RankContribution> = nodes.iter().flat_map(|(_, of_node)| of_node.clone()).collect();
    let mut rows: Vec<_> =
        nodes.iter().map(|(node, of_node)| sum(base, Some(node.name.clone()), of_node, line)).collect();
    if !all.is_empty() {
        rows.push(sum(base, None, &all, line));
    }
    rows
}

/// Returns the sum of `senders`: a row of `node`, or of the job if `node` is `None`.
fn sum(base: &Row, node: Option<String>, senders: &[&RankContribution], line: Option<u64>) -> (Row, Vec<f64>) {
    let mut row = base.clone();
    (row.baseline, row.baseline_ratio, row.wrong_bytes, row.time_us_p99) = (None, None, None, None);
    for column in &COLD {
        row.set(column, None::<f64>);
    }
    let times = slowest(senders, |sender| &sender.times);
    let total = |of: fn(&RankContribution) -> u64| senders.iter().map(|sender| of(sender)).sum::<u64>();
    timed(&mut row, &times, total(|sender| sender.bytes), total(|sender| sender.operations));
    row.line_rate(line.map(|line| line * senders.len() as u64));
    let rates: Vec<(f64, Vec<f64>)> = senders.iter().filter_map(|sender| sender.rates()).collect();
    let gpus: Vec<f64> = rates.iter().map(|(rate, _)| *rate).collect();
    let rails: Vec<f64> = rates.iter().flat_map(|(_, rails)| rails.iter().copied()).collect();
    let least = |rates: &[f64]| rates.iter().copied().reduce(f64::min);
    let most = |rates: &[f64]| rates.iter().copied().reduce(f64::max);
    row.set(&OF, base.case.as_str()).set(&SENDERS, senders.len() as u64);
    if row.own(RAIL_BYTES.name).list().is_some() {
        row.set(&RAIL_BYTES, added(senders.iter().map(|sender| &sender.rail_bytes)));
    }
    row.case = if node.is_some() { "node" } else { "job" }.to_owned();
    row.set(&NODE, node.unwrap_or_default());
    row.set(&GPU_MIN, least(&gpus))
        .set(&GPU_MAX, most(&gpus))
        .set(&RAIL_MIN, least(&rails))
        .set(&RAIL_MAX, most(&rails));
    (row, times)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn sender(rank: usize, times: &[f64], rail_bytes: &[u64], rail_us: &[f64]) -> RankContribution {
        let (times, rail_bytes, rail_us) = (times.to_vec(), rail_bytes.to_vec(), rail_us.to_vec());
        RankContribution { rank, times, bytes: 1_000_000, operations: 1, rail_bytes, rail_us }
    }

    #[test]
    fn node_rate_is_limited_by_slowest_sender() {
        let mut base = Row::new("proxy", "cpu-write", "cpu", "model:p5");
        base.wrong_bytes = Some(0);
        // 1 MB in 100 us is 80 Gb/s, in 125 us 64 Gb/s. The slower sender of each repeat determines the time. Each has
        // 200 Gb/s of line rate.
        let equal = [1_000_000, 1_000_000];
        let one = sender(0, &[100.0, 100.0], &equal, &[200.0, 100.0]);
        let two = sender(1, &[125.0, 125.0], &equal, &[250.0, 160.0]);
        let (row, times) = sum(&base, Some("a".into()), &[&one, &two], Some(200_000_000_000));
        assert_eq!(times, [125.0, 125.0]);
        assert_eq!(row.bandwidth_gbits_s.map(|rate| rate.round()), Some(128.0));
        assert_eq!(row.line_rate_pct.map(|percent| percent.round()), Some(32.0));
        let number = |name: &str| row.own(name).number().unwrap().round();
        assert_eq!((number("gpu_gbits_s_min"), number("gpu_gbits_s_max")), (64.0, 80.0));
        // Both rails carry equal shares of the bytes, so the rail that was busy for 250 us is the slowest.
        assert_eq!((number("rail_gbits_s_min"), number("rail_gbits_s_max")), (32.0, 80.0));
        assert_eq!(
            (row.case.as_str(), row.own("summarized_case").text(), row.own("node").text()),
            ("node", Some("cpu-write"), Some("a"))
        );
        assert_eq!((number("senders"), row.wrong_bytes), (2.0, None));
    }

    #[test]
    fn nodes_are_sorted_by_rank_before_job() {
        let ranks = Bootstrap::alone().unwrap();
        let base = Row::new("write", "write", "cpu", "tcp");
        let here = of_ranks(&ranks, None);
        let rows = sums(
            &base,
            &[sender(0, &[10.0], &[1], &[]), RankContribution { rank: 0, ..RankContribution::default() }],
            None,
            &here,
        );
        assert_eq!(rows[0].0.own("rail_gbits_s_min").number(), None, "a rail that is not timed has no rate");
        let host = ranks.members()[0].host.as_str();
        let of: Vec<_> = rows.iter().map(|(row, _)| (row.case.as_str(), row.own("node").text().unwrap())).collect();
        assert_eq!(of, [("node", host), ("job", "")]);
        assert!(sums(&base, &[], None, &here).is_empty());
        // Each rank counts as a node, although all of them run on one machine.
        assert_eq!(of_ranks(&ranks, Some(1))[0].name, format!("{host}/0"));
    }
}
