//! The emulated device: memory from the system allocator, and grids run by [`cuda_std::emulation`].

use super::{DeviceError, Kernel};
use cuda_std::emulation::EmulatedGrid;
pub(super) use cuda_std::emulation::stop_all;
use ginlab_base::limits::explain;
use ginlab_base::memory;
use ginlab_base::size;
use nix::sys::mman::{MmapAdvise, madvise};
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Alignment of buffers: registrations use whole pages.
const PAGE: usize = 4096;
/// Alignment of buffers of several huge pages, which are advised to use them. Copies then need fewer address
/// translations, and initialization causes one page fault per 2 MiB instead of 512.
const HUGE_PAGE: usize = 2 << 20;

fn layout(bytes: usize) -> Result<Layout, DeviceError> {
    Layout::from_size_align(bytes, if is_large(bytes) { HUGE_PAGE } else { PAGE })
        .map_err(|_| DeviceError::Refused(format!("cannot allocate {bytes} bytes: more than this machine can address")))
}

fn is_large(bytes: usize) -> bool {
    bytes >= 4 * HUGE_PAGE
}

pub(super) fn allocate(bytes: usize) -> Result<u64, DeviceError> {
    // SAFETY: callers never request 0 bytes.
    let Some(pointer) = NonNull::new(unsafe { alloc(layout(bytes)?) }) else {
        return Err(DeviceError::Refused(format!("cannot allocate {bytes} bytes of host memory")));
    };
    if is_large(bytes) {
        // This is only advice: a system without free huge pages uses ordinary pages. SAFETY: the memory is allocated,
        // and the advice does not change its contents.
        let _ = unsafe { madvise(pointer.cast(), bytes, MmapAdvise::MADV_HUGEPAGE) };
    }
    // SAFETY: the allocation has `bytes` bytes, which no other code uses yet.
    unsafe { pointer.write_bytes(0, bytes) };
    Ok(pointer.as_ptr() as u64)
}

pub(super) fn free(address: u64, bytes: usize) {
    if let Ok(layout) = layout(bytes) {
        // SAFETY: `address` came from `allocate` with the same size.
        unsafe { dealloc(address as *mut u8, layout) };
    }
}

/// Returns the native function of a kernel.
pub(super) fn native<A>(kernel: &Kernel<A>) -> Result<unsafe fn(A), DeviceError> {
    let missing = || DeviceError::Missing("the emulated device has no bulk stores (TMA)".into());
    kernel.native().ok_or_else(missing)
}

/// Minimum memory of a grid's threads, in bytes, for which a note is printed, once per process.
const WORTH_SAYING: u64 = 256 << 20;
static SAID: Once = Once::new();
/// Maximum memory of a grid's threads, in bytes, for which the available memory is not checked. The check reads files
/// of control groups.
const UNASKED: u64 = 16 << 20;

/// Number of running grids.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a grid of this process is running, on the cores that the process may use.
pub(super) fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed) > 0
}

/// Runs a grid, if there is enough memory for its threads.
pub(super) fn run(blocks: u32, threads: u32, resident: bool, body: impl Fn() + Sync) -> Result<(), DeviceError> {
    let grid = EmulatedGrid::new(blocks, threads).resident(resident);
    if grid.bytes() >= UNASKED {
        check_memory(&grid, memory::available())?;
    }
    if grid.bytes() >= WORTH_SAYING {
        SAID.call_once(|| {
            eprintln!(
                "# note: the threads of {blocks} x {threads} use up to {} of memory on the emulated device",
                size::human(grid.bytes())
            );
        });
    }
    RUNNING.fetch_add(1, Ordering::Relaxed);
    let ended = grid.run(body).map_err(|error| DeviceError::Emulated(error.to_string()));
    RUNNING.fetch_sub(1, Ordering::Relaxed);
    ended
}

/// Returns an error if a grid's threads would need more than the available memory.
fn check_memory(grid: &EmulatedGrid, available: Option<u64>) -> Result<(), DeviceError> {
    match available {
        Some(available) if grid.bytes() > available => Err(DeviceError::Refused(format!(
            "the threads that must be resident need {} of memory on the emulated device, but {} are available; use \
             fewer or smaller blocks",
            size::human(grid.bytes()),
            size::human(available)
        ))),
        _ => Ok(()),
    }
}

/// State of a running grid.
#[derive(Debug)]
pub struct EmulatedLaunch {
    grid: Option<JoinHandle<Result<(), DeviceError>>>,
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
    let (function, resident) = (native(kernel)?, kernel.is_resident());
    let handle = std::thread::Builder::new()
        .name(format!("grid {}", kernel.name()))
        .spawn(move || {
            run(grid, block, resident, || {
                // SAFETY: the caller of `launch` upholds the kernel's contract for `args`.
                unsafe { function(args) }
            })
        })
        .map_err(|error| DeviceError::Emulated(format!("cannot start a thread: {}", explain(&error))))?;
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
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(DeviceError::Emulated("the grid's thread panicked".into())),
        }
    }
}

impl Drop for EmulatedLaunch {
    fn drop(&mut self) {
        // `is_done` has already returned an error, or the launch is being abandoned after another error.
        let _ = self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_grid_is_rejected_before_allocation() {
        let grid = EmulatedGrid::new(132, 1024).resident(true);
        assert!(check_memory(&grid, Some(grid.bytes())).is_ok() && check_memory(&grid, None).is_ok());
        let refused = check_memory(&grid, Some(1 << 30)).map_err(|error| error.to_string());
        let text = refused.expect_err("too much");
        assert!(text.contains("need 1188 MiB of memory") && text.contains("1 GiB are available"), "{text}");
    }
}
