//! Support for programs that check for a NIC in the file system before they open it. The device file of a software NIC
//! is `/dev/null`, and its directory in `/sys/class/infiniband` is that of the substitute for sysfs.
//!
//! Only these functions are replaced, and only for these paths. rdma-core and libfabric read sysfs through the variable
//! `SYSFS_PATH`, which the list of devices sets.

use crate::machine::SoftMachine;
use crate::next;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Returns the path to use instead of `path`, or `None` if `path` does not name a software NIC.
fn replaced(path: &CStr) -> Option<CString> {
    let bytes = path.to_bytes();
    if let Some(number) = bytes.strip_prefix(b"/dev/infiniband/uverbs") {
        let card: usize = std::str::from_utf8(number).ok()?.parse().ok()?;
        return (card < SoftMachine::get().ok()?.devices().len()).then(|| c"/dev/null".to_owned());
    }
    let name = bytes.strip_prefix(b"/sys/")?;
    if !name.starts_with(b"class/infiniband/") {
        return None;
    }
    let path = SoftMachine::get().ok()?.sysfs()?.join(std::ffi::OsStr::from_bytes(name));
    CString::new(path.into_os_string().into_vec()).ok()
}

/// Calls the next definition of a function with the replaced path.
///
/// # Safety
/// `path` must be null or a C string.
unsafe fn with_path<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: the caller guarantees that `path` is null or a C string.
    match unsafe { path.as_ref().and_then(|_| replaced(CStr::from_ptr(path))) } {
        Some(other) => call(other.as_ptr()),
        None => call(path),
    }
}

/// Defines functions that read the attributes of a file or resolve its path. Each returns `$fails` if the C library
/// does not define it.
macro_rules! checks {
    ($($name:ident($($argument:ident: $ty:ty),*) -> $answer:ty, $path:ident, $fails:expr;)*) => {$(
        /// Forwards to the C library, with the path of a software NIC replaced.
        ///
        /// # Safety
        /// The requirements of the C library apply.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $ty),*) -> $answer {
            // SAFETY: the next definition of this name has this type; the caller meets its requirements.
            unsafe {
                let Some(next) = next!(CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
                    => unsafe extern "C" fn($($ty),*) -> $answer) else { return $fails };
                with_path($path, |$path| next($($argument),*))
            }
        }
    )*};
}
checks! {
    stat(path: *const c_char, place: *mut c_void) -> c_int, path, -1;
    stat64(path: *const c_char, place: *mut c_void) -> c_int, path, -1;
    __xstat(version: c_int, path: *const c_char, place: *mut c_void) -> c_int, path, -1;
    __xstat64(version: c_int, path: *const c_char, place: *mut c_void) -> c_int, path, -1;
    access(path: *const c_char, mode: c_int) -> c_int, path, -1;
    realpath(path: *const c_char, place: *mut c_char) -> *mut c_char, path, std::ptr::null_mut();
    __realpath_chk(path: *const c_char, place: *mut c_char, bytes: usize) -> *mut c_char, path, std::ptr::null_mut();
}
