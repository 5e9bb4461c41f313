//! Constants.

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
pub const IBV_QP_PKEY_INDEX: c_int = 16;
pub const IBV_QP_PORT: c_int = 32;
pub const IBV_QP_QKEY: c_int = 64;
pub const IBV_QP_SQ_PSN: c_int = 65536;
pub const IBV_QP_INIT_ATTR_PD: c_uint = 1;
pub const IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: c_uint = 64;
pub const IBV_QP_EX_WITH_RDMA_WRITE: c_uint = 1;
pub const IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: c_uint = 2;
pub const IBV_QP_EX_WITH_SEND: c_uint = 4;
pub const IBV_QP_EX_WITH_RDMA_READ: c_uint = 16;
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
/// Since rdma-core 56.
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE: c_uint = 8;
/// Since rdma-core 56.
pub const EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV: c_uint = 16;
/// Since rdma-core 56.
pub const EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV: c_uint = 1;
/// Since rdma-core 59.
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_EXT_MEM_DMABUF: c_uint = 32;
/// Since rdma-core 65.
pub const EFADV_DEVICE_ATTR_CAPS_COMP_CNTR: c_uint = 64;
/// Since rdma-core 63.
pub const EFADV_QP_FLAGS_INLINE_WRITE: c_uint = 2;
/// Since rdma-core 63.
pub const EFADV_SQ_DEPTH_ATTR_INLINE_WRITE: c_uint = 1;
/// Since rdma-core 65.
pub const EFADV_WQ_CAPS_64_BIT_REQ_ID: c_uint = 1;
/// Since rdma-core 59.
pub const EFADV_CQ_INIT_FLAGS_EXT_MEM_DMABUF: c_uint = 1;
/// Since rdma-core 65.
pub const EFADV_MEMORY_LOCATION_VA: c_uint = 0;
/// Since rdma-core 65.
pub const EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM: c_uint = 1;
/// Since rdma-core 65.
pub const EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM: c_uint = 2;
/// Since rdma-core 65.
pub const IBV_COMP_CNTR_TYPE_WRS: c_uint = 0;
/// Since rdma-core 65.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_SEND: c_uint = 1;
/// Since rdma-core 65.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RECV: c_uint = 2;
/// Since rdma-core 65.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ: c_uint = 4;
/// Since rdma-core 65.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ: c_uint = 8;
/// Since rdma-core 65.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE: c_uint = 16;
/// Since rdma-core 65.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE: c_uint = 32;
pub const EFADV_WC_EX_WITH_SGID: c_uint = 1;
/// Since rdma-core 56.
pub const EFADV_WC_EX_WITH_IS_UNSOLICITED: c_uint = 2;
pub const EFADV_QP_DRIVER_TYPE_SRD: c_uint = 0;

/// Value of `abi_compat` in a context whose `verbs_context` is complete.
pub const EXTENDED: *mut c_void = usize::MAX as *mut c_void;
