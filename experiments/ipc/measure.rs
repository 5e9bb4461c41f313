//! Measurement of one parameter combination: runs the cases alternately, lets the receiver measure them, and verifies
//! the bytes.

use super::cases::{CopyMechanism, CopyMethod, MissingCase, cases};
use super::plan::{self, GpuFlow, IpcConfig, IpcOperation, IpcPlan, Scene};
use super::rank::IpcRank;
use super::rows::{IpcMeasurement, IpcResults};
use crate::error::Failure;
use crate::series::{self, Sample, SeriesOptions};
use crate::values::check_grid;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, DeviceError, Event, ForeignModule, Function, Graph, Launch, MemoryLocation, Stream};
use ginlab::gin::watch::{HostWait, Work};
use kernels::ipc::IpcKernelArgs;
use kernels::ipc_kernel::{IPC_CHECK, IPC_FILL};
use kernels::ipc_together::TogetherArgs;
use kernels::ipc_wait::{GateArgs, IPC_GATE};
use kernels::ring::Status;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::time::{Duration, Instant};

/// The measurement of a parameter combination in a scene, on this rank.
pub struct IpcBench<'a> {
    pub plan: &'a IpcPlan,
    pub scene: &'a Scene,
    pub tuple: IpcConfig,
    /// Number of the parameter combination in the run. Selects its patterns.
    pub number: u32,
    pub rank: &'a IpcRank,
    pub cuda: Option<&'a ForeignModule>,
}

/// The cases of a parameter combination, by their index.
pub struct Cases<'a> {
    bench: &'a IpcBench<'a>,
    pub setup: IpcSetup,
    pub outcome: IpcResults,
}

impl<'a> Deref for Cases<'a> {
    type Target = IpcBench<'a>;

    fn deref(&self) -> &IpcBench<'a> {
        self.bench
    }
}

/// State that is set up once per tuple. Dropped before the streams, whose work has completed by then.
pub struct IpcSetup {
    pub cases: Vec<CopyMethod>,
    /// Flows that this rank executes, with their index in the scene.
    pub mine: Vec<(usize, GpuFlow)>,
    /// Graphs, indexed by case and by position in `mine`.
    graphs: Vec<Vec<Graph>>,
    /// One sum per thread and flow of `mine`; `None` unless the operation is a read.
    pub sums: Option<Buffer>,
    /// Argument tables of a launch for all flows of `mine`: without signals, and with signals.
    together: Option<[Buffer; 2]>,
    /// Table of the gate's words, and their number. `None` if no other rank executes flows.
    gate: Option<(Buffer, u32)>,
    gate_function: Function<GateArgs>,
    pub fill: Function<IpcKernelArgs>,
    pub check: Function<IpcKernelArgs>,
    pub iterations: u32,
}

impl IpcSetup {
    /// Returns the number of streams that a case uses: one per flow of `mine`, or one for all.
    fn streams(&self, case: usize) -> usize {
        if matches!(self.cases[case].by, CopyMechanism::Together(_)) { self.mine.len().min(1) } else { self.mine.len() }
    }
}

