//! The first cause of an error below the provider. libfabric reports only a later consequence, such as a peer that does
//! not respond, or ends the process.

use crate::memory;
use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static CAUSE: OnceLock<CString> = OnceLock::new();
/// Whether the program has queried the cause, and therefore reports it.
static ASKED: AtomicBool = AtomicBool::new(false);

const SHARED_MEMORY: &CStr = c"/dev/shm";

/// Remedy if processes cannot access each other's memory.
const REMEDY: &str = "in a container add CAP_SYS_PTRACE (docker: --cap-add SYS_PTRACE, pods: securityContext.capabilities.add) or a seccomp \
                      profile that allows process_vm_readv and process_vm_writev (docker: --security-opt seccomp=FILE), on a host set \
                      kernel.yama.ptrace_scope to 1 or 0";

/// Returns the first cause, as "what failed: why; remedy", or null. May be called in a signal handler. If the program
/// never calls this, the cause is printed to stderr.
#[unsafe(no_mangle)]
pub extern "C" fn soft_efa_cause() -> *const c_char {
    ASKED.store(true, Ordering::Relaxed);
    CAUSE.get().map_or(std::ptr::null(), |text| text.as_ptr())
}

/// Prints a system error that makes a call fail, unless the program reports its cause.
pub fn print(what: &str, error: &io::Error) {
    if CAUSE.get().is_none() {
        eprintln!("soft_efa: {what}: {error}");
    }
}

/// Records a cause, unless there is an earlier one.
fn record(text: String) {
    let Ok(line) = CString::new(text) else { return };
    if CAUSE.set(line).is_ok()
        && !ASKED.load(Ordering::Relaxed)
        && let Some(line) = CAUSE.get()
    {
        eprintln!("soft_efa: {}", line.to_string_lossy());
    }
}

/// Records that a page of /dev/shm could not be allocated.
pub fn no_shared_memory(error: &io::Error) {
    const ENLARGE: &str = "remove old files there or enlarge it (mount -o remount,size=1G /dev/shm; docker: --shm-size 1g; pods: an emptyDir \
                          of medium Memory at /dev/shm)";
    let mut space = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: a C string and a local variable; zeros are valid for all its fields.
    let space = unsafe {
        libc::statvfs(SHARED_MEMORY.as_ptr(), space.as_mut_ptr());
        space.assume_init()
    };
    let (free, size) = (space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize);
    record(match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => format!(
            "/dev/shm is full: 4096 B and a file are needed, {free} B of {size} B and {} files are available; {ENLARGE}",
            space.f_favail
        ),
        _ => format!(
            "/dev/shm cannot be used: {error}; it must be a tmpfs that this user can write to (mount -t tmpfs tmpfs /dev/shm)"
        ),
    });
}

/// Records that a call did not reach the memory of a peer's process.
pub fn refused(out: bool, error: &io::Error) {
    let call = if out { "process_vm_writev" } else { "process_vm_readv" };
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => no_way_in(call, error, memory::reaches_itself(out)),
        _ => record(format!(
            "{call} of a peer's registered memory: {error}; has the peer freed memory that it has registered?"
        )),
    }
}

/// Records a peer's report that it could not copy from or to this process. The cause is at the peer, but the same
/// restriction usually applies to this process.
pub fn refused_to_peer() {
    for out in [true, false] {
        if !memory::reaches_itself(out) {
            return refused(out, &io::Error::last_os_error());
        }
    }
    record(format!(
        "a peer's process cannot access the registered memory of this one: its message contains the cause; {REMEDY}"
    ));
}

/// Records that the system denies this process access to a peer's memory. `reaches_itself` states whether the same call
/// on this process succeeds.
pub fn no_way_in(call: &str, error: &io::Error, reaches_itself: bool) {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let why = match scope.trim() {
        _ if !reaches_itself => "a seccomp filter denies the call to this process".to_owned(),
        scope @ ("2" | "3") => {
            format!("kernel.yama.ptrace_scope is {scope}, which denies access to processes without CAP_SYS_PTRACE")
        }
        _ => "ptrace access to the peer is denied: it belongs to another user or container, and this process has no \
              CAP_SYS_PTRACE"
            .to_owned(),
    };
    record(format!("{call}: {error}: {why}; {REMEDY}"));
}
