//! Measurement of one tuple: first a check of the result and of the bytes per path, then both implementations,
//! alternating repeat by repeat.

use super::args::{Args, Launch, Mode, Route, Tuple};
use super::gate::{Gate, Turns};
use super::ours::{Ours, Prepared};
use super::pattern::{Found, NEGATIVE, OTHER, POISON, Pattern};
use super::shape::{Operation, Shape, Wires};
use super::theirs::{Theirs, call};
use super::{
    ALGBW, ELEMENT, HEARD, LAUNCH, NODES, NVLINK_BYTES, OPERATION, OVERLAP, PLACE, PROTOCOL, PUT_US, PUTS, REDOP, ROOT,
};
use crate::columns::{BUSBW, CEILING, CEILING_PCT, PACKET, PROXIES, RAIL_BYTES, ROUTE, SCOPE};
use crate::error::Failure;
use crate::nccl_baseline::Communicator;
use crate::random::Ratios;
use crate::runner::{Rows, slowest};
use crate::values;
use crate::world::{self, Scope};
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::Stream;
use ginlab::gin::{Sym, World};
use ginlab::report::{Row, Status};
use serde::{Deserialize, Serialize};

/// Maximum size for which consecutive operations are checked (`check_turns`). The check detects missing waits, which do
/// not depend on the size, and generating and comparing the data takes long.
const TURNS_UP_TO: u64 = 1 << 20;

/// State of one rank. Fields are dropped in order: NCCL's operations must end before the memory is freed.
pub struct Collectives {
    pub args: Args,
    /// NCCL, or the reason for which it is not available. `None` if no tuple uses it.
    pub nccl: Option<Result<Communicator, String>>,
    pub stream: Stream,
    pub gate: Gate,
    pub ours: Ours,
    pub wires: Wires,
    /// Whether this device's streams can overlap grids.
    pub overlaps: bool,
    /// Number of tuples so far. Selects the numbers of the pattern.
    pub run: u32,
    /// NCCL rows that have been printed. They do not depend on the parameters of ginlab's kernels, so that each is
    /// printed once.
    pub given: Vec<Tuple>,
    /// Ratios to NCCL.
    pub ratios: Ratios,
}

/// Results of one implementation on one rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Microseconds per operation, by repeat.
    pub times: Vec<f64>,
    wrong: Option<u64>,
    heard: Option<u64>,
    /// Bytes that one operation moves over mappings.
    pub mapped: u64,
    /// Bytes that one operation moves over each rail.
    pub rails: Vec<u64>,
    puts: u64,
}

