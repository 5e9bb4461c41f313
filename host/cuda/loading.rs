//! Compilation and loading of PTX by the driver, and lookup of its functions.

use super::DeviceError;
use super::driver::failed;
use super::ptx::for_capability;
use cudarc::driver::{CudaContext, result, sys};
use std::ffi::{CString, c_void};
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Time after which a line reports a compilation, which can take a minute. The driver caches its result on disk.
const SILENT: Duration = Duration::from_secs(3);

/// Loaded PTX. Never unloaded: it is freed with the context, so that no launch outlives its function.
#[derive(Debug)]
pub(super) struct Module(pub(super) sys::CUmodule);

// SAFETY: the driver accepts the handle from any thread on which the context is current.
unsafe impl Send for Module {}
// SAFETY: as for `Send`, the driver accepts the handle from any thread.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn function(&self, name: &str) -> Result<sys::CUfunction, DeviceError> {
        let text = CString::new(name).map_err(|error| DeviceError::Refused(error.to_string()))?;
        // SAFETY: the module is never unloaded, and neither is the function.
        let function =
            unsafe { result::module::get_function(self.0, text) }.map_err(failed(format!("finding kernel {name}")))?;
        make_room(function).map_err(failed(format!("setting the stack size of {name}")))?;
        Ok(function)
    }
}

/// Increases the stack limit for a kernel in advance. Otherwise, at the first launch of a kernel that needs more stack
/// than any previous one, the driver waits until the GPU is idle. If a running kernel waits until the host has appended
/// work, like the gate of a measurement, the launch would block until that kernel times out.
fn make_room(function: sys::CUfunction) -> Result<(), cudarc::driver::DriverError> {
    let (mut bytes, mut limit) = (0, 0);
    let local = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
    let stack = sys::CUlimit::CU_LIMIT_STACK_SIZE;
    // SAFETY: both calls write one number. The function belongs to a module that is never unloaded, and its context is
    // current.
    unsafe {
        sys::cuFuncGetAttribute(&mut bytes, local, function).result()?;
        sys::cuCtxGetLimit(&mut limit, stack).result()?;
    }
    let bytes = bytes.max(0) as usize;
    if bytes > limit {
        // SAFETY: the call sets a number of the current context.
        unsafe { sys::cuCtxSetLimit(stack, bytes.next_multiple_of(16)).result()? };
    }
    Ok(())
}

/// Runs `work`, and calls `say` if it takes longer than `limit`.
fn reported<T>(limit: Duration, say: impl FnOnce() + Send, work: impl FnOnce() -> T) -> T {
    let (finished, wait) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                say();
            }
        });
        let result = work();
        drop(finished);
        result
    })
}

/// Prints once per process that the driver compiles.
fn say_compiling() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprintln!("# note: the driver compiles kernels for this GPU; later runs take them from its cache")
    });
}

/// Compiles and loads PTX for the current device, with at most `registers` registers per thread. Too few cause spills,
/// which are expensive because an acquire invalidates the L1 cache (see experiments/queue).
pub(super) fn load(
    context: &CudaContext,
    capability: (u32, u32),
    ptx: &str,
    registers: usize,
) -> Result<Module, DeviceError> {
    context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
    let text = CString::new(&*for_capability(ptx, capability))
        .map_err(|error| DeviceError::Refused(format!("the kernels' PTX: {error}")))?;
    let mut log = vec![0u8; 8192];
    let mut options = [
        sys::CUjit_option::CU_JIT_MAX_REGISTERS,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ];
    let mut values = [registers as *mut c_void, log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let mut module = std::ptr::null_mut();
    // SAFETY: options and values have the same length, the text is a C string, and the log has the given size.
    let status = reported(SILENT, say_compiling, || unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    });
    let words: String = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().replace('\n', "; ");
    status.result().map_err(failed(format!("loading the kernels' PTX {words}")))?;
    Ok(Module(module))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn only_long_work_is_reported() {
        let said = AtomicBool::new(false);
        let say = || said.store(true, Ordering::Relaxed);
        assert_eq!(reported(Duration::from_secs(3600), say, || 7), 7);
        assert!(!said.load(Ordering::Relaxed));
        let (say, heard) = channel();
        reported(Duration::ZERO, move || say.send(()).expect("work is still running"), || heard.recv())
            .expect("a report");
    }
}
