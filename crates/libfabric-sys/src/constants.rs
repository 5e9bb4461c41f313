//! Constants and the types of libfabric's enumerations, with the values of the headers.
//!
//! All of them have the same value in 1.17 and in 2.x; `tests/headers.rs` compares them with the headers. Some that
//! ginlab does not use differ, and must not be added here without a check of the loaded library's version. These are
//! bits 45, 46 and 48 of the capabilities: FI_HMEM_HOST_ALLOC, FI_HMEM_DEVICE_ONLY and FI_VARIABLE_MSG of 1.17 are
//! FI_TAGGED_DIRECTED_RECV, FI_TAGGED_MULTI_RECV and FI_EXACT_DIRECTED_RECV in 2.x. The same holds for values that 2.x
//! has removed (FI_PRIORITY, FI_XPU_TRIGGER, FI_BUFFERED_RECV, FI_EP_SOCK_STREAM, FI_EP_SOCK_DGRAM).
#![allow(missing_docs, reason = "the manual pages of libfabric describe them, by these names")]

use std::ffi::{c_int, c_uint};

// Types of enumerations. In C, enumerations without a negative value have the type unsigned int.
pub type fi_av_type = c_uint;
pub type fi_bus_type = c_uint;
pub type fi_cq_format = c_uint;
pub type fi_cq_wait_cond = c_uint;
pub type fi_ep_type = c_uint;
pub type fi_hmem_iface = c_uint;
pub type fi_link_state = c_uint;
pub type fi_progress = c_uint;
pub type fi_resource_mgmt = c_uint;
pub type fi_threading = c_uint;
pub type fi_type = c_uint;
pub type fi_wait_obj = c_uint;

/// An address in an address vector.
pub type fi_addr_t = u64;
/// An unspecified address: any peer, or not yet known.
pub const FI_ADDR_UNSPEC: fi_addr_t = fi_addr_t::MAX;

// Capabilities, operation flags and modes: bits of 64-bit words.
pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_ORDER_SAS: u64 = 1 << 8;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_TRANSMIT: u64 = FI_SEND;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_MORE: u64 = 1 << 18;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_HMEM: u64 = 1 << 47;
pub const FI_CONTEXT2: u64 = 1 << 52;
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
pub const FI_CONTEXT: u64 = 1 << 59;

// Registration modes: bits of the int `mr_mode`.
pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
pub const FI_MR_ENDPOINT: c_int = 1 << 9;
pub const FI_MR_HMEM: c_int = 1 << 10;

// Address formats; an unnamed enumeration, used by `fi_info::addr_format`.
pub const FI_FORMAT_UNSPEC: u32 = 0;
pub const FI_SOCKADDR_IN: u32 = 2;
pub const FI_SOCKADDR_IN6: u32 = 3;
pub const FI_ADDR_STR: u32 = 9;
pub const FI_ADDR_EFA: u32 = 12;

// Protocols; an unnamed enumeration, used by `fi_ep_attr::protocol`.
pub const FI_PROTO_SHM: u32 = 16;
pub const FI_PROTO_XNET: u32 = 25;

pub const FI_BUS_PCI: fi_bus_type = 1;
pub const FI_CQ_FORMAT_DATA: fi_cq_format = 3;
pub const FI_EP_RDM: fi_ep_type = 3;
pub const FI_HMEM_CUDA: fi_hmem_iface = 1;
pub const FI_RM_ENABLED: fi_resource_mgmt = 2;
pub const FI_THREAD_DOMAIN: fi_threading = 3;
pub const FI_TYPE_INFO: fi_type = 0;
pub const FI_WAIT_NONE: fi_wait_obj = 0;

// Commands and options; unnamed enumerations, passed as int.
pub const FI_ENABLE: c_int = 6;
pub const FI_OPT_ENDPOINT: c_int = 0;
pub const FI_OPT_FI_HMEM_P2P: c_int = 8;
/// Since 1.18; older libraries return an error.
pub const FI_OPT_CUDA_API_PERMITTED: c_int = 10;
/// Since 1.22; older libraries return an error.
pub const FI_OPT_MAX_RMA_SIZE: c_int = 14;

// Values of the option FI_OPT_FI_HMEM_P2P, which is an int.
pub const FI_HMEM_P2P_REQUIRED: c_int = 1;

// Errors: the system's with its values, and libfabric's own from 256 on. All are returned negative.
pub const FI_EPERM: c_int = 1;
pub const FI_ENOENT: c_int = 2;
pub const FI_EIO: c_int = 5;
pub const FI_EAGAIN: c_int = 11;
pub const FI_ENOMEM: c_int = 12;
pub const FI_EACCES: c_int = 13;
pub const FI_EFAULT: c_int = 14;
pub const FI_EINVAL: c_int = 22;
pub const FI_EMFILE: c_int = 24;
pub const FI_ENOSPC: c_int = 28;
pub const FI_ENOSYS: c_int = 38;
pub const FI_ENODATA: c_int = 61;
pub const FI_EOPNOTSUPP: c_int = 95;
pub const FI_EADDRNOTAVAIL: c_int = 99;
pub const FI_ENETUNREACH: c_int = 101;
pub const FI_ECONNABORTED: c_int = 103;
pub const FI_ECONNRESET: c_int = 104;
pub const FI_ENOTCONN: c_int = 107;
pub const FI_ESHUTDOWN: c_int = 108;
pub const FI_ETIMEDOUT: c_int = 110;
pub const FI_ECONNREFUSED: c_int = 111;
pub const FI_EHOSTUNREACH: c_int = 113;
pub const FI_ECANCELED: c_int = 125;
pub const FI_EKEYREJECTED: c_int = 129;
pub const FI_EAVAIL: c_int = 259;
