//! Latency of a small put while a large one is in flight.

use super::{ShmemKernelArgs, latency_words, quiet, turns};
use crate::gin::{Block, Context, Program, Scope};
use crate::ring::Status;
use cuda_std::memory::{Word, load_relaxed_gpu_u64, store_relaxed_gpu_u64};
use cuda_std::{kernel, thread};

#[inline(always)]
fn put_word(args: &ShmemKernelArgs, line: &mut Context<Block>, turn: u32) -> Result<(), Status> {
    line.put_nbi(args.value(turn), args.value(turn), args.peer)?;
    line.quiet()
}

/// Measures puts under load. The first block repeatedly puts a word and waits for it. Concurrently the second block
/// repeatedly puts all bytes and waits for them.
///
/// # Safety
/// The requirements of [`shmem_p`](super::latency::shmem_p) apply. `times` must have one additional word after the
/// others, initially 0.
#[kernel(resident)]
pub unsafe fn shmem_put_loaded(program: Program<ShmemKernelArgs>) {
    let args = &program.args;
    // SAFETY: `times` has one word more than for a latency kernel (contract of the kernel).
    let ended = unsafe { &*args.times.add(latency_words(args.iterations)).cast::<Word>() };
    if thread::block_idx_x() == 0 {
        turns::<Block>(&program, put_word, quiet);
        // Stored whether or not the iterations failed. Relaxed ordering suffices, because no other memory is read
        // depending on this word.
        if thread::thread_idx_x() == 0 {
            store_relaxed_gpu_u64(ended, 1);
        }
        return;
    }
    let mut line = program.world.context(Block);
    let mut turn = 0u32;
    loop {
        let moved = line.put_nbi(args.target(turn), args.source(turn), args.peer);
        turn = turn.wrapping_add(1);
        // One thread loads the word, and all threads use its value, so that no thread exits between two barriers of its
        // block.
        let over = thread::sync_threads_or(Block.rank() == 0 && load_relaxed_gpu_u64(ended) != 0);
        // In a verified pass no put may overwrite the slot of another put.
        let full = args.to_step != 0 && turn == args.places;
        if moved.is_err() || line.quiet().is_err() || over || full {
            return;
        }
    }
}
