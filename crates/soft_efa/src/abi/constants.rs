//! Numbers.

use std::ffi::{c_int, c_uint, c_void};

pub const IBV_SYSFS_NAME_MAX: usize = 64;
pub const IBV_SYSFS_PATH_MAX: usize = 256;

pub const IBV_NODE_UNSPECIFIED: c_int = 7;
pub const IBV_TRANSPORT_UNSPECIFIED: c_int = 4;
pub const IBV_PORT_ACTIVE: c_uint = 4;
pub const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
pub const IBV_FORK_UNNEEDED: c_uint = 2;

pub const IBV_QPS_RESET: c_uint = 0;
pub const IBV_QPS_INIT: c_uint = 1;
pub const IBV_QPS_RTR: c_uint = 2;
pub const IBV_QPS_RTS: c_uint = 3;
pub const IBV_QPT_DRIVER: c_uint = 255;
pub const IBV_QP_STATE: c_int = 1;
pub const IBV_QP_QKEY: c_int = 64;
pub const IBV_QP_RNR_RETRY: c_int = 2048;

pub const IBV_ACCESS_LOCAL_WRITE: c_uint = 1;
pub const IBV_ACCESS_REMOTE_WRITE: c_uint = 2;
pub const IBV_ACCESS_REMOTE_READ: c_uint = 4;

pub const IBV_SEND_INLINE: c_uint = 8;
pub const IBV_WR_RDMA_WRITE: c_uint = 0;
pub const IBV_WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub const IBV_WR_SEND: c_uint = 2;
pub const IBV_WR_SEND_WITH_IMM: c_uint = 3;
pub const IBV_WR_RDMA_READ: c_uint = 4;

pub const IBV_WC_SUCCESS: c_uint = 0;
pub const IBV_WC_LOC_LEN_ERR: c_uint = 1;
pub const IBV_WC_LOC_QP_OP_ERR: c_uint = 2;
pub const IBV_WC_LOC_PROT_ERR: c_uint = 4;
pub const IBV_WC_WR_FLUSH_ERR: c_uint = 5;
pub const IBV_WC_BAD_RESP_ERR: c_uint = 7;
pub const IBV_WC_REM_INV_REQ_ERR: c_uint = 9;
pub const IBV_WC_REM_ACCESS_ERR: c_uint = 10;
pub const IBV_WC_REM_OP_ERR: c_uint = 11;
pub const IBV_WC_RNR_RETRY_EXC_ERR: c_uint = 13;
pub const IBV_WC_REM_INV_RD_REQ_ERR: c_uint = 15;
pub const IBV_WC_REM_ABORT_ERR: c_uint = 16;
pub const IBV_WC_RESP_TIMEOUT_ERR: c_uint = 20;
pub const IBV_WC_GENERAL_ERR: c_uint = 21;

pub const IBV_WC_SEND: c_uint = 0;
pub const IBV_WC_RDMA_WRITE: c_uint = 1;
pub const IBV_WC_RECV: c_uint = 128;
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_uint = 129;
pub const IBV_WC_WITH_IMM: c_uint = 2;

pub const EFADV_DEVICE_ATTR_CAPS_RDMA_READ: c_uint = 1;
pub const EFADV_DEVICE_ATTR_CAPS_RNR_RETRY: c_uint = 2;
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID: c_uint = 4;
/// Since 56
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE: c_uint = 8;
/// Since 56
pub const EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV: c_uint = 16;
/// Since 56
pub const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: c_uint = 1;
pub const EFADV_QP_DRIVER_TYPE_SRD: c_uint = 0;

/// What `abi_compat` of a context holds whose `verbs_context` is whole.
pub const EXTENDED: *mut c_void = usize::MAX as *mut c_void;
