//! The emulated device: a grid on the CPU.
//!
//! A block is as many threads as it has on a GPU, in warps of 32. Each thread is a stackful coroutine, a *lane*; a few workers
//! (CPU threads) run them, each block on one of them. A lane runs until it stops: at a barrier, at a rendezvous of its warp, in a
//! spin ([`crate::thread::relax`]). What it may rely on, what not, and how to debug a kernel here: docs/emulated-device.md.
//!
//! Blocks come in waves when the grid is larger than [`WAVE_THREADS`], as on a GPU that cannot hold the whole grid. A grid whose
//! blocks wait for one another asks for all of them at once: [`Grid::resident`].
//!
//! What is measured on this device says nothing about a GPU, and every result row names it `emulated`.
//!
//! Under Miri, loom and the feature `threads` each thread is a CPU thread and a warp of its own.

#[cfg_attr(any(loom, miri, feature = "threads"), path = "threads.rs")]
#[cfg_attr(not(any(loom, miri, feature = "threads")), path = "lanes/mod.rs")]
mod backend;
#[cfg_attr(any(loom, miri, feature = "threads"), allow(dead_code))] // what it keeps account of is the lanes'
mod order;
mod site;
#[cfg(all(test, not(loom)))]
mod tests;

pub use backend::position;
pub(crate) use backend::{
    SIZE, active_mask, fenced, lane, match_any, relax, shared_memory, shuffle, step, stored, sync_threads,
    sync_threads_or, synchronize, vote,
};
#[cfg(not(any(loom, miri, feature = "threads")))]
pub use backend::{Stepped, Turn};
pub use order::{Moment, Orders};

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Most threads in a block, as on every NVIDIA GPU.
pub const MAX_BLOCK: u32 = 1024;
/// Threads that are there at once where the grid does not ask for all of its blocks: as many blocks as fit, at least one.
pub const WAVE_THREADS: u32 = 16 * 1024;
/// Most resident threads: those of 132 multiprocessors with a full block each.
pub const RESIDENT_THREADS: u64 = 132 * 1024;
/// Memory that a thread takes, as far as it is known before a kernel runs: two pages of stack, its place in its warp and block,
/// and the page tables of all that. (A launch of 132 x 1024 resident threads of `put_kernel` took 601 MB, 4.4 KiB each: most touch one
/// page of their stack.)
pub const THREAD_BYTES: u64 = 9 * 1024;

/// Where the current thread stands in its grid.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Index in the block.
    pub thread_idx_x: u32,
    /// Index of the block.
    pub block_idx_x: u32,
    /// Threads per block.
    pub block_dim_x: u32,
    /// Blocks in the grid.
    pub grid_dim_x: u32,
}

/// A thread outside any grid counts as a grid of one: unit tests call device functions directly.
const ALONE: Position = Position { thread_idx_x: 0, block_idx_x: 0, block_dim_x: 1, grid_dim_x: 1 };

/// What lanes of a warp ask each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// One bit for each lane that says yes.
    Ballot,
    /// Whether one says yes.
    Any,
    /// Whether all say yes.
    All,
}

/// Workers of a grid that names no number; 0: by the machine.
static WORKERS: AtomicUsize = AtomicUsize::new(0);
/// The seed of a grid that names none, plus one; 0: no seed.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Sets the number of workers of every grid that names none. Without it: the cores that this process may use but one, which is
/// left to whoever answers the kernel.
pub fn set_workers(workers: usize) {
    WORKERS.store(workers, Ordering::Relaxed);
}

/// Sets the seed of every grid that names none; see [`Grid::seeded`].
pub fn set_seed(seed: Option<u64>) {
    SEED.store(seed.map_or(0, |seed| seed.wrapping_add(1).max(1)), Ordering::Relaxed);
}

fn default_workers() -> usize {
    // Asked once, not with each launch: the answer is read from files of control groups.
    static OF_MACHINE: OnceLock<usize> = OnceLock::new();
    match WORKERS.load(Ordering::Relaxed) {
        0 => *OF_MACHINE.get_or_init(|| {
            std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1))
        }),
        workers => workers,
    }
}

