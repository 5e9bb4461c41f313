//! Functions that replace those of libibverbs and libefa by name. They cover all that libfabric's EFA provider calls,
//! what other parts of libfabric and librdmacm call on a device that they find here, and what UCX's transport `srd` and
//! the Python package `efa` call (`classic`).
//!
//! Functions that create or change an object are defined with the object. The others are defined here, as are those
//! that connect independent modules. A device receives the functions that C calls through its table; a queue pair
//! receives its completion queues and its sessions.

mod classic;
mod counters;
mod device;
mod efa;
mod objects;
mod pair;
mod queues;

pub use crate::channel::{ibv_ack_cq_events, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event};
pub use crate::completions::efadv_cq_from_ibv_cq_ex;
pub use crate::context::{
    ibv_alloc_pd, ibv_close_device, ibv_create_ah, ibv_dealloc_pd, ibv_destroy_ah, ibv_query_device,
};
pub use crate::registration::{ibv_dereg_mr, ibv_reg_mr, ibv_reg_mr_iova2};
pub use classic::*;
pub use counters::*;
pub use device::*;
pub use efa::*;
pub use objects::*;
pub use pair::*;
pub use queues::*;
