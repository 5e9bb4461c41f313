//! Measurement of one tuple: the kernel in every mode, CPU-initiated writes and, on null rails, the bare round trip.
//! Cases are verified, then timed interleaved, then gathered into rows on rank 0.

use super::args::{Args, Scope, Tuple, Way};
use super::layout::Layout;
use super::mode::Mode;
use super::rank::Rank;
use super::run::{Case, Sample, Shape, run};
use super::trace::{Traces, trace};
use super::verify;
use super::{FILL, FILL_AHEAD, POST_RATE, PROXY_THREADS, RING_MEMORY};
use crate::columns::{AGAIN, COMPLETION, POST, RAIL_BYTES, RING_SLOTS, SCOPE, WINDOW};
use crate::error::Failure;
use crate::job::{busy_us, moved, of_threads};
use crate::mps;
use crate::nodes::{self, Sender};
use crate::runner::{Rows, TOLERATED, added, slowest, timed};
use crate::values;
use ginlab::bootstrap::Bootstrap;
use ginlab::measure::stats::{Micros, Summary};
use ginlab::rails::Counters;
use ginlab::report::{Row, Status};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Default number of repeats, and the number that suffices if a measurement takes longer than `LONG`.
const REPEATS: u32 = 10;
const ENOUGH: u32 = 3;
const LONG: Duration = Duration::from_secs(5);

/// Results of one case on one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Findings {
    samples: Vec<Sample>,
    wrong: Option<u64>,
    again: u64,
    rail_bytes: Vec<u64>,
    /// Microseconds in which each rail had transfers in flight. Empty if the rails are not timed.
    rail_us: Vec<f64>,
    /// Microseconds that a modelled NIC has waited for this machine.
    behind: f64,
}

/// Measures one tuple. Returns rows with their raw samples on rank 0, and no rows on other ranks.
pub fn measure(
    args: &Args,
    tuple: &Tuple,
    rank: &mut Rank,
    ranks: &mut Bootstrap,
    traces: &mut Traces,
) -> Result<Rows, Failure> {
    let layout = match Layout::new(args, tuple, &rank.device) {
        Ok(layout) => layout,
        Err(why) => return Ok(skipped(args, tuple, rank, ranks, &why)),
    };
    let shape = Shape { args, tuple, layout };
    for proxy in rank.group.proxies() {
        proxy.configure(tuple.rails, tuple.strategy)?;
        proxy.set_busy_poll(rank.source.is_some() && rank.target.is_none());
    }
    let cases = cases(&shape, rank);
    let mut findings = vec![Findings::default(); cases.len()];
    let what = format!("{} B over {} rails, {} x {}", tuple.bytes, tuple.rails, tuple.grid, tuple.block);
    if !args.no_check {
        rank.move_bytes(true);
        for (case, found) in cases.iter().zip(&mut findings) {
            found.wrong = verify::verify(&shape, rank, ranks, *case)?;
        }
    }
    rank.move_bytes(args.moves());
    let started = Instant::now();
    // Round 0 is the warm-up. Cases are interleaved, so that drift of clocks and load affects all of them alike.
    for round in 0..=args.repeats.unwrap_or(REPEATS) {
        if args.repeats.is_none() && round > ENOUGH && is_long(started, ranks, &what)? {
            break;
        }
        for (case, found) in cases.iter().zip(&mut findings) {
            if round == 0 && verify::is_whole(&shape, *case) {
                continue;
            }
            ranks.barrier(&what)?;
            let iterations = if round == 0 { layout.warmup } else { layout.iterations };
            let (before, behind) = (counters(rank)?, rank.behind());
            let sample = if rank.target.is_some() && iterations > 0 {
                Some(run(&shape, rank, ranks, *case, iterations)?)
            } else {
                None
            };
            if let Some(sample) = sample.filter(|_| round > 0) {
                found.samples.push(sample);
                found.behind += rank.behind().saturating_sub(behind).as_secs_f64() * 1e6;
                found.add(&before, &counters(rank)?);
            }
        }
    }
    let mut lives = Vec::new();
    if args.trace.is_some() {
        rank.move_bytes(args.moves());
        for (index, case) in cases.iter().enumerate() {
            if let Case::Put(mode) = case {
                lives.extend(trace(&shape, rank, ranks, *mode)?.map(|found| (index, found)));
            }
        }
    }
    rank.group.proxies().iter().for_each(|proxy| proxy.set_busy_poll(false));
    let Some(all) = ranks.gather_values(&findings, &what)? else { return Ok(Vec::new()) };
    let mut rows = rows(&shape, rank, ranks, &cases, &all);
    for (index, found) in &lives {
        rows.get(*index).into_iter().for_each(|(row, _)| traces.add(row, found));
    }
    if let Some(why) = without_queues(rank) {
        rows.extend(args.mode.iter().map(|&mode| skipped_row(args, tuple, rank, ranks, Case::Direct(mode), why)));
    }
    Ok(rows)
}

