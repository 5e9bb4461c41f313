//! Functions of a GIN plugin of type 5: NCCL's kernels write the queues of an EFA device, which the plugin implements
//! in software.
//!
//! This type is selected with `NCCL_GIN_PLUGIN` and `NCCL_GIN_TYPE=5`. The table of v13 is not exported, because it
//! cannot declare that strong signals are not supported. Every NCCL that has this type prefers v14.

use crate::abi::{DEVICE_EFA, DeviceHandle, GinConfig, GinProperties, NcclResult, Properties};
use crate::coll::{Coll, RegionHandle};
use crate::handles::{give, guarded, look, place, refuse, set, take};
use crate::join::Joined;
use crate::queues::{self, QueueBlock};
use crate::setup;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Supported layout of queues, `efa_cuda_qp_v1`: NCCL 2.32 requests it with this number. Kernels of 2.31 use another
/// one.
const VERSION: c_int = 2;

/// Object behind a handle of `createContext`.
struct Queues {
    coll: Arc<Coll>,
    block: Arc<QueueBlock>,
    handle: Box<DeviceHandle>,
}

pub(crate) unsafe extern "C" fn get_gin_properties(out: *mut GinProperties) -> NcclResult {
    // As on an EFA device, a signal is ordered only after its own put, and has an index instead of an address. SAFETY:
    // NCCL guarantees that `out` is valid.
    guarded("getGinProperties", || unsafe { set(out, GinProperties::default()) })
}

pub(crate) unsafe extern "C" fn get_properties(device: c_int, out: *mut Properties) -> NcclResult {
    guarded("getProperties", || {
        // SAFETY: NCCL guarantees that `out` is valid.
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
        // SAFETY: NCCL passes a handle of `connect`, and a valid or null configuration.
        let (joined, config): (&Joined, &GinConfig) =
            unsafe { (look(coll, "communicator")?, look(config.cast(), "configuration")?) };
        if config.backend_version != VERSION {
            return Err(refuse(
                NcclResult::ARGUMENT,
                format!(
                    "the program's kernels need queues of layout {}, but this plugin has layout {VERSION} of NCCL \
                     2.32; compile the program with the headers of NCCL 2.32",
                    config.backend_version
                ),
            ));
        }
        // SAFETY: NCCL guarantees that both outputs are valid.
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
        // SAFETY: NCCL passes a handle of `createContext`, and does not use it afterwards.
        if let Some(made) = unsafe { take::<Queues>(context) } {
            made.coll.remove_queues(&made.block);
            made.coll.deregister(made.block.region);
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
    // Checks this before any registration. SAFETY: NCCL guarantees that `device_handle` is valid.
    let checked = guarded("regMrSym", || unsafe { place(device_handle) }.map(|_| ()));
    if checked != NcclResult::SUCCESS {
        return checked;
    }
    // SAFETY: the arguments are NCCL's, which upholds the same contract.
    let result = unsafe { setup::register(coll, data, bytes, kind, flags, out) };
    if result != NcclResult::SUCCESS {
        return result;
    }
    let described = guarded("regMrSym", || {
        // SAFETY: NCCL passes a handle of `connect`; `setup::register` has written `out`.
        let (joined, region): (&Joined, &RegionHandle) =
            unsafe { (look(coll, "communicator")?, look(*out, "registration")?) };
        let address = queues::describe(&joined.coll, region.number).map_err(|why| refuse(NcclResult::SYSTEM, why))?;
        // SAFETY: NCCL guarantees that `device_handle` is valid.
        unsafe { set(device_handle, address as *mut c_void) }
    });
    if described != NcclResult::SUCCESS {
        // SAFETY: the handle is that of the registration above, which NCCL has not received.
        unsafe {
            setup::deregister(coll, *out);
            out.write(std::ptr::null_mut());
        }
    }
    described
}

/// Never required: the plugin's own threads read the queues.
pub(crate) unsafe extern "C" fn progress(_context: *mut c_void) -> NcclResult {
    NcclResult::SUCCESS
}

pub(crate) unsafe extern "C" fn query_last_error(context: *mut c_void, out: *mut bool) -> NcclResult {
    guarded("queryLastError", || {
        // SAFETY: NCCL passes a handle of `createContext`.
        let made: &Queues = unsafe { look(context, "context") }?;
        // SAFETY: NCCL guarantees that `out` is valid.
        unsafe { set(out, made.coll.failure().is_some()) }
    })
}
