//! Measurement of one parameter combination: the kernel in every mode, CPU-initiated writes and, on null rails, the
//! bare round trip.

use super::args::{ProxyArgs, ProxyConfig, PutScope, WritePath};
use super::layout::ProxyLayout;
use super::mode::ProxyMode;
use super::rank::ProxyRank;
use super::run::{ProxyCase, ProxyShape, run};
use super::trace::{Traces, trace};
use super::verify;
use super::{FILL, FILL_AHEAD, POST_RATE, PROXY_THREADS, RING_MEMORY};
use crate::columns::{ALIGNMENT, COMPLETION, Cold, POST, RING_SLOTS, SCOPE, WINDOW};
use crate::error::Failure;
use crate::job::of_threads;
use crate::mps;
use crate::nodes;
use crate::runner::{Rows, TOLERATED};
use crate::series::{Bench, CaseResults, RankResult, Sample, SeriesOptions};
use crate::values;
use ginlab::bootstrap::Bootstrap;
use ginlab::measure::stats::{Micros, Summary};
use ginlab::proxy::engine::SetUp;
use ginlab::rails::Counters;
use ginlab::report::{Row, RowStatus};

/// Indices of parts: the time until all puts were posted, and the time that a modelled NIC has waited for this machine.
const POSTED: usize = 0;
const BEHIND: usize = 1;

/// Measures one parameter combination. Returns rows with their raw samples on rank 0, and no rows on other ranks.
pub async fn measure(
    args: &ProxyArgs,
    tuple: &ProxyConfig,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
    traces: &mut Traces,
) -> Result<Rows, Failure> {
    let layout = match ProxyLayout::new(args, tuple, &rank.device) {
        Ok(layout) => layout,
        Err(why) => return Ok(skipped(args, tuple, rank, ranks.size(), &why)),
    };
    let shape = ProxyShape { args, tuple, layout };
    rank.select_rails(tuple)?;
    let cases = cases(&shape, rank);
    let what = format!("{} B over {} rails, {} x {}", tuple.bytes, tuple.rails, tuple.grid, tuple.block);
    rank.move_bytes(args.moves());
    let ProxyLayout { warmup, iterations, producers, .. } = layout;
    let series = SeriesOptions { repeats: args.repeats, check: !args.no_check, warmup, iterations, what: &what };
    let mut puts = Puts { shape, rank };
    let results = series.measure(&mut puts, &cases, ranks).await?;
    let Puts { shape, rank } = puts;
    let mut lives = Vec::new();
    if args.trace.is_some() {
        for (index, case) in cases.iter().enumerate() {
            if let ProxyCase::Put(mode) = case {
                lives.extend(trace(&shape, rank, ranks, *mode)?.map(|found| (index, found)));
            }
        }
        // Targets stay open until all puts are complete.
        ranks.barrier("end of the traces")?;
    }
    rank.group.proxies().iter().for_each(|proxy| proxy.set_busy_poll(false));
    let Some(results) = results else { return Ok(Rows::new()) };
    let mut rows = results.rows(
        |case, measured| row(&shape, rank, case, measured),
        |case| match tuple.drawn {
            Some(drawn) if case.of_kernel().is_some() => vec![drawn.baseline(tuple.grid)],
            Some(_) => Vec::new(),
            None => baselines(case),
        },
    );
    for (index, found) in &lives {
        rows.get(*index).into_iter().for_each(|(row, _)| traces.add(row, found));
    }
    if args.per_node {
        let (line, of_rank) = (rank.line_rate(tuple.rails), nodes::of_ranks(ranks, None));
        let sums = |(case, (row, _)): (&ProxyCase, &(Row, Vec<f64>))| {
            let senders = results.of(*case).by_sender(producers * tuple.bytes, producers, tuple.rails);
            nodes::sums(row, &senders, line, &of_rank)
        };
        let summed = cases.iter().zip(&rows).filter(|(case, _)| **case != ProxyCase::PingPong);
        let sums: Rows = summed.flat_map(sums).collect();
        rows.extend(sums);
    }
    if let Some(why) = without_queues(rank) {
        let skipped = |&mode| skipped_row(args, tuple, rank, ranks.size(), ProxyCase::Direct(mode), why);
        rows.extend(args.mode.iter().map(skipped));
    }
    Ok(rows)
}

