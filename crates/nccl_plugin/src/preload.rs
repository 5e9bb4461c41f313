//! What happens when the library is preloaded: each process becomes a node of its own for NCCL, so that ranks of one GPU talk by the network.
//!
//! `ginlab nccl` preloads it, whatever starts the ranks (mpirun, torchrun, a shell): NCCL reads `NCCL_HOSTID` before it loads any plugin.

use std::ffi::CString;

/// Asks for it: `process`.
pub const NODES: &str = "GINLAB_NCCL_NODES";

/// How names of nodes begin that were made here.
const NAMED: &str = "ginlab-process-";

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let asked = std::env::var_os(NODES).is_some_and(|value| value == "process");
    // What the user has set stays; what a process before this one has set, as mpirun did, is that one's name.
    let taken = std::env::var("NCCL_HOSTID").is_ok_and(|name| !name.starts_with(NAMED));
    if !asked || taken {
        return;
    }
    let Ok(node) = CString::new(format!("{NAMED}{}", std::process::id())) else { return };
    // SAFETY: the loader runs this before the program's first line, in its one thread.
    unsafe { libc::setenv(c"NCCL_HOSTID".as_ptr(), node.as_ptr(), 1) };
}
