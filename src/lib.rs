//! The PTX of `kernels/`, for `ginlab::cuda::set_ptx`, as build.rs has compiled it.
//!
//! No library waits for it: while an edited kernel is compiled for the GPU, the libraries are compiled with the same kernel for the emulated device.

use cuda_std::Ptx;

/// All modules, in a build with the feature `ptx`; otherwise none.
pub static PTX: Ptx = Ptx {
    #[cfg(feature = "ptx")]
    modules: &include!(concat!(env!("OUT_DIR"), "/ptx.rs")),
    #[cfg(not(feature = "ptx"))]
    modules: &[],
    arch: option_env!("GINLAB_PTX_ARCH"),
    rustc: option_env!("GINLAB_PTX_RUSTC"),
};
