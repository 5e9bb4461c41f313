//! A rank of the experiment: its resources and fields, the parameter combinations that it rejects, and one run.

use super::args::{HaloExchange, JacobiArgs, JacobiConfig};
use super::fit;
use super::nccl::WindowFields;
use super::part::{FieldPart, PartResult};
use super::problem::LaplaceProblem;
use super::resident::Resident;
use super::session::{HeapSizes, JacobiSession};
use crate::error::Failure;
use crate::nccl_baseline::Communicator;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, MemoryLocation};

/// Fields in device memory.
pub struct Fields {
    pub problem: LaplaceProblem,
    /// The whole field before the first iteration.
    pub initial: Buffer,
    /// The whole field, for runs on one device.
    pub whole: [Buffer; 2],
    /// This rank's rows.
    pub part: [Buffer; 2],
}

/// Results on one device.
pub struct Alone {
    pub tuple: JacobiConfig,
    pub times: Vec<f64>,
    pub ran: PartResult,
    /// Number of points that differ from the reference solution; `None` if computing it would take too long.
    pub wrong: Option<u64>,
}

/// Words with which resident blocks exchange rows.
pub struct ResidentWords {
    pub resident: Resident,
    pub buffer: Buffer,
}

/// Options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Whether each rank computes the whole field without the others.
    pub alone: bool,
    pub traced: bool,
    /// See [`FieldPart::poisoned`].
    pub poisoned: bool,
}

/// A rank of the experiment. Fields are dropped in order: NCCL's operations must end before their streams are dropped.
pub struct Jacobi {
    /// `None` before the first parameter combination that uses it.
    pub registered: Option<WindowFields>,
    /// NCCL, or the reason why it is not available. `None` if no parameter combination uses it.
    pub nccl: Option<Result<Communicator, String>>,
    pub args: JacobiArgs,
    /// Fields for which NVSHMEM's row was measured.
    pub given: Vec<JacobiConfig>,
    sizes: HeapSizes,
    pub session: Option<JacobiSession>,
    pub fields: Option<Fields>,
    pub alone: Option<Alone>,
    pub words: Option<ResidentWords>,
}

