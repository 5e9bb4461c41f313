//! Structures that contain values and refer to no objects: attributes, requests, completions.
//!
//! A structure that ends in `_rest` belongs to libfabric. It is accessed only through pointers and cannot be created
//! here. It ends after the last member that ginlab reads, because its tail grows from version to version. All other
//! structures are created here and are complete, as in the headers of [`NEWEST_API`](crate::NEWEST_API); older
//! libraries access less of them.
#![allow(missing_docs, reason = "the manual pages of libfabric describe the members, by these names")]

use std::ffi::{c_char, c_int, c_void};

pub use libc::iovec;

use crate::constants::*;

/// The undeclared rest of a libfabric structure. Private, so that such a structure cannot be created.
pub(crate) type Rest = [u8; 0];

/// Declares libfabric structures of which only the address is used.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(
            #[repr(C)]
            #[derive(Debug)]
            #[doc = concat!("`struct ", stringify!($name), "`: only its address is used.")]
            pub struct $name {
                _rest: Rest,
            }
        )*
    };
}
opaque!(fi_device_attr, fid_wait);

/// Implements `Default` as all zeros, the usual initial value in C programs.
macro_rules! zeroed {
    ($($name:ident),*) => {
        $(
            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: zero is a valid value of integers, pointers and unions of integers.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*
    };
}
zeroed!(fi_context2, fi_av_attr, fi_cq_attr, fi_cq_data_entry, fi_cq_err_entry);

/// Attributes of the transmit side.
#[repr(C)]
#[derive(Debug)]
pub struct fi_tx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    _rest: Rest,
}

/// Attributes of the receive side.
#[repr(C)]
#[derive(Debug)]
pub struct fi_rx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    _rest: Rest,
}

/// Attributes of an endpoint.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ep_attr {
    pub type_: fi_ep_type,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    _rest: Rest,
}

/// Bus type and bus address of a NIC.
#[repr(C)]
pub struct fi_bus_attr {
    pub bus_type: fi_bus_type,
    pub attr: fi_bus_attr_attr,
    _rest: Rest,
}

/// Bus address; `fi_bus_attr::bus_type` selects the member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_bus_attr_attr {
    pub pci: fi_pci_attr,
}

/// PCI address of a NIC.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_pci_attr {
    pub domain_id: u16,
    pub bus_id: u8,
    pub device_id: u8,
    pub function_id: u8,
}

/// Link of a NIC.
#[repr(C)]
#[derive(Debug)]
pub struct fi_link_attr {
    pub address: *mut c_char,
    pub mtu: usize,
    pub speed: usize,
    pub state: fi_link_state,
    _rest: Rest,
}

/// Space for the provider's data about a posted operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_context2 {
    pub internal: [*mut c_void; 8],
}

/// Attributes for opening an address vector.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_av_attr {
    pub type_: fi_av_type,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// Attributes for opening a completion queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_attr {
    pub size: usize,
    pub flags: u64,
    pub format: fi_cq_format,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: c_int,
    pub wait_cond: fi_cq_wait_cond,
    pub wait_set: *mut fid_wait,
}

/// A completion in the format [`FI_CQ_FORMAT_DATA`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_data_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

/// An error completion.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    /// Since 1.20.
    pub src_addr: fi_addr_t,
}

/// A range of a peer's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// A message or receive with all parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub context: *mut c_void,
    pub data: u64,
}

/// A read or write with all parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_msg_rma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}
