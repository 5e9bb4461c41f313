//! Structs that carry values and point at no object: attributes, what is asked for, what has completed.
//!
//! A struct that ends in `_rest` belongs to libfabric: only pointers to it are held, nobody here can make one, and it stops
//! after the last member that ginlab reads (its tail grows from version to version). All others are made here and are whole,
//! as in the headers of [`NEWEST_API`](crate::NEWEST_API); older libraries read and write less of them.
#![allow(missing_docs, reason = "the manual pages of libfabric describe the members, by these names")]

use std::ffi::{c_char, c_int, c_void};

pub use libc::iovec;

use crate::constants::*;

/// The end of a struct of libfabric's: the rest of it is not declared. Private, so that such a struct cannot be made.
pub(crate) type Rest = [u8; 0];

/// A struct of libfabric's of which only the address is used.
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

/// All zero, as C programs start with.
macro_rules! zeroed {
    ($($name:ident),*) => {
        $(
            impl Default for $name {
                fn default() -> Self {
                    // SAFETY: integers, pointers and unions of integers may all be zero.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*
    };
}
zeroed!(fi_context2, fi_av_attr, fi_cq_attr, fi_cq_data_entry, fi_cq_err_entry);

/// Attributes of the sending side.
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

/// Attributes of the receiving side.
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

/// Which bus a card is on, and where.
#[repr(C)]
pub struct fi_bus_attr {
    pub bus_type: fi_bus_type,
    pub attr: fi_bus_attr_attr,
    _rest: Rest,
}

/// By the bus type.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_bus_attr_attr {
    pub pci: fi_pci_attr,
}

/// Place of a card on PCI.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_pci_attr {
    pub domain_id: u16,
    pub bus_id: u8,
    pub device_id: u8,
    pub function_id: u8,
}

/// A card's link.
#[repr(C)]
#[derive(Debug)]
pub struct fi_link_attr {
    pub address: *mut c_char,
    pub mtu: usize,
    pub speed: usize,
    pub state: fi_link_state,
    _rest: Rest,
}

/// Room for the provider's notes about a posted operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_context2 {
    pub internal: [*mut c_void; 8],
}

/// How an address vector is opened.
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

/// How a completion queue is opened.
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

/// A completion that is an error.
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

/// A stretch of a peer's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

/// A read or write with all its particulars.
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