/// Times of the first two operations of a case.
pub struct First {
    case: ProxyCase,
    times: Vec<f64>,
}

impl First {
    /// Returns whether the row is of this case.
    fn is_of(&self, row: &Row) -> bool {
        let mode = self.case.of_kernel().map(|mode| mode.to_string());
        row.case == self.case.name() && mode.is_none_or(|mode| row.mode == Some(mode))
    }
}

/// Times the first two operations of each producer, before anything is verified. Returns no times if an earlier
/// parameter combination used as many rails, and on ranks that do not put.
pub fn first(
    args: &ProxyArgs,
    tuple: &ProxyConfig,
    rank: &mut ProxyRank,
    ranks: &mut Bootstrap,
) -> Result<Vec<First>, Failure> {
    // An injected fault counts the operations, and these are not verified.
    if tuple.rails <= rank.used_rails || args.fault.is_some() {
        return Ok(Vec::new());
    }
    let Ok(layout) = ProxyLayout::new(args, tuple, &rank.device) else { return Ok(Vec::new()) };
    rank.used_rails = tuple.rails;
    rank.select_rails(tuple)?;
    let (shape, mut all) = (ProxyShape { args, tuple, layout }, Vec::new());
    for case in cases(&shape, rank) {
        if rank.target.is_some() && matches!(case, ProxyCase::CpuWrite | ProxyCase::Put(_) | ProxyCase::Direct(_)) {
            let mut time = || run(&shape, rank, ranks, case, 1).map(|elapsed| elapsed.done);
            all.push(First { case, times: vec![time()?, time()?] });
        }
    }
    ranks.barrier("end of the first operations")?;
    Ok(all)
}

/// Sets the columns of the start of the run in the rows of these cases.
pub fn fill_first(rows: &mut Rows, first: &[First], rank: &ProxyRank, ranks: usize) -> Result<(), Failure> {
    // The snapshot is a request to the proxy threads.
    if first.is_empty() {
        return Ok(());
    }
    let Some(SetUp { registered, inserted }) = rank.group.snapshots()?.first().map(|thread| thread.set_up) else {
        return Ok(());
    };
    let cold = Cold { register: Some(registered), insert: inserted };
    for (row, _) in rows {
        if let Some(first) = first.iter().find(|first| first.is_of(row)) {
            cold.fill(row, &first.times, ranks);
        }
    }
    Ok(())
}

/// Returns the cases of a parameter combination. Baseline and lower bound are first, because later rows refer to them.
fn cases(shape: &ProxyShape<'_>, rank: &ProxyRank) -> Vec<ProxyCase> {
    let mut cases = Vec::new();
    if let Some(drawn) = shape.tuple.drawn {
        cases.extend(shape.args.measures(WritePath::CpuWrite).then(|| drawn.baseline(shape.tuple.grid)));
        cases.extend(shape.args.measures(WritePath::Put).then_some(ProxyCase::Put(drawn.mode)));
        return cases;
    }
    let (args, modes) = (shape.args, shape.args.mode.iter().copied());
    if args.measures(WritePath::Put) && args.is_null() && shape.tuple.grid == 1 && args.scope == PutScope::Block {
        cases.push(ProxyCase::PingPong);
    }
    if args.bare && !args.is_null() && shape.tuple.rails == 1 && args.proxy_threads == 1 {
        cases.push(ProxyCase::BareWrite);
    }
    cases.extend(args.measures(WritePath::CpuWrite).then_some(ProxyCase::CpuWrite));
    cases.extend(args.cpu_batch.iter().flat_map(|list| list.iter()).map(|&batch| ProxyCase::CpuBatch(batch)));
    cases.extend(modes.clone().filter(|_| args.measures(WritePath::Put)).map(ProxyCase::Put));
    cases.extend(
        modes.filter(|_| args.measures(WritePath::Direct) && without_queues(rank).is_none()).map(ProxyCase::Direct),
    );
    cases
}

