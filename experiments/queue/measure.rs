//! Measurement of one parameter combination: its cases, their lower bounds and the prototype, alternating.

use super::args::{Algorithm, PushScope, QueueMode};
use super::cases::{QueueCase, QueueCaseKind};
use super::memory::{AlgorithmMemory, ConsumerOptions, KernelQueues, Taken, VyukovMemory, consume, expected_sum};
use super::{FULL_STALLS, HOST_POLLS, LOST_EXCHANGES, PUSH, QueueConfig, QueueExperiment, RINGS, WATCHED};
use crate::columns::{ACK, RING_SLOTS, SCOPE, SLOT_BYTES};
use crate::error::Failure;
use crate::runner::{Rows, percentiles};
use crate::series::{self, CaseResults, Sample};
use crate::values;
use cuda_std::memory::Word;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, DeviceError, MemoryLocation};
use ginlab::report::{Row, RowStatus};
use ginlab::ring::{RingMemory, RingPlace};
use ginlab::signals;
use itertools::iproduct;
use kernels::queue::kernel::{QueueKernelArgs, QueueResult};
use kernels::ring::Status as DeviceStatus;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of elements that one repeat pushes.
pub(super) const MOST_ELEMENTS: u64 = 1 << 25;
/// Maximum number of samples of single pushes that one watched pass stores.
const MOST_SAMPLES: u64 = 1 << 20;

/// A parameter combination on a device.
#[derive(Clone, Copy)]
pub struct QueueBench<'a> {
    pub queue: &'a QueueExperiment,
    pub tuple: QueueConfig,
}

impl Deref for QueueBench<'_> {
    type Target = QueueExperiment;

    fn deref(&self) -> &QueueExperiment {
        self.queue
    }
}

/// The cases of a parameter combination.
struct Cases<'a, const WORDS: usize> {
    bench: &'a QueueBench<'a>,
    all: Vec<QueueCase<'a, WORDS>>,
    results: Buffer,
}

struct Run {
    us: f64,
    ns_per_cycle: f64,
    taken: Taken,
}

/// Measures a parameter combination and returns its rows.
pub async fn measure(bench: &QueueBench<'_>, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
    // The number of words is a constant in the consumers' code.
    match bench.tuple.words {
        1 => bench.rows::<1>(ranks).await,
        2 => bench.rows::<2>(ranks).await,
        4 => bench.rows::<4>(ranks).await,
        8 => bench.rows::<8>(ranks).await,
        16 => bench.rows::<16>(ranks).await,
        32 => bench.rows::<32>(ranks).await,
        64 => bench.rows::<64>(ranks).await,
        _ => bench.rows::<128>(ranks).await,
    }
}

