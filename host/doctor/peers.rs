//! What ranks compare: their versions, cards and clocks, and whether each rail reaches every peer.

use serde::{Deserialize, Serialize};

use super::{Checked, Finding, fail, of, ok, skipped, warn};
use ginlab_bootstrap::Member;

/// What a rank tells the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// The machine's name.
    pub host: String,
    /// The machine, whatever the network namespace.
    pub machine: String,
    /// The process-number namespace, as the system names it; empty where it does not.
    pub processes: String,
    /// Versions that decide results, by name.
    pub versions: Vec<(String, String)>,
    /// EFA cards on the bus.
    pub cards: usize,
    /// GPUs on the bus.
    pub gpus: usize,
    /// Writes to peers that failed: peer, rail and why, a line each.
    pub unreached: Vec<String>,
    /// Rails over which every peer was written to; none where nothing was tried.
    pub rails: Option<usize>,
}

impl Card {
    /// This rank's, without what it has tried.
    #[must_use]
    pub fn here(versions: Vec<(String, String)>, cards: usize, gpus: usize) -> Card {
        let member = Member::here();
        let processes = std::fs::read_link("/proc/self/ns/pid").map(|link| link.display().to_string());
        Card {
            machine: member.machine().to_owned(),
            host: member.host,
            processes: processes.unwrap_or_default(),
            versions,
            cards,
            gpus,
            ..Card::default()
        }
    }
}

/// Compares what all ranks told; `clocks` is by rank how far its clock is ahead of rank 0's, in seconds, and how much of that may
/// be the message's way.
#[must_use]
pub fn compare(cards: &[Card], clocks: &[(f64, f64)]) -> Vec<Finding> {
    let all = [
        ("peers-versions", "versions of all ranks", versions(cards)),
        ("peers-cards", "EFA cards and GPUs of all hosts", counts(cards)),
        ("peers-clocks", "clocks of all hosts", skew(cards, clocks)),
        ("peers-processes", "whether ranks of one machine see each other's processes", processes(cards)),
        ("peers-rails", "a write from every rank to every other one on each rail", rails(cards)),
    ];
    all.into_iter().map(|(name, looks_at, said)| of("all", name, looks_at, said)).collect()
}

/// The first rank that differs from rank 0 in this, with both values.
fn difference<T: PartialEq>(cards: &[Card], value: impl Fn(&Card) -> T) -> Option<(&Card, T, T)> {
    let first = value(cards.first()?);
    let other = cards.iter().find(|card| value(card) != first)?;
    Some((other, first, value(other)))
}

fn versions(cards: &[Card]) -> Checked {
    let Some(first) = cards.first() else { return skipped("there is no rank") };
    let mut differ = Vec::new();
    for (name, _) in &first.versions {
        let value = |card: &Card| card.versions.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        if let Some((other, ours, theirs)) = difference(cards, value) {
            let text = |value: Option<String>| value.unwrap_or_else(|| "none".to_owned());
            differ.push(format!("{name} is {} on {} and {} on {}", text(ours), first.host, text(theirs), other.host));
        }
    }
    if differ.is_empty() {
        return ok(first.versions.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", "));
    }
    fail(differ.join("; "), "install the same image on every host")
}

fn counts(cards: &[Card]) -> Checked {
    let Some(first) = cards.first() else { return skipped("there is no rank") };
    match difference(cards, |card| (card.cards, card.gpus)) {
        Some((other, ours, theirs)) => fail(
            format!(
                "{} has {} EFA cards and {} GPUs, {} has {} and {}",
                first.host, ours.0, ours.1, other.host, theirs.0, theirs.1
            ),
            "`ginlab doctor --only efa-devices` on the host that has fewer",
        ),
        None => ok(format!("{} EFA cards and {} GPUs on every host", first.cards, first.gpus)),
    }
}

fn skew(cards: &[Card], clocks: &[(f64, f64)]) -> Checked {
    // Logs of several hosts are read side by side; a second is more than any message takes.
    const MOST: f64 = 1.0;
    let worst = clocks.iter().enumerate().max_by(|(_, a), (_, b)| a.0.abs().total_cmp(&b.0.abs()));
    let Some((rank, (ahead, doubt))) = worst else { return skipped("no clock was compared") };
    let host = cards.get(rank).map_or("", |card| card.host.as_str());
    let found = format!("{host} is {:+.3} s (+- {:.3}) from rank 0", ahead, doubt);
    if ahead.abs() - doubt > MOST { warn(found, "chronyc makestep (or timedatectl set-ntp true)") } else { ok(found) }
}

fn processes(cards: &[Card]) -> Checked {
    let hidden = cards.iter().find_map(|card| {
        let beside = |other: &&Card| other.machine == card.machine && other.processes != card.processes;
        cards.iter().find(beside).map(|other| (card, other))
    });
    match hidden {
        Some((one, other)) => warn(
            format!(
                "ranks of one machine ({}, {}) are in different process namespaces: CUDA IPC fails between them",
                one.host, other.host
            ),
            "one container per node, or --pid=host --ipc=host",
        ),
        None => ok("ranks of one machine share their process namespace"),
    }
}

fn rails(cards: &[Card]) -> Checked {
    const MEND: &str = "allow all traffic of the security group to itself, inbound and outbound; EFA needs one availability zone \
                        (and VPC) for all hosts, tcp needs a route between the interfaces of a rail; is the peer alive?";
    let mut unreached = cards.iter().flat_map(|card| card.unreached.iter().map(move |text| (card, text)));
    if let Some((card, text)) = unreached.next() {
        let more = unreached.count();
        let more = if more > 0 { format!(" ({more} more)") } else { String::new() };
        return fail(format!("{}: {text}{more}", card.host), MEND);
    }
    match cards.first().and_then(|card| card.rails) {
        Some(rails) => ok(format!("{} ranks, {rails} rails: every peer written to and verified", cards.len())),
        None => skipped("nothing was tried (--no-smoke)"),
    }
}
