//! Measurement of one parameter combination: writes with a window in flight, the bare loop, and single writes.

use super::WriteConfig;
use super::args::{Targets, WriteArgs};
use crate::columns::{ACK, SLOT_BYTES, WINDOW};
use crate::error::Failure;
use crate::job::Job;
use crate::nodes;
use crate::payload::PayloadSlots;
use crate::rail_rates::{RailPlace, RailRate};
use crate::runner::{Rows, percentiles};
use crate::series::{Bench, CaseResults, Sample};
use crate::values::{self, usage};
use crate::versus;
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::libfabric::BareLoop;
use ginlab::flow::{Operation, Region, Target};
use ginlab::measure::pattern;
use ginlab::pairing::Pairing;
use ginlab::rails::Counters;
use ginlab::report::Row;
use std::cell::Cell;
use std::time::Instant;

/// Immediate that notifies a target that its writer has finished a repeat.
const DONE: u32 = 1;
/// Immediate that notifies a target in a long repeat that its writer is making progress.
const GOES_ON: u32 = 2;
/// Maximum number of writes, and of their bytes, between two checks of the clock.
const LOOK_EVERY: (u64, u64) = (256, 1 << 20);
/// Number of timed single writes, over all repeats.
const SINGLES: u64 = 1000;
/// Part: times of single writes.
const ACKS: usize = 0;

/// A case over one of the providers.
#[derive(Clone, Copy, PartialEq)]
struct WriteCase {
    /// Index of the provider: 0 for --provider, 1 for --versus.
    side: usize,
    kind: Kind,
}

/// Kinds of cases.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Write,
    /// A minimal loop of `fi_write` over one buffer.
    Bare,
    /// Single writes to the first target. Their times are columns of the row of [`Kind::Write`].
    Single,
}

/// Role of this rank in a parameter combination.
pub(super) struct Round<'a> {
    pub(super) tuple: &'a WriteConfig,
    pub(super) targets: Vec<Target>,
    /// Number of ranks that write to this rank.
    writers: u64,
    /// Time of the last notification of the targets.
    told: Cell<Instant>,
}

impl<'a> Round<'a> {
    pub(super) fn new(tuple: &'a WriteConfig, targets: Vec<Target>, writers: u64) -> Round<'a> {
        Round { tuple, targets, writers, told: Cell::new(Instant::now()) }
    }

    /// Starts the deadlines of the targets. All ranks have just met.
    pub(super) fn begin(&self) {
        self.told.set(Instant::now());
    }
}

/// A rank that writes.
pub struct WritingRank {
    pub args: WriteArgs,
    pub job: Job,
    pub source: Region<AnyRail>,
    pub destination: Region<AnyRail>,
    pub pairing: Pairing,
    /// Rails of all ranks, indexed by rank and rail.
    pub places: Vec<Vec<RailPlace>>,
    /// Rates of rails that rank 0 has gathered: all of them with --each-rail, otherwise those of the fastest row over
    /// one rail and of the fastest over several.
    pub rates: Vec<RailRate>,
    /// Number of the next verified pass, so that every pass has a different pattern.
    pub iteration: u32,
    /// Maximum number of rails of the parameter combinations so far.
    pub used_rails: usize,
    /// The same rank over the provider of --versus.
    pub versus: Option<Box<WritingRank>>,
}

impl WritingRank {
    /// Measures a parameter combination. Returns its rows on rank 0, and no rows on other ranks.
    pub async fn measure(&mut self, tuple: &WriteConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let mut versus = self.versus.take();
        let rows = self.measure_sides(versus.as_deref_mut(), tuple, ranks).await;
        self.versus = versus;
        rows
    }

