//! Parts shared by the proxy's engine and by flows: striping over rails ([`strategy`]), per-rail post queues
//! ([`RailQueue`]), stall detection ([`StallClock`]) and shutdown ([`drain`]).

mod busy;
mod ending;
mod rail_queue;
mod stall;
pub mod strategy;

pub use ending::{DrainStep, drain, leak_to_nics};
pub use rail_queue::{Queueable, RailQueue, counters};
pub use stall::StallClock;

use std::time::Duration;

/// Totals of the transfers posted on a set of rails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes posted, per rail.
    pub rail_bytes: Vec<u64>,
    /// Transfers posted, per rail.
    pub rail_transfers: Vec<u64>,
    /// Time with transfers in flight, per rail; empty unless the rails are timed ([`RailQueue::time`]).
    pub rail_busy: Vec<Duration>,
    /// Number of posts that a full provider refused ([`Post::Again`](ginlab_fabric::Post::Again)).
    pub again: u64,
}
