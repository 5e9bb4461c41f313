//! The emulated device: a grid as CPU threads.
//!
//! A block is as many threads as it has on a GPU, with a real barrier between them. Blocks run in waves when the grid is
//! larger than [`RESIDENT_THREADS`], as they do on a GPU that cannot hold the whole grid: a kernel whose blocks wait for
//! each other would hang there, and does not belong here either. What is measured on this device says nothing about a
//! GPU, and every result row names it `emulated`.

use std::cell::RefCell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use std::{io, thread};

/// Most threads that are alive at once, as long as one block fits.
pub const RESIDENT_THREADS: u32 = 1024;
/// Most threads in a block, as on every NVIDIA GPU.
pub const MAX_BLOCK: u32 = 1024;
/// Bytes of stack for each emulated thread: kernels keep little, and 1024 threads must fit.
const STACK_BYTES: usize = 128 * 1024;

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

thread_local! {
    static CURRENT: RefCell<Option<(Position, Arc<Barrier>)>> = const { RefCell::new(None) };
}

/// The position of the calling thread.
pub fn position() -> Position {
    CURRENT.with_borrow(|current| current.as_ref().map_or(ALONE, |(position, _)| *position))
}

/// Nanoseconds since the first call in this process.
pub fn monotonic_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // 584 years fit.
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// The block barrier with a vote; see [`crate::thread::sync_threads_or`].
pub fn sync_threads_or(predicate: bool) -> bool {
    let barrier = CURRENT.with_borrow(|current| current.as_ref().map(|(_, barrier)| barrier.clone()));
    barrier.map_or(predicate, |barrier| barrier.arrive(predicate))
}

/// A barrier that, as on a GPU, does not wait for threads that have returned.
#[derive(Debug)]
struct Barrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
}

#[derive(Debug)]
struct BarrierState {
    alive: u32,
    arrived: u32,
    vote: bool,
    generation: u64,
    result: bool,
}

impl Barrier {
    fn new(threads: u32) -> Barrier {
        let state = BarrierState { alive: threads, arrived: 0, vote: false, generation: 0, result: false };
        Barrier { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BarrierState> {
        // A panicking kernel thread leaves the counts intact: each change below is complete before the lock goes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrive(&self, predicate: bool) -> bool {
        let mut state = self.lock();
        state.arrived += 1;
        state.vote |= predicate;
        let generation = state.generation;
        self.release_if_complete(&mut state);
        while state.generation == generation {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.result
    }

    fn leave(&self) {
        let mut state = self.lock();
        state.alive -= 1;
        self.release_if_complete(&mut state);
    }

    fn release_if_complete(&self, state: &mut BarrierState) {
        if state.arrived > 0 && state.arrived == state.alive {
            state.arrived = 0;
            state.result = std::mem::take(&mut state.vote);
            state.generation += 1;
            self.changed.notify_all();
        }
    }
}

/// Takes the thread out of its block when it returns, also by a panic.
struct Resident;

impl Resident {
    fn enter(position: Position, barrier: Arc<Barrier>) -> Resident {
        CURRENT.set(Some((position, barrier)));
        Resident
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        if let Some((_, barrier)) = CURRENT.take() {
            barrier.leave();
        }
    }
}

/// Runs `body` once for each thread of the grid and returns when all have returned.
///
/// # Errors
/// When the operating system refuses threads, or a thread of the grid panicked (the kernel's bug, reported as text).
pub fn run<F: Fn() + Sync>(grid: u32, block: u32, body: F) -> io::Result<()> {
    if grid == 0 || block == 0 || block > MAX_BLOCK {
        return Err(io::Error::other(format!(
            "grid {grid} x {block} refused: 1 or more blocks of 1 to {MAX_BLOCK} threads"
        )));
    }
    let blocks_per_wave = (RESIDENT_THREADS / block).max(1);
    let mut first = 0;
    while first < grid {
        let last = grid.min(first.saturating_add(blocks_per_wave));
        run_wave(first..last, grid, block, &body)?;
        first = last;
    }
    Ok(())
}

fn run_wave<F: Fn() + Sync>(blocks: std::ops::Range<u32>, grid: u32, block: u32, body: &F) -> io::Result<()> {
    thread::scope(|scope| {
        let mut handles = Vec::new();
        let mut refused = None;
        for block_idx_x in blocks {
            let barrier = Arc::new(Barrier::new(block));
            for thread_idx_x in 0..block {
                if refused.is_some() {
                    // The threads of this block that do run must not wait for those that never started.
                    barrier.leave();
                    continue;
                }
                let position = Position { thread_idx_x, block_idx_x, block_dim_x: block, grid_dim_x: grid };
                let own_barrier = barrier.clone();
                let spawned = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, move || {
                    let _resident = Resident::enter(position, own_barrier);
                    body();
                });
                match spawned {
                    Ok(handle) => handles.push(handle),
                    Err(error) => {
                        barrier.leave();
                        refused = Some(error);
                    }
                }
            }
        }
        let panicked = handles.into_iter().map(|handle| handle.join()).filter(Result::is_err).count();
        match refused {
            Some(error) => Err(error),
            None if panicked > 0 => Err(io::Error::other(format!("{panicked} emulated threads panicked"))),
            None => Ok(()),
        }
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::thread;
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    #[test]
    fn every_thread_runs_once_also_in_waves() {
        // More threads than are resident at once, but under Miri, which takes seconds for a hundred.
        let (grid, block) = if cfg!(miri) { (3, 8) } else { (40, 64) };
        let counts: Vec<AtomicU32> = (0..grid * block).map(|_| AtomicU32::new(0)).collect();
        run(grid, block, || {
            counts[thread::index() as usize].fetch_add(1, Ordering::Relaxed);
        })
        .expect("runs");
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn the_barrier_joins_a_block_and_votes() {
        let sum = AtomicU64::new(0);
        let votes = AtomicU32::new(0);
        run(3, 8, || {
            sum.fetch_add(1, Ordering::Relaxed);
            thread::sync_threads();
            assert!(sum.load(Ordering::Relaxed) >= 8);
            if thread::sync_threads_or(thread::thread_idx_x() == 5) {
                votes.fetch_add(1, Ordering::Relaxed);
            }
            assert!(!thread::sync_threads_or(false));
        })
        .expect("runs");
        assert_eq!(votes.load(Ordering::Relaxed), 24);
    }

    #[test]
    fn a_barrier_does_not_wait_for_threads_that_returned() {
        run(2, 8, || {
            if thread::thread_idx_x() < 3 {
                return;
            }
            thread::sync_threads();
        })
        .expect("runs");
    }

    #[test]
    fn refuses_what_a_gpu_refuses_and_reports_a_panic() {
        assert!(run(0, 1, || ()).is_err());
        assert!(run(1, 1025, || ()).is_err());
        let error = run(1, 4, || assert!(thread::thread_idx_x() != 2, "expected by the test")).expect_err("panicked");
        assert!(error.to_string().contains("1 emulated"));
    }
}
