//! Sessions. Requests are collected between start and completion of a session. Then either all of them are posted, with
//! one doorbell, or none.

use crate::abi::*;
use crate::context::AddressHandle;
use crate::keeper;
use crate::locked;
use crate::pair::{PostingSession, SoftQueuePair};
use crate::request::{INLINE, PostedRequest, RequestKind, SEND_PIECES};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

/// Sets the session functions of a new queue pair.
pub fn install(verbs: &mut ibv_qp_ex, writes: bool) {
    verbs.wr_start = Some(wr_start);
    verbs.wr_complete = Some(wr_complete);
    verbs.wr_abort = Some(wr_abort);
    verbs.wr_send = Some(wr_send);
    verbs.wr_send_imm = Some(wr_send_imm);
    verbs.wr_rdma_read = Some(wr_rdma_read);
    if writes {
        verbs.wr_rdma_write = Some(wr_rdma_write);
        verbs.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    }
    verbs.wr_set_ud_addr = Some(wr_set_ud_addr);
    verbs.wr_set_sge = Some(wr_set_sge);
    verbs.wr_set_sge_list = Some(wr_set_sge_list);
    verbs.wr_set_inline_data = Some(wr_set_inline_data);
    verbs.wr_set_inline_data_list = Some(wr_set_inline_data_list);
}

/// Returns the queue pair and its session.
///
/// # Safety
/// `pair` must have been returned by `efadv_create_qp_ex`, and only one thread may use its session at a time.
unsafe fn session<'a>(pair: *mut ibv_qp_ex) -> (&'a SoftQueuePair, &'a mut PostingSession) {
    // SAFETY: the caller guarantees that the pair is valid and that no other thread uses the session.
    unsafe {
        let pair = SoftQueuePair::of(pair.cast());
        (pair, pair.session())
    }
}

unsafe extern "C" fn wr_start(pair: *mut ibv_qp_ex) {
    // SAFETY: here and below, the pair is valid and used by one thread at a time, by C's contract for sessions.
    let (pair, session) = unsafe { session(pair) };
    pair.is_open.store(true, Ordering::Relaxed);
    session.requests.clear();
    session.error = 0;
}

unsafe extern "C" fn wr_complete(pair: *mut ibv_qp_ex) -> c_int {
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    let (pair, session) = unsafe { session(pair) };
    pair.is_open.store(false, Ordering::Relaxed);
    if session.error == 0 {
        // All or none, as libefa rolls a session back.
        session.error = keeper::post(&mut locked(&pair.sender), &session.requests);
    }
    session.requests.clear();
    session.error
}

unsafe extern "C" fn wr_abort(pair: *mut ibv_qp_ex) {
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    let (pair, session) = unsafe { session(pair) };
    pair.is_open.store(false, Ordering::Relaxed);
    session.requests.clear();
}

/// Starts a request.
///
/// # Safety
/// The requirements of `wr_start` apply.
unsafe fn begin(pair: *mut ibv_qp_ex, kind: RequestKind, remote: (u64, u32), immediate: Option<u32>) {
    // SAFETY: C has written its ID for the request there.
    let wr_id = unsafe { (*pair).wr_id };
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    let (of, session) = unsafe { session(pair) };
    if of.state() != IBV_QPS_RTS && session.error == 0 {
        session.error = libc::EINVAL;
    }
    let (address, key) = remote;
    session.requests.push(PostedRequest { wr_id, kind, address, key, immediate, ..PostedRequest::default() });
}

unsafe extern "C" fn wr_send(pair: *mut ibv_qp_ex) {
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    unsafe { begin(pair, RequestKind::Send, (0, 0), None) }
}

unsafe extern "C" fn wr_send_imm(pair: *mut ibv_qp_ex, immediate: u32) {
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    unsafe { begin(pair, RequestKind::Send, (0, 0), Some(immediate)) }
}

unsafe extern "C" fn wr_rdma_read(pair: *mut ibv_qp_ex, key: u32, address: u64) {
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    unsafe { begin(pair, RequestKind::Read, (address, key), None) }
}

unsafe extern "C" fn wr_rdma_write(pair: *mut ibv_qp_ex, key: u32, address: u64) {
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    unsafe { begin(pair, RequestKind::Write, (address, key), None) }
}

unsafe extern "C" fn wr_rdma_write_imm(pair: *mut ibv_qp_ex, key: u32, address: u64, immediate: u32) {
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    unsafe { begin(pair, RequestKind::Write, (address, key), Some(immediate)) }
}

unsafe extern "C" fn wr_set_ud_addr(pair: *mut ibv_qp_ex, handle: *mut ibv_ah, number: u32, qkey: u32) {
    // SAFETY: C passes a valid queue pair, as for `wr_start`; `handle` was made by `ibv_create_ah`.
    let ((_, session), handle) = unsafe { (session(pair), &*handle.cast::<AddressHandle>()) };
    if let Some(request) = session.requests.last_mut() {
        (request.gid, request.number, request.qkey) = (handle.gid, number, qkey);
        request.domain = handle.domain();
    }
}

/// Sets the pieces of the last request.
///
/// # Safety
/// The requirements of `wr_start` apply, and `list` must be valid for `count` elements.
unsafe fn set_pieces(pair: *mut ibv_qp_ex, list: *const ibv_sge, count: usize, inline: bool) {
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    let (of, session) = unsafe { session(pair) };
    let Some(request) = session.requests.last_mut() else { return };
    // A read or write has space for one piece. Sends can carry inline data, but writes only if the queue pair was
    // created for that (128-byte requests).
    let most = if request.kind == RequestKind::Send { SEND_PIECES } else { 1 };
    let carries = request.kind == RequestKind::Send || request.kind == RequestKind::Write && of.inline_writes;
    let fits = count <= most && (carries || !inline);
    // SAFETY: the caller guarantees that the list has `count` elements.
    let code = if fits { unsafe { request.take(list, count, inline.then(|| of.inline())) } } else { libc::EINVAL };
    if session.error == 0 {
        session.error = code;
    }
}

unsafe extern "C" fn wr_set_sge(pair: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: C passes a valid queue pair and uses its session from one thread, as for `wr_start`.
    unsafe { set_pieces(pair, &ibv_sge { addr, length, lkey }, 1, false) }
}

unsafe extern "C" fn wr_set_sge_list(pair: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: C passes a valid queue pair, as for `wr_start`; C passes a list of `count` elements.
    unsafe { set_pieces(pair, list, count, false) }
}

unsafe extern "C" fn wr_set_inline_data(pair: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    let piece = ibv_sge { addr: address.expose_provenance() as u64, length: length.min(INLINE + 1) as c_uint, lkey: 0 };
    // SAFETY: C passes a valid queue pair, as for `wr_start`; the piece refers to bytes that C passes.
    unsafe { set_pieces(pair, &piece, 1, true) }
}

unsafe extern "C" fn wr_set_inline_data_list(pair: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    let mut pieces = [ibv_sge::default(); SEND_PIECES];
    for (index, piece) in pieces.iter_mut().enumerate().take(count) {
        // SAFETY: C passes a list of `count` elements, and `index` is below `count`.
        let buffer = unsafe { &*list.add(index) };
        piece.addr = buffer.addr.expose_provenance() as u64;
        piece.length = buffer.length.min(INLINE + 1) as c_uint;
    }
    // SAFETY: C passes a valid queue pair, as for `wr_start`; the pieces refer to bytes that C passes.
    unsafe { set_pieces(pair, pieces.as_ptr(), count, true) }
}
