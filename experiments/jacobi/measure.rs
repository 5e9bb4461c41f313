//! One tuple: runs on one device and on all, the field compared, and what a trace shows.

use super::args::{Args, Exchange, Norm, SyncBy, Tuple, When};
use super::check::far;
use super::problem::Problem;
use super::resident::Resident;
use super::run::{Part, Ran};
use super::session::{Session, Sizes};
use super::{columns, fit};
use crate::error::Failure;
use crate::mps;
use crate::runner::{Rows, slowest};
use crate::values::name;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Place};
use ginlab::measure::stats::Summary;
use ginlab::nccl::Communicator;
use ginlab::report::{Row, Status};
use kernels::jacobi::resident::{PLACES, row_words};

/// A field is held against a plain loop on the CPU up to so many points times iterations: a part of a second.
const PLAIN_POINTS: u64 = 1 << 28;
/// Runs on one device at most: there is nobody that disturbs them.
const MOST_ALONE: u32 = 5;
/// Runs without a norm, for its share.
const RUNS_WITHOUT: u32 = 2;

/// Fields in device memory.
pub struct Fields {
    pub problem: Problem,
    /// The whole field before the first iteration.
    initial: Buffer,
    /// The whole field, for the runs on one device.
    pub whole: [Buffer; 2],
    /// This rank's rows.
    pub part: [Buffer; 2],
}

/// The run on one device.
pub struct Alone {
    tuple: Tuple,
    times: Vec<f64>,
    pub ran: Ran,
    /// Points that differ from a plain loop's; nothing where that would take too long.
    pub wrong: Option<u64>,
}

/// What a rank tells of its part of a row.
#[derive(serde::Serialize, serde::Deserialize)]
struct Told {
    times: Vec<f64>,
    alone: Vec<f64>,
    without: Vec<f64>,
    /// Of nccl-graph, in turns.
    theirs: Vec<f64>,
    wrong: Option<u64>,
    trace: [Option<f64>; 3],
}

/// Words of resident rows between blocks.
struct Words {
    resident: Resident,
    buffer: Buffer,
}

/// A rank of the experiment. Dropped in this order: NCCL's operations end before the streams that they are in.
pub struct Jacobi {
    /// NCCL, or why there is none; nothing where nobody asks for it.
    pub nccl: Option<Result<Communicator, String>>,
    args: Args,
    sizes: Sizes,
    pub session: Option<Session>,
    fields: Option<Fields>,
    pub alone: Option<Alone>,
    words: Option<Words>,
}

impl Jacobi {
    pub fn open(args: &Args, tuples: &[Tuple], ranks: &mut Bootstrap) -> Result<Jacobi, Failure> {
        let sizes = Sizes::of(tuples);
        let mut jacobi =
            Jacobi { nccl: None, args: args.clone(), sizes, session: None, fields: None, alone: None, words: None };
        if let Some(first) = tuples.first() {
            jacobi.session = Some(Session::open(args, first.path, sizes, ranks)?);
        }
        if tuples.iter().any(|tuple| tuple.exchange.by_nccl()) {
            let nccl = args.world.nccl(&jacobi.session()?.world, ranks)?;
            if let (Ok(communicator), true) = (&nccl, jacobi.in_device_memory()?) {
                jacobi.session()?.connect(communicator, ranks)?;
            }
            jacobi.nccl = Some(nccl);
        }
        Ok(jacobi)
    }

    /// What a header says of NCCL.
    pub fn nccl_note(&self) -> Option<String> {
        Some(match self.nccl.as_ref()? {
            Ok(nccl) => format!("NCCL {}", nccl.version()),
            Err(why) => format!("without NCCL: {why}"),
        })
    }

    /// The open session.
    pub fn session(&self) -> Result<&Session, Failure> {
        self.session.as_ref().ok_or_else(|| Failure::Run("no world is open".into()))
    }

    /// Whether rows that come lie in device memory: NCCL writes nowhere else.
    fn in_device_memory(&self) -> Result<bool, Failure> {
        Ok(self.session()?.world.memory() == "device")
    }

