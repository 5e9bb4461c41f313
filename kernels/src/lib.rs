//! The kernels of ginlab, and the protocol between them and the proxy.
//!
//! This crate is compiled three times from the same source: to PTX for the GPU, natively for the emulated device, and
//! under loom to check the ring. Users edit this crate. Device code does not depend on the host; the host depends on
//! this crate for the types that both sides share.
//!
//! - [`command`]: the put command, in 32 bytes;
//! - [`ring`]: transport of commands from many device threads to one proxy thread, and of completions in the other
//!   direction;
//! - [`direct`]: access to a NIC's queues from a kernel, without a proxy;
//! - [`outlet`]: dispatch to a ring or a NIC queue;
//! - [`gin`]: the device API of applications: symmetric memory, put, get, signals, barrier, to any PE over NVLink or
//!   rails;
//! - [`block`]: agreement among the threads of a block;
//! - [`batch`]: many small puts after one fence;
//! - [`pattern`]: the payload that the kernels write and the host checks;
//! - [`ipc`]: parts shared by the kernels that write to another GPU's memory;
//! - the kernels, one file each: [`put_kernel`], [`put_batch`], [`ping_pong`], [`direct_put`], [`ipc_kernel`],
//!   [`ipc_parts`], [`ipc_together`], [`ipc_wait`], [`ipc_bulk`], and over [`gin`] [`ring_shift`], [`signal_check`],
//!   [`data_check`], [`shmem`], [`tutorial`], and [`museum`], programs with known bugs; and [`litmus`] and
//!   [`litmus_bulk`], which count the outcomes of unordered accesses;
//! - applications over [`gin`]: [`collective`], [`jacobi`], [`moe`];
//! - [`queue`]: the study of queues; [`mover`]: copies for NCCL's kernels.
//!
//! A new kernel needs a file, and its name in a list below (docs/add-a-kernel.md).
//!
//! Kernels that are used together form a PTX module. An edit recompiles, in parallel, the modules that contain the
//! file, and the driver compiles a module when one of its kernels is first launched. A file with many kernels can be in
//! several modules. A module is a feature of this crate (Cargo.toml); the native build contains all of them.

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx))]

// Shared parts without kernels. The module of bulk stores contains only `ipc` and `litmus`.
#[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
pub mod batch;
#[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
pub mod block;
#[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
pub mod command;
#[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
pub mod direct;
#[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
pub mod gin;
pub mod ipc;
#[cfg(any(feature = "litmus", feature = "bulk"))]
pub mod litmus;
#[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
pub mod outlet;
#[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
pub mod ring;

#[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
pub use payload_pattern as pattern;

#[cfg(feature = "puts")]
pub mod clock;
#[cfg(any(feature = "collective_words", feature = "collective_messages", feature = "collective_puts"))]
pub mod collective;
#[cfg(feature = "checks")]
pub mod data_check;
#[cfg(feature = "direct")]
pub mod direct_put;
#[cfg(feature = "bulk")]
pub mod ipc_bulk;
#[cfg(feature = "ipc")]
pub mod ipc_kernel;
#[cfg(feature = "ipc")]
pub mod ipc_parts;
#[cfg(feature = "ipc")]
pub mod ipc_together;
#[cfg(feature = "ipc")]
pub mod ipc_wait;
#[cfg(feature = "jacobi")]
pub mod jacobi;
#[cfg(feature = "bulk")]
pub mod litmus_bulk;
#[cfg(feature = "moe")]
pub mod moe;
#[cfg(feature = "mover")]
pub mod mover;
#[cfg(feature = "checks")]
pub mod museum;
#[cfg(feature = "puts")]
pub mod ping_pong;
#[cfg(any(feature = "puts", feature = "direct"))]
pub mod put_batch;
#[cfg(any(feature = "puts", feature = "direct"))]
pub mod put_kernel;
#[cfg(any(feature = "puts", feature = "direct"))]
pub mod put_trace;
#[cfg(feature = "queue")]
pub mod queue;
#[cfg(feature = "signals")]
pub mod ring_shift;
#[cfg(any(feature = "shmem", feature = "shmem_exchange"))]
pub mod shmem;
#[cfg(feature = "signals")]
pub mod signal_check;
#[cfg(feature = "checks")]
pub mod tutorial;
