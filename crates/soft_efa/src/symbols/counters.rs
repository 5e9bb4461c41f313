//! Completion counters.

use crate::abi::*;
use crate::context::{Context, refuse};
use crate::counter::{Counter, MOST, OPERATIONS};
use crate::engine;
use crate::pair::Pair;
use std::ffi::c_int;
use std::sync::Arc;

/// Counters that an open card has room for.
const COUNTERS: u32 = 1024;

/// A counter as C sees it.
#[repr(C)]
struct Seen {
    verbs: ibv_comp_cntr,
    counter: Arc<Counter>,
}

/// The counter that C means.
///
/// # Safety
/// One of [`efadv_create_comp_cntr`], not destroyed.
unsafe fn of<'a>(counter: *mut ibv_comp_cntr) -> &'a Arc<Counter> {
    // SAFETY: the caller's contract; C's part is the first member.
    unsafe { &(*counter.cast::<Seen>()).counter }
}

/// What the card's counters can do.
///
/// # Safety
/// The context is open, the place is C's and has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    _: *mut ibv_context,
    place: *mut ibv_comp_cntr_caps,
    bytes: usize,
) -> c_int {
    let ours =
        ibv_comp_cntr_caps { max_value: MOST, max_counters: COUNTERS, supported_qp_attach_ops: (1 << OPERATIONS) - 1 };
    let length = bytes.min(size_of::<ibv_comp_cntr_caps>());
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping((&raw const ours).cast::<u8>(), place.cast(), length) };
    0
}

/// A counter in memory of its own.
///
/// # Safety
/// As [`efadv_create_comp_cntr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    attributes: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    // SAFETY: the caller's contract.
    unsafe { create(context, attributes, [None; 2]) }
}

/// A counter, in C's memory where it names some. Memory of a device that a dma-buf stands for is refused: this card counts by a CPU.
///
/// # Safety
/// The context is open; the attributes are C's, `efa` with so many bytes; memory that it names stays as long as the counter.
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
    // SAFETY: the caller's contract.
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
                "soft_efa: a counter in a dma-buf: cards in software count in this process's memory, which a GPU can map"
            );
            return refuse(libc::EOPNOTSUPP);
        }
        let address = location.ptr.expose_provenance();
        if address == 0 || !address.is_multiple_of(8) || !crate::memory::is_there(address as u64) {
            return refuse(libc::EFAULT);
        }
        places[place] = Some(address);
    }
    // SAFETY: the caller's contract.
    unsafe { create(context, attributes, places) }
}

/// # Safety
/// As [`efadv_create_comp_cntr`].
unsafe fn create(
    context: *mut ibv_context,
    attributes: *mut ibv_comp_cntr_init_attr,
    places: [Option<usize>; 2],
) -> *mut ibv_comp_cntr {
    // SAFETY: the caller's contract.
    let (of, asked) = unsafe { (Context::of(context), &*attributes) };
    if asked.comp_mask != 0 || asked.flags != 0 || asked.r#type != IBV_COMP_CNTR_TYPE_WRS {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's contract.
    match unsafe { Counter::new(of, places) } {
        Ok(counter) => {
            let verbs = ibv_comp_cntr { context, handle: 0 };
            Box::into_raw(Box::new(Seen { verbs, counter: Arc::new(counter) })).cast()
        }
        Err(error) => refuse(error.raw_os_error().unwrap_or(libc::ENOMEM)),
    }
}

/// Destroys a counter; queue pairs that count with it must be gone.
///
/// # Safety
/// Made by [`efadv_create_comp_cntr`], and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    // SAFETY: the caller's contract.
    if Arc::strong_count(unsafe { of(counter) }) > 1 {
        return libc::EBUSY;
    }
    // SAFETY: the caller's contract.
    drop(unsafe { Box::from_raw(counter.cast::<Seen>()) });
    0
}

/// A queue pair counts these operations from now on: while it is not ready yet, each by one counter, and for as long as it is there.
///
/// # Safety
/// The pair and the counter are there, the attributes are C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    pair: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attributes: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: the caller's contract.
    let (this, counter, asked) = unsafe { (Pair::of(pair), of(counter), &*attributes) };
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

/// A counter of a card cannot be written.
macro_rules! fixed {
    ($($name:ident)*) => {$(
        #[doc = "Not supported: a counter of a card cannot be written."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_: *mut ibv_comp_cntr, _: u64) -> c_int {
            libc::EOPNOTSUPP
        }
    )*};
}
fixed! { ibv_set_comp_cntr ibv_set_err_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr }

/// What is well.
///
/// # Safety
/// The counter is there, the place is C's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { value.write(of(counter).read(false)) };
    0
}

/// What failed.
///
/// # Safety
/// As [`ibv_read_comp_cntr`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { value.write(of(counter).read(true)) };
    0
}