impl Collectives {
    pub fn measure(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.run += 1;
        let shape = tuple.shape(ranks.size() as u64);
        let iterations = (self.args.volume / shape.bytes.max(1)).clamp(1, self.args.iterations.into()) as u32;
        let prepared = if tuple.ours { Some(self.ours.prepare(tuple, &shape, ranks)?) } else { None };
        let (prepared, refused) = match prepared.transpose() {
            Ok(prepared) => (prepared, None),
            Err(why) => (None, Some(why)),
        };
        let memory = self.ours.memory(tuple.place, &shape);
        let theirs_missing = match &self.nccl {
            Some(Err(why)) if tuple.nccl => Some(why.clone()),
            _ if tuple.nccl && memory.is_none() => {
                Some(format!("{} does not support --place in-place", shape.operation.name()))
            }
            _ => None,
        };
        let their_memory = memory.filter(|_| tuple.nccl && theirs_missing.is_none());
        let (mut ours, mut theirs) = (Outcome::default(), Outcome::default());
        // Messages are summed in the order of all ranks.
        let flat = prepared.as_ref().is_some_and(|prepared| prepared.by_messages);
        let local = if flat { shape.ranks } else { u64::from(self.ours.local) };
        let pattern = Pattern::new(tuple.element, shape, local, u64::from(self.args.root), self.run);
        if let Some(prepared) = &prepared {
            let mut wrong = 0;
            if !self.args.repeat.no_check && shape.bytes <= TURNS_UP_TO {
                let of = |run| Pattern::new(tuple.element, shape, local, u64::from(self.args.root), run);
                // An inbox has two slots. The third operation therefore finds the negated numbers of the first one in
                // its slot if a number does not arrive.
                let patterns = [of(self.run), of(self.run | OTHER), of(self.run | NEGATIVE)];
                wrong = self.check_turns(prepared, &patterns, ranks)?;
            }
            self.check_ours(prepared, tuple, &pattern, &mut ours, ranks)?;
            ours.wrong = ours.wrong.map(|found| found + wrong);
        }
        if let Some(memory) = their_memory.filter(|_| !self.args.repeat.no_check) {
            self.check_theirs(tuple, &pattern, memory, &mut theirs, ranks)?;
        }
        let warmup = self.args.warmup.min(iterations.max(1));
        let (mut our_turns, mut their_turns) = (None, None);
        if let Some(prepared) = &prepared {
            let append = |stream: &Stream| self.ours.append(prepared, stream, 0, 1);
            let turns = |count| Turns::new(&self.stream, tuple.launch == Launch::Graph, count, &append);
            our_turns = Some([turns(warmup)?, turns(iterations)?]);
        }
        for _ in 0..self.args.repeat.repeats {
            if let (Some(prepared), Some(turns)) = (&prepared, &our_turns) {
                ours.times.push(self.ours_once(prepared, turns, tuple.launch, ranks)?);
            }
            if let Some(memory) = their_memory
                && let Some(mut side) = side(&mut self.nccl, &self.args, &self.ours.world, tuple, &shape, memory)
            {
                if their_turns.is_none() {
                    // NCCL connects its ranks in the first operation, which must not be recorded.
                    ranks.barrier("NCCL's first operation")?;
                    side.append(&self.stream)?;
                    let event = self.stream.event()?;
                    side.wait(&event, ranks)?;
                    let append = |stream: &Stream| side.append(stream);
                    // NCCL has no persistent kernel; a persistent kernel is compared with NCCL in a graph.
                    let turns = |count| Turns::new(&self.stream, tuple.launch != Launch::Stream, count, &append);
                    their_turns = Some([turns(warmup)?, turns(iterations)?]);
                }
                let Some(turns) = &their_turns else { continue };
                ranks.barrier("a repeat")?;
                let append = |stream: &Stream| side.append(stream);
                let [begin, end] = self.gate.around(&self.stream, &self.ours.world, turns, &append)?;
                side.wait(&end, ranks)?;
                theirs.times.push(end.since_us(&begin)? / f64::from(iterations));
            }
        }
        let Some(all) = ranks.gather_values(&(ours, theirs), "times")? else { return Ok(Rows::new()) };
        let (all_ours, all_theirs): (Vec<Outcome>, Vec<Outcome>) = all.into_iter().unzip();
        let filled = |mut row: Row, missing: Option<String>, all: &[Outcome]| {
            let times = slowest(all, |outcome| &outcome.times);
            match missing {
                Some(why) => row.status = Status::Skipped(why),
                None => self.fill(&mut row, &shape, all, &times, iterations),
            }
            (row, times)
        };
        // A persistent kernel is compared with NCCL in a graph. That row is printed once for all parameters of ginlab's
        // kernels.
        let launch = if tuple.launch == Launch::Persistent { Launch::Graph } else { tuple.launch };
        let (mode, scope, route) = (Mode::Nbi, Scope::Block, Route::Direct);
        let one = Tuple { ours: false, launch, overlap: true, mode, scope, route, packet: 0, grid: 0, ..*tuple };
        let their_row = tuple.nccl.then(|| filled(self.row(&one, &shape, "nccl", "nccl"), theirs_missing, &all_theirs));
        let mut rows = Rows::new();
        if tuple.ours {
            let (mut row, times) = filled(self.our_row(tuple, &shape, prepared.as_ref()), refused, &all_ours);
            let sums = self.sums(&row, &all_ours, ranks);
            if let Some((their_row, their_times)) = their_row.as_ref().filter(|(row, _)| row.status == Status::Ok) {
                row.against(their_row, &times, their_times);
                let ratio = row.baseline_ratio.unwrap_or(0.0);
                let (operation, element) = (tuple.operation.name(), values::name(tuple.element));
                self.ratios.add(ratio, format!("{operation} {element} {} B, {} ranks", shape.bytes, shape.ranks));
            }
            rows.push((row, times));
            rows.extend(sums);
        }
        if let Some(their_row) = their_row
            && !self.given.contains(&one)
        {
            self.given.push(one);
            rows.push(their_row);
        }
        Ok(rows)
    }

