//! The emulated device: runs a grid on the CPU.
//!
//! A block has as many threads as on a GPU, in warps of 32. Each thread is a stackful coroutine, a *lane*. A few
//! workers (CPU threads) run them, each block on one worker. A lane runs until it stops: at a barrier, at a rendezvous
//! of its warp, or in a spin ([`crate::thread::relax`]). The page docs/emulated-device.md describes the guarantees, the
//! limits, and how to debug a kernel.
//!
//! Blocks run in waves if the grid is larger than [`WAVE_THREADS`], as on a GPU that cannot hold the whole grid. A grid
//! whose blocks wait for one another must request that all are resident: [`EmulatedGrid::resident`].
//!
//! Measurements on this device do not apply to a GPU, and every result row names it `emulated`.
//!
//! Under Miri, loom and the feature `threads`, each thread is a CPU thread and its own warp.

#[cfg_attr(any(loom, miri, feature = "threads"), path = "threads.rs")]
#[cfg_attr(not(any(loom, miri, feature = "threads")), path = "lanes/mod.rs")]
mod backend;
#[cfg_attr(any(loom, miri, feature = "threads"), allow(dead_code))] // used by the coroutine backend only
mod order;
mod site;
#[cfg(all(test, not(loom)))]
mod tests;

pub use backend::position;
pub(crate) use backend::{
    SIZE, active_mask, changes, fenced, lane, match_any, modifies, relax, shared_memory, shuffle, step, stored,
    sync_threads, sync_threads_or, synchronize, vote,
};
#[cfg(not(any(loom, miri, feature = "threads")))]
pub use backend::{Stepped, SteppedStop};
pub use order::{Moment, Orders};

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Maximum number of threads in a block, as on every NVIDIA GPU.
pub const MAX_BLOCK: u32 = 1024;
/// Number of threads that are resident at the same time, unless the grid requests all of its blocks: as many blocks as
/// fit, at least one.
pub const WAVE_THREADS: u32 = 16 * 1024;
/// Maximum number of resident threads: those of 132 multiprocessors with one full block each.
pub const RESIDENT_THREADS: u64 = 132 * 1024;
/// Estimated memory per thread, before a kernel runs: two pages of stack, its state in its warp and block, and page
/// tables. (A launch of 132 x 1024 resident threads of `put_kernel` took 601 MB, 4.4 KiB per thread, since most touch
/// one page of their stack.)
pub const THREAD_BYTES: u64 = 9 * 1024;

/// Position of the current thread in its grid.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Index in the block.
    pub thread_idx_x: u32,
    /// Index of the block.
    pub block_idx_x: u32,
    /// Number of threads per block.
    pub block_dim_x: u32,
    /// Number of blocks in the grid.
    pub grid_dim_x: u32,
}

/// A thread outside any grid counts as a grid of one, because unit tests call device functions directly.
const ALONE: Position = Position { thread_idx_x: 0, block_idx_x: 0, block_dim_x: 1, grid_dim_x: 1 };

/// Votes of the lanes of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// One bit for each lane whose predicate is true.
    Ballot,
    /// Whether the predicate is true in any lane.
    Any,
    /// Whether the predicate is true in all lanes.
    All,
}

/// Default number of workers of a grid. 0 means the default of the machine.
static WORKERS: AtomicUsize = AtomicUsize::new(0);
/// Default seed of a grid, plus one. 0 means no seed.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Whether grids end before their threads have returned.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Ends every grid of this process, running and future, with an error. For a process that is about to exit: a kernel
/// that makes progress checks no request to stop.
pub fn stop_all() {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Returns whether grids end.
#[cfg_attr(any(loom, miri, feature = "threads"), allow(dead_code))] // used by the coroutine backend only
fn is_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// Sets the default number of workers of a grid. Initially it is one less than the cores that this process may use,
/// which leaves a core to the thread that answers the kernel.
pub fn set_workers(workers: usize) {
    WORKERS.store(workers, Ordering::Relaxed);
}

/// Sets the default seed of a grid; see [`EmulatedGrid::seeded`].
pub fn set_seed(seed: Option<u64>) {
    SEED.store(seed.map_or(0, |seed| seed.wrapping_add(1).max(1)), Ordering::Relaxed);
}

fn default_workers() -> usize {
    // The number is queried once and not on each launch, because the result is read from files of control groups.
    static OF_MACHINE: OnceLock<usize> = OnceLock::new();
    match WORKERS.load(Ordering::Relaxed) {
        0 => *OF_MACHINE.get_or_init(|| {
            std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1))
        }),
        workers => workers,
    }
}

