//! The PTX of `kernels/`, compiled by build.rs, for `ginlab::cuda::set_ptx`.
//!
//! No library depends on it: while an edited kernel is compiled for the GPU, the libraries are compiled with the same
//! kernel for the emulated device.

use cuda_std::Ptx;

/// All PTX modules if built with the feature `ptx`, otherwise none.
pub static PTX: Ptx = Ptx {
    #[cfg(feature = "ptx")]
    modules: &include!(concat!(env!("OUT_DIR"), "/ptx.rs")),
    #[cfg(not(feature = "ptx"))]
    modules: &[],
    arch: option_env!("GINLAB_PTX_ARCH"),
    rustc: option_env!("GINLAB_PTX_RUSTC"),
};
