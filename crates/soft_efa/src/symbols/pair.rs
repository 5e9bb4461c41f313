//! Queue pairs: made, changed, destroyed.

use crate::abi::*;
use crate::address::queue_name;
use crate::completions::Completions;
use crate::context::{Context, PAIRS, refuse};
use crate::engine;
use crate::keeper;
use crate::locked;
use crate::origin::Origin;
use crate::pair::Pair;
use crate::queue::{GONE, Page, READY, RECEIVE_PIECES};
use crate::request::{INLINE, SEND_PIECES, SHORT_INLINE};
use crate::session;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Makes a queue pair of EFA's own kind.
///
/// # Safety
/// The context is open; the attributes are C's; `efa` is null or C's, with so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    bytes: u32,
) -> *mut ibv_qp {
    // SAFETY: the caller's contract.
    let (context, attributes) = unsafe { (Context::of(context), &*attributes) };
    let (spec, cap) = (&context.machine.spec, &attributes.cap);
    let flags_end = std::mem::offset_of!(efadv_qp_init_attr, flags) + size_of::<u16>();
    // SAFETY: as long as C says it is. Older headers have zeros there.
    let flags = u32::from(if efa.is_null() || (bytes as usize) < flags_end { 0 } else { unsafe { (*efa).flags } });
    let inline_writes = flags & EFADV_QP_FLAGS_INLINE_WRITE != 0;
    if inline_writes && !spec.writes {
        return refuse(libc::EOPNOTSUPP);
    }
    // A card's memory for requests has one size: of those that are twice as long it takes half as many.
    let depth = if inline_writes || cap.max_inline_data as usize > SHORT_INLINE { spec.depth / 2 } else { spec.depth };
    let fits = cap.max_send_wr <= depth
        && cap.max_recv_wr <= spec.receives
        && cap.max_send_sge as usize <= SEND_PIECES
        && cap.max_recv_sge as usize <= RECEIVE_PIECES
        && cap.max_inline_data as usize <= INLINE;
    if attributes.qp_type != IBV_QPT_DRIVER {
        // Datagrams: nothing of ginlab's uses them.
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: null or one of `ibv_alloc_pd`.
    let Some(domain) = (unsafe { attributes.pd.as_ref() }) else { return refuse(libc::EINVAL) };
    if !fits || attributes.send_cq.is_null() || attributes.recv_cq.is_null() {
        return refuse(libc::EINVAL);
    }
    let solicited = flags & EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV == 0;
    let mut pairs = locked(&context.pairs);
    let Some(low) = pairs.iter().position(Option::is_none) else { return refuse(libc::ENOMEM) };
    let made = Page::new(cap.max_recv_wr, context.number, domain.handle, solicited).and_then(|mut page| {
        // Peers know a number of 16 bits; this process's provider finds the pair by its low ones.
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
            eprintln!("soft_efa: a queue pair in /dev/shm: {error}");
            return refuse(error.raw_os_error().unwrap_or(libc::ENOMEM));
        }
    };
    pairs[low] = Some(number);
    drop(pairs);
    // SAFETY: numbers, pointers and optional functions: zero is a value of each.
    let mut verbs: ibv_qp_ex = unsafe { std::mem::zeroed() };
    let base = &mut verbs.qp_base;
    (base.context, base.qp_context, base.pd) = (context.verbs(), attributes.qp_context, attributes.pd);
    (base.send_cq, base.recv_cq) = (attributes.send_cq, attributes.recv_cq);
    (base.qp_num, base.state, base.qp_type) = (number, IBV_QPS_RESET, attributes.qp_type);
    session::install(&mut verbs, spec.writes);
    let origin = Arc::new(Origin { context, page, number, counters: Default::default() });
    let pair = Pair::new(verbs, origin, *cap, inline_writes);
    keeper::add(pair.sender.clone());
    let pair = Box::into_raw(Box::new(pair));
    // SAFETY: the queues are C's, of the same card, and live longer than the pair.
    unsafe {
        Completions::of(attributes.send_cq).attach(pair);
        if attributes.recv_cq != attributes.send_cq {
            Completions::of(attributes.recv_cq).attach(pair);
        }
    }
    pair.cast()
}

/// Destroys it: what is on its way arrives, and nobody hears of it.
///
/// # Safety
/// Made by [`efadv_create_qp_ex`], and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let this = Pair::of(pair);
        engine::forget_pair(pair.cast());
        keeper::remove(&this.sender);
        this.origin.page.state().store(GONE, Ordering::Release);
        locked(&this.sender).flush();
        Completions::of(this.sends_to()).detach(pair.cast());
        if this.receives_to() != this.sends_to() {
            Completions::of(this.receives_to()).detach(pair.cast());
        }
        locked(&this.origin.context.pairs)[this.number() as usize % PAIRS] = None;
        drop(Box::from_raw(pair.cast::<Pair>()));
    }
    0
}

/// Changes state, key and patience.
///
/// # Safety
/// The pair is one of [`efadv_create_qp_ex`], the attributes are C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's; nobody else changes a pair's state.
    let (this, attributes, state) = unsafe { (Pair::of(pair), &*attributes, &raw mut (*pair).state) };
    if mask & IBV_QP_QKEY != 0 {
        this.origin.page.qkey().store(attributes.qkey, Ordering::Relaxed);
    }
    if mask & IBV_QP_RNR_RETRY != 0 {
        locked(&this.sender).rnr_retry = attributes.rnr_retry;
    }
    if mask & IBV_QP_STATE != 0 {
        // SAFETY: see above.
        let before = unsafe { *state };
        let next = attributes.qp_state;
        if !matches!(
            (before, next),
            (IBV_QPS_RESET, IBV_QPS_INIT) | (IBV_QPS_INIT, IBV_QPS_RTR) | (IBV_QPS_RTR, IBV_QPS_RTS)
        ) {
            return libc::EINVAL;
        }
        // SAFETY: see above.
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
