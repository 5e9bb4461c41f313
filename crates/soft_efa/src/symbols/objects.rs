//! Functions of an open device's objects.

use crate::abi::*;
use crate::context::refuse;
use std::ffi::{c_char, c_int, c_uint};

/// Rejects the registration of device memory, which these processes cannot access.
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

/// Returns the extended interface of a queue pair.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(pair: *mut ibv_qp) -> *mut ibv_qp_ex {
    pair.cast()
}

/// Returns which parts of a transfer arrive in order: none are guaranteed.
///
/// # Safety
/// See [`crate::ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: c_uint, _: u32) -> c_int {
    0
}

/// Returns that a program may fork without preparation, as with any recent kernel.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_uint {
    IBV_FORK_UNNEEDED
}

/// Prepares for forks. Has no effect, because no preparation is needed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// Returns the text of a status.
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
