//! An error completion hangs a waiter.

use crate::museum::port::{Port, PortWrite, RuleResult};

/// Number of puts of PE 0.
const PUTS: u64 = 16;

/// PE 0 waits for the completions of its puts. One of them, chosen by the seed, completes with an error.
pub fn error_completion(port: &Port, fixed: bool) -> RuleResult {
    if port.me() == 1 {
        return Ok(());
    }
    port.break_write(port.seed() % PUTS);
    for put in 0..PUTS {
        port.write(PortWrite { from: put, to: put, words: 1, token: put, ..PortWrite::default() })?;
    }
    let complete = std::cell::Cell::new(0);
    let mut status = None;
    port.until(
        |events| {
            complete.set(complete.get() + events.done.len() as u64);
            if fixed {
                // The error ends the wait, as the status of the operation.
                status = events.failed.into_iter().next().or(status.take());
            }
            // Broken form: an error is not counted as a success, so the put appears to be incomplete.
            Ok(complete.get() == PUTS || status.is_some())
        },
        || format!("PE 0 waits for {PUTS} completions and has {}", complete.get()),
    )?;
    match status {
        Some((put, _)) if put == port.seed() % PUTS => Ok(()),
        other => Err(format!("the error was not reported: {other:?}")),
    }
}
