//! Measurement of one tuple: a pass in which every byte is verified, then writes interleaved with the bare loop, then
//! timed single writes.

use super::Tuple;
use super::args::{Args, Targets};
use crate::columns::{ACK, SLOT_BYTES, WINDOW};
use crate::error::Failure;
use crate::job::{Job, busy_us, moved};
use crate::nodes::{self, Sender};
use crate::rail_rates::{RailPlace, RailRate, Way};
use crate::runner::{Rows, percentiles, slowest, timed};
use crate::values::{self, usage};
use ginlab::bootstrap::Bootstrap;
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::libfabric::BareLoop;
use ginlab::flow::{Operation, Region, Target};
use ginlab::measure::pattern;
use ginlab::pairing::Pairing;
use ginlab::report::Row;
use std::cell::Cell;
use std::time::Instant;

/// Immediate that notifies a target that its writer has finished a repeat.
const DONE: u32 = 1;
/// Immediate that notifies a target in a long repeat that its writer is making progress.
const GOES_ON: u32 = 2;
/// Maximum number of writes, and of their bytes, between two checks of the clock.
const LOOK_EVERY: (u64, u64) = (256, 1 << 20);
/// Number of timed single writes.
const SINGLES: u64 = 1000;

/// Results of one rank for a row: bytes sent, microseconds per write of the bare loop, wrong bytes.
#[derive(serde::Serialize, serde::Deserialize)]
struct Part {
    sender: Sender,
    bare: Vec<f64>,
    wrong: Option<u64>,
}

/// Role of this rank in a tuple.
pub(super) struct Round<'a> {
    pub(super) tuple: &'a Tuple,
    pub(super) targets: Vec<Target>,
    /// Number of ranks that write to this rank.
    writers: u64,
    /// Time of the last notification of the targets.
    told: Cell<Instant>,
}

impl<'a> Round<'a> {
    pub(super) fn new(tuple: &'a Tuple, targets: Vec<Target>, writers: u64) -> Round<'a> {
        Round { tuple, targets, writers, told: Cell::new(Instant::now()) }
    }

    /// Starts all ranks together, and with them the deadlines of targets.
    pub(super) fn begin(&self, ranks: &mut Bootstrap, what: &str) -> Result<(), Failure> {
        ranks.barrier(what)?;
        self.told.set(Instant::now());
        Ok(())
    }
}

/// A rank that writes.
pub struct Write {
    pub args: Args,
    pub job: Job,
    pub source: Region<AnyRail>,
    pub destination: Region<AnyRail>,
    pub pairing: Pairing,
    /// Rails of all ranks, indexed by rank and rail.
    pub places: Vec<Vec<RailPlace>>,
    /// Rates of rails that rank 0 has gathered: all of them with --each-rail, otherwise those of the fastest row over one
    /// rail and of the fastest over several.
    pub rates: Vec<RailRate>,
    /// Number of the next verified pass, so that every pass has a different pattern.
    pub iteration: u32,
}

impl Write {
    /// Measures a tuple and returns its rows, which are complete on rank 0.
    pub async fn measure(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let (rank, size) = (ranks.rank(), ranks.size());
        let mine = tuple.targets.of(rank, &self.pairing);
        let targets = mine.iter().map(|rank| self.job.connections[*rank].target(0)).collect::<Result<Vec<_>, _>>()?;
        let writers = (0..size).filter(|other| tuple.targets.of(*other, &self.pairing).contains(&rank)).count() as u64;
        let round = Round::new(tuple, targets, writers);
        self.job.flow.use_rails(tuple.rails, tuple.strategy);

        let wrong = if self.args.repeat.no_check { None } else { Some(self.verify(&round, ranks).await?) };
        self.repeat(&round, ranks).await?;
        let before = self.job.flow.counters();
        let (mut times, mut bare) = (Vec::new(), Vec::new());
        let measures_bare = self.args.bare && tuple.rails == 1 && tuple.targets == Targets::One;
        for _ in 0..self.args.repeat.repeats {
            times.push(self.repeat(&round, ranks).await?);
            if measures_bare {
                bare.push(self.bare(&round, ranks).await?);
            }
        }
        let after = self.job.flow.counters();
        let singles = self.singles(&round, ranks).await?;
        let operations = if tuple.targets == Targets::Turn { 1 } else { round.targets.len() as u64 };
        let sender = Sender {
            rank,
            times: if round.targets.is_empty() { Vec::new() } else { times },
            bytes: tuple.bytes * operations,
            operations,
            rail_bytes: moved(&before, &after, tuple.rails),
            rail_us: busy_us(&before, &after, tuple.rails),
        };
        let Some(all) = ranks.gather_values(&Part { sender, bare, wrong }, "results of a row")? else {
            return Ok(Rows::new());
        };
        // The time of a repeat is that of its slowest writer.
        let (times, bare) = (slowest(&all, |part| &part.sender.times), slowest(&all, |part| &part.bare));

        let pairs = match tuple.targets {
            Targets::One => size as u64 / 2,
            Targets::Turn => 1,
            Targets::All => size as u64 - 1,
        };
        let mut row = self.row(tuple, "write");
        row.strategy = Some(tuple.strategy.to_string());
        row.set(&WINDOW, tuple.window).set(&SLOT_BYTES, tuple.stride());
        timed(&mut row, &times, tuple.bytes * pairs, pairs);
        let senders = if tuple.targets == Targets::One { pairs } else { 1 };
        row.line_rate(self.job.line_rate(tuple.rails).map(|line| line * senders));
        self.job.counted(&mut row, &before, &after, tuple.rails);
        percentiles(&mut row, &ACK, singles);
        row.verified(all.iter().filter_map(|part| part.wrong).reduce(|a, b| a + b));
        let mut sums = Rows::new();
        let senders: Vec<Sender> = all.into_iter().map(|part| part.sender).collect();
        self.keep_rates(tuple, &senders);
        if self.args.per_node {
            sums = nodes::sums(&row, &senders, self.job.line_rate(tuple.rails), &nodes::of_ranks(ranks, None));
        }
        let mut beside = Rows::new();
        if measures_bare {
            let mut bare_row = self.row(tuple, "bare-write");
            timed(&mut bare_row, &bare, tuple.bytes * pairs, pairs);
            row.against(&bare_row, &times, &bare);
            beside.push((bare_row, bare));
        }
        Ok([vec![(row, times)], beside, sums].concat())
    }

