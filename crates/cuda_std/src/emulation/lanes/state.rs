//! A block, its warps and its lanes: what each of them is, and how a lane gives its worker back. One machine, whose parts point at
//! one another; what they do together, at a barrier and at a rendezvous, stands above.
//!
//! All of a block happens on one worker, so its state is in cells and takes neither locks nor atomic operations. Lanes reach it
//! through [`super::current`] while they run; the worker reaches it between two lanes. The two never hold a `&mut` to any of it.

use super::super::site::Site;
use super::super::{Orders, Position};
use super::SIZE;
use corosensei::Yielder;
use std::cell::{Cell, OnceCell, UnsafeCell};
use std::panic::Location;
use std::ptr;

/// A block's state.
pub struct Block {
    pub lanes: Box<[Lane]>,
    pub warps: Box<[Warp]>,
    /// Warps in which a lane can go on.
    pub ready: Cell<u32>,
    pub alive: Cell<u32>,
    pub arrived: Cell<u32>,
    /// The number of the first of these, and where it waits.
    pub first: Cell<Option<(u32, Site)>>,
    /// Why the grid must end: see [`Lane::fail`].
    pub failed: Cell<Option<String>>,
    pub vote: Cell<bool>,
    pub voted: Cell<bool>,
    pub seeded: bool,
    /// State of the random numbers.
    pub random: Cell<u64>,
    pub ending: Cell<bool>,
    pub orders: Option<Orders>,
    /// The block's shared memory, once somebody asks for it.
    pub shared: OnceCell<Box<[UnsafeCell<u128>]>>,
}

impl Block {
    #[inline]
    pub fn index(&self) -> u32 {
        self.lanes[0].position.block_idx_x
    }

    #[inline]
    pub fn is_seeded(&self) -> bool {
        self.seeded
    }

    /// The next random number (splitmix64).
    #[inline]
    pub fn random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One of the bits that are set: the lowest, or any by the seed.
    #[inline]
    pub fn pick(&self, mut bits: u32) -> u32 {
        if self.is_seeded() {
            for _ in 0..self.random() % bits.count_ones() as u64 {
                bits &= bits - 1;
            }
        }
        bits.trailing_zeros()
    }

    /// These lanes of a warp can go on.
    #[inline]
    pub fn wake(&self, warp: &Warp, lanes: u32) {
        warp.runnable.set(warp.runnable.get() | lanes);
        self.ready.set(self.ready.get() | 1 << warp.index);
    }
}

/// A lane at a rendezvous.
#[derive(Clone, Copy)]
pub struct Call {
    pub site: Site,
    pub mask: u32,
    pub value: u64,
    /// The lane whose value it wants.
    pub source: u32,
}

/// A warp's state.
pub struct Warp {
    pub index: u32,
    /// Lanes that the launch has, and have not returned.
    pub alive: Cell<u32>,
    pub runnable: Cell<u32>,
    /// Of these, the ones that spin: not again in this turn of the warp.
    pub spinning: Cell<u32>,
    pub at_barrier: Cell<u32>,
    /// Lanes that ask who is active.
    pub asking: Cell<u32>,
    pub sites: [Cell<Option<&'static Location<'static>>>; SIZE as usize],
    /// Who of them came first.
    pub asked: [Cell<u64>; SIZE as usize],
    pub asks: Cell<u64>,
    /// Lanes at a rendezvous.
    pub meeting: Cell<u32>,
    pub calls: [Cell<Option<Call>>; SIZE as usize],
    pub answers: [Cell<u64>; SIZE as usize],
}

impl Warp {
    pub fn new(index: u32, threads: u32) -> Warp {
        let all = u32::MAX >> (SIZE - SIZE.min(threads - index * SIZE));
        Warp {
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

    #[inline]
    pub fn block(&self) -> &Block {
        // SAFETY: set when the block was made, which outlives its lanes' coroutines.
        unsafe { &*self.block.get() }
    }

    #[inline]
    pub fn warp(&self) -> &Warp {
        &self.block().warps[(self.position.thread_idx_x / SIZE) as usize]
    }

    #[inline]
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
