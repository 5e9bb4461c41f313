//! The part of libfabric 1.17 and 2.x that ginlab uses: declared here, independent of its headers, and loaded at run
//! time, without linking.
//!
//! [`library`] loads it once, and provides the functions that it exports. Most of libfabric's interface consists of
//! inline functions that call through a table of the object; [`ops`] has those that ginlab uses. If headers are
//! installed, `tests/headers.rs` compares every declaration with them.
#![allow(non_camel_case_types, reason = "libfabric's own names")]

pub mod constants;
pub mod info;
mod library;
pub mod ops;
pub mod tables;
pub mod types;

pub use constants::*;
pub use info::*;
pub use library::{
    CUDA_API_OPTION, Dotted, LibfabricLibrary, NEWEST_API, NotFound, OLDEST, VARIABLE, is_settled, library, version,
};
pub use tables::*;
pub use types::*;
