//! What is made of an open card.

use crate::abi::*;
use crate::context::{self, refuse};
use crate::{completions, pair};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// A protection domain.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: one of ours.
    unsafe { context::alloc_pd(context) }
}

/// Frees it.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: one of ours.
    unsafe { context::dealloc_pd(domain) };
    0
}

/// Registers memory.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: one of ours, and C's memory.
    unsafe { context::register(domain, address, length, access as c_uint) }
}

/// Registers memory under its own address.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    if iova != address.expose_provenance() as u64 {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: one of ours, and C's memory.
    unsafe { context::register(domain, address, length, access) }
}

/// Memory of a device: there is none that a process could reach.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut ibv_mr {
    refuse(libc::EOPNOTSUPP)
}

/// Takes a registration back.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(registration: *mut ibv_mr) -> c_int {
    // SAFETY: one of ours.
    unsafe { context::deregister(registration) }
}

/// A handle of an address.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(domain: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: one of ours, and C's.
    unsafe { context::create_ah(domain, attributes) }
}

/// Destroys it.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    // SAFETY: one of ours.
    unsafe { context::destroy_ah(handle) };
    0
}

/// Destroys a completion queue.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: one of ours.
    unsafe { completions::destroy(queue) }
}

/// Changes a queue pair.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: one of ours, and C's.
    unsafe { pair::modify(pair, attributes, mask) }
}

/// Destroys a queue pair.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: one of ours.
    unsafe { pair::destroy(pair) };
    0
}

/// A queue pair's other face.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(pair: *mut ibv_qp) -> *mut ibv_qp_ex {
    pair.cast()
}

/// Which bytes of a transfer arrive in order: nothing is promised.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: c_uint, _: u32) -> c_int {
    0
}

/// Whether a program may fork: it may, as with any recent kernel.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_uint {
    IBV_FORK_UNNEEDED
}

/// Prepares for forks: there is nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// A status in words.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    match status {
        IBV_WC_SUCCESS => c"success",
        IBV_WC_LOC_LEN_ERR => c"local length error",
        IBV_WC_LOC_QP_OP_ERR => c"local queue pair operation error",
        IBV_WC_LOC_PROT_ERR => c"local protection error",
        IBV_WC_WR_FLUSH_ERR => c"flushed",
        IBV_WC_BAD_RESP_ERR => c"bad response",
        IBV_WC_REM_INV_REQ_ERR => c"remote invalid request",
        IBV_WC_REM_ACCESS_ERR => c"remote access error",
        IBV_WC_REM_OP_ERR => c"remote operation error",
        IBV_WC_RNR_RETRY_EXC_ERR => c"receiver not ready",
        IBV_WC_REM_INV_RD_REQ_ERR => c"no such queue pair",
        IBV_WC_REM_ABORT_ERR => c"remote abort",
        IBV_WC_RESP_TIMEOUT_ERR => c"response timeout",
        _ => c"unknown",
    }
    .as_ptr()
}
