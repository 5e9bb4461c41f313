//! Closing of objects whose provider may wait for its NIC indefinitely, and a record of objects that were left open.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ginlab_base::signals;
use libfabric_sys as sys;
use libfabric_sys::ops;

/// Maximum time to close an endpoint. libfabric's efa provider waits for the completions of all posted operations
/// without a limit, and a dead NIC reports none.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum time to close an endpoint once the run was interrupted.
const INTERRUPTED: Duration = Duration::from_millis(200);
/// Interval at which an interrupt is checked for.
const STEP: Duration = Duration::from_millis(50);

/// Description of the first object that was left open.
static LEFT_OPEN: OnceLock<String> = OnceLock::new();

/// Returns a description of an object that could not be closed because the provider waits for a NIC, for the end of a
/// run.
#[must_use]
pub fn left_open() -> Option<String> {
    LEFT_OPEN.get().cloned()
}

/// An open object to be moved to another thread.
struct Closing(*mut sys::fid);

// SAFETY: libfabric's objects are not bound to a thread.
unsafe impl Send for Closing {}

/// Closes an object on a separate thread, and records it as left open if that does not return in time.
///
/// # Safety
/// The object must be open, and no other code may use it.
pub(super) unsafe fn close_in_time(object: *mut sys::fid) {
    let (closing, (done, closed)) = (Closing(object), channel());
    let close = move || {
        let Closing(object) = { closing };
        // SAFETY: the object is open, and only this thread uses it from here on.
        let _ = unsafe { ops::fi_close(object) };
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("fi_close".to_owned()).spawn(close).is_err() {
        // SAFETY: the object is open, and the thread that was to close it was not started.
        let _ = unsafe { ops::fi_close(object) };
    } else if let Err(waited) = wait_closed(&closed, signals::interrupted) {
        let seconds = (waited.as_secs_f64() * 10.0).round() / 10.0;
        let _ = LEFT_OPEN.set(format!(
            "an endpoint was not closed: fi_close did not return within {seconds} s, because the provider waits for \
             completions that its NIC has not reported"
        ));
    }
}

/// Waits until the closing thread has finished.
///
/// # Errors
/// Returns the time waited, if the thread has not finished in time.
fn wait_closed(closed: &Receiver<()>, interrupted: impl Fn() -> bool) -> Result<(), Duration> {
    let started = Instant::now();
    loop {
        let limit = if interrupted() { INTERRUPTED } else { PATIENCE };
        let waited = started.elapsed();
        if waited >= limit {
            return Err(waited);
        }
        // A closing thread that has panicked has also finished.
        if closed.recv_timeout(STEP.min(limit - waited)) != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupt_shortens_wait_for_close() {
        let (done, closed) = channel();
        let steps = std::cell::Cell::new(0);
        let interrupted = || {
            steps.set(steps.get() + 1);
            true
        };
        assert!(wait_closed(&closed, interrupted).is_err(), "nothing was closed");
        assert!(steps.get() < 10, "{}", steps.get());
        done.send(()).expect("the receiver exists");
        assert_eq!(wait_closed(&closed, || true), Ok(()));
    }
}