impl IpcBench<'_> {
    /// Measures the parameter combination. Returns the results on rank 0, and a case that the device does not support.
    pub async fn run(&self, ranks: &mut Bootstrap) -> Result<(Option<IpcMeasurement>, Option<MissingCase>), Failure> {
        let (setup, missing) = self.setup()?;
        let iterations = setup.iterations.into();
        let warmup = self.plan.args.warmup.into();
        let series = SeriesOptions { warmup, iterations, ..self.plan.args.repeat.series("a repeat") };
        let numbers: Vec<usize> = (0..setup.cases.len()).collect();
        let mut cases = Cases { bench: self, setup, outcome: IpcResults::default() };
        let results = series.measure(&mut cases, &numbers, ranks).await?;
        for case in numbers {
            if cases.setup.cases[case].received && self.tuple.launch == plan::SubmitMethod::Stream {
                cases.received(case, ranks)?;
            }
        }
        let outcomes = ranks.gather_values(&cases.outcome, "errors, and times of receivers")?;
        let cases = cases.setup.cases;
        let measured =
            results.zip(outcomes).map(|(results, outcomes)| IpcMeasurement { cases, results, outcomes, iterations });
        Ok((measured, missing))
    }

    fn setup(&self) -> Result<(IpcSetup, Option<MissingCase>), Failure> {
        let device = &self.rank.device;
        let (cases, missing) = cases(self.plan, device, self.cuda, &self.tuple)?;
        let me = self.rank.me;
        let mine: Vec<(usize, GpuFlow)> =
            self.scene.flows.iter().copied().enumerate().filter(|(_, flow)| flow.from == me).collect();
        let others = others(self.rank, self.scene);
        let gate = if mine.is_empty() || others.is_empty() {
            None
        } else {
            let words: Vec<[u64; 2]> = others.iter().map(|other| self.rank.gate_words(*other)).collect();
            let table = device.allocate(MemoryLocation::Device, size_of_val(words.as_slice()))?;
            table.write(0, &words)?;
            Some((table, others.len() as u32))
        };
        let sums = match self.tuple.operation {
            IpcOperation::Read => Some(device.allocate(MemoryLocation::Device, self.threads() * mine.len() * 4)?),
            _ => None,
        };
        // Launches of other sizes have taken a different number of parts.
        mine.iter().try_for_each(|(_, flow)| self.rank.reset_taken(Some(flow.to)))?;
        self.rank.reset_taken(None)?;
        let mut setup = IpcSetup {
            cases,
            mine,
            graphs: Vec::new(),
            sums,
            together: None,
            gate,
            gate_function: device.function(&IPC_GATE, 1)?,
            fill: device.function(&IPC_FILL, self.helpers().1)?,
            check: device.function(&IPC_CHECK, self.helpers().1)?,
            iterations: self.plan.iterations(self.tuple.bytes),
        };
        let together = setup.cases.iter().position(|case| matches!(case.by, CopyMechanism::Together(_)));
        if let Some(case) = together.filter(|_| !setup.mine.is_empty()) {
            let table = |signals| {
                let flows: Vec<_> =
                    (0..setup.mine.len()).map(|index| self.args(&setup, case, index, signals)).collect();
                let table = device.allocate(MemoryLocation::Device, size_of_val(flows.as_slice()))?;
                table.write(0, &flows).map(|()| table)
            };
            setup.together = Some([table(false)?, table(true)?]);
            check_grid(device, self.tuple.grid.saturating_mul(setup.mine.len() as u32), self.tuple.block)?;
        }
        if self.tuple.launch == plan::SubmitMethod::Graph {
            for case in 0..setup.cases.len() {
                let graph = |index: usize| {
                    self.rank.streams[index].record(|stream| {
                        (0..setup.iterations).try_for_each(|_| self.append(&setup, case, index, stream, false))
                    })
                };
                let graphs = (0..setup.streams(case)).map(graph).collect::<Result<Vec<_>, _>>()?;
                setup.graphs.push(graphs);
            }
        }
        Ok((setup, missing))
    }

    pub fn threads(&self) -> usize {
        self.tuple.grid as usize * self.tuple.block as usize
    }

    /// Returns the grid and block of the kernels that fill and check memory.
    pub fn helpers(&self) -> (u32, u32) {
        if self.plan.emulated { (1, 2) } else { (512, 256) }
    }

    /// Returns the seed for the pattern of a case, whose bytes come from the memory or kernel of rank `owner`.
    pub fn seed(&self, case: usize, owner: usize) -> u32 {
        kernels::pattern::seed(owner as u32, self.number, case as u32) as u32
    }

    /// Returns the rank whose memory receives the bytes of a flow, and the rank that provides them.
    pub fn holder(&self, flow: GpuFlow) -> (usize, usize) {
        if self.tuple.operation == IpcOperation::Read { (flow.from, flow.to) } else { (flow.to, flow.from) }
    }

    fn args(&self, setup: &IpcSetup, case: usize, index: usize, signals: bool) -> IpcKernelArgs {
        let flow = setup.mine[index].1;
        let (holder, owner) = self.holder(flow);
        let sums = setup.sums.as_ref().map(|sums| sums.address() + (index * self.threads() * 4) as u64);
        IpcKernelArgs {
            destination: self.rank.slot(holder, owner) as *mut u8,
            source: self.rank.source(owner) as *const u8,
            bytes: self.tuple.bytes,
            seed: self.seed(case, owner),
            xor: 0,
            sums: sums.unwrap_or_default() as *mut u32,
            counter: self.rank.counter(Some(flow.to)),
            flag: if signals { self.rank.flag(flow) } else { std::ptr::null() },
            taken: self.rank.taken(Some(flow.to)),
        }
    }

    /// Appends one launch or copy of the flow at `index` of `mine`.
    fn append(
        &self,
        setup: &IpcSetup,
        case: usize,
        index: usize,
        stream: &Stream,
        signals: bool,
    ) -> Result<(), DeviceError> {
        let args = self.args(setup, case, index, signals);
        let IpcConfig { grid, block, .. } = self.tuple;
        match (&setup.cases[case].by, &setup.together) {
            // SAFETY: both memories have the size of the parameter combination and are kept until the streams' work is
            // done. A slot and its counter have only one writer at a time.
            (CopyMechanism::Each(function), _) => unsafe { stream.launch(function, grid, block, args) },
            (CopyMechanism::Together(function), Some(tables)) => {
                let count = setup.mine.len() as u32;
                let flows = tables[usize::from(signals)].pointer();
                let args = TogetherArgs { flows, count, taken: self.rank.taken(None) };
                // SAFETY: the memories meet the same requirements as above. The table has `count` entries and is kept
                // as long.
                unsafe { stream.launch(function, grid * count, block, args) }
            }
            // The table exists if this rank has flows. Without flows no launch is appended.
            (CopyMechanism::Together(_), None) => Ok(()),
            // SAFETY: both memories have the parameter combination's size and are kept until the streams' work is done.
            (CopyMechanism::CopyEngine, _) => unsafe {
                stream.copy(args.destination as u64, args.source as u64, args.bytes)
            },
        }
    }

    /// Waits for events. On a failure it also aborts the waits of this rank's kernels.
    pub fn wait(&self, events: &[Event], what: &str, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let mut work = Events { events, what, tuple: &self.tuple, rank: self.rank, scene: self.scene };
        let done = || events.iter().try_fold(true, |done, event| Ok(done && event.is_complete()?));
        let watch = HostWait::new(ranks, Duration::ZERO).with_limit(self.plan.timeout);
        watch.wait(&mut work, Launch::ENDING, done).inspect_err(|_| self.rank.abort())
    }

    pub fn check_stop(&self, what: &str) -> Result<(), Failure> {
        match self.rank.stopped()? {
            None => Ok(()),
            Some(Status::DEADLINE) => Err(Failure::Timeout(format!(
                "{what}: a kernel timed out waiting for another GPU; {}",
                state(self.rank, self.scene)
            ))),
            Some(_) => {
                Err(Failure::Run(format!("{what}: a kernel's wait was aborted; {}", state(self.rank, self.scene))))
            }
        }
    }
}

