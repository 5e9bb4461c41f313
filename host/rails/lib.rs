//! What the proxy's engine and flows have in common: how puts are laid over several rails,
//! what waits for a rail that is full, when nothing moves any more, and how it ends.

mod ending;
mod lane;
mod stall;
pub mod strategy;

pub use ending::{Turn, drain, leave_to_nics};
pub use lane::{Lane, Piece, counters};
pub use stall::StallClock;

/// What rails have been given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes posted, by rail.
    pub rail_bytes: Vec<u64>,
    /// Transfers posted, by rail.
    pub rail_transfers: Vec<u64>,
    /// "Again" answers of the providers.
    pub again: u64,
}
