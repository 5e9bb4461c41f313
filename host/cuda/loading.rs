//! PTX on its way into the driver: compiled, loaded, its functions found.

use super::DeviceError;
use super::driver::failed;
use super::ptx::for_capability;
use cudarc::driver::{CudaContext, result, sys};
use std::ffi::{CString, c_void};

/// The loaded PTX. It is not unloaded: it ends with the context, and no launch can outlive its function.
#[derive(Debug)]
pub(super) struct Module(pub(super) sys::CUmodule);

// SAFETY: a handle that the driver accepts from any thread with the context current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn function(&self, name: &str) -> Result<sys::CUfunction, DeviceError> {
        let text = CString::new(name).map_err(|error| DeviceError::Refused(error.to_string()))?;
        // SAFETY: the module is never unloaded, and neither is the function.
        let function =
            unsafe { result::module::get_function(self.0, text) }.map_err(failed(format!("finding kernel {name}")))?;
        make_room(function).map_err(failed(format!("giving {name} its stack")))?;
        Ok(function)
    }
}

/// A kernel that wants more stack than any before has the driver wait at its first launch until the GPU is idle. Behind a kernel that waits
/// for the host to append something, as the gate of a measurement does, that takes as long as that one has patience (two H200: 30 s).
/// So the stack is there before.
fn make_room(function: sys::CUfunction) -> Result<(), cudarc::driver::DriverError> {
    let (mut bytes, mut limit) = (0, 0);
    let local = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
    let stack = sys::CUlimit::CU_LIMIT_STACK_SIZE;
    // SAFETY: both write one number; the function is of a module that is never unloaded, and its context is current.
    unsafe {
        sys::cuFuncGetAttribute(&mut bytes, local, function).result()?;
        sys::cuCtxGetLimit(&mut limit, stack).result()?;
    }
    let bytes = bytes.max(0) as usize;
    if bytes > limit {
        // SAFETY: a number for the current context.
        unsafe { sys::cuCtxSetLimit(stack, bytes.next_multiple_of(16)).result()? };
    }
    Ok(())
}

/// Compiles and loads PTX for the current device, with at most so many registers per thread. (What a push spills it must
/// load again, and an acquire has emptied the L1 cache: H200, see experiments/queue.)
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
    // SAFETY: options and values are of one length; the text ends with a zero; the log is as long as it is said to be.
    let status = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    let words: String = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().replace('\n', "; ");
    status.result().map_err(failed(format!("loading the kernels' PTX {words}")))?;
    Ok(Module(module))
}
