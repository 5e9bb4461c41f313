//! Tests of the mapping with a test double of GDRCopy.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

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
                // `println!` is not used, because its output is hidden if the test passes.
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

    /// Makes subsequent calls of the function `call` fail.
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
    assert!(absent.starts_with("GDRCopy: cannot load the library that GINLAB_GDRAPI names: /nonexistent/"), "{absent}");
    let other = Api::load_named("libc.so.6".as_ref()).unwrap_err();
    assert!(matches!(other, DeviceError::Missing(_)), "{other:?}");
    assert!(other.to_string().starts_with("GDRCopy: the library has no gdr_open: it is not a libgdrapi"), "{other}");

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
