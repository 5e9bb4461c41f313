//! The put kernel with batches: each block's non-blocking puts wait for each other and are published behind one fence.

use crate::batch::Batch;
use crate::block::block_maximum;
use crate::command::{Command, Opcode};
use crate::put_kernel::{PutArgs, write_payload};
use crate::ring::Ring;
use cuda_std::{kernel, thread};

/// Arguments of [`put_batched_kernel`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BatchedPutArgs {
    /// As for the put kernel, of whole blocks; `quiet_every` is not looked at.
    pub put: PutArgs,
    /// Puts of a block that are published together, 1 to 32; no more than half its window and than its threads.
    pub batch: u32,
}

// SAFETY: plain data for a launch; the pointers are the launcher's to keep valid.
unsafe impl Send for BatchedPutArgs {}
// SAFETY: as above.
unsafe impl Sync for BatchedPutArgs {}

/// As [`put_kernel`](crate::put_kernel::put_kernel) without quiet, by batches.
///
/// # Safety
/// As for the put kernel.
#[kernel]
pub unsafe fn put_batched_kernel(args: BatchedPutArgs) {
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
    // Half a window at most: when a slot's turn comes again, its put has been published.
    let mut batch = Batch::new(args.batch.min(put.window / 2), thread::block_dim_x());
    let (mut known, mut end, mut stop) = (0, 0, 0);
    // The slot of the command that this thread holds.
    let mut held = 0u64;
    let mut until_agreed = 0;
    for iteration in 0..put.iterations {
        let slot = iteration % put.window;
        let number = thread::block_idx_x() as u64 * put.window as u64 + slot as u64;
        let offset = number * put.stride;
        // Once for as many puts as a batch has (H200, 256 threads, the null rail: 0.28 us a put; with a barrier for each 0.35).
        if until_agreed == 0 {
            until_agreed = batch.capacity();
            // The sources of puts that are not complete must not be rewritten.
            let last = (iteration + until_agreed).min(put.iterations) - 1;
            if last >= put.window {
                // Tickets that other threads have written.
                thread::sync_threads();
                if me == 0 && stop == 0 {
                    let before = thread::block_idx_x() as u64 * put.window as u64 + (last % put.window) as u64;
                    // SAFETY: one word per slot; its thread wrote it before the barrier. Tickets of a block grow from put to put, and of a
                    // batch the last one is the largest: what it waits for, the others have done.
                    let ticket = unsafe { *put.tickets.add(before as usize) };
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
        }
        until_agreed -= 1;
        if put.fill != 0 {
            // SAFETY: the slot lies in the source region, contract of the kernel.
            unsafe { write_payload(put, offset, iteration, number as u32) };
            // All payload writes happen before the fences of those that publish.
            thread::sync_threads();
        }
        if me == batch.pending() {
            held = number;
        }
        let command = Command {
            opcode: Opcode::Put,
            source_region: put.source_region,
            source_offset: offset,
            destination_region: put.destination_region,
            destination_offset: offset,
            bytes: put.bytes,
            peer: put.peer,
            immediate: 0,
        };
        if batch.add(me, &command) || iteration + 1 == put.iterations {
            match batch.publish(&mut ring, me) {
                Ok((ticket, last)) => {
                    end = last.max(end);
                    if let Some(ticket) = ticket {
                        // SAFETY: as above, and the slot is that of this thread's command.
                        unsafe { *put.tickets.add(held as usize) = ticket };
                    }
                }
                Err(reason) => stop = reason.0,
            }
        }
    }
    stop = block_maximum(stop);
    if me == 0 {
        // SAFETY: as above.
        unsafe { (*result).posted = thread::global_timer_ns() };
    }
    if stop == 0
        && end > known
        && let Err(reason) = ring.wait(end - 1)
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
