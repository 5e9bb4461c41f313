//! `--peers`: each host's findings, comparisons between hosts, and a write from every rank to every other rank on each
//! rail. A missing rank, a host without rails and a rail without a peer are findings: the table and the document are
//! written in any case.

use super::meet::{self, RailMemorySizes};
use super::table::More;
use super::{DoctorArgs, MachineChecks, examine, rates, reach, table, wanted};
use crate::error::Failure;
use crate::ranks::{Ranks, with_ranks};
use ginlab::bootstrap::{Bootstrap, is_spawned_child};
use ginlab::doctor::peers::{self, DoctorRankInfo, compare};
use ginlab::doctor::tournament::TournamentVerdict;
use ginlab::doctor::{Finding, Machine};
use ginlab::fabric::discover;
use ginlab::versions::Versions;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of clock comparisons. The one with the shortest round trip is used.
const ROUNDS: usize = 8;

/// Findings that rank 0 has gathered so far.
#[derive(Default)]
struct Gathered {
    /// Whether this is rank 0 of a job that has started.
    is_first: bool,
    findings: Vec<Finding>,
    notes: Vec<String>,
    cards: Vec<DoctorRankInfo>,
    clocks: Vec<(f64, f64)>,
    rates: Option<TournamentVerdict>,
}

/// Returns all findings on rank 0, and `None` on other ranks.
pub fn run(args: &DoctorArgs) -> Result<Option<Vec<Finding>>, Failure> {
    let ranks = Ranks { partial: true, ..args.job.ranks(Vec::new(), |_| Ok(()))? };
    let mut all = Gathered::default();
    let mut started = false;
    let ended = with_ranks(Some(ranks), |ranks| {
        started = true;
        gather(args, ranks, &mut all)
    });
    let lost = match ended {
        Ok(()) if !all.is_first => return Ok(None),
        Ok(()) => None,
        Err(failure @ (Failure::Interrupted | Failure::Stopped(_) | Failure::StdoutClosed)) => return Err(failure),
        Err(failure) => match failure.text() {
            Some(text) if all.is_first => Some(text),
            // Rank 0 has not responded, so this host's findings are printed here.
            Some(text) if !started && matches!(failure, Failure::Timeout(_)) && !is_spawned_child() => {
                return alone(args, &text).map(Some);
            }
            _ => return Err(failure),
        },
    };
    let Gathered { mut findings, cards, clocks, notes, rates, .. } = all;
    findings.extend(compare(&cards, &clocks));
    findings.extend(lost.map(|text| peers::lost(&text)));
    let mut header = Versions::header();
    header.notes(&notes);
    table::write(args, &header, &findings, &More { rates, ..More::default() })?;
    Ok(Some(findings))
}

/// Checks this machine for a job whose rank 0 cannot be reached, without trials, which other ranks of this machine
/// would make at the same time.
fn alone(args: &DoctorArgs, why: &str) -> Result<Vec<Finding>, Failure> {
    let mut findings = examine(&DoctorArgs { no_smoke: true, ..args.clone() })?.findings;
    findings.push(peers::lost(why));
    table::print(&findings)?;
    Ok(findings)
}

