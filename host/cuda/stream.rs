//! Streams: work that a device does in order while the CPU goes on, events in it that take the time, and recorded work that is
//! started as a whole (CUDA graphs).
//!
//! On the emulated device a thread does the work of a stream, and an event is a look at the clock.

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

/// A stream. Dropping it waits for its work: every wait inside a kernel is bounded, so that ends.
pub struct Stream(Kind);

enum Kind {
    Emulated(emulated_stream::Worker),
    Gpu(Arc<gpu::Gpu>, Arc<CudaStream>),
}

/// A point in a stream.
pub struct Event(EventKind);

enum EventKind {
    Emulated(emulated_stream::Event),
    Gpu(CudaEvent),
}

/// Recorded work.
pub struct Graph(GraphKind);

enum GraphKind {
    Emulated(Vec<emulated_stream::Work>),
    Gpu(CudaGraph),
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Emulated(_) => "Stream(emulated)",
            Kind::Gpu(..) => "Stream(gpu)",
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
    DeviceError::Refused(format!("{what} is of another device than the stream"))
}

impl Stream {
    /// A stream of its own on this device.
    ///
    /// # Errors
    /// The driver's, or the system's for the emulated device's thread.
    pub fn new(device: &Device) -> Result<Stream, DeviceError> {
        match device {
            Device::Emulated => emulated_stream::Worker::start().map(|worker| Stream(Kind::Emulated(worker))),
            Device::Gpu(gpu) => {
                let stream = gpu.context.new_stream().map_err(failed("cuStreamCreate"))?;
                Ok(Stream(Kind::Gpu(gpu.clone(), stream)))
            }
        }
    }

    /// As [`new`](Stream::new), of the highest priority: its grids' blocks come before those that wait in other streams.
    ///
    /// # Errors
    /// As [`new`](Stream::new).
    pub fn urgent(device: &Device) -> Result<Stream, DeviceError> {
        let Device::Gpu(gpu) = device else { return Stream::new(device) };
        gpu.bind()?;
        let (_, highest) = result::stream::get_priority_range().map_err(failed("cuCtxGetStreamPriorityRange"))?;
        let stream = gpu.context.new_stream_with_priority(highest).map_err(failed("cuStreamCreateWithPriority"))?;
        Ok(Stream(Kind::Gpu(gpu.clone(), stream)))
    }

    /// As other CUDA libraries take it; `None` on the emulated device.
    pub fn handle(&self) -> Option<*mut c_void> {
        match &self.0 {
            Kind::Emulated(_) => None,
            Kind::Gpu(_, stream) => Some(stream.cu_stream().cast()),
        }
    }

    /// Appends a grid.
    ///
    /// # Safety
    /// The kernel's own contract: the pointers in `args` stay valid until the grid has ended.
    ///
    /// # Errors
    /// When the device refuses the launch: also a grid that it cannot hold as a whole, of a kernel whose blocks wait (`#[kernel(resident)]`).
    /// What goes wrong later is an error of the next event.
    pub unsafe fn launch<A>(&self, function: &Function<A>, grid: u32, block: u32, args: A) -> Result<(), DeviceError>
    where
        A: Copy + Send + Sync + 'static,
    {
        // SAFETY: the caller's contract.
        unsafe { self.launch_as(function, (grid, block), args, false) }
    }

