//! A rank's world for one path: objects in the heap, streams, and state shared by all runs.

use super::args::{HaloExchange, JacobiArgs, JacobiConfig, When};
use super::part::{DELAYED_NORMS, FieldPart};
use super::problem::LaplaceProblem;
use super::resident::MOST_ACROSS;
use crate::error::Failure;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{Buffer, Function, MemoryLocation, Stream};
use ginlab::gin::{GinError, Inbox, PePath, Program, Signal, Sym, World};
use kernels::jacobi::launched::{JACOBI_STEP, SHARED_BYTES, StepArgs};
use kernels::jacobi::meet::{JACOBI_MEET, MeetArgs};
use kernels::jacobi::pieces::MOST_THREADS_OF_PIECE;
use kernels::jacobi::{ABOVE, BELOW, HaloLink, TRACE_WORDS, resident};

/// Block size for which functions are compiled: the largest, so that threads have few registers. More of the smaller
/// blocks are then resident per multiprocessor, and one compilation by the driver serves all block sizes.
pub const FEW_REGISTERS: u32 = 1024;

/// Sizes of objects in the heap, for the largest field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapSizes {
    /// Points per row.
    pub pitch: u32,
    /// Maximum number of norms summed at a time.
    pub norms: u32,
    /// Maximum iterations per run.
    pub iterations: u32,
    /// Words of a resident row. 0 if no parameter combination is resident.
    pub row_words: u64,
}

impl HeapSizes {
    /// Returns the sizes that these parameter combinations need.
    pub fn of(tuples: &[JacobiConfig]) -> HeapSizes {
        let mut sizes = HeapSizes { pitch: 0, norms: DELAYED_NORMS, iterations: 0, row_words: 0 };
        for tuple in tuples {
            let problem = tuple.problem();
            sizes.pitch = sizes.pitch.max(problem.pitch());
            sizes.iterations = sizes.iterations.max(tuple.iterations);
            if tuple.exchange == HaloExchange::Resident {
                sizes.norms = sizes.norms.max(tuple.resident_turn());
                // Blocks that share a row have at most one block's threads more than the row requires.
                let quads = (problem.pitch() / 4).max(problem.threads());
                sizes.row_words = sizes.row_words.max(resident::row_words(quads + MOST_THREADS_OF_PIECE));
            }
        }
        sizes
    }

    /// Returns the maximum number of blocks that share a row.
    fn across(&self) -> u32 {
        (self.pitch / 4).div_ceil(32).clamp(1, MOST_ACROSS)
    }

    /// Returns the bytes of the heap.
    pub fn heap_bytes(&self, pes: u32) -> u64 {
        let norms = u64::from(self.norms) * 8;
        let rows = 8 * u64::from(self.pitch) * 4 + resident::PLACES * self.row_words * 8;
        rows + norms * u64::from(pes + 1) + Inbox::bytes(norms, pes) + (1 << 16)
    }
}

impl JacobiConfig {
    /// Returns the field of the parameter combination.
    pub fn problem(&self) -> LaplaceProblem {
        LaplaceProblem { nx: self.nx, ny: self.ny }
    }

    /// Returns the iterations per launch of the resident kernel: up to a norm that the CPU waits for, or all.
    pub fn resident_turn(&self) -> u32 {
        match self.when {
            When::Every(count) => count.min(self.iterations),
            _ => self.iterations,
        }
    }
}

impl LaplaceProblem {
    /// Returns the threads of a block that processes whole rows of this field.
    pub fn threads(&self) -> u32 {
        (self.pitch() / 4).next_multiple_of(32)
    }
}