/// Returns whether the rounds so far have taken longer than `LONG` on rank 0's clock, so that all ranks stop together.
fn is_long(started: Instant, ranks: &mut Bootstrap, what: &str) -> Result<bool, Failure> {
    let long = ranks.all_gather_values(&(started.elapsed() > LONG), what)?;
    Ok(long.first().is_some_and(|long| *long))
}

/// Returns the cases of a tuple. Baseline and lower bound are first, because later rows refer to them.
fn cases(shape: &Shape<'_>, rank: &Rank) -> Vec<Case> {
    let mut cases = Vec::new();
    let (args, modes) = (shape.args, shape.args.mode.iter().copied());
    if args.measures(Way::Put) && args.is_null() && shape.tuple.grid == 1 && args.scope == Scope::Block {
        cases.push(Case::PingPong);
    }
    if args.bare && !args.is_null() && shape.tuple.rails == 1 && args.proxy_threads == 1 {
        cases.push(Case::BareWrite);
    }
    cases.extend(args.measures(Way::CpuWrite).then_some(Case::CpuWrite));
    cases.extend(args.cpu_batch.iter().flat_map(|list| list.iter()).map(|&batch| Case::CpuBatch(batch)));
    cases.extend(modes.clone().filter(|_| args.measures(Way::Put)).map(Case::Put));
    cases.extend(modes.filter(|_| args.measures(Way::Direct) && without_queues(rank).is_none()).map(Case::Direct));
    cases
}

/// Returns the reason for which case `direct` is not measured although it is requested.
fn without_queues(rank: &Rank) -> Option<&str> {
    rank.queues.as_ref()?.as_ref().err().map(String::as_str)
}

fn counters(rank: &Rank) -> Result<Counters, Failure> {
    Ok(of_threads(rank.group.snapshots()?.iter().map(|snapshot| &snapshot.counters)))
}

impl Findings {
    /// Returns a note if the times are those of this machine and not of the modelled NIC, because the NIC waited for
    /// more than the tolerated fraction of the remaining time.
    fn slower_than_the_card(&self) -> Option<String> {
        let all: f64 = self.samples.iter().map(|sample| sample.done).sum();
        let percent = 100.0 * self.behind / all;
        (self.behind > TOLERATED * (all - self.behind))
            .then(|| format!("slower than the modelled card, which waited for this machine {percent:.0} % of the time"))
    }

    fn add(&mut self, before: &Counters, after: &Counters) {
        self.again += after.again - before.again;
        self.rail_bytes = added([&self.rail_bytes, &moved(before, after, usize::MAX)]);
        let busy = busy_us(before, after, usize::MAX);
        self.rail_us.resize(busy.len().max(self.rail_us.len()), 0.0);
        self.rail_us.iter_mut().zip(busy).for_each(|(sum, us)| *sum += us);
    }
}

