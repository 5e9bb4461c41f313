//! Measurement of one parameter combination: runs its cases alternately.

use super::args::{Algorithm, Mode, Scope};
use super::memory::{ConsumerOptions, QueueConsumer, QueueMemory, Queues, Taken, VyukovMemory, consume, expected_sum};
use super::{CONSUMERS, EMPTY_POLLS, FULL_STALLS, HOST_POLLS, LOST_EXCHANGES, PUSH, Queue, RINGS, Tuple, WATCHED};
use crate::columns::{ACK, RING_SLOTS, SCOPE, SLOT_BYTES};
use crate::error::Failure;
use crate::runner::{Rows, percentiles, timed};
use crate::values;
use crossbeam_utils::CachePadded;
use cuda_std::memory::Word;
use ginlab::cuda::{Buffer, DeviceError, Place};
use ginlab::report::{Row, Status};
use ginlab::ring::RingMemory;
use ginlab::signals;
use kernels::queue::kernel::{QueueArgs, QueueResult};
use kernels::ring::Status as DeviceStatus;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of elements that one repeat pushes.
pub(super) const MOST_ELEMENTS: u64 = 1 << 25;
/// Maximum number of samples of single pushes that one watched pass stores.
const MOST_SAMPLES: u64 = 1 << 20;

/// A parameter combination on a device.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    pub queue: &'a Queue,
    pub tuple: Tuple,
}

impl Deref for Bench<'_> {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        self.queue
    }
}

/// A queue and a mode that are measured.
struct Case<const WORDS: usize> {
    algorithm: Algorithm,
    mode: Mode,
    queues: Queues,
    consumers: Vec<CachePadded<QueueConsumer<WORDS>>>,
    pushes: u32,
    samples: Vec<f64>,
    empty: u64,
    wrong: u64,
}

struct Run {
    us: f64,
    ns_per_cycle: f64,
    taken: Taken,
}

/// Calls a method specialized for the parameter combination's number of words, which is a constant in the consumers'
/// code.
macro_rules! by_words {
    ($bench:expr, $method:ident($($argument:expr),*)) => {
        match $bench.tuple.words {
            1 => $bench.$method::<1>($($argument),*),
            2 => $bench.$method::<2>($($argument),*),
            4 => $bench.$method::<4>($($argument),*),
            8 => $bench.$method::<8>($($argument),*),
            16 => $bench.$method::<16>($($argument),*),
            32 => $bench.$method::<32>($($argument),*),
            64 => $bench.$method::<64>($($argument),*),
            _ => $bench.$method::<128>($($argument),*),
        }
    };
}
pub(super) use by_words;

/// Measures a parameter combination and returns its rows.
pub fn measure(bench: &Bench<'_>) -> Result<Rows, Failure> {
    by_words!(bench, rows())
}

