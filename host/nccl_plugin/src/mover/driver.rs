//! Launches the kernel with the CUDA driver.

use super::MoverLauncher;
use crate::cuda::{CuContext, checked, device_has, pinned_zeros, urgent_stream};
use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUmodule, CUresult, CUstream};
use kernels::mover::{Jobs, LANES, MoverArgs, MoverRing, SHARED};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Number of threads in a block. More threads do not read faster over the bus, and take registers of a multiprocessor
/// from NCCL's kernels.
const THREADS: u32 = 256;
/// Maximum wait for the trial launch. The GPU is usually idle when a communicator is connected, and the kernel then
/// starts immediately. If it does not start in time, for example because a kernel of the application fills the GPU,
/// only the copy engines are used.
const FIRST: Duration = Duration::from_secs(1);

/// PTX in the form that the driver requires, with a terminating NUL.
const TEXT: &str = concat!(include_str!(concat!(env!("OUT_DIR"), "/kernels_mover.ptx")), "\0");

/// PTX of the kernel; `None` in a build without the kernel compiler.
pub const PTX: Option<&str> = if TEXT.len() > 1 { Some(TEXT) } else { None };

/// The kernel, loaded in a context, and its rings.
pub struct OnGpu {
    context: CuContext,
    module: CUmodule,
    function: CUfunction,
    stream: CUstream,
    lanes: *mut c_void,
    jobs: CUdeviceptr,
    /// Number of blocks per lane for long copies.
    blocks: u32,
    left_behind: bool,
}

impl OnGpu {
    /// Loads the kernel in `context`, which must be current on the calling thread, for `blocks` blocks per lane.
    ///
    /// # Errors
    /// Returns a one-line reason if the kernel cannot be used: a build without PTX, an error of the driver, or a GPU
    /// that does not start it in time.
    pub fn open(context: CuContext, blocks: u32) -> Result<OnGpu, String> {
        let ptx = PTX.ok_or(
            "this plugin was built without the kernels' compiler; install it, run cargo clean -p \
                             nccl_plugin, and rebuild",
        )?;
        // Memory that `pin` registers must have the same address for the host and the device.
        if !device_has(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) {
            return Err("the GPU and the host use different addresses for pinned memory".into());
        }
        let mut kernel = OnGpu {
            context,
            module: null_mut(),
            function: null_mut(),
            stream: null_mut(),
            lanes: null_mut(),
            jobs: 0,
            blocks,
            left_behind: false,
        };
        // SAFETY: the outputs are fields to write to, the context is current, and the text ends with a NUL.
        unsafe {
            checked("cuModuleLoadData", sys::cuModuleLoadData(&mut kernel.module, ptx.as_ptr().cast()))?;
            checked(
                "cuModuleGetFunction",
                sys::cuModuleGetFunction(&mut kernel.function, kernel.module, c"mover".as_ptr()),
            )?;
        }
        // `kernel` owns the memory and frees it if a later step fails.
        kernel.stream = urgent_stream()?;
        kernel.lanes = pinned_zeros(LANES as usize * size_of::<MoverRing>())?;
        let bytes = LANES as usize * size_of::<Jobs>();
        // SAFETY: `jobs` is first a field to write to, and then an allocation of `bytes` bytes that has no other user
        // yet. It is cleared in the kernel's stream, because the legacy stream would wait for other kernels.
        unsafe {
            checked(&format!("cuMemAlloc of {bytes} B"), sys::cuMemAlloc_v2(&mut kernel.jobs, bytes))?;
            checked("cuMemsetD8Async", sys::cuMemsetD8Async(kernel.jobs, 0, bytes, kernel.stream))?;
        }
        kernel.try_it()?;
        Ok(kernel)
    }

    /// Launches the kernel once with empty rings, while no other kernel waits for its copies. At the first launch the
    /// driver creates resources, and may have to wait for this until the GPU is idle.
    fn try_it(&mut self) -> Result<(), String> {
        let (lanes, jobs) = (self.lanes(), self.jobs());
        let args = MoverArgs { lanes, jobs, first: [0; LANES as usize], number: u64::MAX, timeout_ns: 0 };
        // SAFETY: the rings are empty, so no entry refers to memory.
        unsafe { self.launch(args, true) }?;
        let until = Instant::now() + FIRST;
        loop {
            // SAFETY: the stream belongs to the current context.
            match unsafe { sys::cuStreamQuery(self.stream) } {
                CUresult::CUDA_ERROR_NOT_READY if Instant::now() < until => std::thread::yield_now(),
                CUresult::CUDA_ERROR_NOT_READY => {
                    self.left_behind = true;
                    return Err(format!("the GPU did not start it within {FIRST:?}"));
                }
                other => return checked("the copy kernel", other),
            }
        }
    }
}

impl MoverLauncher for OnGpu {
    fn lanes(&self) -> *const MoverRing {
        self.lanes.cast()
    }

    fn jobs(&self) -> *const Jobs {
        self.jobs as *const Jobs
    }

    unsafe fn launch(&mut self, mut args: MoverArgs, crew: bool) -> Result<(), String> {
        let blocks = if crew { self.blocks } else { 1 };
        let mut parameters = [(&raw mut args).cast::<c_void>()];
        // SAFETY: the driver copies the arguments during the call; the caller guarantees that the memory of entries
        // stays valid.
        let result = unsafe {
            sys::cuLaunchKernel(
                self.function,
                LANES * blocks,
                1,
                1,
                THREADS,
                1,
                1,
                SHARED,
                self.stream,
                parameters.as_mut_ptr(),
                null_mut(),
            )
        };
        checked("launching the copy kernel", result)
    }

    fn leave_behind(&mut self) {
        self.left_behind = true;
    }
}

impl Drop for OnGpu {
    fn drop(&mut self) {
        if self.left_behind {
            return;
        }
        let _ = self.context.with(|| {
            // SAFETY: `open` created them, possibly only some of them, and the kernel has exited. Errors cannot be
            // handled here.
            unsafe {
                if !self.stream.is_null() {
                    let _ = sys::cuStreamDestroy_v2(self.stream);
                }
                if !self.lanes.is_null() {
                    let _ = sys::cuMemFreeHost(self.lanes);
                }
                if self.jobs != 0 {
                    let _ = sys::cuMemFree_v2(self.jobs);
                }
                if !self.module.is_null() {
                    let _ = sys::cuModuleUnload(self.module);
                }
            }
            Ok(())
        });
    }
}
