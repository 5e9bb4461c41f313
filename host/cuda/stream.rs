//! Streams, events and recorded work. A stream is work that a device executes in order, asynchronously to the CPU. An
//! event records a time. Recorded work is launched as a whole (CUDA graphs).
//!
//! On the emulated device, a thread executes the work of a stream, and an event records the time of its execution.

use super::driver::{failed, refused_or_failed};
use super::gpu_module::{Function, check_resident};
use super::wait::wait_out;
use super::{Device, DeviceError, emulated, emulated_stream, gpu};
use cudarc::driver::sys::{
    CUevent_flags, CUgraphInstantiate_flags, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig, CUstreamCaptureMode, cuLaunchKernelEx,
};
use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, result};
use std::ffi::c_void;
use std::fmt;
use std::ptr::null_mut;
use std::sync::Arc;

/// A stream. Dropping it waits until its work ends, which it does because every wait inside a kernel is bounded.
pub struct Stream(StreamKind);

enum StreamKind {
    Emulated(emulated_stream::Worker),
    Gpu(Arc<gpu::Gpu>, Arc<CudaStream>),
}

/// A point in a stream.
pub struct Event(EventKind);

enum EventKind {
    Emulated(emulated_stream::EmulatedEvent),
    Gpu(CudaEvent),
}

/// Recorded work.
pub struct Graph(GraphKind);

enum GraphKind {
    Emulated(Vec<emulated_stream::StreamWork>),
    Gpu(CudaGraph),
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            StreamKind::Emulated(_) => "Stream(emulated)",
            StreamKind::Gpu(..) => "Stream(gpu)",
        })
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Graph")
    }
}

fn other_device(what: &str) -> DeviceError {
    DeviceError::Refused(format!("{what} and the stream belong to different devices"))
}

impl Stream {
    /// Creates a stream on this device.
    ///
    /// # Errors
    /// Returns the driver's error, or the system's if the emulated device's thread cannot be started.
    pub fn new(device: &Device) -> Result<Stream, DeviceError> {
        match device {
            Device::Emulated => emulated_stream::Worker::start().map(|worker| Stream(StreamKind::Emulated(worker))),
            Device::Gpu(gpu) => {
                let stream = gpu.context.new_stream().map_err(failed("cuStreamCreate"))?;
                Ok(Stream(StreamKind::Gpu(gpu.clone(), stream)))
            }
        }
    }

    /// Like [`new`](Stream::new), with the highest priority: blocks of its grids are scheduled before waiting blocks of
    /// other streams.
    ///
    /// # Errors
    /// Returns the same errors as [`new`](Stream::new).
    pub fn urgent(device: &Device) -> Result<Stream, DeviceError> {
        let Device::Gpu(gpu) = device else { return Stream::new(device) };
        gpu.bind()?;
        let (_, highest) = result::stream::get_priority_range().map_err(failed("cuCtxGetStreamPriorityRange"))?;
        let stream = gpu.context.new_stream_with_priority(highest).map_err(failed("cuStreamCreateWithPriority"))?;
        Ok(Stream(StreamKind::Gpu(gpu.clone(), stream)))
    }

    /// Returns the handle for other CUDA libraries. `None` on the emulated device.
    pub fn handle(&self) -> Option<*mut c_void> {
        match &self.0 {
            StreamKind::Emulated(_) => None,
            StreamKind::Gpu(_, stream) => Some(stream.cu_stream().cast()),
        }
    }

    /// Appends a grid.
    ///
    /// # Safety
    /// The caller must uphold the kernel's contract. The pointers in `args` must stay valid until the grid has ended.
    ///
    /// # Errors
    /// Returns an error if the device refuses the launch. It does so if the blocks of the kernel wait for each other
    /// (`#[kernel(resident)]`) and do not all fit on the device. Later failures are returned by the next event.
    pub unsafe fn launch<A>(&self, function: &Function<A>, grid: u32, block: u32, args: A) -> Result<(), DeviceError>
    where
        A: Copy + Send + Sync + 'static,
    {
        // SAFETY: the caller upholds the kernel's contract.
        unsafe { self.launch_as(function, (grid, block), args, false) }
    }

    /// Like [`launch`](Stream::launch), but the grid may start while the preceding grid in the stream still runs
    /// (programmatic dependent launch), if that grid permits it. Requires compute capability 9.0; on other devices it
    /// is an ordinary launch.
    ///
    /// # Safety
    /// The requirements are those of [`launch`](Stream::launch). The kernel must also call
    /// `cuda_std::grid::wait_for_grids_before` before it accesses memory that preceding work in the stream uses.
    ///
    /// # Errors
    /// Returns the same errors as [`launch`](Stream::launch).
    pub unsafe fn launch_early<A>(
        &self,
        function: &Function<A>,
        grid: u32,
        block: u32,
        args: A,
    ) -> Result<(), DeviceError>
    where
        A: Copy + Send + Sync + 'static,
    {
        // SAFETY: the caller upholds the kernel's contract, including the call of `wait_for_grids_before`.
        unsafe { self.launch_as(function, (grid, block), args, true) }
    }

