//! How an object is closed whose provider may wait for its card for ever, and what was left open for that.

use std::sync::OnceLock;
use std::time::Duration;

use libfabric_sys as sys;
use libfabric_sys::ops;

/// How long an endpoint may take to close. libfabric's efa waits for the completions of all that it has posted, without an end
/// of its own, and a card that has died reports none.
const PATIENCE: Duration = Duration::from_secs(5);

/// The first object that was left open.
static LEFT_OPEN: OnceLock<String> = OnceLock::new();

/// What could not be closed, for the end of a run: the provider waits for a card for ever.
#[must_use]
pub fn left_open() -> Option<String> {
    LEFT_OPEN.get().cloned()
}

/// An open object on its way to another thread.
struct Closing(*mut sys::fid);

// SAFETY: libfabric's objects are not bound to a thread.
unsafe impl Send for Closing {}

/// Closes an object on a thread of its own, and notes it as left open when that has not returned in time.
///
/// # Safety
/// The object is open, and nobody else's.
pub(super) unsafe fn close_in_time(object: *mut sys::fid) {
    let (closing, (done, closed)) = (Closing(object), std::sync::mpsc::channel());
    let close = move || {
        let Closing(object) = { closing };
        // SAFETY: open, and this thread's alone from here on.
        let _ = unsafe { ops::fi_close(object) };
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("fi_close".to_owned()).spawn(close).is_err() {
        // SAFETY: open; the thread that was to close it never was.
        let _ = unsafe { ops::fi_close(object) };
    } else if closed.recv_timeout(PATIENCE).is_err() {
        let _ = LEFT_OPEN.set(format!(
            "an endpoint was left open: fi_close has not returned within {} s, since the provider waits for completions that its card \
             has not reported",
            PATIENCE.as_secs()
        ));
    }
}
