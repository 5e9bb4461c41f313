//! Completion counters.

use crate::abi::*;
use crate::context::{DeviceContext, refuse};
use crate::counter::{CompletionCounter, MOST, OPERATIONS};
use crate::engine;
use crate::pair::SoftQueuePair;
use std::ffi::c_int;
use std::sync::Arc;

/// Maximum number of counters of an open device.
const COUNTERS: u32 = 1024;

/// A counter as C sees it.
#[repr(C)]
struct CounterView {
    verbs: ibv_comp_cntr,
    counter: Arc<CompletionCounter>,
}

/// Returns the counter of a C pointer.
///
/// # Safety
/// `counter` must have been returned by [`efadv_create_comp_cntr`] and not be destroyed.
unsafe fn of<'a>(counter: *mut ibv_comp_cntr) -> &'a Arc<CompletionCounter> {
    // SAFETY: the caller guarantees that the counter is valid; the part visible to C is its first member.
    unsafe { &(*counter.cast::<CounterView>()).counter }
}

/// Writes the capabilities of the device's counters.
///
/// # Safety
/// The context must be open, and `place` must be valid for writes of `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    _: *mut ibv_context,
    place: *mut ibv_comp_cntr_caps,
    bytes: usize,
) -> c_int {
    let ours =
        ibv_comp_cntr_caps { max_value: MOST, max_counters: COUNTERS, supported_qp_attach_ops: (1 << OPERATIONS) - 1 };
    let length = bytes.min(size_of::<ibv_comp_cntr_caps>());
    // SAFETY: the caller guarantees that `place` is valid for `bytes`, which `length` does not exceed.
    unsafe { std::ptr::copy_nonoverlapping((&raw const ours).cast::<u8>(), place.cast(), length) };
    0
}

/// Creates a counter in its own memory.
///
/// # Safety
/// The requirements of [`efadv_create_comp_cntr`] apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    attributes: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    // SAFETY: the caller meets the requirements of `create`.
    unsafe { create(context, attributes, [None; 2]) }
}

/// Creates a counter, in memory of the caller if `efa` specifies some. Rejects device memory (dma-buf), because a CPU
/// writes these counters.
///
/// # Safety
/// `context` must be open, and both attributes must be valid, `efa` for `bytes`. Memory that `efa` refers to must stay
/// valid as long as the counter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn efadv_create_comp_cntr(
    context: *mut ibv_context,
    attributes: *mut ibv_comp_cntr_init_attr,
    efa: *mut efadv_comp_cntr_init_attr,
    bytes: u32,
) -> *mut ibv_comp_cntr {
    if (bytes as usize) < size_of::<efadv_comp_cntr_init_attr>() {
        return refuse(libc::EINVAL);
    }
    // SAFETY: the caller guarantees that `efa` is valid for `bytes`, which covers the type.
    let efa = unsafe { &*efa };
    let known = EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM | EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM;
    if efa.comp_mask != 0 || efa.flags & !known != 0 {
        return refuse(libc::EOPNOTSUPP);
    }
    let mut places = [None; 2];
    for (place, flag, location) in [
        (0, EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM, &efa.comp_cntr_ext_mem),
        (1, EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM, &efa.err_cntr_ext_mem),
    ] {
        if efa.flags & flag == 0 {
            continue;
        }
        if u32::from(location.r#type) != EFADV_MEMORY_LOCATION_VA {
            eprintln!(
                "soft_efa: a counter in a dma-buf: software NICs count in this process's memory, which a GPU can map"
            );
            return refuse(libc::EOPNOTSUPP);
        }
        let address = location.ptr.expose_provenance();
        if address == 0 || !address.is_multiple_of(8) || !crate::memory::is_there(address as u64) {
            return refuse(libc::EFAULT);
        }
        places[place] = Some(address);
    }
    // SAFETY: the caller meets the requirements of `create`.
    unsafe { create(context, attributes, places) }
}

/// # Safety
/// The requirements of [`efadv_create_comp_cntr`] apply.
unsafe fn create(
    context: *mut ibv_context,
    attributes: *mut ibv_comp_cntr_init_attr,
    places: [Option<usize>; 2],
) -> *mut ibv_comp_cntr {
    // SAFETY: the caller guarantees that the context is open and the attributes are valid.
    let (of, asked) = unsafe { (DeviceContext::of(context), &*attributes) };
    if asked.comp_mask != 0 || asked.flags != 0 || asked.r#type != IBV_COMP_CNTR_TYPE_WRS {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller guarantees that the memory at `places` stays valid as long as the counter.
    match unsafe { CompletionCounter::new(of, places) } {
        Ok(counter) => {
            let verbs = ibv_comp_cntr { context, handle: 0 };
            Box::into_raw(Box::new(CounterView { verbs, counter: Arc::new(counter) })).cast()
        }
        Err(error) => refuse(error.raw_os_error().unwrap_or(libc::ENOMEM)),
    }
}

/// Destroys a counter. All queue pairs that use it must have been destroyed.
///
/// # Safety
/// `counter` must have been returned by [`efadv_create_comp_cntr`], and not be used any longer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: the caller guarantees that the counter is valid.
    if Arc::strong_count(unsafe { of(counter) }) > 1 {
        return libc::EBUSY;
    }
    // SAFETY: the caller guarantees that the counter was made here, from a box, and is no longer used.
    drop(unsafe { Box::from_raw(counter.cast::<CounterView>()) });
    0
}

/// Attaches a counter to operations of a queue pair, for the lifetime of the pair. The pair must not be ready yet, and
/// each operation can have one counter.
///
/// # Safety
/// `pair` and `counter` must be valid objects of this library, and `attributes` must be valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    pair: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attributes: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: the caller guarantees that all three pointers are valid.
    let (this, counter, asked) = unsafe { (SoftQueuePair::of(pair), of(counter), &*attributes) };
    let mask = asked.op_mask;
    if asked.comp_mask != 0 || mask == 0 || mask >> OPERATIONS != 0 {
        return libc::EINVAL;
    }
    if !matches!(this.state(), IBV_QPS_RESET | IBV_QPS_INIT) || !std::ptr::eq(counter.context, this.origin.context) {
        return libc::EINVAL;
    }
    let operations = || (0..OPERATIONS).filter(|operation| mask >> operation & 1 != 0);
    let places = &this.origin.counters;
    if operations().any(|operation| places[operation].get().is_some()) {
        return libc::EBUSY;
    }
    for operation in operations() {
        let _ = places[operation].set(counter.clone());
    }
    engine::watch_pair(this);
    0
}

/// Defines functions that fail, because the counters of a NIC cannot be written.
macro_rules! fixed {
    ($($name:ident)*) => {$(
        #[doc = "Not supported: a counter of an EFA device cannot be written."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_: *mut ibv_comp_cntr, _: u64) -> c_int {
            libc::EOPNOTSUPP
        }
    )*};
}
fixed! { ibv_set_comp_cntr ibv_set_err_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr }

/// Reads the number of successful operations.
///
/// # Safety
/// `counter` must be a valid object of this library, and `value` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller guarantees that both pointers are valid.
    unsafe { value.write(of(counter).read(false)) };
    0
}

/// Reads the number of failed operations.
///
/// # Safety
/// The requirements of [`ibv_read_comp_cntr`] apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller guarantees that both pointers are valid.
    unsafe { value.write(of(counter).read(true)) };
    0
}
