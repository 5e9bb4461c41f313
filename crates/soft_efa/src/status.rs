//! EFA's statuses of completions, as its hardware reports them.

use crate::abi::*;
use std::ffi::c_uint;

/// All is well.
pub const OK: u32 = 0;
/// Flushed: its queue pair is in error or gone.
pub const FLUSHED: u32 = 1;
/// The queue pair is in error.
pub const INTERNAL: u32 = 2;
/// The card does not do this.
pub const UNSUPPORTED: u32 = 3;
/// The address handle is of another protection domain.
pub const INVALID_HANDLE: u32 = 4;
/// A local key does not cover the bytes.
pub const INVALID_LKEY: u32 = 5;
/// More bytes than a message takes.
pub const BAD_LENGTH: u32 = 6;
/// A remote key does not cover the range for this use.
pub const REMOTE_BAD_ADDRESS: u32 = 7;
/// There is no queue pair of this number.
pub const REMOTE_BAD_NUMBER: u32 = 9;
/// No receive is posted there.
pub const REMOTE_NOT_READY: u32 = 10;
/// The receive there is too short.
pub const REMOTE_BAD_LENGTH: u32 = 11;
/// Something else went wrong there.
pub const REMOTE_BAD_STATUS: u32 = 12;
/// Whoever answered before does not answer any more.
pub const UNRESPONSIVE: u32 = 13;
/// The card there has no address handle of ours, which it needs for reads and writes.
pub const UNKNOWN_PEER: u32 = 14;
/// Nobody has ever answered.
pub const UNREACHABLE: u32 = 15;
/// The card there lacks what is asked for.
pub const FEATURE_MISMATCH: u32 = 18;

/// How C names a status.
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

    /// What a user reads of each number that a card reports, from the card's number to words.
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
            // SAFETY: it returns a text of the program.
            let said = unsafe { CStr::from_ptr(ibv_wc_status_str(verbs_status(status))) };
            assert_eq!(said.to_str(), Ok(words), "{status}");
        }
    }
}
