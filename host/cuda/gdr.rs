//! GDRCopy: GPU memory that the CPU reads and writes through the GPU's PCIe window (BAR1), by libgdrapi, which is loaded at
//! run time.
//!
//! This file knows no CUDA: the memory is an address, a length, and an owner that keeps it allocated.

use super::DeviceError;
use libloading::Library;
use nix::errno::Errno;
use std::error::Error;
use std::ffi::{OsStr, c_int, c_ulong, c_void};

/// GPU memory is pinned by whole pages of this size, and a mapping must begin on one.
pub(super) const GPU_PAGE: usize = 1 << 16;
/// Names another libgdrapi than the installed one.
const LIBRARY_VARIABLE: &str = "GINLAB_GDRAPI";
/// The names that an installed libgdrapi has, the likelier one first.
const LIBRARY_NAMES: [&str; 2] = ["libgdrapi.so.2", "libgdrapi.so"];

/// Bytes to pin for so many, and bytes to allocate so that those can begin on a page wherever the allocation begins.
/// `None` when there are no such numbers.
pub(super) fn pinned_and_allocated(bytes: usize) -> Option<(usize, usize)> {
    let pinned = bytes.max(1).checked_next_multiple_of(GPU_PAGE)?;
    Some((pinned, pinned.checked_add(GPU_PAGE)?))
}

/// The version of libgdrapi, as `2.4`; `None` without one. That alone does not say that its kernel module is loaded.
pub fn gdrcopy_version() -> Option<String> {
    Api::load().ok().map(|api| api.version())
}

/// What `gdr_pin_buffer` gives for a pinned buffer (`gdr_mh_t`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct PinHandle(c_ulong);

/// libgdrapi and its functions, as gdrapi.h declares them since release 2.0. The `c_int` that they return is an errno value,
/// or 0 for success.
#[derive(Debug)]
pub(super) struct Api {
    open: unsafe extern "C" fn() -> *mut c_void,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
    pin_buffer: unsafe extern "C" fn(*mut c_void, c_ulong, usize, u64, u32, *mut PinHandle) -> c_int,
    unpin_buffer: unsafe extern "C" fn(*mut c_void, PinHandle) -> c_int,
    map: unsafe extern "C" fn(*mut c_void, PinHandle, *mut *mut c_void, usize) -> c_int,
    unmap: unsafe extern "C" fn(*mut c_void, PinHandle, *mut c_void, usize) -> c_int,
    runtime_get_version: unsafe extern "C" fn(*mut c_int, *mut c_int),
    /// The functions are there as long as this is.
    _library: Library,
}

impl Api {
    /// Loads the library that the environment names, or else the installed one.
    pub(super) fn load() -> Result<Api, DeviceError> {
        match std::env::var_os(LIBRARY_VARIABLE) {
            Some(path) => Api::load_named(&path),
            None => Api::load_installed(),
        }
    }

    fn load_named(path: &OsStr) -> Result<Api, DeviceError> {
        let library = open_library(path).map_err(|why| {
            DeviceError::Missing(format!(
                "GDRCopy: the library that {LIBRARY_VARIABLE} names does not load: {why} (give the path of a libgdrapi, or \
                 unset it)"
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
                "GDRCopy: no {} on this machine (install gdrcopy, load its gdrdrv kernel module, or name the library in \
                 {LIBRARY_VARIABLE})",
                LIBRARY_NAMES[0]
            ),
            Some(why) => format!(
                "GDRCopy: its library does not load: {why} (install gdrcopy again, or name the library in \
                 {LIBRARY_VARIABLE})"
            ),
        }))
    }

    fn of(library: Library) -> Result<Api, DeviceError> {
        // SAFETY: these are the types that gdrapi.h gives the functions of these names.
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
        // SAFETY: both pointers are to locals.
        unsafe { (self.runtime_get_version)(&mut major, &mut minor) };
        format!("{major}.{minor}")
    }
}

/// Loads a library, or says why not in the loader's words.
fn open_library(name: &OsStr) -> Result<Library, String> {
    // SAFETY: libgdrapi runs nothing on loading and unloading; what the user names instead is the user's own choice.
    unsafe { Library::new(name) }
        .map_err(|error| error.source().map_or_else(|| error.to_string(), |source| source.to_string()))
}

/// # Safety
/// `F` is the type of the function that has this name.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Result<F, DeviceError> {
    // SAFETY: the caller's contract.
    match unsafe { library.get::<F>(name) } {
        Ok(function) => Ok(*function),
        Err(_) => Err(DeviceError::Missing(format!(
            "GDRCopy: the library has no {name}: it is no libgdrapi of release 2 (install gdrcopy 2.1 or later; if \
             {LIBRARY_VARIABLE} is set, see what it names)"
        ))),
    }
}

