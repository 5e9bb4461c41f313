//! The schedule of a tournament and its rule, in virtual time: a transfer takes its bytes divided by its rate, and a
//! round as long as its slowest pair.

#![allow(clippy::needless_range_loop, reason = "nodes and rails index several tables at once")]

use super::super::tournament::{Rates, TournamentNode, TournamentVerdict, partner, rounds};
use std::collections::{BTreeMap, BTreeSet};

/// Random numbers (splitmix64).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

const LINE_GBITS: f64 = 100.0;
const BYTES: f64 = (64u64 << 20) as f64;

/// A fleet with faults.
#[derive(Default)]
struct Fleet {
    nodes: usize,
    rails: usize,
    /// Factors of the rates of slow NICs when they send and when they receive.
    nics: BTreeMap<(usize, usize), (f64, f64)>,
    /// Factors of the rates of slow pairs, by sender, receiver and rail.
    pairs: BTreeMap<(usize, usize, usize), f64>,
}

impl Fleet {
    fn rate(&self, from: usize, to: usize, rail: usize, noise: f64) -> f64 {
        let nic = |node| self.nics.get(&(node, rail)).copied().unwrap_or((1.0, 1.0));
        let pair = self.pairs.get(&(from, to, rail)).copied().unwrap_or(1.0);
        LINE_GBITS * noise * nic(from).0.min(nic(to).1).min(pair)
    }

    /// Runs the tournament. Returns the rates, and the virtual time in seconds.
    fn play(&self, draws: &mut Draws) -> (Rates, f64) {
        let node = |node| TournamentNode {
            host: format!("n{node}"),
            nics: (0..self.rails).map(|r| format!("nic{r}")).collect(),
        };
        let nodes: Vec<TournamentNode> = (0..self.nodes).map(node).collect();
        let mut rates = vec![vec![vec![None; self.rails]; self.nodes]; self.nodes];
        let mut time = 0.0;
        for round in 0..rounds(self.nodes) {
            let mut longest = 0.0f64;
            for from in 0..self.nodes {
                let Some(to) = partner(from, round, self.nodes) else { continue };
                assert_eq!(partner(to, round, self.nodes), Some(from), "round {round}: {from} and {to}");
                for rail in 0..self.rails {
                    // Up to 10 % less than the line rate.
                    let rate = self.rate(from, to, rail, 1.0 - draws.unit() / 10.0);
                    assert_eq!(rates[from][to][rail].replace(rate as f32), None, "{from} meets {to} twice");
                    longest = longest.max(BYTES * 8.0 / (rate * 1e9));
                }
            }
            time += longest;
        }
        (Rates { nodes, rates }, time)
    }
}

fn slow_nics(verdict: &TournamentVerdict) -> BTreeSet<(usize, usize)> {
    verdict.nics.iter().filter(|nic| nic.slow).map(|nic| (nic.node, nic.rail)).collect()
}

fn slow_pairs(verdict: &TournamentVerdict) -> BTreeSet<(usize, usize, usize)> {
    verdict.pairs.iter().map(|pair| (pair.nodes.0, pair.nodes.1, pair.rail)).collect()
}

#[test]
fn every_pair_meets_exactly_once_across_rounds() {
    for nodes in (0..=33).chain([127, 128, 511, 512]) {
        let mut met = vec![vec![0u8; nodes]; nodes];
        for round in 0..rounds(nodes) {
            let mut pausing = 0;
            for node in 0..nodes {
                match partner(node, round, nodes) {
                    None => pausing += 1,
                    Some(other) => {
                        assert_ne!(other, node);
                        assert_eq!(partner(other, round, nodes), Some(node), "{nodes} nodes, round {round}");
                        met[node][other] += 1;
                    }
                }
            }
            assert_eq!(pausing, nodes % 2, "{nodes} nodes, round {round}");
        }
        for (one, row) in met.iter().enumerate() {
            for (other, count) in row.iter().enumerate() {
                assert_eq!(*count, u8::from(one != other), "{nodes} nodes: {one} and {other}");
            }
        }
    }
    assert_eq!([0, 1, 2, 3, 4, 512].map(rounds), [0, 0, 1, 3, 3, 511]);
}

/// Checks the duration that the page states, for 511 rounds of 64 MiB on each rail at 100 Gb/s.
#[test]
fn fleet_of_512_nodes_takes_seconds() {
    let fleet = Fleet { nodes: 512, rails: 2, ..Fleet::default() };
    let (rates, seconds) = fleet.play(&mut Draws(1));
    // Each round takes 5.37 ms at the line rate, and up to a ninth longer.
    assert!((2.74..3.06).contains(&seconds), "{seconds}");
    let verdict = rates.judge(0.85);
    assert_eq!((slow_nics(&verdict).len(), verdict.pairs.len(), verdict.nics.len()), (0, 0, 1024));
    assert!(verdict.nics.iter().all(|nic| nic.partners == 511));
}

