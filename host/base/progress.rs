//! Progress of this process: one counter for all work that completes slowly enough to be counted.
//!
//! A rank that waits for another one must not end a run that makes progress. Therefore, long-running parts of a rank
//! increment this counter when they have completed something: a kernel whose memory changes, rails that complete
//! transfers, a pass over a payload. Ranks notify each other at most once a second that their counters have changed
//! (`ginlab-bootstrap`). A thread that runs without completing anything does not increment it.

use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Records that some work has completed. Not called per transfer: callers record once per check of a clock, or once per
/// few milliseconds of work.
pub fn record() {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Returns the counter, which changes with each [`record`].
pub fn counter() -> &'static AtomicU64 {
    &COUNT
}
