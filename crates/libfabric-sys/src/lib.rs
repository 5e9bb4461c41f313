//! What ginlab uses of libfabric 1.17 and 2.x: declared here, without its headers, and loaded at run time, without linking.
//!
//! [`library`] loads it, once, and has the functions that it exports. Most of libfabric's interface is inline functions that
//! call through a table of the object; [`ops`] has those that ginlab uses. `tests/headers.rs` holds every declaration against
//! the headers where there are some.
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
    CUDA_API_OPTION, Dotted, Library, NEWEST_API, NotFound, OLDEST, VARIABLE, is_settled, library, version,
};
pub use tables::*;
pub use types::*;
