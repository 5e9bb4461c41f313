//! EFA's own functions, and functions that EFA devices do not support.

use crate::abi::*;
use crate::context::{AddressHandle, DeviceContext, refuse};
use crate::machine::SoftMachine;
use crate::pair::SoftQueuePair;
use crate::queue::RECEIVE_PIECES;
use crate::request::{INLINE, SEND_PIECES, SHORT_INLINE};
use crate::symbols::classic::create_cq_ex;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

/// Maximum size of a read or write in bytes.
const TRANSFER: u32 = 1 << 30;

/// Writes the EFA-specific attributes of a device.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_device(
    context: *mut ibv_context,
    attributes: *mut efadv_device_attr,
    bytes: u32,
) -> c_int {
    // SAFETY: the caller passes a context of this library.
    let spec = &unsafe { DeviceContext::of(context) }.machine.spec;
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
    // SAFETY: the caller guarantees that `attributes` is valid for `bytes`.
    unsafe { answer(&ours, attributes, bytes) }
}

/// Writes as much of `ours` as fits in `bytes`.
///
/// # Safety
/// `place` must be valid for writes of `bytes`.
unsafe fn answer<T>(ours: &T, place: *mut T, bytes: u32) -> c_int {
    let bytes = (bytes as usize).min(size_of::<T>());
    // SAFETY: `bytes` exceeds neither the type nor, by the caller's guarantee, `place`.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *ours).cast::<u8>(), place.cast::<u8>(), bytes) };
    0
}

/// Writes the number of an address handle.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_ah(handle: *mut ibv_ah, attributes: *mut efadv_ah_attr, bytes: u32) -> c_int {
    // SAFETY: the caller passes an address handle of this library.
    let ahn = unsafe { (*handle.cast::<AddressHandle>()).number };
    let ours = efadv_ah_attr { comp_mask: 0, ahn, reserved: [0; 6] };
    // SAFETY: the caller guarantees that `attributes` is valid for `bytes`.
    unsafe { answer(&ours, attributes, bytes) }
}

/// Writes the interconnects that a registration uses: none are known.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_mr(_: *mut ibv_mr, attributes: *mut efadv_mr_attr, bytes: u32) -> c_int {
    // SAFETY: the caller guarantees that `attributes` is valid for `bytes`; the type has only numbers.
    unsafe { answer(&std::mem::zeroed(), attributes, bytes) }
}

/// Creates an EFA completion queue. Rejects device memory (dma-buf), because a CPU writes the entries.
///
/// # Safety
/// See [`crate::ibv_get_device_list`]. `efa` must be null or valid for `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    bytes: u32,
) -> *mut ibv_cq_ex {
    if !efa.is_null() {
        // SAFETY: `efa` is valid, and every version of the structure has the first member.
        if unsafe { (*efa).comp_mask } != 0 {
            return refuse(libc::EINVAL);
        }
        // SAFETY: `efa` is valid for `bytes`.
        let has_flags = bytes as usize >= std::mem::offset_of!(efadv_cq_init_attr, ext_mem_dmabuf);
        // SAFETY: `bytes` covers the flags.
        if has_flags && u32::try_from(unsafe { (*efa).flags }) == Ok(EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF) {
            eprintln!(
                "soft_efa: a completion queue in a dma-buf: software NICs write completions into this process's \
                 memory, which a GPU can map (efadv_query_cq)"
            );
            return refuse(libc::EOPNOTSUPP);
        }
    }
    // SAFETY: the caller passes a context of this library and valid attributes.
    unsafe { create_cq_ex(context, attributes) }
}

/// Returns the EFA interface of a queue pair.
///
/// # Safety
/// `pair` must have been returned by [`crate::efadv_create_qp_ex`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_qp_from_ibv_qp_ex(pair: *mut ibv_qp_ex) -> *mut efadv_qp {
    // SAFETY: the caller guarantees that the pair is valid.
    unsafe { (&raw const SoftQueuePair::of(pair.cast()).efa).cast_mut() }
}

/// Defines functions that EFA devices do not support: each returns that error.
macro_rules! unsupported {
    ($($name:ident -> $answer:ty = $value:expr;)*) => {$(
        #[doc = "Not supported by software NICs."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> $answer {
            $value
        }
    )*};
}
unsupported! {
    ibv_create_qp -> *mut ibv_qp = refuse(libc::EOPNOTSUPP);
    ibv_create_srq -> *mut c_void = refuse(libc::EOPNOTSUPP);
    ibv_destroy_srq -> c_int = libc::EOPNOTSUPP;
    ibv_attach_mcast -> c_int = libc::EOPNOTSUPP;
    ibv_detach_mcast -> c_int = libc::EOPNOTSUPP;
    ibv_query_ece -> c_int = libc::EOPNOTSUPP;
    ibv_set_ece -> c_int = libc::EOPNOTSUPP;
}

/// Returns the delay in nanoseconds that this machine has caused, compared with a real device. The result is the
/// maximum over all devices.
#[unsafe(no_mangle)]
pub extern "C" fn soft_efa_behind() -> u64 {
    let late = |machine: &SoftMachine| machine.late.iter().map(|late| late.nanoseconds()).max();
    SoftMachine::get().ok().and_then(late).unwrap_or(0)
}

/// Sets whether subsequent reads and writes copy their bytes. Otherwise, they take the same time, but no bytes arrive.
/// Used to time devices that are faster than this machine's memory.
#[unsafe(no_mangle)]
pub extern "C" fn soft_efa_move_bytes(moves: bool) {
    if let Ok(machine) = SoftMachine::get() {
        machine.moves.store(moves, Ordering::Relaxed);
    }
}
