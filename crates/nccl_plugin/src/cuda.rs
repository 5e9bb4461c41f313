//! [`Copies`] by the CUDA driver, in the context that NCCL's thread had when it connected.

use crate::copies::{Copies, Queue};
use cudarc::driver::sys::{self, CUcontext, CUevent, CUresult, CUstream};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr::null_mut;

thread_local! {
    /// The context that the thread of the rails has: nobody else sets one there.
    static BOUND: Cell<usize> = const { Cell::new(0) };
}

/// The error of a call, by its name and the driver's number and words.
fn checked(call: &str, result: CUresult) -> Result<(), String> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: a local to write to.
    unsafe { sys::cuGetErrorName(result, &mut text) };
    let name = if text.is_null() {
        format!("error {}", result as u32)
    } else {
        // SAFETY: the driver's constant text.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Err(format!("{call} failed: {name}"))
}

/// The context of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context(CUcontext);

// SAFETY: a handle; contexts may be made current on any thread.
unsafe impl Send for Context {}

impl Context {
    /// `None` where there is no driver, or the thread has no context.
    pub fn current() -> Option<Context> {
        // SAFETY: only tries to load libcuda.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let mut context: CUcontext = null_mut();
        // SAFETY: a local to write to.
        let result = unsafe { sys::cuCtxGetCurrent(&mut context) };
        (result == CUresult::CUDA_SUCCESS && !context.is_null()).then_some(Context(context))
    }
}

/// A stream with the marks in it.
struct Lane {
    stream: CUstream,
    marks: VecDeque<CUevent>,
    idle: Vec<CUevent>,
    made: u64,
}

impl Lane {
    fn new() -> Result<Lane, String> {
        let mut stream: CUstream = null_mut();
        // SAFETY: a local to write to; the context is current.
        let result = unsafe { sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32) };
        checked("cuStreamCreate", result)?;
        Ok(Lane { stream, marks: VecDeque::new(), idle: Vec::new(), made: 0 })
    }

    fn mark(&mut self) -> Result<u64, String> {
        let event = match self.idle.pop() {
            Some(event) => event,
            None => {
                let mut event: CUevent = null_mut();
                // SAFETY: a local to write to; the context is current.
                let result =
                    unsafe { sys::cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32) };
                checked("cuEventCreate", result)?;
                event
            }
        };
        // SAFETY: both are of the current context.
        checked("cuEventRecord", unsafe { sys::cuEventRecord(event, self.stream) })?;
        self.marks.push_back(event);
        self.made += 1;
        Ok(self.made)
    }

    fn passed(&mut self) -> Result<u64, String> {
        while let Some(&event) = self.marks.front() {
            // SAFETY: an event of the current context.
            match unsafe { sys::cuEventQuery(event) } {
                CUresult::CUDA_ERROR_NOT_READY => break,
                other => checked("a copy between pinned memory and the GPU", other)?,
            }
            self.idle.extend(self.marks.pop_front());
        }
        Ok(self.made - self.marks.len() as u64)
    }
}

/// See the module.
pub struct CudaCopies {
    context: Context,
    into: Lane,
    out: Lane,
    /// Words are written by the stream itself, and not by a copy engine.
    words: bool,
}

impl CudaCopies {
    /// With two streams in this context, which becomes the calling thread's.
    ///
    /// # Errors
    /// The driver's.
    pub fn open(context: Context, words: bool) -> Result<CudaCopies, String> {
        // SAFETY: a context that NCCL keeps longer than its communicators.
        checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.0) })?;
        Ok(CudaCopies { context, into: Lane::new()?, out: Lane::new()?, words })
    }
}

impl Copies for CudaCopies {
    fn bind(&mut self) -> Result<(), String> {
        if BOUND.get() == self.context.0 as usize {
            return Ok(());
        }
        // SAFETY: as in `open`.
        checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context.0) })?;
        BOUND.set(self.context.0 as usize);
        Ok(())
    }

    unsafe fn pin(&mut self, address: u64, bytes: usize) -> Result<(), String> {
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller's contract.
        let result = unsafe { sys::cuMemHostRegister_v2(address as *mut _, bytes, flags) };
        checked(&format!("cuMemHostRegister of {bytes} B"), result)
    }

    fn unpin(&mut self, address: u64) {
        // SAFETY: it was pinned by `pin`, and no copy runs any more (`drop` of who owns it has waited).
        let _ = unsafe { sys::cuMemHostUnregister(address as *mut _) };
    }

    unsafe fn put_in(&mut self, device: u64, host: u64, bytes: usize) -> Result<(), String> {
        // SAFETY: the caller's contract; the stream is of the current context.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(device, host as *const _, bytes, self.into.stream) };
        checked(&format!("cuMemcpyHtoDAsync of {bytes} B"), result)
    }

    unsafe fn put_word(&mut self, device: u64, scratch: *mut u64, value: u64) -> Result<(), String> {
        if !self.words {
            // SAFETY: the caller's contract.
            return unsafe {
                scratch.write(value);
                self.put_in(device, scratch as u64, 8)
            };
        }
        // SAFETY: the caller's contract; the stream is of the current context.
        let result = unsafe { sys::cuStreamWriteValue64_v2(self.into.stream, device, value, 0) };
        checked("cuStreamWriteValue64", result)
    }

    unsafe fn take_out(&mut self, host: u64, device: u64, bytes: usize, behind_puts: bool) -> Result<(), String> {
        let stream = if behind_puts { self.into.stream } else { self.out.stream };
        // SAFETY: the caller's contract; the stream is of the current context.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(host as *mut _, device, bytes, stream) };
        checked(&format!("cuMemcpyDtoHAsync of {bytes} B"), result)
    }

    fn mark(&mut self, queue: Queue) -> Result<u64, String> {
        match queue {
            Queue::In => self.into.mark(),
            Queue::Out => self.out.mark(),
        }
    }

    fn passed(&mut self, queue: Queue) -> Result<u64, String> {
        match queue {
            Queue::In => self.into.passed(),
            Queue::Out => self.out.passed(),
        }
    }

    fn settle(&mut self) {
        for lane in [&self.into, &self.out] {
            // SAFETY: a stream of the current context. Its errors are those of the calls before.
            let _ = unsafe { sys::cuStreamSynchronize(lane.stream) };
        }
    }

    fn name(&self) -> String {
        let words = if self.words { "; words by the stream" } else { "" };
        format!("copies through pinned host memory{words}")
    }
}

impl Drop for CudaCopies {
    /// Waits for the copies: they move bytes of memory that goes away now.
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        self.settle();
        for lane in [&mut self.into, &mut self.out] {
            // SAFETY: streams and events of the current context, which nobody else knows. Errors have been told by the calls before.
            unsafe {
                for event in lane.marks.drain(..).chain(lane.idle.drain(..)) {
                    let _ = sys::cuEventDestroy_v2(event);
                }
                let _ = sys::cuStreamDestroy_v2(lane.stream);
            }
        }
    }
}
