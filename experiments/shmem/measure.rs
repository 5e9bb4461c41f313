//! Measurement of one tuple of `ginlab shmem`: launches interleaved with the baseline's, and verification.

use super::P999;
use super::args::{Args, Case, Tuple};
use super::data::{self, Data};
use super::nvshmem::{Nvshmem, Times};
use super::order;
use super::verify::{self, Slots};
use crate::agreed::Agreed;
use crate::columns::{ALIGNMENT, PROXIES, SCOPE};
use crate::error::Failure;
use crate::job::{busy_us, moved};
use crate::nodes::{self, Sender};
use crate::random::Ratios;
use crate::runner::{Rows, percentile};
use crate::values::name;
use crate::world::{self, Scope};
use cuda_std::Kernel;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Device, Place};
use ginlab::gin::{Inbox, Program, Signal, Sym, World};
use ginlab::report::{Row, Status, each_once};
use kernels::shmem::bandwidth::*;
use kernels::shmem::exchange::*;
use kernels::shmem::latency::*;
use kernels::shmem::loaded::*;
use kernels::shmem::{self, MOVES_GETS, MOVES_PUT_SIGNALS, MOVES_PUTS, SIGNALS_SET, ShmemArgs};

/// State of one rank.
pub struct Shmem {
    pub(super) args: Args,
    pub(super) world: World,
    /// Columns of rows in which pairs of PEs communicate, and of those in which all PEs do.
    agreed: [Agreed; 2],
    pub(super) from: Sym<u8>,
    pub(super) to: Sym<u8>,
    pub(super) word: Sym<u64>,
    pub(super) signal: Signal,
    exchanged: Signal,
    /// Inbox of ping-pongs between pairs, and that of exchanges between all PEs. Each counts its own rounds.
    pairs: Mail,
    all: Mail,
    /// Number of exchanges by puts.
    puts: u32,
    /// Signals of [`MOVES_PUT_SIGNALS`] sent to a PE, over all launches.
    pub(super) streamed: u64,
    /// State of `data-order`. `None` if the case is not measured.
    data: Option<Data>,
    times: Buffer,
    pub(super) baseline: Option<Nvshmem>,
    /// Number of the tuple. Selects its payload.
    pub(super) number: u32,
    /// Ratios to the baseline.
    pub(super) ratios: Ratios,
}

/// Role of a PE in a tuple.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub peer: u32,
    /// Whether the peer exists.
    pub pairs: bool,
    /// Whether this PE starts, or is the one that puts and gets.
    pub begins: bool,
    pub takes_part: bool,
    /// Whether its kernel waits for data from other PEs.
    pub waits: bool,
}

/// An inbox, and the number of its rounds so far.
struct Mail {
    inbox: Inbox,
    rounds: u32,
}