    /// Measures one repeat of ginlab's operation. Returns the microseconds per operation.
    fn ours_once(
        &mut self,
        prepared: &Prepared,
        turns: &[Turns; 2],
        launch: Launch,
        ranks: &mut Bootstrap,
    ) -> Result<f64, Failure> {
        self.ours.world.prepare()?;
        ranks.barrier("a repeat")?;
        let [warmup, iterations] = turns.each_ref().map(|turns| turns.count);
        if launch == Launch::Persistent {
            self.ours.append(prepared, &self.stream, warmup, iterations)?;
            let event = self.stream.event()?;
            self.ours.world.wait_until(ranks, prepared.kernel.name(), || event.is_complete())?;
            return Ok(world::stamped_us(&self.ours.times, prepared.grid)? / f64::from(iterations));
        }
        let append = |stream: &Stream| self.ours.append(prepared, stream, 0, 1);
        let [begin, end] = self.gate.around(&self.stream, &self.ours.world, turns, &append)?;
        self.ours.world.wait_until(ranks, prepared.kernel.name(), || end.is_complete())?;
        Ok(end.since_us(&begin)? / f64::from(iterations))
    }

    /// Runs a few operations with the tuple's parameters, from known numbers into poisoned memory, and checks the
    /// result. Records the bytes and puts per operation.
    fn check_ours(
        &mut self,
        prepared: &Prepared,
        tuple: &Tuple,
        pattern: &Pattern,
        outcome: &mut Outcome,
        ranks: &mut Bootstrap,
    ) -> Result<(), Failure> {
        let turns = pattern.shape.repeatable(tuple.place);
        let (count, each) = if tuple.launch == Launch::Persistent { (1, turns) } else { (turns, 1) };
        let append = |stream: &Stream| self.ours.append(prepared, stream, 0, each);
        let work = Turns::new(&self.stream, tuple.launch == Launch::Graph, count, &append)?;
        if !self.args.repeat.no_check {
            self.give(pattern, prepared.from, prepared.to)?;
        }
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
        if !self.args.repeat.no_check {
            self.look(pattern, prepared.to, true, outcome, ranks)?;
        }
        Ok(())
    }

    /// Runs consecutive operations, each on different numbers. They are not separated by barriers, because an operation
    /// itself waits until all ranks have started it. A rank whose kernel has ended immediately reads its result and
    /// writes the next numbers. Returns the number of wrong numbers.
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

    fn check_theirs(
        &mut self,
        tuple: &Tuple,
        pattern: &Pattern,
        (from, to): (Sym<u8>, Sym<u8>),
        outcome: &mut Outcome,
        ranks: &mut Bootstrap,
    ) -> Result<(), Failure> {
        self.give(pattern, from, to)?;
        if let Some(mut side) = side(&mut self.nccl, &self.args, &self.ours.world, tuple, &pattern.shape, (from, to)) {
            ranks.barrier("a check")?;
            side.append(&self.stream)?;
            let event = self.stream.event()?;
            side.wait(&event, ranks)?;
        }
        // NCCL computes sums in its own order, which may differ. Only results without sums must match exactly.
        self.look(pattern, to, !tuple.operation.sums(), outcome, ranks)
    }

    /// Poisons the output, then writes this rank's input. In place, the input is a part of the output.
    fn give(&self, pattern: &Pattern, from: Sym<u8>, to: Sym<u8>) -> Result<(), Failure> {
        let world = &self.ours.world;
        world.write(to, &vec![POISON; to.len() as usize])?;
        Ok(world.write(from, &pattern.input(u64::from(world.my_pe())))?)
    }

