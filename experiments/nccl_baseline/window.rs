//! Windows: device memory from `ncclMemAlloc` that all ranks have registered with a communicator. NCCL transfers from
//! and to such memory directly, without copies through its own buffers.

use super::library::WindowFunctions;
use super::{Communicator, NcclError, Sent, bounded};
use ginlab::bootstrap::Bootstrap;
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// `NCCL_WIN_COLL_SYMMETRIC`: the memory is used at the same offset on all ranks.
const SYMMETRIC: c_int = 1;

/// Device memory of this rank, registered by all ranks with the same length. The memory is not freed on drop, because
/// after an error NCCL may still use it.
#[derive(Debug)]
pub struct Window {
    memory: *mut c_void,
    handle: *mut c_void,
}

impl Window {
    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.memory as u64
    }
}

impl Communicator {
    /// Returns the functions for windows.
    fn windows(&self) -> Result<&'static WindowFunctions, NcclError> {
        let functions = self.functions;
        functions.windows.as_ref().ok_or_else(|| {
            NcclError::Missing(format!(
                "NCCL {} has no ncclCommWindowRegister: 2.27 or later is required",
                self.version()
            ))
        })
    }

    /// Returns the reason for which this version has no windows. `None` if it has them.
    pub fn lacks_windows(&self) -> Option<String> {
        self.windows().err().map(|error| error.to_string())
    }

    /// Allocates `bytes` bytes on every rank and registers them. Collective: if that fails on one rank, every rank
    /// returns that error, and memory that was allocated is not freed.
    ///
    /// # Errors
    /// Returns [`NcclError::Missing`] with the reason if NCCL has no windows, cannot allocate the memory, or does not
    /// register it.
    pub fn window(&self, bytes: usize, ranks: &mut Bootstrap, limit: Duration) -> Result<Window, NcclError> {
        let memory = self.allocate(bytes, limit);
        agree(&memory, ranks)?;
        let memory = memory?;
        let window = self.register(memory, bytes, limit);
        agree(&window, ranks)?;
        window
    }

    /// Deregisters a window and frees its memory. All ranks must call this, before the communicator is closed.
    ///
    /// # Errors
    /// Returns NCCL's error, or [`NcclError::Late`] if NCCL does not return in time.
    pub fn close_window(&self, window: Window, limit: Duration) -> Result<(), NcclError> {
        let (functions, windows, comm) = (self.functions, self.windows()?, Sent(self.comm));
        let Window { memory, handle } = window;
        let sent = Sent((memory, handle));
        let answer = bounded("ncclCommWindowDeregister", &self.device, limit, move || {
            let (Sent(comm), Sent((memory, handle))) = ({ comm }, { sent });
            // SAFETY: the window belongs to this communicator, and was taken from its owner, who has waited for all
            // operations that use it.
            let answers = unsafe { [(windows.deregister)(comm, handle), (windows.free)(memory)] };
            functions.check("ncclCommWindowDeregister", answers[0])?;
            functions.check("ncclMemFree", answers[1])
        })?;
        answer.map_err(NcclError::Said)
    }

    fn allocate(&self, bytes: usize, limit: Duration) -> Result<*mut c_void, NcclError> {
        let (functions, windows) = (self.functions, self.windows()?);
        let (memory, said) = bounded("ncclMemAlloc", &self.device, limit, move || {
            let mut memory = std::ptr::null_mut();
            // SAFETY: the pointer refers to a local variable.
            let answer = unsafe { (windows.allocate)(&mut memory, bytes) };
            (memory, functions.check("ncclMemAlloc", answer))
        })?;
        said.map_err(NcclError::Missing)?;
        Ok(memory)
    }

    fn register(&self, memory: *mut c_void, bytes: usize, limit: Duration) -> Result<Window, NcclError> {
        let (functions, windows, sent) = (self.functions, self.windows()?, Sent((self.comm, memory)));
        let (handle, said) = bounded("ncclCommWindowRegister", &self.device, limit, move || {
            let Sent((comm, memory)) = { sent };
            let mut handle = std::ptr::null_mut();
            // SAFETY: the memory was allocated by NCCL with this length, the pointer refers to a local variable, and
            // all ranks make this call.
            let answer = unsafe { (windows.register)(comm, memory, bytes, &mut handle, SYMMETRIC) };
            (handle, functions.check("ncclCommWindowRegister", answer))
        })?;
        said.map_err(NcclError::Missing)?;
        // NCCL reports success without a window if the GPUs have no symmetric memory. Rows would then be those of
        // unregistered memory.
        if handle.is_null() {
            let why = "ncclCommWindowRegister returned no window: these GPUs have no symmetric memory";
            return Err(NcclError::Missing(why.into()));
        }
        Ok(Window { memory, handle })
    }
}

