//! Runs the cases of one tuple in turn, and has them seen by the receiver and verified.

use super::cases::{Case, Missing, cases};
use super::plan::{Flow, Launch, Operation, Plan, Scene, Tuple};
use super::rank::{Rank, gather};
use super::rows::{Measured, Outcome};
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::ipc_kernels::{CHECK, FILL, GATE, RECEIVE};
use ginlab::cuda::{Buffer, DeviceError, ForeignModule, Function, Graph, Mark, Place, Stream};
use ginlab::measure::stats::Summary;
use ginlab::signals;
use kernels::ipc::{IpcArgs, POISON, sum};
use kernels::ipc_kernel::{GateArgs, ReceiveArgs};
use kernels::ring::Stop;
use std::time::{Duration, Instant};

/// Signalled launches of the pass that the receiver watches.
const RECEIVED: u32 = 16;
/// How often a wait asks whether the other ranks are there.
const PEERS_EVERY: Duration = Duration::from_millis(20);

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
struct Setup {
    cases: Vec<Case>,
    /// The flows that this rank works for, with their numbers in the scene.
    mine: Vec<(usize, Flow)>,
    /// By case, then by flow of ours.
    graphs: Vec<Vec<Graph>>,
    /// One sum per thread and flow of ours.
    sums: Option<Buffer>,
    /// The gate's words and their number; none where nobody else works.
    gate: Option<(Buffer, u32)>,
    gate_function: Function<GateArgs>,
    fill: Function<IpcArgs>,
    check: Function<IpcArgs>,
    iterations: u32,
}

