//! What every measurement shares: statistics, sizes and the payload pattern.

pub mod pattern;
pub mod size;
pub mod stats;
