//! EFA-specific types.

use super::*;
use std::ffi::c_int;

#[repr(C)]
pub struct efadv_qp_init_attr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    /// Since rdma-core 56.
    pub flags: u16,
    /// Since rdma-core 56.
    pub sl: u8,
    /// Since rdma-core 64, as a byte.
    pub reserved: u8,
    /// Since rdma-core 64.
    pub wr_flags: u64,
}

/// Since rdma-core 65.
#[repr(C)]
pub struct efadv_qp {
    pub comp_mask: u64,
    pub wr_set_processing_hints: Option<unsafe extern "C" fn(efadv_qp: *mut efadv_qp, hints: u32)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_device_attr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    /// Since rdma-core 63. Reserved before.
    pub inline_buf_size_ex: u16,
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_ah_attr {
    pub comp_mask: u64,
    pub ahn: u16,
    pub reserved: [u8; 6],
}

#[repr(C)]
pub struct efadv_cq {
    pub comp_mask: u64,
    pub wc_read_sgid: Option<unsafe extern "C" fn(efadv_cq: *mut efadv_cq, sgid: *mut ibv_gid) -> c_int>,
    /// Since rdma-core 56.
    pub wc_is_unsolicited: Option<unsafe extern "C" fn(efadv_cq: *mut efadv_cq) -> bool>,
}

#[repr(C)]
pub struct efadv_cq_init_attr {
    pub comp_mask: u64,
    pub wc_flags: u64,
    /// Since rdma-core 59.
    pub flags: u64,
    /// Since rdma-core 59.
    pub ext_mem_dmabuf: efadv_cq_init_attr_ext_mem_dmabuf,
}

/// Since rdma-core 59. The type has no name in C.
#[repr(C)]
pub struct efadv_cq_init_attr_ext_mem_dmabuf {
    pub buffer: *mut u8,
    pub length: u64,
    pub offset: u64,
    pub fd: i32,
    pub reserved: [u8; 4],
}

/// Since rdma-core 59.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct efadv_wq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
    pub max_batch: u32,
    /// Since rdma-core 65.
    pub caps: u16,
    pub reserved: [u8; 2],
}

/// Since rdma-core 59.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct efadv_cq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    /// Since rdma-core 60.
    pub doorbell: *mut u32,
}

/// Since rdma-core 63.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct efadv_sq_depth_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub max_send_sge: u32,
    pub max_rdma_sge: u32,
    pub max_inline_data: u32,
}

/// Since rdma-core 63.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct efadv_rq_depth_attr {
    pub comp_mask: u64,
    pub max_recv_sge: u32,
}

/// Since rdma-core 56.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_mr_attr {
    pub comp_mask: u64,
    pub ic_id_validity: u16,
    pub recv_ic_id: u16,
    pub rdma_read_ic_id: u16,
    pub rdma_recv_ic_id: u16,
}