/// A connection to the kernel module gdrdrv; closed when dropped.
///
/// Every mapping has one of its own: libgdrapi keeps a list in it, without a lock.
#[derive(Debug)]
pub(super) struct Connection {
    raw: *mut c_void,
    api: Api,
}

// SAFETY: since release 2.1 gdrdrv serves every thread of the process that opened it.
unsafe impl Send for Connection {}
// SAFETY: it is used only by its owner, to make and to drop a mapping.
unsafe impl Sync for Connection {}

impl Connection {
    pub(super) fn open(api: Api) -> Result<Connection, DeviceError> {
        // SAFETY: no requirements.
        let raw = unsafe { (api.open)() };
        if raw.is_null() {
            return Err(DeviceError::Missing(
                "GDRCopy: gdr_open failed: /dev/gdrdrv is missing or not permitted, or gdrdrv and libgdrapi do not fit each \
                 other (modprobe gdrdrv; in a container pass the device in; GDRCOPY_ENABLE_LOGGING=1 tells which)"
                    .into(),
            ));
        }
        Ok(Connection { raw, api })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // An error cannot be mended; the kernel closes what is left at the end of the process.
        // SAFETY: opened, and nothing uses it any more.
        let _ = unsafe { (self.api.close)(self.raw) };
    }
}

/// GPU memory that is mapped for the CPU. Dropping it unmaps, unpins, frees the memory (which is to drop `M`) and closes the
/// connection, in this order.
#[derive(Debug)]
pub(super) struct Mapping<M> {
    handle: PinHandle,
    bytes: usize,
    /// 0 until it is mapped.
    address: u64,
    // Dropped in this order, after the unpinning: the memory is freed, and then the connection is closed.
    _memory: M,
    connection: Connection,
}

impl<M> Mapping<M> {
    /// Pins and maps `bytes` at `address`, both multiples of [`GPU_PAGE`], which lie within `memory`. After a failure nothing
    /// is left, the memory neither.
    pub(super) fn new(connection: Connection, memory: M, address: u64, bytes: usize) -> Result<Self, DeviceError> {
        let mut handle = PinHandle(0);
        // The two zeros are tokens that CUDA has not needed since version 6.
        // SAFETY: the connection is open, and the handle is a local; gdrdrv refuses an address that is no GPU memory.
        let code = unsafe { (connection.api.pin_buffer)(connection.raw, address as c_ulong, bytes, 0, 0, &mut handle) };
        let advice = "the GPU needs GPUDirect RDMA and room in its BAR1: nvidia-smi -q";
        if let Err(error) = check(code, "gdr_pin_buffer", bytes, advice) {
            // In the order in which they would have gone with the pin.
            drop(memory);
            drop(connection);
            return Err(error);
        }
        let mut mapping = Mapping { handle, bytes, address: 0, _memory: memory, connection };
        let Connection { raw, api } = &mapping.connection;
        let mut mapped = std::ptr::null_mut();
        // SAFETY: the connection is open, the handle is of so many bytes, and the address is a local.
        let code = unsafe { (api.map)(*raw, handle, &mut mapped, bytes) };
        check(code, "gdr_map", bytes, "gdrdrv and libgdrapi should be of one release")?;
        mapping.address = mapped as u64;
        Ok(mapping)
    }

    /// First byte, as the CPU addresses it.
    pub(super) fn host_address(&self) -> u64 {
        self.address
    }
}

impl<M> Drop for Mapping<M> {
    fn drop(&mut self) {
        let Connection { raw, api } = &self.connection;
        // Errors cannot be mended: unpinning takes the mapping away too, and closing the pin.
        if self.address != 0 {
            // SAFETY: mapped from this handle with this length, and whoever used the address has ended.
            let _ = unsafe { (api.unmap)(*raw, self.handle, self.address as *mut c_void, self.bytes) };
        }
        // SAFETY: pinned by this connection, unmapped, and the handle is not used again.
        let _ = unsafe { (api.unpin_buffer)(*raw, self.handle) };
    }
}

