//! Listing, opening and querying of devices.

use crate::abi::*;
use crate::cause;
use crate::context::{self, Calls, DeviceContext, refuse};
use crate::machine::{SoftDevice, SoftMachine};
use crate::post;
use crate::symbols::classic;
use std::ffi::{c_char, c_int};

/// Lists the devices; the list ends with null.
///
/// # Safety
/// `count` must be null or valid for writes. The functions below have the requirements of the manual pages: objects
/// must have been returned by this library and not be freed, and other pointers must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let Ok(machine) = SoftMachine::get() else { return refuse(libc::EINVAL) };
    if let Err(error) = machine.show() {
        eprintln!(
            "soft_efa: cannot create a directory for the software NICs' sysfs entries: {error}; set TMPDIR to a \
             writable directory with free space"
        );
        return refuse(error.raw_os_error().unwrap_or(libc::EIO));
    }
    let devices = machine.devices().iter().map(|device| (*device as *const SoftDevice).cast_mut().cast());
    let list: Box<[*mut ibv_device]> = devices.chain([std::ptr::null_mut()]).collect();
    if !count.is_null() {
        // SAFETY: the caller guarantees that `count` is valid for writes if it is not null.
        unsafe { count.write(list.len() as c_int - 1) };
    }
    Box::into_raw(list).cast()
}

/// Frees the list, but not the devices.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let Ok(machine) = SoftMachine::get() else { return };
    if list.is_null() {
        return;
    }
    machine.hide();
    let length = machine.devices().len() + 1;
    // SAFETY: `ibv_get_device_list` made the list from a box of this length.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length)) });
}

/// Returns the name of a device.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the caller passes a device of this library.
    unsafe { (&raw const (*device).name).cast() }
}

/// Returns the globally unique ID of a device.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller passes a device of this library.
    let gid = unsafe { (*device.cast::<SoftDevice>()).gid };
    u64::from_ne_bytes(std::array::from_fn(|index| gid[8 + index]))
}

/// Returns the index of a device on this machine.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the caller passes a device of this library.
    unsafe { (*device.cast::<SoftDevice>()).card as c_int }
}

/// Functions that C calls through the table of an open device.
pub(crate) const CALLS: Calls = Calls {
    create_cq: classic::create_cq_ex,
    poll_cq: classic::poll_cq,
    req_notify_cq: classic::req_notify_cq,
    post_send: post::post_send,
    post_recv: post::post_recv,
};

/// Opens a device.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Ok(machine) = SoftMachine::get() else { return refuse(libc::EINVAL) };
    // SAFETY: the caller passes a device of this library; devices live as long as the process.
    let device: &'static SoftDevice = unsafe { &*device.cast::<SoftDevice>() };
    DeviceContext::open(machine, device, CALLS).unwrap_or_else(|error| {
        cause::print("memory of a software NIC in /dev/shm", &error);
        refuse(error.raw_os_error().unwrap_or(libc::EIO))
    })
}

/// Writes the attributes of a port, in the older form.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: *mut ibv_port_attr) -> c_int {
    // The older form ends before the flags.
    let length = std::mem::offset_of!(ibv_port_attr, flags);
    // SAFETY: the caller passes a context of this library and valid attributes.
    unsafe { context::query_port(context, port, attributes, length) }
}

/// Writes the address of a device.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    if port != 1 || index != 0 {
        return -1;
    }
    // SAFETY: the caller passes a context of this library and a valid `gid`.
    unsafe { gid.write(ibv_gid { raw: DeviceContext::of(context).device.gid }) };
    0
}

/// Writes the key of the device's only partition.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(_: *mut ibv_context, port: u8, index: c_int, key: *mut u16) -> c_int {
    if port != 1 || index != 0 {
        return -1;
    }
    // SAFETY: the caller guarantees that `key` is valid for writes.
    unsafe { key.write(0xffff) };
    0
}

/// Returns the index of a partition key.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(_: *mut ibv_context, _: u8, key: u16) -> c_int {
    if key == 0xffff { 0 } else { -1 }
}
