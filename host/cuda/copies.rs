//! Asynchronous copies from a GPU to the host.

use super::DeviceError;
use super::driver::failed;
use super::gpu::Gpu;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaEvent, CudaStream, result};
use std::collections::VecDeque;
use std::sync::Arc;

/// Copies from device to host memory that finish in the order in which they were started. This is a trait, so that
/// tests need no GPU.
pub trait OrderedCopies: std::fmt::Debug + Send {
    /// Starts a copy.
    ///
    /// # Safety
    /// `source` must be device memory and `destination` pinned host memory, both of `bytes` bytes. Both must stay valid
    /// until the copy is counted by [`finished`](OrderedCopies::finished).
    ///
    /// # Errors
    /// Returns the driver's error if the copy cannot be started.
    unsafe fn start(&mut self, destination: u64, source: u64, bytes: usize) -> Result<(), DeviceError>;

    /// Returns the number of copies that have finished since the last call.
    ///
    /// # Errors
    /// Returns the driver's error if a copy failed.
    fn finished(&mut self) -> Result<usize, DeviceError>;
}

/// Copies from GPU memory to pinned host memory, in order, with many in flight. They stage the data for a rail that
/// cannot read GPU memory.
#[derive(Debug)]
pub struct CopyQueue {
    gpu: Arc<Gpu>,
    stream: Arc<CudaStream>,
    running: VecDeque<CudaEvent>,
    idle: Vec<CudaEvent>,
}

impl CopyQueue {
    /// Creates a queue on `gpu` with its own stream.
    ///
    /// # Errors
    /// Returns the driver's error if the stream cannot be created.
    pub fn new(gpu: &Arc<Gpu>) -> Result<CopyQueue, DeviceError> {
        let stream = gpu.context.new_stream().map_err(failed("cuStreamCreate"))?;
        Ok(CopyQueue { gpu: gpu.clone(), stream, running: VecDeque::new(), idle: Vec::new() })
    }
}

impl OrderedCopies for CopyQueue {
    unsafe fn start(&mut self, destination: u64, source: u64, bytes: usize) -> Result<(), DeviceError> {
        self.gpu.bind()?;
        let stream: CUstream = self.stream.cu_stream();
        if bytes > 0 {
            // SAFETY: the caller guarantees that `destination` is valid for `bytes` bytes.
            let target = unsafe { std::slice::from_raw_parts_mut(destination as *mut u8, bytes) };
            // SAFETY: the caller guarantees that both ranges stay valid until the copy has finished, and the stream
            // belongs to the current context.
            unsafe { result::memcpy_dtoh_async(target, source, stream) }.map_err(failed("cuMemcpyDtoHAsync"))?;
        }
        let event = match self.idle.pop() {
            Some(event) => event,
            None => self.gpu.new_event()?,
        };
        event.record(&self.stream).map_err(failed("cuEventRecord"))?;
        self.running.push_back(event);
        Ok(())
    }

    fn finished(&mut self) -> Result<usize, DeviceError> {
        let mut count = 0;
        while let Some(event) = self.running.front() {
            if !event.try_is_complete().map_err(failed("copy to pinned host memory"))? {
                break;
            }
            self.idle.extend(self.running.pop_front());
            count += 1;
        }
        Ok(count)
    }
}

impl Drop for CopyQueue {
    fn drop(&mut self) {
        let result = self.stream.synchronize();
        self.gpu.context.record_err(result);
    }
}