    /// Keeps the rates of the rails of this row, unless an earlier row over one rail, or over several, was faster. Small
    /// writes do not reach the line rate on any rail.
    fn keep_rates(&mut self, tuple: &Tuple, senders: &[Sender]) {
        let (places, way, bytes) = (&self.places, Way::of(tuple.rails), tuple.bytes);
        let of_sender = |sender: &Sender| {
            let rank = sender.rank;
            let to = tuple.targets.of(rank, &self.pairing).first().and_then(|to| places[*to].first());
            let peer = to.map(|place| place.host.clone()).unwrap_or_default();
            let rate = |(rail, gbits_s): (usize, Option<f64>)| {
                let place = places[rank].get(rail)?.clone();
                Some(RailRate { rank, rail, place, peer: peer.clone(), way, bytes, gbits_s: gbits_s? })
            };
            sender.rail_rates().into_iter().enumerate().filter_map(rate).collect::<Vec<_>>()
        };
        let new: Vec<RailRate> = senders.iter().flat_map(of_sender).collect();
        let sum = |rates: &[RailRate]| rates.iter().map(|rate| rate.gbits_s).sum::<f64>();
        let (same, others): (Vec<RailRate>, Vec<RailRate>) = self.rates.drain(..).partition(|rate| rate.way == way);
        self.rates = [others, if sum(&new) > sum(&same) { new } else { same }].concat();
    }

    fn row(&self, tuple: &Tuple, case: &str) -> Row {
        let mut row = self.job.row("write", case, tuple.rails, &self.args.job);
        row.mode = Some(format!("targets={}", values::name(tuple.targets)));
        row.size_bytes = Some(tuple.bytes);
        row.iterations = Some(tuple.writes);
        row
    }

    /// Runs one repeat. Returns the microseconds per write and target if this rank writes, otherwise 0.
    async fn repeat(&self, round: &Round<'_>, ranks: &mut Bootstrap) -> Result<f64, Failure> {
        let Round { tuple, targets, .. } = round;
        round.begin(ranks, "start of a repeat")?;
        let at_once = if tuple.targets == Targets::Turn { 1 } else { targets.len().max(1) };
        let turns = targets.chunks(at_once);
        let started = Instant::now();
        for targets in turns.clone() {
            self.writes(round, tuple, targets).await?;
        }
        let elapsed = started.elapsed().as_secs_f64() * 1e6;
        self.end(targets, round, ranks).await?;
        if targets.is_empty() {
            return Ok(0.0);
        }
        Ok(elapsed / (tuple.writes * turns.len() as u64) as f64)
    }