impl Cases<'_> {
    /// Runs one pass of a case over all flows of `mine` at the same time, after the gate. The sample's parts are, for
    /// each flow of the scene, its microseconds per launch, and microseconds per launch until posted.
    pub fn batch(&self, case: usize, launches: u32, signals: bool, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        let (setup, round) = (&self.setup, self.rank.next_round());
        if setup.mine.is_empty() {
            return Ok(Sample::default());
        }
        let streams = &self.rank.streams[..setup.streams(case)];
        if let Some((words, count)) = &setup.gate {
            let args = GateArgs {
                words: words.pointer(),
                count: *count,
                round,
                timeout_ns: self.plan.timeout.as_nanos() as u64,
                abort: self.rank.abort_word(),
                stop: self.rank.stop_word(),
            };
            // SAFETY: table and words are kept until the stream's work is done.
            unsafe { streams[0].launch(&setup.gate_function, 1, 1, args) }?;
        }
        let posting = Instant::now();
        let start = streams[0].event()?;
        for stream in &streams[1..] {
            stream.wait_for(&start)?;
        }
        let graphs = setup.graphs.get(case).filter(|_| !signals);
        match graphs {
            Some(graphs) => {
                for (stream, graph) in streams.iter().zip(graphs) {
                    // SAFETY: the requirements of the recorded operations still hold, and the previous replay has
                    // ended.
                    unsafe { stream.replay(graph) }?;
                }
            }
            None => {
                for _ in 0..launches {
                    for (index, stream) in streams.iter().enumerate() {
                        self.append(setup, case, index, stream, signals)?;
                    }
                }
            }
        }
        let ends = streams.iter().map(Stream::event).collect::<Result<Vec<_>, _>>()?;
        let launches = f64::from(if graphs.is_some() { setup.iterations } else { launches });
        let posted = posting.elapsed().as_secs_f64() * 1e6 / launches;
        self.wait(&ends, setup.cases[case].name, ranks)?;
        if setup.gate.is_some() {
            self.check_stop(setup.cases[case].name)?;
        }
        let mut parts = vec![Vec::new(); 2 * self.scene.flows.len()];
        for (index, (number, _)) in setup.mine.iter().enumerate() {
            let end = &ends[index.min(ends.len() - 1)];
            parts[2 * number].push(end.since_us(&start)? / launches);
            parts[2 * number + 1].push(posted);
        }
        Ok(Sample { times: Vec::new(), parts })
    }
}

