//! A rank's world for one path: the heap's objects, the streams, and what all runs share.

use super::args::{Args, Exchange, Tuple, When};
use super::part::{DELAYED_NORMS, Part};
use super::problem::Problem;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Function, Place, Stream};
use ginlab::gin::{GinError, Inbox, Path, Program, Signal, Sym, World};
use kernels::jacobi::launched::{JACOBI_STEP, SHARED_BYTES, StepArgs};
use kernels::jacobi::meet::{JACOBI_MEET, MeetArgs};
use kernels::jacobi::{ABOVE, BELOW, Link, TRACE_WORDS, resident};

/// A block of which a thread has few registers, for functions as they are compiled for the largest blocks: of smaller ones more are then on
/// a multiprocessor at once, and one compilation by the driver does for all.
pub const FEW_REGISTERS: u32 = 1024;

/// What lies in the heap, by the largest field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Points of a row.
    pub pitch: u32,
    /// Norms that are summed at a time.
    pub norms: u32,
    /// Iterations of one run.
    pub iterations: u32,
    /// Words of a resident row; 0: none is resident.
    pub row_words: u64,
}

impl Sizes {
    /// What these tuples need.
    pub fn of(tuples: &[Tuple]) -> Sizes {
        let mut sizes = Sizes { pitch: 0, norms: DELAYED_NORMS, iterations: 0, row_words: 0 };
        for tuple in tuples {
            let problem = tuple.problem();
            sizes.pitch = sizes.pitch.max(problem.pitch());
            sizes.iterations = sizes.iterations.max(tuple.iterations);
            if tuple.exchange == Exchange::Resident {
                sizes.norms = sizes.norms.max(tuple.resident_turn());
                sizes.row_words = sizes.row_words.max(resident::row_words(problem.threads()));
            }
        }
        sizes
    }

    /// Bytes of a heap.
    pub fn heap_bytes(&self, pes: u32) -> u64 {
        let norms = u64::from(self.norms) * 8;
        let rows = 8 * u64::from(self.pitch) * 4 + resident::PLACES * self.row_words * 8;
        rows + norms * u64::from(pes + 1) + Inbox::bytes(norms, pes) + (1 << 16)
    }
}

impl Tuple {
    /// Its field.
    pub fn problem(&self) -> Problem {
        Problem { nx: self.nx, ny: self.ny }
    }

    /// Iterations of one launch of the resident kernel: up to a norm that is waited for, or all.
    pub fn resident_turn(&self) -> u32 {
        match self.when {
            When::Every(count) => count.min(self.iterations),
            _ => self.iterations,
        }
    }
}

impl Problem {
    /// Threads of a block that has whole rows of this field.
    pub fn threads(&self) -> u32 {
        (self.pitch() / 4).next_multiple_of(32)
    }
}

/// See the module. Fields are dropped in this order: streams end their work before its memory goes.
pub struct Session {
    /// Iterations.
    pub main: Stream,
    /// Outer tiles that do not wait for inner ones, and what NCCL sends behind them.
    pub push: Stream,
    /// Norms that nobody waits for.
    pub side: Stream,
    pub step_kernel: Function<StepArgs>,
    pub meet_kernel: Function<Program<MeetArgs>>,
    pub path: Path,
    /// Rows to send and rows received, by parity and side.
    pub out: [[Sym<f32>; 2]; 2],
    pub halo: [[Sym<f32>; 2]; 2],
    /// Words of resident rows.
    pub words: Sym<u64>,
    /// The next tag of resident rows: they count on over the same heap, whatever the field.
    pub next_tag: u32,
    pub signals: Signal,
    /// What the signal of each side has counted.
    pub counted: [u64; 2],
    /// Of resident rows over rails, by side: their rounds are the tags.
    rounds: Signal,
    pub inbox: Inbox,
    pub own: Sym<f64>,
    pub all: Sym<f64>,
    /// Norm exchanges that all PEs have had; the next one's number is one more.
    pub norms: u32,
    /// As above, of this PE alone.
    pub norms_alone: u32,
    /// Device memory: this PE's sums, one for each iteration.
    pub sums: Buffer,
    /// Host memory: the sums of all PEs.
    pub totals: Buffer,
    /// Host memory: the last norm exchange that is done: of all PEs, and of this PE alone.
    pub done: Buffer,
    /// Device memory: the link, the counters of boundary tiles, what the copy engine signals.
    pub link: Buffer,
    pub tiles: Buffer,
    pub counts: Buffer,
    pub trace: Buffer,
    pub world: World,
}

