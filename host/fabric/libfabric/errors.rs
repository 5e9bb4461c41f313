//! Errors of libfabric calls, with the provider's text and a likely cause.

use std::ffi::{CStr, c_int};

use libfabric_sys as sys;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use crate::{FabricError, filter};

/// Kind of operation that failed. Together with the code it determines the likely cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedOperation {
    /// Querying libfabric, or opening a domain that was found.
    Opening,
    /// Registering host memory.
    RegisteringHost,
    /// Registering memory of a CUDA device.
    RegisteringCuda,
    /// Communicating with a peer: inserting its address, posting to it, and completing posted operations.
    Transferring,
}

/// Creates the error of one call. `code` may have either sign.
#[cold]
pub(crate) fn error(rail: &str, doing: FailedOperation, operation: impl Into<String>, code: i64) -> FabricError {
    let code = i32::try_from(code.unsigned_abs()).unwrap_or(i32::MAX);
    refused(rail, doing, operation, code, text(code))
}

/// Creates an error with the given text, which is ginlab's own text or the provider's text for one completion.
#[cold]
pub(crate) fn refused(
    rail: &str,
    doing: FailedOperation,
    operation: impl Into<String>,
    code: c_int,
    text: impl Into<String>,
) -> FabricError {
    let text = text.into();
    if let Some((text, hint)) = crate::soft::first_cause() {
        return FabricError { rail: rail.to_owned(), operation: operation.into(), code, text, hint };
    }
    // The code (FI_ENOTCONN) is also reported for a peer that has exited. Only the provider's text distinguishes the
    // cases.
    let hint = match text.contains(UNKNOWN_PEER) {
        true => {
            "the peer must insert this side's address into its address vector before it is written to (fi_av_insert)"
                .to_owned()
        }
        false => hint(doing, code, locked_memory_limit()),
    };
    FabricError { rail: rail.to_owned(), operation: operation.into(), code, text, hint }
}

/// Part of EFA's text for status 14.
const UNKNOWN_PEER: &str = "No valid address handle at remote side";

/// Value of FI_ETRUNC.
const TRUNCATED: c_int = 265;

/// EROFS.
pub(super) const READ_ONLY: c_int = Errno::EROFS as c_int;

/// Remedy for a missing libfabric.
const REMEDY: &str = "install it by `apt-get install libfabric1` (Debian, Ubuntu) or AWS's EFA installer, or set \
                      GINLAB_LIBFABRIC=path; rails without it: `ginlab proxy -p null` and, modelled, `-p model:p5`";

/// Creates the error for a libfabric that could not be loaded.
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

/// Returns libfabric's text for a positive error number.
pub(crate) fn text(code: c_int) -> String {
    // SAFETY: `fi_strerror` accepts any number and returns a string that is never freed, or null.
    let text = sys::library().map_or(std::ptr::null(), |library| unsafe { (library.fi_strerror)(code) });
    if text.is_null() {
        return format!("error {code}");
    }
    // SAFETY: the pointer is not null, and refers to a C string according to the contract of `fi_strerror`.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Returns the soft limit of locked memory in bytes. `None` if it is unlimited or cannot be read.
fn locked_memory_limit() -> Option<u64> {
    getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(soft, _)| soft).filter(|soft| *soft != nix::libc::RLIM_INFINITY)
}

