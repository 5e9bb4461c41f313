//! What every floor of the host stands on: sizes, statistics, the payload pattern, signals of the system, memory that processes share and
//! leave behind, who measures with whom.

pub mod given_up;
pub mod giving_way;
pub mod left_behind;
pub mod memory;
pub mod memory_file;
pub mod pairing;
pub mod pattern;
pub mod signals;
pub mod size;
pub mod stats;
pub mod text;
