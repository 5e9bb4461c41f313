//! Where a thread stands in its grid, the block barrier, and time.
//!
//! Grids here are one-dimensional: `grid` blocks of `block` threads.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emulation;

/// Defines getters of the thread's position: PTX special register on the device, the emulated thread's own on the host.
macro_rules! positions {
    ($($(#[$doc:meta])* $name:ident = $intrinsic:ident;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: reads a special register.
            return unsafe { core::arch::nvptx::$intrinsic() };
            #[cfg(not(target_arch = "nvptx64"))]
            return emulation::position().$name;
        }
    )*};
}

positions! {
    /// Index of the thread in its block.
    thread_idx_x = _thread_idx_x;
    /// Index of the block in the grid.
    block_idx_x = _block_idx_x;
    /// Threads per block.
    block_dim_x = _block_dim_x;
    /// Blocks in the grid.
    grid_dim_x = _grid_dim_x;
}

/// Index of the thread in the grid.
#[inline(always)]
pub fn index() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}

/// The block's number, and how many blocks there are.
#[inline(always)]
pub fn block() -> (u32, u32) {
    (block_idx_x(), grid_dim_x())
}

/// Of the numbers below `end` every `step`-th, from `first` on.
#[inline(always)]
pub fn every((first, step): (u32, u32), end: u32) -> impl Iterator<Item = u32> {
    let mut next = first;
    core::iter::from_fn(move || {
        let number = next;
        next += step;
        (number < end).then_some(number)
    })
}

/// Of so many jobs those of this block.
#[inline(always)]
pub fn by_block(jobs: u32) -> impl Iterator<Item = u32> {
    every(block(), jobs)
}

/// Of so many jobs of a block those of this thread.
#[inline(always)]
pub fn in_block(jobs: u32) -> impl Iterator<Item = u32> {
    every((thread_idx_x(), block_dim_x()), jobs)
}

/// Of so many jobs of a grid those of this thread.
#[inline(always)]
pub fn in_grid(jobs: u32) -> impl Iterator<Item = u32> {
    every((index(), grid_dim_x() * block_dim_x()), jobs)
}

/// Which of `count` things one thread of several does: those from `first` below `end`, every `step`-th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of the first one.
    pub first: u64,
    /// One behind the last.
    pub end: u64,
    /// From one to the next.
    pub step: u64,
}

impl Part {
    /// The part of thread `rank` of `threads`. On a GPU every `threads`-th, so that the accesses of a warp lie side by side. On the
    /// emulated device a stretch of its own: its threads run one after another, and a core's cache wants neighbours.
    #[inline(always)]
    pub fn of(rank: u64, threads: u64, count: u64) -> Part {
        #[cfg(target_arch = "nvptx64")]
        return Part { first: rank, end: count, step: threads };
        #[cfg(not(target_arch = "nvptx64"))]
        {
            let each = count.div_ceil(threads.max(1));
            Part { first: (rank * each).min(count), end: ((rank + 1) * each).min(count), step: 1 }
        }
    }
}

/// The block barrier, `__syncthreads`: all threads of the block arrive, and see each other's writes after it. All of them arrive at the same
/// call, and none has returned: the emulated device ends a grid that does otherwise.
#[inline(always)]
#[track_caller]
pub fn sync_threads() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: as for any barrier, the kernel calls it uniformly within a block.
    unsafe {
        core::arch::nvptx::_syncthreads()
    };
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::sync_threads();
}

/// The block barrier with a vote, `__syncthreads_or`: true for all when it is true for one. A kernel leaves its loop by
/// this, so that no thread waits at a barrier for one that has gone. As [`sync_threads`] it is the aligned barrier: the
/// compiler brings the lanes of a warp together before it, and they stay together behind it.
#[inline(always)]
#[track_caller]
pub fn sync_threads_or(predicate: bool) -> bool {
    #[cfg(target_arch = "nvptx64")]
    {
        unsafe extern "unadjusted" {
            // The intrinsic, not inline PTX: LLVM knows it as convergent, and makes no copy of it in two branches.
            #[link_name = "llvm.nvvm.barrier0.or"]
            fn barrier_or(predicate: i32) -> i32;
        }
        // SAFETY: as for any barrier, the kernel calls it uniformly within a block.
        unsafe { barrier_or(predicate as i32) != 0 }
    }
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::sync_threads_or(predicate)
}

/// Nanoseconds of the machine's clock: `%globaltimer` on the GPU, a monotonic clock on the host. Under loom a
/// thread's clock counts how often it was read.
#[inline(always)]
pub fn global_timer_ns() -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: reads a special register; not `pure`, for each read must be a new one.
    unsafe {
        written!(reg64, "mov.u64 {out}, %globaltimer;", options(nostack, nomem))
    }
    #[cfg(loom)]
    return crate::model::now_ns();
    #[cfg(not(any(target_arch = "nvptx64", loom)))]
    emulation::monotonic_ns()
}

/// A clock for intervals that is finer than [`global_timer_ns`]: cycles of the multiprocessor on the GPU (`%clock64`, each
/// multiprocessor its own), nanoseconds on the host.
#[inline(always)]
pub fn clock() -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: reads a special register; not `pure`, for each read must be a new one.
    unsafe {
        written!(reg64, "mov.u64 {out}, %clock64;", options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    global_timer_ns()
}

/// In every spin that does not sleep: on the GPU nothing, for the hardware gives all warps their turns. On the emulated device
/// the other threads have theirs: one that spins without this keeps its worker to itself, and for ever when it waits for one of
/// them.
#[inline(always)]
pub fn relax() {
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::relax();
}

/// First in the body of a loop that the assembler of the GPU shall not write out several times. (It does so with all loops whose number of rounds it finds,
/// a wait of 64 looks too, each of which then has to be fetched.)
#[inline(always)]
pub fn keep_rolled() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: no instruction.
    unsafe {
        core::arch::asm!(".pragma \"nounroll\";", options(nostack, nomem, preserves_flags));
    }
}

/// Gives way for about this long inside a spin: `nanosleep` on the GPU, elsewhere as [`relax`].
#[inline(always)]
pub fn nanosleep(nanoseconds: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: suspends the thread, touches nothing.
    unsafe {
        core::arch::asm!("nanosleep.u32 {time};", time = in(reg32) nanoseconds, options(nostack, nomem));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = nanoseconds;
        emulation::relax();
    }
}
