//! The functions of libibverbs for programs that use a device without EFA's extensions: completion queues polled by
//! `ibv_poll_cq`, notifications, queries of queue pairs, and asynchronous events.

use crate::abi::*;
use crate::completions::{self, SoftCompletionQueue};
use crate::context::refuse;
use crate::engine;
use crate::locked;
use crate::pair::SoftQueuePair;
use crate::status::verbs_status;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

/// Creates a completion queue. The engine polls it if it has a channel.
///
/// # Safety
/// `context` must be open, `attributes` must be valid, and its channel must be null or valid.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller guarantees that both are valid.
    let (queue, has_channel) = unsafe { (completions::create(context, attributes), !(*attributes).channel.is_null()) };
    if has_channel && !queue.is_null() {
        engine::watch_queue(queue.cast(), None);
    }
    queue
}

/// Creates a completion queue.
///
/// # Safety
/// `context` must be open, and `channel` must be null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: the caller guarantees that the context is open.
    let vectors = unsafe { (*context).num_comp_vectors };
    if entries <= 0 || !(0..vectors).contains(&vector) {
        return refuse(libc::EINVAL);
    }
    let mut attributes = ibv_cq_init_attr_ex {
        cqe: entries as u32,
        cq_context,
        channel: channel.cast(),
        comp_vector: vector as u32,
        wc_flags: 0,
        comp_mask: 0,
        flags: 0,
        parent_domain: std::ptr::null_mut(),
    };
    // SAFETY: the caller guarantees that the context and the channel are valid.
    unsafe { create_cq_ex(context, &mut attributes) }.cast()
}

/// Removes up to `count` completions from a queue. Returns their number.
///
/// # Safety
/// `queue` must be valid, and `places` must be valid for writes of `count` completions.
pub(crate) unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, count: c_int, places: *mut ibv_wc) -> c_int {
    // SAFETY: the caller guarantees that the queue is valid.
    let this = unsafe { SoftCompletionQueue::of(queue) };
    let mut next = places;
    let taken = this.take(usize::try_from(count).unwrap_or(0), |entry| {
        let wc = ibv_wc {
            wr_id: entry.wr_id,
            status: verbs_status(entry.status),
            opcode: completions::opcode(entry),
            vendor_err: entry.status,
            byte_len: entry.bytes,
            imm_data: entry.immediate.unwrap_or_default(),
            qp_num: entry.number,
            src_qp: entry.source,
            wc_flags: completions::flags(entry),
            pkey_index: 0,
            slid: entry.handle,
            sl: 0,
            dlid_path_bits: 0,
        };
        // SAFETY: at most `count` completions are written, for which `places` is valid.
        unsafe {
            next.write(wc);
            next = next.add(1);
        }
    });
    taken as c_int
}

/// Requests a notification on the queue's channel.
///
/// # Safety
/// `queue` must be valid.
pub(crate) unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    if solicited_only != 0 {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the caller guarantees that the queue is valid.
    unsafe { SoftCompletionQueue::of(queue) }.arm();
    0
}

/// Writes state and capacities of a queue pair.
///
/// # Safety
/// `pair` must have been returned by [`crate::efadv_create_qp_ex`]; the other pointers must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    pair: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    created: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller guarantees that the pair is valid.
    let (this, context) = unsafe { (SoftQueuePair::of(pair), (*pair).qp_context) };
    // SAFETY: the types have only numbers and pointers, for all of which zero is a valid value.
    let (mut now, mut first): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    (now.qp_state, now.cur_qp_state, now.port_num) = (this.state(), this.state(), 1);
    (now.qkey, now.cap) = (this.origin.page.qkey().load(Ordering::Relaxed), this.cap);
    now.rnr_retry = locked(&this.sender).rnr_retry;
    (first.qp_context, first.send_cq, first.recv_cq) = (context, this.sends_to(), this.receives_to());
    (first.cap, first.qp_type, first.sq_sig_all) = (this.cap, IBV_QPT_DRIVER, 1);
    // SAFETY: the caller guarantees that both places are valid for writes.
    unsafe {
        attributes.write(now);
        created.write(first);
    }
    0
}

/// Waits for an asynchronous event, unless C has set the descriptor to `O_NONBLOCK`. Software NICs report none.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, _event: *mut c_void) -> c_int {
    let mut count = 0u64;
    // SAFETY: the descriptor belongs to the open context, and the place is a local variable of 8 bytes.
    unsafe { libc::read((*context).async_fd, (&raw mut count).cast(), 8) };
    -1
}

/// Acknowledges an asynchronous event. Has no effect, because there are none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(_event: *mut c_void) {}

/// Returns the text of an asynchronous event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(_event: c_uint) -> *const c_char {
    c"unknown".as_ptr()
}
