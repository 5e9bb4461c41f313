//! Measurement of one parameter combination: a check of the result and of the bytes per path, and operations of both
//! implementations.

use super::args::{ChunkRoute, CollectiveArgs, CollectiveConfig, CollectiveMode, Side, StartMethod};
use super::gate::{Gate, Turns};
use super::ours::{Ours, Prepared};
use super::pattern::{NEGATIVE, OTHER, POISON, Pattern, PatternCheck};
use super::shape::{CollectiveOperation, Shape, Wires};
use super::theirs::{NcclWindows, Theirs, call};
use super::{
    ALGBW, ELEMENT, HEARD, LAUNCH, NODES, NVLINK_BYTES, OPERATION, OVERLAP, PLACE, PROTOCOL, PUT_US, PUTS, REDOP, ROOT,
};
use crate::columns::{BUSBW, CEILING, CEILING_PCT, PACKET, PROXIES, RAIL_BYTES, ROUTE, SCOPE};
use crate::error::Failure;
use crate::nccl_baseline::Communicator;
use crate::random::Ratios;
use crate::runner::Rows;
use crate::series::{Bench, CaseResults, Sample, SeriesOptions};
use crate::values;
use crate::world::{self, CallScope};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Stream;
use ginlab::gin::Sym;
use ginlab::report::{Row, RowStatus};
use serde::{Deserialize, Serialize};

/// Maximum size for which consecutive operations are checked (`check_turns`). The check detects missing waits, which do
/// not depend on the size. Larger sizes are skipped because generating and comparing their data takes long.
const TURNS_UP_TO: u64 = 1 << 20;

/// State of one rank. Fields are dropped in order: NCCL's operations must end before the memory is freed.
pub struct Collectives {
    pub args: CollectiveArgs,
    /// NCCL, or the reason why it is not available. `None` if no parameter combination uses it.
    pub nccl: Option<Result<Communicator, String>>,
    /// Memory registered with NCCL, or the reason why there is none. `None` if no parameter combination uses it.
    pub registered: Option<Result<NcclWindows, String>>,
    pub stream: Stream,
    pub gate: Gate,
    pub ours: Ours,
    pub wires: Wires,
    /// Whether this device's streams can overlap grids.
    pub overlaps: bool,
    /// Number of parameter combinations so far. Selects the numbers of the pattern.
    pub run: u32,
    /// NCCL rows that have been printed. They do not depend on the parameters of ginlab's kernels, so each is printed
    /// only once.
    pub given: Vec<CollectiveConfig>,
    /// Ratios to NCCL.
    pub ratios: Ratios,
}

/// An operation of one implementation on one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CollectiveOutcome {
    heard: Option<u64>,
    /// Bytes that one operation moves over mappings.
    pub mapped: u64,
    /// Bytes that one operation moves over each rail.
    pub rails: Vec<u64>,
    puts: u64,
}

/// The implementations of a parameter combination.
struct Sides<'a> {
    all: &'a mut Collectives,
    tuple: &'a CollectiveConfig,
    /// Ranks whose numbers are summed first.
    local: u64,
    pattern: Pattern,
    /// Warm-up and timed operations of a repeat.
    counts: [u32; 2],
    prepared: Option<Prepared>,
    /// Memory of NCCL's operations.
    memory: Option<(Sym<u8>, Sym<u8>)>,
    /// Operations of each side, recorded in its first repeat.
    turns: [Option<[Turns; 2]>; 3],
    outcomes: [CollectiveOutcome; 3],
}