/// Creates a row with all columns that are known before the measurement.
fn blank(args: &Args, tuple: &Tuple, rank: &Rank, ranks: &Bootstrap, case: Case) -> Row {
    let device = if matches!(case, Case::CpuWrite | Case::CpuBatch(_) | Case::BareWrite) {
        "cpu".into()
    } else {
        rank.device.name()
    };
    let mut row = Row::new("proxy", case.name(), device, &rank.provider);
    row.ranks = ranks.size() as u32;
    row.rails = Some(tuple.rails as u32);
    // A block uses the queue of one NIC, so that its puts are not distributed over rails.
    let by_card = matches!(case, Case::Direct(_));
    row.strategy = (!by_card).then(|| tuple.strategy.to_string());
    row.mode = match case {
        Case::Put(mode) | Case::Direct(mode) => Some(mode.to_string()),
        Case::CpuWrite | Case::BareWrite => Some("nbi".into()),
        Case::CpuBatch(batch) => Some(format!("quiet-every={batch}")),
        Case::PingPong => None,
    };
    row.memory = Some(rank.path.name().into());
    row.size_bytes = Some(tuple.bytes);
    row.grid = Some(tuple.grid);
    row.block = Some(tuple.block);
    row.set(&FILL, case.of_kernel().is_some() && !args.no_fill || case == Case::PingPong);
    row.set(&SCOPE, values::name(args.scope));
    if !by_card {
        row.set(&PROXY_THREADS, args.proxy_threads);
        row.set(&RING_SLOTS, args.ring_slots).set(&RING_MEMORY, values::name(args.ring_memory));
    }
    row.set(&COMPLETION, args.completion());
    mps::mark(&mut row, &rank.sharing);
    row
}

fn skipped(args: &Args, tuple: &Tuple, rank: &Rank, ranks: &Bootstrap, why: &str) -> Rows {
    let of = |way: Way, case: fn(Mode) -> Case| {
        args.mode.iter().filter(move |_| args.measures(way)).map(move |&mode| case(mode))
    };
    let cases = of(Way::Put, Case::Put).chain(of(Way::Direct, Case::Direct));
    cases.map(|case| skipped_row(args, tuple, rank, ranks, case, why)).collect()
}

fn skipped_row(args: &Args, tuple: &Tuple, rank: &Rank, ranks: &Bootstrap, case: Case, why: &str) -> (Row, Vec<f64>) {
    let mut row = blank(args, tuple, rank, ranks, case);
    row.status = Status::Skipped(why.into());
    (row, Vec::new())
}

fn rows(shape: &Shape<'_>, rank: &Rank, ranks: &Bootstrap, cases: &[Case], all: &[Vec<Findings>]) -> Rows {
    let args = shape.args;
    let pairs = all.iter().filter(|found| found.iter().any(|found| !found.samples.is_empty())).count().max(1) as u64;
    let mut rows = Rows::new();
    for (index, &case) in cases.iter().enumerate() {
        let mut row = blank(args, shape.tuple, rank, ranks, case);
        let of_ranks: Vec<&Findings> = all.iter().filter_map(|found| found.get(index)).collect();
        let iterations = shape.layout.iterations;
        let senders = senders(shape, all, index);
        // All pairs run concurrently: a repeat takes as long as the slowest.
        let samples = slowest(&senders, |sender| &sender.times);
        let operations = if case == Case::PingPong { 1 } else { pairs * shape.layout.producers };
        row.iterations = Some(iterations);
        if case.of_kernel() == Some(Mode::Nbi) && !args.no_fill && args.scope == Scope::Block {
            row.set(&FILL_AHEAD, shape.layout.ahead);
        }
        row.set(&WINDOW, shape.layout.window).set(&AGAIN, of_ranks.iter().map(|found| found.again).sum::<u64>());
        let moved = added(senders.iter().map(|sender| &sender.rail_bytes));
        row.set(&RAIL_BYTES, Some(moved).filter(|rails| rails.iter().any(|bytes| *bytes > 0)));
        timed(&mut row, &samples, operations * shape.tuple.bytes, operations);
        let each = |sample: &Sample| Some(sample.posted? / iterations as f64);
        let posted: Vec<Vec<f64>> =
            of_ranks.iter().map(|found| found.samples.iter().filter_map(each).collect()).collect();
        if let Some(post) = Summary::of(&slowest(&posted, |times| times)) {
            row.set(&POST, post.p50).set(&POST_RATE, Micros(post.p50).mops(operations));
        }
        row.line_rate(rank.line_rate(shape.tuple.rails).map(|line| line * pairs));
        let behind = of_ranks.iter().find_map(|found| found.slower_than_the_card());
        if let Some(why) = behind.or_else(|| slower_than_its_pace(shape, rank, case, &samples)) {
            row.doubt(why);
        }
        row.verified(of_ranks.iter().filter_map(|found| found.wrong).reduce(|sum, wrong| sum + wrong));
        if let Some(wrong) = row.wrong.filter(|wrong| *wrong > 0) {
            row.status = Status::Failed(format!("verification failed: {wrong} wrong bytes or puts"));
        }
        let floor = matches!(case, Case::Put(Mode::Quiet))
            .then(|| rows.iter().find(|(row, _)| row.case == Case::PingPong.name()));
        let baseline = floor.flatten().or_else(|| rows.iter().find(|(row, _)| row.case == Case::CpuWrite.name()));
        let baseline = match case {
            Case::Put(_) | Case::Direct(_) => baseline,
            Case::CpuBatch(_) => rows.iter().find(|(row, _)| row.case == Case::CpuWrite.name()),
            Case::CpuWrite => rows.iter().find(|(row, _)| row.case == Case::BareWrite.name()),
            Case::BareWrite | Case::PingPong => None,
        };
        if let Some((baseline, theirs)) = baseline {
            row.against(baseline, &samples, theirs);
        }
        rows.push((row, samples));
    }
    if args.per_node {
        let (lines, of_rank) = (rank.line_rate(shape.tuple.rails), nodes::of_ranks(ranks, None));
        let sums = cases.iter().enumerate().filter(|(_, case)| **case != Case::PingPong);
        let sums: Rows = sums
            .flat_map(|(index, _)| nodes::sums(&rows[index].0, &senders(shape, all, index), lines, &of_rank))
            .collect();
        rows.extend(sums);
    }
    rows
}

