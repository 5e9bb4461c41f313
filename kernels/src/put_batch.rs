//! The put kernel with batches: a block writes the payloads of several puts. Lanes of its first warp then issue these
//! puts together, after a single fence or, to a NIC queue, with a single doorbell.

use crate::batch;
use crate::block::block_maximum;
use crate::command::Opcode;
use crate::direct;
use crate::outlet::Outlets;
use crate::put_kernel::{PutArgs, write_in_teams};
use cuda_std::{args, kernel, thread};

/// Arguments of the batched kernels.
#[args]
pub struct BatchedPutArgs {
    /// Arguments of the put kernel with whole blocks as producers. `quiet_every` and `ahead` are ignored.
    pub put: PutArgs,
    /// Number of puts of a block that are published together: 1 to 32, at most half the window, and at most the number
    /// of threads of the block.
    pub batch: u32,
}

/// Like [`put_kernel`](crate::put_kernel::put_kernel) without quiet, but puts in batches.
///
/// # Safety
/// The requirements of the put kernel must hold.
#[cfg(feature = "puts")]
#[kernel]
pub unsafe fn put_batched_kernel(args: BatchedPutArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid.
    unsafe { put_batches(&args, Outlets::of_rings(args.put.rings, args.put.ring_count)) };
}

/// Arguments of [`put_batched_by_card_kernel`].
#[args]
pub struct BatchedCardPutArgs {
    /// The puts. The rings are ignored.
    pub batched: BatchedPutArgs,
    /// The channels; block `b` uses channel `b % channel_count`.
    pub channels: *const direct::Channel,
    /// Number of channels, at least 1.
    pub channel_count: u32,
}

/// Variant of [`put_batched_kernel`] for NIC queues. Lanes that put concurrently write adjacent requests and share a
/// doorbell.
///
/// # Safety
/// The requirements of the put kernel must hold, and `channels` must be valid for `channel_count` channels.
#[cfg(feature = "direct")]
#[kernel]
pub unsafe fn put_batched_by_card_kernel(args: BatchedCardPutArgs) {
    // SAFETY: the caller guarantees that the pointers of `args` are valid, so that `channels` is not null.
    unsafe { put_batches(&args.batched, Outlets::of_channels(args.channels, args.channel_count)) };
}

/// Performs the grid's work; called by every thread.
///
/// # Safety
/// The requirements of the put kernel must hold, and `outlets` must be valid.
#[inline(always)]
unsafe fn put_batches(args: &BatchedPutArgs, outlets: Outlets) {
    let put = &args.put;
    let me = thread::thread_idx_x();
    // A raw pointer instead of a reference: all threads of the block hold it, and only the first one writes. SAFETY:
    // the caller guarantees that there is one result per block.
    let result = unsafe { put.results.add(thread::block_idx_x() as usize) };
    if me == 0 {
        // SAFETY: the caller guarantees that there is one result per block.
        unsafe { (*result).started = thread::global_timer_ns() };
    }
    // SAFETY: the caller guarantees that the outlets are valid and the same for all threads.
    let mut outlet = unsafe { outlets.of_block() };
    let (block, threads) = (thread::block_idx_x(), thread::block_dim_x());
    // At most half a window, so that the previous put of a slot is published before the slot is reused. At most one
    // command per lane of a warp.
    let batch = args.batch.min(put.window / 2).min(threads).clamp(1, u32::BITS);
    // Number of threads that write one of the payloads. Each thread writes a part of one payload, and one barrier
    // serves all payloads.
    let team = threads / batch;
    let (mut known, mut stop) = (0, 0);
    let mut first = 0;
    while first < put.iterations {
        let count = batch.min(put.iterations - first);
        let last = first + count - 1;
        // The sources of puts that are not complete must not be overwritten.
        if last >= put.window {
            // Makes the tickets that other threads have written visible.
            thread::sync_threads();
            if me == 0 && stop == 0 {
                // SAFETY: there is one ticket per slot, written before the barrier. Once it is complete, all puts of
                // its batch and all earlier puts are complete.
                let ticket = unsafe { *put.ticket(block, last) };
                if ticket >= known {
                    match outlet.wait(ticket) {
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
            // SAFETY: the caller guarantees that the slots are in the source region.
            unsafe { write_in_teams(put, block, first..first + count, team) };
            // All payload writes happen before the fences of the threads that publish.
            thread::sync_threads();
        }
        if me < count {
            let command = put.put(block, first + me).command(Opcode::Put, 0);
            match batch::push_together(|| outlet.push_outlined(&command), me, count) {
                // SAFETY: there is one ticket per slot, and the slot belongs to this thread's command.
                Ok(end) => unsafe { *put.ticket(block, first + me) = end - 1 },
                Err(reason) => stop = reason.0,
            }
        }
        first += count;
    }
    // The barriers of this call also make the last tickets visible.
    stop = block_maximum(stop);
    if me == 0 {
        // SAFETY: the caller guarantees that there is one result per block, and only this thread writes it.
        unsafe { (*result).posted = thread::global_timer_ns() };
    }
    if me == 0
        && stop == 0
        && put.iterations > 0
        // SAFETY: there is one ticket per slot, written before the barrier. The last batch has the largest tickets.
        && let Err(reason) = outlet.wait(unsafe { *put.ticket(block, put.iterations - 1) })
    {
        stop = reason.0;
    }
    stop = block_maximum(stop);
    if me == 0 {
        // SAFETY: the caller guarantees that there is one result per block, and only this thread writes it.
        unsafe {
            (*result).done = thread::global_timer_ns();
            (*result).stop = stop;
        }
    }
}
