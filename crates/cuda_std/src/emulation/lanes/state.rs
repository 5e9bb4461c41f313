//! State of a block, its warps and its lanes, and how a lane returns control to its worker. These types refer to one
//! another. Their joint operations, the barrier and the rendezvous, are in `barrier.rs` and `rendezvous.rs`.
//!
//! All lanes of a block run on one worker, so its state is in cells and needs neither locks nor atomic operations.
//! Lanes access it through [`super::current`] while they run; the worker accesses it between two lanes. Neither ever
//! holds a `&mut` to any of it.

use super::super::site::Site;
use super::super::{Orders, Position};
use super::SIZE;
use corosensei::Yielder;
use std::cell::{Cell, OnceCell, UnsafeCell};
use std::panic::Location;
use std::ptr;

/// State of a block.
pub struct BlockState {
    pub lanes: Box<[LaneState]>,
    pub warps: Box<[WarpState]>,
    /// Warps that have a runnable lane, one bit each.
    pub ready: Cell<u32>,
    pub alive: Cell<u32>,
    pub arrived: Cell<u32>,
    /// Index of the first thread that arrived, and its barrier.
    pub first: Cell<Option<(u32, Site)>>,
    /// Reason to abort the grid; see [`LaneState::fail`].
    pub failed: Cell<Option<String>>,
    pub vote: Cell<bool>,
    pub voted: Cell<bool>,
    pub seeded: bool,
    /// State of the random number generator.
    pub random: Cell<u64>,
    pub ending: Cell<bool>,
    pub orders: Option<Orders>,
    /// Shared memory of the block, allocated on first use.
    pub shared: OnceCell<Box<[UnsafeCell<u128>]>>,
}

impl BlockState {
    #[inline]
    pub fn index(&self) -> u32 {
        self.lanes[0].position.block_idx_x
    }

    #[inline]
    pub fn is_seeded(&self) -> bool {
        self.seeded
    }

    /// Returns the next random number (splitmix64).
    #[inline]
    pub fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns the index of one of the set bits: the lowest, or a random one if seeded.
    #[inline]
    pub fn pick(&self, mut bits: u32) -> u32 {
        if self.is_seeded() {
            for _ in 0..self.random() % bits.count_ones() as u64 {
                bits &= bits - 1;
            }
        }
        bits.trailing_zeros()
    }

    /// Marks `lanes` of `warp` as runnable.
    #[inline]
    pub fn wake(&self, warp: &WarpState, lanes: u32) {
        warp.runnable.set(warp.runnable.get() | lanes);
        self.ready.set(self.ready.get() | 1 << warp.index);
    }
}

/// A lane's call of a rendezvous.
#[derive(Clone, Copy)]
pub struct RendezvousCall {
    pub site: Site,
    pub mask: u32,
    pub value: u64,
    /// The lane whose value is requested.
    pub source: u32,
}

/// State of a warp.
pub struct WarpState {
    pub index: u32,
    /// Lanes that were launched and have not returned.
    pub alive: Cell<u32>,
    pub runnable: Cell<u32>,
    /// The runnable lanes that spin; they are not resumed again in this pass over the warp.
    pub spinning: Cell<u32>,
    pub at_barrier: Cell<u32>,
    /// Lanes that wait for the result of `active_mask`.
    pub asking: Cell<u32>,
    pub sites: [Cell<Option<&'static Location<'static>>>; SIZE as usize],
    /// Order in which these lanes arrived.
    pub asked: [Cell<u64>; SIZE as usize],
    pub asks: Cell<u64>,
    /// Lanes that wait at a rendezvous.
    pub meeting: Cell<u32>,
    pub calls: [Cell<Option<RendezvousCall>>; SIZE as usize],
    pub answers: [Cell<u64>; SIZE as usize],
}

