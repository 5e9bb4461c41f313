//! Launches the kernel with the CUDA driver, from a thread of its own.
//!
//! A launch waits for a lock that another thread's launch holds while the driver's launch queue is full (observed with
//! driver 580: `cuGraphLaunch` of a program that queued 100 graphs, whose kernels waited for copies of this process).
//! The thread that drives the rails must not wait for it, since the queue drains only if it continues to copy. Calls
//! for the copy engines do not take that lock.

use super::MoverLauncher;
use crate::cuda::{CuContext, checked, device_has, pinned_zeros, urgent_stream};
use cudarc::driver::sys::{self, CUdeviceptr, CUfunction, CUmodule, CUresult, CUstream};
use kernels::mover::{Jobs, LANES, MoverArgs, MoverRing, SHARED};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
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

/// A launch with this number of blocks per lane.
struct Launch {
    args: MoverArgs,
    blocks: u32,
}

// SAFETY: the arguments are addresses, to which only the kernel refers.
unsafe impl Send for Launch {}

/// A thread that launches, so that its caller does not wait.
struct LaunchThread {
    orders: Sender<Launch>,
    failures: Receiver<String>,
    thread: JoinHandle<()>,
}

impl LaunchThread {
    /// Starts the thread, which calls `launch` for each order.
    fn start(mut launch: impl FnMut(Launch) -> Result<(), String> + Send + 'static) -> Result<LaunchThread, String> {
        let (orders, received) = mpsc::channel();
        let (failed, failures) = mpsc::channel();
        let serve = move || {
            while let Ok(order) = received.recv() {
                if let Err(why) = launch(order) {
                    let _ = failed.send(why);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("ginlab-launch".into())
            .spawn(serve)
            .map_err(|error| format!("starting a thread for launches: {error}"))?;
        Ok(LaunchThread { orders, failures, thread })
    }

    /// Orders a launch, without waiting for it.
    fn order(&self, launch: Launch) -> Result<(), String> {
        self.orders.send(launch).map_err(|_| "the thread for launches has ended".into())
    }

    /// Returns the error of a launch, once.
    fn failure(&self) -> Option<String> {
        match self.failures.try_recv() {
            Ok(why) => Some(why),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some("the thread for launches has ended".into()),
        }
    }

    /// Ends the thread, and waits for the launch in progress. A dropped value's thread ends after that launch, too, but
    /// its caller does not wait.
    fn end(self) {
        drop(self.orders);
        // An error is a panic of the thread, whose message has been printed.
        let _ = self.thread.join();
    }
}

/// The function and stream of launches.
#[derive(Clone, Copy)]
struct Launched {
    function: CUfunction,
    stream: CUstream,
}

// SAFETY: both are handles, which may be used on any thread on which their context is current.
unsafe impl Send for Launched {}

impl Launched {
    /// Launches the kernel in the current context.
    ///
    /// # Safety
    /// Memory to which entries of the rings refer must stay valid until the blocks have exited.
    unsafe fn launch(self, Launch { mut args, blocks }: Launch) -> Result<(), String> {
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
}

/// The kernel, loaded in a context, and its rings.
pub struct OnGpu {
    context: CuContext,
    module: CUmodule,
    kernel: Launched,
    /// `None` only in `open`.
    thread: Option<LaunchThread>,
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
            kernel: Launched { function: null_mut(), stream: null_mut() },
            thread: None,
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
                sys::cuModuleGetFunction(&mut kernel.kernel.function, kernel.module, c"mover".as_ptr()),
            )?;
        }
        // `kernel` owns the memory and frees it if a later step fails.
        kernel.kernel.stream = urgent_stream()?;
        kernel.lanes = pinned_zeros(LANES as usize * size_of::<MoverRing>())?;
        let bytes = LANES as usize * size_of::<Jobs>();
        // SAFETY: `jobs` is first a field to write to, and then an allocation of `bytes` bytes that has no other user
        // yet. It is cleared in the kernel's stream, because the legacy stream would wait for other kernels.
        unsafe {
            checked(&format!("cuMemAlloc of {bytes} B"), sys::cuMemAlloc_v2(&mut kernel.jobs, bytes))?;
            checked("cuMemsetD8Async", sys::cuMemsetD8Async(kernel.jobs, 0, bytes, kernel.kernel.stream))?;
        }
        kernel.try_it()?;
        let launched = kernel.kernel;
        // SAFETY: the memory of entries is valid until the blocks have exited (contract of `MoverLauncher::launch`, the
        // only source of orders).
        let launch = move |order| context.with(|| unsafe { launched.launch(order) });
        kernel.thread = Some(LaunchThread::start(launch)?);
        Ok(kernel)
    }

    /// Launches the kernel once with empty rings, while no other kernel waits for its copies. At the first launch the
    /// driver creates resources, and may have to wait for this until the GPU is idle.
    fn try_it(&mut self) -> Result<(), String> {
        let (lanes, jobs) = (self.lanes(), self.jobs());
        let args = MoverArgs { lanes, jobs, first: [0; LANES as usize], number: u64::MAX, timeout_ns: 0 };
        // SAFETY: the rings are empty, so no entry refers to memory.
        unsafe { self.kernel.launch(Launch { args, blocks: self.blocks }) }?;
        let until = Instant::now() + FIRST;
        loop {
            // SAFETY: the stream belongs to the current context.
            match unsafe { sys::cuStreamQuery(self.kernel.stream) } {
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

    unsafe fn launch(&mut self, args: MoverArgs, crew: bool) -> Result<(), String> {
        let blocks = if crew { self.blocks } else { 1 };
        self.thread.as_ref().ok_or("no thread for launches")?.order(Launch { args, blocks })
    }

    fn failure(&mut self) -> Option<String> {
        self.thread.as_ref()?.failure()
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
        // A kernel can exit before the call that launched it returns.
        if let Some(thread) = self.thread.take() {
            thread.end();
        }
        let _ = self.context.with(|| {
            // SAFETY: `open` created them, possibly only some of them. The last kernel has exited, and no launch is in
            // progress. Errors cannot be handled here.
            unsafe {
                if !self.kernel.stream.is_null() {
                    let _ = sys::cuStreamDestroy_v2(self.kernel.stream);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_launch_does_not_block_the_caller() {
        let (release, released) = mpsc::channel::<Result<(), String>>();
        let thread = LaunchThread::start(move |_| released.recv().unwrap_or(Ok(()))).expect("a thread");
        let args = MoverArgs {
            lanes: std::ptr::null(),
            jobs: std::ptr::null(),
            first: [0; LANES as usize],
            number: 1,
            timeout_ns: 0,
        };
        // Both calls return although the first launch does not.
        thread.order(Launch { args, blocks: 1 }).expect("an order");
        thread.order(Launch { args, blocks: 1 }).expect("an order");
        assert_eq!(thread.failure(), None);
        release.send(Ok(())).expect("the thread waits");
        release.send(Err("refused".into())).expect("the thread waits");
        assert_eq!(thread.failures.recv().as_deref(), Ok("refused"));
        thread.end();
    }
}