    async fn measure_sides(
        &mut self,
        versus: Option<&mut WritingRank>,
        tuple: &WriteConfig,
        ranks: &mut Bootstrap,
    ) -> Result<Rows, Failure> {
        let size = ranks.size();
        let measures_bare = self.args.bare && tuple.rails == 1 && tuple.targets == Targets::One;
        let (mut sides, mut cases, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        for (side, write) in std::iter::once(self).chain(versus).enumerate() {
            let round = write.round(tuple, ranks)?;
            write.job.flow.use_rails(tuple.rails, tuple.strategy);
            firsts.push(write.first(&round, ranks).await?);
            sides.push((write, round));
            let kinds = [Kind::Write, Kind::Bare, Kind::Single];
            let measured = kinds.into_iter().filter(|kind| *kind != Kind::Bare || side == 0 && measures_bare);
            cases.extend(measured.map(|kind| WriteCase { side, kind }));
        }
        let series = sides[0].0.args.repeat;
        let series = series.series("a repeat of writes");
        let mut writes = Writes { sides, active: 0 };
        let results = series.measure(&mut writes, &cases, ranks).await?;
        writes.sides.iter_mut().for_each(|(write, _)| write.job.drive(true));
        let Some(results) = results else { return Ok(Rows::new()) };
        // Number of targets that a writer writes to at the same time.
        let each = if tuple.targets == Targets::All { size as u64 - 1 } else { 1 };
        let row = |case: WriteCase, measured: &CaseResults| {
            let write = &writes.sides[case.side].0;
            let mut row = write.row(tuple, if case.kind == Kind::Bare { "bare-write" } else { "write" });
            measured.fill(&mut row, tuple.bytes * each * measured.senders(), each * measured.senders());
            if case.kind == Kind::Write {
                row.strategy = Some(tuple.strategy.to_string());
                row.set(&WINDOW, tuple.window).set(&SLOT_BYTES, tuple.stride());
                row.line_rate(write.job.line_rate(tuple.rails).map(|line| line * measured.senders()));
                measured.count(&mut row, tuple.rails);
                let single = WriteCase { kind: Kind::Single, ..case };
                percentiles(&mut row, &ACK, results.of(single).of_rank_0(ACKS));
                write.job.cold.fill(&mut row, &firsts[case.side], size);
            }
            row
        };
        let of_first = |kind| WriteCase { side: 0, kind };
        let mut rows = results.rows(row, |case| match case {
            WriteCase { side: 0, kind: Kind::Write } => vec![of_first(Kind::Bare)],
            WriteCase { side: 1.., kind: Kind::Write } => vec![of_first(Kind::Write)],
            _ => Vec::new(),
        });
        versus::name_baseline(&mut rows, "write");
        let senders = results.of(of_first(Kind::Write)).by_sender(tuple.bytes * each, each, tuple.rails);
        let write = &mut *writes.sides[0].0;
        write.keep_rates(tuple, &senders);
        if write.args.per_node {
            let line = write.job.line_rate(tuple.rails);
            rows.extend(nodes::sums(&rows[0].0, &senders, line, &nodes::of_ranks(ranks, None)));
        }
        Ok(rows)
    }

    /// Returns the role of this rank in a parameter combination.
    fn round<'a>(&self, tuple: &'a WriteConfig, ranks: &Bootstrap) -> Result<Round<'a>, Failure> {
        let of = |rank| tuple.targets.of(rank, &self.pairing);
        let target = |rank: &usize| self.job.connections[*rank].target(0);
        let targets = of(ranks.rank()).iter().map(target).collect::<Result<Vec<_>, _>>()?;
        let writers = (0..ranks.size()).filter(|other| of(*other).contains(&ranks.rank())).count() as u64;
        Ok(Round::new(tuple, targets, writers))
    }

    /// Returns the microseconds of the first two writes over this number of rails. Returns no times if an earlier
    /// parameter combination used as many, and on ranks that do not write.
    async fn first(&mut self, round: &Round<'_>, ranks: &mut Bootstrap) -> Result<Vec<f64>, Failure> {
        // An injected fault counts the writes, and these are not verified.
        if round.tuple.rails <= self.used_rails || self.args.job.corrupt.is_some() {
            return Ok(Vec::new());
        }
        self.used_rails = round.tuple.rails;
        ranks.barrier("start of the first writes")?;
        round.begin();
        let times = match round.targets.first() {
            Some(target) => self.singles(round, target, 2).await?,
            None => Vec::new(),
        };
        self.end(&round.targets, round, ranks).await?;
        Ok(times)
    }

