//! Whose calls a context's are.

use cuda_std::{thread, warp};

/// The threads that make a context's calls together.
pub trait Scope: Copy {
    /// Whether it is one thread, whose calls need nobody else.
    const ALONE: bool;

    /// Whether it is the lanes of one warp.
    const IS_WARP: bool;

    /// The block's first one of this kind: its first thread, its first warp, or the whole block. Nothing for threads that are not of it.
    fn first_of_block() -> Option<Self>;

    /// This thread's number among them.
    fn rank(&self) -> u32;

    /// How many they are.
    fn size(&self) -> u32;

    /// The number of this scope among those of its kind in the block, and how many these are.
    fn of_block(&self) -> (u32, u32);

    /// Waits until all are here, and orders their memory accesses among each other.
    // The caller's line is what the emulated device names when threads wait at two barriers; so in all calls up to a kernel's own.
    #[track_caller]
    fn sync(&self);

    /// Waits until all are here; gives all of them the largest of their reasons (each below 8), mostly 0.
    #[track_caller]
    fn agree(&self, reason: u64) -> u64;

    /// Whether this thread does what is done once.
    #[inline(always)]
    fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Whether this thread is of the warp that has the one which [`leads`](Scope::leads).
    #[inline(always)]
    fn is_of_first_warp(&self) -> bool {
        self.rank() < warp::SIZE
    }
}

/// One thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread;

impl Scope for Thread {
    const ALONE: bool = true;
    const IS_WARP: bool = false;

    #[inline(always)]
    fn first_of_block() -> Option<Thread> {
        (thread::thread_idx_x() == 0).then_some(Thread)
    }

    #[inline(always)]
    fn rank(&self) -> u32 {
        0
    }
    #[inline(always)]
    fn size(&self) -> u32 {
        1
    }
    #[inline(always)]
    fn of_block(&self) -> (u32, u32) {
        (thread::thread_idx_x(), thread::block_dim_x())
    }
    #[inline(always)]
    fn sync(&self) {}
    #[inline(always)]
    fn agree(&self, reason: u64) -> u64 {
        reason
    }
}

/// The threads of a warp, all that the block has.
#[derive(Clone, Copy, Debug)]
pub struct Warp {
    lanes: u32,
}

impl Warp {
    /// This thread's warp.
    #[inline(always)]
    pub fn this() -> Warp {
        Warp { lanes: warp::launched_mask().count_ones() }
    }

    #[inline(always)]
    fn mask(&self) -> u32 {
        u32::MAX >> (u32::BITS - self.lanes)
    }
}

impl Scope for Warp {
    const ALONE: bool = false;
    const IS_WARP: bool = true;

    #[inline(always)]
    fn first_of_block() -> Option<Warp> {
        (thread::thread_idx_x() < warp::SIZE).then(Warp::this)
    }

    #[inline(always)]
    fn rank(&self) -> u32 {
        warp::lane()
    }
    #[inline(always)]
    fn size(&self) -> u32 {
        self.lanes
    }
    #[inline(always)]
    fn of_block(&self) -> (u32, u32) {
        (thread::thread_idx_x() / warp::SIZE, thread::block_dim_x().div_ceil(warp::SIZE))
    }
    #[inline(always)]
    fn sync(&self) {
        warp::synchronize(self.mask());
    }
    #[inline(always)]
    fn agree(&self, reason: u64) -> u64 {
        // Mostly one vote; it says whether there is anything to find out.
        if !warp::any(self.mask(), reason != 0) {
            warp::synchronize(self.mask());
            return 0;
        }
        let mut largest = reason;
        let mut step = warp::SIZE / 2;
        while step > 0 {
            // A lane that is not there is replaced by oneself.
            let other = self.rank() ^ step;
            let source = if other < self.lanes { other } else { self.rank() };
            largest = largest.max(warp::shuffle_u64(self.mask(), largest, source));
            step /= 2;
        }
        // With lanes missing the exchange may pass some by; the first lane has met all.
        let largest = warp::broadcast_u64(self.mask(), largest, 0);
        warp::synchronize(self.mask());
        largest
    }
}

/// The threads of a block.
#[derive(Clone, Copy, Debug)]
pub struct Block;

impl Scope for Block {
    const ALONE: bool = false;
    const IS_WARP: bool = false;

    #[inline(always)]
    fn first_of_block() -> Option<Block> {
        Some(Block)
    }

    #[inline(always)]
    fn rank(&self) -> u32 {
        thread::thread_idx_x()
    }
    #[inline(always)]
    fn size(&self) -> u32 {
        thread::block_dim_x()
    }
    #[inline(always)]
    fn of_block(&self) -> (u32, u32) {
        (0, 1)
    }
    #[inline(always)]
    fn sync(&self) {
        thread::sync_threads();
    }
    #[inline(always)]
    fn agree(&self, reason: u64) -> u64 {
        // Mostly one barrier; its vote says whether there is anything to find out.
        if thread::sync_threads_or(reason != 0) { crate::block::block_maximum(reason) } else { 0 }
    }
}