fn gather(args: &DoctorArgs, ranks: &mut Bootstrap, all: &mut Gathered) -> Result<(), Failure> {
    all.is_first = ranks.rank() == 0;
    // Other ranks wait while one rank per machine runs its checks, whose trials have their own limits.
    ranks.set_timeout(args.job.meet.timeout * 2 + Duration::from_secs(args.wait + 180));
    // Only one rank per machine performs the checks. The others would have the same findings, and would occupy the same
    // NICs at the same time.
    let mine = if ranks.local_rank() == 0 { examine(args)? } else { MachineChecks::default() };
    all.findings.clone_from(&mine.findings);
    let machine = Machine::bus(wanted(args));
    let seen = |count: usize| machine.bus_unseen().is_none().then_some(count);
    let mut card = DoctorRankInfo::here(versions(), seen(machine.usable_cards()), seen(machine.gpus().len()));
    if let Some(findings) = ranks.gather_values(&mine.findings, "findings")? {
        all.findings = findings.concat();
    }
    let clock = clock(ranks)?;
    // With --rates, a rank represents its node and opens all of its NICs.
    let all_nics = || if args.rates { discover::cards(args.job.provider.as_deref()) } else { None };
    let rails = args.rails.or_else(all_nics).unwrap_or(1);
    let opened = (!args.no_smoke).then(|| {
        let chunk = if args.rates { rates::CHUNK } else { 0 };
        let sizes =
            RailMemorySizes { source: reach::BYTES.max(chunk), inbox: (reach::BYTES * ranks.size()).max(chunk) };
        meet::open(args, rails, sizes, args.rates, ranks)
    });
    // Sends the facts without results of writes, in case a rank does not survive the writes.
    card.unopened = opened.as_ref().and_then(|opened| opened.as_ref().err().cloned());
    if let Some(cards) = ranks.gather_values(&card, "facts to compare")? {
        all.cards = cards;
    }
    if let Some(clocks) = ranks.gather_values(&clock, "clocks")? {
        all.clocks = clocks;
    }
    all.notes = vec![mine.took];
    all.notes.push(format!("{} ranks by the {} bootstrap", ranks.size(), ranks.kind()));
    let note_missing = |all: &mut Gathered, ranks: &Bootstrap| {
        all.findings.retain(|finding| finding.check != peers::RANKS);
        all.findings.push(peers::ranks(ranks.size(), ranks.missing()));
    };
    note_missing(all, ranks);
    if let Some(opened) = opened {
        let met = meet::connect(opened, ranks)?;
        note_missing(all, ranks);
        all.notes.extend(ranks.notes().iter().cloned());
        card.rails = Some(rails);
        card.unreached = reach::run(&met, args.job.meet.timeout, ranks)?;
        if let Some(cards) = ranks.gather_values(&card, "results of writes")? {
            all.cards = cards;
        }
        if args.rates
            && let Some(rates) = rates::run(&met, args, ranks)?
        {
            let line = met.rails.first().and_then(|rail| rail.line_rate).map(|bits| bits as f64 / 1e9);
            let verdict = rates.judge(args.at_least);
            all.findings.extend(verdict.findings(ranks.size(), line, args.at_least));
            all.rates = Some(verdict);
        }
    }
    Ok(())
}

/// Returns the versions that must be equal on all ranks.
fn versions() -> Vec<(String, String)> {
    let versions = Versions::here();
    let none = || "none".to_owned();
    let pair = |name: &str, value: String| (name.to_owned(), value);
    vec![
        pair("ginlab", format!("{} {}", versions.ginlab, versions.commit.unwrap_or("of unknown commit"))),
        pair("libfabric", versions.libraries.libfabric),
        pair("driver", versions.libraries.cuda_driver.unwrap_or_else(none)),
        pair("MPI", versions.libraries.mpi.unwrap_or_else(none)),
    ]
}

/// Returns the number of seconds by which this rank's clock is ahead of rank 0's clock, and the uncertainty of this
/// difference.
fn clock(ranks: &mut Bootstrap) -> Result<(f64, f64), Failure> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let mut best: Option<(f64, f64)> = None;
    for _ in 0..ROUNDS {
        ranks.barrier("start of a clock reading")?;
        let before = now();
        // Rank 0 reads its clock between `before` and `after`.
        let theirs = ranks.value_of_first(&now(), "clock of rank 0")?;
        let after = now();
        let this = ((before + after) / 2.0 - theirs, (after - before) / 2.0);
        if best.is_none_or(|best| this.1 < best.1) {
            best = Some(this);
        }
    }
    Ok(if ranks.rank() == 0 { (0.0, 0.0) } else { best.unwrap_or_default() })
}
