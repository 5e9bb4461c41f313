//! Measurement of one parameter combination of `ginlab shmem`: its launches, and those of the baseline's program.

use super::P999;
use super::args::{ShmemArgs, ShmemCase, ShmemConfig};
use super::data::{self, Data};
use super::fit::kernel;
use super::nvshmem::{LaunchTimes, Nvshmem};
use super::order;
use super::verify::{self, LaunchSlots};
use crate::agreed::Agreed;
use crate::columns::{ALIGNMENT, PROXIES, SCOPE};
use crate::error::Failure;
use crate::nodes;
use crate::random::Ratios;
use crate::runner::{Rows, percentile};
use crate::series::{Bench, CaseResults, Sample};
use crate::values::name;
use crate::world;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, MemoryLocation};
use ginlab::gin::{Inbox, Signal, Sym, World};
use ginlab::measure::stats::Summary;
use ginlab::rails::Counters;
use ginlab::report::{Row, RowStatus};
use kernels::shmem::{self, MOVES_GETS, MOVES_PUT_SIGNALS, MOVES_PUTS, SIGNALS_SET, ShmemKernelArgs};

/// State of one rank.
pub struct Shmem {
    pub(super) args: ShmemArgs,
    pub(super) world: World,
    /// Columns of rows in which pairs of PEs communicate, and of those in which all PEs do.
    agreed: [Agreed; 2],
    pub(super) from: Sym<u8>,
    pub(super) to: Sym<u8>,
    pub(super) word: Sym<u64>,
    pub(super) signal: Signal,
    exchanged: Signal,
    /// Inboxes of ping-pongs between pairs and of exchanges between all PEs. Each counts its own rounds.
    pairs: InboxRounds,
    all: InboxRounds,
    /// Number of exchanges by puts.
    puts: u32,
    /// Signals of [`MOVES_PUT_SIGNALS`] sent to a PE, over all launches.
    pub(super) streamed: u64,
    /// State of `data-order`; `None` if the case is not measured.
    data: Option<Data>,
    times: Buffer,
    pub(super) baseline: Option<Nvshmem>,
    /// Number of the parameter combination. Selects its payload.
    pub(super) number: u32,
    /// Ratios to the baseline.
    pub(super) ratios: Ratios,
}

/// Role of a PE in a parameter combination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub peer: u32,
    /// Whether the peer exists.
    pub pairs: bool,
    /// Whether this PE starts, or performs the puts and gets.
    pub begins: bool,
    pub takes_part: bool,
    /// Whether the kernel of this PE waits for data from other PEs.
    pub waits: bool,
}

/// An inbox, and the number of its rounds so far.
struct InboxRounds {
    inbox: Inbox,
    rounds: u32,
}

impl Shmem {
    /// Returns the bytes of heap that the parameter combinations need.
    pub fn heap_bytes(tuples: &[ShmemConfig], pes: u64, message_limit: u64) -> u64 {
        let [source, target] = verify::longest(tuples, pes);
        let checked = tuples.iter().map(order::heap_bytes).max().unwrap_or(0);
        let inboxes = 2 * Inbox::bytes(message_limit.next_multiple_of(8), pes as u32);
        checked
            + data::heap_bytes(tuples, pes)
            + source
            + target
            + 2 * 4096
            + inboxes
            + verify::words(tuples) * 8
            + (1 << 16)
    }

    pub fn open(
        args: &ShmemArgs,
        mut world: World,
        tuples: &[ShmemConfig],
        ranks: &mut Bootstrap,
    ) -> Result<Shmem, Failure> {
        let pes = u64::from(world.n_pes());
        let [source, target] = verify::longest(tuples, pes);
        let words = tuples
            .iter()
            .map(|tuple| (shmem::latency_words(tuple.iterations) + 1).max(2 * tuple.grid as usize))
            .max()
            .unwrap_or(2);
        let times = world.device().allocate(MemoryLocation::Device, words * 8)?;
        let baseline = match &args.nvshmem {
            Some(command) if ranks.rank() == 0 => Some(Nvshmem::start(command, args.world.meet.timeout)?),
            _ => None,
        };
        let agreed = [Agreed::of(&world, [world.my_pe() ^ 1], ranks)?, Agreed::of_all(&world, ranks)?];
        Ok(Shmem {
            agreed,
            from: world.alloc(ranks, source)?,
            to: world.alloc(ranks, target)?,
            word: world.alloc(ranks, verify::words(tuples))?,
            signal: world.signals(ranks, 2)?,
            exchanged: world.signals(ranks, world.n_pes())?,
            pairs: InboxRounds { inbox: world.inbox(ranks, args.longest_message())?, rounds: 0 },
            all: InboxRounds { inbox: world.inbox(ranks, args.longest_message())?, rounds: 0 },
            data: Data::open(tuples, &mut world, ranks)?,
            puts: 0,
            streamed: 0,
            args: args.clone(),
            world,
            times,
            baseline,
            number: 0,
            ratios: Ratios::default(),
        })
    }

