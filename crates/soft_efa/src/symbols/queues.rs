//! The queues themselves, for who writes requests and reads completions without C's functions: a GPU, or libfabric from 2.3 on.

use crate::abi::*;
use crate::completions::Completions;
use crate::context::Context;
use crate::engine;
use crate::entries;
use crate::pair::Pair;
use crate::queue::RECEIVE_PIECES;
use crate::request::{INLINE, SEND_PIECES, SHORT_INLINE};
use crate::rings::{RECEIVE_BYTES, Ring, Rings};
use std::ffi::c_int;
use std::mem::offset_of;

/// Whether C's struct, of so many bytes, has this much of ours.
fn has(bytes: u32, end: usize) -> bool {
    bytes as usize >= end
}

/// Where a queue pair's rings and doorbells are. From the first call on the card looks at them.
///
/// # Safety
/// The pair is one of [`crate::efadv_create_qp_ex`], the places are C's, with so many bytes each.
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
    // SAFETY: the caller's.
    let this = unsafe { Pair::of(pair) };
    // SAFETY: the queue is C's, of the same card.
    let kept = unsafe { Completions::of(this.sends_to()) }.depth();
    let rings = match rings(this, kept as usize) {
        Ok(rings) => rings,
        Err(error) => return error.raw_os_error().unwrap_or(libc::ENOMEM),
    };
    engine::watch_pair(this);
    let of = |ring: &Ring, max_batch: u32, caps: u32| efadv_wq_attr {
        comp_mask: 0,
        buffer: ring.buffer(),
        entry_size: ring.entry as u32,
        num_entries: ring.entries,
        doorbell: ring.doorbell(),
        max_batch,
        caps: caps as u16,
        reserved: [0; 2],
    };
    let length = (bytes as usize).min(size_of::<efadv_wq_attr>());
    for (ours, place) in [
        (of(&rings.send, rings.max_batch, EFADV_WQ_CAPS_64_BIT_REQ_ID), sends),
        (of(&rings.receive, rings.receive.entries, 0), receives),
    ] {
        // SAFETY: C's place, as long as it says.
        unsafe { std::ptr::copy_nonoverlapping((&raw const ours).cast::<u8>(), place.cast(), length) };
    }
    0
}

fn rings(this: &Pair, kept: usize) -> std::io::Result<&Rings> {
    if let Some(rings) = this.rings.get() {
        return Ok(rings);
    }
    let entry = if this.is_wide() { 128 } else { 64 };
    let receives = this.cap.max_recv_wr * this.cap.max_recv_sge.max(1);
    let send = Ring::new(this.cap.max_send_wr, entry)?;
    let spec = &this.origin.context.machine.spec;
    let rings = Rings {
        max_batch: efa_queue::rules::max_batch(spec.max_batch, entry as u32, send.entries.max(2)),
        send,
        receive: Ring::new(receives, RECEIVE_BYTES)?,
    };
    crate::locked(&this.sender).kept = Some(kept);
    Ok(this.rings.get_or_init(|| rings))
}

/// Where a completion queue's entries are. From the first call on the card writes them there.
///
/// # Safety
/// The queue is one of [`crate::efadv_create_cq`], the place is C's, with so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_cq(queue: *mut ibv_cq, place: *mut efadv_cq_attr, bytes: u32) -> c_int {
    if !has(bytes, offset_of!(efadv_cq_attr, doorbell)) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's.
    let queue = unsafe { Completions::of(queue) };
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
    // SAFETY: C's place, as long as it says.
    unsafe { std::ptr::copy_nonoverlapping((&raw const ours).cast::<u8>(), place.cast(), length) };
    0
}

/// How many requests a queue takes of the size that these need, or, below 0, what is wrong.
///
/// # Safety
/// The context is open; the attributes are C's, with so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_get_max_sq_depth(
    context: *mut ibv_context,
    attributes: *mut efadv_sq_depth_attr,
    bytes: u32,
) -> c_int {
    if !has(bytes, offset_of!(efadv_sq_depth_attr, max_inline_data) + 4) {
        return -libc::EINVAL;
    }
    // SAFETY: the caller's.
    let (spec, asked) = unsafe { (&Context::of(context).machine.spec, &*attributes) };
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

/// How many receives of so many pieces a queue takes, or, below 0, what is wrong.
///
/// # Safety
/// As [`efadv_get_max_sq_depth`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_get_max_rq_depth(
    context: *mut ibv_context,
    attributes: *mut efadv_rq_depth_attr,
    bytes: u32,
) -> c_int {
    if !has(bytes, offset_of!(efadv_rq_depth_attr, max_recv_sge) + 4) {
        return -libc::EINVAL;
    }
    // SAFETY: the caller's.
    let (spec, asked) = unsafe { (&Context::of(context).machine.spec, &*attributes) };
    if asked.comp_mask != 0 || asked.max_recv_sge as usize > RECEIVE_PIECES || asked.max_recv_sge == 0 {
        return -libc::EINVAL;
    }
    (spec.receives / asked.max_recv_sge) as c_int
}

/// Destroys a completion queue.
///
/// # Safety
/// Made by [`crate::efadv_create_cq`], and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        if Completions::of(queue).has_pairs() {
            return libc::EBUSY;
        }
        engine::forget_queue(queue.cast());
        drop(Box::from_raw(queue.cast::<Completions>()));
    }
    0
}
