//! Primitives for kernels, on three targets.
//!
//! The module names follow Rust-CUDA's `cuda_std`; the bodies are for rustc's own `nvptx64-nvidia-cuda` target:
//!
//! - On the GPU, each primitive is a few PTX instructions. This crate is the only place with inline PTX.
//! - Natively, each primitive has a CPU body, and [`emulation`] runs a grid on a few CPU threads ("the emulated
//!   device").
//! - Under `--cfg loom`, the words of [`memory`] are loom's atomics, so that the ring can be explored exhaustively.
//!
//! LLVM's PTX backend turns `fetch_add(.., AcqRel)` into a relaxed, GPU-scope `atom.add`. Protocols must therefore not
//! use `core::sync::atomic` on the device. The functions of [`memory`] specify their order, width and scope in their
//! names.

#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(abi_ptx, stdarch_nvptx, asm_experimental_arch, link_llvm_intrinsics, abi_unadjusted),
    allow(internal_features)
)]

pub use cuda_std_macros::{args, kernel};

/// Emits inline PTX that writes one register `{out}` of class `$class`. Evaluates to the value written.
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
pub mod litmus;
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
