//! Window of a peer: the number of writes by which the peer may be ahead of the server's count.
//!
//! A NIC puts the immediate of a write into the server's completion queue whether or not the server polls, and
//! acknowledges the write. A limit on the peer's writes in flight therefore does not bound the queue, and a queue that
//! overflows loses the immediates of all peers. For this reason a peer posts a write only if it is less than a window
//! ahead of the count that the server has *reported*, which happens every half window. The queue of each rail has space
//! for the windows of all slots, regardless of which rail carries the writes. Each tag belongs to one peer, so that no
//! other credits are needed.

use crate::error::Failure;
use ginlab::bootstrap::session::{Ended, bounded};
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// Maximum window of a peer. A server with few peers reports often enough.
const LONGEST: u64 = 1024;

/// Returns the window of each of `peers` peers, for rails whose queues have space for `room` immediates.
pub fn share_out(room: usize, peers: u32) -> Result<u64, Failure> {
    match (room as u64 / u64::from(peers.max(1))).min(LONGEST) {
        0 => Err(Failure::Usage(format!(
            "--peers {peers}: too many for a rail's completion queue, which holds {room} immediates"
        ))),
        window => Ok(window),
    }
}

/// The count that the server has reported to a peer.
#[derive(Debug)]
pub struct Told {
    window: u64,
    counted: u64,
}

impl Told {
    pub fn new(window: u64) -> Told {
        Told { window, counted: 0 }
    }

    /// Returns the count to report now that `counted` writes are counted, if a report is due.
    pub fn due(&mut self, counted: u64) -> Option<u64> {
        let due = counted.saturating_sub(self.counted) >= self.window.div_ceil(2);
        due.then(|| {
            self.counted = counted;
            counted
        })
    }
}

/// The count that a peer has received.
#[derive(Debug)]
pub struct Ahead {
    window: u64,
    counted: Cell<u64>,
}

impl Ahead {
    pub fn new(window: u64) -> Ahead {
        Ahead { window: window.max(1), counted: Cell::new(0) }
    }

    /// Records that the server has counted `counted` writes.
    pub fn told(&self, counted: u64) {
        self.counted.set(self.counted.get().max(counted));
    }

    /// Returns whether the write of this number, starting at 0, may be sent.
    fn may(&self, number: u64) -> bool {
        number.saturating_sub(self.counted.get()) < self.window
    }

    /// Waits until the write may be sent. Does not register a waker: it must be polled in the same task as, and after,
    /// the future that receives the server's messages.
    pub async fn wait(&self, number: u64, limit: Duration) -> Result<(), Failure> {
        if self.may(number) {
            return Ok(());
        }
        let may = poll_fn(|_| if self.may(number) { Poll::Ready(()) } else { Poll::Pending });
        bounded(limit, may).await.map_err(|ended| match ended {
            Ended::Interrupted => Failure::Interrupted,
            Ended::TimedOut => Failure::Timeout(format!(
                "{number} writes are complete or in flight; for {} s the server has not acknowledged more than {} \
                 of them",
                limit.as_secs(),
                self.counted.get()
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_windows_fit_in_queue() {
        for (room, peers, window) in
            [(4096, 1, 1024), (4096, 8, 512), (4096, 1024, 4), (16, 2, 8), (16, 3, 5), (3, 3, 1)]
        {
            assert!(matches!(share_out(room, peers), Ok(found) if found == window), "{room}, {peers}");
        }
        assert!(matches!(share_out(2, 3), Err(Failure::Usage(_))));
    }

    /// The server counts nothing until the peer is blocked, and then counts one write at a time. Tests every window.
    #[test]
    fn peer_stays_within_window_and_progresses() {
        for window in 1..=9 {
            let (ahead, mut told) = (Ahead::new(window), Told::new(window));
            let (mut sent, mut counted) = (0, 0);
            while sent < 100 {
                while ahead.may(sent) {
                    sent += 1;
                }
                assert!(sent - counted <= window, "{window}: {sent} sent, {counted} counted");
                assert!(counted < sent, "{window}: stuck behind {sent}");
                counted += 1;
                told.due(counted).into_iter().for_each(|counted| ahead.told(counted));
            }
        }
    }
}
