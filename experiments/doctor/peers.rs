//! `--peers`: each rank's findings, comparisons between ranks, and a write from every rank to every other one on each
//! rail.

use super::{Args, Looked, examine, table, wanted};
use crate::error::Failure;
use crate::job::{Job, JobArgs};
use crate::runner::{drive, in_event_loop, with_ranks};
use ginlab::bootstrap::Bootstrap;
use ginlab::doctor::peers::{RankInfo, compare};
use ginlab::doctor::{Finding, Machine};
use ginlab::fabric::Access;
use ginlab::flow::FlowError;
use ginlab::measure::pattern;
use ginlab::versions::Versions;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Immediate of each write.
const HERE: u32 = 0x6e_0d0c;
/// Bytes per write.
const BYTES: usize = 256;
/// Number of clock comparisons. The one with the shortest round trip is used.
const ROUNDS: usize = 8;

/// Returns all findings on rank 0, and `None` on other ranks.
pub fn run(args: &Args) -> Result<Option<Vec<Finding>>, Failure> {
    let ranks = args.job.ranks(Vec::new(), |_| Ok(()))?;
    let mut all = None;
    with_ranks(Some(ranks), |ranks| {
        all = gather(args, ranks)?;
        Ok(())
    })?;
    Ok(all)
}

fn gather(args: &Args, ranks: &mut Bootstrap) -> Result<Option<Vec<Finding>>, Failure> {
    // Other ranks wait while one rank per machine runs its checks, whose trials have their own limits.
    ranks.set_timeout(args.job.meet.timeout * 2 + Duration::from_secs(args.wait + 180));
    // Only one rank per machine checks it. The others would find the same, and would occupy the same NICs at the same
    // time.
    let mine = if ranks.local_rank() == 0 { examine(args) } else { Looked::default() };
    let machine = Machine::bus(wanted(args));
    let seen = |count: usize| machine.bus_unseen().is_none().then_some(count);
    let mut card = RankInfo::here(versions(), seen(machine.usable_cards()), seen(machine.gpus().len()));
    let clock = clock(ranks)?;
    if !args.no_smoke {
        card.rails = Some(args.rails);
        card.unreached = reach(args, ranks)?;
    }
    let findings = ranks.all_gather_values(&mine.findings, "findings")?;
    let cards = ranks.all_gather_values(&card, "facts to compare")?;
    let clocks = ranks.all_gather_values(&clock, "clocks")?;
    if ranks.rank() != 0 {
        return Ok(None);
    }
    let mut all = findings.concat();
    all.extend(compare(&cards, &clocks));
    let mut header = Versions::header();
    header.note(&mine.took).notes(ranks.notes()).note(format!(
        "{} ranks by the {} bootstrap",
        ranks.size(),
        ranks.kind()
    ));
    table::write(args, &header, &all, None)?;
    Ok(Some(all))
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

/// Returns by how many seconds this rank's clock is ahead of rank 0's, and the uncertainty of this difference.
fn clock(ranks: &mut Bootstrap) -> Result<(f64, f64), Failure> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let mut best: Option<(f64, f64)> = None;
    for _ in 0..ROUNDS {
        ranks.barrier("start of a clock reading")?;
        let before = now();
        // Rank 0 reads its clock between `before` and `after`.
        let theirs = ranks.all_gather_values(&now(), "clocks of all ranks")?[0];
        let after = now();
        let this = ((before + after) / 2.0 - theirs, (after - before) / 2.0);
        if best.is_none_or(|best| this.1 < best.1) {
            best = Some(this);
        }
    }
    Ok(if ranks.rank() == 0 { (0.0, 0.0) } else { best.unwrap_or_default() })
}

/// Writes to every rank on each rail, waits for their writes, and compares the bytes. Returns a line for each write
/// that failed.
fn reach(args: &Args, ranks: &mut Bootstrap) -> Result<Vec<String>, Failure> {
    let (size, rank) = (ranks.size(), ranks.rank());
    // Excludes this rank itself: the EFA provider of libfabric 2.1 rejects such writes (EOPNOTSUPP), because it does
    // not learn that its own endpoint accepts immediates without a posted receive.
    let others = || (0..size).filter(move |other| *other != rank);
    let slots = (size * args.rails * BYTES) as u64;
    let job_args = JobArgs { memory: crate::job::MemoryKind::Pinned, ..args.job.clone() };
    let mut job = Job::open(&job_args, args.rails, false, slots * 2, ranks)?;
    let source = job.register(job_args.memory, slots, Access::SOURCE)?;
    let inbox = job.register(job_args.memory, slots, Access::REMOTE_WRITE)?;
    job.connect(&[&inbox], ranks)?;
    let payload = |from: usize, rail: usize| {
        let mut bytes = [0u8; BYTES];
        pattern::fill(&mut bytes, pattern::seed(from as u32, rail as u32, 1));
        bytes
    };
    let slot = |rank: usize, rail: usize| ((rank * args.rails + rail) * BYTES) as u64;
    for rail in 0..args.rails {
        source.buffer().write(slot(ranks.rank(), rail) as usize, &payload(ranks.rank(), rail))?;
    }
    let names = job.rail_names();
    let mut missing = Vec::new();
    in_event_loop(async {
        drive(&job.flow);
        job.flow.expect_immediates(HERE);
        let mut writes = Vec::new();
        for peer in others() {
            let target = job.connections[peer].target(0)?;
            for rail in 0..args.rails {
                let at = slot(ranks.rank(), rail);
                writes.push((peer, rail, job.flow.write_on(rail, &source, at, &target, at, BYTES as u64, Some(HERE))));
            }
        }
        for (peer, rail, write) in writes {
            if let Err(error) = write.await {
                let host = ranks.members().get(peer).map_or("", |member| &member.host);
                missing.push(format!("rank {peer} ({host}) over {} (rail {rail}): {error}", names[rail]));
                // After a stall the state of this flow is unknown.
                if matches!(error, FlowError::Stalled { .. }) {
                    return Ok(());
                }
            }
        }
        if missing.is_empty() && size > 1 {
            job.wait_signal(HERE, ((size - 1) * args.rails) as u64, ranks).await?;
        }
        Ok(())
    })
    .or_else(|failure| match failure {
        // A timeout is a finding; every other failure ends the run.
        Failure::Timeout(text) => {
            missing.push(format!("writes of peers to this rank: {text}"));
            Ok(())
        }
        other => Err(other),
    })?;
    if !missing.is_empty() {
        return Ok(missing);
    }
    for from in others() {
        for rail in 0..args.rails {
            let mut arrived = [0u8; BYTES];
            inbox.buffer().read(slot(from, rail) as usize, &mut arrived)?;
            if arrived != payload(from, rail) {
                missing.push(format!("from rank {from} on rail {rail}: wrong bytes"));
                break;
            }
        }
    }
    Ok(missing)
}