/// Returns the reason why case `direct` is not measured although it is requested.
fn without_queues(rank: &ProxyRank) -> Option<&str> {
    rank.queues.as_ref()?.as_ref().err().map(String::as_str)
}

/// Returns a note if the times are those of this machine and not of the modelled NIC, because the NIC waited for more
/// than the tolerated fraction of the remaining time.
fn slower_than_the_card(found: &RankResult) -> Option<String> {
    let [all, behind] = [&found.sample.times[..], found.part(BEHIND)].map(|times| times.iter().sum::<f64>());
    let percent = 100.0 * behind / all;
    (behind > TOLERATED * (all - behind))
        .then(|| format!("slower than the modelled card, which waited for this machine {percent:.0} % of the time"))
}

/// Creates a row with all columns that are known before the measurement.
fn blank(args: &ProxyArgs, tuple: &ProxyConfig, rank: &ProxyRank, ranks: usize, case: ProxyCase) -> Row {
    let device = if matches!(case, ProxyCase::CpuWrite | ProxyCase::CpuBatch(_) | ProxyCase::BareWrite) {
        "cpu".into()
    } else {
        rank.device.name()
    };
    let mut row = Row::new("proxy", case.name(), device, &rank.provider);
    row.ranks = ranks as u32;
    row.rails = Some(tuple.rails as u32);
    // A block uses the queue of one NIC, so that its puts are not distributed over rails.
    let by_card = matches!(case, ProxyCase::Direct(_));
    row.strategy = (!by_card).then(|| tuple.strategy.to_string());
    row.mode = match case {
        ProxyCase::Put(mode) | ProxyCase::Direct(mode) => Some(mode.to_string()),
        ProxyCase::CpuWrite | ProxyCase::BareWrite => Some("nbi".into()),
        ProxyCase::CpuBatch(batch) => Some(format!("quiet-every={batch}")),
        ProxyCase::PingPong => None,
    };
    row.memory = Some(rank.path.name().into());
    row.size_bytes = Some(tuple.bytes);
    row.grid = Some(tuple.grid);
    row.block = Some(tuple.block);
    row.set(&FILL, case.of_kernel().is_some() && args.fills() || case == ProxyCase::PingPong);
    row.set(&SCOPE, values::name(args.scope));
    if tuple.drawn.is_some() {
        row.set(&ALIGNMENT, format!("{}/{}", tuple.aligned_at(false), tuple.aligned_at(true)));
    }
    if !by_card {
        row.set(&PROXY_THREADS, args.proxy_threads);
        row.set(&RING_SLOTS, args.ring_slots).set(&RING_MEMORY, values::name(args.ring_memory));
    }
    row.set(&COMPLETION, args.completion());
    mps::mark(&mut row, &rank.sharing);
    row
}

fn skipped(args: &ProxyArgs, tuple: &ProxyConfig, rank: &ProxyRank, ranks: usize, why: &str) -> Rows {
    let of = |way: WritePath, case: fn(ProxyMode) -> ProxyCase| {
        args.mode.iter().filter(move |_| args.measures(way)).map(move |&mode| case(mode))
    };
    let cases = of(WritePath::Put, ProxyCase::Put).chain(of(WritePath::Direct, ProxyCase::Direct));
    cases.map(|case| skipped_row(args, tuple, rank, ranks, case, why)).collect()
}

fn skipped_row(
    args: &ProxyArgs,
    tuple: &ProxyConfig,
    rank: &ProxyRank,
    ranks: usize,
    case: ProxyCase,
    why: &str,
) -> (Row, Vec<f64>) {
    let mut row = blank(args, tuple, rank, ranks, case);
    row.status = RowStatus::Skipped(why.into());
    (row, Vec::new())
}

/// The cases of a parameter combination on this rank.
struct Puts<'a> {
    shape: ProxyShape<'a>,
    rank: &'a mut ProxyRank,
}