impl WarpState {
    pub fn new(index: u32, threads: u32) -> WarpState {
        let all = u32::MAX >> (SIZE - SIZE.min(threads - index * SIZE));
        WarpState {
            index,
            alive: Cell::new(all),
            runnable: Cell::new(all),
            spinning: Cell::new(0),
            at_barrier: Cell::new(0),
            asking: Cell::new(0),
            sites: [const { Cell::new(None) }; SIZE as usize],
            asked: [const { Cell::new(0) }; SIZE as usize],
            asks: Cell::new(0),
            meeting: Cell::new(0),
            calls: [const { Cell::new(None) }; SIZE as usize],
            answers: [const { Cell::new(0) }; SIZE as usize],
        }
    }
}

/// Reason why a lane returns control to its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneStop {
    /// The lane spins. It polls again when the other lanes have been scheduled.
    Spins,
    /// The lane waits at a barrier or for lanes of its warp, which will make it runnable again.
    Waits,
    /// The seeded scheduler preempted the lane.
    Turns,
    /// The lane found a bug of the kernel ([`LaneState::fail`]) and is never resumed.
    Failed,
}

/// Number of cache lines of a lane's stack that are needed to resume it: the frames of `stop` and of the kernel.
#[cfg(target_arch = "x86_64")]
const FETCHED_LINES: usize = 6;

/// State of a lane.
pub struct LaneState {
    pub position: Position,
    block: Cell<*const BlockState>,
    yielder: Cell<*const Yielder<(), LaneStop>>,
    /// Lowest permitted stack pointer at a stop.
    lowest: usize,
    /// Stack pointer at the last stop.
    stopped_at: Cell<usize>,
    /// The last call at which the lane met others, or at which it is waiting.
    pub last: Cell<Option<Site>>,
}

impl LaneState {
    /// Creates a lane that has not started. Its stack pointer must not be below `lowest` at a stop.
    pub fn new(position: Position, lowest: usize) -> LaneState {
        LaneState {
            position,
            block: Cell::new(ptr::null()),
            yielder: Cell::new(ptr::null()),
            lowest,
            stopped_at: Cell::new(lowest),
            last: Cell::new(None),
        }
    }

    /// Sets the block of the lane. The block must outlive the lane's coroutine.
    pub fn belongs_to(&self, block: *const BlockState) {
        self.block.set(block);
    }

    /// Records that the lane's coroutine has started.
    pub fn begins(&self, yielder: &Yielder<(), LaneStop>) {
        self.yielder.set(yielder);
    }

    #[inline]
    pub fn block(&self) -> &BlockState {
        // SAFETY: the pointer was set when the block was created, and the block outlives the coroutines of its lanes.
        unsafe { &*self.block.get() }
    }

    #[inline]
    pub fn warp(&self) -> &WarpState {
        &self.block().warps[(self.position.thread_idx_x / SIZE) as usize]
    }

    #[inline]
    pub fn bit(&self) -> u32 {
        1 << (self.position.thread_idx_x % SIZE)
    }

    /// Aborts the grid because of a bug of the kernel that `why` describes. Returns only if the grid is already ending,
    /// so that destructors can run.
    #[cold]
    pub fn fail(&self, why: String) {
        self.block().failed.set(Some(format!("block {}: {why}", self.position.block_idx_x)));
        self.stop(LaneStop::Failed);
    }

    /// Prefetches the top of the lane's stack while another lane runs: the stacks of a block exceed the L1 cache.
    #[inline(always)]
    pub fn fetch(&self) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..FETCHED_LINES {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch is a hint, and accepts any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr::without_provenance(self.stopped_at.get() + 64 * line)) };
        }
    }

    /// Returns control to the worker until the lane is scheduled again.
    pub fn stop(&self, stop: LaneStop) {
        if self.block().ending.get() || std::thread::panicking() {
            // Destructors of a lane that is being unwound must not wait: the grid has ended.
            return;
        }
        let here = ptr::from_ref(&stop).addr();
        assert!(here >= self.lowest, "the kernel's stack of {} bytes is nearly full", super::stacks::STACK_BYTES);
        self.stopped_at.set(here);
        // SAFETY: the pointer was set when this coroutine started, and this code runs in it.
        unsafe { (*self.yielder.get()).suspend(stop) };
    }
}
