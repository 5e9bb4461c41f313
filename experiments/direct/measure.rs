//! Measurement of one parameter combination: the cases, interleaved, with verification.

use super::args::{DirectArgs, DirectCase, DirectConfig, DirectMode, FaultAt};
use super::{DEPTH, DirectExperiment, MAX_BATCH, QUEUES, THREADS};
use crate::columns::POST;
use crate::error::Failure;
use crate::runner::Rows;
use crate::series::{Bench, CaseResults, Sample, SeriesOptions};
use crate::values;
use efa_queue::request::To;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, DeviceError, MemoryLocation};
use ginlab::direct::{CardOptions, QueueMemory, QueueTable, Regions, SoftNic};
use ginlab::measure::pattern;
use ginlab::measure::ping_pong::{Flag, round_trip};
use ginlab::measure::stats::Summary;
use ginlab::report::{Row, RowStatus};
use ginlab::signals;
use kernels::block::BlockResult;
use kernels::direct::QueueFailure;
use kernels::direct_put::{DIRECT_PUT, DirectPutArgs, slot_seed};
use kernels::put_kernel::{PUT_KERNEL, PutArgs, SCOPE_THREAD};
use kernels::ring::Status as DeviceStatus;
use std::collections::BTreeMap;

/// Puts per thread in the verification pass.
const VERIFIED: u32 = 4;
/// Memory keys of source and destination.
const KEYS: (u32, u32) = (0x12_3456, 0x89ab_cdef);

/// Case that measures the lower bound of a put and its wait.
const FLOOR: &str = "ping-pong";

/// Index of the times until all puts were posted.
const POSTED: usize = 0;

/// The cases of a parameter combination.
struct Puts<'a> {
    direct: &'a DirectExperiment,
    tuple: &'a DirectConfig,
    /// The software NIC and its queues of each case but the ring.
    cards: Vec<(DirectCase, SoftNic, QueueTable)>,
    memory: Memory,
}

struct Memory {
    source: Buffer,
    destination: Buffer,
    results: Buffer,
    tickets: Buffer,
}

/// Measures one parameter combination.
pub async fn measure(direct: &DirectExperiment, tuple: &DirectConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
    let args = &direct.args;
    let threads = u64::from(tuple.grid) * u64::from(tuple.block);
    let bytes = threads * u64::from(VERIFIED) * u64::from(stride(tuple));
    let memory = Memory {
        source: direct.device.allocate(MemoryLocation::Host, bytes as usize)?,
        destination: direct.device.allocate(MemoryLocation::Host, bytes as usize)?,
        results: direct.device.allocate(MemoryLocation::Device, tuple.grid as usize * size_of::<BlockResult>())?,
        tickets: direct.device.allocate(MemoryLocation::Device, (threads * 8) as usize)?,
    };
    let mut rows = Rows::new();
    let mut puts = Puts { direct, tuple, cards: Vec::new(), memory };
    let has_floor = tuple.mode == DirectMode::Quiet && tuple.grid == 1 && tuple.block == 1 && args.fault.is_none();
    // `None` is the lower bound.
    let mut cases: Vec<Option<DirectCase>> = has_floor.then_some(None).into_iter().collect();
    for &case in &args.cases {
        if let Some(why) = skipped(case, tuple) {
            let mut row = blank(direct, tuple, &values::name(case));
            row.status = RowStatus::Skipped(why.into());
            rows.push((row, Vec::new()));
            continue;
        }
        if case != DirectCase::Ring {
            let (card, table) = card(direct, tuple, case, None)?;
            puts.cards.push((case, card, table));
        }
        cases.push(Some(case));
    }
    let iterations = args.iterations.unwrap_or(if direct.is_gpu() { 2000 } else { 50 }).into();
    let series = SeriesOptions { warmup: iterations, iterations, ..args.repeat.series("a repeat") };
    let Some(results) = series.measure(&mut puts, &cases, ranks).await? else { return Ok(rows) };
    let row = |case: Option<DirectCase>, measured: &CaseResults| {
        let mut row = blank(direct, tuple, &case.map_or_else(|| FLOOR.into(), values::name));
        row.iterations = Some(iterations);
        match case {
            Some(_) => measured.fill(&mut row, threads * u64::from(tuple.bytes), threads),
            None => _ = row.times(&measured.times()),
        }
        row.set(&POST, Summary::of(&measured.part(POSTED)).map(|posted| posted.p50));
        row
    };
    let baselines = |case| match case {
        None => Vec::new(),
        Some(DirectCase::Ring) => vec![None],
        Some(_) => vec![None, Some(DirectCase::Ring)],
    };
    rows.extend(results.rows(row, baselines));
    Ok(rows)
}

