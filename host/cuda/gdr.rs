//! GDRCopy: GPU memory that the CPU accesses through the GPU's PCIe window (BAR1), with libgdrapi, which is loaded at
//! run time.
//!
//! This module does not depend on CUDA: the memory is an address, a length, and an owner that keeps it allocated.

use super::DeviceError;
use libloading::Library;
use nix::errno::Errno;
use std::error::Error;
use std::ffi::{OsStr, c_int, c_ulong, c_void};

/// Granularity of pinned GPU memory, and alignment of mappings.
pub(super) const GPU_PAGE: usize = 1 << 16;
/// Environment variable that names another libgdrapi than the installed one.
const LIBRARY_VARIABLE: &str = "GINLAB_GDRAPI";
/// Names of an installed libgdrapi, most likely first.
const LIBRARY_NAMES: [&str; 2] = ["libgdrapi.so.2", "libgdrapi.so"];

/// Returns the number of bytes to pin for `bytes` bytes, and the number of bytes to allocate. The latter is large
/// enough for the pinned range to start on a page, regardless of the allocation's alignment. `None` on overflow.
pub(super) fn pinned_and_allocated(bytes: usize) -> Option<(usize, usize)> {
    let pinned = bytes.max(1).checked_next_multiple_of(GPU_PAGE)?;
    Some((pinned, pinned.checked_add(GPU_PAGE)?))
}

/// Returns the version of libgdrapi, for example `2.4`, or `None` if it is not installed. Does not check that its
/// kernel module is loaded.
pub fn gdrcopy_version() -> Option<String> {
    Api::load().ok().map(|api| api.version())
}

/// Handle of a pinned buffer, returned by `gdr_pin_buffer` (`gdr_mh_t`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct PinHandle(c_ulong);

/// libgdrapi's functions, as declared by gdrapi.h since release 2.0. The returned `c_int` is an errno value, or 0 for
/// success.
#[derive(Debug)]
pub(super) struct Api {
    open: unsafe extern "C" fn() -> *mut c_void,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
    pin_buffer: unsafe extern "C" fn(*mut c_void, c_ulong, usize, u64, u32, *mut PinHandle) -> c_int,
    unpin_buffer: unsafe extern "C" fn(*mut c_void, PinHandle) -> c_int,
    map: unsafe extern "C" fn(*mut c_void, PinHandle, *mut *mut c_void, usize) -> c_int,
    unmap: unsafe extern "C" fn(*mut c_void, PinHandle, *mut c_void, usize) -> c_int,
    runtime_get_version: unsafe extern "C" fn(*mut c_int, *mut c_int),
    /// Keeps the functions loaded.
    _library: Library,
}

impl Api {
    /// Loads the library named by the environment variable or, if it is unset, the installed one.
    pub(super) fn load() -> Result<Api, DeviceError> {
        match std::env::var_os(LIBRARY_VARIABLE) {
            Some(path) => Api::load_named(&path),
            None => Api::load_installed(),
        }
    }

    fn load_named(path: &OsStr) -> Result<Api, DeviceError> {
        let library = open_library(path).map_err(|why| {
            DeviceError::Missing(format!(
                "GDRCopy: cannot load the library that {LIBRARY_VARIABLE} names: {why}; set it to the path of a \
                 libgdrapi, or unset it"
            ))
        })?;
        Api::of(library)
    }

    fn load_installed() -> Result<Api, DeviceError> {
        let mut broken = None;
        for name in LIBRARY_NAMES {
            match open_library(name.as_ref()) {
                Ok(library) => return Api::of(library),
                Err(why) if why.starts_with(name) && why.contains("No such file") => {}
                Err(why) => broken = broken.or(Some(why)),
            }
        }
        Err(DeviceError::Missing(match broken {
            None => format!(
                "GDRCopy: no {} on this machine; install gdrcopy, load its gdrdrv kernel module, or name the library \
                 in {LIBRARY_VARIABLE}",
                LIBRARY_NAMES[0]
            ),
            Some(why) => format!(
                "GDRCopy: cannot load its library: {why}; reinstall gdrcopy, or name the library in {LIBRARY_VARIABLE}"
            ),
        }))
    }

    fn of(library: Library) -> Result<Api, DeviceError> {
        // SAFETY: these are the types that gdrapi.h declares for the functions.
        unsafe {
            Ok(Api {
                open: function(&library, "gdr_open")?,
                close: function(&library, "gdr_close")?,
                pin_buffer: function(&library, "gdr_pin_buffer")?,
                unpin_buffer: function(&library, "gdr_unpin_buffer")?,
                map: function(&library, "gdr_map")?,
                unmap: function(&library, "gdr_unmap")?,
                runtime_get_version: function(&library, "gdr_runtime_get_version")?,
                _library: library,
            })
        }
    }

    fn version(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers refer to local variables.
        unsafe { (self.runtime_get_version)(&mut major, &mut minor) };
        format!("{major}.{minor}")
    }
}

/// Loads a library. Returns the loader's message if this fails.
fn open_library(name: &OsStr) -> Result<Library, String> {
    // SAFETY: libgdrapi runs no code on loading and unloading. A library that the user specifies instead is trusted.
    unsafe { Library::new(name) }
        .map_err(|error| error.source().map_or_else(|| error.to_string(), |source| source.to_string()))
}

