//! The inline functions of libfabric's headers: each calls through the operations table of its first argument.
//!
//! Includes only those that ginlab uses. They have the names, arguments and meaning of the C functions (`man fi_rma`,
//! `fi_cq`, ...). The exception: an endpoint's name and options are queried from the endpoint instead of its fid. For a
//! null table entry, which no conforming provider has, they return `-FI_ENOSYS`.
//!
//! # Safety
//! As for the C functions: object pointers must come from the matching open call and not be closed. Other pointers must
//! be valid for the accesses that the manual page specifies, and calls must obey the threading level of the domain.
#![allow(clippy::too_many_arguments, reason = "libfabric's own signatures")]

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::constants::*;
use crate::info::*;
use crate::tables::*;
use crate::types::*;

/// Defines the functions: name and arguments, the first of which is the object, and the path to the operation in C's
/// notation. `absent` is the result if the provider's table lacks the operation.
macro_rules! operations {
    (absent: $absent:expr; $(
        $(#[$doc:meta])+
        $name:ident($object:ident: $type:ty $(, $argument:ident: $kind:ty)*) -> $result:ty
            = $($table:ident).+ -> $operation:ident;
    )+) => {$(
        $(#[$doc])+
        ///
        /// # Safety
        /// See the [module](self), and the requirements above.
        #[inline]
        pub unsafe fn $name($object: $type $(, $argument: $kind)*) -> $result {
            // SAFETY: the caller guarantees a valid object, whose table the provider keeps valid as long as the object
            // lives.
            match unsafe { (*(*$object).$($table).+).$operation } {
                // An object starts with its fid, so its address is valid for operations that take the fid.
                // SAFETY: the function belongs to the object, and the caller guarantees valid arguments.
                Some(operation) => unsafe { operation($object.cast() $(, $argument)*) },
                None => $absent,
            }
        }
    )+};
}

operations! {
    absent: -FI_ENOSYS as _;

    /// Closes any object. Everything opened from it must be closed.
    fi_close(fid: *mut fid) -> c_int = ops->close;

    /// Opens a domain of a fabric.
    fi_domain(fabric: *mut fid_fabric, info: *mut fi_info, domain: *mut *mut fid_domain, context: *mut c_void) -> c_int
        = ops->domain;

    /// Opens a completion queue.
    fi_cq_open(domain: *mut fid_domain, attr: *mut fi_cq_attr, cq: *mut *mut fid_cq, context: *mut c_void) -> c_int
        = ops->cq_open;

    /// Opens an address vector.
    fi_av_open(domain: *mut fid_domain, attr: *mut fi_av_attr, av: *mut *mut fid_av, context: *mut c_void) -> c_int
        = ops->av_open;

    /// Inserts `count` addresses. Returns the number inserted.
    fi_av_insert(
        av: *mut fid_av, addr: *const c_void, count: usize, fi_addr: *mut fi_addr_t, flags: u64, context: *mut c_void
    ) -> c_int = ops->insert;

    /// Removes addresses from an address vector. No operation to them may be outstanding.
    fi_av_remove(av: *mut fid_av, fi_addr: *mut fi_addr_t, count: usize, flags: u64) -> c_int = ops->remove;

    /// Opens an endpoint.
    fi_endpoint(domain: *mut fid_domain, info: *mut fi_info, ep: *mut *mut fid_ep, context: *mut c_void) -> c_int
        = ops->endpoint;

    /// Binds a queue or an address vector to an endpoint.
    fi_ep_bind(ep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int = fid.ops->bind;

    /// Changes any object, according to the command.
    fi_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int = ops->control;

    /// Reads an endpoint option.
    fi_getopt(ep: *mut fid_ep, level: c_int, optname: c_int, value: *mut c_void, length: *mut usize) -> c_int
        = ops->getopt;

    /// Sets an endpoint option. Most take effect only before `fi_enable`.
    fi_setopt(ep: *mut fid_ep, level: c_int, optname: c_int, value: *const c_void, length: usize) -> c_int
        = ops->setopt;

    /// Writes the local address of an endpoint. `length` is both input and output. Returns `-FI_ETOOSMALL` if the
    /// buffer is too short.
    fi_getname(ep: *mut fid_ep, addr: *mut c_void, length: *mut usize) -> c_int = cm->getname;

    /// Registers memory with full attributes. The memory must stay valid until the registration is closed.
    fi_mr_regattr(domain: *mut fid_domain, attr: *const fi_mr_attr, flags: u64, mr: *mut *mut fid_mr) -> c_int
        = mr->regattr;

    /// Binds a registration to an endpoint (`FI_MR_ENDPOINT`).
    fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int = fid.ops->bind;

    /// Posts a receive. The buffer must not be accessed until the completion.
    fi_recv(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void, src_addr: fi_addr_t, context: *mut c_void
    ) -> isize = msg->recv;

    /// Posts a receive of any number of pieces, with its own flags. The pieces must not be accessed until the
    /// completion.
    fi_recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize = msg->recvmsg;

    /// Posts a message. The source must not change until the completion.
    fi_send(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, dest_addr: fi_addr_t, context: *mut c_void
    ) -> isize = msg->send;

    /// Cancels an operation posted with this context, if possible: its completion then has FI_ECANCELED.
    fi_cancel(ep: *mut fid_ep, context: *mut c_void) -> isize = ops->cancel;

    /// Posts a write. The source must not change until the completion.
    fi_write(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void,
        dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void
    ) -> isize = rma->write;

    /// Posts a write with immediate data. The source must not change until the completion.
    fi_writedata(
        ep: *mut fid_ep, buf: *const c_void, len: usize, desc: *mut c_void, data: u64,
        dest_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void
    ) -> isize = rma->writedata;

    /// Posts a write with its own flags. The source must not change until the completion.
    fi_writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize = rma->writemsg;

    /// Posts a read. The destination must not be accessed until the completion.
    fi_read(
        ep: *mut fid_ep, buf: *mut c_void, len: usize, desc: *mut c_void,
        src_addr: fi_addr_t, addr: u64, key: u64, context: *mut c_void
    ) -> isize = rma->read;

    /// Posts a read with its own flags. The destination must not be accessed until the completion.
    fi_readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize = rma->readmsg;

    /// Reads up to `count` completions of the queue's format. `buf` must have space for `count` entries.
    fi_cq_read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize = ops->read;

    /// Reads one error entry.
    fi_cq_readerr(cq: *mut fid_cq, entry: *mut fi_cq_err_entry, flags: u64) -> isize = ops->readerr;
}

operations! {
    absent: ptr::null();

    /// Writes an address as text; `length` is both input and output. Returns `text`, or null if the provider has no
    /// such operation.
    fi_av_straddr(av: *mut fid_av, addr: *const c_void, text: *mut c_char, length: *mut usize) -> *const c_char
        = ops->straddr;

    /// Returns the provider's text for an error entry, or null if there is none.
    fi_cq_strerror(
        cq: *mut fid_cq, prov_errno: c_int, err_data: *const c_void, buf: *mut c_char, len: usize
    ) -> *const c_char = ops->strerror;
}

/// Moves an endpoint to the active state.
///
/// # Safety
/// See the [module](self).
pub unsafe fn fi_enable(ep: *mut fid_ep) -> c_int {
    // SAFETY: the caller guarantees a valid endpoint, which starts with its fid.
    unsafe { fi_control(ep.cast(), FI_ENABLE, ptr::null_mut()) }
}

/// Enables a bound registration.
///
/// # Safety
/// See the [module](self).
pub unsafe fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
    // SAFETY: the caller guarantees a valid registration, which starts with its fid.
    unsafe { fi_control(mr.cast(), FI_ENABLE, ptr::null_mut()) }
}

/// Returns attributes for [`fi_mr_regattr`] for one range of memory. `stretch` must live until the registration call
/// returns.
#[must_use]
pub fn mr_attr(stretch: &iovec, access: u64, requested_key: u64) -> fi_mr_attr {
    fi_mr_attr { mr_iov: stretch, iov_count: 1, access, requested_key, ..Default::default() }
}
