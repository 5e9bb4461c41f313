//! Backend of the emulated device with one CPU thread per thread of the grid, each its own warp.

use super::site::{RendezvousKind, Site, one_has_left, two_barriers};
use super::{ALONE, EmulatedGrid, Position, Vote};
use crate::memory::Word;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::panic::{Location, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::{io, thread};

pub const SIZE: u32 = 1;

/// Bytes of stack per thread: unoptimized kernels use up to 100 KiB, and 1024 stacks must fit.
const STACK_BYTES: usize = 256 * 1024;

/// Maximum number of threads at the same time, unless a single block is larger or the grid requests all of its blocks.
const WAVE: u32 = 1024;

thread_local! {
    static CURRENT: RefCell<Option<(Position, Arc<Block>)>> = const { RefCell::new(None) };
    /// The last barrier at which this thread met others, or at which it is waiting.
    static LAST: Cell<Option<Site>> = const { Cell::new(None) };
}

/// State shared by the threads of a block.
struct Block {
    barrier: Barrier,
    shared: OnceLock<Shared>,
}

struct Shared(Box<[UnsafeCell<u128>]>);

// SAFETY: raw memory; the kernel is responsible for synchronizing the threads of the block that access it.
unsafe impl Send for Shared {}
// SAFETY: the threads access it only through raw pointers, synchronized as the kernel specifies.
unsafe impl Sync for Shared {}

/// Returns the position of the calling thread.
pub fn position() -> Position {
    CURRENT.with_borrow(|current| current.as_ref().map_or(ALONE, |(position, _)| *position))
}

fn block() -> Option<Arc<Block>> {
    CURRENT.with_borrow(|current| current.as_ref().map(|(_, block)| block.clone()))
}

#[track_caller]
pub fn sync_threads() {
    arrive(false, Site { meeting: RendezvousKind::SyncThreads, location: Location::caller() });
}

#[track_caller]
pub fn sync_threads_or(predicate: bool) -> bool {
    arrive(predicate, Site { meeting: RendezvousKind::SyncThreadsOr, location: Location::caller() })
}

fn arrive(predicate: bool, site: Site) -> bool {
    match block() {
        // Destructors must not wait: the grid is ending.
        Some(block) if !thread::panicking() => {
            LAST.set(Some(site));
            block.barrier.arrive(position().thread_idx_x, predicate, site)
        }
        _ => predicate,
    }
}

/// Lets the other threads run, in a spin loop.
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

/// Does nothing, because the operating system schedules the threads.
#[inline(always)]
pub fn step() {}

/// Does nothing, because Miri and the sanitizers detect races themselves.
#[inline(always)]
pub fn changes() {}

/// No effect; see [`step`].
#[inline(always)]
pub fn modifies() {}

/// No effect; see [`changes`].
#[inline(always)]
pub fn fenced() {}

/// Does nothing, like [`changes`]. Does not call its argument: under loom, that load would limit the older values that
/// other threads can read.
#[inline(always)]
pub fn stored(_: &Word, _: impl FnOnce() -> bool, _: bool) {}

/// Returns the shared memory of this thread's block, of `words` 16-byte words, or `None` outside a grid. Its initial
/// content is not zero.
pub fn shared_memory(words: usize) -> Option<*mut u8> {
    let block = block()?;
    let memory = block.shared.get_or_init(|| Shared((0..words).map(|_| UnsafeCell::new(u128::MAX)).collect()));
    Some(UnsafeCell::raw_get(memory.0.as_ptr()).cast())
}

/// A barrier for all threads of a block. They must meet at the same call. Does not wait for threads that panicked,
/// because the grid is ending.
#[derive(Debug)]
struct Barrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
}

#[derive(Debug)]
struct BarrierState {
    /// Number of threads that have not panicked.
    alive: u32,
    arrived: u32,
    /// Index of the first thread that arrived, and its barrier.
    first: Option<(u32, Site)>,
    /// A thread that has returned, and the last barrier at which it met others.
    gone: Option<(u32, Option<Site>)>,
    /// A detected bug of the kernel; no thread continues.
    failed: Option<String>,
    vote: bool,
    generation: u64,
    result: bool,
}

