//! The blocks of a grid: where they meet, and how they share work.

use super::{Patience, Scope, World};
use crate::ring::Status;
use cuda_std::memory::{Word, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, load_relaxed_gpu_u64};
use cuda_std::thread;

/// All blocks of a grid, which are on the device at once (`#[kernel(resident)]`). Each thread makes one at its kernel's beginning. A *worker* is one
/// scope of the kernel's kind: a thread, a warp or a block.
#[derive(Debug)]
pub struct Grid<'a> {
    world: &'a World,
    blocks: &'a Word,
    met: u64,
    /// This worker's number in its block, and how many that has.
    worker: (u32, u32),
}

impl<'a> Grid<'a> {
    /// Workers are scopes like this one; blocks meet at a word of device memory.
    ///
    /// # Safety
    /// The word is 0 at the launch and this grid's alone.
    #[inline(always)]
    pub unsafe fn new<S: Scope>(world: &'a World, word: *const Word, scope: &S) -> Grid<'a> {
        // SAFETY: the caller's contract.
        Grid { world, blocks: unsafe { &*word }, met: 0, worker: scope.of_block() }
    }

    /// Returns when all threads of the grid have called it: what they have written is then visible to all of them, and what they have seen of other
    /// PEs. With an error of one of them all fail, in this call or a later one. CUDA: `grid.sync()` of cooperative groups.
    ///
    /// # Errors
    /// [`Status::ENDED`]; the reason is in the report.
    #[inline(always)]
    #[track_caller]
    pub fn sync(&mut self, done: Result<(), Status>) -> Result<(), Status> {
        self.met += thread::grid_dim_x() as u64;
        let mut failed = thread::sync_threads_or(done.is_err());
        if !failed && thread::thread_idx_x() == 0 {
            // Behind the block's barrier, for all its threads; the others' leaders see it by their own fence.
            fence_acq_rel_sys();
            fetch_add_relaxed_gpu_u64(self.blocks, 1);
            let mut patience = Patience::default();
            while !failed && load_relaxed_gpu_u64(self.blocks) < self.met {
                if let Err(stop) = patience.look(self.world) {
                    self.world.gave_up(stop, self.met);
                    failed = true;
                }
                thread::relax();
            }
            fence_acq_rel_sys();
        }
        if thread::sync_threads_or(failed) { Err(Status::ENDED) } else { Ok(()) }
    }

    /// This worker's number in the grid, and how many there are.
    #[inline(always)]
    pub fn worker(&self) -> (u32, u32) {
        let (number, count) = self.worker;
        (thread::block_idx_x() * count + number, thread::grid_dim_x() * count)
    }

    /// Of so many jobs those of this worker.
    #[inline(always)]
    pub fn workers(&self, jobs: u32) -> impl Iterator<Item = u32> + use<> {
        thread::every(self.worker(), jobs)
    }

    /// Of so many jobs of a block those of this worker.
    #[inline(always)]
    pub fn workers_of_block(&self, jobs: u32) -> impl Iterator<Item = u32> + use<> {
        thread::every(self.worker, jobs)
    }
}
