//! EFA completion status codes, as the hardware reports them.

use crate::abi::*;
use std::ffi::c_uint;

/// Success.
pub const OK: u32 = 0;
/// Flushed: the queue pair is in error or destroyed.
pub const FLUSHED: u32 = 1;
/// The queue pair is in error.
pub const INTERNAL: u32 = 2;
/// The device does not support the operation.
pub const UNSUPPORTED: u32 = 3;
/// The address handle belongs to another protection domain.
pub const INVALID_HANDLE: u32 = 4;
/// A local key does not cover the bytes.
pub const INVALID_LKEY: u32 = 5;
/// The message exceeds the maximum size.
pub const BAD_LENGTH: u32 = 6;
/// A remote key does not cover the range for this use.
pub const REMOTE_BAD_ADDRESS: u32 = 7;
/// The peer has no queue pair of this number.
pub const REMOTE_BAD_NUMBER: u32 = 9;
/// The peer has no receive posted.
pub const REMOTE_NOT_READY: u32 = 10;
/// The peer's receive is too short.
pub const REMOTE_BAD_LENGTH: u32 = 11;
/// Another error at the peer.
pub const REMOTE_BAD_STATUS: u32 = 12;
/// A peer that used to respond no longer does.
pub const UNRESPONSIVE: u32 = 13;
/// The peer's device has no address handle of this device, which reads and writes require.
pub const UNKNOWN_PEER: u32 = 14;
/// The peer has never responded.
pub const UNREACHABLE: u32 = 15;
/// The peer's device does not support the operation.
pub const FEATURE_MISMATCH: u32 = 18;

/// Returns the C status code of a status.
pub fn verbs_status(status: u32) -> c_uint {
    match status {
        OK => IBV_WC_SUCCESS,
        FLUSHED => IBV_WC_WR_FLUSH_ERR,
        INTERNAL | UNSUPPORTED | INVALID_HANDLE => IBV_WC_LOC_QP_OP_ERR,
        INVALID_LKEY => IBV_WC_LOC_PROT_ERR,
        BAD_LENGTH => IBV_WC_LOC_LEN_ERR,
        REMOTE_BAD_ADDRESS => IBV_WC_REM_ACCESS_ERR,
        8 => IBV_WC_REM_ABORT_ERR,
        REMOTE_BAD_NUMBER => IBV_WC_REM_INV_RD_REQ_ERR,
        REMOTE_NOT_READY => IBV_WC_RNR_RETRY_EXC_ERR,
        REMOTE_BAD_LENGTH | FEATURE_MISMATCH => IBV_WC_REM_INV_REQ_ERR,
        REMOTE_BAD_STATUS => IBV_WC_BAD_RESP_ERR,
        UNRESPONSIVE | UNREACHABLE => IBV_WC_RESP_TIMEOUT_ERR,
        UNKNOWN_PEER => IBV_WC_REM_OP_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ibv_wc_status_str;
    use std::ffi::CStr;

    /// Checks the text that users see for each status of the hardware.
    #[test]
    fn every_status_has_its_words() {
        for (status, words) in [
            (OK, "success"),
            (FLUSHED, "flushed"),
            (INTERNAL, "local queue pair operation error"),
            (UNSUPPORTED, "local queue pair operation error"),
            (INVALID_HANDLE, "local queue pair operation error"),
            (INVALID_LKEY, "local protection error"),
            (BAD_LENGTH, "local length error"),
            (REMOTE_BAD_ADDRESS, "remote access error"),
            (8, "remote abort"),
            (REMOTE_BAD_NUMBER, "no such queue pair"),
            (REMOTE_NOT_READY, "receiver not ready"),
            (REMOTE_BAD_LENGTH, "remote invalid request"),
            (FEATURE_MISMATCH, "remote invalid request"),
            (REMOTE_BAD_STATUS, "bad response"),
            (UNRESPONSIVE, "response timeout"),
            (UNREACHABLE, "response timeout"),
            (UNKNOWN_PEER, "remote operation error"),
            (99, "unknown"),
        ] {
            // SAFETY: the function returns a static string.
            let said = unsafe { CStr::from_ptr(ibv_wc_status_str(verbs_status(status))) };
            assert_eq!(said.to_str(), Ok(words), "{status}");
        }
    }
}
