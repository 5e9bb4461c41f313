//! What NCCL calls to open, to join, to register and to close.

use crate::abi::{
    DEVICE_PROXY, GinConfig13, HANDLE_BYTES, Logger, MR_NEVER_RESET, NcclResult, PTR_CUDA, PTR_HOST, Properties,
    RmaConfig, RmaProperties, VirtualDevice,
};
use crate::coll::{Region, RegionHandle};
use crate::handles::{Context, Refusal, give, guarded, look, place, refuse, set, take};
use crate::join::{Joined, Listener, join};
use crate::settings::Settings;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// What `init` gives, and nobody looks at: NCCL's GIN calls `listen` and `connect` with a context of its own, or none.
static CONTEXT: u8 = 0;

/// What variables say, or why not.
fn settings() -> Result<Arc<Settings>, Refusal> {
    Settings::read(&crate::testing::variable).map(Arc::new).map_err(|why| refuse(NcclResult::USAGE, why))
}

/// Keeps this library loaded: threads of it and of libfabric may outlive NCCL's last communicator by a moment.
fn stay_loaded() {
    let here = stay_loaded as fn() as *const c_void;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: a local to write to; `dli_fname` is the loader's own text, and opening a library that is loaded runs nothing.
    unsafe {
        if libc::dladdr(here, info.as_mut_ptr()) != 0 {
            let name = (*info.as_ptr()).dli_fname;
            libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

pub(crate) unsafe extern "C" fn init(out: *mut *mut c_void, _communicator: u64, _log: Logger) -> NcclResult {
    guarded("init", || {
        stay_loaded();
        settings()?;
        // SAFETY: NCCL's contract.
        unsafe { set(out, (&raw const CONTEXT).cast_mut().cast()) }
    })
}

pub(crate) unsafe extern "C" fn devices(out: *mut c_int) -> NcclResult {
    // SAFETY: NCCL's contract.
    guarded("devices", || unsafe { set(out, 1) })
}

/// Of the one device.
pub(crate) fn properties(device: c_int) -> Result<Properties, Refusal> {
    if device != 0 {
        return Err(refuse(NcclResult::ARGUMENT, format!("there is one device, not number {device}")));
    }
    Ok(Properties {
        name: c"ginlab".as_ptr(),
        pci_path: std::ptr::null(),
        guid: 0x6769_6e6c_6162,
        pointers: PTR_HOST | PTR_CUDA,
        global_registration: 0,
        force_flush: 0,
        speed: 100_000,
        port: 1,
        latency: 0.0,
        most_communicators: 1024,
        most_receives: 8,
        device_type: DEVICE_PROXY,
        device_version: 0,
        virtual_device: VirtualDevice { count: 1, devices: [0; 8] },
        most_p2p_bytes: 1 << 40,
        most_collective_bytes: 1 << 40,
        most_requests: 1,
        rail: -1,
        plane: -1,
    })
}

pub(crate) unsafe extern "C" fn get_properties(device: c_int, out: *mut Properties) -> NcclResult {
    // SAFETY: NCCL's contract.
    guarded("getProperties", || unsafe { set(out, properties(device)?) })
}

pub(crate) unsafe extern "C" fn get_rma_properties(_coll: *mut c_void, out: *mut RmaProperties) -> NcclResult {
    // A signal orders what its own rank has sent, and nothing of others.
    let properties = RmaProperties { flushes_all_puts_on_any_signal: false };
    // SAFETY: NCCL's contract.
    guarded("getRmaProperties", || unsafe { set(out, properties) })
}

pub(crate) unsafe extern "C" fn listen(
    _context: *mut c_void,
    _device: c_int,
    handle: *mut c_void,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("listen", || {
        // SAFETY: NCCL's contract: a handle has so many bytes.
        let (handle, out) = unsafe { (place(handle.cast::<[u8; HANDLE_BYTES]>())?, place(out)?) };
        let listener = Listener::open(settings()?).map_err(|why| refuse(NcclResult::SYSTEM, why))?;
        handle.write(listener.handle());
        out.write(give(listener));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn connect(
    _context: *mut c_void,
    handles: *mut *mut c_void,
    ranks: c_int,
    rank: c_int,
    listener: *mut c_void,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("connect", || {
        if ranks < 1 || rank < 0 || rank >= ranks || handles.is_null() {
            return Err(refuse(NcclResult::ARGUMENT, format!("rank {rank} of {ranks}")));
        }
        // SAFETY: NCCL's contract.
        let out = unsafe { place(out) }?;
        // SAFETY: NCCL's contract: so many pointers to so many bytes; the listener is of `listen`.
        let (listener, handles) = unsafe {
            let listener: &Listener = look(listener, "listener")?;
            let pointers = std::slice::from_raw_parts(handles, ranks as usize);
            let read = |pointer: &*mut c_void| pointer.cast::<[u8; HANDLE_BYTES]>().as_ref().copied();
            (listener, pointers.iter().map(read).collect::<Option<Vec<_>>>())
        };
        let handles = handles.ok_or_else(|| refuse(NcclResult::ARGUMENT, "a rank has no handle"))?;
        let joined = join(&handles, rank as usize, listener)
            .map_err(|why| refuse(NcclResult::REMOTE, format!("rank {rank} of {ranks}: {why}")))?;
        out.write(give(joined));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn create_context(
    coll: *mut c_void,
    _config: *mut RmaConfig,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("createContext", || {
        // SAFETY: NCCL's contract: of `connect`.
        let joined: &Joined = unsafe { look(coll, "communicator") }?;
        // SAFETY: NCCL's contract.
        unsafe { place(out) }?.write(give(Context { coll: joined.coll.clone() }));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn create_context13(
    coll: *mut c_void,
    _config: *mut GinConfig13,
    out: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> NcclResult {
    if !device_handle.is_null() {
        // SAFETY: NCCL's contract. Of type 2 NCCL makes the handle itself.
        unsafe { device_handle.write(std::ptr::null_mut()) };
    }
    // SAFETY: passed on.
    unsafe { create_context(coll, std::ptr::null_mut(), out) }
}

pub(crate) unsafe extern "C" fn register(
    coll: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    flags: u64,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("regMrSym", || {
        // SAFETY: NCCL's contract: of `connect`.
        let joined: &Joined = unsafe { look(coll, "communicator") }?;
        // SAFETY: NCCL's contract.
        let out = unsafe { place(out) }?;
        let cuda = match kind {
            PTR_HOST => false,
            PTR_CUDA => true,
            _ => {
                return Err(refuse(
                    NcclResult::ARGUMENT,
                    format!("memory of kind {kind}: this plugin takes the host's (1) and CUDA's (2)"),
                ));
            }
        };
        let never_reset = flags & MR_NEVER_RESET != 0;
        let number = joined.coll.register(Region { address: data as u64, bytes: bytes as u64, cuda, never_reset });
        out.write(give(RegionHandle { number }));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn register13(
    coll: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    flags: u64,
    out: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    let result = unsafe { register(coll, data, bytes, kind, flags, out) };
    if result == NcclResult::SUCCESS && !device_handle.is_null() {
        // SAFETY: NCCL's contract; `out` was written.
        unsafe { device_handle.write(*out) };
    }
    result
}

/// Never asked for: the properties offer no dma-bufs. The memory is reached by copies in any case.
pub(crate) unsafe extern "C" fn register_dma_buf(
    coll: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    _offset: u64,
    _descriptor: c_int,
    flags: u64,
    out: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    unsafe { register(coll, data, bytes, kind, flags, out) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
pub(crate) unsafe extern "C" fn register_dma_buf13(
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
    unsafe { register13(coll, data, bytes, kind, flags, out, device_handle) }
}

pub(crate) unsafe extern "C" fn deregister(coll: *mut c_void, region: *mut c_void) -> NcclResult {
    guarded("deregMrSym", || {
        // SAFETY: NCCL's contract: of `connect` and `regMrSym`.
        let (joined, region) = unsafe { (look::<Joined>(coll, "communicator")?, take::<RegionHandle>(region)) };
        if let Some(region) = region {
            joined.coll.deregister(region.number);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_context(context: *mut c_void) -> NcclResult {
    guarded("destroyContext", || {
        // SAFETY: NCCL's contract: of `createContext`.
        drop(unsafe { take::<Context>(context) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close_coll(coll: *mut c_void) -> NcclResult {
    guarded("closeColl", || {
        // SAFETY: NCCL's contract: of `connect`.
        if let Some(joined) = unsafe { take::<Joined>(coll) } {
            joined.close();
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close_listen(listener: *mut c_void) -> NcclResult {
    guarded("closeListen", || {
        // SAFETY: NCCL's contract: of `listen`.
        drop(unsafe { take::<Listener>(listener) });
        Ok(())
    })
}

/// There is nothing left: what was opened has been closed by its own calls.
pub(crate) unsafe extern "C" fn finalize(_context: *mut c_void) -> NcclResult {
    NcclResult::SUCCESS
}