    /// As [`launch`](Stream::launch), and the grid may come onto the multiprocessors while the one before it in the stream still runs
    /// (programmatic dependent launch): from compute capability 9.0 on, where that one lets it. Elsewhere it is a launch as any other.
    ///
    /// # Safety
    /// As there, and the kernel calls `cuda_std::grid::wait_for_grids_before` before it touches what work before it in the stream uses.
    ///
    /// # Errors
    /// As there.
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
        // SAFETY: the caller's contract.
        unsafe { self.launch_as(function, (grid, block), args, true) }
    }

    /// Whether [`launch_early`](Stream::launch_early) is more than [`launch`](Stream::launch) on this device.
    pub fn begins_early(&self) -> bool {
        match &self.0 {
            Kind::Emulated(_) => false,
            Kind::Gpu(gpu, _) => gpu.begins_early(),
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
            (Kind::Emulated(worker), Function::Native { function, resident, .. }) => {
                check_resident(None, launched, grid, block)?;
                let (function, resident) = (*function, *resident);
                worker.work(Arc::new(move || {
                    emulated::run(grid, block, resident, || {
                        // SAFETY: the caller's contract.
                        unsafe { function(args) }
                    })
                }))
            }
            (Kind::Gpu(gpu, stream), Function::Gpu { function, name, shared, .. }) => {
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
                // SAFETY: the kernel takes one parameter of type A by value, which the driver copies now, as the configuration and its
                // attribute; the rest is the caller's.
                let status =
                    unsafe { cuLaunchKernelEx(&raw const config, function.0, parameters.as_mut_ptr(), null_mut()) };
                status.result().map_err(|error| refused_or_failed(error, name, grid, block))
            }
            _ => Err(other_device("the kernel")),
        }
    }

    /// Appends a copy between two places of device memory, of this device or of peers; on a GPU its copy engines do it.
    ///
    /// # Safety
    /// Both are valid for `bytes`, and are not used otherwise, until the copy has ended.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn copy(&self, destination: u64, source: u64, bytes: u64) -> Result<(), DeviceError> {
        match &self.0 {
            Kind::Emulated(worker) => worker.work(Arc::new(move || {
                // SAFETY: the caller's contract.
                unsafe {
                    std::ptr::copy_nonoverlapping(source as *const u8, destination as *mut u8, bytes as usize);
                }
                Ok(())
            })),
            Kind::Gpu(gpu, stream) => {
                gpu.bind()?;
                // One address space: the driver knows whose memory the addresses are, also those of opened handles, for
                // which cuMemcpyPeerAsync would want a context that this process does not have.
                // SAFETY: the caller's contract.
                unsafe { result::memcpy_dtod_async(destination, source, bytes as usize, stream.cu_stream()) }
                    .map_err(failed("cuMemcpyDtoDAsync"))
            }
        }
    }

    /// Appends an event.
    ///
    /// # Errors
    /// The driver's.
    pub fn event(&self) -> Result<Event, DeviceError> {
        self.event_with(CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Appends an event that takes no time: for waits alone, and cheaper.
    ///
    /// # Errors
    /// The driver's.
    pub fn mark(&self) -> Result<Event, DeviceError> {
        self.event_with(CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn event_with(&self, flags: CUevent_flags) -> Result<Event, DeviceError> {
        match &self.0 {
            Kind::Emulated(worker) => worker.event().map(|event| Event(EventKind::Emulated(event))),
            Kind::Gpu(gpu, stream) => {
                let event = gpu.context.new_event(Some(flags)).map_err(failed("cuEventCreate"))?;
                event.record(stream).map_err(failed("cuEventRecord"))?;
                Ok(Event(EventKind::Gpu(event)))
            }
        }
    }

    /// Lets what is appended from now on wait for an event of another stream of this device.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        match (&self.0, &event.0) {
            (Kind::Emulated(worker), EventKind::Emulated(event)) => worker.wait_for(event),
            (Kind::Gpu(_, stream), EventKind::Gpu(event)) => stream.wait(event).map_err(failed("cuStreamWaitEvent")),
            _ => Err(other_device("the event")),
        }
    }

    /// Why the emulated device has ended a grid of this stream: a bug of a kernel ([`cuda_std::emulation::Grid::run`]). Waits for the stream's
    /// work. For callers that have a failure of a kernel's call already: the bug may have shown itself a moment later. On a GPU: nothing.
    pub fn kernel_bug(&self) -> Option<DeviceError> {
        match &self.0 {
            Kind::Emulated(worker) => worker.failure(),
            Kind::Gpu(..) => None,
        }
    }

    /// Records what `work` appends, instead of doing it; also what it appends to other streams that wait for an event of this one, and for
    /// which this one waits in the end.
    ///
    /// # Errors
    /// The driver's, or those of `work`.
    pub fn record(&self, work: impl FnOnce(&Stream) -> Result<(), DeviceError>) -> Result<Graph, DeviceError> {
        match &self.0 {
            Kind::Emulated(worker) => {
                worker.begin_recording();
                let result = work(self);
                let recorded = worker.end_recording();
                result.map(|()| Graph(GraphKind::Emulated(recorded)))
            }
            Kind::Gpu(_, stream) => {
                let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                stream.begin_capture(mode).map_err(failed("cuStreamBeginCapture"))?;
                let result = work(self);
                // Grids keep the priority of the stream that they were recorded from.
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
    /// As for what was recorded, and nothing else replays the graph at the same time.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn replay(&self, graph: &Graph) -> Result<(), DeviceError> {
        match (&self.0, &graph.0) {
            (Kind::Emulated(worker), GraphKind::Emulated(list)) => {
                list.iter().try_for_each(|work| worker.work(work.clone()))
            }
            // Into the stream it was recorded from.
            (Kind::Gpu(..), GraphKind::Gpu(graph)) => graph.launch().map_err(failed("cuGraphLaunch")),
            _ => Err(other_device("the graph")),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (Kind::Gpu(..), Ok(end)) = (&self.0, self.mark()) {
            wait_out(|| end.is_complete());
        }
    }
}

impl Event {
    /// Whether everything before the event is done.
    ///
    /// # Errors
    /// When something before it failed.
    pub fn is_complete(&self) -> Result<bool, DeviceError> {
        match &self.0 {
            EventKind::Emulated(event) => event.is_complete(),
            EventKind::Gpu(event) => event.try_is_complete().map_err(failed("work of a stream")),
        }
    }

    /// Microseconds from an earlier event to this one; both are reached.
    ///
    /// # Errors
    /// When one is not reached, or the two are of different devices.
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn complete(event: &Event) -> Result<(), DeviceError> {
        while !event.is_complete()? {
            std::thread::yield_now();
        }
        Ok(())
    }

    unsafe fn add(args: (u64, u64)) {
        // SAFETY: the tests give the address of a word that only one stream uses at a time.
        unsafe { *(args.0 as *mut u64) = *(args.0 as *const u64) * 10 + args.1 };
    }

    const ADD: Function<(u64, u64)> = Function::Native { name: "add", function: add, resident: false };

    #[test]
    fn a_resident_grid_larger_than_the_device_is_refused_before_it_is_in_the_stream() {
        let stream = Stream::new(&Device::Emulated).unwrap();
        let word = Box::new(0u64);
        let address = &raw const *word as u64;
        let waits = Function::Native { name: "waits", function: add, resident: true };
        // SAFETY: nothing is launched.
        let refused = unsafe { stream.launch(&waits, 133, 1024, (address, 1)) }.unwrap_err().to_string();
        assert!(refused.contains("of waits wait for one another, and at most 132 of 1024 threads"), "{refused}");
        complete(&stream.event().unwrap()).unwrap();
        assert_eq!(*word, 0);
    }

    #[test]
    fn work_is_done_in_order_recorded_work_when_it_is_replayed() {
        let stream = Stream::new(&Device::Emulated).unwrap();
        let word = Box::new(0u64);
        let address = &raw const *word as u64;
        // SAFETY: the word outlives the stream's work, for which the events below are waited for.
        let append = |stream: &Stream, digit: u64| unsafe { stream.launch(&ADD, 1, 1, (address, digit)) };
        let first = stream.event().unwrap();
        append(&stream, 1).unwrap();
        let graph = stream.record(|stream| append(stream, 2).and_then(|()| append(stream, 3))).unwrap();
        append(&stream, 4).unwrap();
        // SAFETY: as above.
        unsafe { stream.replay(&graph).and_then(|()| stream.replay(&graph)) }.unwrap();
        let last = stream.event().unwrap();
        complete(&last).unwrap();
        // SAFETY: nobody writes the word any more.
        assert_eq!(unsafe { (address as *const u64).read_volatile() }, 142_323);
        assert!(last.since_us(&first).unwrap() > 0.0);
    }

    #[test]
    fn a_stream_waits_for_an_event_of_another_and_nothing_is_done_behind_an_error() {
        let [first, second] = [(), ()].map(|()| Stream::new(&Device::Emulated).unwrap());
        let word = Box::new(7u64);
        let address = &raw const *word as u64;
        // SAFETY: the word outlives both streams' work; the second waits for the first.
        unsafe { first.launch(&ADD, 1, 1, (address, 1)) }.unwrap();
        second.wait_for(&first.event().unwrap()).unwrap();
        // SAFETY: as above.
        unsafe { second.launch(&ADD, 1, 1, (address, 2)) }.unwrap();
        let bad = cuda_std::emulation::MAX_BLOCK + 1;
        // SAFETY: as above; this grid is refused when its turn comes.
        unsafe { second.launch(&ADD, 1, bad, (address, 3)) }.unwrap();
        // SAFETY: as above.
        unsafe { second.launch(&ADD, 1, 1, (address, 4)) }.unwrap();
        let error = complete(&second.event().unwrap()).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
        // SAFETY: nobody writes the word any more.
        assert_eq!(unsafe { (address as *const u64).read_volatile() }, 712);
    }
}