    /// Why a tuple cannot be measured here, if it cannot.
    pub fn refused(&self, tuple: &Tuple) -> Result<Option<String>, Failure> {
        let session = self.session()?;
        let world = &session.world;
        if tuple.ny < world.n_pes() {
            return Ok(Some(format!("{} rows for {} ranks", tuple.ny, world.n_pes())));
        }
        let in_device_memory = self.in_device_memory()?;
        Ok(match (tuple.refused(), &self.nccl) {
            (None, Some(Err(why))) if tuple.exchange.by_nccl() => Some(why.clone()),
            (None, _) if tuple.exchange.by_nccl() && !in_device_memory => {
                Some("NCCL's rows come into the heap, which is in host memory here: --path nvlink".into())
            }
            (None, _) if tuple.exchange == Exchange::Resident => {
                fit::resident(world.device(), tuple, world.n_pes(), self.session()?.by_rails())?.err()
            }
            (None, _) if !tuple.exchange.by_nccl() => {
                let rows = tuple.problem().rows(0, world.n_pes()).len() as u32;
                fit::waiting(world.device(), &session.step_kernel, tuple, rows)?
            }
            (refused, _) => refused,
        })
    }

    pub fn measure(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<Rows, Failure> {
        self.reach(tuple, ranks)?;
        if let Some(why) = self.refused(tuple)? {
            let mut row = self.row(tuple, tuple.block)?;
            row.status = Status::Skipped(why);
            return Ok(vec![(row, Vec::new())]);
        }
        self.lay_out(tuple)?;
        self.run_alone(tuple, ranks)?;
        let beside = self.beside(tuple)?;
        // The first run finds everything cold.
        let mut last = self.run(tuple, false, ranks)?;
        let (mut times, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..self.args.repeats {
            if let Some(beside) = &beside {
                theirs.push(self.run(beside, false, ranks)?.each_us);
            }
            last = self.run(tuple, false, ranks)?;
            times.push(last.each_us);
        }
        let wrong = if self.args.no_check { None } else { Some(self.wrong(tuple, &last)?) };
        let mut without = Vec::new();
        if tuple.norm == Norm::Block {
            for _ in 0..RUNS_WITHOUT.min(self.args.repeats) {
                let tuple = Tuple { norm: Norm::Never, when: When::Delayed, ..*tuple };
                without.push(self.run(&tuple, false, ranks)?.each_us);
            }
        }
        let trace = self.trace(tuple, ranks)?;
        let alone = self.alone.as_ref().map(|alone| alone.times.clone()).unwrap_or_default();
        let told = Told { times, alone, without, theirs, wrong, trace };
        let Some(all) = ranks.gather_values(&told, "results of a row")? else { return Ok(Rows::new()) };
        let times = slowest(&all, |told| &told.times);
        let alone = slowest(&all, |told| &told.alone);
        let without = slowest(&all, |told| &told.without);
        let grid = self.grid(tuple)?;
        let mut row = self.row(tuple, grid.1)?;
        row.grid = Some(grid.0);
        row.times(&times).verified(all.iter().filter_map(|told| told.wrong).reduce(|a, b| a + b));
        let largest = |index: usize| all.iter().filter_map(|told| told.trace[index]).reduce(f64::max);
        if let Some(beside) = &beside {
            row.against(&self.row(beside, beside.block)?, &times, &slowest(&all, |told| &told.theirs));
        }
        row.set(&columns::KERNEL, largest(0)).set(&columns::WAIT, largest(1)).set(&columns::SEND, largest(2));
        let median = |times: &[f64]| Summary::of(times).map(|summary| summary.p50);
        if let (Some(time), Some(alone)) = (median(&times), median(&alone)) {
            columns::scaling(&mut row, tuple, time, alone);
            row.set(&columns::NORM_TIME, median(&without).map(|without| time - without));
            row.set(&columns::NORM_VALUE, last.norm);
        }
        Ok(vec![(row, times)])
    }

    /// What a row is compared with, in turns: NCCL in graphs, where that is measured too.
    fn beside(&self, tuple: &Tuple) -> Result<Option<Tuple>, Failure> {
        let graph = Exchange::NcclGraph;
        let asked = self.args.exchange.is_empty() || self.args.exchange.contains(&graph);
        if tuple.exchange == graph || !asked || !matches!(self.nccl, Some(Ok(_))) {
            return Ok(None);
        }
        let block = if tuple.block == 0 { self.args.block[0] } else { tuple.block };
        let beside = Tuple { exchange: graph, sync: SyncBy::Neighbours, block, ..*tuple };
        Ok(self.refused(&beside)?.is_none().then_some(beside))
    }

    /// Sees to it that the world is open by the tuple's path.
    fn reach(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<(), Failure> {
        if self.session()?.path == tuple.path {
            return Ok(());
        }
        (self.fields, self.alone, self.words) = (None, None, None);
        if let Some(session) = self.session.take() {
            session.close(ranks)?;
        }
        self.session = Some(Session::open(&self.args, tuple.path, self.sizes, ranks)?);
        Ok(())
    }

    /// Memory for the tuple's field.
    fn lay_out(&mut self, tuple: &Tuple) -> Result<(), Failure> {
        let problem = tuple.problem();
        let world = &self.session()?.world;
        let (device, ranks) = (world.device().clone(), world.n_pes());
        if self.fields.as_ref().is_none_or(|fields| fields.problem != problem) {
            // The old ones' memory first.
            (self.fields, self.alone, self.words) = (None, None, None);
            let allocate = |rows: u32| device.allocate(Place::Device, problem.bytes(rows));
            let most = problem.rows(0, ranks).len() as u32;
            let fields = Fields {
                problem,
                initial: allocate(problem.ny)?,
                whole: [allocate(problem.ny)?, allocate(problem.ny)?],
                part: [allocate(most)?, allocate(most)?],
            };
            fields.initial.write(0, &problem.first_field())?;
            self.fields = Some(fields);
        }
        if tuple.exchange == Exchange::Resident {
            let resident = fit::resident(&device, tuple, ranks, self.session()?.by_rails())?.map_err(Failure::Usage)?;
            if self.words.as_ref().is_none_or(|words| words.resident != resident) {
                let bytes = u64::from(resident.grid) * PLACES * row_words(resident.block) * 8;
                let buffer = device.allocate(Place::Device, bytes as usize)?;
                self.words = Some(Words { resident, buffer });
            }
        }
        Ok(())
    }

    pub fn fields(&self) -> Result<&Fields, Failure> {
        laid_out(&self.fields)
    }

    /// Blocks and threads of a tuple's grid.
    fn grid(&self, tuple: &Tuple) -> Result<(u32, u32), Failure> {
        let world = &self.session()?.world;
        if let (Exchange::Resident, Some(words)) = (tuple.exchange, &self.words) {
            return Ok((words.resident.grid, words.resident.block));
        }
        let rows = tuple.problem().rows(0, world.n_pes()).len() as u32;
        Ok((fit::launched(tuple, self.args.strip, rows).1, tuple.block))
    }

    /// The tuple as it is run on one device: the launched kernel, whatever the exchange.
    fn of_one(&self, tuple: &Tuple) -> Tuple {
        let block = if tuple.block == 0 { self.args.block[0] } else { tuple.block };
        let when = if tuple.exchange == Exchange::Resident { When::Delayed } else { tuple.when };
        Tuple { exchange: Exchange::Row, sync: SyncBy::Neighbours, block, when, ..*tuple }
    }

    /// The whole field on this rank's device, unless that has been run: time and field to hold the parts against.
    fn run_alone(&mut self, tuple: &Tuple, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let tuple = self.of_one(tuple);
        if self.alone.as_ref().is_some_and(|alone| alone.tuple == tuple) {
            return Ok(());
        }
        // The first run finds everything cold here, too.
        let mut ran = self.run_part(&tuple, true, false, ranks)?;
        let mut times = Vec::new();
        for _ in 0..self.args.repeats.min(MOST_ALONE) {
            ran = self.run_part(&tuple, true, false, ranks)?;
            times.push(ran.each_us);
        }
        let mut alone = Alone { tuple, times, ran, wrong: None };
        let points = u64::from(tuple.nx) * u64::from(tuple.ny) * u64::from(tuple.iterations);
        if !self.args.no_check && points <= PLAIN_POINTS {
            let problem = tuple.problem();
            let (expected, sum) = problem.plain(tuple.iterations);
            let found = self.read(&self.fields()?.whole[alone.ran.last], 0, problem.ny)?;
            let norm_is_off = tuple.norm == Norm::Block && alone.ran.norm.is_some_and(|norm| far(norm, sum.sqrt()));
            alone.wrong = Some(problem.wrong(&found, &expected) + u64::from(norm_is_off));
        }
        self.alone = Some(alone);
        Ok(())
    }

    /// One run by all ranks.
    pub fn run(&mut self, tuple: &Tuple, traced: bool, ranks: &mut Bootstrap) -> Result<Ran, Failure> {
        self.run_part(tuple, false, traced, ranks)
    }

    /// One run, by all ranks together or by each alone.
    fn run_part(&mut self, tuple: &Tuple, alone: bool, traced: bool, ranks: &mut Bootstrap) -> Result<Ran, Failure> {
        let fields = laid_out(&self.fields)?;
        let problem = tuple.problem();
        let session = self.session.as_mut().ok_or_else(|| Failure::Run("no world is open".into()))?;
        let (me, pes) = (session.world.my_pe(), session.world.n_pes());
        let mine = if alone { 0..problem.ny } else { problem.rows(me, pes) };
        let rows = mine.len() as u32;
        let [first, second] = if alone { &fields.whole } else { &fields.part };
        let source = fields.initial.address() + problem.bytes(mine.start) as u64;
        // SAFETY: both are of this length, and the run waits for its stream.
        unsafe { session.main.copy(first.address(), source, problem.bytes(rows) as u64) }?;
        session.world.wait_for_stream(ranks, "copying the field", &session.main)?;
        let (strip, grid) = if tuple.block == 0 { (1, 1) } else { fit::launched(tuple, self.args.strip, rows) };
        let nccl = self.nccl.as_ref().and_then(|nccl| nccl.as_ref().ok());
        let nccl = nccl.filter(|_| tuple.exchange.by_nccl() && !alone);
        let part = Part { tuple: *tuple, problem, alone, traced, rows, fields: [first, second], grid, strip, nccl };
        let ran = match &self.words {
            Some(words) if tuple.exchange == Exchange::Resident => {
                session.run_resident(&part, words.resident, &words.buffer, ranks)
            }
            _ => session.run(&part, ranks),
        };
        let ran = ran.map_err(|failure| session.kernel_bug().unwrap_or(failure))?;
        if tuple.exchange != Exchange::Resident {
            part.nccl.map_or(Ok(()), Communicator::check)?;
        }
        Ok(ran)
    }

    fn row(&self, tuple: &Tuple, block: u32) -> Result<Row, Failure> {
        let session = self.session()?;
        let world = &session.world;
        let towards = session.neighbours()[1];
        let by_nccl = tuple.exchange.by_nccl();
        let path = if by_nccl { "nccl" } else { world.path_to(towards) };
        let mut row = Row::new("jacobi", tuple.case(), world.device().name(), path);
        row.ranks = world.n_pes();
        row.memory = Some(world.memory().into());
        mps::mark(&mut row, world.sharing());
        row.block = Some(block);
        row.iterations = Some(u64::from(tuple.iterations));
        if !by_nccl && !world.is_mapped(towards) {
            self.args.world.name_rails(&mut row);
        }
        columns::chosen(&mut row, tuple, &name(tuple.norm), &name(tuple.sync));
        Ok(row)
    }
}

fn laid_out(fields: &Option<Fields>) -> Result<&Fields, Failure> {
    fields.as_ref().ok_or_else(|| Failure::Run("no field is laid out".into()))
}