    pub async fn measure(&mut self, tuple: &ShmemConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.number += 1;
        if tuple.case.only_checks() {
            return self.look(tuple, ranks);
        }
        let me = self.world.my_pe();
        let peer = me ^ 1;
        let pairs = peer < self.world.n_pes();
        let begins = me.is_multiple_of(2);
        let together = tuple.case.is_of_all();
        let by_rails = self.agreed[0].by_rails;
        if (tuple.case == ShmemCase::AtomicLatency || tuple.case.sets()) && by_rails {
            let mut row = self.row(tuple);
            let why = if tuple.case.sets() { "rails only add to signals" } else { "rails have no fetching atomics" };
            row.status = RowStatus::Skipped(why.into());
            return Ok(vec![(row, Vec::new())]);
        }
        // One-sided calls are made by the PEs that start. Only the other PEs' proxies take part.
        let both = together || tuple.case.is_there_and_back();
        let takes_part = together || pairs && (both || begins);
        let part = Part { peer, pairs, begins, takes_part, waits: both };
        let slots = LaunchSlots::timed(tuple, self.world.n_pes().into());
        let cases = if self.args.nvshmem.is_some() { &[Side::Ginlab, Side::Nvshmem][..] } else { &[Side::Ginlab] };
        let series = self.args.repeat.series("a launch");
        let mut launches = Launches { shmem: self, tuple, part, slots, counted: 0 };
        let Some(results) = series.measure(&mut launches, cases, ranks).await? else { return Ok(Rows::new()) };
        let bytes = match tuple.case {
            // The size is that of the load. The measured put moves one word.
            ShmemCase::PutLatencyLoaded => 8,
            _ if together => tuple.bytes * u64::from(self.world.n_pes() - 1),
            _ => tuple.bytes,
        };
        let row = |side, measured: &CaseResults| match side {
            Side::Ginlab => filled(self.row(tuple), bytes, measured),
            Side::Nvshmem => filled_by_nvshmem(self.row(tuple), bytes, measured),
        };
        let mut rows = results.rows(row, |side| if side == Side::Ginlab { vec![Side::Nvshmem] } else { Vec::new() });
        if let [(row, _), _] = &rows[..] {
            self.ratios.add(row.baseline_ratio.unwrap_or(0.0), told(tuple));
        }
        if self.args.per_node && tuple.case.sums() {
            // The percentage of line rate is only defined if rails carry all bytes.
            let agreed = &self.agreed[usize::from(together)];
            let line = agreed.line_rate.filter(|_| !agreed.by_mapping);
            let senders = results.of(Side::Ginlab).by_sender(bytes, 1, usize::MAX);
            let mut sums = nodes::sums(&rows[0].0, &senders, line, &nodes::of_ranks(ranks, None));
            // Percentiles describe the iterations of one PE.
            for (sum, _) in &mut sums {
                sum.set(&P999, None::<f64>);
            }
            rows.extend(sums);
        }
        Ok(rows)
    }

    /// Returns a row without times, for cases that only check.
    fn look(&mut self, tuple: &ShmemConfig, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let (repeats, seed, world) = (self.args.repeat.repeats, self.number, &mut self.world);
        let all = match &mut self.data {
            _ if tuple.case == ShmemCase::SignalOrder => order::look(tuple, repeats, seed, world, ranks)?,
            Some(data) => data.look(tuple, repeats, seed, [self.from, self.to], world, ranks)?,
            None => return Err(Failure::Run("data-order has no inboxes".into())),
        };
        let mut row = self.row(tuple);
        // Number of bytes checked by all PEs together.
        row.iterations = Some(all.iter().map(|found| found[1]).sum());
        row.repeats = Some(u64::from(repeats));
        row.verified(Some(all.iter().map(|found| found[0]).sum()));
        Ok(vec![(row, Vec::new())])
    }

