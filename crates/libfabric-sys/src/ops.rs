//! The inline functions of libfabric's headers: each calls through the operations table of its first argument.
//!
//! Only those that ginlab uses are here. They have the names, arguments and meaning of the C functions (`man fi_rma`,
//! `fi_cq`, ...). A null entry in a table, which no conforming provider has, is answered with `-FI_ENOSYS`.
//!
//! # Safety
//! As for the C functions: object pointers come from the matching open call and are not closed yet, the other pointers are
//! valid for what the manual page says, and calls obey the threading level that the domain was opened with.

use std::ffi::{c_char, c_int, c_void};

use crate::constants::*;
use crate::tables::*;
use crate::types::*;

/// The result of an operation that the provider's table lacks.
const NO_SYS: c_int = -FI_ENOSYS;

/// Calls `$object.$table.$operation`, with `NO_SYS` for an absent entry.
macro_rules! through {
    ($object:expr, $table:ident . $operation:ident ( $($argument:expr),* )) => {
        // SAFETY: the caller vouches for the object; its table is set by the provider for as long as the object lives.
        match unsafe { (*(*$object).$table).$operation } {
            // SAFETY: the function is the object's own, and the caller vouches for the arguments.
            Some(operation) => unsafe { operation($($argument),*) },
            None => NO_SYS as _,
        }
    };
}

/// Closes any object.
///
/// # Safety
/// See the [module](self); nothing that was opened from the object is still open.
#[inline]
pub unsafe fn fi_close(fid: *mut fid) -> c_int {
    through!(fid, ops.close(fid))
}

/// Opens a domain of a fabric.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    through!(fabric, ops.domain(fabric, info, domain, context))
}

/// Opens a completion queue.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_cq_open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    through!(domain, ops.cq_open(domain, attr, cq, context))
}

/// Opens an address vector.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_av_open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    through!(domain, ops.av_open(domain, attr, av, context))
}

/// Inserts `count` addresses; returns how many were taken.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_av_insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    through!(av, ops.insert(av, addr, count, fi_addr, flags, context))
}

/// Writes an address as text; `length` is in and out. Returns `text`, or null where the provider has no such operation.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_av_straddr(
    av: *mut fid_av,
    addr: *const c_void,
    text: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: the caller vouches for the address vector; its table is set by the provider for as long as it lives.
    match unsafe { (*(*av).ops).straddr } {
        // SAFETY: the function is the vector's own, and the caller vouches for the arguments.
        Some(operation) => unsafe { operation(av, addr, text, length) },
        None => std::ptr::null(),
    }
}

/// Opens an endpoint.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    through!(domain, ops.endpoint(domain, info, ep, context))
}

/// Binds a queue or an address vector to an endpoint.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_ep_bind(ep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int {
    // SAFETY: the caller vouches for the endpoint, whose first member is its fid.
    let fid = unsafe { &raw mut (*ep).fid };
    through!(fid, ops.bind(fid, bfid, flags))
}

/// Moves an endpoint to the active state.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_enable(ep: *mut fid_ep) -> c_int {
    // SAFETY: the caller vouches for the endpoint, whose first member is its fid.
    let fid = unsafe { &raw mut (*ep).fid };
    through!(fid, ops.control(fid, FI_ENABLE, std::ptr::null_mut()))
}

/// Reads an endpoint option.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_getopt(fid: *mut fid, level: c_int, optname: c_int, value: *mut c_void, length: *mut usize) -> c_int {
    // The options' table stands in the endpoint, behind its fid.
    let ep = fid.cast::<fid_ep>();
    through!(ep, ops.getopt(fid, level, optname, value, length))
}

/// The local address of an endpoint; `length` is in and out, `-FI_ETOOSMALL` when the buffer is too short.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_getname(fid: *mut fid, addr: *mut c_void, length: *mut usize) -> c_int {
    let ep = fid.cast::<fid_ep>();
    through!(ep, cm.getname(fid, addr, length))
}

/// Registers memory with full attributes.
///
/// # Safety
/// See the [module](self); the memory stays valid until the registration is closed.
#[inline]
pub unsafe fn fi_mr_regattr(
    domain: *mut fid_domain,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the caller vouches for the domain, whose first member is its fid.
    let fid = unsafe { &raw mut (*domain).fid };
    through!(domain, mr.regattr(fid, attr, flags, mr))
}

