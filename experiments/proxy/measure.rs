//! One tuple: the kernel in every mode, the CPU-initiated writes and, on null rails, the bare round trip; interleaved,
//! then verified, then gathered into rows on rank 0.

use super::args::Scope;
use super::layout::Layout;
use super::plan::{Mode, Plan, Tuple};
use super::rank::{DESTINATION, Rank, SOURCE};
use super::trace::{Traces, trace};
use super::verify;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Kernel, Launch};
use ginlab::measure::ping_pong::{Flag, round_trip};
use ginlab::measure::stats::{Micros, Summary};
use ginlab::proxy::{ProxyError, Writes};
use ginlab::report::{Row, Status};
use ginlab::signals;
use kernels::put_kernel::{BlockResult, PUT_KERNEL, PutArgs, SCOPE_BLOCK, SCOPE_THREAD};
use kernels::ring::Status as DeviceStatus;
use serde::{Deserialize, Serialize};

const EXPERIMENT: &str = "proxy";
/// The CPU-initiated writes that puts are compared with.
const BASELINE: &str = "cpu-write";
/// The plainest loop of fi_write that the CPU-initiated writes are compared with.
const YARDSTICK: &str = "bare-write";
/// The bare round trip that a quiet on null rails is compared with.
const FLOOR: &str = "ping-pong";

/// By so much of the modelled card's time a figure may be longer and still pass as the card's.
const TOLERATED: f64 = 0.15;

/// What is measured side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// GPU-initiated puts.
    Put(Mode),
    /// CPU-initiated writes of the same buffers over the same rails.
    CpuWrite,
    /// A loop of fi_write over one buffer on one rail, without ring, engine and checks.
    BareWrite,
    /// A flag's round trip between device and CPU, with the payload and the fence of a put.
    PingPong,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Case::Put(_) => "put",
            Case::CpuWrite => BASELINE,
            Case::BareWrite => YARDSTICK,
            Case::PingPong => FLOOR,
        }
    }
}

/// One timed run of a case, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Sample {
    done: f64,
    posted: Option<f64>,
}

/// What one rank knows of one case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Findings {
    samples: Vec<Sample>,
    wrong: Option<u64>,
    again: u64,
    rail_bytes: Vec<u64>,
    /// Microseconds that a modelled card has waited for this machine.
    behind: f64,
}

/// A tuple with all that follows from it on this rank.
pub struct Shape<'a> {
    pub plan: &'a Plan,
    pub tuple: &'a Tuple,
    pub layout: Layout,
    pub block: u32,
}

/// Measures one tuple. Rows, with their raw samples, are returned on rank 0.
pub fn measure(
    plan: &Plan,
    tuple: &Tuple,
    rank: &mut Rank,
    ranks: &mut Bootstrap,
    traces: &mut Traces,
) -> Result<Vec<(Row, Vec<f64>)>, Failure> {
    let block = rank.block(tuple);
    let layout = match Layout::new(plan, tuple, block) {
        Ok(layout) => layout,
        Err(why) => return Ok(skipped(plan, tuple, block, rank, ranks, &why)),
    };
    let shape = Shape { plan, tuple, layout, block };
    for proxy in rank.proxies() {
        proxy.configure(tuple.rails, tuple.strategy)?;
    }
    let cases = cases(&shape);
    let mut findings = vec![Findings::default(); cases.len()];
    let what = format!("{} B over {} rails, {} x {block}", tuple.bytes, tuple.rails, tuple.grid);
    rank.move_bytes(plan.moves);
    // Round 0 warms up. Interleaved, so that what drifts (clocks, neighbours) meets every case alike.
    for round in 0..=plan.repeats {
        for (case, found) in cases.iter().zip(&mut findings) {
            ranks.barrier(&what)?;
            let iterations = if round == 0 { layout.warmup } else { layout.iterations };
            if rank.target.is_none() || iterations == 0 {
                continue;
            }
            let (before, behind) = (counters(rank)?, rank.behind());
            let sample = run(&shape, rank, ranks, *case, iterations)?;
            if round > 0 {
                found.samples.push(sample);
                found.behind += rank.behind().saturating_sub(behind).as_secs_f64() * 1e6;
                found.add(&before, &counters(rank)?);
            }
        }
    }
    rank.move_bytes(true);
    if plan.check {
        for (case, found) in cases.iter().zip(&mut findings) {
            found.wrong = verify::verify(&shape, rank, ranks, *case)?;
        }
    }
    let mut lives = Vec::new();
    if plan.trace.is_some() {
        rank.move_bytes(plan.moves);
        for (index, case) in cases.iter().enumerate() {
            if let Case::Put(mode) = case {
                lives.extend(trace(&shape, rank, ranks, *mode)?.map(|found| (index, found)));
            }
        }
    }
    let Some(all) = ranks.gather_values(&findings, &what)? else { return Ok(Vec::new()) };
    let rows = rows(&shape, rank, ranks, &cases, &all);
    for (index, found) in &lives {
        rows.get(*index).into_iter().for_each(|(row, _)| traces.add(row, found));
    }
    Ok(rows)
}