impl Bench<'_> {
    fn slot_words(&self) -> u32 {
        self.args.slot_bytes.map_or(self.tuple.words, |slot| slot.0)
    }

    pub(super) fn producers(&self) -> u64 {
        let warp = self.device.warp_size();
        let each = if self.tuple.scope == Scope::Warp { self.tuple.block.div_ceil(warp) } else { self.tuple.block };
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

    pub(super) fn queues(&self, algorithm: Algorithm) -> Result<Queues, DeviceError> {
        let memory = |_| match algorithm {
            Algorithm::Vyukov => {
                let Tuple { place, slots, words, .. } = self.tuple;
                VyukovMemory::new(&self.device, place, slots, words, self.args.timeout).map(QueueMemory::Vyukov)
            }
            _ => self.ring().map(QueueMemory::Ring),
        };
        Queues::new(&self.device, (0..self.tuple.rings).map(memory).collect::<Result<_, _>>()?)
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

    fn rows<const WORDS: usize>(&self) -> Result<Rows, Failure> {
        let mut rows = Rows::new();
        let mut cases: Vec<Case<WORDS>> = Vec::new();
        for &algorithm in &self.args.algorithm {
            for &mode in &self.args.mode {
                let queues = match self.queues(algorithm) {
                    Ok(queues) => queues,
                    Err(DeviceError::Missing(why) | DeviceError::Refused(why)) => {
                        let mut row = self.blank(&values::name(algorithm));
                        (row.mode, row.status) = (Some(values::name(mode)), Status::Skipped(why));
                        rows.push((row, Vec::new()));
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                // SAFETY: the dispatch above selects elements of WORDS words, and the consumers are stored together
                // with their queues.
                let consumers = unsafe { queues.consumers() };
                let (samples, empty, wrong) = (Vec::new(), 0, 0);
                cases.push(Case { algorithm, mode, queues, consumers, pushes: 1, samples, empty, wrong });
            }
        }
        let results = self.device.allocate(Place::Device, self.tuple.grid as usize * size_of::<QueueResult>())?;
        let stores = self.stores(&results)?;
        for case in &mut cases {
            case.pushes = self.calibrate(case, &results)?;
        }
        let mut prototype = self.prototype.as_ref().map(|prototype| (prototype.ring(self.tuple.slots), Vec::new()));
        let like = cases.iter().find(|case| case.algorithm == Algorithm::Ticket && case.mode == Mode::Nbi);
        let like = like.map_or(1, |case| case.pushes);
        for _ in 0..self.args.repeat.repeats {
            if let Some((ring, samples)) = &mut prototype {
                let core = self.cores.first().copied();
                let us = ring.run(self.tuple.grid, self.tuple.block, like, self.args.timeout, core)?;
                samples.push(us / f64::from(like));
            }
            for case in &mut cases {
                let pushes = case.pushes;
                let run = self.run(case, pushes, None, None, &results)?;
                case.samples.push(run.us / f64::from(pushes));
                case.empty += run.taken.empty;
            }
        }
        rows.extend(stores);
        if let Some((_, samples)) = prototype {
            let mut row = self.blank("prototype");
            (row.mode, row.iterations) = (Some(values::name(Mode::Nbi)), Some(like.into()));
            row.set(&CONSUMERS, 1u32);
            timed(&mut row, &samples, self.producers() * u64::from(self.tuple.words) * 8, self.producers());
            rows.push((row, samples));
        }
        for case in &mut cases {
            let row = self.finish(case, &results)?;
            rows.push((row, case.samples.clone()));
        }
        for index in 0..rows.len() {
            let (case, mode) = (rows[index].0.case.clone(), rows[index].0.mode.clone());
            let baseline = match (case.as_str(), mode.as_deref()) {
                ("ticket", Some("nbi")) => {
                    let case = |name| rows.iter().find(|(row, _)| row.case == name);
                    case("prototype").or(case("stores"))
                }
                ("ticket", _) => self.floors.iter().find(|(row, _)| row.case == "ping-pong"),
                ("stores" | "prototype", _) => None,
                _ => rows.iter().find(|(row, _)| row.case == "ticket" && row.mode == mode),
            };
            if let Some((baseline, theirs)) = baseline.cloned()
                && rows[index].0.status == Status::Ok
            {
                let ours = rows[index].1.clone();
                rows[index].0.against(&baseline, &ours, &theirs);
            }
        }
        Ok(rows)
    }

    /// Returns the number of pushes per producer that take about the requested time.
    fn calibrate<const WORDS: usize>(&self, case: &mut Case<WORDS>, results: &Buffer) -> Result<u32, Failure> {
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

    /// Runs the checked and the watched pass, and returns the row.
    fn finish<const WORDS: usize>(&self, case: &mut Case<WORDS>, results: &Buffer) -> Result<Row, Failure> {
        let pushes = case.pushes;
        let mut row = self.blank(&values::name(case.algorithm));
        row.mode = Some(values::name(case.mode));
        row.iterations = Some(pushes.into());
        row.set(&CONSUMERS, self.consumer_threads()).set(&EMPTY_POLLS, case.empty);
        timed(&mut row, &case.samples, self.producers() * WORDS as u64 * 8, self.producers());
        if !self.args.repeat.no_check {
            let producers = self.producers() as u32;
            let run = self.run(case, pushes, Some(producers), None, results)?;
            case.wrong += run.taken.wrong;
        }
        row.wrong = Some(case.wrong);
        if case.wrong > 0 {
            row.status = Status::Failed(format!("{} elements lost, doubled, torn or out of order", case.wrong));
        }
        self.watch(case, results, &mut row)?;
        Ok(row)
    }

    /// Runs a pass that times single pushes and counts their waits and retries.
    fn watch<const WORDS: usize>(
        &self,
        case: &mut Case<WORDS>,
        results: &Buffer,
        row: &mut Row,
    ) -> Result<(), Failure> {
        let each = (MOST_SAMPLES / self.producers()).clamp(1, case.pushes.into()) as u32;
        let count = (self.producers() * u64::from(each)) as usize;
        let samples = self.device.allocate(Place::Device, count * size_of::<[u32; 2]>())?;
        let counts = self.device.allocate(Place::Device, size_of::<[Word; 3]>())?;
        let run = self.run(case, each, None, Some((each, &samples, &counts)), results)?;
        let mut cycles = vec![[0u32; 2]; count];
        samples.read(0, &mut cycles)?;
        let times = |which: usize| -> Vec<f64> {
            cycles.iter().map(|sample| f64::from(sample[which]) * run.ns_per_cycle / 1000.0).collect()
        };
        percentiles(row, &PUSH, times(0));
        if case.mode == Mode::Blocking {
            percentiles(row, &ACK, times(1));
        }
        let mut seen = [0u64; 3];
        counts.read(0, &mut seen)?;
        row.set(&WATCHED, count).set(&FULL_STALLS, seen[0]).set(&HOST_POLLS, seen[1]).set(&LOST_EXCHANGES, seen[2]);
        Ok(())
    }

    fn consumer_threads(&self) -> usize {
        let rings = self.tuple.rings as usize;
        rings.div_ceil(rings.div_ceil(self.args.consumers.unwrap_or(self.tuple.rings) as usize))
    }

    /// Runs one launch together with its consumers.
    fn run<const WORDS: usize>(
        &self,
        case: &mut Case<WORDS>,
        pushes: u32,
        check: Option<u32>,
        watch: Option<(u32, &Buffer, &Buffer)>,
        results: &Buffer,
    ) -> Result<Run, Failure> {
        let mut args = self.args(case.queues.pointer(), pushes, results);
        args.blocking = (case.mode == Mode::Blocking).into();
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

    pub(super) fn args(&self, queues: *const u8, pushes: u32, results: &Buffer) -> QueueArgs {
        QueueArgs {
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
    pub(super) fn elapsed(&self, results: &Buffer, queues: &Queues) -> Result<(f64, f64), Failure> {
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
