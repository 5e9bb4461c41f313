//! One CPU thread for each of a grid's threads, each a warp of its own.

use super::{ALONE, Grid, Position, Vote};
use crate::memory::Word;
use std::cell::{RefCell, UnsafeCell};
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{io, thread};

/// Each thread is its own warp.
pub const SIZE: u32 = 1;

/// Bytes of stack for each thread: kernels keep little, and 1024 threads must fit.
const STACK_BYTES: usize = 128 * 1024;

/// Most threads at once where one block is smaller and the grid does not ask for all of its blocks.
const WAVE: u32 = 1024;

thread_local! {
    static CURRENT: RefCell<Option<(Position, Arc<Block>)>> = const { RefCell::new(None) };
}

/// What the threads of a block share.
struct Block {
    barrier: Barrier,
    shared: OnceLock<Shared>,
}

struct Shared(Box<[UnsafeCell<u128>]>);

// SAFETY: memory that the threads of a block use as a kernel says.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The position of the calling thread.
pub fn position() -> Position {
    CURRENT.with_borrow(|current| current.as_ref().map_or(ALONE, |(position, _)| *position))
}

fn block() -> Option<Arc<Block>> {
    CURRENT.with_borrow(|current| current.as_ref().map(|(_, block)| block.clone()))
}

pub fn sync_threads_or(predicate: bool) -> bool {
    block().map_or(predicate, |block| block.barrier.arrive(predicate))
}

/// In a spin: the others have their turns.
pub fn relax() {
    #[cfg(loom)]
    crate::model::give_way();
    #[cfg(not(loom))]
    thread::yield_now();
}

pub fn lane() -> u32 {
    0
}

pub fn active_mask(_: &'static Location<'static>) -> u32 {
    1
}

pub fn synchronize(_: u32) {}

pub fn shuffle(_: u32, value: u64, _: u32) -> u64 {
    value
}

pub fn match_any(mask: u32, _: u64) -> u32 {
    mask
}

pub fn vote(_: u32, _: Vote, predicate: bool) -> u32 {
    predicate.into()
}

/// The system takes the turns here.
#[inline(always)]
pub fn step() {}

/// Nothing is observed here: Miri and the sanitizers do it themselves.
#[inline(always)]
pub fn fenced() {}

/// As [`fenced`].
#[inline(always)]
pub fn stored(_: &Word, _: bool) {}

/// The shared memory of this thread's block, of so many words of 16 bytes; none outside a grid. Nobody has written it before.
pub fn shared_memory(words: usize) -> Option<*mut u8> {
    let block = block()?;
    let memory = block.shared.get_or_init(|| Shared((0..words).map(|_| UnsafeCell::new(u128::MAX)).collect()));
    Some(UnsafeCell::raw_get(memory.0.as_ptr()).cast())
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
    fn enter(position: Position, block: Arc<Block>) -> Resident {
        CURRENT.set(Some((position, block)));
        Resident
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        if let Some((_, block)) = CURRENT.take() {
            block.barrier.leave();
        }
    }
}

pub fn run(grid: &Grid, body: &(dyn Fn() + Sync)) -> io::Result<()> {
    let at_once = if grid.resident { grid.blocks } else { (WAVE / grid.threads).max(1) };
    let mut first = 0;
    while first < grid.blocks {
        let last = grid.blocks.min(first.saturating_add(at_once));
        run_wave(first..last, grid, body)?;
        first = last;
    }
    Ok(())
}

fn run_wave(blocks: std::ops::Range<u32>, grid: &Grid, body: &(dyn Fn() + Sync)) -> io::Result<()> {
    thread::scope(|scope| {
        let mut handles = Vec::new();
        let mut refused = None;
        for block_idx_x in blocks {
            let block = Arc::new(Block { barrier: Barrier::new(grid.threads), shared: OnceLock::new() });
            for thread_idx_x in 0..grid.threads {
                if refused.is_some() {
                    // The threads of this block that do run must not wait for those that never started.
                    block.barrier.leave();
                    continue;
                }
                let position =
                    Position { thread_idx_x, block_idx_x, block_dim_x: grid.threads, grid_dim_x: grid.blocks };
                let own = block.clone();
                let spawned = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, move || {
                    let _resident = Resident::enter(position, own);
                    body();
                });
                match spawned {
                    Ok(handle) => handles.push((position, handle)),
                    Err(error) => {
                        block.barrier.leave();
                        refused = Some(error);
                    }
                }
            }
        }
        let mut panicked = None;
        for (Position { block_idx_x, thread_idx_x, .. }, handle) in handles {
            if handle.join().is_err() && panicked.is_none() {
                panicked = Some(format!("block {block_idx_x}, thread {thread_idx_x} panicked"));
            }
        }
        match (refused, panicked) {
            (Some(error), _) => Err(error),
            (None, Some(text)) => Err(io::Error::other(text)),
            (None, None) => Ok(()),
        }
    })
}
