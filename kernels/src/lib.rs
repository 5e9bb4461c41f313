//! The kernels of ginlab, and the protocol they speak with the proxy.
//!
//! This crate is compiled three times from one source: to PTX for the GPU, natively for the emulated device, and under
//! loom for the ring. It is what users edit. Device code here knows nothing of the host; the host depends on this crate
//! for the types both sides share.
//!
//! - [`command`]: what a put command says, in 32 bytes;
//! - [`ring`]: how commands travel from many device threads to one proxy thread, and how completion travels back;
//! - [`put`]: the device API, `put_nbi`, `put`, `quiet`, `quiet_until`;
//! - [`gin`]: the device API of programs: symmetric memory, put, get, signals, barrier, to any PE over NVLink or rails;
//! - [`block`]: what the threads of a block agree on;
//! - [`batch`]: many small puts behind one fence;
//! - [`pattern`]: the payload that the kernels write and the host checks;
//! - [`vyukov`]: another queue, to compare the ring with;
//! - [`ipc`]: what the kernels that write into another GPU's memory share;
//! - the kernels, one file each: [`put_kernel`], [`put_batch`], [`ping_pong`], [`queue_kernel`], [`ipc_kernel`], [`ipc_wait`], and
//!   [`ring_shift`], [`signal_check`], [`shmem`]; [`ipc_bulk`], which is a PTX module of its own (feature `bulk`); and programs over
//!   [`gin`], which have one too (feature `programs`): [`collective`], [`jacobi`]. A new one is a file and its name in a list below
//!   (docs/add-a-kernel.md).

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx))]

pub mod ipc;
#[cfg(any(not(target_arch = "nvptx64"), feature = "bulk"))]
pub mod ipc_bulk;

/// What the first module and that of programs are made of: no kernels.
macro_rules! shared {
    ($($name:ident)*) => {$(
        #[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
        pub mod $name;
    )*};
}

/// The first PTX module.
macro_rules! first_module {
    ($($name:ident)*) => {$(
        #[cfg(not(all(target_arch = "nvptx64", any(feature = "bulk", feature = "programs"))))]
        pub mod $name;
    )*};
}

/// The PTX module of programs.
macro_rules! programs {
    ($($name:ident)*) => {$(
        #[cfg(any(not(target_arch = "nvptx64"), feature = "programs"))]
        pub mod $name;
    )*};
}

shared! { batch block command gin pattern ring }
first_module! { clock ipc_kernel ipc_wait ping_pong put put_batch put_kernel put_trace queue_kernel ring_shift shmem signal_check vyukov }
programs! { collective jacobi }