fn check(code: c_int, call: &str, bytes: usize, advice: &str) -> Result<(), DeviceError> {
    if code == 0 {
        return Ok(());
    }
    Err(DeviceError::Driver {
        call: format!("GDRCopy: {call} of {bytes} bytes"),
        text: format!("{} ({advice}; dmesg may have gdrdrv's own words)", Errno::from_raw(code)),
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

    /// tests/gdr_double.c, compiled for one test. It maps nothing: it records what it is asked.
    #[derive(Debug)]
    struct Double {
        folder: tempfile::TempDir,
        library: Library,
    }

    impl Double {
        /// `None`, with a line about it, where there is no C compiler.
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
                    // Not `println!`, which a test that passes swallows.
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

        /// From now on the call of this name fails.
        fn fail(&self, call: &str, code: Errno) {
            let call = CString::new(call).unwrap();
            // SAFETY: this is its type.
            let fail: unsafe extern "C" fn(*const c_char, c_int) =
                unsafe { function(&self.library, "double_fail") }.unwrap();
            // SAFETY: the text ends with a zero, and is copied.
            unsafe { fail(call.as_ptr(), code as c_int) };
        }

        /// What was done so far, in order.
        fn record(&self) -> String {
            // SAFETY: this is its type.
            let record: unsafe extern "C" fn() -> *const c_char =
                unsafe { function(&self.library, "double_record") }.unwrap();
            // SAFETY: the text ends with a zero; nothing is recorded meanwhile.
            unsafe { CStr::from_ptr(record()) }.to_str().unwrap().into()
        }

        /// Maps two pages, as far as that goes.
        fn map(&self) -> Result<Mapping<Pages<'_>>, DeviceError> {
            let connection = Connection::open(self.api())?;
            let pages = Pages::allocate(self);
            let address = pages.address as u64;
            Mapping::new(connection, pages, address, BYTES)
        }
    }

    const BYTES: usize = 2 * GPU_PAGE;

    /// In the place of GPU memory; records that it is freed.
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
            // SAFETY: this is its type.
            let free: unsafe extern "C" fn() = unsafe { function(&self.double.library, "double_free") }.unwrap();
            // SAFETY: no requirements.
            unsafe { free() };
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.address, Pages::layout()) };
        }
    }

    #[test]
    fn a_mapping_is_released_in_the_reverse_order() {
        let Some(double) = Double::build() else { return };
        assert_eq!(double.api().version(), "2.99");

        let mapping = double.map().unwrap();
        assert_eq!(double.record(), "open pin map");
        let word = mapping.host_address() as *mut u64;
        // SAFETY: the double maps memory to where it is; the pages are 8-byte aligned, and no one else knows of them.
        unsafe {
            assert_eq!(word.read(), 0);
            word.add(BYTES / 8 - 1).write(7);
        }
        drop(mapping);
        assert_eq!(double.record(), "open pin map unmap unpin free close");
    }

    #[test]
    fn what_fails_says_so_in_one_line_and_leaves_nothing_behind() {
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
            ("map", Errno::EAGAIN, "gdr_map", "of one release", "open pin map unpin free close"),
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
    fn a_failure_to_release_does_not_keep_the_rest() {
        for call in ["unmap", "unpin", "close"] {
            let Some(double) = Double::build() else { return };
            double.fail(call, Errno::EIO);
            drop(double.map().unwrap());
            assert_eq!(double.record(), "open pin map unmap unpin free close", "{call} failed");
        }
    }

    #[test]
    fn the_double_knows_what_gdrcopy_refuses() {
        let Some(double) = Double::build() else { return };
        let pages = Pages::allocate(&double);
        let begin = pages.address as u64;
        for (address, bytes) in [(begin + 4096, GPU_PAGE), (begin, 4096), (begin, 0)] {
            let refused = Mapping::new(Connection::open(double.api()).unwrap(), (), address, bytes);
            assert!(refused.unwrap_err().to_string().contains("EINVAL"), "{address:x} {bytes}");
        }
    }

    #[test]
    fn a_library_that_is_missing_or_another_is_named() {
        let absent = Api::load_named("/nonexistent/libgdrapi.so".as_ref()).unwrap_err().to_string();
        assert!(
            absent.starts_with("GDRCopy: the library that GINLAB_GDRAPI names does not load: /nonexistent/"),
            "{absent}"
        );
        let other = Api::load_named("libc.so.6".as_ref()).unwrap_err();
        assert!(matches!(other, DeviceError::Missing(_)), "{other:?}");
        assert!(other.to_string().starts_with("GDRCopy: the library has no gdr_open: it is no libgdrapi"), "{other}");

        match Api::load_installed() {
            Ok(api) => assert!(api.version().starts_with("2."), "{}", api.version()),
            Err(error) => assert_eq!(
                error.to_string(),
                "GDRCopy: no libgdrapi.so.2 on this machine (install gdrcopy, load its gdrdrv kernel module, or name the \
                 library in GINLAB_GDRAPI)"
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
