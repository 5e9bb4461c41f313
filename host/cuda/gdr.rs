//! GDRCopy: GPU memory that the CPU accesses through the GPU's PCIe window (BAR1), by libgdrapi, which is loaded at run
//! time.
//!
//! This module does not depend on CUDA: the memory is an address, a length, and an owner that keeps it allocated.

use super::DeviceError;
use libloading::Library;
use nix::errno::Errno;
use std::error::Error;
use std::ffi::{OsStr, c_int, c_ulong, c_void};

/// Granularity of pinned GPU memory, and alignment of mappings.
pub(super) const GPU_PAGE: usize = 1 << 16;
/// Environment variable that names a libgdrapi other than the installed one.
const LIBRARY_VARIABLE: &str = "GINLAB_GDRAPI";
/// Names of an installed libgdrapi, the more likely one first.
const LIBRARY_NAMES: [&str; 2] = ["libgdrapi.so.2", "libgdrapi.so"];

/// Returns the number of bytes to pin for `bytes` bytes, and the number of bytes to allocate. The latter is large
/// enough for the pinned range to start on a page, regardless of the allocation's alignment. `None` on overflow.
pub(super) fn pinned_and_allocated(bytes: usize) -> Option<(usize, usize)> {
    let pinned = bytes.max(1).checked_next_multiple_of(GPU_PAGE)?;
    Some((pinned, pinned.checked_add(GPU_PAGE)?))
}

/// Returns the version of libgdrapi, for example `2.4`. `None` if it is not installed. Does not check that its kernel
/// module is loaded.
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
    /// Loads the library named by the environment variable, or else the installed one.
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
    // SAFETY: libgdrapi runs no code on loading and unloading. A library that the user names instead is trusted.
    unsafe { Library::new(name) }
        .map_err(|error| error.source().map_or_else(|| error.to_string(), |source| source.to_string()))
}

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

/// GPU memory that is mapped for the CPU. Dropping it unmaps, unpins, frees the memory by dropping `M`, and closes the
/// connection, in this order.
#[derive(Debug)]
pub(super) struct Mapping<M> {
    handle: PinHandle,
    bytes: usize,
    /// Address for the CPU, or 0 until it is mapped.
    address: u64,
    // Dropped in this order, after unpinning: the memory is freed, and then the connection is closed.
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
            // Same order as in the drop of a mapping.
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ffi::{CStr, CString, c_char};
    use std::io::Write;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// tests/gdr_double.c, compiled for one test. It maps nothing, but records its calls.
    #[derive(Debug)]
    struct Double {
        folder: tempfile::TempDir,
        library: Library,
    }

    impl Double {
        /// Returns `None` and prints a line if there is no C compiler.
        fn build() -> Option<Double> {
            let folder = tempfile::tempdir().unwrap();
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gdr_double.c");
            let compiler = Command::new("cc")
                .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-o"])
                .args([&Double::path(&folder), &source])
                .output();
            match compiler {
                Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
                Err(error) => {
                    // `println!` is not suitable: its output is hidden if the test passes.
                    let _ = writeln!(std::io::stderr(), "skipped: no C compiler (cc): {error}");
                    return None;
                }
            }
            let library = open_library(Double::path(&folder).as_os_str()).unwrap();
            Some(Double { folder, library })
        }

        fn path(folder: &tempfile::TempDir) -> PathBuf {
            folder.path().join("libgdr_double.so")
        }

        fn api(&self) -> Api {
            Api::load_named(Double::path(&self.folder).as_os_str()).unwrap()
        }

        /// Makes the function `call` fail from now on.
        fn fail(&self, call: &str, code: Errno) {
            let call = CString::new(call).unwrap();
            // SAFETY: the type matches that in tests/gdr_double.c.
            let fail: unsafe extern "C" fn(*const c_char, c_int) =
                unsafe { function(&self.library, "double_fail") }.unwrap();
            // SAFETY: the text is a C string, and the function copies it.
            unsafe { fail(call.as_ptr(), code as c_int) };
        }

        /// Returns the recorded calls, in order.
        fn record(&self) -> String {
            // SAFETY: the type matches that in tests/gdr_double.c.
            let record: unsafe extern "C" fn() -> *const c_char =
                unsafe { function(&self.library, "double_record") }.unwrap();
            // SAFETY: the text is a C string, and nothing is recorded during the call.
            unsafe { CStr::from_ptr(record()) }.to_str().unwrap().into()
        }

