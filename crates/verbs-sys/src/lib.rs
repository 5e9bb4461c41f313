//! Declarations of libibverbs and libefa: the part that libfabric's EFA provider and ginlab's verbs rail use.
//! `crates/soft_efa/tests/headers.rs` compares it with the installed headers, and with those of rdma-core 65.
//!
//! Names and members are C's. Function tables whose members are not called are `c_void` pointers. Items whose comment
//! has a version (`Since rdma-core 59`) are absent from older releases of rdma-core.

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
pub use library::{CounterFunctions, RegDmabufMr, RegMrIova2, VerbsLibrary};
pub use memory::*;
pub use pair::*;
