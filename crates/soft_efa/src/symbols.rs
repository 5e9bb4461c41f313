//! The functions that are found by name in the place of libibverbs' and libefa's: all that libfabric's EFA provider calls, and
//! what other parts of libfabric and librdmacm call on a device that they find here.

use crate::abi::*;
use crate::context::{self, Context, refuse};
use crate::machine::{Device, Machine};
use crate::{completions, pair};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

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

/// Opens a card.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Ok(machine) = Machine::get() else { return refuse(libc::EINVAL) };
    // SAFETY: one of ours, which live as long as the process.
    let device: &'static Device = unsafe { &*device.cast::<Device>() };
    Context::open(machine, device).unwrap_or_else(|error| {
        eprintln!("soft_efa: a card's memory in /dev/shm: {error}");
        refuse(error.raw_os_error().unwrap_or(libc::EIO))
    })
}

/// Closes a card.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: one of ours.
    unsafe { Context::close(context) };
    0
}

/// What a card says of itself.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int {
    // SAFETY: one of ours, and C's place.
    unsafe { context::query_device(attributes, &Context::of(context).machine.spec) };
    0
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

/// A protection domain.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: one of ours.
    unsafe { context::alloc_pd(context) }
}

/// Frees it.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: one of ours.
    unsafe { context::dealloc_pd(domain) };
    0
}

/// Registers memory.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: one of ours, and C's memory.
    unsafe { context::register(domain, address, length, access as c_uint) }
}

/// Registers memory under its own address.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    if iova != address.expose_provenance() as u64 {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: one of ours, and C's memory.
    unsafe { context::register(domain, address, length, access) }
}

/// Memory of a device: there is none that a process could reach.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    _: c_int,
    _: c_int,
) -> *mut ibv_mr {
    refuse(libc::EOPNOTSUPP)
}

/// Takes a registration back.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(registration: *mut ibv_mr) -> c_int {
    // SAFETY: one of ours.
    unsafe { context::deregister(registration) }
}

/// A handle of an address.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(domain: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: one of ours, and C's.
    unsafe { context::create_ah(domain, attributes) }
}

/// Destroys it.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(handle: *mut ibv_ah) -> c_int {
    // SAFETY: one of ours.
    unsafe { context::destroy_ah(handle) };
    0
}

/// Destroys a completion queue.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: one of ours.
    unsafe { completions::destroy(queue) }
}

/// Changes a queue pair.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: one of ours, and C's.
    unsafe { pair::modify(pair, attributes, mask) }
}

/// Destroys a queue pair.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: one of ours.
    unsafe { pair::destroy(pair) };
    0
}

/// A queue pair's other face.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(pair: *mut ibv_qp) -> *mut ibv_qp_ex {
    pair.cast()
}

/// Which bytes of a transfer arrive in order: nothing is promised.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_: *mut ibv_qp, _: c_uint, _: u32) -> c_int {
    0
}

/// Whether a program may fork: it may, as with any recent kernel.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_uint {
    IBV_FORK_UNNEEDED
}

/// Prepares for forks: there is nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// A status in words.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    match status {
        IBV_WC_SUCCESS => c"success",
        IBV_WC_LOC_LEN_ERR => c"local length error",
        IBV_WC_LOC_QP_OP_ERR => c"local queue pair operation error",
        IBV_WC_LOC_PROT_ERR => c"local protection error",
        IBV_WC_WR_FLUSH_ERR => c"flushed",
        IBV_WC_BAD_RESP_ERR => c"bad response",
        IBV_WC_REM_INV_REQ_ERR => c"remote invalid request",
        IBV_WC_REM_ACCESS_ERR => c"remote access error",
        IBV_WC_REM_OP_ERR => c"remote operation error",
        IBV_WC_RNR_RETRY_EXC_ERR => c"receiver not ready",
        IBV_WC_REM_INV_RD_REQ_ERR => c"no such queue pair",
        IBV_WC_REM_ABORT_ERR => c"remote abort",
        IBV_WC_RESP_TIMEOUT_ERR => c"response timeout",
        _ => c"unknown",
    }
    .as_ptr()
}

