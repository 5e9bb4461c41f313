//! Functions with which NCCL opens the plugin, connects ranks, registers memory and closes.

use crate::abi::{
    DEVICE_PROXY, GinConfig13, HANDLE_BYTES, Logger, MR_NEVER_RESET, NcclResult, PTR_CUDA, PTR_HOST, Properties,
    RmaConfig, RmaProperties, VirtualDevice,
};
use crate::coll::{PluginRegion, RegionHandle};
use crate::handles::{Context, Refusal, give, guarded, look, place, refuse, set, take};
use crate::join::{Joined, Listener, join};
use crate::loaded;
use crate::settings::Settings;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Context that `init` returns. It is not used: NCCL's GIN calls `listen` and `connect` with its own context, or with
/// none.
static CONTEXT: u8 = 0;

/// Reads the settings from the environment.
fn settings() -> Result<Arc<Settings>, Refusal> {
    Settings::read(&crate::testing::variable).map(Arc::new).map_err(|why| refuse(NcclResult::USAGE, why))
}

/// Keeps this library loaded: its threads and those of libfabric may outlive NCCL's last communicator briefly.
fn stay_loaded() {
    let here = stay_loaded as fn() as *const c_void;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is a local variable to write to; `dli_fname` is a string of the loader, and opening a library that
    // is loaded runs no code.
    unsafe {
        if libc::dladdr(here, info.as_mut_ptr()) != 0 {
            let name = (*info.as_ptr()).dli_fname;
            libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

pub(crate) unsafe extern "C" fn init(out: *mut *mut c_void, _communicator: u64, log: Logger) -> NcclResult {
    guarded("init", || {
        stay_loaded();
        loaded::opened(log);
        settings()?;
        // SAFETY: NCCL guarantees that `out` is valid.
        unsafe { set(out, (&raw const CONTEXT).cast_mut().cast()) }
    })
}

pub(crate) unsafe extern "C" fn devices(out: *mut c_int) -> NcclResult {
    // SAFETY: NCCL guarantees that `out` is valid.
    guarded("devices", || unsafe { set(out, 1) })
}

/// Returns the properties of the only device.
pub(crate) fn properties(device: c_int) -> Result<Properties, Refusal> {
    if device != 0 {
        return Err(refuse(NcclResult::ARGUMENT, format!("no device {device}: there is only device 0")));
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
    // SAFETY: NCCL guarantees that `out` is valid.
    guarded("getProperties", || unsafe { set(out, properties(device)?) })
}

pub(crate) unsafe extern "C" fn get_rma_properties(_coll: *mut c_void, out: *mut RmaProperties) -> NcclResult {
    // A signal is ordered only after puts of its own rank.
    let properties = RmaProperties { flushes_all_puts_on_any_signal: false };
    // SAFETY: NCCL guarantees that `out` is valid.
    guarded("getRmaProperties", || unsafe { set(out, properties) })
}

pub(crate) unsafe extern "C" fn listen(
    _context: *mut c_void,
    _device: c_int,
    handle: *mut c_void,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("listen", || {
        // SAFETY: NCCL guarantees that both outputs are valid, and that a handle has [`HANDLE_BYTES`] bytes.
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
        // SAFETY: NCCL guarantees that `out` is valid.
        let out = unsafe { place(out) }?;
        // SAFETY: NCCL passes `ranks` pointers to handles of [`HANDLE_BYTES`] bytes, and a listener of `listen`.
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
        // SAFETY: NCCL passes a handle of `connect`.
        let joined: &Joined = unsafe { look(coll, "communicator") }?;
        // SAFETY: NCCL guarantees that `out` is valid.
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
        // SAFETY: NCCL guarantees that the output is valid. For type 2 NCCL creates the device handle itself.
        unsafe { device_handle.write(std::ptr::null_mut()) };
    }
    // SAFETY: the arguments are NCCL's, which upholds the same contract.
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
        // SAFETY: NCCL passes a handle of `connect`.
        let joined: &Joined = unsafe { look(coll, "communicator") }?;
        // SAFETY: NCCL guarantees that `out` is valid.
        let out = unsafe { place(out) }?;
        let cuda = match kind {
            PTR_HOST => false,
            PTR_CUDA => true,
            _ => {
                return Err(refuse(
                    NcclResult::ARGUMENT,
                    format!("memory of kind {kind}: this plugin supports host memory (1) and CUDA memory (2)"),
                ));
            }
        };
        let never_reset = flags & MR_NEVER_RESET != 0;
        let number = joined.coll.reserve();
        joined.coll.register(number, PluginRegion { address: data as u64, bytes: bytes as u64, cuda, never_reset });
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
    // SAFETY: the arguments are NCCL's, which upholds the same contract.
    let result = unsafe { register(coll, data, bytes, kind, flags, out) };
    if result == NcclResult::SUCCESS && !device_handle.is_null() {
        // SAFETY: NCCL guarantees that both outputs are valid; `register` has written `out`.
        unsafe { device_handle.write(*out) };
    }
    result
}

/// Defines the functions that register a dma-buf. They are never called, because the properties do not offer dma-bufs.
/// They register the memory, which is accessed by copies in any case.
macro_rules! dma_bufs {
    ($($name:ident: $register:path, ($($handle:ident: $kind:ty)?);)*) => {$(
        #[allow(clippy::too_many_arguments, reason = "NCCL's")]
        pub(crate) unsafe extern "C" fn $name(
            coll: *mut c_void,
            data: *mut c_void,
            bytes: usize,
            kind: c_int,
            _offset: u64,
            _descriptor: c_int,
            flags: u64,
            out: *mut *mut c_void,
            $($handle: $kind,)?
        ) -> NcclResult {
            // SAFETY: the arguments are NCCL's, which upholds the same contract.
            unsafe { $register(coll, data, bytes, kind, flags, out, $($handle)?) }
        }
    )*};
}

dma_bufs! {
    register_dma_buf: register, ();
    register_dma_buf13: register13, (handle: *mut *mut c_void);
    register_dma_buf_gin: crate::gin::register, (handle: *mut *mut c_void);
}

pub(crate) unsafe extern "C" fn deregister(coll: *mut c_void, region: *mut c_void) -> NcclResult {
    guarded("deregMrSym", || {
        // SAFETY: NCCL passes handles of `connect` and `regMrSym`.
        let (joined, region) = unsafe { (look::<Joined>(coll, "communicator")?, take::<RegionHandle>(region)) };
        if let Some(region) = region {
            joined.coll.deregister(region.number);
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_context(context: *mut c_void) -> NcclResult {
    guarded("destroyContext", || {
        // SAFETY: NCCL passes a handle of `createContext`.
        drop(unsafe { take::<Context>(context) });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close_coll(coll: *mut c_void) -> NcclResult {
    guarded("closeColl", || {
        // SAFETY: NCCL passes a handle of `connect`.
        if let Some(joined) = unsafe { take::<Joined>(coll) } {
            joined.close();
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close_listen(listener: *mut c_void) -> NcclResult {
    guarded("closeListen", || {
        // SAFETY: NCCL passes a handle of `listen`.
        drop(unsafe { take::<Listener>(listener) });
        Ok(())
    })
}

/// Does nothing, because all objects have been closed by their own calls.
pub(crate) unsafe extern "C" fn finalize(_context: *mut c_void) -> NcclResult {
    NcclResult::SUCCESS
}