/// State of a rank for one path. Fields are dropped in order: streams must finish before their memory is freed.
pub struct JacobiSession {
    /// Stream of the iterations.
    pub main: Stream,
    /// Stream of outer tiles that do not wait for inner ones, followed by NCCL's exchange.
    pub push: Stream,
    /// Stream of delayed norms.
    pub side: Stream,
    pub step_kernel: Function<StepArgs>,
    pub meet_kernel: Function<Program<MeetArgs>>,
    pub path: PePath,
    /// Rows to send (`out`) and received rows (`halo`), indexed by parity and side.
    pub out: [[Sym<f32>; 2]; 2],
    pub halo: [[Sym<f32>; 2]; 2],
    /// Words of resident rows.
    pub words: Sym<u64>,
    /// Next tag of resident rows. Tags increase over all fields, because the heap is reused.
    pub next_tag: u32,
    pub signals: Signal,
    /// Value that each side's signal has reached.
    pub counted: [u64; 2],
    /// Signals of resident rows over rails, by block of a row and side. Their rounds are the tags.
    rounds: Signal,
    /// Number of blocks per row whose signals have had all rounds. `None` before the first resident run over rails.
    pub across: Option<u32>,
    pub inbox: Inbox,
    pub own: Sym<f64>,
    pub all: Sym<f64>,
    /// Number of norm exchanges by all PEs so far. The next exchange has the next number.
    pub norms: u32,
    /// Number of norm exchanges of this PE on its own.
    pub norms_alone: u32,
    /// Device memory: this PE's sums, one per iteration.
    pub sums: Buffer,
    /// Host memory: the sums over all PEs.
    pub totals: Buffer,
    /// Host memory: numbers of the last completed norm exchanges, of all PEs and of this PE on its own.
    pub done: Buffer,
    /// Device memory: the link, the counters of boundary tiles, and the values that the copy engine writes to signals.
    pub link: Buffer,
    pub tiles: Buffer,
    pub counts: Buffer,
    pub trace: Buffer,
    pub world: World,
}

impl JacobiSession {
    /// Returns a kernel bug that the emulated device detected. The run's wait reports the failed call that exposed the
    /// bug, shortly before the bug ends the grid.
    pub fn kernel_bug(&self) -> Option<Failure> {
        [&self.main, &self.push, &self.side].into_iter().find_map(Stream::kernel_bug).map(Failure::from)
    }

    pub fn open(
        args: &JacobiArgs,
        path: PePath,
        sizes: HeapSizes,
        ranks: &mut Bootstrap,
    ) -> Result<JacobiSession, Failure> {
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
        let (signals, rounds) = (world.signals(ranks, 2)?, world.signals(ranks, 2 * sizes.across())?);
        let (own, all) = (world.alloc(ranks, norms)?, world.alloc(ranks, norms * u64::from(pes))?);
        let inbox = world.inbox(ranks, norms * 8)?;
        let device = world.device().clone();
        Ok(JacobiSession {
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
            across: None,
            inbox,
            own,
            all,
            norms: 0,
            norms_alone: 0,
            sums: device.allocate(MemoryLocation::Device, iterations * 8)?,
            totals: device.allocate(MemoryLocation::Host, iterations * 8)?,
            done: device.allocate(MemoryLocation::Host, 16)?,
            link: device.allocate(MemoryLocation::Device, size_of::<HaloLink>())?,
            tiles: device.allocate(MemoryLocation::Device, 16)?,
            counts: device.allocate(MemoryLocation::Device, 2 * iterations * 8)?,
            trace: device.allocate(MemoryLocation::Device, (iterations + 1) * TRACE_WORDS * 8)?,
            world,
        })
    }

    /// Returns the PEs above and below.
    pub fn neighbours(&self) -> [u32; 2] {
        let (me, pes) = (self.world.my_pe(), self.world.n_pes());
        [(me + pes - 1) % pes, (me + 1) % pes]
    }

    /// Returns whether a neighbour is reached over rails.
    pub fn by_rails(&self) -> bool {
        self.neighbours().map(|pe| self.world.is_mapped(pe)).contains(&false)
    }

    /// Returns the parts of the heap's rows for a field of this pitch.
    fn rows(rows: [[Sym<f32>; 2]; 2], problem: &LaplaceProblem) -> [[Sym<f32>; 2]; 2] {
        rows.map(|sides| sides.map(|row| row.slice(0, u64::from(problem.pitch()))))
    }

    /// Returns the link of a part.
    pub fn link(&self, part: &FieldPart) -> HaloLink {
        HaloLink {
            world: self.world.description(),
            peers: self.neighbours(),
            out: JacobiSession::rows(self.out, &part.problem),
            halo: JacobiSession::rows(self.halo, &part.problem),
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
        let JacobiSession { main, push, side, world, .. } = self;
        drop((main, push, side));
        Ok(world.close(ranks)?)
    }
}
