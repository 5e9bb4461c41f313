//! What a kernel may use, on three machines.
//!
//! The module names follow Rust-CUDA's `cuda_std`, the bodies are for rustc's own `nvptx64-nvidia-cuda` target:
//!
//! - on the GPU each primitive is a few PTX instructions; this crate is the only place with inline PTX;
//! - natively each primitive is a CPU body, and [`emulation`] runs a grid on a few CPU threads ("the emulated device");
//! - under `--cfg loom` the words of [`memory`] are loom's, so that the ring can be explored exhaustively.
//!
//! LLVM's PTX backend turns `fetch_add(.., AcqRel)` into a relaxed, GPU-scope `atom.add`. So no protocol may use
//! `core::sync::atomic` on the device: the functions of [`memory`] say their order, width and scope in their names.

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, stdarch_nvptx, asm_experimental_arch, link_llvm_intrinsics, abi_unadjusted),
    allow(internal_features)
)]

pub use cuda_std_macros::{args, kernel};

/// Inline PTX that writes one register, `{out}`, of this class: what it has written.
#[cfg(target_arch = "nvptx64")]
macro_rules! written {
    ($class:ident, $ptx:expr, $($operands:tt)*) => {{
        let out;
        core::arch::asm!($ptx, out = out($class) out, $($operands)*);
        out
    }};
}

#[cfg(all(target_arch = "nvptx64", feature = "bulk"))]
pub mod bulk;
pub mod call;
#[cfg(not(target_arch = "nvptx64"))]
pub mod emulation;
pub mod fp8;
pub mod grid;
pub mod half;
#[cfg(not(target_arch = "nvptx64"))]
mod launch;
pub mod list;
pub mod memory;
#[cfg(loom)]
pub mod model;
mod plain;
pub mod rows;
pub mod shared;
pub mod sum;
pub mod thread;
pub mod vector;
pub mod warp;

#[cfg(not(target_arch = "nvptx64"))]
pub use launch::{Kernel, Ptx};
pub use plain::Plain;

#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: `trap` ends the grid with an error that the host sees at its next call; there is nothing to unwind.
    unsafe { core::arch::nvptx::trap() }
}
