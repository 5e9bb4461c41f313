//! Shutdown of engines and flows: waits until the NICs have completed all transfers, or leaks the memory that they may
//! still use.

use crossbeam_utils::Backoff;
use ginlab_base::signals;
use std::time::{Duration, Instant};

/// Result of one poll while draining ([`drain`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainStep {
    /// No transfer is outstanding.
    Empty,
    /// A transfer completed.
    Moved,
    /// No transfer completed.
    Idle,
}

/// Maximum time that [`drain`] continues after an interrupt (Ctrl-C, SIGTERM). Peers may have exited, and then
/// transfers never complete.
pub(crate) const INTERRUPTED: Duration = Duration::from_millis(200);

/// Polls until the providers have completed all transfers, for at most `patience`, or for 200 ms after the run was
/// interrupted.
pub fn drain(patience: Duration, turn: impl FnMut() -> DrainStep) {
    drain_until(patience, signals::interrupted, turn);
}

fn drain_until(patience: Duration, interrupted: impl Fn() -> bool, mut turn: impl FnMut() -> DrainStep) {
    let mut deadline = Instant::now() + patience;
    let mut shortened = false;
    let backoff = Backoff::new();
    loop {
        match turn() {
            DrainStep::Empty => return,
            DrainStep::Moved => backoff.reset(),
            // Yields, because the peer that completes the transfers may need this core.
            DrainStep::Idle => backoff.snooze(),
        }
        let now = Instant::now();
        if !shortened && interrupted() {
            shortened = true;
            deadline = deadline.min(now + INTERRUPTED);
        }
        if now >= deadline {
            return;
        }
    }
}

/// Forgets `held`, which a NIC may still read or write after a drain has timed out. Closing a registration would unmap
/// memory during a transfer, so no part of `held` is closed. Afterwards no buffer of this process is freed.
pub fn leak_to_nics<T>(held: T) {
    ginlab_cuda::keep_buffers();
    std::mem::forget(held);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn drain_returns_when_nothing_is_outstanding() {
        let mut left = 5;
        drain(Duration::from_secs(60), || {
            left -= i32::from(left > 0);
            [DrainStep::Empty, DrainStep::Idle, DrainStep::Moved][left.min(2) as usize]
        });
        assert_eq!(left, 0);
    }

    #[test]
    fn drain_times_out() {
        let mut turns = 0;
        drain(Duration::ZERO, || {
            turns += 1;
            DrainStep::Idle
        });
        assert_eq!(turns, 1);
        let started = Instant::now();
        drain(Duration::from_millis(3), || DrainStep::Idle);
        assert!(started.elapsed() >= Duration::from_millis(3));
    }

    #[test]
    fn interrupt_shortens_drain_that_has_started() {
        let turns = Cell::new(0u32);
        // One hour, unless the interrupt in the third poll shortens it.
        drain_until(
            Duration::from_secs(3600),
            || turns.get() >= 3,
            || {
                turns.set(turns.get() + 1);
                DrainStep::Idle
            },
        );
        assert!(turns.get() >= 3);
    }
}