    fn row(&self, tuple: &WriteConfig, case: &str) -> Row {
        let mut row = self.job.row("write", case, tuple.rails, &self.args.job);
        row.mode = Some(format!("targets={}", values::name(tuple.targets)));
        row.size_bytes = Some(tuple.bytes);
        row.iterations = Some(tuple.writes);
        row
    }

    /// Writes `count` times to each target, with a window of writes in flight to each.
    async fn writes(&self, round: &Round<'_>, count: u64, targets: &[Target]) -> Result<(), Failure> {
        let (tuple, flow) = (round.tuple, &self.job.flow);
        let look_every = (LOOK_EVERY.1 / tuple.bytes.max(1)).clamp(1, LOOK_EVERY.0);
        // The oldest write must complete before the next one is posted.
        let mut flight: Vec<Option<Operation<AnyRail>>> = Vec::new();
        flight.resize_with(tuple.window as usize * targets.len(), || None);
        let (mut place, mut offset) = (0, 0);
        let (stride, end) = (tuple.stride(), tuple.stride() * u64::from(tuple.buffers));
        let (mut hold, mut held) = (None, 0);
        for number in 0..count {
            if number % look_every == 0 && self.is_late(round) {
                hold = None;
                self.goes_on(round).await?;
            }
            for target in targets {
                if let Some(oldest) = flight[place].take() {
                    // Release the held posts; otherwise this would wait for a write that is not posted yet.
                    if hold.is_some() && !oldest.is_done() {
                        hold = None;
                    }
                    oldest.await?;
                }
                if self.args.batch > 1 {
                    held += 1;
                    if hold.is_none() || held >= self.args.batch {
                        // Drop the old hold first, which posts its writes in one chain.
                        drop(hold.take());
                        hold = Some(flow.hold());
                        held = 0;
                    }
                }
                flight[place] = Some(flow.write_all(&self.source, offset, target, offset, tuple.bytes));
                place = if place + 1 == flight.len() { 0 } else { place + 1 };
            }
            offset = if offset + stride == end { 0 } else { offset + stride };
        }
        drop(hold);
        for write in flight.into_iter().flatten() {
            write.await?;
        }
        Ok(())
    }

    /// Notifies the targets that this rank's writes are complete, and waits until its own writers have finished.
    pub(super) async fn end(
        &self,
        targets: &[Target],
        round: &Round<'_>,
        ranks: &mut Bootstrap,
    ) -> Result<(), Failure> {
        self.tell(targets, DONE).await?;
        if round.writers > 0 {
            self.job.wait_signal(DONE, round.writers, ranks).await?;
            self.job.flow.take_immediates(GOES_ON);
        }
        Ok(())
    }

    /// Returns whether a notification is due. Targets do not observe the arrival of writes. They consider a rank
    /// stalled if it does not notify them before their deadline.
    pub(super) fn is_late(&self, round: &Round<'_>) -> bool {
        round.told.get().elapsed() > self.job.timeout / 4
    }

    pub(super) async fn goes_on(&self, round: &Round<'_>) -> Result<(), Failure> {
        self.tell(&round.targets, GOES_ON).await?;
        round.told.set(Instant::now());
        Ok(())
    }

    async fn tell(&self, targets: &[Target], what: u32) -> Result<(), Failure> {
        for target in targets {
            self.job.flow.write_with_immediate(&self.source, 0, target, 0, 0, what).await?;
        }
        Ok(())
    }

    /// Runs the minimal loop. Returns the microseconds per write.
    fn bare(&self, tuple: &WriteConfig, target: &Target, count: u64) -> Result<f64, Failure> {
        let (bytes, deadline) = (tuple.bytes, self.job.timeout);
        let seconds = self.job.flow.on_idle_rail(&self.source, target, |rail, region, peer, remote| {
            let run = BareLoop { peer, remote, bytes, count, deadline };
            // SAFETY: this rank has no operations in flight, and no other task runs until the loop ends.
            unsafe { rail.bare_writes(region, &run) }.transpose()
        })?;
        let seconds = seconds.ok_or_else(|| usage("--bare", "this fabric has no lower-level interface"))?;
        Ok(seconds * 1e6 / count as f64)
    }