impl Bench for Puts<'_> {
    type Case = Option<DirectCase>;

    async fn verify(&mut self, case: Option<DirectCase>, _: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        // A pass with another fault does not end, or ends with its error.
        let completes = self.direct.args.fault.iter().flatten().all(|fault| matches!(fault, FaultAt::Short(_)));
        match case {
            Some(case @ (DirectCase::Direct | DirectCase::Counter)) if completes => {
                Ok(Some(verify(self.direct, self.tuple, &self.memory, case)?))
            }
            _ => Ok(None),
        }
    }

    async fn run(&mut self, case: Option<DirectCase>, iterations: u64, _: &mut Bootstrap) -> Result<Sample, Failure> {
        let Puts { direct, tuple, cards, memory } = self;
        let Some(case) = case else {
            // The round trip of a put: its bytes, a fence, a flag, and the answer.
            let flag = Flag { payload: Some((&memory.source, 64)), first_poll_ns: 0 };
            let time = round_trip(&direct.device, 1, iterations, direct.args.timeout, flag, direct.proxy())?;
            return Ok(Sample::of(time));
        };
        let (done, posted) = match cards.iter().find(|(other, ..)| *other == case) {
            Some((_, card, table)) => {
                let args = put_args(direct, tuple, memory, table, iterations as u32, case);
                run_queues(direct, tuple, memory, card, args)?
            }
            None => run_ring(direct, tuple, memory, iterations as u32)?,
        };
        Ok(Sample { times: vec![done / iterations as f64], parts: vec![vec![posted / iterations as f64]] })
    }
}

fn skipped(case: DirectCase, tuple: &DirectConfig) -> Option<&'static str> {
    let by_counter = matches!(case, DirectCase::Counter | DirectCase::Vendor);
    (by_counter && tuple.queues != tuple.grid).then_some(
        "a counter does not identify completed requests: requires one queue per block (set --queues to the --grid)",
    )
}

fn stride(tuple: &DirectConfig) -> u32 {
    tuple.bytes.next_multiple_of(64)
}

fn blank(direct: &DirectExperiment, tuple: &DirectConfig, case: &str) -> Row {
    let mut row = Row::new("direct", case, direct.device.name(), "null");
    row.mode = Some(values::name(tuple.mode));
    row.memory = Some("pinned".into());
    row.size_bytes = Some(tuple.bytes.into());
    row.grid = Some(tuple.grid);
    row.block = Some(tuple.block);
    row.set(&QUEUES, tuple.queues).set(&THREADS, direct.args.threads);
    row.set(&DEPTH, direct.args.depth).set(&MAX_BATCH, direct.args.max_batch);
    row
}

/// Starts a software NIC with queues for a case. It moves bytes only if it has regions.
fn card(
    direct: &DirectExperiment,
    tuple: &DirectConfig,
    case: DirectCase,
    regions: Option<Regions>,
) -> Result<(SoftNic, QueueTable), Failure> {
    let by_counter = matches!(case, DirectCase::Counter | DirectCase::Vendor);
    let queue = |_| QueueMemory::new(&direct.device, direct.args.queue(by_counter));
    let queues = (0..tuple.queues).map(queue).collect::<Result<Vec<_>, _>>()?;
    let table = QueueTable::new(&direct.device, &queues)?;
    let options = CardOptions {
        threads: direct.args.threads as usize,
        yields: direct.cores.shared || !direct.is_gpu(),
        faults: direct.args.faults(),
        cores: direct.card_cores(),
        regions,
        ..CardOptions::default()
    };
    // SAFETY: the caller keeps the regions valid for longer than the NIC runs.
    let card = unsafe { SoftNic::start(queues, options) }.map_err(|error| Failure::Run(error.to_string()))?;
    card.rest(true);
    Ok((card, table))
}

