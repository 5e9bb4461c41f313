//! What a small put takes while a large one is under way.

use super::{ShmemArgs, latency_words, quiet, turns};
use crate::gin::{Block, Context, Program, Scope};
use crate::ring::Status;
use cuda_std::memory::{Word, load_relaxed_gpu_u64, store_relaxed_gpu_u64};
use cuda_std::{kernel, thread};

#[inline(always)]
fn put_word(args: &ShmemArgs, line: &mut Context<Block>, _turn: u32) -> Result<(), Status> {
    line.put_nbi(args.word, args.word, args.peer)?;
    line.quiet()
}

/// The first block puts a word and waits for it, turn by turn; meanwhile the second one puts all bytes and waits for them, again and again.
///
/// # Safety
/// As [`shmem_p`](super::latency::shmem_p); behind its words `times` has one that is 0 before.
#[kernel(resident)]
pub unsafe fn shmem_put_loaded(program: Program<ShmemArgs>) {
    let args = &program.args;
    // SAFETY: one word more than a latency's, contract of the kernel.
    let ended = unsafe { &*args.times.add(latency_words(args.iterations)).cast::<Word>() };
    if thread::block_idx_x() == 0 {
        turns::<Block>(&program, put_word, quiet);
        // However they ended. Nothing is read behind it, so nothing is ordered.
        if thread::thread_idx_x() == 0 {
            store_relaxed_gpu_u64(ended, 1);
        }
        return;
    }
    let mut line = program.world.context(Block);
    loop {
        let moved = line.put_nbi(args.to, args.from, args.peer);
        // One thread looks, and all go by what it has seen: no thread leaves between two barriers of its block.
        let over = thread::sync_threads_or(Block.rank() == 0 && load_relaxed_gpu_u64(ended) != 0);
        if moved.is_err() || line.quiet().is_err() || over {
            return;
        }
    }
}