/// The baseline and the floor first: the rows after them are divided by them.
fn cases(shape: &Shape<'_>) -> Vec<Case> {
    let mut cases = Vec::new();
    if shape.plan.is_null() && shape.tuple.grid == 1 && shape.plan.scope == Scope::Block {
        cases.push(Case::PingPong);
    }
    if shape.plan.bare && !shape.plan.is_null() && shape.tuple.rails == 1 && shape.plan.proxy_threads == 1 {
        cases.push(Case::BareWrite);
    }
    cases.push(Case::CpuWrite);
    cases.extend(shape.plan.modes.iter().map(|&mode| Case::Put(mode)));
    cases
}

fn counters(rank: &Rank) -> Result<(u64, Vec<u64>), Failure> {
    let mut again = 0;
    let mut rail_bytes: Vec<u64> = Vec::new();
    for proxy in rank.proxies() {
        let counters = proxy.snapshot()?.counters;
        again += counters.again;
        rail_bytes.resize(counters.rail_bytes.len().max(rail_bytes.len()), 0);
        for (sum, bytes) in rail_bytes.iter_mut().zip(&counters.rail_bytes) {
            *sum += bytes;
        }
    }
    Ok((again, rail_bytes))
}

impl Findings {
    /// Whether these times are this machine's and not the modelled card's: what it let the card wait is more than a share of
    /// the rest.
    fn slower_than_the_card(&self) -> Option<String> {
        let all: f64 = self.samples.iter().map(Sample::done).sum();
        let percent = 100.0 * self.behind / all;
        (self.behind > TOLERATED * (all - self.behind))
            .then(|| format!("slower than the modelled card: it waited for this machine {percent:.0} % of the time"))
    }

    fn add(&mut self, before: &(u64, Vec<u64>), after: &(u64, Vec<u64>)) {
        self.again += after.0 - before.0;
        self.rail_bytes.resize(after.1.len(), 0);
        for (sum, (after, before)) in self.rail_bytes.iter_mut().zip(after.1.iter().zip(&before.1)) {
            *sum += after - before;
        }
    }
}

fn run(
    shape: &Shape<'_>,
    rank: &mut Rank,
    ranks: &mut Bootstrap,
    case: Case,
    iterations: u64,
) -> Result<Sample, Failure> {
    match case {
        Case::Put(mode) => {
            let first = rank.next_iteration;
            run_kernel(shape, rank, ranks, mode, iterations, shape.plan.fill, first)
        }
        Case::CpuWrite => {
            let time = cpu_write(shape, rank, iterations)?;
            Ok(Sample { done: time, posted: None })
        }
        Case::BareWrite => {
            let route = (SOURCE, DESTINATION, rank.target.unwrap_or_default() as u32);
            let count = iterations * shape.layout.producers;
            match rank.proxies()[0].bare_write(route, shape.tuple.bytes, count)? {
                Some(time) => Ok(Sample { done: time.as_secs_f64() * 1e6, posted: None }),
                None => Err(Failure::Usage("--bare: this fabric has no interface below ours".into())),
            }
        }
        Case::PingPong => ping_pong(shape, rank, iterations),
    }
}

impl Sample {
    /// Microseconds until all puts were complete.
    pub fn done(&self) -> f64 {
        self.done
    }
}