/// What EFA's cards say beyond verbs.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_device(
    context: *mut ibv_context,
    attributes: *mut efadv_device_attr,
    bytes: u32,
) -> c_int {
    // SAFETY: one of ours.
    let ours = unsafe { Context::of(context) }.device_attributes();
    // SAFETY: C's place, of this length.
    unsafe { answer(&ours, attributes, bytes) }
}

/// As much of an answer as C has room for.
///
/// # Safety
/// The place has so many bytes.
unsafe fn answer<T>(ours: &T, place: *mut T, bytes: u32) -> c_int {
    let bytes = (bytes as usize).min(size_of::<T>());
    // SAFETY: both are as long.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *ours).cast::<u8>(), place.cast::<u8>(), bytes) };
    0
}

/// A handle's number.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_ah(handle: *mut ibv_ah, attributes: *mut efadv_ah_attr, bytes: u32) -> c_int {
    // SAFETY: one of ours.
    let ours = efadv_ah_attr { comp_mask: 0, ahn: unsafe { context::ah_number(handle) }, reserved: [0; 6] };
    // SAFETY: C's place, of this length.
    unsafe { answer(&ours, attributes, bytes) }
}

/// Which interconnects a registration goes over: not known.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_query_mr(_: *mut ibv_mr, attributes: *mut efadv_mr_attr, bytes: u32) -> c_int {
    // SAFETY: C's place, of this length; numbers.
    unsafe { answer(&std::mem::zeroed(), attributes, bytes) }
}

/// A completion queue of EFA's.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_cq(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
    efa: *mut efadv_cq_init_attr,
    _: u32,
) -> *mut ibv_cq_ex {
    // SAFETY: null or C's.
    if unsafe { efa.as_ref() }.is_some_and(|efa| efa.comp_mask != 0) {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: one of ours, and C's.
    unsafe { completions::create(context, attributes) }
}

/// EFA's face of a completion queue.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(queue: *mut ibv_cq_ex) -> *mut efadv_cq {
    // SAFETY: one of ours.
    unsafe { completions::efa_part(queue) }
}

/// A queue pair of EFA's.
///
/// # Safety
/// See [`ibv_get_device_list`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_qp_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_qp_init_attr_ex,
    efa: *mut efadv_qp_init_attr,
    bytes: u32,
) -> *mut ibv_qp {
    // SAFETY: one of ours, and C's.
    unsafe { pair::create(context, attributes, efa, bytes) }
}

/// What no card of EFA's does: each answers that it is not supported.
macro_rules! unsupported {
    ($($name:ident -> $answer:ty = $value:expr;)*) => {$(
        #[doc = "Not supported by these cards."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> $answer {
            $value
        }
    )*};
}
unsupported! {
    ibv_create_comp_channel -> *mut c_void = refuse(libc::EOPNOTSUPP);
    ibv_create_cq -> *mut ibv_cq = refuse(libc::EOPNOTSUPP);
    ibv_create_qp -> *mut ibv_qp = refuse(libc::EOPNOTSUPP);
    ibv_create_srq -> *mut c_void = refuse(libc::EOPNOTSUPP);
    ibv_destroy_comp_channel -> c_int = libc::EOPNOTSUPP;
    ibv_destroy_srq -> c_int = libc::EOPNOTSUPP;
    ibv_get_cq_event -> c_int = -1;
    ibv_ack_cq_events -> () = ();
    ibv_attach_mcast -> c_int = libc::EOPNOTSUPP;
    ibv_detach_mcast -> c_int = libc::EOPNOTSUPP;
    ibv_query_ece -> c_int = libc::EOPNOTSUPP;
    ibv_set_ece -> c_int = libc::EOPNOTSUPP;
}

/// Whether reads and writes move their bytes from now on; otherwise they take their time, and nothing arrives. For figures of
/// cards that are faster than this machine's memory.
#[unsafe(no_mangle)]
pub extern "C" fn soft_efa_move_bytes(moves: bool) {
    if let Ok(machine) = Machine::get() {
        machine.moves.store(moves, Ordering::Relaxed);
    }
}
