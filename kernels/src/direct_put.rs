//! Puts through a NIC's own queues, for the measurements of `ginlab direct`.
//!
//! Each thread of a grid posts its own requests. It waits for each request, after every `quiet_every` requests, or once
//! at the end. The lanes of a warp share a doorbell, so a block of 1, 8 or 32 threads posts that many requests per
//! doorbell.

use crate::block::{BlockResult, block_maximum};
use crate::direct::{NicQueue, NicTransfer};
use crate::pattern;
use crate::ring::Status;
use cuda_std::memory::{load_acquire_sys_u64, load_relaxed_gpu_u64, store_mmio_relaxed_sys_u32};
use cuda_std::{args, kernel, thread, warp};
use efa_queue::request::To;
use efa_queue::{EfaOperation, Local, rules};

/// Arguments of [`direct_put`].
#[args]
pub struct DirectPutArgs {
    /// The queues; block `b` uses queue `b % queue_count`.
    pub queues: *const NicQueue,
    /// Number of queues, at least 1.
    pub queue_count: u32,
    /// Number of puts per thread.
    pub iterations: u32,
    /// Number of puts between two waits, or 0 for a single wait at the end.
    pub quiet_every: u32,
    /// Number of slots of each thread in source and destination, at least 1: put `i` uses slot `i % window`.
    pub window: u32,
    /// Number of bytes of a put.
    pub bytes: u32,
    /// Distance in bytes between slots, a multiple of 8 and at least `bytes`.
    pub stride: u32,
    /// 1: a thread writes the payload before each put. It must then have as many slots as puts.
    pub fill: u32,
    /// Seed of the payloads.
    pub seed: u32,
    /// 1: wait only for the NIC's counter, as vendors' device code does, and with a bound of this kernel. A failed
    /// request is then not reported.
    pub counter_alone: u32,
    /// Number of the request after which the first thread of the grid rings the doorbell with decreasing counts. 0
    /// disables this.
    pub back_at: u64,
    /// The peer.
    pub to: To,
    /// Key of the source.
    pub local_key: u32,
    /// Key of the destination.
    pub key: u32,
    /// Address of the source on the device and the NIC.
    pub source: u64,
    /// Address of the destination on the peer.
    pub destination: u64,
    /// Results, one per block.
    pub results: *mut BlockResult,
}

/// Performs the puts of a grid.
///
/// # Safety
/// The pointers must be valid while the grid runs: `queues` for `queue_count` queues, source and destination for
/// threads x window x stride bytes, `results` for one entry per block.
#[kernel]
pub unsafe fn direct_put(args: DirectPutArgs) {
    let leads = thread::thread_idx_x() == 0;
    // SAFETY: the caller guarantees that there is one result per block.
    let result = unsafe { args.results.add(thread::block_idx_x() as usize) };
    if leads {
        // SAFETY: the caller guarantees that there is one result per block, and only this thread writes it.
        unsafe { (*result).started = thread::global_timer_ns() };
    }
    // SAFETY: the caller guarantees that there are `queue_count` queues, the same for all threads.
    let mut queue = unsafe { NicQueue::of_block(args.queues, args.queue_count) };
    let first_slot = thread::index() as u64 * args.window as u64;
    let lanes = warp::launched_mask();
    // Combines each put with its wait in one call.
    let waits_each = args.quiet_every == 1 && args.counter_alone == 0;
    let (mut stop, mut last, mut iteration) = (0, None, 0);
    let (mut slot, mut since_quiet) = (0, 0);
    // The lanes of a warp stay converged. A lane that left a wait later than the others would post, and ring the
    // doorbell, separately.
    while iteration < args.iterations && warp::all(lanes, stop == 0) {
        let offset = (first_slot + slot as u64) * args.stride as u64;
        slot = if slot + 1 == args.window { 0 } else { slot + 1 };
        if args.fill != 0 {
            // SAFETY: the caller guarantees that the slot is in the source.
            unsafe { fill(args.source + offset, args.bytes, slot_seed(args.seed, offset)) };
        }
        let transfer = NicTransfer {
            operation: EfaOperation::Write,
            to: args.to,
            local: Local { address: args.source + offset, length: args.bytes, key: args.local_key },
            address: args.destination + offset,
            key: args.key,
            immediate: None,
        };
        iteration += 1;
        since_quiet += 1;
        let posted = if waits_each { queue.post_and_wait(&transfer) } else { queue.post(&transfer) };
        match posted {
            Ok(number) => {
                last = (!waits_each).then_some(number);
                if args.back_at != 0 && number >= args.back_at && thread::index() == 0 {
                    ring_back(&queue);
                }
            }
            Err(failure) => stop = failure.status().0,
        }
        if stop == 0 && since_quiet == args.quiet_every && !waits_each {
            since_quiet = 0;
            stop = quiet(&mut queue, &mut last, &args);
        }
    }
    stop = block_maximum(stop);
    if leads {
        // SAFETY: the caller guarantees that there is one result per block, and only this thread writes it.
        unsafe { (*result).posted = thread::global_timer_ns() };
    }
    if stop == 0 {
        stop = quiet(&mut queue, &mut last, &args);
    }
    stop = block_maximum(stop);
    if leads {
        // SAFETY: the caller guarantees that there is one result per block, and only this thread writes it.
        unsafe {
            (*result).done = thread::global_timer_ns();
            (*result).stop = stop;
        }
    }
}

