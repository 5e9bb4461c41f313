//! Completion counters.

use super::*;
use std::ffi::c_uint;

/// Since rdma-core 65.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}

/// Since rdma-core 65.
#[repr(C)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// Since rdma-core 65.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub r#type: c_uint,
    pub flags: u32,
}

/// Since rdma-core 65.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}

/// Since rdma-core 65.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_memory_location {
    pub ptr: *mut u8,
    pub dmabuf: efadv_memory_location_dmabuf,
    pub r#type: u8,
    pub reserved: [u8; 7],
}

/// Since rdma-core 65. The type has no name in C.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_memory_location_dmabuf {
    pub offset: u64,
    pub fd: i32,
    pub reserved: u32,
}

/// Since rdma-core 65.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_comp_cntr_init_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub reserved: u32,
    pub comp_cntr_ext_mem: efadv_memory_location,
    pub err_cntr_ext_mem: efadv_memory_location,
}