impl Barrier {
    fn new(threads: u32) -> Barrier {
        let state = BarrierState {
            alive: threads,
            arrived: 0,
            first: None,
            gone: None,
            failed: None,
            vote: false,
            generation: 0,
            result: false,
        };
        Barrier { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BarrierState> {
        // A panicking kernel thread leaves the counts intact: each change below is complete before the lock is
        // released.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrive(&self, thread: u32, predicate: bool, site: Site) -> bool {
        let mut state = self.lock();
        let first = *state.first.get_or_insert((thread, site));
        if !first.1.is(&site) {
            self.fail(&mut state, two_barriers((thread, site), first));
        } else if let Some(gone) = state.gone {
            self.fail(&mut state, one_has_left(gone, (thread, site)));
        }
        state.arrived += 1;
        state.vote |= predicate;
        let generation = state.generation;
        self.release_if_complete(&mut state);
        while state.generation == generation && state.failed.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.failed.is_some() {
            drop(state);
            // Ends this thread without printing: the grid reports the message.
            resume_unwind(Box::new("the grid has ended"));
        }
        state.result
    }

    /// Records that a thread has panicked, or was never started.
    fn give_up(&self) {
        let mut state = self.lock();
        state.alive -= 1;
        self.release_if_complete(&mut state);
    }

    /// Records that a thread has returned.
    fn leave(&self, thread: u32, last: Option<Site>) {
        let mut state = self.lock();
        state.gone = Some((thread, last));
        if let Some(first) = state.first {
            self.fail(&mut state, one_has_left((thread, last), first));
        }
    }

    /// Records the first bug; later ones are ignored.
    fn fail(&self, state: &mut BarrierState, why: String) {
        state.failed.get_or_insert(why);
        self.changed.notify_all();
    }

    fn release_if_complete(&self, state: &mut BarrierState) {
        if state.arrived > 0 && state.arrived == state.alive {
            state.arrived = 0;
            state.first = None;
            state.result = std::mem::take(&mut state.vote);
            state.generation += 1;
            self.changed.notify_all();
        }
    }
}

/// Removes the thread from its block when it returns or panics.
struct Resident;

impl Resident {
    fn enter(position: Position, block: Arc<Block>) -> Resident {
        CURRENT.set(Some((position, block)));
        LAST.set(None);
        Resident
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        match CURRENT.take() {
            Some((_, block)) if thread::panicking() => block.barrier.give_up(),
            Some((position, block)) => block.barrier.leave(position.thread_idx_x, LAST.get()),
            None => {}
        }
    }
}

pub fn run(grid: &EmulatedGrid, body: &(dyn Fn() + Sync)) -> io::Result<()> {
    let at_once = if grid.resident { grid.blocks } else { (WAVE / grid.threads).max(1) };
    let mut first = 0;
    while first < grid.blocks {
        let last = grid.blocks.min(first.saturating_add(at_once));
        run_wave(first..last, grid, body)?;
        first = last;
    }
    Ok(())
}

fn run_wave(blocks: std::ops::Range<u32>, grid: &EmulatedGrid, body: &(dyn Fn() + Sync)) -> io::Result<()> {
    thread::scope(|scope| {
        let (mut handles, mut started) = (Vec::new(), Vec::new());
        let mut refused = None;
        for block_idx_x in blocks {
            let block = Arc::new(Block { barrier: Barrier::new(grid.threads), shared: OnceLock::new() });
            started.push((block_idx_x, block.clone()));
            for thread_idx_x in 0..grid.threads {
                if refused.is_some() {
                    // The running threads of this block must not wait for those that were not started.
                    block.barrier.give_up();
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
                        block.barrier.give_up();
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
        let failed = started.iter().find_map(|(index, block)| Some((index, block.barrier.lock().failed.take()?)));
        match (refused, failed, panicked) {
            (Some(error), ..) => Err(error),
            (None, Some((index, why)), _) => Err(io::Error::other(format!("block {index}: {why}"))),
            (None, None, Some(text)) => Err(io::Error::other(text)),
            (None, None, None) => Ok(()),
        }
    })
}
