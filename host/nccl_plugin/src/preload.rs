//! Behaviour of the preloaded library. To NCCL, each process appears as a separate node, so that ranks on one GPU
//! communicate over the network. At its exit, each rank reports the NCCL that it has loaded.
//!
//! `ginlab nccl` preloads the library for every launcher (mpirun, torchrun, a shell, a fork), because NCCL reads
//! `NCCL_HOSTID` before it loads any plugin, and an NCCL that is too old loads no plugin.

use std::ffi::{CStr, CString, c_char, c_int};

/// Variable that enables this behaviour, with the value `process`.
pub const NODES: &str = "GINLAB_NCCL_NODES";
/// Variable that makes `gethostname` also return the node's name. Intended for libraries above NCCL that use
/// `gethostname` to detect ranks on the same machine (NCCL EP).
pub const HOSTNAMES: &CStr = c"GINLAB_NCCL_HOSTNAMES";

/// Prefix of node names that this library creates.
const NAMED: &str = "ginlab-process-";

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if std::env::var_os(crate::settings::RECORDS).is_some() {
        // SAFETY: the handler is the function below. The C library calls it before it unloads this library. If no
        // handler can be added, only the report is missing.
        unsafe { libc::atexit(report) };
    }
    let asked = std::env::var_os(NODES).is_some_and(|value| value == "process");
    if !asked {
        return;
    }
    name();
    // SAFETY: the handler is the function below, which stays valid because a preloaded library is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(name)) };
}

extern "C" fn report() {
    crate::loaded::report();
}

extern "C" fn name() {
    // A name that the user has set is kept. A name with this prefix was set by a parent process, such as mpirun, and is
    // replaced.
    if std::env::var("NCCL_HOSTID").is_ok_and(|name| !name.starts_with(NAMED)) {
        return;
    }
    let Ok(node) = CString::new(format!("{NAMED}{}", std::process::id())) else { return };
    // SAFETY: runs in the loader before the program's first instruction, or in the child of a fork; both have only one
    // thread.
    unsafe { libc::setenv(c"NCCL_HOSTID".as_ptr(), node.as_ptr(), 1) };
}

/// Replaces the C library's `gethostname`. Returns the node's name if [`HOSTNAMES`] is set, otherwise the system's host
/// name.
///
/// # Safety
/// The requirements are those of the C function: `out` must be valid for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostname(out: *mut c_char, length: usize) -> c_int {
    let mut system = std::mem::MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: `system` is a local variable to write to; strings of the environment and of the system end with a NUL;
    // the caller guarantees that `out` has `length` bytes.
    unsafe {
        let own = if libc::getenv(HOSTNAMES.as_ptr()).is_null() {
            std::ptr::null()
        } else {
            libc::getenv(c"NCCL_HOSTID".as_ptr()).cast_const()
        };
        let name = if own.is_null() {
            if libc::uname(system.as_mut_ptr()) != 0 {
                return -1;
            }
            CStr::from_ptr((*system.as_ptr()).nodename.as_ptr())
        } else {
            CStr::from_ptr(own)
        };
        let bytes = name.to_bytes_with_nul();
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len().min(length));
        if bytes.len() > length {
            *libc::__errno_location() = libc::ENAMETOOLONG;
            return -1;
        }
    }
    0
}
