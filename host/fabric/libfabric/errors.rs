//! Errors of libfabric calls, with the provider's text and a likely cause.

use std::ffi::{CStr, c_int};

use libfabric_sys as sys;
use nix::sys::resource::{Resource, getrlimit};

use crate::FabricError;

/// What was being done: together with the code it tells the likely cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Asking what there is, or opening what was found.
    Opening,
    /// Registering host memory.
    RegisteringHost,
    /// Registering memory of a CUDA device.
    RegisteringCuda,
    /// Reaching a peer: inserting its address, posting to it, completing what was posted.
    Transferring,
}

/// The error of one call. `code` may have either sign.
#[cold]
pub(crate) fn error(rail: &str, doing: Doing, operation: impl Into<String>, code: i64) -> FabricError {
    let code = i32::try_from(code.unsigned_abs()).unwrap_or(i32::MAX);
    refused(rail, doing, operation, code, text(code))
}

/// An error with words of our own, or the provider's words for one completion.
#[cold]
pub(crate) fn refused(
    rail: &str,
    doing: Doing,
    operation: impl Into<String>,
    code: c_int,
    text: impl Into<String>,
) -> FabricError {
    let text = text.into();
    // The code alone (FI_ENOTCONN) is also that of a peer that has gone; only the provider's words tell.
    let hint = match text.contains(UNKNOWN_PEER) {
        true => "the peer must have this side's address in its address vector before it is written to (fi_av_insert)"
            .to_owned(),
        false => hint(doing, code, locked_memory_limit()),
    };
    FabricError { rail: rail.to_owned(), operation: operation.into(), code, text, hint }
}

/// Of EFA's words for status 14.
const UNKNOWN_PEER: &str = "No valid address handle at remote side";

/// FI_ETRUNC.
const TRUNCATED: c_int = 265;

/// What can be done about a libfabric that is not there.
const REMEDY: &str = "get it by `apt-get install libfabric1` (Debian, Ubuntu) or AWS's EFA installer, or name its file by \
                      GINLAB_LIBFABRIC=path; without it there are the rails of `ginlab proxy -p null` and, modelled, `-p model:p5`";

/// libfabric could not be loaded.
#[cold]
pub(crate) fn missing(why: &sys::NotFound) -> FabricError {
    FabricError {
        rail: "libfabric".to_owned(),
        operation: "loading libfabric".to_owned(),
        code: FabricError::NO_LIBRARY,
        text: why.to_string(),
        hint: REMEDY.to_owned(),
    }
}

/// libfabric's text for a positive error number.
pub(crate) fn text(code: c_int) -> String {
    // SAFETY: fi_strerror takes any number and returns a string that is never freed, or null.
    let text = sys::library().map_or(std::ptr::null(), |library| unsafe { (library.fi_strerror)(code) });
    if text.is_null() {
        return format!("error {code}");
    }
    // SAFETY: not null, and a C string by fi_strerror's contract.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The soft limit of locked memory in bytes; `None` when it is unlimited or cannot be read.
fn locked_memory_limit() -> Option<u64> {
    getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(soft, _)| soft).filter(|soft| *soft != nix::libc::RLIM_INFINITY)
}