    /// Posts all writes of a repeat, with a window of them in flight to each target.
    async fn writes(&self, round: &Round<'_>, tuple: &Tuple, targets: &[Target]) -> Result<(), Failure> {
        let flow = &self.job.flow;
        let look_every = (LOOK_EVERY.1 / tuple.bytes.max(1)).clamp(1, LOOK_EVERY.0);
        // The oldest write must complete before the next one is posted.
        let mut flight: Vec<Option<Operation<AnyRail>>> = Vec::new();
        flight.resize_with(tuple.window as usize * targets.len(), || None);
        let (mut place, mut offset) = (0, 0);
        let (stride, end) = (tuple.stride(), tuple.stride() * u64::from(tuple.buffers));
        let (mut hold, mut held) = (None, 0);
        for number in 0..tuple.writes {
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

    /// Returns whether a notification is due. Targets do not observe the arrival of writes, and treat a rank as stalled
    /// if it does not notify them before their deadline.
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
    async fn bare(&self, round: &Round<'_>, ranks: &mut Bootstrap) -> Result<f64, Failure> {
        let Round { tuple, targets, .. } = round;
        let first = &targets[..targets.len().min(1)];
        ranks.barrier("start of the bare loop")?;
        let mut each = 0.0;
        if let [target] = first {
            let flow = &self.job.flow;
            let (bytes, count, deadline) = (tuple.bytes, tuple.writes, self.job.timeout);
            let seconds = flow.on_idle_rail(&self.source, target, |rail, region, peer, remote| {
                let run = BareLoop { peer, remote, bytes, count, deadline };
                // SAFETY: this rank has no operations in flight, and no other task runs until the loop ends.
                unsafe { rail.bare_writes(region, &run) }.transpose()
            })?;
            let none = || usage("--bare", "this fabric has no lower-level interface");
            let seconds = seconds.ok_or_else(none)?;
            each = seconds * 1e6 / tuple.writes as f64;
        }
        self.end(first, round, ranks).await?;
        Ok(each)
    }

    /// Returns the microseconds of single writes to the first target, each from its post to its completion.
    async fn singles(&self, round: &Round<'_>, ranks: &mut Bootstrap) -> Result<Vec<f64>, Failure> {
        let Round { tuple, targets, .. } = round;
        round.begin(ranks, "start of the single writes")?;
        let mut times = Vec::new();
        if let Some(target) = targets.first() {
            for _ in 0..SINGLES.min(tuple.writes) {
                if self.is_late(round) {
                    self.goes_on(round).await?;
                }
                let started = Instant::now();
                self.job.flow.write_all(&self.source, 0, target, 0, tuple.bytes).await?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        self.end(targets, round, ranks).await?;
        Ok(times)
    }

    /// Writes every buffer once, over poison. Returns the number of wrong bytes that this rank received.
    async fn verify(&mut self, round: &Round<'_>, ranks: &mut Bootstrap) -> Result<u64, Failure> {
        let Round { tuple, targets, .. } = round;
        let iteration = self.iteration;
        self.iteration += 1;
        let bytes = tuple.bytes as usize;
        let (rank, size) = (ranks.rank(), ranks.size());
        let writer = (0..size).find(|other| tuple.targets.of(*other, &self.pairing).contains(&rank));
        let slots = || (0..u64::from(tuple.buffers)).map(|slot| ((slot * tuple.stride()) as usize, slot));
        let mut payload = vec![0u8; bytes];
        for (offset, slot) in slots() {
            if !targets.is_empty() {
                pattern::fill(&mut payload, seed(rank, iteration, slot));
                self.source.buffer().write(offset, &payload)?;
            }
            if let Some(writer) = writer {
                pattern::poison(&mut payload, seed(writer, iteration, slot));
                self.destination.buffer().write(offset, &payload)?;
            }
        }
        round.begin(ranks, "start of the verified pass")?;
        for target in targets {
            let one = Tuple { writes: tuple.buffers.into(), ..**tuple };
            self.writes(round, &one, std::slice::from_ref(target)).await?;
        }
        self.end(targets, round, ranks).await?;
        let mut wrong = 0;
        if let Some(writer) = writer {
            for (offset, slot) in slots() {
                self.destination.buffer().read(offset, &mut payload)?;
                wrong += pattern::check(&payload, seed(writer, iteration, slot)) as u64;
            }
        }
        Ok(wrong)
    }
}

/// Returns the seed of a buffer's pattern.
fn seed(rank: usize, iteration: u32, slot: u64) -> u64 {
    pattern::seed(rank as u32, iteration, slot as u32)
}