/// Nanoseconds since the first call in this process.
pub fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // 584 years fit.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// For debuggers, which can call it by this name: the thread of the grid that runs on the current CPU thread, its block times
/// [`MAX_BLOCK`] plus its index in the block.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn emulated_thread() -> u64 {
    let Position { block_idx_x, thread_idx_x, .. } = position();
    block_idx_x as u64 * MAX_BLOCK as u64 + thread_idx_x as u64
}

/// Keeps it in the program, in which nobody calls it.
#[used]
static FOR_DEBUGGERS: extern "C" fn() -> u64 = emulated_thread;

/// A grid, and how it is run.
#[derive(Clone, Debug)]
#[cfg_attr(any(loom, miri, feature = "threads"), allow(dead_code))] // workers, seeds and orders are the lanes'
pub struct Grid {
    blocks: u32,
    threads: u32,
    resident: bool,
    workers: usize,
    seed: Option<u64>,
    orders: Option<Orders>,
}

impl Grid {
    /// So many blocks of so many threads.
    pub fn new(blocks: u32, threads: u32) -> Grid {
        let seed = SEED.load(Ordering::Relaxed).checked_sub(1);
        Grid { blocks, threads, resident: false, workers: default_workers(), seed, orders: None }
    }

    /// All blocks at once: they wait for one another, or for other devices whose blocks do.
    pub fn resident(self, resident: bool) -> Grid {
        Grid { resident, ..self }
    }

    /// On so many workers, at least one. What a grid computes does not depend on it.
    pub fn workers(self, workers: usize) -> Grid {
        Grid { workers: workers.max(1), ..self }
    }

    /// Lanes take their turns in an order drawn from this seed, also between two accesses to shared memory, and those that come to
    /// [`crate::warp::active_mask`] together find themselves in groups drawn from it: the hardware promises neither an order nor
    /// that lanes which took different branches come together again. One worker and one seed give one order within each block.
    pub fn seeded(self, seed: u64) -> Grid {
        Grid { seed: Some(seed), ..self }
    }

    /// Keeps what orders what within each warp and block; see [`Orders`].
    pub fn observed(self, orders: &Orders) -> Grid {
        Grid { orders: Some(orders.clone()), ..self }
    }

    /// Bytes that the grid's threads will take, all that are there at once: known before, for whoever must say or refuse it.
    pub fn bytes(&self) -> u64 {
        self.threads_at_once() * THREAD_BYTES
    }

    fn blocks_at_once(&self) -> u32 {
        if self.resident { self.blocks } else { self.blocks.min((WAVE_THREADS / self.threads).max(1)) }
    }

    fn threads_at_once(&self) -> u64 {
        self.blocks_at_once() as u64 * self.threads as u64
    }

    /// Runs `body` once for each thread of the grid and returns when all have returned.
    ///
    /// # Errors
    /// When the grid is one that no GPU takes, or more than [`RESIDENT_THREADS`] must be resident; when the system refuses threads or
    /// memory; and for a bug of the kernel: a thread panicked, threads of a block wait at different barriers, one has returned while others
    /// of its block wait for it, lanes of a mask meet at different calls, or all threads of a block wait for one another. The first of
    /// these ends the whole grid, and the text names block and thread, and the lines of the source where threads wait.
    pub fn run<F: Fn() + Sync>(&self, body: F) -> io::Result<()> {
        if self.blocks == 0 || self.threads == 0 || self.threads > MAX_BLOCK {
            return Err(io::Error::other(format!(
                "grid {} x {} refused: 1 or more blocks of 1 to {MAX_BLOCK} threads",
                self.blocks, self.threads
            )));
        }
        if self.resident && self.threads_at_once() > RESIDENT_THREADS {
            return Err(io::Error::other(format!(
                "grid {} x {} refused: its blocks wait for one another, and the emulated device holds {RESIDENT_THREADS} threads \
                 at once, so at most {} blocks of {}",
                self.blocks,
                self.threads,
                RESIDENT_THREADS / self.threads as u64,
                self.threads
            )));
        }
        backend::run(self, &body)
    }
}

/// Runs `body` once for each thread of a grid and returns when all have returned.
///
/// # Errors
/// As [`Grid::run`].
pub fn run<F: Fn() + Sync>(grid: u32, block: u32, body: F) -> io::Result<()> {
    Grid::new(grid, block).run(body)
}
