//! Receives and sends that C posts without a session, through the table of the device.

use crate::abi::*;
use crate::context::AddressHandle;
use crate::keeper;
use crate::locked;
use crate::memory::{FILLED, Range};
use crate::pair::SoftQueuePair;
use crate::queue::{PostedReceive, RECEIVE_PIECES};
use crate::request::{PostedRequest, SEND_PIECES};
use std::ffi::c_int;

/// Posts receives.
///
/// # Safety
/// `pair` must have been returned by [`efadv_create_qp_ex`](crate::efadv_create_qp_ex), and `chain` must be a valid
/// list.
pub unsafe extern "C" fn post_recv(
    pair: *mut ibv_qp,
    mut chain: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller guarantees that the pair is valid.
    let this = unsafe { SoftQueuePair::of(pair) };
    let mut receiver = locked(&this.receiver);
    // SAFETY: `chain` is null or an element of the list.
    while let Some(request) = unsafe { chain.as_ref() } {
        let mut receive = PostedReceive { wr_id: request.wr_id, ..PostedReceive::default() };
        let mut code = match this.state() {
            IBV_QPS_RESET => libc::EINVAL,
            _ if receiver.posted >= receiver.depth => libc::ENOMEM,
            _ => 0,
        };
        let pieces = usize::try_from(request.num_sge).unwrap_or(usize::MAX);
        if pieces > RECEIVE_PIECES {
            code = libc::EINVAL;
        } else {
            for (index, place) in receive.pieces.iter_mut().enumerate().take(pieces) {
                // SAFETY: the list has `num_sge` elements, and `index` is below their number.
                let piece = unsafe { *request.sg_list.add(index) };
                let (address, bytes, domain) = (piece.addr, u64::from(piece.length), this.origin.page.domain());
                if !this.origin.context.table.allows(piece.lkey, Range { address, bytes, access: FILLED, domain }) {
                    code = libc::EINVAL;
                }
                *place = (piece.addr, piece.length);
            }
        }
        if code == 0 && !this.origin.page.post(&receive) {
            code = libc::ENOMEM;
        }
        if code != 0 {
            // SAFETY: C passes a valid pointer for the failed request.
            unsafe { bad.write(chain) };
            return code;
        }
        receiver.posted += 1;
        chain = request.next;
    }
    0
}

/// Posts a chain of sends.
///
/// # Safety
/// `pair` must have been returned by [`efadv_create_qp_ex`](crate::efadv_create_qp_ex), and `chain` must be a valid
/// list.
pub unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    mut chain: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller guarantees that the pair is valid.
    let this = unsafe { SoftQueuePair::of(pair) };
    let mut sender = locked(&this.sender);
    // SAFETY: `chain` is null or an element of the list.
    while let Some(request) = unsafe { chain.as_ref() } {
        let mut made = PostedRequest { wr_id: request.wr_id, ..PostedRequest::default() };
        let code = match request.opcode {
            _ if this.state() != IBV_QPS_RTS => libc::EINVAL,
            IBV_WR_SEND => 0,
            IBV_WR_SEND_WITH_IMM => {
                made.immediate = Some(request.imm_data);
                0
            }
            _ => libc::EINVAL,
        };
        // Other operations use the bytes of the address handle differently.
        // SAFETY: the operation is a send, so the union contains its destination. The handle was made by
        // `ibv_create_ah`, and C passes valid pieces.
        let code = if code == 0 { unsafe { address(this, request, &mut made) } } else { code };
        let code = if code == 0 { keeper::post(&mut sender, std::slice::from_ref(&made)) } else { code };
        if code != 0 {
            // SAFETY: C passes a valid pointer for the failed request.
            unsafe { bad.write(chain) };
            return code;
        }
        chain = request.next;
    }
    0
}

/// Copies destination and pieces of a send. Returns C's error code.
///
/// # Safety
/// `request` must be a valid send, with an address handle of [`ibv_create_ah`](crate::ibv_create_ah).
unsafe fn address(this: &SoftQueuePair, request: &ibv_send_wr, made: &mut PostedRequest) -> c_int {
    // SAFETY: the caller guarantees that the request is a send.
    let to = unsafe { request.wr.ud };
    // SAFETY: the caller guarantees that the handle is null or made by `ibv_create_ah`.
    let Some(handle) = (unsafe { to.ah.cast::<AddressHandle>().as_ref() }) else { return libc::EINVAL };
    (made.gid, made.number, made.qkey) = (handle.gid, to.remote_qpn, to.remote_qkey);
    made.domain = handle.domain();
    let pieces = usize::try_from(request.num_sge).unwrap_or(usize::MAX);
    let inline = request.send_flags & IBV_SEND_INLINE != 0;
    if pieces > SEND_PIECES {
        return libc::EINVAL;
    }
    // SAFETY: C passes a list of this many pieces.
    unsafe { made.take(request.sg_list, pieces, inline.then(|| this.inline())) }
}