    /// Returns whether [`launch_early`](Stream::launch_early) differs from [`launch`](Stream::launch) on this device.
    pub fn begins_early(&self) -> bool {
        match &self.0 {
            StreamKind::Emulated(_) => false,
            StreamKind::Gpu(gpu, _) => gpu.begins_early(),
        }
    }

    unsafe fn launch_as<A>(
        &self,
        launched: &Function<A>,
        (grid, block): (u32, u32),
        mut args: A,
        early: bool,
    ) -> Result<(), DeviceError>
    where
        A: Copy + Send + Sync + 'static,
    {
        match (&self.0, launched) {
            (StreamKind::Emulated(worker), Function::Native { function, resident, .. }) => {
                check_resident(None, launched, grid, block)?;
                let (function, resident) = (*function, *resident);
                worker.work(Arc::new(move || {
                    emulated::run(grid, block, resident, || {
                        // SAFETY: the caller of `launch_as` upholds the kernel's contract for `args`.
                        unsafe { function(args) }
                    })
                }))
            }
            (StreamKind::Gpu(gpu, stream), Function::Gpu { function, name, shared, .. }) => {
                check_resident(Some(gpu), launched, grid, block)?;
                gpu.bind()?;
                let parameters = &mut [(&raw mut args).cast::<c_void>()];
                let mut attribute = CUlaunchAttribute {
                    id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                    pad: [0; 4],
                    value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
                };
                let early = early && gpu.begins_early();
                let config = CUlaunchConfig {
                    gridDimX: grid,
                    gridDimY: 1,
                    gridDimZ: 1,
                    blockDimX: block,
                    blockDimY: 1,
                    blockDimZ: 1,
                    sharedMemBytes: *shared,
                    hStream: stream.cu_stream(),
                    attrs: &raw mut attribute,
                    numAttrs: u32::from(early),
                };
                // SAFETY: the kernel takes one parameter of type A by value. The driver copies it, the configuration
                // and the attribute during the call. The caller upholds the kernel's contract.
                let status =
                    unsafe { cuLaunchKernelEx(&raw const config, function.0, parameters.as_mut_ptr(), null_mut()) };
                status.result().map_err(|error| refused_or_failed(error, name, grid, block))
            }
            _ => Err(other_device("the kernel")),
        }
    }

    /// Appends a copy between two ranges of device memory, of this device or of peers. On a GPU, a copy engine executes
    /// it.
    ///
    /// # Safety
    /// Both ranges must be valid for `bytes` bytes and must not be accessed otherwise until the copy has ended.
    ///
    /// # Errors
    /// Returns the driver's error if the copy cannot be appended.
    pub unsafe fn copy(&self, destination: u64, source: u64, bytes: u64) -> Result<(), DeviceError> {
        match &self.0 {
            StreamKind::Emulated(worker) => worker.work(Arc::new(move || {
                // SAFETY: the caller guarantees that both ranges are valid and not accessed otherwise.
                unsafe {
                    std::ptr::copy_nonoverlapping(source as *const u8, destination as *mut u8, bytes as usize);
                }
                Ok(())
            })),
            StreamKind::Gpu(gpu, stream) => {
                gpu.bind()?;
                // With unified addressing, the driver knows the device of each address, including addresses of opened
                // IPC handles. For those, cuMemcpyPeerAsync would require a context that this process does not have.
                // SAFETY: the caller guarantees that both ranges are valid and not accessed otherwise.
                unsafe { result::memcpy_dtod_async(destination, source, bytes as usize, stream.cu_stream()) }
                    .map_err(failed("cuMemcpyDtoDAsync"))
            }
        }
    }

