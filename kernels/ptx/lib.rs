//! The PTX of `kernels/`, for `ginlab::cuda::set_ptx`.
//!
//! A crate of its own: the library does not wait for it, and while it compiles an edited kernel for the GPU the library is compiled with
//! the same kernel for the emulated device.

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
