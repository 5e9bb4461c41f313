//! Backend of the emulated device with lanes as coroutines.

mod barrier;
mod rendezvous;
mod running;
mod stacks;
mod state;
mod stepped;
mod workers;

pub use stepped::{Stepped, SteppedStop};
pub use workers::run;

use super::site::{RendezvousKind, Site};
use super::{ALONE, Position, Vote};
use crate::memory::Word;
use state::{LaneState, LaneStop, RendezvousCall};
use std::cell::{Cell, UnsafeCell};
use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of lanes of a full warp.
pub const SIZE: u32 = 32;

thread_local! {
    /// The lane that runs on this CPU thread. A lane never changes its worker, so the value that a function has read
    /// stays valid across a stop of the lane.
    static CURRENT: Cell<*const LaneState> = const { Cell::new(ptr::null()) };
    /// Whether a lane of this CPU thread has changed memory since the worker last checked. Waiting lanes change no
    /// memory: they load, repeat a store, or fail to exchange.
    static PROGRESS: Cell<bool> = const { Cell::new(false) };
}

/// Number of running grids that are seeded or observed. If 0, accesses to shared memory skip the bookkeeping.
static WATCHED: AtomicUsize = AtomicUsize::new(0);

/// Runs `turn` as this lane.
fn become_lane<R>(lane: &LaneState, turn: impl FnOnce() -> R) -> R {
    struct Back(*const LaneState);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _back = Back(CURRENT.replace(lane));
    turn()
}

/// Returns the lane that runs on this CPU thread, or `None` outside the emulated device.
#[inline(always)]
fn current<'a>() -> Option<&'a LaneState> {
    // SAFETY: `become_lane` sets the pointer while the lane runs. The caller is that lane and keeps the reference no
    // longer.
    unsafe { CURRENT.get().as_ref() }
}

/// Returns the position of the calling thread.
#[inline(always)]
pub fn position() -> Position {
    current().map_or(ALONE, |lane| lane.position)
}

#[inline(always)]
pub fn lane() -> u32 {
    position().thread_idx_x % SIZE
}

#[track_caller]
pub fn sync_threads() {
    barrier(false, Site { meeting: RendezvousKind::SyncThreads, location: Location::caller() });
}

#[track_caller]
pub fn sync_threads_or(predicate: bool) -> bool {
    barrier(predicate, Site { meeting: RendezvousKind::SyncThreadsOr, location: Location::caller() })
}

/// Block barrier. A [`Stepped`] thread returns control to its owner.
fn barrier(predicate: bool, site: Site) -> bool {
    match current() {
        Some(lane) => lane.block().barrier(lane, predicate, site),
        None => {
            stepped::pause(SteppedStop::Meets);
            predicate
        }
    }
}

/// Lets the other threads run, in a spin loop.
pub fn relax() {
    match current() {
        Some(lane) => lane.stop(LaneStop::Spins),
        None if stepped::pause(SteppedStop::Spins) => {}
        None => std::thread::yield_now(),
    }
}

pub fn active_mask(site: &'static Location<'static>) -> u32 {
    current().map_or(1, |lane| lane.warp().active(lane, site))
}

#[track_caller]
fn meet(meeting: RendezvousKind, mask: u32, value: u64, source: u32, alone: u64) -> u64 {
    let site = Site { meeting, location: Location::caller() };
    current().map_or(alone, |lane| lane.warp().meet(lane, RendezvousCall { site, mask, value, source }))
}

#[track_caller]
pub fn synchronize(mask: u32) {
    meet(RendezvousKind::Synchronize, mask, 0, 0, 0);
}

#[track_caller]
pub fn shuffle(mask: u32, value: u64, source: u32) -> u64 {
    meet(RendezvousKind::Shuffle, mask, value, source, value)
}

#[track_caller]
pub fn match_any(mask: u32, value: u64) -> u32 {
    meet(RendezvousKind::Match, mask, value, 0, mask.into()) as u32
}

#[track_caller]
pub fn vote(mask: u32, kind: Vote, predicate: bool) -> u32 {
    meet(RendezvousKind::Vote(kind), mask, predicate.into(), 0, predicate.into()) as u32
}

/// Called before an access to shared memory: with a seed, may switch to another lane.
#[inline(always)]
pub fn step() {
    if WATCHED.load(Ordering::Relaxed) != 0 {
        maybe_turn();
    }
}

#[cold]
fn maybe_turn() {
    // Switches with probability 1/4, so that lanes interleave in all orders but still make progress.
    if let Some(lane) = current()
        && lane.block().is_seeded()
        && lane.block().random().is_multiple_of(4)
    {
        lane.stop(LaneStop::Turns);
    }
}

/// Records that this lane has fenced.
#[inline(always)]
pub fn fenced() {
    if WATCHED.load(Ordering::Relaxed) != 0
        && let Some(lane) = current()
        && let Some(orders) = &lane.block().orders
    {
        orders.fenced(lane.position);
    }
}

/// Records that this lane changes memory.
#[inline(always)]
pub fn changes() {
    PROGRESS.set(true);
}

/// Called before a read-modify-write. Does the same as [`step`], and records that the lane changes memory.
#[inline(always)]
pub fn modifies() {
    step();
    changes();
}

/// Records a store of this lane to `word`. `changes` returns whether the store changes the value. `release` states
/// whether it is a release store.
#[inline(always)]
pub fn stored(word: &Word, changes: impl FnOnce() -> bool, release: bool) {
    // `changes` is called only until the first change: loading a word of another core takes longer than the store.
    if !PROGRESS.get() && changes() {
        self::changes();
    }
    if WATCHED.load(Ordering::Relaxed) != 0
        && let Some(lane) = current()
        && let Some(orders) = &lane.block().orders
    {
        orders.stored(lane.position, ptr::from_ref(word).addr(), release);
    }
}

/// Returns the shared memory of this lane's block, of `words` 16-byte words, or `None` outside a grid. Its initial
/// content is not zero.
pub fn shared_memory(words: usize) -> Option<*mut u8> {
    /// Initial content, so that kernels cannot rely on zeros.
    const UNWRITTEN: u128 = 0xa5a5_a5a5_a5a5_a5a5_a5a5_a5a5_a5a5_a5a5;
    let lane = current()?;
    let memory = lane.block().shared.get_or_init(|| (0..words).map(|_| UnsafeCell::new(UNWRITTEN)).collect());
    Some(UnsafeCell::raw_get(memory.as_ptr()).cast())
}