impl Jacobi {
    pub fn open(args: &JacobiArgs, tuples: &[JacobiConfig], ranks: &mut Bootstrap) -> Result<Jacobi, Failure> {
        let sizes = HeapSizes::of(tuples);
        let mut jacobi = Jacobi {
            registered: None,
            nccl: None,
            args: args.clone(),
            given: Vec::new(),
            sizes,
            session: None,
            fields: None,
            alone: None,
            words: None,
        };
        if let Some(first) = tuples.first() {
            jacobi.session = Some(JacobiSession::open(args, first.path, sizes, ranks)?);
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

    /// Returns the header's note about NCCL.
    pub fn nccl_note(&self) -> Option<String> {
        Some(match self.nccl.as_ref()? {
            Ok(nccl) => format!("NCCL {}", nccl.version()),
            Err(why) => format!("NCCL is not measured: {why}"),
        })
    }

    /// Returns the open session.
    pub fn session(&self) -> Result<&JacobiSession, Failure> {
        self.session.as_ref().ok_or_else(no_world)
    }

    /// Returns whether received rows are in device memory. NCCL can only write there.
    fn in_device_memory(&self) -> Result<bool, Failure> {
        Ok(self.session()?.world.memory() == "device")
    }

    /// Returns the reason why a parameter combination cannot be measured on this rank; `None` if it can.
    pub fn refused(&self, tuple: &JacobiConfig) -> Result<Option<String>, Failure> {
        let session = self.session()?;
        let world = &session.world;
        if tuple.ny < world.n_pes() {
            return Ok(Some(format!("{} rows are too few for {} ranks", tuple.ny, world.n_pes())));
        }
        let in_device_memory = self.in_device_memory()?;
        if let (HaloExchange::NcclWindow, Some(Ok(nccl))) = (tuple.exchange, &self.nccl)
            && let Some(why) = nccl.lacks_windows().or(self.registered.as_ref().and_then(WindowFields::refused))
        {
            return Ok(Some(why));
        }
        Ok(match (tuple.refused(), &self.nccl) {
            (None, Some(Err(why))) if tuple.exchange.by_nccl() => Some(why.clone()),
            (None, _) if tuple.exchange.by_nccl() && !in_device_memory => {
                Some("NCCL receives rows into the heap, which is in host memory: requires --path nvlink".into())
            }
            (None, _) if tuple.exchange == HaloExchange::Resident => {
                fit::resident(world.device(), tuple, world.n_pes(), self.session()?.by_rails())?.err()
            }
            (None, _) if !tuple.exchange.by_nccl() => {
                let rows = tuple.problem().rows(0, world.n_pes()).len() as u32;
                fit::waiting(world.device(), &session.step_kernel, tuple, rows)?
            }
            (refused, _) => refused,
        })
    }

    /// Opens the world for the path of the parameter combination, unless it is open. Rounds over rails require a new
    /// world for another number of blocks per row, because every signal must have had every round.
    pub fn reach(&mut self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let across = self.across(tuple)?;
        let session = self.session.as_mut().ok_or_else(no_world)?;
        let is_open =
            session.path == tuple.path && across.is_none_or(|across| *session.across.get_or_insert(across) == across);
        if ranks.all_gather_values(&is_open, "list of ranks that require a new world")?.iter().all(|is_open| *is_open) {
            return Ok(());
        }
        (self.fields, self.alone, self.words) = (None, None, None);
        if let Some(session) = self.session.take() {
            session.close(ranks)?;
        }
        self.session = Some(JacobiSession::open(&self.args, tuple.path, self.sizes, ranks)?);
        let across = self.across(tuple)?;
        self.session.as_mut().ok_or_else(no_world)?.across = across;
        Ok(())
    }

    /// Registers memory for the parameter combination's field with NCCL, if the parameter combination uses it and it is
    /// not registered. Collective.
    pub fn register(&mut self, tuple: &JacobiConfig, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let problem = tuple.problem();
        let is_known = |registered: &WindowFields| registered.problem == problem || registered.refused().is_some();
        let Some(Ok(nccl)) = self.nccl.as_ref().filter(|_| tuple.exchange == HaloExchange::NcclWindow) else {
            return Ok(());
        };
        if !self.in_device_memory()? || self.registered.as_ref().is_some_and(is_known) {
            return Ok(());
        }
        let limit = self.args.world.meet.timeout;
        if let Some(registered) = self.registered.take() {
            registered.close(nccl, limit)?;
        }
        let rows = problem.rows(0, ranks.size() as u32).len() as u32;
        self.registered = Some(WindowFields::new(problem, rows, nccl, limit, ranks)?);
        Ok(())
    }

    /// Returns the number of blocks per row of a resident combination whose rows are put over rails. `None` for others.
    fn across(&self, tuple: &JacobiConfig) -> Result<Option<u32>, Failure> {
        let session = self.session()?;
        if tuple.exchange != HaloExchange::Resident || !session.by_rails() {
            return Ok(None);
        }
        let found = fit::resident(session.world.device(), tuple, session.world.n_pes(), true)?;
        Ok(found.ok().map(|resident| resident.across()))
    }

    /// Allocates memory for the parameter combination's field.
    pub fn lay_out(&mut self, tuple: &JacobiConfig) -> Result<(), Failure> {
        let problem = tuple.problem();
        let world = &self.session()?.world;
        let (device, ranks) = (world.device().clone(), world.n_pes());
        if self.fields.as_ref().is_none_or(|fields| fields.problem != problem) {
            // Free the old fields first.
            (self.fields, self.alone, self.words) = (None, None, None);
            let allocate = |rows: u32| device.allocate(MemoryLocation::Device, problem.bytes(rows));
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
        if tuple.exchange == HaloExchange::Resident {
            let resident = fit::resident(&device, tuple, ranks, self.session()?.by_rails())?.map_err(Failure::Usage)?;
            if self.words.as_ref().is_none_or(|words| words.resident != resident) {
                let bytes = resident.words().iter().sum::<u64>() * 8;
                let buffer = device.allocate(MemoryLocation::Device, bytes as usize)?;
                self.words = Some(ResidentWords { resident, buffer });
            }
        }
        Ok(())
    }

    pub fn fields(&self) -> Result<&Fields, Failure> {
        laid_out(&self.fields)
    }

    /// Runs the parameter combination on all ranks.
    pub fn run(&mut self, tuple: &JacobiConfig, traced: bool, ranks: &mut Bootstrap) -> Result<PartResult, Failure> {
        self.run_part(tuple, How { traced, ..How::default() }, ranks)
    }

    /// Runs the parameter combination, either on all ranks together or on each rank separately.
    pub fn run_part(&mut self, tuple: &JacobiConfig, how: How, ranks: &mut Bootstrap) -> Result<PartResult, Failure> {
        let How { alone, traced, poisoned } = how;
        let fields = laid_out(&self.fields)?;
        let problem = tuple.problem();
        let session = self.session.as_mut().ok_or_else(no_world)?;
        let (me, pes) = (session.world.my_pe(), session.world.n_pes());
        let mine = if alone { 0..problem.ny } else { problem.rows(me, pes) };
        let rows = mine.len() as u32;
        let buffers = if alone { &fields.whole } else { &fields.part };
        let plain = buffers.each_ref().map(Buffer::address);
        let in_window = tuple.exchange == HaloExchange::NcclWindow && !alone;
        let window = self.registered.as_ref().filter(|_| in_window).and_then(WindowFields::addresses);
        if in_window && window.is_none() {
            return Err(Failure::Run("no memory is registered with NCCL".into()));
        }
        let (addresses, received) = window.map_or((plain, None), |(fields, rows)| (fields, Some(rows)));
        let bytes = problem.bytes(rows) as u64;
        let source = fields.initial.address() + problem.bytes(mine.start) as u64;
        // SAFETY: both fields have this size, and this function waits for the stream.
        unsafe { session.main.copy(addresses[0], source, bytes) }?;
        session.world.wait_for_stream(ranks, "copying the field", &session.main)?;
        let (strip, grid) = if tuple.block == 0 { (1, 1) } else { fit::launched(tuple, self.args.strip, rows) };
        let nccl = self.nccl.as_ref().and_then(|nccl| nccl.as_ref().ok());
        let nccl = nccl.filter(|_| tuple.exchange.by_nccl() && !alone);
        let part = FieldPart {
            tuple: *tuple,
            problem,
            alone,
            traced,
            poisoned,
            rows,
            fields: addresses,
            received,
            grid,
            strip,
            nccl,
        };
        let ran = match &self.words {
            Some(words) if tuple.exchange == HaloExchange::Resident => {
                session.run_resident(&part, words.resident, &words.buffer, ranks)
            }
            _ => session.run(&part, ranks),
        };
        let ran = ran.map_err(|failure| session.kernel_bug().unwrap_or(failure))?;
        if tuple.exchange != HaloExchange::Resident {
            part.nccl.map_or(Ok(()), Communicator::check)?;
        }
        if in_window {
            // SAFETY: both fields have this size, and this function waits for the stream.
            unsafe { session.main.copy(plain[ran.last], addresses[ran.last], bytes) }?;
            session.world.wait_for_stream(ranks, "copying the field", &session.main)?;
        }
        Ok(ran)
    }
}

fn no_world() -> Failure {
    Failure::Run("no world is open".into())
}

fn laid_out(fields: &Option<Fields>) -> Result<&Fields, Failure> {
    fields.as_ref().ok_or_else(|| Failure::Run("no field is allocated".into()))
}