/// Returns the function `name` of a library.
///
/// # Safety
/// `F` must be the type of the function `name`.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, DeviceError> {
    // SAFETY: the caller guarantees that `F` is the type of the symbol.
    match unsafe { library.get::<F>(name) } {
        Ok(function) => Ok(*function),
        Err(_) => Err(DeviceError::Missing(format!(
            "GDRCopy: the library has no {name}: it is not a libgdrapi of release 2; install gdrcopy 2.1 or later, or \
             check {LIBRARY_VARIABLE} if it is set"
        ))),
    }
}

/// A connection to the kernel module gdrdrv; closed on drop.
///
/// Every mapping has its own connection, because libgdrapi keeps a list per connection without a lock.
#[derive(Debug)]
pub(super) struct Connection {
    raw: *mut c_void,
    api: Api,
}

// SAFETY: since release 2.1, gdrdrv serves every thread of the process that opened the connection.
unsafe impl Send for Connection {}
// SAFETY: the connection is used only by its owner, which creates and drops one mapping.
unsafe impl Sync for Connection {}

impl Connection {
    pub(super) fn open(api: Api) -> Result<Connection, DeviceError> {
        // SAFETY: the call takes no arguments.
        let raw = unsafe { (api.open)() };
        if raw.is_null() {
            return Err(DeviceError::Missing(
                "GDRCopy: gdr_open failed: /dev/gdrdrv is missing or not permitted, or gdrdrv and libgdrapi are \
                 incompatible; run modprobe gdrdrv, pass the device into the container, or set \
                 GDRCOPY_ENABLE_LOGGING=1 to see which"
                    .into(),
            ));
        }
        Ok(Connection { raw, api })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // An error cannot be handled; the kernel closes the connection when the process exits.
        // SAFETY: the connection is open, and this is its last use.
        let _ = unsafe { (self.api.close)(self.raw) };
    }
}

/// GPU memory that is mapped for the CPU. Dropping it unmaps and unpins the memory, frees it by dropping `M`, and
/// closes the connection, in this order.
#[derive(Debug)]
pub(super) struct Mapping<M> {
    handle: PinHandle,
    bytes: usize,
    /// Address for the CPU. 0 means that the memory is not mapped yet.
    address: u64,
    // The fields are dropped in this order after unpinning: first the memory is freed, then the connection is closed.
    _memory: M,
    connection: Connection,
}

impl<M> Mapping<M> {
    /// Pins and maps `bytes` bytes at `address`, which must be multiples of [`GPU_PAGE`] and lie within `memory`. After
    /// a failure all resources are released, including the memory.
    pub(super) fn new(connection: Connection, memory: M, address: u64, bytes: usize) -> Result<Self, DeviceError> {
        let mut handle = PinHandle(0);
        // The two zeros are tokens that CUDA has not needed since version 6.
        // SAFETY: the connection is open, and the handle is a local variable. gdrdrv rejects addresses that are not GPU
        // memory.
        let code = unsafe { (connection.api.pin_buffer)(connection.raw, address as c_ulong, bytes, 0, 0, &mut handle) };
        let advice = "the GPU needs GPUDirect RDMA and space in its BAR1: nvidia-smi -q";
        if let Err(error) = check(code, "gdr_pin_buffer", bytes, advice) {
            // Uses the same order as the drop of a mapping.
            drop(memory);
            drop(connection);
            return Err(error);
        }
        let mut mapping = Mapping { handle, bytes, address: 0, _memory: memory, connection };
        let Connection { raw, api } = &mapping.connection;
        let mut mapped = std::ptr::null_mut();
        // SAFETY: the connection is open, the handle covers `bytes` bytes, and the address is a local variable.
        let code = unsafe { (api.map)(*raw, handle, &mut mapped, bytes) };
        check(code, "gdr_map", bytes, "gdrdrv and libgdrapi should be of the same release")?;
        mapping.address = mapped as u64;
        Ok(mapping)
    }

    /// Returns the address of the first byte for the CPU.
    pub(super) fn host_address(&self) -> u64 {
        self.address
    }
}

impl<M> Drop for Mapping<M> {
    fn drop(&mut self) {
        let Connection { raw, api } = &self.connection;
        // Errors can be ignored: unpinning also removes the mapping, and closing the connection also unpins.
        if self.address != 0 {
            // SAFETY: the mapping was created with this handle and length, and no code uses the address any longer.
            let _ = unsafe { (api.unmap)(*raw, self.handle, self.address as *mut c_void, self.bytes) };
        }
        // SAFETY: the handle was pinned by this connection and is unmapped. This is its last use.
        let _ = unsafe { (api.unpin_buffer)(*raw, self.handle) };
    }
}

fn check(code: c_int, call: &str, bytes: usize, advice: &str) -> Result<(), DeviceError> {
    if code == 0 {
        return Ok(());
    }
    Err(DeviceError::Driver {
        call: format!("GDRCopy: {call} of {bytes} bytes"),
        text: format!("{} ({advice}; dmesg may contain a message of gdrdrv)", Errno::from_raw(code)),
    })
}

#[cfg(test)]
mod tests;
