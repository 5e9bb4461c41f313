//! Runs the cases of one tuple in turn, and has them seen by the receiver and verified.

use super::cases::{By, Case, Missing, cases};
use super::plan::{self, Flow, Operation, Plan, Scene, Tuple};
use super::rank::Rank;
use super::rows::{Measured, Outcome};
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, DeviceError, Event, ForeignModule, Function, Graph, Launch, Place, Stream, wait_for};
use ginlab::signals;
use kernels::ipc::IpcArgs;
use kernels::ipc_kernel::{IPC_CHECK, IPC_FILL};
use kernels::ipc_together::TogetherArgs;
use kernels::ipc_wait::{GateArgs, IPC_GATE};
use kernels::ring::Status;
use std::collections::BTreeSet;
use std::time::Instant;

/// One scene and tuple, on this rank.
pub struct Bench<'a> {
    pub plan: &'a Plan,
    pub scene: &'a Scene,
    pub tuple: Tuple,
    /// Number of the tuple in the run, which names its patterns.
    pub number: u32,
    pub rank: &'a Rank,
    pub ranks: &'a mut Bootstrap,
    pub cuda: Option<&'a ForeignModule>,
}

/// What is set up once for a tuple. Dropped before the streams, whose work is done by then.
pub struct Setup {
    pub cases: Vec<Case>,
    /// The flows that this rank works for, with their numbers in the scene.
    pub mine: Vec<(usize, Flow)>,
    /// By case, then by flow of ours.
    graphs: Vec<Vec<Graph>>,
    /// One sum per thread and flow of ours.
    pub sums: Option<Buffer>,
    /// What a launch for all flows of ours reads: without signals, and with them.
    together: Option<[Buffer; 2]>,
    /// The gate's words and their number; none where nobody else works.
    gate: Option<(Buffer, u32)>,
    gate_function: Function<GateArgs>,
    pub fill: Function<IpcArgs>,
    pub check: Function<IpcArgs>,
    pub iterations: u32,
}

impl Setup {
    /// Streams that a case has work on: one for each flow of ours, or one for all.
    fn streams(&self, case: usize) -> usize {
        if matches!(self.cases[case].by, By::Together(_)) { self.mine.len().min(1) } else { self.mine.len() }
    }
}

