//! Creation, modification and destruction of queue pairs.

use crate::abi::*;
use crate::address::queue_name;
use crate::cause;
use crate::completions::SoftCompletionQueue;
use crate::context::{DeviceContext, PAIRS, refuse};
use crate::engine;
use crate::keeper;
use crate::locked;
use crate::origin::Origin;
use crate::pair::SoftQueuePair;
use crate::queue::{GONE, PairPage, READY, RECEIVE_PIECES};
use crate::request::{INLINE, SEND_PIECES, SHORT_INLINE};
use crate::session;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Creates a queue pair of EFA's own type.
///
/// # Safety
/// `context` must be open, `attributes` must be valid, and `efa` must be null or valid for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    bytes: u32,
) -> *mut ibv_qp {
    // SAFETY: the caller guarantees that the context is open and the attributes are valid.
    let (context, attributes) = unsafe { (DeviceContext::of(context), &*attributes) };
    let (spec, cap) = (&context.machine.spec, &attributes.cap);
    let flags_end = std::mem::offset_of!(efadv_qp_init_attr, flags) + size_of::<u16>();
    // SAFETY: `efa` is valid for `bytes`, which covers the flags. Older headers have zeros there.
    let flags = u32::from(if efa.is_null() || (bytes as usize) < flags_end { 0 } else { unsafe { (*efa).flags } });
    let inline_writes = flags & EFADV_QP_FLAGS_INLINE_WRITE != 0;
    if inline_writes && !spec.writes {
        return refuse(libc::EOPNOTSUPP);
    }
    // A device has a fixed amount of memory for requests, so its queue holds half as many requests of twice the size.
    let depth = if inline_writes || cap.max_inline_data as usize > SHORT_INLINE { spec.depth / 2 } else { spec.depth };
    let fits = cap.max_send_wr <= depth
        && cap.max_recv_wr <= spec.receives
        && cap.max_send_sge as usize <= SEND_PIECES
        && cap.max_recv_sge as usize <= RECEIVE_PIECES
        && cap.max_inline_data as usize <= INLINE;
    if attributes.qp_type != IBV_QPT_DRIVER {
        // Rejects datagrams, which ginlab does not use.
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: `pd` is null or made by `ibv_alloc_pd`.
    let Some(domain) = (unsafe { attributes.pd.as_ref() }) else { return refuse(libc::EINVAL) };
    if !fits || attributes.send_cq.is_null() || attributes.recv_cq.is_null() {
        return refuse(libc::EINVAL);
    }
    let solicited = flags & EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV == 0;
    let mut pairs = locked(&context.pairs);
    let Some(low) = pairs.iter().position(Option::is_none) else { return refuse(libc::ENOMEM) };
    // SAFETY: the queue is valid and belongs to the same device.
    let kept = unsafe { SoftCompletionQueue::of(attributes.recv_cq) }.depth();
    let made = PairPage::new(cap.max_recv_wr, kept, context.number, domain.handle, solicited).and_then(|mut page| {
        // Peers address a 16-bit number; this process's provider finds the pair by its low bits.
        let mut last = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        for attempt in 0..512 {
            let high = context.machine.random(attempt) as u32 & 0xff;
            let number = high << PAIRS.ilog2() | low as u32;
            match page.publish(&queue_name(&context.device.gid, number)) {
                Ok(()) => return Ok((page, number)),
                Err(error) => last = error,
            }
        }
        Err(last)
    });
    let (page, number) = match made {
        Ok(made) => made,
        Err(error) => {
            cause::print("a queue pair in /dev/shm", &error);
            return refuse(error.raw_os_error().unwrap_or(libc::ENOMEM));
        }
    };
    pairs[low] = Some(number);
    drop(pairs);
    // SAFETY: the type has only numbers, pointers and optional functions, for all of which zero is a valid value.
    let mut verbs: ibv_qp_ex = unsafe { std::mem::zeroed() };
    let base = &mut verbs.qp_base;
    (base.context, base.qp_context, base.pd) = (context.verbs(), attributes.qp_context, attributes.pd);
    (base.send_cq, base.recv_cq) = (attributes.send_cq, attributes.recv_cq);
    (base.qp_num, base.state, base.qp_type) = (number, IBV_QPS_RESET, attributes.qp_type);
    session::install(&mut verbs, spec.writes);
    let origin = Arc::new(Origin::new(context, page, number));
    let pair = SoftQueuePair::new(verbs, origin, *cap, inline_writes);
    keeper::add(pair.sender.clone());
    let pair = Box::into_raw(Box::new(pair));
    // SAFETY: the queues are valid, belong to the same device, and outlive the pair.
    unsafe {
        SoftCompletionQueue::of(attributes.send_cq).attach(pair);
        if attributes.recv_cq != attributes.send_cq {
            SoftCompletionQueue::of(attributes.recv_cq).attach(pair);
        }
    }
    pair.cast()
}

/// Destroys a queue pair. Requests in flight are delivered, without completions.
///
/// # Safety
/// `pair` must have been returned by [`efadv_create_qp_ex`], and not be used any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: the caller guarantees that the pair was made here, from a box, and is no longer used.
    unsafe {
        let this = SoftQueuePair::of(pair);
        engine::forget_pair(pair.cast());
        keeper::remove(&this.sender);
        this.origin.page.state().store(GONE, Ordering::Release);
        locked(&this.sender).flush();
        SoftCompletionQueue::of(this.sends_to()).detach(pair.cast());
        if this.receives_to() != this.sends_to() {
            SoftCompletionQueue::of(this.receives_to()).detach(pair.cast());
        }
        locked(&this.origin.context.pairs)[this.number() as usize % PAIRS] = None;
        drop(Box::from_raw(pair.cast::<SoftQueuePair>()));
    }
    0
}

/// Changes the state, queue key and retry count.
///
/// # Safety
/// `pair` must have been returned by [`efadv_create_qp_ex`], and `attributes` must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller guarantees that both are valid; no other code changes the state of a pair.
    let (this, attributes, state) = unsafe { (SoftQueuePair::of(pair), &*attributes, &raw mut (*pair).state) };
    if mask & IBV_QP_QKEY != 0 {
        this.origin.page.qkey().store(attributes.qkey, Ordering::Relaxed);
    }
    if mask & IBV_QP_RNR_RETRY != 0 {
        locked(&this.sender).rnr_retry = attributes.rnr_retry;
    }
    if mask & IBV_QP_STATE != 0 {
        // SAFETY: `state` is valid, as above.
        let before = unsafe { *state };
        let next = attributes.qp_state;
        if !matches!(
            (before, next),
            (IBV_QPS_RESET, IBV_QPS_INIT) | (IBV_QPS_INIT, IBV_QPS_RTR) | (IBV_QPS_RTR, IBV_QPS_RTS)
        ) {
            return libc::EINVAL;
        }
        // SAFETY: `state` is valid, as above.
        unsafe { state.write(next) };
        if next == IBV_QPS_RTR {
            this.origin.page.state().store(READY, Ordering::Release);
        }
        if next == IBV_QPS_RTS {
            this.is_sending.store(true, Ordering::Release);
        }
    }
    0
}