impl series::Bench for Cases<'_> {
    type Case = usize;

    async fn verify(&mut self, case: usize, ranks: &mut Bootstrap) -> Result<Option<u64>, Failure> {
        // The errors of each flow are in `outcome`.
        self.check(case, ranks).map(|()| None)
    }

    async fn run(&mut self, case: usize, iterations: u64, ranks: &mut Bootstrap) -> Result<Sample, Failure> {
        self.batch(case, iterations as u32, false, ranks)
    }
}

/// Events of a flow's operations on this rank.
struct Events<'a> {
    events: &'a [Event],
    what: &'a str,
    tuple: &'a IpcConfig,
    rank: &'a IpcRank,
    scene: &'a Scene,
}

impl Work for Events<'_> {
    type Error = Failure;

    /// Returns the number of completed events.
    fn pulse(&mut self, _: bool) -> Result<Option<u64>, Failure> {
        let mut complete = 0;
        for event in self.events {
            complete += u64::from(event.is_complete()?);
        }
        Ok(Some(complete))
    }

    fn late(&mut self, limit: Duration) -> Failure {
        Failure::Timeout(format!(
            "{} of {} B at {} x {} has not completed after {} s; {}",
            self.what,
            self.tuple.bytes,
            self.tuple.grid,
            self.tuple.block,
            limit.as_secs(),
            state(self.rank, self.scene)
        ))
    }

    fn abort(&mut self, _: &Failure) {
        self.rank.abort();
    }
}

/// Returns the other ranks that execute flows in this scene.
fn others(rank: &IpcRank, scene: &Scene) -> BTreeSet<usize> {
    scene.flows.iter().map(|flow| flow.from).filter(|worker| *worker != rank.me).collect()
}

/// Returns the progress of the other ranks, for messages about failed waits.
fn state(rank: &IpcRank, scene: &Scene) -> String {
    let of = |other: usize| match rank.gates_of(other) {
        Ok(gates) => format!("rank {other} at gate {gates}"),
        Err(error) => format!("rank {other}: {error}"),
    };
    let others = others(rank, scene).into_iter().map(of);
    std::iter::once(format!("pair {}", scene.pair())).chain(others).collect::<Vec<_>>().join(", ")
}
