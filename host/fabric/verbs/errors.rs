//! Errors of verbs functions, and of completions by EFA's own names.

use crate::FabricError;
use efa_queue::CompletionStatus;
use std::io;

/// Returns the likely cause of a status and a remedy.
fn hint(status: CompletionStatus) -> &'static str {
    match status {
        CompletionStatus::UnknownPeer => "the peer must have this side's address before it is written to",
        CompletionStatus::RemoteAddress => "the peer refused the key or the address range: has it closed the region?",
        CompletionStatus::RemoteQueuePair => "the peer's process exited, or closed its rail",
        CompletionStatus::Unreachable | CompletionStatus::Unresponsive => {
            "has the peer's process exited, are both on the same subnet, does the security group allow itself in both \
             directions?"
        }
        CompletionStatus::QueuePair => "the queue was misused; this queue pair does nothing more",
        _ => "",
    }
}

/// Creates the error of a failed request.
#[cold]
pub(super) fn completed(rail: &str, operation: String, number: u8) -> FabricError {
    let (text, hint) = match CompletionStatus::of(number) {
        Some(status) => (format!("{}: {}", status.name(), status.text()), hint(status).to_owned()),
        None => ("an unknown status".to_owned(), String::new()),
    };
    let (text, hint) = crate::soft::first_cause().unwrap_or((text, hint));
    FabricError { rail: rail.to_owned(), operation, code: number.into(), text, hint }
}

/// Creates the error of a failed call. Without `code`, uses errno.
#[cold]
pub(super) fn call(rail: &str, operation: impl Into<String>, code: Option<i32>) -> FabricError {
    let error = code.map_or_else(io::Error::last_os_error, |code| io::Error::from_raw_os_error(code.abs()));
    let code = error.raw_os_error().unwrap_or_default();
    let hint = match code {
        nix::libc::ENOMEM => "registered memory must be locked; check `ulimit -l`",
        nix::libc::EFAULT => "the EFA device cannot pin this memory",
        _ => "",
    };
    let (text, hint) = crate::soft::first_cause().unwrap_or_else(|| (words(&error), hint.to_owned()));
    FabricError { rail: rail.to_owned(), operation: operation.into(), code, text, hint }
}

/// Returns the system's text of an error without the number, which the message adds separately.
pub(super) fn words(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

/// Creates the error for a missing or outdated libibverbs or libefa.
#[cold]
pub(super) fn missing(why: &str) -> FabricError {
    FabricError {
        rail: "efa-verbs".to_owned(),
        operation: "loading libibverbs and libefa".to_owned(),
        code: FabricError::NO_LIBRARY,
        text: why.to_owned(),
        hint: "rdma-core 59 or newer is needed for access to an EFA device's queues (AWS's EFA installer has it); \
               software NICs: -p efa-verbs/soft:p5"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_have_hints() {
        for (code, begins) in [
            (nix::libc::ENOMEM, "registered memory"),
            (nix::libc::EFAULT, "the EFA device cannot pin"),
            (nix::libc::EPERM, ""),
        ] {
            // Calls may return the code with either sign.
            for code in [code, -code] {
                let error = call("rail", "ibv_reg_mr", Some(code));
                assert!(error.code == code.abs() && error.hint.starts_with(begins), "{error:?}");
                assert_eq!(error.hint.is_empty(), begins.is_empty(), "{error:?}");
            }
        }
    }
}
