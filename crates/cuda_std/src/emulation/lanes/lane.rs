//! A lane: a thread of a block, as a coroutine that gives its worker back.

use super::super::Position;
use super::super::site::Site;
use super::SIZE;
use super::block::Block;
use super::warp::Warp;
use corosensei::Yielder;
use std::cell::Cell;
use std::ptr;

/// Why a lane gives the worker back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It spins: it looks again when the others have had their turns.
    Spins,
    /// It waits at a barrier or for lanes of its warp, which will make it ready again.
    Waits,
    /// The seed has taken the worker from it.
    Turns,
    /// It has found a bug of the kernel ([`Lane::fail`]) and never goes on.
    Failed,
}

/// Lines of a lane's stack that it needs to go on: the frames of its stop, and the kernel's own.
#[cfg(target_arch = "x86_64")]
const FETCHED_LINES: usize = 6;

/// A lane.
pub struct Lane {
    pub position: Position,
    block: Cell<*const Block>,
    yielder: Cell<*const Yielder<(), Stop>>,
    /// Its stack pointer may not be below this when it stops.
    lowest: usize,
    /// Where it was when it stopped.
    stopped_at: Cell<usize>,
    /// Where it has met others for the last time, or waits for them.
    pub last: Cell<Option<Site>>,
}

impl Lane {
    /// A lane whose stack pointer may not be below `lowest`; it has not begun.
    pub fn new(position: Position, lowest: usize) -> Lane {
        Lane {
            position,
            block: Cell::new(ptr::null()),
            yielder: Cell::new(ptr::null()),
            lowest,
            stopped_at: Cell::new(lowest),
            last: Cell::new(None),
        }
    }

    /// The lane is of this block, which outlives its coroutine.
    pub fn belongs_to(&self, block: *const Block) {
        self.block.set(block);
    }

    /// The lane's coroutine has begun.
    pub fn begins(&self, yielder: &Yielder<(), Stop>) {
        self.yielder.set(yielder);
    }

    pub fn block(&self) -> &Block {
        // SAFETY: set when the block was made, which outlives its lanes' coroutines.
        unsafe { &*self.block.get() }
    }

    pub fn warp(&self) -> &Warp {
        &self.block().warps[(self.position.thread_idx_x / SIZE) as usize]
    }

    pub fn bit(&self) -> u32 {
        1 << (self.position.thread_idx_x % SIZE)
    }

    /// Ends the grid for a bug of the kernel; the text says where. Comes back only while the grid is ending already, to destructors.
    #[cold]
    pub fn fail(&self, why: String) {
        self.block().failed.set(Some(format!("block {}: {why}", self.position.block_idx_x)));
        self.stop(Stop::Failed);
    }

    /// Fetches the end of its stack into the cache, while another lane has its turn: a block's stacks are more than the first
    /// cache holds (AMD EPYC, least of three runs in turns, 256 lanes: a barrier takes 7.9 instead of 8.3 us).
    #[inline(always)]
    pub fn fetch(&self) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..FETCHED_LINES {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint; it may name any address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(ptr::without_provenance(self.stopped_at.get() + 64 * line)) };
        }
    }

    /// Gives the worker back, until the lane is ready and has its turn.
    pub fn stop(&self, stop: Stop) {
        if self.block().ending.get() || std::thread::panicking() {
            // Destructors of a lane that is being unwound wait for nobody: the grid has ended.
            return;
        }
        let here = ptr::from_ref(&stop).addr();
        assert!(
            here >= self.lowest,
            "the kernel's stack is nearly full: {} bytes are left to it",
            super::stacks::STACK_BYTES
        );
        self.stopped_at.set(here);
        // SAFETY: set when the coroutine began, in which we are.
        unsafe { (*self.yielder.get()).suspend(stop) };
    }
}