impl Bench<'_> {
    /// Every rank gets what all ranks have found.
    pub fn run(mut self) -> Result<(Measured, Option<Missing>), Failure> {
        let (setup, missing) = self.setup()?;
        let mut outcome = Outcome::default();
        if self.plan.args.warmup > 0 {
            for case in 0..setup.cases.len() {
                self.batch(&setup, case, self.plan.args.warmup, false)?;
            }
        }
        for _ in 0..self.plan.args.repeats {
            // Nobody waits for the others longer than for one repeat.
            self.ranks.barrier("a repeat")?;
            for case in 0..setup.cases.len() {
                outcome.times.extend(self.batch(&setup, case, setup.iterations, false)?);
            }
        }
        for case in 0..setup.cases.len() {
            if setup.cases[case].received && self.tuple.launch == plan::Launch::Stream {
                self.received(&setup, case, &mut outcome)?;
            }
            if !self.plan.args.no_check {
                self.verify(&setup, case, &mut outcome)?;
            }
        }
        let outcomes = self.ranks.all_gather_values(&outcome, "times")?;
        Ok((Measured { cases: setup.cases, outcomes, iterations: setup.iterations }, missing))
    }

    fn setup(&self) -> Result<(Setup, Option<Missing>), Failure> {
        let device = &self.rank.device;
        let (cases, missing) = cases(self.plan, device, self.cuda, &self.tuple)?;
        let me = self.rank.me;
        let mine: Vec<(usize, Flow)> =
            self.scene.flows.iter().copied().enumerate().filter(|(_, flow)| flow.from == me).collect();
        let others = self.others();
        let gate = if mine.is_empty() || others.is_empty() {
            None
        } else {
            let words: Vec<[u64; 2]> = others.iter().map(|other| self.rank.gate_words(*other)).collect();
            let table = device.allocate(Place::Device, size_of_val(words.as_slice()))?;
            table.write(0, &words)?;
            Some((table, others.len() as u32))
        };
        let sums = match self.tuple.operation {
            Operation::Read => Some(device.allocate(Place::Device, self.threads() * mine.len() * 4)?),
            _ => None,
        };
        // Launches of other sizes have taken other numbers of parts.
        mine.iter().try_for_each(|(_, flow)| self.rank.reset_taken(Some(flow.to)))?;
        self.rank.reset_taken(None)?;
        let mut setup = Setup {
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
        let together = setup.cases.iter().position(|case| matches!(case.by, By::Together(_)));
        if let Some(case) = together.filter(|_| !setup.mine.is_empty()) {
            let table = |signals| {
                let flows: Vec<_> =
                    (0..setup.mine.len()).map(|index| self.args(&setup, case, index, signals)).collect();
                let table = device.allocate(Place::Device, size_of_val(flows.as_slice()))?;
                table.write(0, &flows).map(|()| table)
            };
            setup.together = Some([table(false)?, table(true)?]);
            device.check_grid(self.tuple.grid.saturating_mul(setup.mine.len() as u32), self.tuple.block)?;
        }
        if self.tuple.launch == plan::Launch::Graph {
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

    /// The other ranks that work in this scene.
    fn others(&self) -> BTreeSet<usize> {
        self.scene.flows.iter().map(|flow| flow.from).filter(|worker| *worker != self.rank.me).collect()
    }

    pub fn threads(&self) -> usize {
        self.tuple.grid as usize * self.tuple.block as usize
    }

    /// Grid of what fills and checks.
    pub fn helpers(&self) -> (u32, u32) {
        if self.plan.emulated { (1, 2) } else { (512, 256) }
    }

    /// Names the pattern of a case whose bytes come from this rank's memory, or kernel.
    pub fn seed(&self, case: usize, owner: usize) -> u32 {
        kernels::pattern::seed(owner as u32, self.number, case as u32) as u32
    }

    /// Who has the bytes of a flow in the end, and whose they are.
    pub fn holder(&self, flow: Flow) -> (usize, usize) {
        if self.tuple.operation == Operation::Read { (flow.from, flow.to) } else { (flow.to, flow.from) }
    }

    fn args(&self, setup: &Setup, case: usize, index: usize, signals: bool) -> IpcArgs {
        let flow = setup.mine[index].1;
        let (holder, owner) = self.holder(flow);
        let sums = setup.sums.as_ref().map(|sums| sums.address() + (index * self.threads() * 4) as u64);
        IpcArgs {
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

    /// Appends one launch, or one copy, of a flow of ours.
    fn append(
        &self,
        setup: &Setup,
        case: usize,
        index: usize,
        stream: &Stream,
        signals: bool,
    ) -> Result<(), DeviceError> {
        let args = self.args(setup, case, index, signals);
        let Tuple { grid, block, .. } = self.tuple;
        match (&setup.cases[case].by, &setup.together) {
            // SAFETY: the memories are as long as the tuple's bytes, and are kept until the streams' work is done; a slot
            // and its counter have one writer at a time.
            (By::Each(function), _) => unsafe { stream.launch(function, grid, block, args) },
            (By::Together(function), Some(tables)) => {
                let count = setup.mine.len() as u32;
                let flows = tables[usize::from(signals)].pointer();
                let args = TogetherArgs { flows, count, taken: self.rank.taken(None) };
                // SAFETY: as above; the table has as many, and is kept as long.
                unsafe { stream.launch(function, grid * count, block, args) }
            }
            // The table is there wherever a flow is ours, and who has none appends nothing.
            (By::Together(_), None) => Ok(()),
            // SAFETY: as above.
            (By::CopyEngine, _) => unsafe { stream.copy(args.destination as u64, args.source as u64, args.bytes) },
        }
    }

    /// One pass of a case over all flows of ours at once, behind the gate: for each (case, number of the flow, microseconds per
    /// launch, microseconds until it was posted).
    pub fn batch(
        &mut self,
        setup: &Setup,
        case: usize,
        launches: u32,
        signals: bool,
    ) -> Result<Vec<(usize, usize, f64, f64)>, Failure> {
        let round = self.rank.next_round();
        if setup.mine.is_empty() {
            return Ok(Vec::new());
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
                    // SAFETY: as for what was recorded; the replay before has ended.
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
        self.wait(&ends, setup.cases[case].name)?;
        if setup.gate.is_some() {
            self.check_stop(setup.cases[case].name)?;
        }
        let sample = |(index, (number, _)): (usize, &(usize, Flow))| {
            let end = &ends[index.min(ends.len() - 1)];
            Ok((case, *number, end.since_us(&start)? / launches, posted))
        };
        setup.mine.iter().enumerate().map(sample).collect()
    }

    /// Waits for events, and looks after the other ranks meanwhile. Whatever ends it early also ends the waits of our kernels.
    pub fn wait(&mut self, events: &[Event], what: &str) -> Result<(), Failure> {
        let (rank, deadline) = (self.rank, Instant::now() + self.plan.timeout);
        let abort = |_: &Failure| rank.abort();
        let done = || events.iter().try_fold(true, |done, event| Ok(done && event.is_complete()?));
        let ended = wait_for(Launch::ENDING, done, || self.look(deadline, what).inspect_err(abort));
        ended.inspect_err(abort)
    }

    /// What ends a wait before its events do.
    fn look(&mut self, deadline: Instant, what: &str) -> Result<(), Failure> {
        if signals::interrupted() {
            return Err(Failure::Interrupted);
        }
        if Instant::now() > deadline {
            return Err(Failure::Timeout(format!(
                "{what} of {} B at {} x {} is not done after {} s; {}",
                self.tuple.bytes,
                self.tuple.grid,
                self.tuple.block,
                self.plan.timeout.as_secs(),
                self.state()
            )));
        }
        Ok(self.ranks.check_peers()?)
    }

    /// How far the others have come, for messages about waits that ended.
    fn state(&self) -> String {
        let of = |other: usize| match self.rank.gates_of(other) {
            Ok(gates) => format!("rank {other} at gate {gates}"),
            Err(error) => format!("rank {other}: {error}"),
        };
        let others = self.others().into_iter().map(of);
        std::iter::once(format!("pair {}", self.scene.pair())).chain(others).collect::<Vec<_>>().join(", ")
    }

    pub fn check_stop(&self, what: &str) -> Result<(), Failure> {
        match self.rank.stopped()? {
            None => Ok(()),
            Some(Status::DEADLINE) => {
                Err(Failure::Timeout(format!("{what}: a kernel waited for another GPU in vain; {}", self.state())))
            }
            Some(_) => Err(Failure::Run(format!("{what}: a kernel's wait was ended; {}", self.state()))),
        }
    }
}