/// Attributes for [`fi_mr_regattr`]: one stretch of memory. The stretch must live until the registration call is over.
#[must_use]
pub fn mr_attr(stretch: &iovec, access: u64, requested_key: u64) -> fi_mr_attr {
    fi_mr_attr { mr_iov: stretch, iov_count: 1, access, requested_key, ..Default::default() }
}

/// Binds a registration to an endpoint (`FI_MR_ENDPOINT`).
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int {
    // SAFETY: the caller vouches for the registration, whose first member is its fid.
    let fid = unsafe { &raw mut (*mr).fid };
    through!(fid, ops.bind(fid, bfid, flags))
}

/// Enables a registration that was bound.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
    // SAFETY: the caller vouches for the registration, whose first member is its fid.
    let fid = unsafe { &raw mut (*mr).fid };
    through!(fid, ops.control(fid, FI_ENABLE, std::ptr::null_mut()))
}

/// Posts a receive.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    through!(ep, msg.recv(ep, buf, len, desc, src_addr, context))
}

/// Posts a message.
///
/// # Safety
/// See the [module](self); the source stays unchanged until the completion.
#[inline]
pub unsafe fn fi_send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    through!(ep, msg.send(ep, buf, len, desc, dest_addr, context))
}

/// Takes back what was posted with this context, if it can still be: its completion is then FI_ECANCELED.
///
/// # Safety
/// See the [module](self).
pub unsafe fn fi_cancel(ep: *mut fid_ep, context: *mut c_void) -> isize {
    through!(ep, ops.cancel(ep.cast(), context))
}

/// Takes addresses out of an address vector.
///
/// # Safety
/// See the [module](self); nothing is outstanding to these addresses.
pub unsafe fn fi_av_remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int {
    through!(av, ops.remove(av, fi_addr, count, flags))
}

/// Posts a write.
///
/// # Safety
/// See the [module](self); the source stays unchanged until the completion.
#[inline]
#[allow(clippy::too_many_arguments)]
pub unsafe fn fi_write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    through!(ep, rma.write(ep, buf, len, desc, dest_addr, addr, key, context))
}

/// Posts a write with immediate data.
///
/// # Safety
/// See the [module](self); the source stays unchanged until the completion.
#[inline]
#[allow(clippy::too_many_arguments)]
pub unsafe fn fi_writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    through!(ep, rma.writedata(ep, buf, len, desc, data, dest_addr, addr, key, context))
}

/// Posts a write with flags of its own.
///
/// # Safety
/// See the [module](self); the source stays unchanged until the completion.
#[inline]
pub unsafe fn fi_writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    through!(ep, rma.writemsg(ep, msg, flags))
}

/// Posts a read.
///
/// # Safety
/// See the [module](self); the destination is left alone until the completion.
#[inline]
#[allow(clippy::too_many_arguments)]
pub unsafe fn fi_read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    through!(ep, rma.read(ep, buf, len, desc, src_addr, addr, key, context))
}

/// Posts a read with flags of its own.
///
/// # Safety
/// See the [module](self); the destination is left alone until the completion.
#[inline]
pub unsafe fn fi_readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    through!(ep, rma.readmsg(ep, msg, flags))
}

/// Reads up to `count` completions of the queue's format.
///
/// # Safety
/// See the [module](self); `buf` has room for `count` entries.
#[inline]
pub unsafe fn fi_cq_read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    through!(cq, ops.read(cq, buf, count))
}

/// Reads one error entry.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_cq_readerr(cq: *mut fid_cq, entry: *mut fi_cq_err_entry, flags: u64) -> isize {
    // Older providers leave it alone.
    // SAFETY: the caller vouches for the entry.
    unsafe { (*entry).src_addr = FI_ADDR_UNSPEC };
    through!(cq, ops.readerr(cq, entry, flags))
}

/// The provider's own words for an error entry; null when it has none.
///
/// # Safety
/// See the [module](self).
#[inline]
pub unsafe fn fi_cq_strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the caller vouches for the queue; its table is set for as long as it lives.
    match unsafe { (*(*cq).ops).strerror } {
        // SAFETY: the function is the queue's own, and the caller vouches for the arguments.
        Some(operation) => unsafe { operation(cq, prov_errno, err_data, buf, len) },
        None => std::ptr::null(),
    }
}
