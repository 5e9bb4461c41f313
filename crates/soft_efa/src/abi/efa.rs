//! EFA's own.

use super::*;
use std::ffi::c_int;

#[repr(C)]
pub struct efadv_qp_init_attr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    /// Since 56
    pub flags: u16,
    /// Since 56
    pub sl: u8,
    pub reserved: [u8; 1],
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
    pub reserved: [u8; 2],
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
    /// Since 56
    pub wc_is_unsolicited: Option<unsafe extern "C" fn(efadv_cq: *mut efadv_cq) -> bool>,
}

#[repr(C)]
pub struct efadv_cq_init_attr {
    pub comp_mask: u64,
    pub wc_flags: u64,
}

/// Since 56
#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_mr_attr {
    pub comp_mask: u64,
    pub ic_id_validity: u16,
    pub recv_ic_id: u16,
    pub rdma_read_ic_id: u16,
    pub rdma_recv_ic_id: u16,
}
