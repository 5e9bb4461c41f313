//! Scopes: the groups of threads that make a context's calls.

use cuda_std::{thread, warp};

/// The threads that make a context's calls together.
pub trait Scope: Copy {
    /// Whether the scope is a single thread, whose calls involve no other thread.
    const ALONE: bool;

    /// Whether the scope is the lanes of one warp.
    const IS_WARP: bool;

    /// Returns the block's first scope of this kind: its first thread, its first warp, or the whole block. `None` for
    /// threads outside it.
    fn first_of_block() -> Option<Self>;

    /// Returns the index of this thread in the scope.
    fn rank(&self) -> u32;

    /// Returns the number of threads in the scope.
    fn size(&self) -> u32;

    /// Returns the index of this scope among those of its kind in the block, and their number.
    fn of_block(&self) -> (u32, u32);

    /// Waits until all threads of the scope have arrived, and orders their memory accesses among each other. The
    /// emulated device reports the caller's line if threads wait at two different barriers; therefore all calls between
    /// a kernel and this function have `track_caller`.
    #[track_caller]
    fn sync(&self);

    /// Like [`sync`](Scope::sync), but returns to all threads whether `condition` is true for at least one of them.
    #[track_caller]
    fn any(&self, condition: bool) -> bool;

    /// Waits until all threads of the scope have arrived. Returns the largest of their reasons to all of them. Reasons
    /// are below 8, and usually 0.
    #[track_caller]
    fn agree(&self, reason: u64) -> u64;

    /// Returns whether this thread acts on behalf of the scope. Its index is then 0.
    #[inline(always)]
    fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// Returns whether this thread is in the same warp as the thread that [`leads`](Scope::leads).
    #[inline(always)]
    fn is_of_first_warp(&self) -> bool {
        self.rank() < warp::SIZE
    }
}

/// A single thread.
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
    fn any(&self, condition: bool) -> bool {
        condition
    }
    #[inline(always)]
    fn agree(&self, reason: u64) -> u64 {
        reason
    }
}

/// The launched threads of one warp.
#[derive(Clone, Copy, Debug)]
pub struct Warp {
    lanes: u32,
}

impl Warp {
    /// Returns this thread's warp.
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
    fn any(&self, condition: bool) -> bool {
        let found = warp::any(self.mask(), condition);
        warp::synchronize(self.mask());
        found
    }
    #[inline(always)]
    fn agree(&self, reason: u64) -> u64 {
        // Usually one vote suffices, which shows whether any reason is set.
        if !warp::any(self.mask(), reason != 0) {
            warp::synchronize(self.mask());
            return 0;
        }
        let mut largest = reason;
        let mut step = warp::SIZE / 2;
        while step > 0 {
            // A missing lane is replaced by this lane.
            let other = self.rank() ^ step;
            let source = if other < self.lanes { other } else { self.rank() };
            largest = largest.max(warp::shuffle_u64(self.mask(), largest, source));
            step /= 2;
        }
        // If lanes are missing, the exchange can skip values for some lanes, but lane 0 receives all of them.
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
    fn any(&self, condition: bool) -> bool {
        thread::sync_threads_or(condition)
    }
    #[inline(always)]
    fn agree(&self, reason: u64) -> u64 {
        // Usually one barrier suffices, whose vote shows whether any reason is set.
        if thread::sync_threads_or(reason != 0) { crate::block::block_maximum(reason) } else { 0 }
    }
}