    fn look(
        &self,
        pattern: &Pattern,
        to: Sym<u8>,
        exactly: bool,
        outcome: &mut Outcome,
        ranks: &mut Bootstrap,
    ) -> Result<(), Failure> {
        let Found { wrong, heard } =
            pattern.check(u64::from(self.ours.world.my_pe()), &self.ours.world.read(to)?, exactly);
        (outcome.wrong, outcome.heard) = (Some(wrong), heard);
        // No rank may write to this rank's output before the check has ended.
        Ok(ranks.barrier("results seen")?)
    }

    /// Creates a row with the columns that both implementations share, known before the measurement.
    fn row(&self, tuple: &Tuple, shape: &Shape, side: &str, fabric: &str) -> Row {
        let world = &self.ours.world;
        let case = format!("{side}-{}", shape.operation.name());
        let mut row = self.ours.agreed.row("collective", case, world);
        row.fabric = fabric.into();
        row.size_bytes = Some(shape.bytes);
        row.set(&OPERATION, shape.operation.name());
        row.set(&ELEMENT, values::name(tuple.element)).set(&PLACE, values::name(tuple.place));
        row.set(&REDOP, shape.operation.sums().then_some("sum"));
        row.set(&ROOT, (shape.operation == Operation::Broadcast).then_some(self.args.root));
        row.set(&LAUNCH, values::name(tuple.launch));
        row
    }

    fn our_row(&self, tuple: &Tuple, shape: &Shape, prepared: Option<&Prepared>) -> Row {
        let mut row = self.row(tuple, shape, "gin", &self.ours.agreed.fabric);
        row.mode = Some(values::name(tuple.mode));
        row.set(&SCOPE, values::name(tuple.scope));
        if tuple.launch != Launch::Persistent {
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
            row.set(&ROUTE, (tuple.operation == Operation::AllToAll).then(|| values::name(tuple.route)));
            row.set(&PROXIES, self.args.world.proxy_threads as u64);
        }
        row.set(&NODES, u64::from(self.ours.world.n_pes() / self.ours.local));
        row
    }

    fn fill(&self, row: &mut Row, shape: &Shape, outcomes: &[Outcome], times: &[f64], iterations: u32) {
        row.iterations = Some(u64::from(iterations));
        row.times(times).throughput(shape.bytes, 1);
        let algbw = row.bandwidth_gbytes_s;
        let busbw = algbw.map(|algbw| algbw * shape.operation.factor(shape.ranks));
        row.set(&ALGBW, algbw).set(&BUSBW, busbw);
        let ceiling = self.wires.ceiling(shape.operation, shape.ranks);
        let percent = busbw.zip(ceiling).map(|(busbw, ceiling)| 100.0 * busbw / ceiling);
        row.set(&CEILING, ceiling).set(&CEILING_PCT, percent);
        if percent.is_some_and(|percent| percent > 100.0) {
            row.doubt("exceeds the bandwidth of the wires".into());
        }
        row.verified(outcomes.iter().filter_map(|outcome| outcome.wrong).reduce(|a, b| a + b));
        row.set(&HEARD, outcomes.iter().map(|outcome| outcome.heard).min().flatten());
        if row.case.starts_with("gin-") {
            // Puts of the rank that issues the most, for example a broadcast's root.
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

fn side<'a>(
    nccl: &'a mut Option<Result<Communicator, String>>,
    args: &Args,
    world: &World,
    tuple: &Tuple,
    shape: &Shape,
    (from, to): (Sym<u8>, Sym<u8>),
) -> Option<Theirs<'a>> {
    let Some(Ok(communicator)) = nccl else { return None };
    let description = world.description();
    let address = |object: Sym<u8>| description.local(object) as u64;
    Some(Theirs {
        communicator,
        operation: tuple.operation,
        call: call(tuple, shape, address(from), address(to)),
        root: args.root as usize,
        limit: args.world.meet.timeout,
    })
}
