//! The emulated device: memory from the system, grids as threads ([`cuda_std::emulation`]).

use super::{DeviceError, Kernel};
use cuda_std::emulation;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::thread::JoinHandle;

/// Page alignment: registrations are by pages.
const ALIGNMENT: usize = 4096;

fn layout(bytes: usize) -> Result<Layout, DeviceError> {
    Layout::from_size_align(bytes, ALIGNMENT)
        .map_err(|_| DeviceError::Refused(format!("{bytes} bytes are more than this machine can address")))
}

pub(super) fn allocate(bytes: usize) -> Result<u64, DeviceError> {
    // SAFETY: callers never ask for 0 bytes.
    let pointer = unsafe { alloc_zeroed(layout(bytes)?) };
    if pointer.is_null() {
        return Err(DeviceError::Refused(format!("{bytes} bytes of host memory are not to be had")));
    }
    Ok(pointer as u64)
}

pub(super) fn free(address: u64, bytes: usize) {
    if let Ok(layout) = layout(bytes) {
        // SAFETY: `address` came from `allocate` with the same size.
        unsafe { dealloc(address as *mut u8, layout) };
    }
}

/// The native form of a kernel.
pub(super) fn native<A>(kernel: &Kernel<A>) -> Result<unsafe fn(A), DeviceError> {
    let missing = || DeviceError::Missing("the emulated device has no bulk stores (TMA)".into());
    kernel.native().ok_or_else(missing)
}

/// A grid of threads.
#[derive(Debug)]
pub struct EmulatedLaunch {
    grid: Option<JoinHandle<std::io::Result<()>>>,
}

pub(super) unsafe fn launch<A>(
    kernel: &Kernel<A>,
    grid: u32,
    block: u32,
    args: A,
) -> Result<EmulatedLaunch, DeviceError>
where
    A: Copy + Send + Sync + 'static,
{
    let function = native(kernel)?;
    let handle = std::thread::Builder::new()
        .name(format!("grid {}", kernel.name()))
        .spawn(move || {
            emulation::run(grid, block, || {
                // SAFETY: the contract of `Device::launch`.
                unsafe { function(args) }
            })
        })
        .map_err(|error| DeviceError::Emulated(error.to_string()))?;
    Ok(EmulatedLaunch { grid: Some(handle) })
}

impl EmulatedLaunch {
    pub(super) fn is_done(&mut self) -> Result<bool, DeviceError> {
        if self.grid.as_ref().is_some_and(|grid| !grid.is_finished()) {
            return Ok(false);
        }
        self.join().map(|()| true)
    }

    fn join(&mut self) -> Result<(), DeviceError> {
        match self.grid.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(DeviceError::Emulated(error.to_string())),
            Some(Err(_)) => Err(DeviceError::Emulated("the grid's thread panicked".into())),
        }
    }
}

impl Drop for EmulatedLaunch {
    fn drop(&mut self) {
        // An error was either taken by `is_done`, or the launch is being abandoned after another error.
        let _ = self.join();
    }
}
