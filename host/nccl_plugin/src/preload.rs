//! What happens when the library is preloaded: each process becomes a node of its own for NCCL, so that ranks of one GPU talk by the network.
//!
//! `ginlab nccl` preloads it, whatever starts the ranks (mpirun, torchrun, a shell, a fork): NCCL reads `NCCL_HOSTID` before it loads any plugin.

use std::ffi::{CStr, CString, c_char, c_int};

/// Asks for it: `process`.
pub const NODES: &str = "GINLAB_NCCL_NODES";
/// Asks that `gethostname` says the node's name, too: for libraries above NCCL that look for ranks of their own machine by it (NCCL EP).
pub const HOSTNAMES: &CStr = c"GINLAB_NCCL_HOSTNAMES";

/// How names of nodes begin that were made here.
const NAMED: &str = "ginlab-process-";

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let asked = std::env::var_os(NODES).is_some_and(|value| value == "process");
    if !asked {
        return;
    }
    name();
    // SAFETY: the function below, which stays as long as the library, and that is preloaded.
    unsafe { libc::pthread_atfork(None, None, Some(name)) };
}

extern "C" fn name() {
    // What the user has set stays; what a process before this one has set, as mpirun did, is that one's name.
    if std::env::var("NCCL_HOSTID").is_ok_and(|name| !name.starts_with(NAMED)) {
        return;
    }
    let Ok(node) = CString::new(format!("{NAMED}{}", std::process::id())) else { return };
    // SAFETY: the loader runs this before the program's first line, in its one thread; or the child of a fork, which has one.
    unsafe { libc::setenv(c"NCCL_HOSTID".as_ptr(), node.as_ptr(), 1) };
}

/// The C library's, but for programs that were told to have hosts of their own.
///
/// # Safety
/// As of the C library's: so many bytes are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gethostname(out: *mut c_char, length: usize) -> c_int {
    let mut system = std::mem::MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: a local to write to; names of the environment and of the system end with 0.
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
