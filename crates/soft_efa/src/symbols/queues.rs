//! Direct access to the queues, for programs that write requests and read completions without the C functions: a GPU,
//! or libfabric from 2.3 on.

use crate::abi::*;
use crate::completions::SoftCompletionQueue;
use crate::context::DeviceContext;
use crate::engine;
use crate::entries;
use crate::pair::SoftQueuePair;
use crate::queue::RECEIVE_PIECES;
use crate::request::{INLINE, SEND_PIECES, SHORT_INLINE};
use crate::rings::{DeviceRing, PairRings, RECEIVE_BYTES};
use std::ffi::c_int;
use std::mem::offset_of;

/// Returns whether C's structure of `bytes` contains the members before `end`.
fn has(bytes: u32, end: usize) -> bool {
    bytes as usize >= end
}

/// Writes the addresses of a queue pair's rings and doorbells. From the first call on the engine polls them.
///
/// # Safety
/// `pair` must have been returned by [`crate::efadv_create_qp_ex`]; `sends` and `receives` must each be valid for
/// writes of `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_qp_wqs(
    pair: *mut ibv_qp,
    sends: *mut efadv_wq_attr,
    receives: *mut efadv_wq_attr,
    bytes: u32,
) -> c_int {
    if !has(bytes, offset_of!(efadv_wq_attr, caps)) {
        return libc::EINVAL;
    }
    // SAFETY: the caller guarantees that the pair is valid.
    let this = unsafe { SoftQueuePair::of(pair) };
    // SAFETY: the queue is valid and belongs to the same device.
    let kept = unsafe { SoftCompletionQueue::of(this.sends_to()) }.depth();
    let rings = match rings(this, kept as usize) {
        Ok(rings) => rings,
        Err(error) => return error.raw_os_error().unwrap_or(libc::ENOMEM),
    };
    engine::watch_pair(this);
    let of = |ring: &DeviceRing, max_batch: u32, caps: u32| efadv_wq_attr {
        comp_mask: 0,
        buffer: ring.buffer(),
        entry_size: ring.entry as u32,
        num_entries: ring.entries,
        doorbell: ring.doorbell_address(),
        max_batch,
        caps: caps as u16,
        reserved: [0; 2],
    };
    let length = (bytes as usize).min(size_of::<efadv_wq_attr>());
    for (ours, place) in [
        (of(&rings.send, rings.max_batch, EFADV_WQ_CAPS_64_BIT_REQ_ID), sends),
        (of(&rings.receive, rings.receive.entries, 0), receives),
    ] {
        // SAFETY: the caller guarantees that `place` is valid for `bytes`, which `length` does not exceed.
        unsafe { std::ptr::copy_nonoverlapping((&raw const ours).cast::<u8>(), place.cast(), length) };
    }
    0
}

fn rings(this: &SoftQueuePair, kept: usize) -> std::io::Result<&PairRings> {
    if let Some(rings) = this.rings.get() {
        return Ok(rings);
    }
    let entry = if this.is_wide() { 128 } else { 64 };
    let receives = this.cap.max_recv_wr * this.cap.max_recv_sge.max(1);
    let spec = &this.origin.context.machine.spec;
    let send = DeviceRing::new(this.cap.max_send_wr.max(spec.min_depth), entry)?;
    let rings = PairRings {
        max_batch: efa_queue::rules::max_batch(spec.max_batch, entry as u32, send.entries.max(2)),
        send,
        receive: DeviceRing::new(receives, RECEIVE_BYTES)?,
    };
    crate::locked(&this.sender).kept = Some(kept);
    Ok(this.rings.get_or_init(|| rings))
}

/// Writes the address of a completion queue's entries. From the first call on the engine writes completions there.
///
/// # Safety
/// `queue` must have been returned by [`crate::efadv_create_cq`], and `place` must be valid for writes of `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_cq(queue: *mut ibv_cq, place: *mut efadv_cq_attr, bytes: u32) -> c_int {
    if !has(bytes, offset_of!(efadv_cq_attr, doorbell)) {
        return libc::EINVAL;
    }
    // SAFETY: the caller guarantees that the queue is valid.
    let queue = unsafe { SoftCompletionQueue::of(queue) };
    let made = match queue.entries(|first| engine::watch_queue(queue, first)) {
        Ok(made) => made,
        Err(error) => return error.raw_os_error().unwrap_or(libc::ENOMEM),
    };
    let ours = efadv_cq_attr {
        comp_mask: 0,
        buffer: made.buffer(),
        entry_size: entries::BYTES as u32,
        num_entries: made.count,
        doorbell: made.doorbell(),
    };
    let length = (bytes as usize).min(size_of::<efadv_cq_attr>());
    // SAFETY: the caller guarantees that `place` is valid for `bytes`, which `length` does not exceed.
    unsafe { std::ptr::copy_nonoverlapping((&raw const ours).cast::<u8>(), place.cast(), length) };
    0
}

/// Returns the maximum number of requests of a queue, for requests of the given kind, or a negative error code.
///
/// # Safety
/// `context` must be open, and `attributes` must be valid for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_get_max_sq_depth(
    context: *mut ibv_context,
    attributes: *mut efadv_sq_depth_attr,
    bytes: u32,
) -> c_int {
    if !has(bytes, offset_of!(efadv_sq_depth_attr, max_inline_data) + 4) {
        return -libc::EINVAL;
    }
    // SAFETY: the caller guarantees that the context is open and the attributes are valid for `bytes`.
    let (spec, asked) = unsafe { (&DeviceContext::of(context).machine.spec, &*attributes) };
    let fits = asked.comp_mask == 0
        && asked.max_send_sge as usize <= SEND_PIECES
        && asked.max_rdma_sge <= 1
        && asked.max_inline_data as usize <= INLINE;
    if !fits {
        return -libc::EINVAL;
    }
    let is_wide = asked.flags & EFADV_SQ_DEPTH_ATTR_INLINE_WRITE != 0 || asked.max_inline_data as usize > SHORT_INLINE;
    if is_wide { (spec.depth / 2) as c_int } else { spec.depth as c_int }
}

/// Returns the maximum number of receives of a queue, for receives of the given number of pieces, or a negative error
/// code.
///
/// # Safety
/// The requirements of [`efadv_get_max_sq_depth`] apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_get_max_rq_depth(
    context: *mut ibv_context,
    attributes: *mut efadv_rq_depth_attr,
    bytes: u32,
) -> c_int {
    if !has(bytes, offset_of!(efadv_rq_depth_attr, max_recv_sge) + 4) {
        return -libc::EINVAL;
    }
    // SAFETY: the caller guarantees that the context is open and the attributes are valid for `bytes`.
    let (spec, asked) = unsafe { (&DeviceContext::of(context).machine.spec, &*attributes) };
    if asked.comp_mask != 0 || asked.max_recv_sge as usize > RECEIVE_PIECES || asked.max_recv_sge == 0 {
        return -libc::EINVAL;
    }
    (spec.receives / asked.max_recv_sge) as c_int
}

/// Destroys a completion queue.
///
/// # Safety
/// `queue` must have been returned by [`crate::efadv_create_cq`], and not be used any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: the caller guarantees that the queue was made here, from a box, and is no longer used.
    unsafe {
        if SoftCompletionQueue::of(queue).has_pairs() {
            return libc::EBUSY;
        }
        engine::forget_queue(queue.cast());
        if let Some(channel) = SoftCompletionQueue::of(queue).channel() {
            channel.refer(-1);
        }
        drop(Box::from_raw(queue.cast::<SoftCompletionQueue>()));
    }
    0
}