/// Runs a verification pass. Returns the number of wrong bytes at the destination.
fn verify(direct: &DirectExperiment, tuple: &DirectConfig, memory: &Memory, case: DirectCase) -> Result<u64, Failure> {
    let bytes = memory.source.bytes();
    memory.destination.write(0, &vec![0xa5u8; bytes])?;
    let region = |buffer: &Buffer| (buffer.address(), bytes as u64);
    let regions = Regions(BTreeMap::from([(KEYS.0, region(&memory.source)), (KEYS.1, region(&memory.destination))]));
    let (card, table) = card(direct, tuple, case, Some(regions))?;
    let args = DirectPutArgs { window: VERIFIED, fill: 1, ..put_args(direct, tuple, memory, &table, VERIFIED, case) };
    run_queues(direct, tuple, memory, &card, args)?;
    let mut found = vec![0u8; bytes];
    memory.destination.read(0, &mut found)?;
    let slots = u64::from(tuple.grid) * u64::from(tuple.block) * u64::from(VERIFIED);
    let wrong = |slot: u64| {
        let offset = slot * u64::from(stride(tuple));
        let seed = slot_seed(args.seed, offset);
        let differs = |byte: &u64| found[(offset + byte) as usize] != pattern::byte(seed, *byte);
        (0..u64::from(tuple.bytes)).filter(differs).count() as u64
    };
    Ok((0..slots).map(wrong).sum())
}

fn put_args(
    direct: &DirectExperiment,
    tuple: &DirectConfig,
    memory: &Memory,
    table: &QueueTable,
    iterations: u32,
    case: DirectCase,
) -> DirectPutArgs {
    let back_at = direct.args.back_at();
    DirectPutArgs {
        queues: table.pointer(),
        queue_count: tuple.queues,
        iterations,
        quiet_every: u32::from(tuple.mode == DirectMode::Quiet),
        window: 1,
        bytes: tuple.bytes,
        stride: stride(tuple),
        fill: 0,
        seed: 1,
        counter_alone: u32::from(case == DirectCase::Vendor),
        back_at,
        to: To { handle: 1, pair: 2, key: 3 },
        local_key: KEYS.0,
        key: KEYS.1,
        source: memory.source.address(),
        destination: memory.destination.address(),
        results: memory.results.pointer(),
    }
}

/// Runs one launch over the NIC's queues. Returns the microseconds until all puts have completed, and until all were
/// posted.
fn run_queues(
    direct: &DirectExperiment,
    tuple: &DirectConfig,
    memory: &Memory,
    card: &SoftNic,
    args: DirectPutArgs,
) -> Result<(f64, f64), Failure> {
    card.rest(false);
    // SAFETY: all memory that the arguments point to outlives the launch, which ends in this function.
    let launch = unsafe { direct.device.launch(&DIRECT_PUT, tuple.grid, tuple.block, args) }?;
    let ended = launch.wait(|| {
        if signals::interrupted() {
            card.queues().iter().try_for_each(|queue| queue.abort(DeviceStatus::ENDED.0))?;
            return Err(Failure::Interrupted);
        }
        Ok(())
    });
    card.rest(true);
    ended?;
    let blocks = results(memory, tuple)?;
    let Some(stop) = blocks.iter().map(|block| block.stop).find(|stop| *stop != 0) else { return Ok(elapsed(&blocks)) };
    let told = blocks.iter().filter(|block| block.stop != 0).count();
    let failures = card.queues().iter().enumerate().filter_map(|(index, queue)| match queue.failure() {
        Ok(None) => None,
        Ok(Some(failure)) => Some(Ok((index, failure))),
        Err(error) => Some(Err(error)),
    });
    let failures = failures.collect::<Result<Vec<(usize, QueueFailure)>, DeviceError>>()?;
    let mut named: Vec<String> = failures.iter().map(|(index, failure)| format!("queue {index}: {failure}")).collect();
    let card_says = card.wrong().enumerate().filter_map(|(index, wrong)| Some((index, wrong?)));
    named.extend(card_says.map(|(index, wrong)| format!("the NIC of queue {index}: {wrong}")));
    let text = format!(
        "the kernel ended early ({} B, {} x {}; {told} of {} blocks): {}: {}",
        tuple.bytes,
        tuple.grid,
        tuple.block,
        blocks.len(),
        DeviceStatus(stop).text(),
        if named.is_empty() { "no cause is known: it waits only for a counter".into() } else { named.join("; ") }
    );
    Err(if DeviceStatus(stop) == DeviceStatus::DEADLINE { Failure::Timeout(text) } else { Failure::Run(text) })
}

