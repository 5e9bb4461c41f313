//! EFA's own functions, and what no card of EFA's does.

use crate::abi::*;
use crate::completions;
use crate::context::{Context, Handle, refuse};
use crate::machine::Machine;
use crate::queue::RECEIVE_PIECES;
use crate::request::{INLINE, SEND_PIECES, SHORT_INLINE};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

/// Largest read or write.
const TRANSFER: u32 = 1 << 30;

/// What EFA's cards say beyond verbs.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_device(
    context: *mut ibv_context,
    attributes: *mut efadv_device_attr,
    bytes: u32,
) -> c_int {
    // SAFETY: one of ours.
    let spec = &unsafe { Context::of(context) }.machine.spec;
    let mut caps =
        EFADV_DEVICE_ATTR_CAPS_RDMA_READ | EFADV_DEVICE_ATTR_CAPS_RNR_RETRY | EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID;
    if spec.counters {
        caps |= EFADV_DEVICE_ATTR_CAPS_COMP_CNTR;
    }
    if spec.writes {
        caps |= EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE | EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV;
    }
    let ours = efadv_device_attr {
        comp_mask: 0,
        max_sq_wr: spec.depth,
        max_rq_wr: spec.receives,
        max_sq_sge: SEND_PIECES as u16,
        max_rq_sge: RECEIVE_PIECES as u16,
        inline_buf_size: SHORT_INLINE as u16,
        inline_buf_size_ex: INLINE as u16,
        device_caps: caps,
        max_rdma_size: TRANSFER,
    };
    // SAFETY: C's place, of this length.
    unsafe { answer(&ours, attributes, bytes) }
}

/// As much of an answer as C has room for.
///
/// # Safety
/// The place has so many bytes.
unsafe fn answer<T>(ours: &T, place: *mut T, bytes: u32) -> c_int {
    let bytes = (bytes as usize).min(size_of::<T>());
    // SAFETY: both are as long.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *ours).cast::<u8>(), place.cast::<u8>(), bytes) };
    0
}

/// A handle's number.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_ah(handle: *mut ibv_ah, attributes: *mut efadv_ah_attr, bytes: u32) -> c_int {
    // SAFETY: one of ours.
    let ahn = unsafe { (*handle.cast::<Handle>()).number };
    let ours = efadv_ah_attr { comp_mask: 0, ahn, reserved: [0; 6] };
    // SAFETY: C's place, of this length.
    unsafe { answer(&ours, attributes, bytes) }
}

/// Which interconnects a registration goes over: not known.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_mr(_: *mut ibv_mr, attributes: *mut efadv_mr_attr, bytes: u32) -> c_int {
    // SAFETY: C's place, of this length; numbers.
    unsafe { answer(&std::mem::zeroed(), attributes, bytes) }
}

/// A completion queue of EFA's. In memory of a device that a dma-buf stands for there can be none: this card's entries are written by a CPU.
///
/// # Safety
/// See [`crate::ibv_get_device_list`]; `efa` is null or C's, with so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    bytes: u32,
) -> *mut ibv_cq_ex {
    if !efa.is_null() {
        // SAFETY: C's; the first member is in every form of it.
        if unsafe { (*efa).comp_mask } != 0 {
            return refuse(libc::EINVAL);
        }
        // SAFETY: C's, as long as it says.
        let has_flags = bytes as usize >= std::mem::offset_of!(efadv_cq_init_attr, ext_mem_dmabuf);
        // SAFETY: as above.
        if has_flags && u32::try_from(unsafe { (*efa).flags }) == Ok(EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF) {
            eprintln!(
                "soft_efa: a completion queue in a dma-buf: cards in software write theirs into this process's memory, which a GPU \
                 can map (efadv_query_cq)"
            );
            return refuse(libc::EOPNOTSUPP);
        }
    }
    // SAFETY: one of ours, and C's.
    unsafe { completions::create(context, attributes) }
}

/// What no card of EFA's does: each answers that it is not supported.
macro_rules! unsupported {
    ($($name:ident -> $answer:ty = $value:expr;)*) => {$(
        #[doc = "Not supported by these cards."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> $answer {
            $value
        }
    )*};
}
unsupported! {
    ibv_create_comp_channel -> *mut c_void = refuse(libc::EOPNOTSUPP);
    ibv_create_cq -> *mut ibv_cq = refuse(libc::EOPNOTSUPP);
    ibv_create_qp -> *mut ibv_qp = refuse(libc::EOPNOTSUPP);
    ibv_create_srq -> *mut c_void = refuse(libc::EOPNOTSUPP);
    ibv_destroy_comp_channel -> c_int = libc::EOPNOTSUPP;
    ibv_destroy_srq -> c_int = libc::EOPNOTSUPP;
    ibv_get_cq_event -> c_int = -1;
    ibv_ack_cq_events -> () = ();
    ibv_attach_mcast -> c_int = libc::EOPNOTSUPP;
    ibv_detach_mcast -> c_int = libc::EOPNOTSUPP;
    ibv_query_ece -> c_int = libc::EOPNOTSUPP;
    ibv_set_ece -> c_int = libc::EOPNOTSUPP;
}

/// For how many nanoseconds the card that has waited longest has waited for this machine so far, where a real one would not have.
#[unsafe(no_mangle)]
pub extern "C" fn soft_efa_behind() -> u64 {
    let late = |machine: &Machine| machine.late.iter().map(|late| late.nanoseconds()).max();
    Machine::get().ok().and_then(late).unwrap_or(0)
}

/// Whether reads and writes move their bytes from now on; otherwise they take their time, and nothing arrives. For figures of
/// cards that are faster than this machine's memory.
#[unsafe(no_mangle)]
pub extern "C" fn soft_efa_move_bytes(moves: bool) {
    if let Ok(machine) = Machine::get() {
        machine.moves.store(moves, Ordering::Relaxed);
    }
}