    fn row(&self, tuple: &ShmemConfig) -> Row {
        let agreed = &self.agreed[usize::from(tuple.case.is_of_all())];
        let mut row = agreed.row("shmem", name(tuple.case), &self.world);
        row.size_bytes = Some(tuple.bytes);
        (row.grid, row.block) = (Some(tuple.grid), Some(tuple.block));
        row.iterations = Some(u64::from(tuple.iterations));
        row.set(&SCOPE, name(tuple.scope));
        self.align(&mut row, tuple);
        if agreed.by_rails {
            self.args.world.name_rails(&mut row);
            row.set(&PROXIES, self.args.world.proxy_threads as u64);
        }
        row
    }

    /// Sets the alignment of a random shape.
    fn align(&self, row: &mut Row, tuple: &ShmemConfig) {
        if self.args.random.random.is_some() {
            row.set(&ALIGNMENT, format!("{}/{}", tuple.to_at, tuple.from_at));
        }
    }

    /// Returns the counter of a case's iterations over all launches, if it has one.
    fn rounds(&mut self, tuple: &ShmemConfig) -> Option<&mut u32> {
        match tuple.case {
            ShmemCase::MessagePingPong => Some(&mut self.pairs.rounds),
            ShmemCase::AllToAll if tuple.by_messages => Some(&mut self.all.rounds),
            ShmemCase::AllToAll => Some(&mut self.puts),
            _ => None,
        }
    }

    /// Counts the iterations of one launch.
    pub(super) fn advance(&mut self, tuple: &ShmemConfig) {
        if let Some(rounds) = self.rounds(tuple) {
            *rounds += tuple.warmup + tuple.iterations;
        }
        if tuple.case == ShmemCase::PutSignalBandwidth {
            self.streamed += u64::from(tuple.iterations) * verify::callers(tuple);
        }
    }

    /// Runs one launch. Returns the microseconds of each iteration.
    pub(super) fn launch(
        &mut self,
        tuple: &ShmemConfig,
        peer: u32,
        counted: u64,
        slots: LaunchSlots,
        ranks: &mut Bootstrap,
    ) -> Result<Vec<f64>, Failure> {
        let bytes = verify::payload(tuple, u64::from(self.world.n_pes()));
        let LaunchSlots { places, step, to_step } = slots;
        let args = ShmemKernelArgs {
            places,
            step,
            to_step,
            moves: match tuple.case {
                ShmemCase::GetBandwidth => MOVES_GETS,
                ShmemCase::PutSignalBandwidth => MOVES_PUT_SIGNALS,
                ShmemCase::PutSignalSetPingPong => SIGNALS_SET,
                _ => MOVES_PUTS,
            },
            warmup: tuple.warmup,
            iterations: tuple.iterations,
            rounds: self.rounds(tuple).map_or(0, |rounds| *rounds),
            counted,
            from: self.from.slice(tuple.from_at.into(), bytes),
            to: self.to.slice(tuple.to_at.into(), bytes),
            word: self.word.slice(0, 1),
            signal: self.signal,
            exchanged: self.exchanged,
            streamed: self.signal.at(1),
            inbox: if tuple.case == ShmemCase::AllToAll { self.all.inbox } else { self.pairs.inbox },
            peer: peer.min(self.world.n_pes() - 1),
            begins: self.world.my_pe().is_multiple_of(2).into(),
            times: self.times.pointer(),
        };
        let kernel = kernel(tuple);
        if tuple.case == ShmemCase::PutLatencyLoaded {
            self.times.write(shmem::latency_words(tuple.iterations) * 8, &[0u64])?;
        }
        // SAFETY: the arguments belong to this world, and `times` has the size that the parameter combination requires.
        unsafe { self.world.launch(ranks, &kernel, tuple.grid, tuple.block, args) }?;
        if tuple.case.is_bandwidth() {
            return Ok(vec![world::stamped_us(&self.times, tuple.grid)? / f64::from(tuple.iterations)]);
        }
        let mut stamps = vec![0u64; shmem::latency_words(tuple.iterations)];
        self.times.read(0, &mut stamps)?;
        let nanoseconds = stamps[0] as f64;
        let cycles: Vec<u64> = stamps[1..].windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        let ways = if tuple.case.is_there_and_back() { 2.0 } else { 1.0 };
        let scale = nanoseconds / cycles.iter().sum::<u64>().max(1) as f64 / 1000.0 / ways;
        Ok(cycles.into_iter().map(|cycles| cycles as f64 * scale).collect())
    }
}