impl Bench for Puts<'_> {
    type Case = ProxyCase;

    async fn verify(&mut self, case: ProxyCase, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        self.rank.move_bytes(true);
        let wrong = verify::verify(&self.shape, self.rank, ranks, case);
        self.rank.move_bytes(self.shape.args.moves());
        wrong
    }

    fn is_warm(&self, case: ProxyCase) -> bool {
        verify::is_whole(&self.shape, case)
    }

    async fn run(&mut self, case: ProxyCase, iterations: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        if self.rank.target.is_none() {
            return Ok(Sample::default());
        }
        let before = self.rank.behind();
        let run = run(&self.shape, self.rank, ranks, case, iterations)?;
        let behind = self.rank.behind().saturating_sub(before).as_secs_f64() * 1e6;
        let each = |time: f64| time / iterations as f64;
        let posted = run.posted.map(each).into_iter().collect();
        Ok(Sample { times: vec![each(run.done)], parts: vec![posted, vec![each(behind)]] })
    }

    fn counters(&self) -> Result<Counters, Failure> {
        Ok(of_threads(self.rank.group.snapshots()?.iter().map(|snapshot| &snapshot.counters)))
    }
}

fn row(shape: &ProxyShape<'_>, rank: &ProxyRank, case: ProxyCase, measured: &CaseResults) -> Row {
    let ProxyShape { args, tuple, layout } = shape;
    let mut row = blank(args, tuple, rank, measured.0.len(), case);
    row.iterations = Some(layout.iterations);
    if case.of_kernel() == Some(ProxyMode::Nbi) && args.fills() && args.scope == PutScope::Block {
        row.set(&FILL_AHEAD, layout.ahead);
    }
    row.set(&WINDOW, layout.window);
    // All pairs run concurrently.
    let pairs = measured.senders();
    let operations = if case == ProxyCase::PingPong { 1 } else { pairs * layout.producers };
    measured.fill(&mut row, operations * tuple.bytes, operations);
    measured.count(&mut row, tuple.rails);
    if let Some(post) = Summary::of(&measured.part(POSTED)) {
        row.set(&POST, post.p50).set(&POST_RATE, Micros(post.p50).mops(operations));
    }
    row.line_rate(rank.line_rate(tuple.rails).map(|line| line * pairs));
    let behind = measured.0.iter().find_map(slower_than_the_card);
    if let Some(why) = behind.or_else(|| slower_than_its_pace(shape, rank, case, &measured.times())) {
        row.doubt(why);
    }
    row
}

/// Returns the cases that a case can be compared with, in order of preference.
fn baselines(case: ProxyCase) -> Vec<ProxyCase> {
    match case {
        ProxyCase::Put(ProxyMode::Quiet) => vec![ProxyCase::PingPong, ProxyCase::CpuWrite],
        ProxyCase::Put(_) | ProxyCase::Direct(_) | ProxyCase::CpuBatch(_) => vec![ProxyCase::CpuWrite],
        ProxyCase::CpuWrite => vec![ProxyCase::BareWrite],
        ProxyCase::BareWrite | ProxyCase::PingPong => Vec::new(),
    }
}

/// Returns a note if CPU-initiated writes over one modelled NIC take longer than the NIC would. The times then show
/// this machine, whose cores are busy otherwise.
fn slower_than_its_pace(shape: &ProxyShape<'_>, rank: &ProxyRank, case: ProxyCase, samples: &[f64]) -> Option<String> {
    if case != ProxyCase::CpuWrite || shape.tuple.rails != 1 || shape.args.proxy_threads != 1 {
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
            let sample = Sample { times: vec![60.0, 55.0], parts: vec![Vec::new(), vec![behind]] };
            slower_than_the_card(&RankResult { sample, ..RankResult::default() })
        };
        assert_eq!((of(0.0), of(14.9)), (None, None));
        assert_eq!(
            of(23.0).as_deref(),
            Some("slower than the modelled card, which waited for this machine 20 % of the time")
        );
        assert_eq!(slower_than_the_card(&RankResult::default()), None);
    }
}