/// Returns the likely cause and a remedy. A pure function, so that the mapping can be tested.
fn hint(doing: FailedOperation, code: c_int, locked_memory: Option<u64>) -> String {
    /// Error code in EFA's own number range for pinning that fails for lack of locked memory.
    const EFA_MEMLOCK: c_int = 4112;
    match (doing, code) {
        (
            FailedOperation::RegisteringHost | FailedOperation::RegisteringCuda | FailedOperation::Opening,
            sys::FI_ENOMEM | EFA_MEMLOCK,
        )
        | (FailedOperation::RegisteringHost, sys::FI_EPERM) => {
            let now = match locked_memory {
                Some(bytes) => format!("`ulimit -l` is {} KiB", bytes / 1024),
                None => "`ulimit -l` is unlimited, so check the container's memory limit".to_owned(),
            };
            format!(
                "registered memory must be locked and {now}; raise it (`ulimit -l unlimited`, in a container \
                 `--ulimit memlock=-1` and IPC_LOCK)"
            )
        }
        (FailedOperation::Opening, READ_ONLY | sys::FI_EACCES) => {
            "/dev/shm must be a tmpfs that this user can write to (mount -t tmpfs tmpfs /dev/shm)".to_owned()
        }
        (FailedOperation::RegisteringCuda, _) => {
            "this libfabric or provider does not support CUDA memory (built without CUDA, no dma-buf or peer-memory \
             module, no CUDA context on this thread); stage through pinned host memory"
                .to_owned()
        }
        (FailedOperation::Opening, sys::FI_ENODATA | sys::FI_ENOSYS) => {
            let filter = std::env::var(filter::VARIABLE).map(|value| {
                let hides = if value.starts_with('^') { "those after ^" } else { "others" };
                format!("; {}={value} is set and hides {hides}", filter::VARIABLE)
            });
            format!(
                "the provider must offer reliable datagrams (FI_EP_RDM) with remote reads and writes (FI_RMA), the \
                 requested completion level (delivery by default) and, for messages, their order (FI_ORDER_SAS, which \
                 efa-direct lacks){}",
                filter.unwrap_or_default()
            )
        }
        (_, sys::FI_EMFILE) => "too many open files: raise `ulimit -n`".to_owned(),
        (FailedOperation::Opening, sys::FI_ENOSPC) => {
            "remove old files in /dev/shm or enlarge it (mount -o remount,size=8G /dev/shm; docker: --shm-size 8g; \
             pods: an emptyDir of medium Memory at /dev/shm), or use fewer ranks or rails"
                .to_owned()
        }
        (FailedOperation::Transferring, sys::FI_EPERM) => {
            "the system denies this process access to the memory of other processes; in a container add CAP_SYS_PTRACE \
             or a seccomp profile that allows process_vm_readv and process_vm_writev, on a host set \
             kernel.yama.ptrace_scope to 1 or 0"
                .to_owned()
        }
        (
            FailedOperation::Transferring,
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
        ) => "the peer does not answer: has its process exited, are both on the same subnet, does the security group \
              (or firewall) allow itself in both directions?"
            .to_owned(),
        (FailedOperation::Transferring, sys::FI_EACCES | sys::FI_EKEYREJECTED | sys::FI_EFAULT) => {
            "the peer refused the key or the address range: has it closed the region?".to_owned()
        }
        (FailedOperation::Transferring, TRUNCATED) => {
            "the message is longer than the receive buffer: a process outside this job sent to this rail's address, or \
             both sides disagree on the size"
                .to_owned()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_registration_names_locked_memory_limit() {
        let hint = hint(FailedOperation::RegisteringHost, sys::FI_ENOMEM, Some(8192 * 1024));
        assert!(hint.contains("`ulimit -l` is 8192 KiB"), "{hint}");
        assert!(super::hint(FailedOperation::RegisteringHost, sys::FI_ENOMEM, None).contains("unlimited, so check"));
        assert!(super::hint(FailedOperation::RegisteringHost, 4112, Some(0)).contains("memlock=-1"));
    }

    #[test]
    fn cuda_peer_and_provider_errors_have_hints() {
        assert!(hint(FailedOperation::RegisteringCuda, sys::FI_ENOSYS, None).contains("stage through pinned"));
        assert!(hint(FailedOperation::Transferring, sys::FI_ECONNREFUSED, None).contains("security group"));
        assert!(hint(FailedOperation::Transferring, sys::FI_EACCES, None).contains("closed the region"));
        assert!(hint(FailedOperation::Opening, sys::FI_ENODATA, None).contains("FI_RMA"));
        assert!(hint(FailedOperation::Opening, READ_ONLY, None).contains("/dev/shm"));
        for doing in [FailedOperation::Opening, FailedOperation::RegisteringHost, FailedOperation::Transferring] {
            assert!(hint(doing, sys::FI_EMFILE, None).contains("`ulimit -n`"), "{doing:?}");
        }
        assert!(hint(FailedOperation::Transferring, TRUNCATED, None).contains("outside this job"));
        assert_eq!(hint(FailedOperation::Transferring, sys::FI_EINVAL, None), "");
        let words = "Transport endpoint is not connected: No valid address handle at remote side (required for RDMA operations) [14]";
        let unknown =
            refused("efa", FailedOperation::Transferring, "fi_write of 8 B to peer 0", sys::FI_ENOTCONN, words);
        assert!(unknown.hint.contains("address vector") && !unknown.hint.contains("security group"), "{unknown}");
    }

    #[test]
    fn error_has_positive_code_and_libfabric_text() {
        let error = error(
            "tcp:lo",
            FailedOperation::Transferring,
            "fi_write of 8 B to peer 0",
            i64::from(-sys::FI_ECONNREFUSED),
        );
        assert_eq!((error.code, error.text.as_str()), (sys::FI_ECONNREFUSED, "Connection refused"));
        let line = error.to_string();
        assert!(
            line.starts_with("rail tcp:lo: fi_write of 8 B to peer 0 failed: Connection refused (111); "),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1);
    }
}