/// The likely cause and what to try. Pure, so that the mapping can be tested.
fn hint(doing: Doing, code: c_int, locked_memory: Option<u64>) -> String {
    /// What EFA reports in its own number range when pinning fails for want of locked memory.
    const EFA_MEMLOCK: c_int = 4112;
    match (doing, code) {
        (Doing::RegisteringHost | Doing::RegisteringCuda | Doing::Opening, sys::FI_ENOMEM | EFA_MEMLOCK)
        | (Doing::RegisteringHost, sys::FI_EPERM) => {
            let now = match locked_memory {
                Some(bytes) => format!("`ulimit -l` is {} KiB here", bytes / 1024),
                None => "`ulimit -l` is unlimited here, so look at the container's memory limit".to_owned(),
            };
            format!(
                "registered memory must be locked and {now}; raise it (`ulimit -l unlimited`, in a container \
                 `--ulimit memlock=-1` and IPC_LOCK)"
            )
        }
        (Doing::RegisteringCuda, _) => {
            "this libfabric or this provider does not take CUDA memory (built without CUDA, no \
             dma-buf or peer-memory module, no CUDA context on this thread): stage through pinned host memory"
                .to_owned()
        }
        (Doing::Opening, sys::FI_ENODATA | sys::FI_ENOSYS) => {
            let filter =
                std::env::var("FI_PROVIDER").map(|value| format!("; FI_PROVIDER={value} is set and hides others"));
            format!(
                "the provider must offer reliable datagrams (FI_EP_RDM) with remote reads and writes (FI_RMA), the asked \
                 completion level (delivery unless told otherwise) and, for messages, their order (FI_ORDER_SAS, which efa-direct \
                 has not){}",
                filter.unwrap_or_default()
            )
        }
        (Doing::Opening, sys::FI_EMFILE) => "too many open files: raise `ulimit -n`".to_owned(),
        (Doing::Opening, sys::FI_ENOSPC) => "shared memory is full: look at the size of /dev/shm".to_owned(),
        (
            Doing::Transferring,
            sys::FI_ECONNREFUSED
            | sys::FI_ECONNRESET
            | sys::FI_ECONNABORTED
            | sys::FI_EHOSTUNREACH
            | sys::FI_ENETUNREACH
            | sys::FI_ENOTCONN
            | sys::FI_ETIMEDOUT
            | sys::FI_ESHUTDOWN
            | sys::FI_ECANCELED
            | sys::FI_EIO,
        ) => {
            "the peer does not answer: has its process ended, are both on the same subnet, does the security group (or \
              firewall) allow itself in both directions?"
                .to_owned()
        }
        (Doing::Transferring, sys::FI_EACCES | sys::FI_EKEYREJECTED | sys::FI_EFAULT) => {
            "the peer refused the key or the address range: has it dropped the region?".to_owned()
        }
        (Doing::Transferring, TRUNCATED) => {
            "a message is longer than the room for it: it is a stranger's, who knows this rail's address and is no part of this job, or \
             both sides do not agree"
                .to_owned()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_registration_names_the_locked_memory_limit() {
        let hint = hint(Doing::RegisteringHost, sys::FI_ENOMEM, Some(8192 * 1024));
        assert!(hint.contains("`ulimit -l` is 8192 KiB"), "{hint}");
        assert!(super::hint(Doing::RegisteringHost, sys::FI_ENOMEM, None).contains("unlimited here"));
        assert!(super::hint(Doing::RegisteringHost, 4112, Some(0)).contains("memlock=-1"));
    }

    #[test]
    fn cuda_peers_and_providers_have_hints_of_their_own() {
        assert!(hint(Doing::RegisteringCuda, sys::FI_ENOSYS, None).contains("stage through pinned"));
        assert!(hint(Doing::Transferring, sys::FI_ECONNREFUSED, None).contains("security group"));
        assert!(hint(Doing::Transferring, sys::FI_EACCES, None).contains("dropped the region"));
        assert!(hint(Doing::Opening, sys::FI_ENODATA, None).contains("FI_RMA"));
        assert!(hint(Doing::Transferring, TRUNCATED, None).contains("a stranger's"));
        assert_eq!(hint(Doing::Transferring, sys::FI_EINVAL, None), "");
        let words = "Transport endpoint is not connected: No valid address handle at remote side (required for RDMA operations) [14]";
        let unknown = refused("efa", Doing::Transferring, "fi_write of 8 B to peer 0", sys::FI_ENOTCONN, words);
        assert!(unknown.hint.contains("address vector") && !unknown.hint.contains("security group"), "{unknown}");
    }

    #[test]
    fn the_error_carries_the_positive_code_and_libfabrics_text() {
        let error = error("tcp:lo", Doing::Transferring, "fi_write of 8 B to peer 0", i64::from(-sys::FI_ECONNREFUSED));
        assert_eq!((error.code, error.text.as_str()), (sys::FI_ECONNREFUSED, "Connection refused"));
        let line = error.to_string();
        assert!(
            line.starts_with("rail tcp:lo: fi_write of 8 B to peer 0 failed: Connection refused (111); "),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1);
    }
}