/// Returns the results of each rank that put in a case.
fn senders(shape: &Shape<'_>, all: &[Vec<Findings>], case: usize) -> Vec<Sender> {
    let iterations = shape.layout.iterations as f64;
    let of_rank = |(rank, found): (usize, &Vec<Findings>)| {
        let found = found.get(case)?;
        Some(Sender {
            rank,
            times: found.samples.iter().map(|sample| sample.done / iterations).collect(),
            bytes: shape.layout.producers * shape.tuple.bytes,
            operations: shape.layout.producers,
            rail_bytes: found.rail_bytes.iter().take(shape.tuple.rails).copied().collect(),
            rail_us: found.rail_us.iter().take(shape.tuple.rails).copied().collect(),
        })
    };
    all.iter().enumerate().filter_map(of_rank).collect()
}

/// Returns a note if CPU-initiated writes over one modelled NIC take longer than the NIC would. The times then show
/// this machine, whose cores are busy otherwise.
fn slower_than_its_pace(shape: &Shape<'_>, rank: &Rank, case: Case, samples: &[f64]) -> Option<String> {
    if case != Case::CpuWrite || shape.tuple.rails != 1 || shape.args.proxy_threads != 1 {
        return None;
    }
    let writes = shape.layout.iterations * shape.layout.producers;
    let pace = rank.pace(shape.tuple.bytes, writes)?.as_secs_f64() * 1e6;
    let ratio = Summary::of(samples)?.p50 * shape.layout.iterations as f64 / pace;
    (ratio > 1.0 + TOLERATED).then(|| format!("slower than the modelled card: {ratio:.2} times its time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delayed_model_cards_are_marked_suspect() {
        let of = |behind| {
            let samples = vec![Sample { done: 60.0, posted: None }, Sample { done: 55.0, posted: None }];
            Findings { samples, behind, ..Findings::default() }.slower_than_the_card()
        };
        assert_eq!((of(0.0), of(14.9)), (None, None));
        assert_eq!(
            of(23.0).as_deref(),
            Some("slower than the modelled card, which waited for this machine 20 % of the time")
        );
        assert_eq!(Findings::default().slower_than_the_card(), None);
    }
}