/// Returns the nanoseconds since the first call in this process.
pub fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // `u64` covers 584 years.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Returns the block index of the emulated thread that runs on the current CPU thread, times [`MAX_BLOCK`], plus its
/// index in the block. For debuggers, which can call it by this name.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn emulated_thread() -> u64 {
    let Position { block_idx_x, thread_idx_x, .. } = position();
    block_idx_x as u64 * MAX_BLOCK as u64 + thread_idx_x as u64
}

/// Keeps `emulated_thread`, which no code calls, in the executable.
#[used]
static FOR_DEBUGGERS: extern "C" fn() -> u64 = emulated_thread;

/// A grid and its execution options.
#[derive(Clone, Debug)]
#[cfg_attr(any(loom, miri, feature = "threads"), allow(dead_code))] // used by the coroutine backend only
pub struct EmulatedGrid {
    blocks: u32,
    threads: u32,
    resident: bool,
    workers: usize,
    seed: Option<u64>,
    orders: Option<Orders>,
}

impl EmulatedGrid {
    /// Creates a grid of `blocks` blocks of `threads` threads.
    pub fn new(blocks: u32, threads: u32) -> EmulatedGrid {
        let seed = SEED.load(Ordering::Relaxed).checked_sub(1);
        EmulatedGrid { blocks, threads, resident: false, workers: default_workers(), seed, orders: None }
    }

    /// Sets whether all blocks must be resident at the same time, because they wait for one another or for other
    /// devices whose blocks do.
    pub fn resident(self, resident: bool) -> EmulatedGrid {
        EmulatedGrid { resident, ..self }
    }

    /// Sets the number of workers, at least one. The result of a grid does not depend on it.
    pub fn workers(self, workers: usize) -> EmulatedGrid {
        EmulatedGrid { workers: workers.max(1), ..self }
    }

    /// Schedules lanes in an order drawn from `seed`, and also switches between two accesses to shared memory. Lanes
    /// that arrive at [`crate::warp::active_mask`] together find themselves in random groups: the hardware guarantees
    /// neither an order nor that lanes reconverge after a branch. With one worker, a seed determines the order within
    /// each block.
    pub fn seeded(self, seed: u64) -> EmulatedGrid {
        EmulatedGrid { seed: Some(seed), ..self }
    }

    /// Tracks happens-before within each warp and block; see [`Orders`].
    pub fn observed(self, orders: &Orders) -> EmulatedGrid {
        EmulatedGrid { orders: Some(orders.clone()), ..self }
    }

    /// Returns the estimated memory of all threads that are resident at the same time, in bytes. Available before the
    /// run, so that the caller can report or refuse it.
    pub fn bytes(&self) -> u64 {
        self.threads_at_once() * THREAD_BYTES
    }

    fn blocks_at_once(&self) -> u32 {
        if self.resident { self.blocks } else { self.blocks.min((WAVE_THREADS / self.threads).max(1)) }
    }

    fn threads_at_once(&self) -> u64 {
        self.blocks_at_once() as u64 * self.threads as u64
    }

    /// Runs `body` once for each thread of the grid, and returns when all have returned.
    ///
    /// # Errors
    /// Returns an error in these cases:
    ///
    /// - No GPU accepts the grid, or more than [`RESIDENT_THREADS`] threads must be resident.
    /// - The system refuses threads or memory.
    /// - A thread panicked.
    /// - Threads of a block wait at different barriers, or one has returned while others of its block wait for it.
    /// - Lanes of a mask meet at different calls.
    /// - All threads of a block wait for one another.
    ///
    /// The first error aborts the whole grid. The text names block and thread, and the source lines at which threads
    /// wait.
    pub fn run<F: Fn() + Sync>(&self, body: F) -> io::Result<()> {
        if self.blocks == 0 || self.threads == 0 || self.threads > MAX_BLOCK {
            return Err(io::Error::other(format!(
                "invalid grid {} x {}: must have at least 1 block of 1 to {MAX_BLOCK} threads",
                self.blocks, self.threads
            )));
        }
        if self.resident && self.threads_at_once() > RESIDENT_THREADS {
            return Err(io::Error::other(format!(
                "grid {} x {} does not fit: all its blocks must be resident, and the emulated device holds \
                 {RESIDENT_THREADS} threads, so at most {} blocks of {}",
                self.blocks,
                self.threads,
                RESIDENT_THREADS / self.threads as u64,
                self.threads
            )));
        }
        backend::run(self, &body)
    }
}

/// Runs `body` once for each thread of a grid, and returns when all have returned.
///
/// # Errors
/// Returns the same errors as [`EmulatedGrid::run`].
pub fn run<F: Fn() + Sync>(grid: u32, block: u32, body: F) -> io::Result<()> {
    EmulatedGrid::new(grid, block).run(body)
}
