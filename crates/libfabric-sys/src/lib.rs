//! Raw bindings of libfabric 1.17 and 2.x.
//!
//! Types, constants and the exported functions come from the installed headers by bindgen. Most of libfabric's interface is
//! inline functions that call through a table of the object; [`ops`] has those that ginlab uses.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    dead_code,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
pub use bindings::*;

pub mod ops;

/// The version of the headers, as `fi_getinfo` wants it: providers keep their behaviour for programs of that version.
pub const HEADER_VERSION: u32 = FI_MAJOR_VERSION << 16 | FI_MINOR_VERSION;

/// `FI_ADDR_UNSPEC`: any peer, or none yet. (A macro with a cast, which bindgen does not translate.)
pub const FI_ADDR_UNSPEC: fi_addr_t = fi_addr_t::MAX;

/// The endpoint option `FI_OPT_MAX_RMA_SIZE` (a `size_t`), under its number so that headers older than the option compile;
/// libraries that do not know it answer with an error.
pub const OPT_MAX_RMA_SIZE: std::ffi::c_int = 14;
