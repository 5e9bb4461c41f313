//! Checks that compare ranks: versions, NICs and clocks, and whether each rail reaches every peer.

use serde::{Deserialize, Serialize};

use super::{Checked, Finding, fail, of, ok, skipped, warn};
use ginlab_bootstrap::{Member, MissingRank, rank_list};
use std::collections::{BTreeMap, HashMap};

/// Information that a rank sends to the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DoctorRankInfo {
    /// Host name of the machine.
    pub host: String,
    /// Identity of the machine, which is independent of the network namespace.
    pub machine: String,
    /// PID namespace, as named by the system; empty if it is unknown.
    pub processes: String,
    /// Versions that affect results, by name.
    pub versions: Vec<(String, String)>,
    /// Number of EFA devices on the bus; `None` if the bus is not visible.
    pub cards: Option<usize>,
    /// Number of GPUs on the bus; `None` if the bus is not visible.
    pub gpus: Option<usize>,
    /// Reason why the rails could not be opened; `None` if they could, or if none were requested.
    pub unopened: Option<String>,
    /// Failed writes to peers: one line each with peer, rail and reason.
    pub unreached: Vec<String>,
    /// Number of rails over which every peer was written to; `None` if no writes were tried.
    pub rails: Option<usize>,
}

impl DoctorRankInfo {
    /// Returns the information of this rank, without results of writes.
    #[must_use]
    pub fn here(versions: Vec<(String, String)>, cards: Option<usize>, gpus: Option<usize>) -> DoctorRankInfo {
        let member = Member::here();
        let processes = std::fs::read_link("/proc/self/ns/pid").map(|link| link.display().to_string());
        DoctorRankInfo {
            machine: member.machine().to_owned(),
            host: member.host,
            processes: processes.unwrap_or_default(),
            versions,
            cards,
            gpus,
            ..DoctorRankInfo::default()
        }
    }
}

/// Name of the check of missing ranks.
pub const RANKS: &str = "peers-ranks";
/// Description of that check.
const RANKS_EXAMINED: &str = "all ranks of the job: connected, and still there at the end";

