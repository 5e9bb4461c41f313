//! Position of a thread in its grid, the block barrier, and time.
//!
//! Grids are one-dimensional: `grid` blocks of `block` threads.

#[cfg(not(target_arch = "nvptx64"))]
use crate::emulation;

/// Defines getters of the thread's position: a PTX special register on the device, the emulated thread's state on the
/// host.
macro_rules! positions {
    ($($(#[$doc:meta])* $name:ident = $intrinsic:ident;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() -> u32 {
            #[cfg(target_arch = "nvptx64")]
            // SAFETY: the instruction only reads a special register.
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
    /// Number of threads per block.
    block_dim_x = _block_dim_x;
    /// Number of blocks in the grid.
    grid_dim_x = _grid_dim_x;
}

/// Returns the index of the thread in the grid.
#[inline(always)]
pub fn index() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}

/// Returns the index of the block and the number of blocks.
#[inline(always)]
pub fn block() -> (u32, u32) {
    (block_idx_x(), grid_dim_x())
}

/// Returns every `step`-th number below `end`, starting at `first`.
#[inline(always)]
pub fn every((first, step): (u32, u32), end: u32) -> impl Iterator<Item = u32> {
    let mut next = first;
    core::iter::from_fn(move || {
        let number = next;
        next += step;
        (number < end).then_some(number)
    })
}

/// Returns the jobs below `jobs` that this block processes.
#[inline(always)]
pub fn by_block(jobs: u32) -> impl Iterator<Item = u32> {
    every(block(), jobs)
}

/// Returns the jobs below `jobs`, divided among the threads of a block, that this thread processes.
#[inline(always)]
pub fn in_block(jobs: u32) -> impl Iterator<Item = u32> {
    every((thread_idx_x(), block_dim_x()), jobs)
}

/// Returns the jobs below `jobs`, divided among the threads of the grid, that this thread processes.
#[inline(always)]
pub fn in_grid(jobs: u32) -> impl Iterator<Item = u32> {
    every((index(), grid_dim_x() * block_dim_x()), jobs)
}

/// One thread's share of work that is divided among several threads: every `step`-th item below `end`, starting at
/// `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the first item.
    pub first: u64,
    /// Index after the last item.
    pub end: u64,
    /// Distance between items.
    pub step: u64,
}

impl Part {
    /// Returns the share of thread `rank` of `threads` in `count` items. On a GPU it is every `threads`-th item, so
    /// that the accesses of a warp are adjacent. On the emulated device it is a contiguous range, because the threads
    /// run one after another and contiguous accesses suit a CPU's cache.
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

/// Block barrier, `__syncthreads`: all threads of the block arrive, and observe each other's writes after it. All
/// threads must arrive at the same call, and none may have returned; otherwise the emulated device aborts the grid.
#[inline(always)]
#[track_caller]
pub fn sync_threads() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the kernel calls it uniformly within a block, as any barrier requires.
    unsafe {
        core::arch::nvptx::_syncthreads()
    };
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::sync_threads();
}

/// Block barrier with a vote, `__syncthreads_or`. Returns true in all threads if `predicate` is true in any. A kernel
/// exits its loop by this vote, so that no thread waits at a barrier for one that has exited.
///
/// Like [`sync_threads`] it is the aligned barrier: the compiler reconverges the lanes of a warp before it, and they
/// stay converged after it.
#[inline(always)]
#[track_caller]
pub fn sync_threads_or(predicate: bool) -> bool {
    #[cfg(target_arch = "nvptx64")]
    {
        unsafe extern "unadjusted" {
            // The intrinsic instead of inline PTX, because LLVM knows that it is convergent and does not duplicate it
            // into two branches.
            #[link_name = "llvm.nvvm.barrier0.or"]
            fn barrier_or(predicate: i32) -> i32;
        }
        // SAFETY: the kernel calls it uniformly within a block, as any barrier requires.
        unsafe { barrier_or(predicate as i32) != 0 }
    }
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::sync_threads_or(predicate)
}

/// Returns the machine's time in nanoseconds: `%globaltimer` on the GPU, a monotonic clock on the host. Under loom, the
/// time is the number of readings by the thread.
#[inline(always)]
pub fn global_timer_ns() -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the instruction only reads a special register. It is not `pure`, because each call must read the register
    // again.
    unsafe {
        written!(reg64, "mov.u64 {out}, %globaltimer;", options(nostack, nomem))
    }
    #[cfg(loom)]
    return crate::model::now_ns();
    #[cfg(not(any(target_arch = "nvptx64", loom)))]
    emulation::monotonic_ns()
}

/// Returns a clock for intervals that is finer than [`global_timer_ns`]: cycles of the multiprocessor on the GPU
/// (`%clock64`, separate for each multiprocessor), nanoseconds on the host.
#[inline(always)]
pub fn clock() -> u64 {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: the instruction only reads a special register. It is not `pure`, because each call must read the register
    // again.
    unsafe {
        written!(reg64, "mov.u64 {out}, %clock64;", options(nostack))
    }
    #[cfg(not(target_arch = "nvptx64"))]
    global_timer_ns()
}

/// Must be called in every spin loop that does not sleep. On the GPU it does nothing, because the hardware schedules
/// all warps. On the emulated device it lets the other threads run. A thread that spins without it occupies its worker,
/// indefinitely if it waits for a thread of the same worker.
#[inline(always)]
pub fn relax() {
    #[cfg(not(target_arch = "nvptx64"))]
    emulation::relax();
}

/// Keeps ptxas from unrolling a loop. Must be the first statement of the loop's body. Otherwise ptxas unrolls every
/// loop whose iteration count it can determine, even a wait of 64 polls, which costs instruction fetches.
#[inline(always)]
pub fn keep_rolled() {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: emits no instruction.
    unsafe {
        core::arch::asm!(".pragma \"nounroll\";", options(nostack, nomem, preserves_flags));
    }
}

/// Suspends the thread for about `nanoseconds` inside a spin loop: `nanosleep` on the GPU, [`relax`] elsewhere.
#[inline(always)]
pub fn nanosleep(nanoseconds: u32) {
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: suspends the thread, and accesses no memory.
    unsafe {
        core::arch::asm!("nanosleep.u32 {time};", time = in(reg32) nanoseconds, options(nostack, nomem));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let _ = nanoseconds;
        emulation::relax();
    }
}
