//! The CUDA driver: whether it is there, which one it is, and its errors in words.

use super::DeviceError;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{DriverError, sys};
use std::sync::OnceLock;

/// The error of a call.
pub(super) fn failed(call: impl Into<String>) -> impl FnOnce(DriverError) -> DeviceError {
    |error| {
        let words = |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
        let name = words(error.error_name()).unwrap_or_else(|_| format!("error {}", error.0 as u32));
        let text = words(error.error_string()).unwrap_or_default();
        DeviceError::Driver { call: call.into(), text: format!("{text} ({name})") }
    }
}

/// Whether there is a driver: whether one of the two names that it has on Linux can be loaded. cudarc's own question goes through 34 names, each
/// in every folder of the loader (1 ms of a cold start where there is none), and unloads the library again.
pub(super) fn is_there() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    *IS_THERE.get_or_init(|| {
        ["libcuda.so", "libcuda.so.1"].into_iter().any(|name| {
            // SAFETY: the driver's library, which cudarc would load by the same names.
            let library = unsafe { libloading::Library::new(name) };
            // Never unloaded: cudarc loads it again for its calls.
            library.map(std::mem::forget).is_ok()
        })
    })
}

/// The CUDA version that the installed driver supports, as `13.0`; `None` without a driver.
pub fn driver_version() -> Option<String> {
    if !is_there() {
        return None;
    }
    let mut version = 0;
    // SAFETY: the library is there, and the pointer is to a local.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    (status == CUresult::CUDA_SUCCESS).then(|| format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// Why a grid is not launched. A block that is within the device's limit and beyond this kernel's is the user's to change.
pub(super) fn refused_or_failed(error: DriverError, name: &str, grid: u32, block: u32) -> DeviceError {
    let what = format!("launching {name} as {grid} x {block}");
    match error.0 {
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => DeviceError::Refused(format!(
            "{what}: the kernel needs more registers than a block this large leaves; try a smaller --block"
        )),
        _ => failed(what)(error),
    }
}