/// Implementations that are compared.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Ginlab,
    /// NVSHMEM's program, which rank 0 runs while the other ranks wait.
    Nvshmem,
}

/// Parts: times of single iterations; the minimum and the percentiles that NVSHMEM's program reports.
const SINGLES: usize = 0;
const MIN: usize = 0;
const P99: usize = 1;
const LAST: usize = 2;

/// The launches of a parameter combination.
struct Launches<'a> {
    shmem: &'a mut Shmem,
    tuple: &'a ShmemConfig,
    part: Part,
    slots: LaunchSlots,
    /// Sum of the signal before the launch.
    counted: u64,
}

impl Bench for Launches<'_> {
    type Case = Side;

    async fn verify(&mut self, side: Side, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        match side {
            Side::Ginlab => self.shmem.verify(self.tuple, self.part, ranks),
            Side::Nvshmem => Ok(None),
        }
    }

    /// Reads the signal before any PE adds to it again.
    fn prepare(&mut self, _: Side) -> Result<(), Failure> {
        self.counted = self.shmem.world.signal(self.shmem.signal)?;
        Ok(())
    }

    async fn run(&mut self, side: Side, _: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        let (shmem, tuple, part) = (&mut *self.shmem, self.tuple, self.part);
        if side == Side::Nvshmem {
            let Some(baseline) = &mut shmem.baseline else { return Ok(Sample::default()) };
            let sample = |times: LaunchTimes| Sample {
                times: vec![times.p50],
                parts: vec![vec![times.min], vec![times.p99], vec![times.p999]],
            };
            return Ok(baseline.measure(tuple)?.map(sample).unwrap_or_default());
        }
        let mut sample = Sample::default();
        if part.takes_part {
            let turns = shmem.launch(tuple, part.peer, self.counted, self.slots, ranks)?;
            sample.times.extend(Summary::of(&turns).map(|summary| summary.p50));
            // Times of bandwidth cases are means over a launch.
            if !tuple.case.is_bandwidth() {
                sample.parts.push(turns);
            }
        }
        shmem.advance(tuple);
        Ok(sample)
    }

    fn counters(&self) -> Result<Counters, Failure> {
        world::rail_counters(&self.shmem.world)
    }
}

/// Sets the results of ginlab's launches.
fn filled(mut row: Row, bytes: u64, measured: &CaseResults) -> Row {
    measured.fill(&mut row, bytes, 1);
    let mut singles = measured.of_rank_0(SINGLES);
    if !singles.is_empty() {
        let repeats = row.repeats;
        row.times(&singles).throughput(bytes, 1).tail(&singles);
        row.repeats = repeats;
        singles.sort_by(f64::total_cmp);
        row.set(&P999, percentile(&singles, 999));
    }
    row
}

/// Creates the row of NVSHMEM's program, whose parameters are those of `ours`.
fn filled_by_nvshmem(ours: Row, bytes: u64, measured: &CaseResults) -> Row {
    let mut row = Row::new("shmem", format!("nvshmem-{}", ours.case), &*ours.device, "nvshmem");
    (row.ranks, row.size_bytes, row.iterations) = (ours.ranks, ours.size_bytes, ours.iterations);
    (row.grid, row.block) = (ours.grid, ours.block);
    for column in [SCOPE, ALIGNMENT] {
        row.set(&column, ours.own(column.name).clone());
    }
    measured.fill(&mut row, bytes, 1);
    let median = |part| Summary::of(&measured.part(part)).map(|summary| summary.p50);
    row.time_us_min = measured.part(MIN).into_iter().reduce(f64::min);
    row.time_us_p99 = median(P99);
    row.set(&P999, median(LAST));
    row
}

/// Returns a shape in words.
fn told(tuple: &ShmemConfig) -> String {
    let ShmemConfig { case, scope, bytes, grid, block, to_at, from_at, .. } = tuple;
    format!("{} {bytes} B, {} of {block}, grid {grid}, alignment {to_at}/{from_at}", name(*case), name(*scope))
}