/// Rings the doorbell with an invalid count, which is less than the number that the NIC has already processed.
#[inline(never)]
fn ring_back(queue: &NicQueue) {
    // SAFETY: the queue's words are valid while the grid runs.
    let (doorbell, rung) = unsafe { (&*queue.doorbell, &(*queue.words).rung.0) };
    store_mmio_relaxed_sys_u32(
        doorbell,
        rules::doorbell(load_relaxed_gpu_u64(rung).wrapping_sub(queue.depth as u64 + 1)),
    );
    // The NIC would not notice a doorbell that is overwritten before the NIC reads it.
    let until = thread::global_timer_ns() + SEEN_NS;
    while thread::global_timer_ns() < until {
        thread::relax();
    }
}

/// Time after a decreasing doorbell in which the same thread does not ring again, in nanoseconds.
const SEEN_NS: u64 = 10_000_000;

/// Returns the seed of the payload at this offset.
#[inline(always)]
pub fn slot_seed(seed: u32, offset: u64) -> u64 {
    pattern::mixed(offset, seed as u64)
}

#[inline(always)]
fn quiet(queue: &mut NicQueue, last: &mut Option<u64>, args: &DirectPutArgs) -> u64 {
    if args.counter_alone != 0 {
        return wait_for_counter_alone(queue);
    }
    match last.take().map(|number| queue.wait(number)) {
        Some(Err(failure)) => failure.status().0,
        _ => 0,
    }
}

/// Waits only for the counter, as a counterexample. A failed request is not counted, so the wait then ends at its bound
/// without an error report.
fn wait_for_counter_alone(queue: &NicQueue) -> u64 {
    let began = thread::global_timer_ns();
    loop {
        // SAFETY: the queue's words are valid while the grid runs, and a queue used in this mode has a counter.
        let (counter, reserved) = unsafe { (&*queue.counter, &(*queue.words).reserved.0) };
        let counted = load_acquire_sys_u64(counter);
        if rules::behind(load_relaxed_gpu_u64(reserved), counted) == 0 {
            return 0;
        }
        if thread::global_timer_ns() - began > queue.timeout_ns {
            return Status::DEADLINE.0;
        }
        thread::relax();
    }
}

/// Writes the pattern: whole words first, then single bytes.
#[inline(always)]
unsafe fn fill(at: u64, bytes: u32, seed: u64) {
    let mut index = 0u64;
    while index * 8 + 8 <= bytes as u64 {
        // SAFETY: the word is below `bytes`, and the caller guarantees that the slot is valid for `bytes` bytes. Slots
        // start on word boundaries.
        unsafe { (at as *mut u64).add(index as usize).write(pattern::word(seed, index)) };
        index += 1;
    }
    let mut byte = index * 8;
    while byte < bytes as u64 {
        // SAFETY: the byte is below `bytes`, and the caller guarantees that the slot is valid for `bytes` bytes.
        unsafe { (at as *mut u8).add(byte as usize).write(pattern::byte(seed, byte)) };
        byte += 1;
    }
}