    /// Returns the microseconds of `count` single writes, each from its post to its completion.
    async fn singles(&self, round: &Round<'_>, target: &Target, count: u64) -> Result<Vec<f64>, Failure> {
        let mut times = Vec::new();
        for _ in 0..count {
            if self.is_late(round) {
                self.goes_on(round).await?;
            }
            let started = Instant::now();
            self.job.flow.write_all(&self.source, 0, target, 0, round.tuple.bytes).await?;
            times.push(started.elapsed().as_secs_f64() * 1e6);
        }
        Ok(times)
    }
}

/// The writes of a parameter combination, by provider.
struct Writes<'a> {
    sides: Vec<(&'a mut WritingRank, Round<'a>)>,
    /// Index of the provider whose rails are driven.
    active: usize,
}

impl<'a> Writes<'a> {
    /// Drives the rails of one provider only.
    fn activate(&mut self, side: usize) -> (&mut WritingRank, &Round<'a>) {
        self.active = side;
        versus::drive_only(self.sides.iter_mut().map(|(write, _)| &mut write.job), side);
        let (write, round) = &mut self.sides[side];
        (write, round)
    }
}

impl Bench for Writes<'_> {
    type Case = WriteCase;

    /// Writes every buffer of the case once, over poison.
    async fn verify(&mut self, case: WriteCase, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        let (write, round) = self.activate(case.side);
        let Round { tuple, targets, .. } = round;
        let buffers = match case.kind {
            Kind::Write => u64::from(tuple.buffers),
            Kind::Bare => 1,
            Kind::Single => return Ok(None),
        };
        let iteration = write.iteration;
        write.iteration += 1;
        let (rank, size) = (ranks.rank(), ranks.size());
        let writer = (0..size).find(|other| tuple.targets.of(*other, &write.pairing).contains(&rank));
        let slots_of = |rank: usize| {
            let seed = move |slot: u64| pattern::seed(rank as u32, iteration, slot as u32);
            (0..buffers).map(move |slot| (slot * tuple.stride(), seed(slot)))
        };
        if !targets.is_empty() {
            PayloadSlots(write.source.buffer(), tuple.bytes).fill(slots_of(rank))?;
        }
        if let Some(writer) = writer {
            PayloadSlots(write.destination.buffer(), tuple.bytes).poison(slots_of(writer))?;
        }
        ranks.barrier("start of the verified pass")?;
        round.begin();
        for target in targets {
            match case.kind {
                Kind::Bare => write.bare(tuple, target, buffers).map(drop)?,
                _ => write.writes(round, buffers, std::slice::from_ref(target)).await?,
            }
        }
        write.end(targets, round, ranks).await?;
        let wrong = |writer| PayloadSlots(write.destination.buffer(), tuple.bytes).wrong(slots_of(writer));
        Ok(writer.map(wrong).transpose()?)
    }

    fn prepare(&mut self, case: WriteCase) -> Result<(), Failure> {
        self.activate(case.side);
        Ok(())
    }

    async fn run(&mut self, case: WriteCase, _: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        let (write, round) = &self.sides[case.side];
        let Round { tuple, targets, .. } = round;
        round.begin();
        let (count, mut sample) = (tuple.writes, Sample::default());
        match (case.kind, &targets[..]) {
            (_, []) => {}
            (Kind::Write, _) => {
                let at_once = if tuple.targets == Targets::Turn { 1 } else { targets.len() };
                let turns = targets.chunks(at_once);
                let started = Instant::now();
                for targets in turns.clone() {
                    write.writes(round, count, targets).await?;
                }
                let elapsed = started.elapsed().as_secs_f64() * 1e6;
                sample = Sample::of(elapsed / (count * turns.len() as u64) as f64);
            }
            (Kind::Bare, [first, ..]) => sample = Sample::of(write.bare(tuple, first, count)?),
            (Kind::Single, [first, ..]) => {
                let count = SINGLES.min(count).div_ceil(write.args.repeat.repeats.into());
                sample.parts.push(write.singles(round, first, count).await?);
            }
        }
        write.end(targets, round, ranks).await?;
        Ok(sample)
    }

    fn counters(&self) -> Result<Counters, Failure> {
        Ok(self.sides[self.active].0.job.flow.counters())
    }
}
