//! What NCCL calls of a GIN plugin of type 5: the kernels write an EFA card's queues, and the card is ours.
//!
//! It is asked for by `NCCL_GIN_PLUGIN` and `NCCL_GIN_TYPE=5`. The table of v13 cannot say that there are no strong signals, so it is not exported: NCCL
//! takes v14 first wherever it has this type.

use crate::abi::{DEVICE_EFA, DeviceHandle, GinConfig, GinProperties, NcclResult, Properties};
use crate::coll::{Coll, RegionHandle};
use crate::handles::{give, guarded, look, place, refuse, set, take};
use crate::join::Joined;
use crate::queues::{self, Block};
use crate::setup;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The layout of queues that is known, `efa_cuda_qp_v1`: NCCL 2.32 asks for it by this number. Kernels of 2.31 have another one.
const VERSION: c_int = 2;

/// What `createContext` makes.
struct Queues {
    coll: Arc<Coll>,
    block: Arc<Block>,
    handle: Box<DeviceHandle>,
}

pub(crate) unsafe extern "C" fn get_gin_properties(out: *mut GinProperties) -> NcclResult {
    // As a card: a signal orders its own put alone, and has a number.
    // SAFETY: NCCL's contract.
    guarded("getGinProperties", || unsafe { set(out, GinProperties::default()) })
}

pub(crate) unsafe extern "C" fn get_properties(device: c_int, out: *mut Properties) -> NcclResult {
    guarded("getProperties", || {
        // SAFETY: NCCL's contract.
        unsafe { set(out, Properties { device_type: DEVICE_EFA, ..setup::properties(device)? }) }
    })
}

pub(crate) unsafe extern "C" fn create_context(
    coll: *mut c_void,
    config: *mut GinConfig,
    out: *mut *mut c_void,
    device_handle: *mut *mut DeviceHandle,
) -> NcclResult {
    guarded("createContext", || {
        // SAFETY: NCCL's contract: of `connect`; a configuration, or none.
        let (joined, config): (&Joined, &GinConfig) =
            unsafe { (look(coll, "communicator")?, look(config.cast(), "configuration")?) };
        if config.backend_version != VERSION {
            return Err(refuse(
                NcclResult::ARGUMENT,
                format!(
                    "the program's kernels want queues of layout {}, and this plugin has layout {VERSION}, that of NCCL 2.32: the program was compiled with headers of another NCCL",
                    config.backend_version
                ),
            ));
        }
        // SAFETY: NCCL's contract.
        let (out, device_handle) = unsafe { (place(out)?, place(device_handle)?) };
        let (block, address) = queues::build(&joined.coll, config).map_err(|why| refuse(NcclResult::SYSTEM, why))?;
        let mut handle = Box::new(DeviceHandle {
            device_type: DEVICE_EFA,
            device_version: 0,
            handle: address as *mut c_void,
            size: 0,
            needs_progress: 0,
        });
        let for_nccl = &raw mut *handle;
        let made = Queues { coll: joined.coll.clone(), block, handle };
        device_handle.write(for_nccl);
        out.write(give(made));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_context(context: *mut c_void) -> NcclResult {
    guarded("destroyContext", || {
        // SAFETY: NCCL's contract: of `createContext`, and its handle is not used any more.
        if let Some(made) = unsafe { take::<Queues>(context) } {
            made.coll.remove_queues(&made.block);
            drop(made.handle);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn register(
    coll: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    flags: u64,
    out: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> NcclResult {
    // Before anything is registered.
    // SAFETY: NCCL's contract.
    let checked = guarded("regMrSym", || unsafe { place(device_handle) }.map(|_| ()));
    if checked != NcclResult::SUCCESS {
        return checked;
    }
    // SAFETY: passed on.
    let result = unsafe { setup::register(coll, data, bytes, kind, flags, out) };
    if result != NcclResult::SUCCESS {
        return result;
    }
    let described = guarded("regMrSym", || {
        // SAFETY: NCCL's contract: of `connect`; `out` was written.
        let (joined, region): (&Joined, &RegionHandle) =
            unsafe { (look(coll, "communicator")?, look(*out, "registration")?) };
        let address = queues::describe(&joined.coll, region.number).map_err(|why| refuse(NcclResult::SYSTEM, why))?;
        // SAFETY: NCCL's contract.
        unsafe { set(device_handle, address as *mut c_void) }
    });
    if described != NcclResult::SUCCESS {
        // SAFETY: of the registration above, which NCCL is not told of.
        unsafe {
            setup::deregister(coll, *out);
            out.write(std::ptr::null_mut());
        }
    }
    described
}

/// Never asked for: the properties offer no dma-bufs.
#[allow(clippy::too_many_arguments, reason = "NCCL's")]
pub(crate) unsafe extern "C" fn register_dma_buf(
    coll: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    _offset: u64,
    _descriptor: c_int,
    flags: u64,
    out: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    unsafe { register(coll, data, bytes, kind, flags, out, device_handle) }
}

/// Never needed: threads of ours read the queues.
pub(crate) unsafe extern "C" fn progress(_context: *mut c_void) -> NcclResult {
    NcclResult::SUCCESS
}

pub(crate) unsafe extern "C" fn query_last_error(context: *mut c_void, out: *mut bool) -> NcclResult {
    guarded("queryLastError", || {
        // SAFETY: NCCL's contract: of `createContext`.
        let made: &Queues = unsafe { look(context, "context") }?;
        // SAFETY: NCCL's contract.
        unsafe { set(out, made.coll.failure().is_some()) }
    })
}
