//! The functions that are found by name in the place of libibverbs' and libefa's: all that libfabric's EFA provider calls, and
//! what other parts of libfabric and librdmacm call on a device that they find here.

mod device;
mod efa;
mod objects;

pub use device::*;
pub use efa::*;
pub use objects::*;
