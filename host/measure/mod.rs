//! What every measurement shares: statistics, sizes, the payload pattern, the floor under an acknowledged push.

pub mod clocks;
pub mod pattern;
pub mod ping_pong;
pub mod size;
pub mod stats;