impl Shmem {
    /// Returns the bytes of heap that the tuples need.
    pub fn heap_bytes(tuples: &[Tuple], pes: u64, message_limit: u64) -> u64 {
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

    pub fn open(args: &Args, mut world: World, tuples: &[Tuple], ranks: &mut Bootstrap) -> Result<Shmem, Failure> {
        let pes = u64::from(world.n_pes());
        let [source, target] = verify::longest(tuples, pes);
        let words = tuples
            .iter()
            .map(|tuple| (shmem::latency_words(tuple.iterations) + 1).max(2 * tuple.grid as usize))
            .max()
            .unwrap_or(2);
        let times = world.device().allocate(Place::Device, words * 8)?;
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
            pairs: Mail { inbox: world.inbox(ranks, args.longest_message())?, rounds: 0 },
            all: Mail { inbox: world.inbox(ranks, args.longest_message())?, rounds: 0 },
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

    pub fn measure(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.number += 1;
        if tuple.case.only_checks() {
            return self.look(tuple, ranks);
        }
        let me = self.world.my_pe();
        let peer = me ^ 1;
        let pairs = peer < self.world.n_pes();
        let begins = me.is_multiple_of(2);
        let together = tuple.case.is_of_all();
        let mut row = self.row(tuple);
        let by_rails = self.agreed[0].by_rails;
        if (tuple.case == Case::AtomicLatency || tuple.case.sets()) && by_rails {
            let why = if tuple.case.sets() { "rails only add to signals" } else { "rails have no fetching atomics" };
            row.status = Status::Skipped(why.into());
            return Ok(vec![(row, Vec::new())]);
        }
        // One-sided calls are made by the PEs that start. Only the other PEs' proxies take part.
        let both = together || tuple.case.is_there_and_back();
        let takes_part = together || pairs && (both || begins);
        let part = Part { peer, pairs, begins, takes_part, waits: both };
        let wrong = if self.args.repeat.no_check { None } else { self.verify(tuple, part, ranks)? };
        let slots = Slots::timed(tuple, self.world.n_pes().into());
        let (mut all, mut ours, mut theirs, mut beside) = (Vec::new(), Vec::new(), Vec::new(), None);
        let before = world::rail_counters(&self.world)?;
        for _ in 0..self.args.repeat.repeats {
            // Read the signal before any PE adds to it again.
            let counted = self.world.signal(self.signal)?;
            self.world.barrier(ranks)?;
            if takes_part {
                let turns = self.launch(tuple, peer, counted, slots, ranks)?;
                ours.push(median(&turns).unwrap_or(0.0));
                all.extend(turns);
            }
            self.advance(tuple);
            if let Some(baseline) = &mut self.baseline {
                let times: Option<Times> = baseline.measure(tuple)?;
                theirs.extend(times.map(|times| times.p50));
                beside = times.or(beside);
            }
        }
        self.world.barrier(ranks)?;
        let bytes = match tuple.case {
            // The size is that of the load; the measured put moves one word.
            Case::PutLatencyLoaded => 8,
            _ if together => tuple.bytes * u64::from(self.world.n_pes() - 1),
            _ => tuple.bytes,
        };
        let senders: Vec<Sender> = if self.args.per_node && tuple.case.sums() {
            // Includes warm-up iterations, for bytes and for times.
            let after = world::rail_counters(&self.world)?;
            let (rail_bytes, rail_us) = (moved(&before, &after, usize::MAX), busy_us(&before, &after, usize::MAX));
            let mine = Sender { rank: ranks.rank(), times: ours.clone(), bytes, operations: 1, rail_bytes, rail_us };
            ranks.all_gather_values(&mine, "bytes moved by each PE")?
        } else {
            Vec::new()
        };
        let Some(wrong) = ranks.gather_values(&wrong, "wrong bytes")? else { return Ok(Rows::new()) };
        all.sort_by(f64::total_cmp);
        row.times(&all).throughput(bytes, 1);
        // Times of bandwidth cases are means over a launch.
        if !tuple.case.is_bandwidth() {
            row.tail(&all).set(&P999, percentile(&all, 999));
        }
        row.repeats = Some(ours.len() as u64);
        row.verified(wrong.into_iter().flatten().reduce(|a, b| a + b));
        let mut rows = Rows::new();
        if let Some(times) = beside {
            let case = format!("nvshmem-{}", name(tuple.case));
            let mut theirs_row = Row::new("shmem", case, row.device.clone(), "nvshmem");
            theirs_row.ranks = row.ranks;
            theirs_row.size_bytes = row.size_bytes;
            (theirs_row.grid, theirs_row.block, theirs_row.iterations) = (row.grid, row.block, row.iterations);
            (theirs_row.time_us_min, theirs_row.time_us_p50) = (Some(times.min), median(&theirs));
            theirs_row.time_us_p99 = Some(times.p99);
            theirs_row.set(&P999, times.p999).set(&SCOPE, name(tuple.scope));
            theirs_row.throughput(tuple.bytes, 1);
            self.align(&mut theirs_row, tuple);
            row.against(&theirs_row, &ours, &theirs);
            self.ratios.add(row.baseline_ratio.unwrap_or(0.0), told(tuple));
            rows.push((theirs_row, theirs));
        }
        // The percentage of line rate is only defined if rails carry all bytes.
        let agreed = &self.agreed[usize::from(together)];
        let line = agreed.line_rate.filter(|_| !agreed.by_mapping);
        let mut sums = nodes::sums(&row, &senders, line, &nodes::of_ranks(ranks, None));
        // Percentiles describe the iterations of one PE.
        for (sum, _) in &mut sums {
            sum.set(&P999, None::<f64>);
        }
        rows.insert(0, (row, ours));
        rows.extend(sums);
        Ok(rows)
    }

    /// Returns a row without times, for cases that only check.
    fn look(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let (repeats, seed, world) = (self.args.repeat.repeats, self.number, &mut self.world);
        let all = match &mut self.data {
            _ if tuple.case == Case::SignalOrder => order::look(tuple, repeats, seed, world, ranks)?,
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

    fn row(&self, tuple: &Tuple) -> Row {
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
    fn align(&self, row: &mut Row, tuple: &Tuple) {
        if self.args.random.random.is_some() {
            row.set(&ALIGNMENT, format!("{}/{}", tuple.to_at, tuple.from_at));
        }
    }

    /// Returns the counter of a case's iterations over all launches, if it has one.
    fn rounds(&mut self, tuple: &Tuple) -> Option<&mut u32> {
        match tuple.case {
            Case::MessagePingPong => Some(&mut self.pairs.rounds),
            Case::AllToAll if tuple.by_messages => Some(&mut self.all.rounds),
            Case::AllToAll => Some(&mut self.puts),
            _ => None,
        }
    }

    /// Counts the iterations of one launch.
    pub(super) fn advance(&mut self, tuple: &Tuple) {
        if let Some(rounds) = self.rounds(tuple) {
            *rounds += tuple.warmup + tuple.iterations;
        }
        if tuple.case == Case::PutSignalBandwidth {
            self.streamed += u64::from(tuple.iterations) * verify::callers(tuple);
        }
    }

    /// Runs one launch. Returns the microseconds of each iteration.
    pub(super) fn launch(
        &mut self,
        tuple: &Tuple,
        peer: u32,
        counted: u64,
        slots: Slots,
        ranks: &mut Bootstrap,
    ) -> Result<Vec<f64>, Failure> {
        let bytes = verify::payload(tuple, u64::from(self.world.n_pes()));
        let Slots { places, step, to_step } = slots;
        let args = ShmemArgs {
            places,
            step,
            to_step,
            moves: match tuple.case {
                Case::GetBandwidth => MOVES_GETS,
                Case::PutSignalBandwidth => MOVES_PUT_SIGNALS,
                Case::PutSignalSetPingPong => SIGNALS_SET,
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
            inbox: if tuple.case == Case::AllToAll { self.all.inbox } else { self.pairs.inbox },
            peer: peer.min(self.world.n_pes() - 1),
            begins: self.world.my_pe().is_multiple_of(2).into(),
            times: self.times.pointer(),
        };
        let kernel = kernel(tuple);
        if tuple.case == Case::PutLatencyLoaded {
            self.times.write(shmem::latency_words(tuple.iterations) * 8, &[0u64])?;
        }
        // SAFETY: the arguments belong to this world, and `times` has the size that the tuple requires.
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

/// Maximum bytes for which one thread's all-to-all uses messages. For larger ones puts are faster: a message requires
/// 8-byte stores for each 4 bytes, one after another, while a put copies 16 bytes at a time.
const THREADS_MESSAGE: u64 = 32;

/// Rejects grids that are not resident on the GPU, together with those of PEs that share it. Default grids are reduced
/// instead. The result is the same on every rank.
pub fn fit(args: &Args, tuples: &mut Vec<Tuple>, world: &World, ranks: &mut Bootstrap) -> Result<(), Failure> {
    let device = world.device();
    let mapped = (0..world.n_pes()).all(|pe| world.is_mapped(pe));
    if args.message_limit.is_none()
        && ranks.all_gather_values(&(mapped && !matches!(device, Device::Emulated)), "paths")?.iter().all(|all| *all)
    {
        for tuple in tuples.iter_mut().filter(|tuple| tuple.scope == Scope::Thread) {
            tuple.by_messages &= tuple.bytes <= THREADS_MESSAGE;
        }
    }
    let most = |tuple: &Tuple| match tuple.case {
        Case::SignalOrder => device.resident_blocks(&order::kernel(tuple), tuple.block),
        Case::DataOrder => device.resident_blocks(&data::kernel(tuple), tuple.block),
        _ => device.resident_blocks(&kernel(tuple), tuple.block),
    };
    let mine = tuples.iter().map(most).collect::<Result<Vec<u32>, _>>()?;
    let all: Vec<Vec<u32>> = ranks.all_gather_values(&mine, "number of resident blocks")?;
    for (number, tuple) in tuples.iter_mut().enumerate() {
        let most = all.iter().filter_map(|of_rank| of_rank.get(number)).copied().min().unwrap_or(0);
        if args.grid.is_none() {
            let least = tuple.case.least_blocks();
            tuple.grid = tuple.grid.min(most / least * least).max(least);
        }
        match tuple.case {
            Case::SignalOrder => device.check_resident(&order::kernel(tuple), tuple.grid, tuple.block),
            Case::DataOrder => device.check_resident(&data::kernel(tuple), tuple.grid, tuple.block),
            _ => device.check_resident(&kernel(tuple), tuple.grid, tuple.block),
        }?;
    }
    *tuples = each_once(tuples.drain(..));
    Ok(())
}

fn kernel(tuple: &Tuple) -> Kernel<Program<ShmemArgs>> {
    let [by_thread, by_warp, by_block] = match tuple.case {
        Case::PLatency => return SHMEM_P,
        Case::AtomicLatency => return SHMEM_ATOMIC,
        Case::PutLatencyLoaded => return SHMEM_PUT_LOADED,
        Case::SignalPingPong => return SHMEM_SIGNAL,
        Case::SignalSetPingPong => return SHMEM_SIGNAL_SET,
        Case::AllToAll if !tuple.by_messages => return SHMEM_ALL_TO_ALL_PUTS_BLOCK,
        Case::PutLatency => [SHMEM_PUT_THREAD, SHMEM_PUT_WARP, SHMEM_PUT_BLOCK],
        Case::GetLatency => [SHMEM_GET_THREAD, SHMEM_GET_WARP, SHMEM_GET_BLOCK],
        Case::PutSignalPingPong | Case::PutSignalSetPingPong => {
            [SHMEM_PUT_SIGNAL_THREAD, SHMEM_PUT_SIGNAL_WARP, SHMEM_PUT_SIGNAL_BLOCK]
        }
        Case::MessagePingPong => [SHMEM_MESSAGE_THREAD, SHMEM_MESSAGE_WARP, SHMEM_MESSAGE_BLOCK],
        Case::BarrierAll => [SHMEM_BARRIER_THREAD, SHMEM_BARRIER_WARP, SHMEM_BARRIER_BLOCK],
        Case::AllToAll => [SHMEM_ALL_TO_ALL_THREAD, SHMEM_ALL_TO_ALL_WARP, SHMEM_ALL_TO_ALL_BLOCK],
        // The two checking cases have their own kernels.
        Case::PutBandwidth | Case::PutSignalBandwidth | Case::GetBandwidth | Case::SignalOrder | Case::DataOrder => {
            [SHMEM_BANDWIDTH_THREAD, SHMEM_BANDWIDTH_WARP, SHMEM_BANDWIDTH_BLOCK]
        }
    };
    match tuple.scope {
        Scope::Thread => by_thread,
        Scope::Warp => by_warp,
        Scope::Block => by_block,
    }
}

/// Returns a shape in words.
fn told(tuple: &Tuple) -> String {
    let Tuple { case, scope, bytes, grid, block, to_at, from_at, .. } = tuple;
    format!("{} {bytes} B, {} of {block}, grid {grid}, alignment {to_at}/{from_at}", name(*case), name(*scope))
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, 500)
}