impl Collectives {
    pub async fn measure(&mut self, tuple: &CollectiveConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.run += 1;
        let shape = tuple.shape(ranks.size() as u64);
        let iterations = (self.args.volume / shape.bytes.max(1)).clamp(1, self.args.iterations.into()) as u32;
        let prepared = if tuple.ours { Some(self.ours.prepare(tuple, &shape, ranks)?) } else { None };
        let (prepared, refused) = match prepared.transpose() {
            Ok(prepared) => (prepared, None),
            Err(why) => (None, Some(why)),
        };
        let memory = self.ours.memory(tuple.place, &shape);
        let no_place = || format!("{} does not support --place in-place", shape.operation.name());
        let missing = match &self.nccl {
            Some(Err(why)) => Some(why.clone()),
            _ => memory.is_none().then(no_place),
        };
        let no_window = self.registered.as_ref().and_then(|registered| registered.as_ref().err().cloned());
        let missing = [missing.clone(), missing.or(no_window)];
        // Messages are summed in the order of all ranks.
        let flat = prepared.as_ref().is_some_and(|prepared| prepared.by_messages);
        let local = if flat { shape.ranks } else { u64::from(self.ours.local) };
        let pattern = Pattern::new(tuple.element, shape, local, u64::from(self.args.root), self.run);
        let our_row = self.our_row(tuple, &shape, prepared.as_ref());
        let theirs = [(tuple.nccl, Side::Theirs), (tuple.window, Side::Window)];
        let theirs = theirs.into_iter().zip(missing).filter(|((chosen, _), _)| *chosen);
        let theirs: Vec<(Side, Option<String>)> = theirs.map(|((_, side), missing)| (side, missing)).collect();
        let measurable = theirs.iter().filter(|(_, missing)| missing.is_none()).map(|(side, _)| *side);
        let cases: Vec<Side> = prepared.iter().map(|_| Side::Ours).chain(measurable).collect();
        // The pass that counts bytes and puts runs even if results are not verified.
        let series = SeriesOptions { check: true, ..self.args.repeat.series("a repeat") };
        let counts = [self.args.warmup.min(iterations.max(1)), iterations];
        let (turns, outcomes) = (Default::default(), Default::default());
        let mut sides = Sides { all: self, tuple, local, pattern, counts, prepared, memory, turns, outcomes };
        let results = series.measure(&mut sides, &cases, ranks).await?;
        let outcomes = ranks.gather_values(&sides.outcomes, "bytes and puts")?;
        let (Some(results), Some(outcomes)) = (results, outcomes) else { return Ok(Rows::new()) };
        let of = |side: Side| outcomes.iter().map(|all: &[CollectiveOutcome; 3]| all[side as usize].clone()).collect();
        let all_ours: Vec<CollectiveOutcome> = of(Side::Ours);
        let filled = |mut row: Row, missing: Option<String>, side: Side, all: &[CollectiveOutcome]| {
            match missing {
                Some(why) => row.status = RowStatus::Skipped(why),
                None => self.fill(&mut row, &shape, all, results.of(side), iterations),
            }
            (row, results.of(side).times())
        };
        // A persistent kernel is compared with NCCL in a graph. That row is printed once for all parameters of ginlab's
        // kernels.
        let launch = if tuple.launch == StartMethod::Persistent { StartMethod::Graph } else { tuple.launch };
        let (mode, scope, route) = (CollectiveMode::Nbi, CallScope::Block, ChunkRoute::Direct);
        let one =
            CollectiveConfig { ours: false, launch, overlap: true, mode, scope, route, packet: 0, grid: 0, ..*tuple };
        let their_rows = theirs.into_iter().map(|(side, missing)| {
            let (nccl, window) = (side == Side::Theirs, side == Side::Window);
            let blank = self.row(&one, &shape, if window { "nccl-window" } else { "nccl" }, "nccl");
            (CollectiveConfig { nccl, window, ..one }, filled(blank, missing, side, &of(side)))
        });
        let their_rows: Vec<(CollectiveConfig, (Row, Vec<f64>))> = their_rows.collect();
        let mut rows = Rows::new();
        if tuple.ours {
            let (mut row, times) = filled(our_row, refused, Side::Ours, &all_ours);
            let sums = self.sums(&row, &all_ours, results.of(Side::Ours), ranks);
            // Registered memory only counts if plain memory is not measured.
            let first = their_rows.first().map(|(_, row)| row);
            if let Some((their_row, their_times)) = first.filter(|(row, _)| row.status == RowStatus::Ok) {
                row.against(their_row, &times, their_times);
                let ratio = row.baseline_ratio.unwrap_or(0.0);
                let (operation, element) = (tuple.operation.name(), values::name(tuple.element));
                self.ratios.add(ratio, format!("{operation} {element} {} B, {} ranks", shape.bytes, shape.ranks));
            }
            rows.push((row, times));
            rows.extend(sums);
        }
        for (one, row) in their_rows {
            if !self.given.contains(&one) {
                self.given.push(one);
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// Runs a few operations with these parameters, from known numbers into poisoned memory, and checks the result.
    /// Records the bytes and puts per operation.
    fn check_ours(
        &mut self,
        prepared: &Prepared,
        tuple: &CollectiveConfig,
        pattern: &Pattern,
        outcome: &mut CollectiveOutcome,
        ranks: &mut Bootstrap,
    ) -> Result<Option<PatternCheck>, Failure> {
        let turns = pattern.shape.repeatable(tuple.place);
        let (count, each) = if tuple.launch == StartMethod::Persistent { (1, turns) } else { (turns, 1) };
        let append = |stream: &Stream| self.ours.append(prepared, stream, 0, each);
        let work = Turns::new(&self.stream, tuple.launch == StartMethod::Graph, count, &append)?;
        self.give(pattern, prepared.from, prepared.to)?;
        let before = self.ours.moved()?;
        self.ours.world.prepare()?;
        ranks.barrier("a check")?;
        work.run(&self.stream, &append)?;
        let event = self.stream.event()?;
        self.ours.world.wait_until(ranks, prepared.kernel.name(), || event.is_complete())?;
        let after = self.ours.moved()?;
        let each = |after: u64, before: u64| (after - before) / u64::from(turns);
        outcome.mapped = each(after.mapped, before.mapped);
        outcome.puts = each(after.puts, before.puts);
        outcome.rails = after.rails.iter().zip(&before.rails).map(|(after, before)| each(*after, *before)).collect();
        self.look(pattern, prepared.to, true)
    }

    /// Runs consecutive operations, each on different numbers. They are not separated by barriers, because each
    /// operation waits until all ranks have started it. After its kernel has ended, a rank immediately reads its result
    /// and writes the next numbers. Returns the number of wrong numbers.
    fn check_turns(
        &mut self,
        prepared: &Prepared,
        patterns: &[Pattern],
        ranks: &mut Bootstrap,
    ) -> Result<u64, Failure> {
        self.ours.world.prepare()?;
        ranks.barrier("a check of alternating launches")?;
        let mut wrong = 0;
        for pattern in patterns {
            self.give(pattern, prepared.from, prepared.to)?;
            self.ours.append(prepared, &self.stream, 0, 1)?;
            let event = self.stream.event()?;
            self.ours.world.wait_until(ranks, prepared.kernel.name(), || event.is_complete())?;
            wrong += pattern.check(u64::from(self.ours.world.my_pe()), &self.ours.world.read(prepared.to)?, true).wrong;
        }
        ranks.barrier("results seen")?;
        Ok(wrong)
    }

    /// Poisons the output, then writes this rank's input, if the result is checked. In place, the input is part of the
    /// output.
    fn give(&self, pattern: &Pattern, from: Sym<u8>, to: Sym<u8>) -> Result<(), Failure> {
        if self.args.repeat.no_check {
            return Ok(());
        }
        let world = &self.ours.world;
        world.write(to, &vec![POISON; to.len() as usize])?;
        Ok(world.write(from, &pattern.input(u64::from(world.my_pe())))?)
    }

    /// Checks this rank's output, unless verification is disabled.
    fn look(&self, pattern: &Pattern, to: Sym<u8>, exactly: bool) -> Result<Option<PatternCheck>, Failure> {
        let world = &self.ours.world;
        let found = || Ok(pattern.check(u64::from(world.my_pe()), &world.read(to)?, exactly));
        (!self.args.repeat.no_check).then(found).transpose()
    }

    /// Returns the addresses of an NCCL operation's operands, in the heap or in registered memory.
    fn operands(&self, side: Side, memory: Option<(Sym<u8>, Sym<u8>)>) -> Option<[u64; 2]> {
        let (from, to) = memory?;
        match (side, &self.registered) {
            (Side::Theirs, _) => Some([from, to].map(|operand| self.ours.world.description().local(operand) as u64)),
            (Side::Window, Some(Ok(registered))) => Some([from, to].map(|operand| registered.address(operand))),
            _ => None,
        }
    }

    /// Copies operands from the heap to registered memory or, unless `into`, back. Other sides use the heap.
    fn copy(&self, side: Side, operands: &[Sym<u8>], into: bool, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let (Side::Window, Some(Ok(registered))) = (side, &self.registered) else { return Ok(()) };
        for &operand in operands {
            let (heap, window) = (self.ours.world.description().local(operand) as u64, registered.address(operand));
            let (to, from) = if into { (window, heap) } else { (heap, window) };
            // SAFETY: both ranges have the operand's length, and no operation uses them until the stream is waited for.
            unsafe { self.stream.copy(to, from, operand.bytes()) }?;
        }
        self.ours.world.wait_for_stream(ranks, "copying operands", &self.stream)?;
        Ok(())
    }

    /// Creates a row with the columns that both implementations share, known before the measurement.
    fn row(&self, tuple: &CollectiveConfig, shape: &Shape, side: &str, fabric: &str) -> Row {
        let world = &self.ours.world;
        let case = format!("{side}-{}", shape.operation.name());
        let mut row = self.ours.agreed.row("collective", case, world);
        row.fabric = fabric.into();
        row.size_bytes = Some(shape.bytes);
        row.set(&OPERATION, shape.operation.name());
        row.set(&ELEMENT, values::name(tuple.element)).set(&PLACE, values::name(tuple.place));
        row.set(&REDOP, shape.operation.sums().then_some("sum"));
        row.set(&ROOT, (shape.operation == CollectiveOperation::Broadcast).then_some(self.args.root));
        row.set(&LAUNCH, values::name(tuple.launch));
        row
    }

    fn our_row(&self, tuple: &CollectiveConfig, shape: &Shape, prepared: Option<&Prepared>) -> Row {
        let mut row = self.row(tuple, shape, "gin", &self.ours.agreed.fabric);
        row.mode = Some(values::name(tuple.mode));
        row.set(&SCOPE, values::name(tuple.scope));
        if tuple.launch != StartMethod::Persistent {
            let early = prepared.map_or(tuple.overlap, |prepared| prepared.early);
            row.set(&OVERLAP, if early && self.overlaps { "yes" } else { "no" });
        }
        if let Some(prepared) = prepared {
            (row.grid, row.block) = (Some(prepared.grid), Some(prepared.block));
            let protocol = match (prepared.by_messages, prepared.by_stores) {
                (true, _) => "messages",
                (_, true) => "stores",
                _ => "puts",
            };
            row.set(&PROTOCOL, protocol);
        }
        row.set(&PACKET, (tuple.packet > 0).then_some(tuple.packet));
        if self.ours.local < self.ours.world.n_pes() {
            self.args.world.name_rails(&mut row);
            row.set(&ROUTE, (tuple.operation == CollectiveOperation::AllToAll).then(|| values::name(tuple.route)));
            row.set(&PROXIES, self.args.world.proxy_threads as u64);
        }
        row.set(&NODES, u64::from(self.ours.world.n_pes() / self.ours.local));
        row
    }

    fn fill(
        &self,
        row: &mut Row,
        shape: &Shape,
        outcomes: &[CollectiveOutcome],
        measured: &CaseResults,
        iterations: u32,
    ) {
        row.iterations = Some(u64::from(iterations));
        measured.fill(row, shape.bytes, 1);
        let algbw = row.bandwidth_gbytes_s;
        let busbw = algbw.map(|algbw| algbw * shape.operation.factor(shape.ranks));
        row.set(&ALGBW, algbw).set(&BUSBW, busbw);
        let ceiling = self.wires.ceiling(shape.operation, shape.ranks);
        let percent = busbw.zip(ceiling).map(|(busbw, ceiling)| 100.0 * busbw / ceiling);
        row.set(&CEILING, ceiling).set(&CEILING_PCT, percent);
        if percent.is_some_and(|percent| percent > 100.0) {
            row.doubt("exceeds the bandwidth of the wires".into());
        }
        row.set(&HEARD, outcomes.iter().map(|outcome| outcome.heard).min().flatten());
        if row.case.starts_with("gin-") {
            // Number of puts of the rank that issues the most, for example the root of a broadcast.
            let puts = outcomes.iter().map(|outcome| outcome.puts).max().unwrap_or(0);
            let each = row.time_us_p50.filter(|_| puts > 0).map(|time| time / puts as f64);
            row.set(&PUTS, puts).set(&PUT_US, each);
            row.set(&NVLINK_BYTES, outcomes.iter().map(|outcome| outcome.mapped).sum::<u64>());
            let rails = outcomes.iter().map(|outcome| outcome.rails.len()).max().unwrap_or(0);
            let of = |rail: usize| outcomes.iter().filter_map(|outcome| outcome.rails.get(rail)).sum::<u64>();
            row.set(&RAIL_BYTES, (rails > 0).then(|| (0..rails).map(of).collect::<Vec<u64>>()));
        }
    }
}

impl Bench for Sides<'_> {
    type Case = Side;

    /// This pass runs even if results are not compared: NCCL connects its ranks in the first operation, which must not
    /// be recorded.
    async fn verify(&mut self, case: Side, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        let Sides { all, tuple, local, pattern, prepared, memory, outcomes, .. } = self;
        let (shape, outcome) = (pattern.shape, &mut outcomes[case as usize]);
        let mut wrong = 0;
        let found = match (case, prepared, *memory) {
            (Side::Ours, Some(prepared), _) => {
                if !all.args.repeat.no_check && shape.bytes <= TURNS_UP_TO {
                    let of = |run| Pattern::new(tuple.element, shape, *local, all.args.root.into(), run);
                    // An inbox has two slots. If a number does not arrive in the third operation, its slot still
                    // contains the negated number of the first one.
                    let patterns = [all.run, all.run | OTHER, all.run | NEGATIVE].map(of);
                    wrong = all.check_turns(prepared, &patterns, ranks)?;
                }
                all.check_ours(prepared, tuple, pattern, outcome, ranks)?
            }
            (Side::Theirs | Side::Window, _, Some((from, to))) => {
                all.give(pattern, from, to)?;
                all.copy(case, &[to, from], true, ranks)?;
                let operands = all.operands(case, *memory);
                let Collectives { args, nccl, stream, .. } = &mut **all;
                if let Some(mut side) = side(nccl, args, tuple, &shape, operands) {
                    ranks.barrier("a check")?;
                    side.append(stream)?;
                    let event = stream.event()?;
                    side.wait(&event, ranks)?;
                }
                all.copy(case, &[to], false, ranks)?;
                // NCCL computes sums in its own order, which may differ. Only results without sums must match exactly.
                all.look(pattern, to, !tuple.operation.sums())?
            }
            _ => None,
        };
        outcome.heard = found.as_ref().and_then(|found| found.heard);
        Ok(found.map(|found| (found.wrong + wrong) * tuple.element.bytes()))
    }

    fn prepare(&mut self, _: Side) -> Result<(), Failure> {
        Ok(self.all.ours.world.prepare()?)
    }

    async fn run(&mut self, case: Side, _: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        let Sides { all, tuple, pattern, counts: [warmup, count], prepared, memory, turns, .. } = self;
        if let (Side::Ours, StartMethod::Persistent, Some(prepared)) = (case, tuple.launch, &prepared) {
            let Collectives { stream, ours, .. } = &mut **all;
            ours.append(prepared, stream, *warmup, *count)?;
            let event = stream.event()?;
            ours.world.wait_until(ranks, prepared.kernel.name(), || event.is_complete())?;
            return Ok(Sample::of(world::stamped_us(&ours.times, prepared.grid)? / f64::from(*count)));
        }
        let operands = all.operands(case, *memory);
        let Collectives { args, nccl, stream, gate, ours, .. } = &mut **all;
        let mut theirs = side(nccl, args, tuple, &pattern.shape, operands);
        let append = |stream: &Stream| match (&theirs, &*prepared) {
            (Some(theirs), _) => theirs.append(stream),
            (None, Some(prepared)) => ours.append(prepared, stream, 0, 1),
            (None, None) => Ok(()),
        };
        let turns = match &mut turns[case as usize] {
            Some(turns) => turns,
            // NCCL has no persistent kernel, so a persistent kernel is compared with NCCL in a graph.
            none => {
                let record = |count: &u32| Turns::new(stream, tuple.launch != StartMethod::Stream, *count, &append);
                none.insert([record(warmup)?, record(count)?])
            }
        };
        let [begin, end] = gate.around(stream, &ours.world, turns, &append)?;
        match (&mut theirs, &*prepared) {
            (Some(theirs), _) => theirs.wait(&end, ranks)?,
            (None, Some(prepared)) => ours.world.wait_until(ranks, prepared.kernel.name(), || end.is_complete())?,
            (None, None) => {}
        }
        Ok(Sample::of(end.since_us(&begin)? / f64::from(*count)))
    }
}

fn side<'a>(
    nccl: &'a mut Option<Result<Communicator, String>>,
    args: &CollectiveArgs,
    tuple: &CollectiveConfig,
    shape: &Shape,
    operands: Option<[u64; 2]>,
) -> Option<Theirs<'a>> {
    let (Some(Ok(communicator)), Some([from, to])) = (nccl, operands) else { return None };
    let (operation, call) = (tuple.operation, call(tuple, shape, from, to));
    Some(Theirs { communicator, operation, call, root: args.root as usize, limit: args.world.meet.timeout })
}