/// The kernel's arguments for so many puts per producer.
pub fn put_args(
    shape: &Shape<'_>,
    rank: &Rank,
    ranks: &Bootstrap,
    mode: Mode,
    iterations: u64,
    fill: bool,
    first_iteration: u32,
) -> PutArgs {
    PutArgs {
        rings: rank.table.pointer(),
        ring_count: rank.table.count(),
        scope: match shape.plan.scope {
            Scope::Block => SCOPE_BLOCK,
            Scope::Thread => SCOPE_THREAD,
        },
        source: rank.payload.pointer(),
        source_region: SOURCE,
        destination_region: DESTINATION,
        peer: rank.target.unwrap_or_default() as u32,
        rank: ranks.rank() as u32,
        bytes: shape.tuple.bytes,
        stride: shape.layout.stride,
        window: shape.layout.window as u32,
        iterations: iterations as u32,
        first_iteration,
        quiet_every: mode.quiet_every(),
        fill: fill.into(),
        tickets: rank.tickets.pointer(),
        results: rank.results.pointer(),
    }
}

/// One launch of the put kernel; times from the device's clock.
pub fn run_kernel(
    shape: &Shape<'_>,
    rank: &mut Rank,
    ranks: &mut Bootstrap,
    mode: Mode,
    iterations: u64,
    fill: bool,
    first_iteration: u32,
) -> Result<Sample, Failure> {
    let args = put_args(shape, rank, ranks, mode, iterations, fill, first_iteration);
    run_grid(shape, rank, ranks, &PUT_KERNEL, args)
}

/// One launch of a kernel that leaves a [`BlockResult`] of each block.
pub fn run_grid<A: Copy + Send + Sync + 'static>(
    shape: &Shape<'_>,
    rank: &mut Rank,
    ranks: &mut Bootstrap,
    kernel: &Kernel<A>,
    args: A,
) -> Result<Sample, Failure> {
    let (grid, block) = (shape.tuple.grid, shape.block);
    // SAFETY: the buffers belong to the rank and are as long as the layout asks for (`Needs`); the launch ends here.
    let launch = unsafe { rank.device().launch(kernel, grid, block, args) }?;
    watch(launch, rank, ranks)?;
    let mut results = vec![BlockResult::default(); grid as usize];
    rank.results.read(0, &mut results)?;
    if let Some(stop) = results.iter().map(|result| result.stop).find(|stop| *stop != 0) {
        return Err(ended_early(DeviceStatus(stop), rank, shape));
    }
    let started = results.iter().map(|result| result.started).min().unwrap_or_default();
    let latest = |time: fn(&BlockResult) -> u64| results.iter().map(time).max().unwrap_or_default();
    let micros = |time: u64| time.saturating_sub(started) as f64 / 1000.0;
    Ok(Sample { done: micros(latest(|result| result.done)), posted: Some(micros(latest(|result| result.posted))) })
}

/// Waits for a grid. Ctrl-C and a peer that has gone end the proxy, and by that the grid; a proxy that fails ends it itself.
fn watch(launch: Launch, rank: &Rank, ranks: &mut Bootstrap) -> Result<(), Failure> {
    launch.wait(|| {
        let gone = if signals::interrupted() { Err(Failure::Interrupted) } else { Ok(ranks.check_peers()?) };
        if gone.is_err() {
            rank.proxies().iter().for_each(|proxy| proxy.stop());
        }
        gone
    })
}

/// Why a kernel ended early: its own reason, and the proxy's.
fn ended_early(stop: DeviceStatus, rank: &Rank, shape: &Shape<'_>) -> Failure {
    let failures: Vec<ProxyError> = rank.proxies().iter().filter_map(|proxy| proxy.failure()).collect();
    let reasons: Vec<String> = failures.iter().map(ProxyError::to_string).collect();
    let text = format!(
        "the kernel ended early ({} B, {} x {}): {}{}{}; {}",
        shape.tuple.bytes,
        shape.tuple.grid,
        shape.block,
        stop.text(),
        if reasons.is_empty() { "" } else { ": " },
        reasons.join("; "),
        rank.ring_states().join("; ")
    );
    if stop == DeviceStatus::DEADLINE || failures.iter().any(ProxyError::is_timeout) {
        Failure::Timeout(text)
    } else {
        Failure::Run(text)
    }
}

