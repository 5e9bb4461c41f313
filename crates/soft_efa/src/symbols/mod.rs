//! The functions that are found by name in the place of libibverbs' and libefa's: all that libfabric's EFA provider calls, and
//! what other parts of libfabric and librdmacm call on a device that they find here. Those that make or change something stand
//! where it is defined; the others stand here, and so do those that tie together what knows nothing of one another: a card gets the
//! functions that C calls by its table, a queue pair its completion queues and its sessions.

mod counters;
mod device;
mod efa;
mod objects;
mod pair;
mod queues;

pub use crate::completions::efadv_cq_from_ibv_cq_ex;
pub use crate::context::{
    ibv_alloc_pd, ibv_close_device, ibv_create_ah, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah, ibv_query_device,
    ibv_reg_mr, ibv_reg_mr_iova2,
};
pub use counters::*;
pub use device::*;
pub use efa::*;
pub use objects::*;
pub use pair::*;
pub use queues::*;
