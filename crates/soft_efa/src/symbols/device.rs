//! Cards: listed, opened, asked.

use crate::abi::*;
use crate::context::{self, Calls, Context, refuse};
use crate::machine::{Device, Machine};
use crate::{completions, post};
use std::ffi::{c_char, c_int};

/// Lists the cards; the list ends with null.
///
/// # Safety
/// `count` is null or C's place for it. So it is below: what is handed over is C's or was made here, as the manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let Ok(machine) = Machine::get() else { return refuse(libc::EINVAL) };
    if let Err(error) = machine.show() {
        eprintln!("soft_efa: a folder for what sysfs says of the cards: {error}");
        return refuse(error.raw_os_error().unwrap_or(libc::EIO));
    }
    let devices = machine.devices().iter().map(|device| (*device as *const Device).cast_mut().cast());
    let list: Box<[*mut ibv_device]> = devices.chain([std::ptr::null_mut()]).collect();
    if !count.is_null() {
        // SAFETY: C's place.
        unsafe { count.write(list.len() as c_int - 1) };
    }
    Box::into_raw(list).cast()
}

/// Frees the list, not the cards.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let Ok(machine) = Machine::get() else { return };
    if list.is_null() {
        return;
    }
    machine.hide();
    let length = machine.devices().len() + 1;
    // SAFETY: made of a box of this length.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length)) });
}

/// A card's name.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: one of ours.
    unsafe { (&raw const (*device).name).cast() }
}

/// A card's number in the world.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: one of ours.
    let gid = unsafe { (*device.cast::<Device>()).gid };
    u64::from_ne_bytes(std::array::from_fn(|index| gid[8 + index]))
}

/// A card's number here.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: one of ours.
    unsafe { (*device.cast::<Device>()).card as c_int }
}

/// What C calls by an open card's table.
pub(crate) const CALLS: Calls =
    Calls { create_cq: completions::create, post_send: post::post_send, post_recv: post::post_recv };

/// Opens a card.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Ok(machine) = Machine::get() else { return refuse(libc::EINVAL) };
    // SAFETY: one of ours, which live as long as the process.
    let device: &'static Device = unsafe { &*device.cast::<Device>() };
    Context::open(machine, device, CALLS).unwrap_or_else(|error| {
        eprintln!("soft_efa: a card's memory in /dev/shm: {error}");
        refuse(error.raw_os_error().unwrap_or(libc::EIO))
    })
}

/// What a port says of itself, in the older form.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, attributes: *mut ibv_port_attr) -> c_int {
    // The older form ends before the flags.
    let length = std::mem::offset_of!(ibv_port_attr, flags);
    // SAFETY: one of ours, and C's place.
    unsafe { context::query_port(context, port, attributes, length) }
}

/// A card's address.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    if port != 1 || index != 0 {
        return -1;
    }
    // SAFETY: one of ours, and C's place.
    unsafe { gid.write(ibv_gid { raw: Context::of(context).device.gid }) };
    0
}

/// A card's one partition.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(_: *mut ibv_context, port: u8, index: c_int, key: *mut u16) -> c_int {
    if port != 1 || index != 0 {
        return -1;
    }
    // SAFETY: C's place.
    unsafe { key.write(0xffff) };
    0
}

/// Where a partition stands.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(_: *mut ibv_context, _: u8, key: u16) -> c_int {
    if key == 0xffff { 0 } else { -1 }
}
