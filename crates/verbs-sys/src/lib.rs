//! libibverbs and libefa as C declares them: what libfabric's EFA provider reads and calls, and what the rail of verbs does. Held against
//! the installed headers, and against those of rdma-core 65, by `crates/soft_efa/tests/headers.rs`.
//!
//! Names and members are C's. Tables of functions whose members nobody here calls are pointers of no type. What a comment dates (`Since 59`)
//! is absent from older releases of rdma-core.

#![allow(non_camel_case_types, non_snake_case, missing_docs, reason = "C's names, documented by C's manual pages")]

mod completion;
mod constants;
mod counter;
mod device;
mod efa;
mod library;
mod memory;
mod pair;

pub use completion::*;
pub use constants::*;
pub use counter::*;
pub use device::*;
pub use efa::*;
pub use library::{Counters, Library, RegDmabufMr, RegMrIova2};
pub use memory::*;
pub use pair::*;