    /// Appends an event that records the time.
    ///
    /// # Errors
    /// Returns the driver's error if the event cannot be recorded.
    pub fn event(&self) -> Result<Event, DeviceError> {
        self.event_with(CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Appends an event that does not record the time. Cheaper, and sufficient for waits.
    ///
    /// # Errors
    /// Returns the driver's error if the event cannot be recorded.
    pub fn mark(&self) -> Result<Event, DeviceError> {
        self.event_with(CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn event_with(&self, flags: CUevent_flags) -> Result<Event, DeviceError> {
        match &self.0 {
            StreamKind::Emulated(worker) => worker.event().map(|event| Event(EventKind::Emulated(event))),
            StreamKind::Gpu(gpu, stream) => {
                let event = gpu.context.new_event(Some(flags)).map_err(failed("cuEventCreate"))?;
                event.record(stream).map_err(failed("cuEventRecord"))?;
                Ok(Event(EventKind::Gpu(event)))
            }
        }
    }

    /// Makes subsequently appended work wait for an event of another stream of this device.
    ///
    /// # Errors
    /// Returns the driver's error, or [`DeviceError::Refused`] if the event belongs to another device.
    pub fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        match (&self.0, &event.0) {
            (StreamKind::Emulated(worker), EventKind::Emulated(event)) => worker.wait_for(event),
            (StreamKind::Gpu(_, stream), EventKind::Gpu(event)) => {
                stream.wait(event).map_err(failed("cuStreamWaitEvent"))
            }
            _ => Err(other_device("the event")),
        }
    }

    /// Discards appended grids that have not started, if the device can. For work that is aborted: the kernels of a
    /// failed series do nothing, but a thousand launches of the emulated device take a second.
    pub fn discard(&self) {
        if let StreamKind::Emulated(worker) = &self.0 {
            worker.discard();
        }
    }

    /// Waits for the stream's work. Returns the error with which the emulated device ended a grid because of a bug in a
    /// kernel ([`cuda_std::emulation::EmulatedGrid::run`]). Intended for callers that already have the failure of a
    /// kernel's call, because the bug might have been detected only after the failure. Returns `None` on a GPU.
    pub fn kernel_bug(&self) -> Option<DeviceError> {
        match &self.0 {
            StreamKind::Emulated(worker) => worker.failure(),
            StreamKind::Gpu(..) => None,
        }
    }

    /// Records the work that `work` appends instead of executing it. Includes work on other streams that wait for an
    /// event of this stream, if this stream finally waits for them.
    ///
    /// # Errors
    /// Returns the driver's error or that of `work`.
    pub fn record(&self, work: impl FnOnce(&Stream) -> Result<(), DeviceError>) -> Result<Graph, DeviceError> {
        match &self.0 {
            StreamKind::Emulated(worker) => {
                worker.begin_recording();
                let result = work(self);
                let recorded = worker.end_recording();
                result.map(|()| Graph(GraphKind::Emulated(recorded)))
            }
            StreamKind::Gpu(_, stream) => {
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                stream.begin_capture(mode).map_err(failed("cuStreamBeginCapture"))?;
                let result = work(self);
                // Grids keep the priority of the stream on which they were recorded.
                let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
                let graph = stream.end_capture(flags).map_err(failed("cuGraphInstantiate"));
                result?;
                let graph = graph?.ok_or_else(|| DeviceError::Refused("nothing was recorded".into()))?;
                graph.upload().map_err(failed("cuGraphUpload"))?;
                Ok(Graph(GraphKind::Gpu(graph)))
            }
        }
    }

    /// Appends recorded work.
    ///
    /// # Safety
    /// The safety requirements of the recorded work must be met, and the graph must not be replayed concurrently
    /// elsewhere.
    ///
    /// # Errors
    /// Returns the driver's error if the graph cannot be launched.
    pub unsafe fn replay(&self, graph: &Graph) -> Result<(), DeviceError> {
        match (&self.0, &graph.0) {
            (StreamKind::Emulated(worker), GraphKind::Emulated(list)) => {
                list.iter().try_for_each(|work| worker.work(work.clone()))
            }
            // The graph is launched into the stream on which it was recorded.
            (StreamKind::Gpu(..), GraphKind::Gpu(graph)) => graph.launch().map_err(failed("cuGraphLaunch")),
            _ => Err(other_device("the graph")),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (StreamKind::Gpu(..), Ok(end)) = (&self.0, self.mark()) {
            wait_out(|| end.is_complete());
        }
    }
}

impl Event {
    /// Returns whether all work before the event is complete.
    ///
    /// # Errors
    /// Returns an error if work before the event has failed.
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        match &self.0 {
            EventKind::Emulated(event) => event.is_complete(),
            EventKind::Gpu(event) => event.try_is_complete().map_err(failed("work of a stream")),
        }
    }

    /// Returns the time from an earlier event to this one, in microseconds.
    ///
    /// # Errors
    /// Returns an error if an event has not been reached, or the two belong to different devices.
    pub fn since_us(&self, earlier: &Event) -> Result<f64, DeviceError> {
        match (&earlier.0, &self.0) {
            (EventKind::Emulated(earlier), EventKind::Emulated(event)) => event.since_us(earlier),
            (EventKind::Gpu(earlier), EventKind::Gpu(event)) => {
                Ok(f64::from(earlier.elapsed_ms(event).map_err(failed("cuEventElapsedTime"))?) * 1000.0)
            }
            _ => Err(other_device("the event")),
        }
    }
}

#[cfg(test)]
mod tests;
