//! libibverbs and libefa as C declares them: what libfabric's EFA provider reads and calls. Held against the installed headers
//! by `tests/headers.rs`.
//!
//! Names and members are C's. Tables of functions whose members the provider never calls are pointers of no type.

#![allow(non_camel_case_types, non_snake_case, missing_docs, reason = "C's names, documented by C's manual pages")]

mod completion;
mod constants;
mod device;
mod efa;
mod memory;
mod pair;

pub use completion::*;
pub use constants::*;
pub use device::*;
pub use efa::*;
pub use memory::*;
pub use pair::*;
