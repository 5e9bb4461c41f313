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
//! - the kernels, one file each: [`put_kernel`], [`put_batch`], [`ping_pong`], [`queue_kernel`], [`ipc_kernel`], [`ipc_wait`],
//!   [`ipc_bulk`], and over [`gin`] [`ring_shift`], [`signal_check`], [`data_check`], [`shmem`]; programs over it: [`collective`], [`jacobi`]. A new one
//!   is a file and its name in a list below (docs/add-a-kernel.md).
//!
//! Kernels that are used together are a PTX module: an edit compiles the modules that have the file, side by side, and the driver
//! compiles a module when one of its kernels is first launched. A file with many kernels is in several.

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx))]

/// What modules are made of: no kernels. Bulk stores use nothing of it but [`ipc`].
macro_rules! shared {
    ($($name:ident)*) => {$(
        #[cfg(not(all(target_arch = "nvptx64", feature = "bulk")))]
        pub mod $name;
    )*};
}

/// Files of a PTX module (or of several: `"a" | "b"`), by the feature that makes it; behind `=>` items.
macro_rules! module {
    ($($feature:literal)|+: $($name:ident)+) => {
        module! { $($feature)|+ => $(pub mod $name;)+ }
    };
    ($($feature:literal)|+ => $($item:item)+) => {
        module! { @each ($($feature)+) $($item)+ }
    };
    (@each $features:tt $($item:item)+) => {$(
        module! { @one $features $item }
    )+};
    (@one ($($feature:literal)+) $item:item) => {
        #[cfg(any(not(target_arch = "nvptx64"), $(feature = $feature),+))]
        $item
    };
}

/// Lets a block's first thread or warp, or the block, do what is behind the arrow, in which the name before it is this scope.
macro_rules! by_first_of_block {
    (Thread $scope:ident => $body:expr) => {
        if cuda_std::thread::thread_idx_x() == 0 {
            let $scope = crate::gin::Thread;
            $body
        }
    };
    (Warp $scope:ident => $body:expr) => {
        if cuda_std::thread::thread_idx_x() < cuda_std::warp::SIZE {
            let $scope = crate::gin::Warp::this();
            $body
        }
    };
    (Block $scope:ident => $body:expr) => {{
        let $scope = crate::gin::Block;
        $body
    }};
}

pub mod ipc;
shared! { batch block command gin pattern ring }

module! { "puts": clock ping_pong put put_batch put_kernel put_trace }
module! { "queue": queue_kernel vyukov }
module! { "ipc": ipc_kernel ipc_wait }
module! { "bulk": ipc_bulk }
module! { "shmem" | "shmem_exchange": shmem }
module! { "signals": ring_shift signal_check }
module! { "checks": data_check }
module! { "collective_words" | "collective_messages" | "collective_puts": collective }
module! { "jacobi": jacobi }
