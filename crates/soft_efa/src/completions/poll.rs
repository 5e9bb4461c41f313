//! Functions with which C polls a queue and reads its completions.

use super::SoftCompletionQueue;
use crate::abi::*;
use crate::entries::{CompletionEntry, UNKNOWN};
use crate::request::RequestKind;
use std::ffi::{c_int, c_uint};

/// The functions that C finds in the EFA interface of a queue.
pub(super) const EFA: efadv_cq =
    efadv_cq { comp_mask: 0, wc_read_sgid: Some(wc_read_sgid), wc_is_unsolicited: Some(wc_is_unsolicited) };

/// Sets the functions that C finds in a queue.
pub(super) fn set_functions(verbs: &mut ibv_cq_ex) {
    verbs.start_poll = Some(start_poll);
    verbs.next_poll = Some(next_poll);
    verbs.end_poll = Some(end_poll);
    verbs.read_opcode = Some(read_opcode);
    verbs.read_vendor_err = Some(read_vendor_err);
    verbs.read_byte_len = Some(read_byte_len);
    verbs.read_imm_data = Some(read_imm_data);
    verbs.read_qp_num = Some(read_qp_num);
    verbs.read_src_qp = Some(read_src_qp);
    verbs.read_wc_flags = Some(read_wc_flags);
    verbs.read_slid = Some(read_slid);
    verbs.read_sl = Some(read_nothing);
    verbs.read_dlid_path_bits = Some(read_nothing);
}

/// Returns the queue of a C pointer.
///
/// # Safety
/// `queue` must have been returned by [`create`] and not be destroyed.
unsafe fn of<'a>(queue: *mut ibv_cq_ex) -> &'a SoftCompletionQueue {
    // SAFETY: the caller guarantees that the queue is valid.
    unsafe { SoftCompletionQueue::of(queue.cast()) }
}

unsafe extern "C" fn start_poll(queue: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: here and below, queue and attributes are valid by C's contract.
    let (this, mask) = unsafe { (of(queue), (*attributes).comp_mask) };
    if mask != 0 {
        return libc::EINVAL;
    }
    if this.start() { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn next_poll(queue: *mut ibv_cq_ex) -> c_int {
    // SAFETY: by C's contract, the queue is valid. `start_poll` has taken its lock.
    if unsafe { of(queue) }.advance() { 0 } else { libc::ENOENT }
}

unsafe extern "C" fn end_poll(queue: *mut ibv_cq_ex) {
    // SAFETY: by C's contract, the queue is valid, and `start_poll` has taken its lock.
    unsafe { of(queue) }.unlock();
}

/// Returns the completion that C is reading.
///
/// # Safety
/// See `start_poll`; must be called within a poll.
unsafe fn current<'a>(queue: *mut ibv_cq_ex) -> &'a CompletionEntry {
    // SAFETY: the caller is within a poll, so the lock is held.
    unsafe { &(*of(queue).inner.get()).current }
}

/// Returns C's operation of a completion. libefa reports a read as a send.
pub fn opcode(entry: &CompletionEntry) -> c_uint {
    match (entry.is_arrival, entry.kind) {
        (true, RequestKind::Write) => IBV_WC_RECV_RDMA_WITH_IMM,
        (true, _) => IBV_WC_RECV,
        (false, RequestKind::Write) => IBV_WC_RDMA_WRITE,
        (false, _) => IBV_WC_SEND,
    }
}

/// Returns C's flags of a completion.
pub fn flags(entry: &CompletionEntry) -> c_uint {
    if entry.immediate.is_some() { IBV_WC_WITH_IMM } else { 0 }
}

/// Defines the functions with which C reads the fields of a completion.
macro_rules! readers {
    ($($name:ident -> $answer:ty = |$entry:ident| $part:expr;)*) => {$(
        unsafe extern "C" fn $name(queue: *mut ibv_cq_ex) -> $answer {
            // SAFETY: C's contract allows the call only within a poll.
            let $entry = unsafe { current(queue) };
            $part
        }
    )*};
}
readers! {
    read_opcode -> c_uint = |entry| opcode(entry);
    read_vendor_err -> u32 = |entry| entry.status;
    read_byte_len -> u32 = |entry| entry.bytes;
    read_imm_data -> u32 = |entry| entry.immediate.unwrap_or_default();
    read_qp_num -> u32 = |entry| entry.number;
    read_src_qp -> u32 = |entry| entry.source;
    read_wc_flags -> c_uint = |entry| flags(entry);
    read_slid -> u32 = |entry| u32::from(entry.handle);
}

unsafe extern "C" fn read_nothing(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// Returns the current completion of a queue, given its EFA interface.
///
/// # Safety
/// `efa` must have been returned by [`efadv_cq_from_ibv_cq_ex`]; must be called within a poll.
unsafe fn entry_of<'a>(efa: *mut efadv_cq) -> &'a CompletionEntry {
    // SAFETY: the caller guarantees that `efa` is the member of a valid queue.
    unsafe { current(efa.byte_sub(std::mem::offset_of!(SoftCompletionQueue, efa)).cast()) }
}

unsafe extern "C" fn wc_read_sgid(efa: *mut efadv_cq, place: *mut ibv_gid) -> c_int {
    // SAFETY: C calls this within a poll, by its contract; `place` is valid for writes.
    unsafe {
        let entry = entry_of(efa);
        if entry.handle != UNKNOWN {
            // The address is available only if it has no handle.
            return -libc::ENOENT;
        }
        place.write(ibv_gid { raw: entry.gid });
    }
    0
}

unsafe extern "C" fn wc_is_unsolicited(efa: *mut efadv_cq) -> bool {
    // SAFETY: C calls this within a poll, by its contract.
    unsafe { entry_of(efa) }.unsolicited
}