        /// Maps two pages. Returns the first error.
        fn map(&self) -> Result<Mapping<Pages<'_>>, DeviceError> {
            let connection = Connection::open(self.api())?;
            let pages = Pages::allocate(self);
            let address = pages.address as u64;
            Mapping::new(connection, pages, address, BYTES)
        }
    }

    const BYTES: usize = 2 * GPU_PAGE;

    /// Stands in for GPU memory, and records when it is freed.
    #[derive(Debug)]
    struct Pages<'a> {
        address: *mut u8,
        double: &'a Double,
    }

    impl Pages<'_> {
        fn layout() -> Layout {
            Layout::from_size_align(BYTES, GPU_PAGE).unwrap()
        }

        fn allocate(double: &Double) -> Pages<'_> {
            // SAFETY: the size is not 0.
            Pages { address: unsafe { alloc_zeroed(Pages::layout()) }, double }
        }
    }

    impl Drop for Pages<'_> {
        fn drop(&mut self) {
            // SAFETY: the type matches that in tests/gdr_double.c.
            let free: unsafe extern "C" fn() = unsafe { function(&self.double.library, "double_free") }.unwrap();
            // SAFETY: the function takes no arguments.
            unsafe { free() };
            // SAFETY: the memory was allocated with this layout.
            unsafe { dealloc(self.address, Pages::layout()) };
        }
    }

    #[test]
    fn mapping_is_released_in_reverse_order() {
        let Some(double) = Double::build() else { return };
        assert_eq!(double.api().version(), "2.99");

        let mapping = double.map().unwrap();
        assert_eq!(double.record(), "open pin map");
        let word = mapping.host_address() as *mut u64;
        // SAFETY: the double maps memory to its own address. The pages are aligned to 8 bytes, and no other code uses
        // them.
        unsafe {
            assert_eq!(word.read(), 0);
            word.add(BYTES / 8 - 1).write(7);
        }
        drop(mapping);
        assert_eq!(double.record(), "open pin map unmap unpin free close");
    }

    #[test]
    fn failures_are_one_line_and_release_resources() {
        let Some(double) = Double::build() else { return };
        double.fail("open", Errno::ENOENT);
        let error = double.map().unwrap_err();
        assert!(matches!(error, DeviceError::Missing(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("GDRCopy: gdr_open failed: /dev/gdrdrv is missing or not permitted"), "{text}");
        assert!(text.contains("modprobe gdrdrv") && !text.contains('\n'), "{text}");
        assert_eq!(double.record(), "open");

        let failures = [
            ("pin", Errno::ENOMEM, "gdr_pin_buffer", "BAR1", "open pin free close"),
            ("map", Errno::EAGAIN, "gdr_map", "of the same release", "open pin map unpin free close"),
        ];
        for (call, code, name, advice, record) in failures {
            let Some(double) = Double::build() else { return };
            double.fail(call, code);
            let error = double.map().unwrap_err();
            assert!(matches!(error, DeviceError::Driver { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.starts_with(&format!("GDRCopy: {name} of 131072 bytes failed: {code}")), "{text}");
            assert!(text.contains(advice) && text.contains("dmesg") && !text.contains('\n'), "{text}");
            assert_eq!(double.record(), record);
        }
    }

    #[test]
    fn failed_release_does_not_stop_other_releases() {
        for call in ["unmap", "unpin", "close"] {
            let Some(double) = Double::build() else { return };
            double.fail(call, Errno::EIO);
            drop(double.map().unwrap());
            assert_eq!(double.record(), "open pin map unmap unpin free close", "{call} failed");
        }
    }

    #[test]
    fn double_rejects_same_requests_as_gdrcopy() {
        let Some(double) = Double::build() else { return };
        let pages = Pages::allocate(&double);
        let begin = pages.address as u64;
        for (address, bytes) in [(begin + 4096, GPU_PAGE), (begin, 4096), (begin, 0)] {
            let refused = Mapping::new(Connection::open(double.api()).unwrap(), (), address, bytes);
            assert!(refused.unwrap_err().to_string().contains("EINVAL"), "{address:x} {bytes}");
        }
    }

    #[test]
    fn missing_and_wrong_libraries_are_named() {
        let absent = Api::load_named("/nonexistent/libgdrapi.so".as_ref()).unwrap_err().to_string();
        assert!(
            absent.starts_with("GDRCopy: cannot load the library that GINLAB_GDRAPI names: /nonexistent/"),
            "{absent}"
        );
        let other = Api::load_named("libc.so.6".as_ref()).unwrap_err();
        assert!(matches!(other, DeviceError::Missing(_)), "{other:?}");
        assert!(
            other.to_string().starts_with("GDRCopy: the library has no gdr_open: it is not a libgdrapi"),
            "{other}"
        );

        match Api::load_installed() {
            Ok(api) => assert!(api.version().starts_with("2."), "{}", api.version()),
            Err(error) => assert_eq!(
                error.to_string(),
                "GDRCopy: no libgdrapi.so.2 on this machine; install gdrcopy, load its gdrdrv kernel module, or name \
                 the library in GINLAB_GDRAPI"
            ),
        }
    }

    #[test]
    fn pages_are_whole_and_can_be_aligned() {
        for (bytes, pinned) in [(0, 1), (1, 1), (GPU_PAGE, 1), (GPU_PAGE + 1, 2)] {
            assert_eq!(pinned_and_allocated(bytes), Some((pinned * GPU_PAGE, (pinned + 1) * GPU_PAGE)), "{bytes}");
        }
        for bytes in [usize::MAX, usize::MAX - GPU_PAGE] {
            assert_eq!(pinned_and_allocated(bytes), None, "{bytes}");
        }
    }
}