impl QueueBench<'_> {
    fn slot_words(&self) -> u32 {
        self.args.slot_bytes.map_or(self.tuple.words, |slot| slot.0)
    }

    pub(super) fn producers(&self) -> u64 {
        let warp = self.device.warp_size();
        let each = if self.tuple.scope == PushScope::Warp { self.tuple.block.div_ceil(warp) } else { self.tuple.block };
        u64::from(self.tuple.grid) * u64::from(each)
    }

    /// Returns the number of producers that use this ring.
    fn producers_of(&self, algorithm: Algorithm, ring: u32) -> u64 {
        if algorithm == Algorithm::Lanes {
            return (u64::from(ring)..self.producers()).step_by(self.tuple.rings as usize).count() as u64;
        }
        let blocks = (ring..self.tuple.grid).step_by(self.tuple.rings as usize).count() as u64;
        self.producers() / u64::from(self.tuple.grid) * blocks
    }

    fn ring(&self) -> Result<RingMemory, DeviceError> {
        let words = self.slot_words().trailing_zeros();
        RingMemory::of(&self.device, self.tuple.place, self.tuple.slots, words, self.args.timeout)
    }

    pub(super) fn queues(&self, algorithm: Algorithm) -> Result<KernelQueues, DeviceError> {
        let memory = |_| match algorithm {
            Algorithm::Vyukov => {
                let QueueConfig { place, slots, words, .. } = self.tuple;
                VyukovMemory::new(&self.device, place, slots, words, self.args.timeout).map(AlgorithmMemory::Vyukov)
            }
            _ => self.ring().map(AlgorithmMemory::Ring),
        };
        KernelQueues::new(&self.device, (0..self.tuple.rings).map(memory).collect::<Result<_, _>>()?)
    }

    pub(super) fn blank(&self, case: &str) -> Row {
        let mut row = Row::new("queue", case, self.device.name(), "none");
        row.memory = Some(values::name(self.tuple.place));
        row.size_bytes = Some(u64::from(self.tuple.words) * 8);
        row.grid = Some(self.tuple.grid);
        row.block = Some(self.tuple.block);
        row.set(&SCOPE, values::name(self.tuple.scope)).set(&RINGS, self.tuple.rings);
        row.set(&SLOT_BYTES, self.slot_words() * 8).set(&RING_SLOTS, self.tuple.slots);
        row
    }

    async fn rows<const WORDS: usize>(&self, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        let results =
            self.device.allocate(MemoryLocation::Device, self.tuple.grid as usize * size_of::<QueueResult>())?;
        // Only the bare stores depend on the grid: the other lower bounds are measured once per memory.
        let floors = match self.tuple.place {
            place if self.place == Some(place) => vec![QueueCaseKind::Stores],
            RingPlace::Pinned => vec![
                QueueCaseKind::PingPong(0),
                QueueCaseKind::PingPong(250),
                QueueCaseKind::EmptyPoll,
                QueueCaseKind::Stores,
            ],
            _ => vec![QueueCaseKind::EmptyPoll, QueueCaseKind::Stores],
        };
        let prototype =
            self.prototype.iter().map(|prototype| QueueCaseKind::Prototype(prototype.ring(self.tuple.slots)));
        // Empty if the memory is not available.
        let bounds = floors.into_iter().chain(prototype);
        let bounds = bounds.filter_map(|kind| QueueCase::new(self, kind, Algorithm::Ticket, QueueMode::Nbi).ok());
        let mut cases = Cases { bench: self, all: bounds.collect(), results };
        let mut skipped = Rows::new();
        for (&algorithm, &mode) in iproduct!(&self.args.algorithm, &self.args.mode) {
            match QueueCase::<WORDS>::new(self, QueueCaseKind::Queue, algorithm, mode) {
                Ok(mut case) => {
                    case.pushes = self.calibrate(&mut case, &cases.results)?;
                    cases.all.push(case);
                }
                Err(DeviceError::Missing(why) | DeviceError::Refused(why)) => {
                    let mut row = self.blank(&values::name(algorithm));
                    (row.mode, row.status) = (Some(values::name(mode)), RowStatus::Skipped(why));
                    skipped.push((row, Vec::new()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let is_like = |case: &&QueueCase<WORDS>| case.is_queue() && case.baselines().contains(&"prototype");
        let like = cases.all.iter().find(is_like).map_or(1, |case| case.pushes);
        let prototype = cases.all.iter_mut().filter(|case| matches!(case.kind, QueueCaseKind::Prototype(_)));
        prototype.for_each(|case| case.pushes = like);
        let numbers: Vec<usize> = (0..cases.all.len()).collect();
        let series = self.args.repeat.series("a repeat");
        let Some(results) = series.measure(&mut cases, &numbers, ranks).await? else { return Ok(Rows::new()) };
        let row = |number: usize, measured: &CaseResults| cases.all[number].row(self, measured);
        let mut rows = results.rows(row, |number| cases.baselines(number));
        for (case, (row, times)) in cases.all.iter_mut().zip(&mut rows).filter(|(case, _)| case.is_queue()) {
            self.watch(case, &cases.results, row)?;
            row.wrong_bytes = Some(case.wrong_bytes());
            if case.wrong > 0 {
                row.status = RowStatus::Failed(format!("{} elements lost, doubled, torn or out of order", case.wrong));
            }
            if let (None, &["ping-pong"], Some((floor, theirs))) = (&row.baseline, case.baselines(), &self.ping_pong) {
                row.against(floor, times, theirs);
            }
        }
        let first = rows.iter().position(|(row, _)| row.case == "stores").unwrap_or_default();
        rows.splice(first..first, skipped);
        Ok(rows)
    }

    /// Returns the number of pushes per producer that take about the requested time.
    fn calibrate<const WORDS: usize>(&self, case: &mut QueueCase<'_, WORDS>, results: &Buffer) -> Result<u32, Failure> {
        if let Some(pushes) = self.args.pushes {
            return Ok(pushes);
        }
        let wanted = self.args.time as f64 * 1000.0;
        let most = (MOST_ELEMENTS / self.producers()).clamp(1, 1 << 30) as u32;
        let mut pushes = 1;
        loop {
            let run = self.run(case, pushes, None, None, results)?;
            if run.us > wanted / 8.0 || pushes >= most {
                return Ok(((f64::from(pushes) * wanted / run.us.max(1.0)) as u32).clamp(1, most));
            }
            pushes = (pushes * 4).min(most);
        }
    }

    /// Runs a pass that times single pushes and counts their waits and retries.
    fn watch<const WORDS: usize>(
        &self,
        case: &mut QueueCase<'_, WORDS>,
        results: &Buffer,
        row: &mut Row,
    ) -> Result<(), Failure> {
        let each = (MOST_SAMPLES / self.producers()).clamp(1, case.pushes.into()) as u32;
        let count = (self.producers() * u64::from(each)) as usize;
        let samples = self.device.allocate(MemoryLocation::Device, count * size_of::<[u32; 2]>())?;
        let counts = self.device.allocate(MemoryLocation::Device, size_of::<[Word; 3]>())?;
        let run = self.run(case, each, None, Some((each, &samples, &counts)), results)?;
        let mut cycles = vec![[0u32; 2]; count];
        samples.read(0, &mut cycles)?;
        let times = |which: usize| -> Vec<f64> {
            cycles.iter().map(|sample| f64::from(sample[which]) * run.ns_per_cycle / 1000.0).collect()
        };
        percentiles(row, &PUSH, times(0));
        if case.mode == QueueMode::Blocking {
            percentiles(row, &ACK, times(1));
        }
        let mut seen = [0u64; 3];
        counts.read(0, &mut seen)?;
        row.set(&WATCHED, count).set(&FULL_STALLS, seen[0]).set(&HOST_POLLS, seen[1]).set(&LOST_EXCHANGES, seen[2]);
        Ok(())
    }

    pub(super) fn consumer_threads(&self) -> usize {
        let rings = self.tuple.rings as usize;
        rings.div_ceil(rings.div_ceil(self.args.consumers.unwrap_or(self.tuple.rings) as usize))
    }

    /// Runs one launch together with its consumers.
    fn run<const WORDS: usize>(
        &self,
        case: &mut QueueCase<'_, WORDS>,
        pushes: u32,
        check: Option<u32>,
        watch: Option<(u32, &Buffer, &Buffer)>,
        results: &Buffer,
    ) -> Result<Run, Failure> {
        let mut args = self.args(case.queues.pointer(), pushes, results);
        args.blocking = (case.mode == QueueMode::Blocking).into();
        let kernel = case.algorithm.kernel(watch.is_some());
        if let Some((each, samples, counts)) = watch {
            (args.samples_each, args.samples, args.counts) = (each, samples.pointer(), counts.pointer());
        }
        let stop = AtomicBool::new(false);
        let per_thread = case.consumers.len().div_ceil(self.consumer_threads());
        let cores = self.cores.as_slice();
        let (launched, taken) = std::thread::scope(|scope| -> Result<_, Failure> {
            let mut threads = Vec::new();
            for (index, consumers) in case.consumers.chunks_mut(per_thread).enumerate() {
                let first = index * per_thread;
                let expected = (first..first + consumers.len())
                    .map(|ring| self.producers_of(case.algorithm, ring as u32) * u64::from(pushes))
                    .collect();
                let slots = self.tuple.slots as u64;
                let duty = ConsumerOptions { expected, slots, check, pause: self.args.pause, yields: cores.is_empty() };
                let stop = &stop;
                let serve = move || {
                    if let Some(core) = cores.get(index) {
                        // If pinning is rejected, for example by a container's CPU mask, the thread runs unpinned and
                        // may share a core.
                        let _ = ginlab::cores::pin(*core);
                    }
                    consume(consumers, &duty, stop)
                };
                match std::thread::Builder::new().spawn_scoped(scope, serve) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        stop.store(true, Ordering::Relaxed);
                        return Err(Failure::Run(format!("cannot start a consumer thread: {error}")));
                    }
                }
            }
            // SAFETY: the queues, the results and the buffers of the watched pass outlive the launch, which ends in
            // this function.
            let launched = unsafe { self.device.launch(kernel, self.tuple.grid, self.tuple.block, args) };
            let launched = launched.map_err(Failure::from).and_then(|launch| {
                launch.wait(|| {
                    if !signals::interrupted() {
                        return Ok(());
                    }
                    stop.store(true, Ordering::Relaxed);
                    Err(Failure::Interrupted)
                })
            });
            stop.store(true, Ordering::Relaxed);
            let taken: Vec<Option<Taken>> = threads.into_iter().map(|thread| thread.join().ok()).collect();
            Ok((launched, taken))
        })?;
        launched?;
        let mut sum = Taken::default();
        for taken in taken {
            let taken = taken.ok_or_else(|| Failure::Run("a consumer thread panicked (a bug)".into()))?;
            sum.count += taken.count;
            sum.sum = sum.sum.wrapping_add(taken.sum) & kernels::queue::CONTENT;
            sum.wrong += taken.wrong;
            sum.empty += taken.empty;
        }
        let (us, ns_per_cycle) = self.elapsed(results, &case.queues)?;
        let missing = (self.producers() * u64::from(pushes)).abs_diff(sum.count);
        let other_sum = sum.sum != expected_sum(self.producers(), pushes.into(), self.tuple.words);
        case.wrong += missing + u64::from(missing == 0 && other_sum);
        Ok(Run { us, ns_per_cycle, taken: sum })
    }

    pub(super) fn args(&self, queues: *const u8, pushes: u32, results: &Buffer) -> QueueKernelArgs {
        QueueKernelArgs {
            queues,
            queue_count: self.tuple.rings,
            scope: self.tuple.scope as u32,
            words: self.tuple.words,
            pushes,
            blocking: 0,
            samples_each: 0,
            samples: std::ptr::null_mut(),
            counts: std::ptr::null(),
            results: results.pointer(),
        }
    }

    /// Returns the microseconds from the first block's start to the last one's end, and the nanoseconds per cycle.
    pub(super) fn elapsed(&self, results: &Buffer, queues: &KernelQueues) -> Result<(f64, f64), Failure> {
        let mut blocks = vec![QueueResult::default(); self.tuple.grid as usize];
        results.read(0, &mut blocks)?;
        if let Some(stop) = blocks.iter().map(|block| DeviceStatus(block.stop)).find(|stop| stop.0 != 0) {
            let grid = (self.tuple.grid, self.tuple.block);
            let text = format!("the kernel ended early ({} x {}): {}; {}", grid.0, grid.1, stop.text(), queues.state());
            return Err(if stop == DeviceStatus::DEADLINE { Failure::Timeout(text) } else { Failure::Run(text) });
        }
        let started = blocks.iter().map(|block| block.started).min().unwrap_or_default();
        let done = blocks.iter().map(|block| block.done).max().unwrap_or_default();
        let longest = blocks.iter().max_by_key(|block| block.done - block.started).copied().unwrap_or_default();
        let ns_per_cycle = (longest.done - longest.started) as f64 / longest.cycles.max(1) as f64;
        Ok(((done.saturating_sub(started)) as f64 / 1000.0, ns_per_cycle))
    }
}

impl<const WORDS: usize> Cases<'_, WORDS> {
    fn baselines(&self, number: usize) -> Vec<usize> {
        let mode = self.all[number].mode;
        let is =
            |other: &QueueCase<WORDS>, name: &str| other.name() == name && (other.mode == mode || !other.is_queue());
        let find = |name: &&str| self.all.iter().position(|other| is(other, name));
        self.all[number].baselines().iter().filter_map(find).collect()
    }
}

impl<const WORDS: usize> series::Bench for Cases<'_, WORDS> {
    type Case = usize;

    async fn verify(&mut self, number: usize, _: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        let (case, producers) = (&mut self.all[number], self.bench.producers() as u32);
        if !case.is_queue() {
            return Ok(None);
        }
        case.wrong += self.bench.run(case, case.pushes, Some(producers), None, &self.results)?.taken.wrong;
        Ok(Some(case.wrong_bytes()))
    }

    fn is_warm(&self, number: usize) -> bool {
        self.all[number].is_queue()
    }

    async fn run(&mut self, number: usize, _: u64, _: &mut Bootstrap) -> Result<Sample, Failure> {
        let case = &mut self.all[number];
        if !case.is_queue() {
            return Ok(Sample::of(case.bound(self.bench, &self.results)?));
        }
        let run = self.bench.run(case, case.pushes, None, None, &self.results)?;
        Ok(Sample { times: vec![run.us / f64::from(case.pushes)], parts: vec![vec![run.taken.empty as f64]] })
    }
}