/// Returns the first rank's error of a step that all ranks have made, as [`NcclError::Missing`].
fn agree<T>(mine: &Result<T, NcclError>, ranks: &mut Bootstrap) -> Result<(), NcclError> {
    let why = mine.as_ref().err().map(ToString::to_string);
    let all = ranks.all_gather_values(&why, "a window of NCCL")?;
    all.into_iter().flatten().next().map_or(Ok(()), |why| Err(NcclError::Missing(why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl_baseline::library::Functions;
    use ginlab::cuda::Device;
    use std::process::Command;

    const LIMIT: Duration = Duration::from_secs(10);
    /// Functions that every NCCL has, and with `WINDOWS` those of 2.27. A communicator of 1 has no symmetric memory.
    const DOUBLE: &str = r#"
#include <stdlib.h>
#define CALL(name) int name(void) { return 0; }
CALL(ncclGetUniqueId) CALL(ncclCommInitRank) CALL(ncclCommDestroy) CALL(ncclCommAbort) CALL(ncclCommGetAsyncError)
CALL(ncclGroupStart) CALL(ncclGroupEnd) CALL(ncclAllReduce) CALL(ncclAllGather) CALL(ncclReduceScatter)
CALL(ncclBroadcast) CALL(ncclSend) CALL(ncclRecv) CALL(ncclGetVersion)
const char *ncclGetErrorString(int answer) { return answer == 5 ? "invalid usage" : "unhandled cuda error"; }
#ifdef WINDOWS
int ncclMemAlloc(void **memory, size_t bytes) { *memory = bytes > 4096 ? 0 : malloc(bytes); return *memory ? 0 : 1; }
int ncclMemFree(void *memory) { free(memory); return 0; }
int ncclCommWindowRegister(void *comm, void *memory, size_t bytes, void **window, int flags) {
    *window = comm == (void *)1 ? 0 : (char *)memory + 1;
    return memory && bytes && flags == 1 ? 0 : 5;
}
int ncclCommWindowDeregister(void *comm, void *window) { return comm && window ? 0 : 5; }
#endif
"#;

    /// Returns a communicator of the double. `None`, with a line, without a C compiler.
    fn double(flag: &str, comm: usize) -> Option<Communicator> {
        let folder = tempfile::tempdir().expect("a directory");
        let (source, library) = (folder.path().join("double.c"), folder.path().join("double.so"));
        std::fs::write(&source, DOUBLE).expect("a file");
        let Ok(output) = Command::new("cc").args(["-shared", "-fPIC", flag, "-o"]).args([&library, &source]).output()
        else {
            eprintln!("skipped: no C compiler (cc)");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let functions = Functions::load_first(&[library.into()]).expect("the double");
        let comm = comm as *mut c_void;
        Some(Communicator { functions, comm, version: 22605, rank: 0, size: 1, device: Device::Emulated })
    }

    #[test]
    fn window_is_registered_and_freed() {
        let Some(nccl) = double("-DWINDOWS", 2) else { return };
        let memory = nccl.allocate(64, LIMIT).expect("memory");
        let window = nccl.register(memory, 64, LIMIT).expect("a window");
        assert_eq!(window.address(), memory as u64);
        nccl.close_window(window, LIMIT).expect("no error");
    }

    #[test]
    fn missing_windows_are_refused_in_one_line() {
        let Some(old) = double("-DOLD", 2) else { return };
        let why = old.allocate(64, LIMIT).expect_err("an old NCCL").to_string();
        assert_eq!(why, "NCCL 2.26.5 has no ncclCommWindowRegister: 2.27 or later is required");
        let Some(new) = double("-DWINDOWS", 1) else { return };
        assert_eq!(new.allocate(8192, LIMIT).expect_err("too large").to_string(), "ncclMemAlloc: unhandled cuda error");
        let memory = new.allocate(64, LIMIT).expect("memory");
        let why = new.register(memory, 64, LIMIT).expect_err("no symmetric memory").to_string();
        assert!(why.contains("returned no window"), "{why}");
        let why = new.register(memory, 0, LIMIT).expect_err("nothing to register").to_string();
        assert_eq!(why, "ncclCommWindowRegister: invalid usage");
    }
}
