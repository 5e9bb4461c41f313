//! The CUDA driver: availability, version, and conversion of its errors.

use super::DeviceError;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{DriverError, sys};
use std::sync::OnceLock;

/// Converts a driver error of `call`.
pub(super) fn failed(call: impl Into<String>) -> impl FnOnce(DriverError) -> DeviceError {
    |error| {
        let words = |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
        let name = words(error.error_name()).unwrap_or_else(|_| format!("error {}", error.0 as u32));
        let text = words(error.error_string()).unwrap_or_default();
        DeviceError::Driver { call: call.into(), text: format!("{text} ({name})") }
    }
}

/// Returns whether a driver is installed, that is, whether a library with one of its two names on Linux can be loaded.
/// The check of cudarc tries 34 names in every directory of the loader, which takes 1 ms on a machine without a driver.
/// In addition, that check unloads the library again.
pub(super) fn is_there() -> bool {
    static IS_THERE: OnceLock<bool> = OnceLock::new();
    *IS_THERE.get_or_init(|| {
        ["libcuda.so", "libcuda.so.1"].into_iter().any(|name| {
            // SAFETY: the driver's library, which cudarc would load by the same names.
            let library = unsafe { libloading::Library::new(name) };
            // The library is never unloaded, because cudarc loads it again for its calls.
            library.map(std::mem::forget).is_ok()
        })
    })
}

/// Returns the CUDA version that the installed driver supports, for example `13.0`. `None` without a driver.
pub fn driver_version() -> Option<String> {
    if !is_there() {
        return None;
    }
    let mut version = 0;
    // SAFETY: the library is loaded, and the pointer refers to a local variable.
    let status = unsafe { sys::cuDriverGetVersion(&mut version) };
    (status == CUresult::CUDA_SUCCESS).then(|| format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// Converts a launch error. A block size that is within the device's limit but exceeds that of this kernel yields a
/// [`Refused`](DeviceError::Refused) error, because the user can change it.
pub(super) fn refused_or_failed(error: DriverError, name: &str, grid: u32, block: u32) -> DeviceError {
    let what = format!("launching {name} as {grid} x {block}");
    match error.0 {
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => DeviceError::Refused(format!(
            "{what}: the kernel needs more registers than a block of this size leaves; use smaller blocks"
        )),
        _ => failed(what)(error),
    }
}
