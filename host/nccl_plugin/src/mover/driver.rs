//! Starts the kernel by the CUDA driver.

use super::Launch;
use crate::cuda::{Context, checked, device_has, pinned_zeros, urgent_stream};
use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUmodule, CUresult, CUstream};
use kernels::mover::{Jobs, LANES, Lane, MoverArgs, SHARED};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Threads of a block: more read no faster over the bus (H200: 256 as 1024), and take a multiprocessor's registers from NCCL's kernels.
const THREADS: u32 = 256;
/// The first launch may take so long: the GPU is idle when a communicator is connected, or a kernel of this program is in it.
const FIRST: Duration = Duration::from_secs(1);

/// As the driver wants it, with a 0 at its end.
const TEXT: &str = concat!(include_str!(concat!(env!("OUT_DIR"), "/kernels_mover.ptx")), "\0");

/// The kernel for the GPU; `None` in a build without the kernels' compiler.
pub const PTX: Option<&str> = if TEXT.len() > 1 { Some(TEXT) } else { None };

/// The kernel, loaded in a context, and its rings.
pub struct OnGpu {
    context: Context,
    module: CUmodule,
    function: CUfunction,
    stream: CUstream,
    lanes: *mut c_void,
    jobs: CUdeviceptr,
    /// For each lane, where long copies are shared.
    blocks: u32,
    left_behind: bool,
}

impl OnGpu {
    /// In this context, which is the calling thread's, with so many blocks for each lane.
    ///
    /// # Errors
    /// In one line why there is none: a build without PTX, the driver's refusal, or a GPU that does not begin it now.
    pub fn open(context: Context, blocks: u32) -> Result<OnGpu, String> {
        let ptx = PTX.ok_or("this plugin was built without the kernels' compiler (where that is: cargo clean -p nccl_plugin, and build it again)")?;
        // What `pin` registers has one address for the host and the device.
        if !device_has(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) {
            return Err("the GPU reaches pinned memory by other addresses than the host".into());
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
        // SAFETY: locals to write to; the context is current; the text ends with a 0.
        unsafe {
            checked("cuModuleLoadData", sys::cuModuleLoadData(&mut kernel.module, ptx.as_ptr().cast()))?;
            checked(
                "cuModuleGetFunction",
                sys::cuModuleGetFunction(&mut kernel.function, kernel.module, c"mover".as_ptr()),
            )?;
        }
        // Each goes with `kernel`, also when the next one fails.
        kernel.stream = urgent_stream()?;
        kernel.lanes = pinned_zeros(LANES as usize * size_of::<Lane>())?;
        let bytes = LANES as usize * size_of::<Jobs>();
        // SAFETY: a local to write to, and then so many bytes that nobody knows yet. In the kernel's stream: the legacy one would wait for kernels.
        unsafe {
            checked(&format!("cuMemAlloc of {bytes} B"), sys::cuMemAlloc_v2(&mut kernel.jobs, bytes))?;
            checked("cuMemsetD8Async", sys::cuMemsetD8Async(kernel.jobs, 0, bytes, kernel.stream))?;
        }
        kernel.try_it()?;
        Ok(kernel)
    }

    /// Once, with nothing to do, while no kernel waits for its copies: what the driver makes at the first launch may have to wait for an idle GPU.
    fn try_it(&mut self) -> Result<(), String> {
        let (lanes, jobs) = (self.lanes(), self.jobs());
        let args = MoverArgs { lanes, jobs, first: [0; LANES as usize], number: u64::MAX, timeout_ns: 0 };
        // SAFETY: the rings are empty.
        unsafe { self.launch(args, true) }?;
        let until = Instant::now() + FIRST;
        loop {
            // SAFETY: a stream of the current context.
            match unsafe { sys::cuStreamQuery(self.stream) } {
                CUresult::CUDA_ERROR_NOT_READY if Instant::now() < until => std::thread::yield_now(),
                CUresult::CUDA_ERROR_NOT_READY => {
                    self.left_behind = true;
                    return Err(format!("the GPU did not begin it within {FIRST:?}"));
                }
                other => return checked("the kernel that copies", other),
            }
        }
    }
}

impl Launch for OnGpu {
    fn lanes(&self) -> *const Lane {
        self.lanes.cast()
    }

    fn jobs(&self) -> *const Jobs {
        self.jobs as *const Jobs
    }

    unsafe fn launch(&mut self, mut args: MoverArgs, crew: bool) -> Result<(), String> {
        let blocks = if crew { self.blocks } else { 1 };
        let mut parameters = [(&raw mut args).cast::<c_void>()];
        // SAFETY: the driver copies the arguments now; the rest is the caller's contract.
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
        checked("launching the kernel that copies", result)
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
            // SAFETY: made by `open`, of which there may be a part; the kernel has gone. Errors help nobody now.
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