/// Runs the same puts through ring and proxy.
fn run_ring(
    direct: &DirectExperiment,
    tuple: &DirectConfig,
    memory: &Memory,
    iterations: u32,
) -> Result<(f64, f64), Failure> {
    let Some(group) = &direct.group else { return Err(Failure::Run("no proxy was started".into())) };
    let args = PutArgs {
        rings: group.table().pointer(),
        ring_count: group.table().count(),
        scope: SCOPE_THREAD,
        source: memory.source.pointer(),
        source_region: 0,
        destination_region: 1,
        peer: 0,
        rank: 0,
        bytes: tuple.bytes.into(),
        stride: stride(tuple).into(),
        window: 1,
        iterations,
        first_iteration: 0,
        quiet_every: u32::from(tuple.mode == DirectMode::Quiet),
        fill: 0,
        ahead: 1,
        tickets: memory.tickets.pointer(),
        results: memory.results.pointer(),
    };
    // SAFETY: all memory that the arguments point to outlives the launch, and the proxies' regions have the same size.
    let launch = unsafe { direct.device.launch(&PUT_KERNEL, tuple.grid, tuple.block, args) }?;
    launch.wait(|| {
        if signals::interrupted() {
            group.stop();
            return Err(Failure::Interrupted);
        }
        Ok(())
    })?;
    let blocks = results(memory, tuple)?;
    match blocks.iter().map(|block| block.stop).find(|stop| *stop != 0) {
        None => Ok(elapsed(&blocks)),
        Some(stop) => Err(Failure::Run(format!(
            "ring and proxy failed: {}; {}",
            DeviceStatus(stop).text(),
            group.ring_states().join("; ")
        ))),
    }
}

fn results(memory: &Memory, tuple: &DirectConfig) -> Result<Vec<BlockResult>, Failure> {
    let mut blocks = vec![BlockResult::default(); tuple.grid as usize];
    memory.results.read(0, &mut blocks)?;
    Ok(blocks)
}

fn elapsed(blocks: &[BlockResult]) -> (f64, f64) {
    let started = blocks.iter().map(|block| block.started).min().unwrap_or_default();
    let latest = |time: fn(&BlockResult) -> u64| blocks.iter().map(time).max().unwrap_or_default();
    let micros = |time: u64| time.saturating_sub(started) as f64 / 1000.0;
    (micros(latest(|block| block.done)), micros(latest(|block| block.posted)))
}

/// Returns the maximum number of bytes of a source, which is the size of the proxies' regions.
pub fn most_bytes(args: &DirectArgs) -> u64 {
    let bytes = |tuple: &DirectConfig| {
        u64::from(tuple.grid) * u64::from(tuple.block) * u64::from(VERIFIED) * u64::from(stride(tuple))
    };
    args.tuples().iter().map(bytes).max().unwrap_or(64)
}