impl Bench<'_> {
    /// Every rank gets what all ranks have found.
    pub fn run(mut self) -> Result<(Measured, Vec<Missing>), Failure> {
        let (setup, missing) = self.setup()?;
        let mut outcome = Outcome::default();
        if self.plan.warmup > 0 {
            for case in 0..setup.cases.len() {
                self.batch(&setup, case, self.plan.warmup, false)?;
            }
        }
        for _ in 0..self.plan.repeats {
            // Nobody waits for the others longer than for one repeat.
            self.ranks.barrier("a repeat")?;
            for case in 0..setup.cases.len() {
                for sample in self.batch(&setup, case, setup.iterations, false)? {
                    outcome.times.push(sample);
                }
            }
        }
        for case in 0..setup.cases.len() {
            if setup.cases[case].received && self.tuple.launch == Launch::Stream {
                self.received(&setup, case, &mut outcome)?;
            }
            if self.plan.check {
                self.verify(&setup, case, &mut outcome)?;
            }
        }
        let outcomes = gather(self.ranks, &outcome, "times")?;
        Ok((Measured { cases: setup.cases, outcome: Outcome::merged(outcomes), iterations: setup.iterations }, missing))
    }

    fn setup(&self) -> Result<(Setup, Vec<Missing>), Failure> {
        let device = &self.rank.device;
        let (cases, missing) = cases(self.plan, device, self.cuda, &self.tuple)?;
        let me = self.rank.me;
        let mine: Vec<(usize, Flow)> =
            self.scene.flows.iter().copied().enumerate().filter(|(_, flow)| flow.from == me).collect();
        let mut others: Vec<usize> = self.scene.flows.iter().map(|flow| flow.from).filter(|from| *from != me).collect();
        others.sort_unstable();
        others.dedup();
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
        let mut setup = Setup {
            cases,
            mine,
            graphs: Vec::new(),
            sums,
            gate,
            gate_function: device.function(&GATE, 1)?,
            fill: device.function(&FILL, self.helpers().1)?,
            check: device.function(&CHECK, self.helpers().1)?,
            iterations: self.plan.iterations(self.tuple.bytes),
        };
        if self.tuple.launch == Launch::Graph {
            for case in 0..setup.cases.len() {
                let graph = |index: usize| {
                    self.rank.streams[index].record(|stream| {
                        (0..setup.iterations).try_for_each(|_| self.append(&setup, case, index, stream, false))
                    })
                };
                let graphs = (0..setup.mine.len()).map(graph).collect::<Result<Vec<_>, _>>()?;
                setup.graphs.push(graphs);
            }
        }
        Ok((setup, missing))
    }

    fn threads(&self) -> usize {
        self.tuple.grid as usize * self.tuple.block as usize
    }

    /// Grid of what fills and checks.
    fn helpers(&self) -> (u32, u32) {
        if self.plan.emulated { (1, 2) } else { (512, 256) }
    }

    /// Names the pattern of a case whose bytes come from this rank's memory, or kernel.
    fn seed(&self, case: usize, owner: usize) -> u32 {
        kernels::pattern::seed(owner as u32, self.number, case as u32) as u32
    }

    /// Whose bytes a flow carries.
    fn owner(&self, flow: Flow) -> usize {
        if self.tuple.operation == Operation::Read { flow.to } else { flow.from }
    }

    /// Who has the bytes of a flow in the end, and from whom.
    fn holder(&self, flow: Flow) -> (usize, usize) {
        if self.tuple.operation == Operation::Read { (flow.from, flow.to) } else { (flow.to, flow.from) }
    }

    fn args(&self, setup: &Setup, case: usize, index: usize, signals: bool) -> IpcArgs {
        let flow = setup.mine[index].1;
        let (holder, other) = self.holder(flow);
        let sums = setup.sums.as_ref().map(|sums| sums.address() + (index * self.threads() * 4) as u64);
        IpcArgs {
            destination: self.rank.slot(holder, other) as *mut u8,
            source: self.rank.source(self.owner(flow)) as *const u8,
            bytes: self.tuple.bytes,
            seed: self.seed(case, self.owner(flow)),
            xor: 0,
            sums: sums.unwrap_or_default() as *mut u32,
            counter: self.rank.counter(Some(flow.to)),
            flag: if signals { self.rank.flag(flow) } else { std::ptr::null() },
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
        match &setup.cases[case].function {
            // SAFETY: the memories are as long as the tuple's bytes, and are kept until the streams' work is done; a slot
            // and its counter have one writer at a time.
            Some(function) => unsafe { stream.launch(function, self.tuple.grid, self.tuple.block, args) },
            // SAFETY: as above.
            None => unsafe { stream.copy(args.destination as u64, args.source as u64, args.bytes) },
        }
    }

    /// One pass of a case over all flows of ours at once, behind the gate: for each (case, number of the flow, microseconds per
    /// launch, microseconds until it was posted).
    fn batch(
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
        let streams = &self.rank.streams[..setup.mine.len()];
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
        let start = streams[0].mark()?;
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
        let ends = streams.iter().map(Stream::mark).collect::<Result<Vec<_>, _>>()?;
        let launches = f64::from(if graphs.is_some() { setup.iterations } else { launches });
        let posted = posting.elapsed().as_secs_f64() * 1e6 / launches;
        self.wait(&ends, setup.cases[case].name)?;
        if setup.gate.is_some() {
            self.check_stop(setup.cases[case].name)?;
        }
        let sample =
            |(end, (number, _)): (&Mark, &(usize, Flow))| Ok((case, *number, end.since_us(&start)? / launches, posted));
        ends.iter().zip(&setup.mine).map(sample).collect()
    }

    /// Waits for marks, and looks after the other ranks meanwhile. Whatever ends it early also ends the waits of our kernels.
    fn wait(&mut self, marks: &[Mark], what: &str) -> Result<(), Failure> {
        let deadline = Instant::now() + self.plan.timeout;
        let mut peers = Instant::now() + PEERS_EVERY;
        let mut pause = Duration::from_micros(5);
        let result = loop {
            let reached = marks.iter().map(Mark::is_reached).collect::<Result<Vec<_>, _>>();
            match reached {
                Ok(reached) if reached.iter().all(|reached| *reached) => return Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error.into()),
            }
            let now = Instant::now();
            if signals::interrupted() {
                break Err(Failure::Interrupted);
            }
            if now > deadline {
                break Err(Failure::Timeout(format!(
                    "{what} of {} B at {} x {} is not done after {} s; {}",
                    self.tuple.bytes,
                    self.tuple.grid,
                    self.tuple.block,
                    self.plan.timeout.as_secs(),
                    self.state()
                )));
            }
            if now > peers {
                peers = now + PEERS_EVERY;
                if let Err(error) = self.ranks.check_peers() {
                    break Err(error.into());
                }
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        };
        self.rank.abort();
        result
    }

    /// How far the others have come, for messages about waits that ended.
    fn state(&self) -> String {
        let of = |other: usize| match self.rank.gates_of(other) {
            Ok(gates) => format!("rank {other} at gate {gates}"),
            Err(error) => format!("rank {other}: {error}"),
        };
        let mut others: Vec<usize> =
            self.scene.flows.iter().map(|flow| flow.from).filter(|from| *from != self.rank.me).collect();
        others.dedup();
        format!("pair {}; {}", self.scene.pair(), others.into_iter().map(of).collect::<Vec<_>>().join(", "))
    }

    fn check_stop(&self, what: &str) -> Result<(), Failure> {
        match self.rank.stopped()? {
            None => Ok(()),
            Some(Stop::DEADLINE) => {
                Err(Failure::Timeout(format!("{what}: a kernel waited for another GPU in vain; {}", self.state())))
            }
            Some(_) => Err(Failure::Run(format!("{what}: a kernel's wait was ended; {}", self.state()))),
        }
    }

    /// The time from one flag to the next, each behind its data, on the receiver's clock.
    fn received(&mut self, setup: &Setup, case: usize, outcome: &mut Outcome) -> Result<(), Failure> {
        let count = setup.iterations.clamp(4, RECEIVED);
        let me = self.rank.me;
        let incoming: Vec<(usize, Flow)> =
            self.scene.flows.iter().copied().enumerate().filter(|(_, flow)| flow.to == me).collect();
        let times = self.rank.device.allocate(Place::Device, incoming.len() * count as usize * 8)?;
        let receive = self.rank.device.function(&RECEIVE, 1)?;
        for (index, (_, flow)) in incoming.iter().enumerate() {
            self.rank.lower_flag(*flow)?;
            let args = ReceiveArgs {
                flag: self.rank.flag(*flow),
                count,
                times: (times.address() + (index * count as usize * 8) as u64) as *mut u64,
                timeout_ns: self.plan.timeout.as_nanos() as u64,
                abort: self.rank.abort_word(),
                stop: self.rank.stop_word(),
            };
            // SAFETY: flag, times and words are kept until the stream's work is done, for which this function waits; on
            // an error it ends the kernel's wait, and the buffer's free waits for the device.
            unsafe { self.rank.receivers[index].launch(&receive, 1, 1, args) }?;
        }
        for (_, flow) in &setup.mine {
            self.rank.reset_counter(Some(flow.to))?;
        }
        let result = self.signal_and_see(setup, case, count, incoming.len());
        if result.is_err() {
            self.rank.abort();
            // Not before the receivers have let go of the times.
            let ended = || self.rank.receivers.iter().map(Stream::mark).collect::<Result<Vec<_>, _>>();
            if let Ok(marks) = ended() {
                while marks.iter().any(|mark| matches!(mark.is_reached(), Ok(false))) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        result?;
        for (index, (number, _)) in incoming.iter().enumerate() {
            let mut seen = vec![0u64; count as usize];
            times.read(index * count as usize * 8, &mut seen)?;
            let between: Vec<f64> =
                seen.windows(2).map(|pair| (pair[1].saturating_sub(pair[0])) as f64 / 1000.0).collect();
            outcome.received.extend(Summary::of(&between).map(|summary| (case, *number, summary.p50)));
        }
        Ok(())
    }

    fn signal_and_see(&mut self, setup: &Setup, case: usize, count: u32, incoming: usize) -> Result<(), Failure> {
        self.ranks.barrier("receivers are there")?;
        self.batch(setup, case, count, true)?;
        let marks = self.rank.receivers[..incoming].iter().map(Stream::mark).collect::<Result<Vec<_>, _>>()?;
        self.wait(&marks, "the receiver")?;
        self.check_stop("the receiver")
    }

    /// Poisons what will be written, runs the case as it was timed, and has the bytes checked where they arrived.
    fn verify(&mut self, setup: &Setup, case: usize, outcome: &mut Outcome) -> Result<(), Failure> {
        let me = self.rank.me;
        let operation = self.tuple.operation;
        let flows: Vec<(usize, Flow)> = self.scene.flows.iter().copied().enumerate().collect();
        let held: Vec<(usize, Flow)> = flows.iter().copied().filter(|(_, flow)| self.holder(*flow).0 == me).collect();
        let in_memory = setup.cases[case].has_destination(operation);
        if setup.cases[case].has_source(operation) && flows.iter().any(|(_, flow)| self.owner(*flow) == me) {
            self.help(&setup.fill, self.rank.source(me), self.seed(case, me), 0)?;
        }
        if in_memory {
            for (_, flow) in &held {
                let (_, other) = self.holder(*flow);
                self.help(&setup.fill, self.rank.slot(me, other), self.seed(case, self.owner(*flow)), POISON)?;
            }
        } else if self.plan.spoil {
            self.rank.spoil(None, self.tuple.bytes / 2)?;
        }
        self.ranks.barrier("poisoned")?;
        self.batch(setup, case, 1, false)?;
        self.ranks.barrier("moved")?;
        for (number, flow) in held {
            let (_, other) = self.holder(flow);
            let seed = self.seed(case, self.owner(flow));
            let wrong = if in_memory {
                if self.plan.spoil {
                    self.rank.spoil(Some(other), self.tuple.bytes / 2)?;
                }
                self.rank.reset_counter(None)?;
                self.help(&setup.check, self.rank.slot(me, other), seed, 0)?;
                self.rank.counted()?
            } else {
                // The flow is ours: who reads holds the sums.
                let index = setup.mine.iter().position(|(mine, _)| *mine == number).unwrap_or_default();
                let mut sums = vec![0u32; self.threads()];
                if let Some(buffer) = &setup.sums {
                    buffer.read(index * self.threads() * 4, &mut sums)?;
                }
                let found = sums.iter().fold(0u32, |sum, one| sum.wrapping_add(*one));
                // A sum does not say which bytes.
                if found == sum(seed, self.tuple.bytes) { 0 } else { self.tuple.bytes }
            };
            outcome.wrong.push((case, number, wrong));
        }
        // Nobody poisons for the next case what somebody still looks at.
        Ok(self.ranks.barrier("checked")?)
    }

    /// Fills or checks memory of ours.
    fn help(&mut self, function: &Function<IpcArgs>, address: u64, seed: u32, xor: u32) -> Result<(), Failure> {
        let args = IpcArgs {
            destination: address as *mut u8,
            source: std::ptr::null(),
            bytes: self.tuple.bytes,
            seed,
            xor,
            sums: std::ptr::null_mut(),
            counter: self.rank.counter(None),
            flag: std::ptr::null(),
        };
        let (grid, block) = self.helpers();
        // SAFETY: the memory is as long as the tuple's bytes; barriers keep the others away from it.
        unsafe { self.rank.streams[0].launch(function, grid, block, args) }?;
        let mark = self.rank.streams[0].mark()?;
        self.wait(&[mark], "filling or checking")
    }
}
