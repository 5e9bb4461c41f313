//! Upper bound of an operation's bandwidth, given by link rates.

pub use ginlab::gin::collective::{CollectiveOperation, Element, ResultPlacement, Shape};

/// Link rates of a rank in GB/s and one direction. `None` if a link does not exist or its rate is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wires {
    /// Number of ranks per node.
    pub local: u64,
    /// Total rate to the other ranks of the node.
    pub nvlink: Option<f64>,
    /// Total rate of all rails of a rank.
    pub rails: Option<f64>,
}

impl Wires {
    /// Returns the maximum bus bandwidth that the links permit for any algorithm: the smaller of the bounds of NVLink
    /// and of rails. The README contains the formulas. `None` if the rate of a required link is unknown.
    pub fn ceiling(&self, operation: CollectiveOperation, ranks: u64) -> Option<f64> {
        let (n, local) = (ranks as f64, self.local as f64);
        let nodes = n / local;
        let inside =
            |share: f64| if self.local > 1 { self.nvlink.map(|rate| rate * share) } else { Some(f64::INFINITY) };
        let between = |share: f64| if nodes > 1.0 { self.rails.map(|rate| rate * share) } else { Some(f64::INFINITY) };
        let [inside, between] = match operation {
            CollectiveOperation::AllToAll => [inside((n - 1.0) / (local - 1.0)), between((n - 1.0) / (n - local))],
            CollectiveOperation::AllGather | CollectiveOperation::ReduceScatter | CollectiveOperation::AllReduce => {
                [inside((n - 1.0) / (nodes * (local - 1.0))), between((n - 1.0) / (nodes - 1.0))]
            }
            // All rails of a node carry a part of a broadcast.
            CollectiveOperation::Broadcast => [inside(1.0), between(local)],
            CollectiveOperation::SendRecv => [inside(1.0), between(1.0)],
        };
        Some(inside?.min(between?)).filter(|ceiling| ceiling.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published bounds of p5: nodes of 8 ranks, 50 GB/s of rails per rank.
    #[test]
    fn ceilings_match_p5_line_rate() {
        let wires = Wires { local: 8, nvlink: Some(450.0), rails: Some(50.0) };
        for (ranks, expected) in [(16, 93.75), (32, 64.58), (64, 56.25), (128, 52.92), (256, 51.41)] {
            let ceiling = wires.ceiling(CollectiveOperation::AllToAll, ranks).expect("all wires are known");
            assert!((ceiling - expected).abs() < 0.01, "{ranks}: {ceiling}");
        }
        // Within one node only NVLink is relevant. Without rails, the bound between nodes is unknown.
        assert_eq!(wires.ceiling(CollectiveOperation::AllReduce, 8), Some(450.0));
        assert_eq!(Wires { rails: None, ..wires }.ceiling(CollectiveOperation::AllGather, 16), None);
        assert_eq!(Wires { local: 1, ..wires }.ceiling(CollectiveOperation::AllGather, 16), Some(50.0));
    }
}
