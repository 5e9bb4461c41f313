//! The blocks of a grid: their common barrier, and the distribution of work among them.

use super::{Scope, WaitBudget, WorldView};
use crate::ring::Status;
use cuda_std::memory::{Word, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, load_relaxed_gpu_u64};
use cuda_std::thread;

/// The blocks of a grid, all resident on the device at the same time (`#[kernel(resident)]`). Each thread creates a
/// `Grid` at the start of its kernel. A *worker* is one scope of the kernel's kind: a thread, a warp or a block.
#[derive(Debug)]
pub struct Grid<'a> {
    world: &'a WorldView,
    blocks: &'a Word,
    met: u64,
    /// Index of this worker in its block, and the number of workers of the block.
    worker: (u32, u32),
}

impl<'a> Grid<'a> {
    /// Creates the grid's barrier over a word of device memory. Workers are scopes like `scope`.
    ///
    /// # Safety
    /// `word` must be 0 at the launch, valid while the grid runs, and used by no other grid.
    #[inline(always)]
    pub unsafe fn new<S: Scope>(world: &'a WorldView, word: *const Word, scope: &S) -> Grid<'a> {
        // SAFETY: the caller guarantees that `word` is valid.
        Grid { world, blocks: unsafe { &*word }, met: 0, worker: scope.of_block() }
    }

    /// Waits until all threads of the grid have called this function. Their writes, and the writes of other PEs that
    /// they have observed, are then visible to all of them. If a thread passes an error, all threads fail, in this call
    /// or a later one. CUDA: `grid.sync()` of cooperative groups.
    ///
    /// This method does not publish batches: call `flush` of a [batched](super::Context::batched) context before it.
    ///
    /// # Errors
    /// Returns [`Status::ENDED`] if any thread failed; the report contains the reason.
    #[inline(always)]
    #[track_caller]
    pub fn sync(&mut self, done: Result<(), Status>) -> Result<(), Status> {
        self.met += thread::grid_dim_x() as u64;
        let mut failed = thread::sync_threads_or(done.is_err());
        if !failed && thread::thread_idx_x() == 0 {
            // After the block's barrier, this fence covers all threads of the block. The leaders of the other blocks
            // observe the stores of these threads through their own fences.
            fence_acq_rel_sys();
            fetch_add_relaxed_gpu_u64(self.blocks, 1);
            let mut patience = WaitBudget::default();
            loop {
                let met = load_relaxed_gpu_u64(self.blocks);
                if failed || met >= self.met {
                    break;
                }
                if let Err(stop) = patience.look(self.world) {
                    let blocks = thread::grid_dim_x() as u64;
                    self.world.gave_up_sync(stop, met + blocks - self.met, blocks);
                    failed = true;
                }
                thread::relax();
            }
            fence_acq_rel_sys();
        }
        if thread::sync_threads_or(failed) { Err(Status::ENDED) } else { Ok(()) }
    }

    /// Returns the index of this worker in the grid, and the number of workers.
    #[inline(always)]
    pub fn worker(&self) -> (u32, u32) {
        let (number, count) = self.worker;
        (thread::block_idx_x() * count + number, thread::grid_dim_x() * count)
    }

    /// Returns the indices below `jobs` that this worker processes.
    #[inline(always)]
    pub fn workers(&self, jobs: u32) -> impl Iterator<Item = u32> + use<> {
        thread::every(self.worker(), jobs)
    }

    /// Returns the indices below `jobs` that this worker processes, if the workers of each block share them.
    #[inline(always)]
    pub fn workers_of_block(&self, jobs: u32) -> impl Iterator<Item = u32> + use<> {
        thread::every(self.worker, jobs)
    }
}