/// The same writes, initiated by the proxy threads themselves; microseconds until all are complete.
pub fn cpu_write(shape: &Shape<'_>, rank: &Rank, iterations: u64) -> Result<f64, Failure> {
    let threads = rank.proxies().len() as u64;
    for (thread, proxy) in rank.proxies().iter().enumerate() {
        proxy.begin_write(Writes {
            first_producer: thread as u64,
            producer_step: threads,
            producers: shape.layout.producers,
            window: shape.layout.window,
            iterations,
            bytes: shape.tuple.bytes,
            stride: shape.layout.stride,
            route: (SOURCE, DESTINATION, rank.target.unwrap_or_default() as u32),
        })?;
    }
    let mut longest = 0f64;
    for proxy in rank.proxies() {
        longest = longest.max(proxy.finish_write()?.as_secs_f64() * 1e6);
    }
    Ok(longest)
}

/// The bare round trip: this thread answers the device's flag.
fn ping_pong(shape: &Shape<'_>, rank: &Rank, iterations: u64) -> Result<Sample, Failure> {
    let flag = Flag { payload: Some((&rank.payload, shape.tuple.bytes / 8 * 8)), first_poll_ns: 0 };
    let each = round_trip(rank.device(), shape.block, iterations, shape.plan.timeout, flag)?;
    Ok(Sample { done: each * iterations as f64, posted: None })
}

/// A row with everything that is known before it is measured.
fn blank(plan: &Plan, tuple: &Tuple, block: u32, rank: &Rank, ranks: &Bootstrap, case: Case) -> Row {
    let device = if matches!(case, Case::CpuWrite | Case::BareWrite) { "cpu".into() } else { rank.device().name() };
    let mut row = Row::new(EXPERIMENT, case.name(), device, rank.provider());
    row.ranks = ranks.size() as u32;
    row.rails = Some(tuple.rails as u32);
    row.strategy = Some(tuple.strategy.to_string());
    row.mode = match case {
        Case::Put(mode) => Some(mode.to_string()),
        Case::CpuWrite | Case::BareWrite => Some("nbi".into()),
        Case::PingPong => None,
    };
    row.memory = Some(rank.memory_path().name().into());
    row.size_bytes = Some(tuple.bytes);
    row.grid = Some(tuple.grid);
    row.block = Some(block);
    row.fill = Some(matches!(case, Case::Put(_)) && plan.fill || case == Case::PingPong);
    row.scope = Some(if plan.scope == Scope::Block { "block" } else { "thread" }.into());
    row.proxy_threads = Some(plan.proxy_threads as u32);
    row.ring_slots = Some(plan.ring_slots as u32);
    row.ring_memory = Some(plan.ring_place().into());
    row.completion = Some(plan.completion().into());
    row
}

fn skipped(plan: &Plan, tuple: &Tuple, block: u32, rank: &Rank, ranks: &Bootstrap, why: &str) -> Vec<(Row, Vec<f64>)> {
    if ranks.rank() != 0 {
        return Vec::new();
    }
    let modes = plan.modes.iter().map(|&mode| {
        let mut row = blank(plan, tuple, block, rank, ranks, Case::Put(mode));
        row.status = Status::Skipped(why.into());
        (row, Vec::new())
    });
    modes.collect()
}

