//! How engines and flows end: what the NICs hold comes back, or is left to them.

use crossbeam_utils::Backoff;
use std::time::{Duration, Instant};

/// What a turn of [`drain`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing is outstanding any more.
    Empty,
    /// Something has come back.
    Moved,
    /// Nothing has.
    Idle,
}

/// Polls until the providers have given back what they were given, or for as long as there is patience.
pub fn drain(patience: Duration, mut turn: impl FnMut() -> Turn) {
    let deadline = Instant::now() + patience;
    let backoff = Backoff::new();
    loop {
        match turn() {
            Turn::Empty => return,
            Turn::Moved => backoff.reset(),
            // Whoever must answer may need this core.
            Turn::Idle => backoff.snooze(),
        }
        if Instant::now() >= deadline {
            return;
        }
    }
}

/// For what a NIC may still read or write once patience is over: closing a registration would pull its memory from under a
/// transfer. So nothing of it is closed, and no buffer of this process is freed from now on.
pub fn leave_to_nics<T>(held: T) {
    ginlab_cuda::keep_buffers();
    std::mem::forget(held);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_ends_when_nothing_is_left_and_not_before() {
        let mut left = 5;
        drain(Duration::from_secs(60), || {
            left -= i32::from(left > 0);
            [Turn::Empty, Turn::Idle, Turn::Moved][left.min(2) as usize]
        });
        assert_eq!(left, 0);
    }

    #[test]
    fn a_drain_in_vain_ends_by_its_patience() {
        let mut turns = 0;
        drain(Duration::ZERO, || {
            turns += 1;
            Turn::Idle
        });
        assert_eq!(turns, 1);
        let started = Instant::now();
        drain(Duration::from_millis(3), || Turn::Idle);
        assert!(started.elapsed() >= Duration::from_millis(3));
    }
}
