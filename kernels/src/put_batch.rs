//! The put kernel with batches: a block writes the payloads of several puts, and lanes of its first warp put them together, behind one
//! fence; to a card's own queue, behind one doorbell.

use crate::batch;
use crate::block::block_maximum;
use crate::command::Opcode;
use crate::put_kernel::{PutArgs, write_in_teams};
use crate::ring::Ring;
use crate::ring::producer::Behind;
use cuda_std::{args, kernel, thread};

/// Arguments of the batched kernels.
#[args]
pub struct BatchedPutArgs {
    /// As for the put kernel, of whole blocks; `quiet_every` and `ahead` are not looked at.
    pub put: PutArgs,
    /// Puts of a block that are published together, 1 to 32; no more than half its window and than its threads.
    pub batch: u32,
}

/// As [`put_kernel`](crate::put_kernel::put_kernel) without quiet, by batches.
///
/// # Safety
/// As for the put kernel.
#[cfg(feature = "puts")]
#[kernel]
pub unsafe fn put_batched_kernel(args: BatchedPutArgs) {
    // SAFETY: contract of the kernel.
    unsafe { put_batches(&args) };
}

/// As [`put_batched_kernel`], in a module that knows cards: where a ring's other end is a card's queue, lanes that put together write adjacent
/// requests and ring once.
///
/// # Safety
/// As for the put kernel.
#[cfg(feature = "direct")]
#[kernel]
pub unsafe fn put_batched_by_card_kernel(args: BatchedPutArgs) {
    // SAFETY: contract of the kernel.
    unsafe { put_batches(&args) };
}

/// The grid's work, by every thread.
///
/// # Safety
/// As for the put kernel.
#[inline(always)]
unsafe fn put_batches(args: &BatchedPutArgs) {
    let put = &args.put;
    let me = thread::thread_idx_x();
    // A pointer and no reference: all threads of the block have it, and only the first one writes.
    // SAFETY: contract of the kernel.
    let result = unsafe { put.results.add(thread::block_idx_x() as usize) };
    if me == 0 {
        // SAFETY: contract of the kernel.
        unsafe { (*result).started = thread::global_timer_ns() };
    }
    // SAFETY: contract of the kernel.
    let mut ring = unsafe { Ring::of_block(put.rings, put.ring_count) };
    let (block, threads) = (thread::block_idx_x(), thread::block_dim_x());
    // Half a window at most: when a slot's turn comes again, its put has been published. One command for each lane of a warp.
    let batch = args.batch.min(put.window / 2).min(threads).clamp(1, u32::BITS);
    // Threads that write one of the payloads: each thread has a part of one, and they meet once for all.
    let team = threads / batch;
    let (mut known, mut stop) = (0, 0);
    let mut first = 0;
    while first < put.iterations {
        let count = batch.min(put.iterations - first);
        let last = first + count - 1;
        // The sources of puts that are not complete must not be rewritten.
        if last >= put.window {
            // Tickets that other threads have written.
            thread::sync_threads();
            if me == 0 && stop == 0 {
                // SAFETY: one word per slot; its thread wrote it before the barrier. It says when all puts of its batch are done, and
                // so those before.
                let ticket = unsafe { *put.ticket(block, last) };
                if ticket >= known {
                    match ring.wait(ticket) {
                        Ok(watermark) => known = watermark,
                        Err(reason) => stop = reason.0,
                    }
                }
            }
        }
        if thread::sync_threads_or(stop != 0) {
            break;
        }
        if put.fill != 0 {
            // SAFETY: contract of the kernel.
            unsafe { write_in_teams(put, block, first..first + count, team) };
            // All payload writes happen before the fences of those that publish.
            thread::sync_threads();
        }
        if me < count {
            let words = put.put(block, first + me).command(Opcode::Put, 0).encode();
            match batch::push_together(|words| ring.push_apart(Behind::Payload, words), words, me, count) {
                // SAFETY: as above, and the slot is that of this thread's command.
                Ok(end) => unsafe { *put.ticket(block, first + me) = end - 1 },
                Err(reason) => stop = reason.0,
            }
        }
        first += count;
    }
    // The last tickets, too, are there behind the barriers of this.
    stop = block_maximum(stop);
    if me == 0 {
        // SAFETY: as above.
        unsafe { (*result).posted = thread::global_timer_ns() };
    }
    if me == 0
        && stop == 0
        && put.iterations > 0
        // SAFETY: as above; the last batch has the largest tickets.
        && let Err(reason) = ring.wait(unsafe { *put.ticket(block, put.iterations - 1) })
    {
        stop = reason.0;
    }
    stop = block_maximum(stop);
    if me == 0 {
        // SAFETY: as above.
        unsafe {
            (*result).done = thread::global_timer_ns();
            (*result).stop = stop;
        }
    }
}