fn rows(
    shape: &Shape<'_>,
    rank: &Rank,
    ranks: &Bootstrap,
    cases: &[Case],
    all: &[Vec<Findings>],
) -> Vec<(Row, Vec<f64>)> {
    let plan = shape.plan;
    let pairs = all.iter().filter(|found| found.iter().any(|found| !found.samples.is_empty())).count().max(1) as u64;
    let mut rows: Vec<(Row, Vec<f64>)> = Vec::new();
    for (index, &case) in cases.iter().enumerate() {
        let mut row = blank(plan, shape.tuple, shape.block, rank, ranks, case);
        let of_ranks: Vec<&Findings> = all.iter().filter_map(|found| found.get(index)).collect();
        let iterations = shape.layout.iterations;
        // All pairs run side by side: a repeat takes as long as its slowest.
        let slowest = |time: fn(&Sample) -> Option<f64>| -> Vec<f64> {
            let repeats = of_ranks.iter().map(|found| found.samples.len()).max().unwrap_or_default();
            let of_repeat = |repeat: usize| {
                let times = of_ranks.iter().filter_map(|found| time(found.samples.get(repeat)?));
                times.reduce(f64::max).map(|time| time / iterations as f64)
            };
            (0..repeats).filter_map(of_repeat).collect()
        };
        let samples = slowest(|sample| Some(sample.done));
        let operations = if case == Case::PingPong { 1 } else { pairs * shape.layout.producers };
        row.iterations = Some(iterations);
        row.window = Some(shape.layout.window as u32);
        row.again = Some(of_ranks.iter().map(|found| found.again).sum());
        row.rail_bytes = sum_by_rail(&of_ranks, shape.tuple.rails);
        if let Some(summary) = Summary::of(&samples) {
            row.times(&summary).throughput(operations * shape.tuple.bytes, operations);
        }
        if let Some(post) = Summary::of(&slowest(|sample| sample.posted)) {
            row.posted(Micros(post.p50), operations);
        }
        if let Some(line) = rank.line_rate(shape.tuple.rails) {
            row.line_rate(line * pairs);
        }
        let behind = of_ranks.iter().find_map(|found| found.slower_than_the_card());
        if let Some(why) = behind.or_else(|| slower_than_its_pace(shape, rank, case, &samples)) {
            row.doubt(why);
        }
        row.wrong = of_ranks.iter().filter_map(|found| found.wrong).reduce(|sum, wrong| sum + wrong);
        if let Some(wrong) = row.wrong.filter(|wrong| *wrong > 0) {
            row.status = Status::Failed(format!("verification found {wrong} wrong bytes or puts"));
        }
        let floor = matches!(case, Case::Put(Mode::Quiet)).then(|| rows.iter().find(|(row, _)| row.case == FLOOR));
        let baseline = floor.flatten().or_else(|| rows.iter().find(|(row, _)| row.case == BASELINE));
        let baseline = match case {
            Case::Put(_) => baseline,
            Case::CpuWrite => rows.iter().find(|(row, _)| row.case == YARDSTICK),
            Case::BareWrite | Case::PingPong => None,
        };
        if let Some((baseline, theirs)) = baseline {
            row.against(baseline, &samples, theirs);
        }
        rows.push((row, samples));
    }
    rows
}

/// Whether CPU-initiated writes over one modelled card take longer than the card would, by what the arithmetic says of it: then
/// they show this machine, whose cores have something else to do.
fn slower_than_its_pace(shape: &Shape<'_>, rank: &Rank, case: Case, samples: &[f64]) -> Option<String> {
    if case != Case::CpuWrite || shape.tuple.rails != 1 || shape.plan.proxy_threads != 1 {
        return None;
    }
    let writes = shape.layout.iterations * shape.layout.producers;
    let pace = rank.pace(shape.tuple.bytes, writes)?.as_secs_f64() * 1e6;
    let ratio = Summary::of(samples)?.p50 * shape.layout.iterations as f64 / pace;
    (ratio > 1.0 + TOLERATED).then(|| format!("slower than the modelled card: {ratio:.2} times its time"))
}

fn sum_by_rail(of_ranks: &[&Findings], rails: usize) -> Option<Vec<u64>> {
    let sums: Vec<u64> =
        (0..rails).map(|rail| of_ranks.iter().filter_map(|found| found.rail_bytes.get(rail)).sum()).collect();
    sums.iter().any(|bytes| *bytes > 0).then_some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_waited_for_this_machine_is_told_from_one_that_did_not() {
        let of = |behind| {
            let samples = vec![Sample { done: 60.0, posted: None }, Sample { done: 55.0, posted: None }];
            Findings { samples, behind, ..Findings::default() }.slower_than_the_card()
        };
        assert_eq!((of(0.0), of(14.9)), (None, None));
        assert_eq!(
            of(23.0).as_deref(),
            Some("slower than the modelled card: it waited for this machine 20 % of the time")
        );
        assert_eq!(Findings::default().slower_than_the_card(), None);
    }
}
