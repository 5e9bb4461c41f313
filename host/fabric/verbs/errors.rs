//! Errors of verbs' functions, and of completions by EFA's own names.

use crate::FabricError;
use efa_queue::Status;
use std::io;

/// What is likely wrong with these statuses, and what to try.
fn hint(status: Status) -> &'static str {
    match status {
        Status::UnknownPeer => "the peer must have this side's address before it is written to",
        Status::RemoteAddress => "the peer refused the key or the address range: has it dropped the region?",
        Status::RemoteQueuePair => "the peer's process has ended, or closed its rail",
        Status::Unreachable | Status::Unresponsive => {
            "has the peer's process ended, are both on the same subnet, does the security group allow itself in both directions?"
        }
        Status::QueuePair => "the queue was misused; nothing more is done by this queue pair",
        _ => "",
    }
}

/// A request that failed.
#[cold]
pub(super) fn completed(rail: &str, operation: String, number: u8) -> FabricError {
    let (text, hint) = match Status::of(number) {
        Some(status) => (format!("{}: {}", status.name(), status.text()), hint(status)),
        None => ("a status without a name".to_owned(), ""),
    };
    FabricError { rail: rail.to_owned(), operation, code: number.into(), text, hint: hint.to_owned() }
}

/// A call that failed; errno says why where no code is given.
#[cold]
pub(super) fn call(rail: &str, operation: impl Into<String>, code: Option<i32>) -> FabricError {
    let error = code.map_or_else(io::Error::last_os_error, |code| io::Error::from_raw_os_error(code.abs()));
    let code = error.raw_os_error().unwrap_or_default();
    let hint = match code {
        nix::libc::ENOMEM => "registered memory must be locked: look at `ulimit -l`",
        nix::libc::EFAULT => "this is no memory that the card can pin",
        _ => "",
    };
    let text = words(&error);
    FabricError { rail: rail.to_owned(), operation: operation.into(), code, text, hint: hint.to_owned() }
}

/// An error of the system without its number, which stands behind it anyway.
pub(super) fn words(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

/// libibverbs or libefa is not there, or not new enough.
#[cold]
pub(super) fn missing(why: &str) -> FabricError {
    FabricError {
        rail: "efa-verbs".to_owned(),
        operation: "loading libibverbs and libefa".to_owned(),
        code: FabricError::NO_LIBRARY,
        text: why.to_owned(),
        hint: "rdma-core 59 or newer says where a card's queues are (AWS's EFA installer has it); cards in software: -p efa-verbs/soft:p5"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_has_its_hint() {
        for (code, begins) in
            [(nix::libc::ENOMEM, "registered memory"), (nix::libc::EFAULT, "this is no memory"), (nix::libc::EPERM, "")]
        {
            // As the calls return it, of either sign.
            for code in [code, -code] {
                let error = call("rail", "ibv_reg_mr", Some(code));
                assert!(error.code == code.abs() && error.hint.starts_with(begins), "{error:?}");
                assert_eq!(error.hint.is_empty(), begins.is_empty(), "{error:?}");
            }
        }
    }
}
