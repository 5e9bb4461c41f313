//! EFA's own functions, and what no card of EFA's does.

use crate::abi::*;
use crate::context::{self, Context, refuse};
use crate::machine::Machine;
use crate::{completions, pair};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

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
    let ours = unsafe { Context::of(context) }.device_attributes();
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
    let ours = efadv_ah_attr { comp_mask: 0, ahn: unsafe { context::ah_number(handle) }, reserved: [0; 6] };
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

/// A completion queue of EFA's.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    _: u32,
) -> *mut ibv_cq_ex {
    // SAFETY: null or C's.
    if unsafe { efa.as_ref() }.is_some_and(|efa| efa.comp_mask != 0) {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: one of ours, and C's.
    unsafe { completions::create(context, attributes) }
}

/// EFA's face of a completion queue.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(queue: *mut ibv_cq_ex) -> *mut efadv_cq {
    // SAFETY: one of ours.
    unsafe { completions::efa_part(queue) }
}

/// A queue pair of EFA's.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    bytes: u32,
) -> *mut ibv_qp {
    // SAFETY: one of ours, and C's.
    unsafe { pair::create(context, attributes, efa, bytes) }
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

/// Whether reads and writes move their bytes from now on; otherwise they take their time, and nothing arrives. For figures of
/// cards that are faster than this machine's memory.
#[unsafe(no_mangle)]
pub extern "C" fn soft_efa_move_bytes(moves: bool) {
    if let Ok(machine) = Machine::get() {
        machine.moves.store(moves, Ordering::Relaxed);
    }
}