impl Session {
    /// A bug of a kernel that the emulated device has found. It ends the grid a moment after the failed call that has uncovered it, which
    /// is what the run's wait has seen.
    pub fn kernel_bug(&self) -> Option<Failure> {
        [&self.main, &self.push, &self.side].into_iter().find_map(Stream::kernel_bug).map(Failure::from)
    }

    pub fn open(args: &Args, path: Path, sizes: Sizes, ranks: &mut Bootstrap) -> Result<Session, Failure> {
        let pes = ranks.size() as u32;
        let mut world = World::open(ranks, &args.world.options(path, sizes.heap_bytes(pes))?)?;
        let mut row = |ranks: &mut Bootstrap| world.alloc::<f32>(ranks, u64::from(sizes.pitch));
        let mut rows = |ranks: &mut Bootstrap| -> Result<[[Sym<f32>; 2]; 2], GinError> {
            Ok([[row(ranks)?, row(ranks)?], [row(ranks)?, row(ranks)?]])
        };
        let (out, halo) = (rows(ranks)?, rows(ranks)?);
        let norms = u64::from(sizes.norms);
        let iterations = sizes.iterations as usize;
        let words = world.alloc(ranks, (resident::PLACES * sizes.row_words).max(1))?;
        let (signals, rounds) = (world.signals(ranks, 2)?, world.signals(ranks, 2)?);
        let (own, all) = (world.alloc(ranks, norms)?, world.alloc(ranks, norms * u64::from(pes))?);
        let inbox = world.inbox(ranks, norms * 8)?;
        let device = world.device().clone();
        Ok(Session {
            main: Stream::new(&device)?,
            push: Stream::urgent(&device)?,
            side: Stream::new(&device)?,
            step_kernel: device.function(&JACOBI_STEP, FEW_REGISTERS)?.with_shared_memory(SHARED_BYTES)?,
            meet_kernel: device.function(&JACOBI_MEET, FEW_REGISTERS)?,
            path,
            out,
            halo,
            words,
            next_tag: 1,
            signals,
            counted: [0; 2],
            rounds,
            inbox,
            own,
            all,
            norms: 0,
            norms_alone: 0,
            sums: device.allocate(Place::Device, iterations * 8)?,
            totals: device.allocate(Place::Host, iterations * 8)?,
            done: device.allocate(Place::Host, 16)?,
            link: device.allocate(Place::Device, size_of::<Link>())?,
            tiles: device.allocate(Place::Device, 16)?,
            counts: device.allocate(Place::Device, 2 * iterations * 8)?,
            trace: device.allocate(Place::Device, (iterations + 1) * TRACE_WORDS * 8)?,
            world,
        })
    }

    /// The PEs above and below.
    pub fn neighbours(&self) -> [u32; 2] {
        let (me, pes) = (self.world.my_pe(), self.world.n_pes());
        [(me + pes - 1) % pes, (me + 1) % pes]
    }

    /// Whether one of them is reached by rails.
    pub fn by_rails(&self) -> bool {
        self.neighbours().map(|pe| self.world.is_mapped(pe)).contains(&false)
    }

    /// Rows of the heap for a field of this pitch.
    fn rows(rows: [[Sym<f32>; 2]; 2], problem: &Problem) -> [[Sym<f32>; 2]; 2] {
        rows.map(|sides| sides.map(|row| row.slice(0, u64::from(problem.pitch()))))
    }

    /// The link of a part.
    pub fn link(&self, part: &Part) -> Link {
        Link {
            world: self.world.description(),
            peers: self.neighbours(),
            out: Session::rows(self.out, &part.problem),
            halo: Session::rows(self.halo, &part.problem),
            signals: [self.signals.at(ABOVE as u32), self.signals.at(BELOW as u32)],
            counted: self.counted,
            each: part.each(),
            rounds: [self.rounds.at(ABOVE as u32), self.rounds.at(BELOW as u32)],
            exchange: part.tuple.exchange.number(),
            neighbours: part.by_signals().into(),
            done: self.tiles.pointer(),
            trace: if part.traced { self.trace.pointer() } else { std::ptr::null() },
        }
    }

    /// Closes the world.
    pub fn close(self, ranks: &mut Bootstrap) -> Result<(), Failure> {
        let Session { main, push, side, world, .. } = self;
        drop((main, push, side));
        Ok(world.close(ranks)?)
    }
}
