//! Discovery (`fi_info` and its attributes), and the fabric, domain and registrations opened with it.
//!
//! These types refer to one another in libfabric. An entry of the list refers to the domain and fabric that are already
//! open, and an open fabric or domain uses such an entry to open further objects. Types without such cycles are in
//! [`types`](crate::types) and [`tables`](crate::tables); their notes on `_rest` also apply here.
#![allow(missing_docs, reason = "the manual pages of libfabric describe the members, by these names")]

use std::ffi::{c_char, c_int, c_void};

use crate::constants::*;
use crate::tables::*;
use crate::types::*;

/// One way to access a fabric: an entry of the list that `fi_getinfo` returns, or the hints for it.
#[repr(C)]
#[derive(Debug)]
pub struct fi_info {
    pub next: *mut fi_info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut fid,
    pub tx_attr: *mut fi_tx_attr,
    pub rx_attr: *mut fi_rx_attr,
    pub ep_attr: *mut fi_ep_attr,
    pub domain_attr: *mut fi_domain_attr,
    pub fabric_attr: *mut fi_fabric_attr,
    pub nic: *mut fid_nic,
    _rest: Rest,
}

/// Attributes of a domain.
#[repr(C)]
#[derive(Debug)]
pub struct fi_domain_attr {
    pub domain: *mut fid_domain,
    pub name: *mut c_char,
    pub threading: fi_threading,
    pub control_progress: fi_progress,
    /// A union of two names for the same value in 2.x.
    pub data_progress: fi_progress,
    pub resource_mgmt: fi_resource_mgmt,
    pub av_type: fi_av_type,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    _rest: Rest,
}

/// Attributes of a fabric.
#[repr(C)]
#[derive(Debug)]
pub struct fi_fabric_attr {
    pub fabric: *mut fid_fabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    _rest: Rest,
}

/// An open fabric.
#[repr(C)]
#[derive(Debug)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *mut fi_ops_fabric,
    _rest: Rest,
}

/// Operations of a fabric.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_fabric {
    pub size: usize,
    pub domain: Option<
        unsafe extern "C" fn(
            fabric: *mut fid_fabric,
            info: *mut fi_info,
            dom: *mut *mut fid_domain,
            context: *mut c_void,
        ) -> c_int,
    >,
    _rest: Rest,
}

/// A domain.
#[repr(C)]
#[derive(Debug)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *mut fi_ops_domain,
    pub mr: *mut fi_ops_mr,
    _rest: Rest,
}

/// Operations of a domain.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_domain {
    pub size: usize,
    pub av_open: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_av_attr,
            av: *mut *mut fid_av,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub cq_open: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_cq_attr,
            cq: *mut *mut fid_cq,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub endpoint: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            info: *mut fi_info,
            ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int,
    >,
    _rest: Rest,
}

/// Attributes of a registration.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_attr {
    /// Part of a union with a pointer to a dma-buf's description since 1.20.
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: fi_hmem_iface,
    pub device: fi_mr_attr_device,
    /// Since 1.19.
    pub hmem_data: *mut c_void,
    /// Since 1.22.
    pub page_size: usize,
    /// Since 2.0.
    pub base_mr: *const fid_mr,
    /// Since 2.0.
    pub sub_mr_cnt: usize,
}

impl Default for fi_mr_attr {
    fn default() -> Self {
        // SAFETY: zero is a valid value of integers, pointers and unions of integers.
        unsafe { std::mem::zeroed() }
    }
}

/// Device of the memory; `fi_mr_attr::iface` selects the member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_attr_device {
    pub reserved: u64,
    pub cuda: c_int,
}

/// Operations for registrations.
#[repr(C)]
#[derive(Debug)]
pub struct fi_ops_mr {
    pub size: usize,
    pub reg: Uncalled,
    pub regv: Uncalled,
    pub regattr:
        Option<unsafe extern "C" fn(fid: *mut fid, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int>,
    _rest: Rest,
}