/// Random faults in fleets of 3 to 512 nodes: exactly the slow NICs and the slow pairs are named.
#[test]
fn slow_nics_and_slow_pairs_are_distinguished() {
    let mut draws = Draws(7);
    let sizes = [3, 4, 5, 8, 9, 16, 33, 64, 128, 512];
    for nodes in sizes.into_iter().flat_map(|nodes| std::iter::repeat_n(nodes, if nodes > 100 { 1 } else { 20 })) {
        let rails = 1 + draws.below(4);
        let mut fleet = Fleet { nodes, rails, ..Fleet::default() };
        // A NIC that is not slow must have more good partners than bad ones, so at most a third of the NICs is slow.
        for rail in 0..rails {
            for _ in 0..draws.below((nodes - 1) / 3 + 1) {
                let factor = 0.05 + 0.7 * draws.unit();
                let factors = [(factor, factor), (factor, 1.0), (1.0, factor)][draws.below(3)];
                fleet.nics.insert((draws.below(nodes), rail), factors);
            }
        }
        let mut touched = BTreeSet::new();
        for _ in 0..if nodes > 7 { draws.below(nodes / 4) } else { 0 } {
            let (from, to, rail) = (draws.below(nodes), draws.below(nodes), draws.below(rails));
            let healthy = |node| !fleet.nics.contains_key(&(node, rail));
            if from != to && healthy(from) && healthy(to) && !touched.contains(&from) && !touched.contains(&to) {
                touched.extend([from, to]);
                fleet.pairs.insert((from, to, rail), 0.05 + 0.6 * draws.unit());
            }
        }
        let (rates, _) = fleet.play(&mut draws);
        let verdict = rates.judge(0.85);
        assert_eq!(slow_nics(&verdict), fleet.nics.keys().copied().collect(), "{nodes} nodes, {rails} rails");
        assert_eq!(slow_pairs(&verdict), fleet.pairs.keys().copied().collect(), "{nodes} nodes, {rails} rails");
    }
}

/// Two nodes do not suffice to determine which of the two NICs is slow.
#[test]
fn two_nodes_have_slow_pairs_only() {
    let fleet = Fleet { nodes: 2, rails: 4, nics: [((1, 2), (0.5, 0.5))].into(), ..Fleet::default() };
    let verdict = fleet.play(&mut Draws(3)).0.judge(0.85);
    assert!(slow_nics(&verdict).is_empty());
    assert_eq!(slow_pairs(&verdict), [(0, 1, 2), (1, 0, 2)].into());
    assert_eq!((verdict.pairs[0].from.as_str(), verdict.pairs[0].to.as_str()), ("n0", "n1"));
}

/// The findings name the host and the NIC, and the pair.
#[test]
fn findings_name_host_and_nic_or_pair() {
    use super::super::CheckState;
    let mut fleet = Fleet { nodes: 8, rails: 2, nics: [((5, 1), (0.3, 0.3))].into(), ..Fleet::default() };
    fleet.pairs.insert((2, 3, 0), 0.5);
    let verdict = fleet.play(&mut Draws(9)).0.judge(0.85);
    let findings = verdict.findings(8, Some(LINE_GBITS), 0.85);
    let said: Vec<(&str, CheckState)> = findings.iter().map(|finding| (finding.host.as_str(), finding.state)).collect();
    assert_eq!(said, [("n5", CheckState::Fail), ("all", CheckState::Warn), ("all", CheckState::Ok)]);
    assert!(findings[0].found.starts_with("nic1 (rail 1) sends "), "{}", findings[0].found);
    assert!(findings[0].found.contains("with 7 partners"), "{}", findings[0].found);
    assert!(findings[1].found.starts_with("slow pairs: n2 to n3 on rail 0: "), "{}", findings[1].found);
    assert!(findings[2].found.starts_with("8 nodes, 16 NICs: medians from "), "{}", findings[2].found);
    // All NICs at half of their line rate: a warning, and no NIC is named.
    let slow = verdict.findings(8, Some(2.0 * LINE_GBITS), 0.85);
    assert_eq!((slow.len(), slow[2].state), (3, CheckState::Warn));
    assert_eq!(Rates::default().judge(0.85).findings(1, None, 0.85)[0].state, CheckState::Warn);
}

/// A node with fewer rails is judged by its existing rails, and a failed transfer counts as a rate of 0.
#[test]
fn missing_rails_and_failed_transfers_are_judged() {
    let fleet = Fleet { nodes: 5, rails: 3, ..Fleet::default() };
    let (mut rates, _) = fleet.play(&mut Draws(5));
    rates.nodes[4].nics.pop();
    for other in 0..4 {
        rates.rates[4][other].pop();
        rates.rates[other][4][2] = None;
        rates.rates[1][other][0] = rates.rates[1][other][0].map(|_| 0.0);
    }
    let verdict = rates.judge(0.85);
    assert_eq!(verdict.nics.len(), 14);
    assert_eq!(slow_nics(&verdict), [(1, 0)].into());
    let last = verdict.nics.iter().find(|nic| (nic.node, nic.rail) == (0, 2)).unwrap();
    assert_eq!(last.partners, 3);
}
