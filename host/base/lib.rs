//! Foundations of all host packages: sizes, statistics, the payload pattern, signals of the system, shared memory and
//! its cleanup, and the pairing of ranks.

pub mod backoff;
pub mod crash_handler;
pub mod limits;
pub mod memory;
pub mod memory_file;
pub mod pairing;
pub mod pattern;
pub mod progress;
pub mod random;
pub mod scratch;
pub mod shm_cleanup;
pub mod signals;
pub mod size;
pub mod stats;
pub mod text;
