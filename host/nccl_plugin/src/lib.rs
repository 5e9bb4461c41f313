//! ginlab's rails as NCCL's network for GPU-initiated puts: a shared object that NCCL 2.30 to 2.32 loads as its RMA plugin.
//!
//! NCCL's kernels (`ncclGin` put, signal, wait) write their puts into queues in host memory, which a thread of NCCL's reads (GIN of type 2,
//! "proxy"). That thread calls the functions of [`tables`]; the puts then go over the rails of ginlab that [`settings`] name, by ginlab's
//! engine, and what arrives is copied into NCCL's memory. So an unmodified program runs on one GPU without a network card. What is promised,
//! and what is not, stands in docs/nccl.md.

pub mod abi;
mod coll;
mod copies;
mod counts;
mod cuda;
mod endpoint;
mod gin;
mod handles;
mod join;
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