/// Reports which ranks are missing from a job of which `present` ranks remain.
#[must_use]
pub fn ranks(present: usize, missing: &[MissingRank]) -> Finding {
    // Ranks of one host, and those that never connected, share one entry.
    let mut groups: BTreeMap<(&Option<String>, &str), Vec<usize>> = BTreeMap::new();
    for MissingRank { rank, host, why } in missing {
        groups.entry((host, why)).or_default().push(*rank);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.iter_mut().for_each(|(_, ranks)| ranks.sort_unstable());
    groups.sort_by_key(|(_, ranks)| ranks.first().copied());
    let line = |((host, why), ranks): ((&Option<String>, &str), Vec<usize>)| {
        let host = host.as_ref().map_or("never connected".to_owned(), |host| format!("host {host}"));
        format!("{} ({host}): {why}", rank_list(&ranks))
    };
    let said = match missing.len() {
        0 => ok(format!("{present} ranks")),
        count => fail(
            format!(
                "{count} of {} ranks are missing: {}",
                present + count,
                groups.into_iter().map(line).collect::<Vec<_>>().join("; ")
            ),
            "on a host without a row in this table: did the launcher start it, and does `ginlab doctor` run there?",
        ),
    };
    of("all", RANKS, RANKS_EXAMINED, said)
}

/// Reports why the job ended before all checks were made.
#[must_use]
pub fn lost(why: &str) -> Finding {
    of("all", RANKS, RANKS_EXAMINED, fail(why, "`ginlab doctor` on the rank that is named, then run --peers again"))
}

/// Compares the information of all ranks. `clocks` contains, per rank, the time in seconds by which its clock is ahead
/// of rank 0's clock, and the uncertainty due to message latency.
#[must_use]
pub fn compare(cards: &[DoctorRankInfo], clocks: &[(f64, f64)]) -> Vec<Finding> {
    let all = [
        ("peers-versions", "versions of all ranks", versions(cards)),
        ("peers-cards", "EFA devices and GPUs of all hosts", counts(cards)),
        ("peers-clocks", "clocks of all hosts", skew(cards, clocks)),
        ("peers-processes", "process namespaces of the ranks of one machine", processes(cards)),
        ("peers-rails", "write from every rank to every other rank on each rail", rails(cards)),
    ];
    let unopened = cards.iter().filter_map(|card| Some((card, card.unopened.as_ref()?)));
    let unopened = unopened.map(|(card, why)| {
        let mend = "`ginlab doctor --only efa-devices,efa-driver,libfabric` on this host; the others were tested \
                    without it";
        of(&card.host, "peers-rails", "rails of this host", fail(format!("its rails cannot be opened: {why}"), mend))
    });
    let mut findings: Vec<Finding> = unopened.collect();
    // Ranks of one host usually fail for the same reason.
    findings.dedup();
    findings.extend(all.into_iter().map(|(name, looks_at, said)| of("all", name, looks_at, said)));
    findings
}

/// Returns the first rank whose value differs from that of rank 0, with both values.
fn difference<T: PartialEq>(
    cards: &[DoctorRankInfo],
    value: impl Fn(&DoctorRankInfo) -> T,
) -> Option<(&DoctorRankInfo, T, T)> {
    let first = value(cards.first()?);
    let other = cards.iter().find(|card| value(card) != first)?;
    Some((other, first, value(other)))
}

fn versions(cards: &[DoctorRankInfo]) -> Checked {
    let Some(first) = cards.first() else { return skipped("no ranks") };
    let mut differ = Vec::new();
    for (name, _) in &first.versions {
        let value = |card: &DoctorRankInfo| {
            card.versions.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
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

fn counts(cards: &[DoctorRankInfo]) -> Checked {
    let Some(first) = cards.first() else { return skipped("no ranks") };
    if let Some(blind) = cards.iter().find(|card| card.cards.is_none() || card.gpus.is_none()) {
        return skipped(format!("the PCI bus of {} cannot be seen", blind.host));
    }
    let known = |card: &DoctorRankInfo| (card.cards.unwrap_or_default(), card.gpus.unwrap_or_default());
    match difference(cards, known) {
        Some((other, ours, theirs)) => fail(
            format!(
                "{} has {} EFA devices and {} GPUs, {} has {} and {}",
                first.host, ours.0, ours.1, other.host, theirs.0, theirs.1
            ),
            "`ginlab doctor --only efa-devices` on the host that has fewer",
        ),
        None => ok(format!("{} EFA devices and {} GPUs on every host", known(first).0, known(first).1)),
    }
}

fn skew(cards: &[DoctorRankInfo], clocks: &[(f64, f64)]) -> Checked {
    // Precision, in seconds, that suffices to compare logs of several hosts. It exceeds any message latency.
    const MOST: f64 = 1.0;
    let worst = clocks.iter().enumerate().max_by(|(_, a), (_, b)| a.0.abs().total_cmp(&b.0.abs()));
    let Some((rank, (ahead, doubt))) = worst else { return skipped("no clock was compared") };
    let host = cards.get(rank).map_or("", |card| card.host.as_str());
    let found = format!("{host} is {:+.3} s (+- {:.3}) from rank 0", ahead, doubt);
    if ahead.abs() - doubt > MOST { warn(found, "chronyc makestep (or timedatectl set-ntp true)") } else { ok(found) }
}

fn processes(cards: &[DoctorRankInfo]) -> Checked {
    if let Some(blind) = cards.iter().find(|card| card.processes.is_empty()) {
        return skipped(format!("the process namespace of {} cannot be read", blind.host));
    }
    let mut first: HashMap<&str, &DoctorRankInfo> = HashMap::new();
    let hidden = cards.iter().find_map(|card| {
        let other = *first.entry(&card.machine).or_insert(card);
        (other.processes != card.processes).then_some((other, card))
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

fn rails(cards: &[DoctorRankInfo]) -> Checked {
    const MEND: &str = "allow all traffic of the security group to itself, inbound and outbound; EFA needs one availability zone \
                        (and VPC) for all hosts, tcp needs a route between the interfaces of a rail; is the peer alive?";
    let mut unreached = cards.iter().flat_map(|card| card.unreached.iter().map(move |text| (card, text)));
    if let Some((card, text)) = unreached.next() {
        let more = unreached.count();
        let more = if more > 0 { format!(" ({more} more)") } else { String::new() };
        return fail(format!("{}: {text}{more}", card.host), MEND);
    }
    let open: Vec<&DoctorRankInfo> = cards.iter().filter(|card| card.unopened.is_none()).collect();
    match open.iter().find_map(|card| card.rails) {
        Some(_) if open.len() == 1 && cards.len() > 1 => skipped("only one rank has rails: no write was possible"),
        Some(rails) if open.len() < cards.len() => {
            ok(format!("{} of {} ranks, {rails} rails: writes to every peer verified", open.len(), cards.len()))
        }
        Some(rails) => ok(format!("{} ranks, {rails} rails: writes to every peer verified", cards.len())),
        None if open.is_empty() && !cards.is_empty() => skipped("no rank could open its rails"),
        None => skipped("not tested (--no-smoke, or the job ended before)"),
    }
}
