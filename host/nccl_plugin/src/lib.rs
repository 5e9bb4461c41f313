//! ginlab's rails as NCCL's network for GPU-initiated puts: a shared object that NCCL 2.30 to 2.32 loads as its RMA
//! plugin.
//!
//! NCCL's kernels (`ncclGin` put, signal, wait) write their puts into queues in host memory, which a thread of NCCL
//! reads (GIN type 2, "proxy"). That thread calls the functions of [`tables`]. The plugin sends the puts with ginlab's
//! engine over ginlab's rails, which [`settings`] select, and copies the arriving bytes into NCCL's memory. An
//! unmodified program therefore runs on one GPU without a NIC. docs/nccl.md documents the guarantees and their limits.

pub mod abi;
mod coll;
mod copies;
mod counts;
mod cuda;
mod endpoint;
mod gin;
mod handles;
mod join;
mod loaded;
pub mod mover;
mod operation;
mod pool;
pub mod preload;
mod process;
mod puts;
pub mod queues;
mod record;
pub mod settings;
mod setup;
pub mod tables;
#[doc(hidden)]
pub mod testing;
mod wire;
