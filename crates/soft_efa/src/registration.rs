//! Registered memory of an open device.

use crate::abi::*;
use crate::context::{DeviceContext, refuse};
use crate::locked;
use crate::memory::{self, MOST, Range};
use std::ffi::{c_int, c_uint, c_void};

/// Registers memory.
///
/// # Safety
/// The requirements of [`ibv_reg_mr_iova2`] apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller meets the requirements of `ibv_reg_mr_iova2`.
    unsafe { ibv_reg_mr_iova2(domain, address, length, address.expose_provenance() as u64, access as c_uint) }
}

/// Registers memory; `iova` must be its own address.
///
/// # Safety
/// `domain` must have been returned by `ibv_alloc_pd`, and the memory must be valid until it is deregistered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let start = address.expose_provenance() as u64;
    if iova != start {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller guarantees that the domain is valid, and its context is open.
    let context = unsafe { DeviceContext::of((*domain).context) };
    if length == 0 || start.checked_add(length as u64).is_none() {
        return refuse(libc::EINVAL);
    }
    // A NIC pins the memory that it registers. GPU addresses are not memory of this process, and cannot be pinned
    // without GPUDirect.
    if !memory::is_there(start) || !memory::is_there(start + (length as u64 - 1)) {
        return refuse(libc::EFAULT);
    }
    if context.machine.refuses_memory() {
        return refuse(libc::ENOMEM);
    }
    let index = {
        let mut free = locked(&context.free_keys);
        match free.1.pop() {
            Some(index) => index,
            // Index 0 stays unused so that no key is a small number.
            None if free.0 + 1 < MOST => {
                free.0 += 1;
                free.0
            }
            None => return refuse(libc::ENOMEM),
        }
    };
    let random = context.machine.random(start ^ index as u64) as u32;
    // SAFETY: the caller guarantees that the domain is valid.
    let domain_number = unsafe { (*domain).handle };
    let range = Range { address: start, bytes: length as u64, access, domain: domain_number };
    let key = context.table.add(index, random, range);
    Box::into_raw(Box::new(ibv_mr {
        context: context.verbs(),
        pd: domain,
        addr: address,
        length,
        handle: index as u32,
        lkey: memory::local_key(key),
        rkey: key,
    }))
}

/// Deregisters memory.
///
/// # Safety
/// `registration` must have been returned by [`ibv_reg_mr_iova2`], and not be used any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(registration: *mut ibv_mr) -> c_int {
    // SAFETY: the caller guarantees that `ibv_reg_mr_iova2` made the registration from a box, and that it is no longer
    // used.
    let registration = unsafe { Box::from_raw(registration) };
    // SAFETY: C must not close a context that has registrations.
    let context = unsafe { DeviceContext::of(registration.context) };
    if let Some(index) = context.table.remove(registration.rkey) {
        locked(&context.free_keys).1.push(index);
    }
    0
}
