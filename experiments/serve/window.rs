//! The window of a peer: how many of its writes may be ahead of those that the server has counted.
//!
//! A card puts the immediate of a write into the server's completion queue whether or not the server polls, and acknowledges the write: what
//! the peer has in flight bounds nothing, and a queue that overflows loses the immediates of everybody. So a peer sends a write only when it is
//! less than a window ahead of what the server has *said* that it has counted, which it says every half a window. The queue of each rail has
//! room for the windows of all places, whichever rail carries the writes. Each tag is of one peer, so no credits are needed beyond this count.

use crate::error::Failure;
use ginlab::bootstrap::session::{Ended, bounded};
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// The longest window of a peer: a server with few peers answers often enough.
const LONGEST: u64 = 1024;

/// The window of each of so many peers at rails whose queues have room for so many immediates.
pub fn share_out(room: usize, peers: u32) -> Result<u64, Failure> {
    match (room as u64 / u64::from(peers.max(1))).min(LONGEST) {
        0 => Err(Failure::Usage(format!("--peers {peers}: a rail's completion queue has room for {room} immediates"))),
        window => Ok(window),
    }
}

/// What the server has told a peer.
#[derive(Debug)]
pub struct Told {
    window: u64,
    counted: u64,
}

impl Told {
    pub fn new(window: u64) -> Told {
        Told { window, counted: 0 }
    }

    /// What the peer is to be told now that so many are counted, if anything.
    pub fn due(&mut self, counted: u64) -> Option<u64> {
        let due = counted.saturating_sub(self.counted) >= self.window.div_ceil(2);
        due.then(|| {
            self.counted = counted;
            counted
        })
    }
}

/// What a peer has been told.
#[derive(Debug)]
pub struct Ahead {
    window: u64,
    counted: Cell<u64>,
}

impl Ahead {
    pub fn new(window: u64) -> Ahead {
        Ahead { window: window.max(1), counted: Cell::new(0) }
    }

    /// The server has counted so many.
    pub fn told(&self, counted: u64) {
        self.counted.set(self.counted.get().max(counted));
    }

    /// Whether the write of this number, from 0, may be sent.
    fn may(&self, number: u64) -> bool {
        number.saturating_sub(self.counted.get()) < self.window
    }

    /// Waits until it may. Nothing wakes the wait: it stands in one task with what hears the server, behind it.
    pub async fn wait(&self, number: u64, limit: Duration) -> Result<(), Failure> {
        if self.may(number) {
            return Ok(());
        }
        let may = poll_fn(|_| if self.may(number) { Poll::Ready(()) } else { Poll::Pending });
        bounded(limit, may).await.map_err(|ended| match ended {
            Ended::Interrupted => Failure::Interrupted,
            Ended::TimedOut => Failure::Timeout(format!(
                "{number} writes are complete or under way, and for {} s the server has not said that it has counted more than {} of them",
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
    fn all_windows_fit_into_the_queue() {
        for (room, peers, window) in
            [(4096, 1, 1024), (4096, 8, 512), (4096, 1024, 4), (16, 2, 8), (16, 3, 5), (3, 3, 1)]
        {
            assert!(matches!(share_out(room, peers), Ok(found) if found == window), "{room}, {peers}");
        }
        assert!(matches!(share_out(2, 3), Err(Failure::Usage(_))));
    }

    /// The server counts nothing until the peer is stuck, for every window; then it counts one at a time.
    #[test]
    fn a_peer_is_never_further_ahead_than_its_window_and_never_stuck() {
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
