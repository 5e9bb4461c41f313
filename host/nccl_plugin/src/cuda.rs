//! [`Copies`] with the CUDA driver, in the context that was current on NCCL's thread when it connected.
//!
//! If the device supports `cuStreamBatchMemOp`, the stream itself writes words (signals, and puts of 8 bytes) and
//! marks. One call then writes several words, and a passed mark is detected with a load from host memory. Otherwise
//! words are copied, and marks are events.

use crate::copies::{Copies, CopyDirection};
use cudarc::driver::sys::{self, CUcontext, CUevent, CUresult, CUstream};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of words written by one call.
const BATCH: usize = 64;

thread_local! {
    /// Current context of the thread that drives the rails. No other code changes it on that thread.
    static BOUND: Cell<usize> = const { Cell::new(0) };
}

/// Converts the result of a driver call. The error contains the call and the driver's error name.
pub(crate) fn checked(call: &str, result: CUresult) -> Result<(), String> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: `text` is a local variable to write to.
    unsafe { sys::cuGetErrorName(result, &mut text) };
    let name = if text.is_null() {
        format!("error {}", result as u32)
    } else {
        // SAFETY: the driver returns a constant string that ends with a NUL.
        unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    Err(format!("{call} failed: {name}"))
}

/// A CUDA context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CuContext(CUcontext);

// SAFETY: the context is a handle, and a context may be made current on any thread.
unsafe impl Send for CuContext {}

impl CuContext {
    /// Returns the calling thread's context; `None` if there is no driver, or the thread has no context.
    pub fn current() -> Option<CuContext> {
        // SAFETY: the call only tries to load libcuda.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        let mut context: CUcontext = null_mut();
        // SAFETY: `context` is a local variable to write to.
        let result = unsafe { sys::cuCtxGetCurrent(&mut context) };
        (result == CUresult::CUDA_SUCCESS && !context.is_null()).then_some(CuContext(context))
    }

    /// Runs `act` with this context current on the calling thread.
    ///
    /// # Errors
    /// Returns the driver's error, or the error of `act`.
    pub(crate) fn with<T>(self, act: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        // SAFETY: NCCL keeps the context longer than its communicators; it is popped again below.
        checked("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.0) })?;
        let answer = act();
        let mut before: CUcontext = null_mut();
        // SAFETY: `before` is a local variable to write to.
        checked("cuCtxPopCurrent", unsafe { sys::cuCtxPopCurrent_v2(&mut before) })?;
        answer
    }

    /// Writes to device memory through a stream that does not wait for kernels.
    ///
    /// # Safety
    /// The range must be valid device memory of this context, and no kernel may access it during the call.
    pub(crate) unsafe fn write(self, device: u64, bytes: &[u8]) -> Result<(), String> {
        self.with(|| {
            let lane = Lane::new(None)?;
            // SAFETY: the caller guarantees that the range is valid and unused; `bytes` outlives the copy, which is
            // awaited here.
            unsafe {
                checked(
                    &format!("cuMemcpyHtoDAsync of {} B", bytes.len()),
                    sys::cuMemcpyHtoDAsync_v2(device, bytes.as_ptr().cast(), bytes.len(), lane.stream),
                )
                .and_then(|()| checked("cuStreamSynchronize", sys::cuStreamSynchronize(lane.stream)))
            }
        })
    }
}

/// Returns whether the device of the current context has this attribute.
pub(crate) fn device_has(attribute: sys::CUdevice_attribute) -> bool {
    let (mut device, mut can) = (0, 0);
    // SAFETY: `device` and `can` are local variables to write to, and a context is current.
    unsafe {
        sys::cuCtxGetDevice(&mut device) == CUresult::CUDA_SUCCESS
            && sys::cuDeviceGetAttribute(&mut can, attribute, device) == CUresult::CUDA_SUCCESS
            && can == 1
    }
}

/// Creates a stream that does not synchronize with the legacy stream, in the current context.
///
/// The stream has the highest priority, so that it shares no hardware queue with kernels of default priority. The
/// priority does not prevent the first copies from blocking; `CudaCopies::warm_up` does.
pub(crate) fn urgent_stream() -> Result<CUstream, String> {
    let (mut stream, mut highest): (CUstream, c_int) = (null_mut(), 0);
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: `stream` and `highest` are local variables to write to, and the context is current.
    let result = unsafe {
        checked("cuCtxGetStreamPriorityRange", sys::cuCtxGetStreamPriorityRange(null_mut(), &mut highest))?;
        sys::cuStreamCreateWithPriority(&mut stream, flags, highest)
    };
    checked("cuStreamCreateWithPriority", result).map(|()| stream)
}

/// Allocates pinned host memory in the current context, all zero. All contexts of the process and their devices can
/// access it.
pub(crate) fn pinned_zeros(bytes: usize) -> Result<*mut c_void, String> {
    let mut host = null_mut();
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: `host` is a local variable to write to.
    checked(&format!("cuMemHostAlloc of {bytes} B"), unsafe { sys::cuMemHostAlloc(&mut host, bytes, flags) })?;
    // SAFETY: the allocation has `bytes` bytes.
    unsafe { std::ptr::write_bytes(host.cast::<u8>(), 0, bytes) };
    Ok(host)
}

/// A stream and the marks in it.
struct Lane {
    stream: CUstream,
    made: u64,
    marks: Marks,
}

/// Implementation of marks.
enum Marks {
    /// A word to which the stream writes the numbers of marks. The vector contains words to write before the next copy
    /// or mark.
    Word(*mut AtomicU64, Vec<sys::CUstreamBatchMemOpParams>),
    Events(VecDeque<CUevent>, Vec<CUevent>),
}

impl Lane {
    fn new(word: Option<*mut AtomicU64>) -> Result<Lane, String> {
        let stream = urgent_stream()?;
        let marks = match word {
            Some(word) => Marks::Word(word, Vec::with_capacity(BATCH)),
            None => Marks::Events(VecDeque::new(), Vec::new()),
        };
        Ok(Lane { stream, made: 0, marks })
    }

    /// Makes the stream write a word after its pending work. Returns `false` if this stream cannot write words.
    fn write(&mut self, address: u64, value: u64) -> Result<bool, String> {
        let Marks::Word(_, words) = &mut self.marks else { return Ok(false) };
        let mut word = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
        word.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
            operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64,
            address,
            __bindgen_anon_1: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                value64: value,
            },
            // Default flags, the only ones that this call accepts: a barrier precedes the write, so that an observer of
            // the word also observes all earlier writes of the stream.
            flags: 0,
            alias: 0,
        };
        words.push(word);
        if words.len() >= BATCH {
            self.flush()?;
        }
        Ok(true)
    }

    /// Submits the collected words to the driver. Must be called before other work is added to the stream.
    fn flush(&mut self) -> Result<(), String> {
        let Marks::Word(_, words) = &mut self.marks else { return Ok(()) };
        if words.is_empty() {
            return Ok(());
        }
        // SAFETY: the count is the length of `words`, the stream belongs to the current context, and `put_word` and
        // `mark` have provided the addresses.
        let result = unsafe { sys::cuStreamBatchMemOp_v2(self.stream, words.len() as u32, words.as_mut_ptr(), 0) };
        words.clear();
        checked("cuStreamBatchMemOp", result)
    }

    fn mark(&mut self) -> Result<u64, String> {
        self.made += 1;
        let word = if let Marks::Word(word, _) = &self.marks { Some(*word) } else { None };
        if let Some(word) = word {
            self.write(word as u64, self.made)?;
            self.flush()?;
            return Ok(self.made);
        }
        if let Marks::Events(marks, idle) = &mut self.marks {
            let event = match idle.pop() {
                Some(event) => event,
                None => {
                    let mut event: CUevent = null_mut();
                    // SAFETY: `event` is a local variable to write to, and the context is current.
                    let result =
                        unsafe { sys::cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32) };
                    checked("cuEventCreate", result)?;
                    event
                }
            };
            // SAFETY: the event and the stream belong to the current context.
            let recorded = checked("cuEventRecord", unsafe { sys::cuEventRecord(event, self.stream) });
            // `drop` destroys the events of both lists.
            if recorded.is_ok() {
                marks.push_back(event);
            } else {
                idle.push(event);
            }
            recorded?;
        }
        Ok(self.made)
    }

    fn passed(&mut self) -> Result<u64, String> {
        match &mut self.marks {
            // SAFETY: the word is in pinned memory that is freed after the lanes. Uses acquire order: a thread that
            // sees the mark also sees the bytes that were copied out before it.
            Marks::Word(word, _) => Ok(unsafe { (**word).load(Ordering::Acquire) }),
            Marks::Events(marks, idle) => {
                while let Some(&event) = marks.front() {
                    // SAFETY: the event belongs to the current context.
                    match unsafe { sys::cuEventQuery(event) } {
                        CUresult::CUDA_ERROR_NOT_READY => break,
                        other => checked("a copy between pinned memory and the GPU", other)?,
                    }
                    idle.extend(marks.pop_front());
                }
                Ok(self.made - marks.len() as u64)
            }
        }
    }
}

impl Drop for Lane {
    /// Destroys the stream and its events. Earlier calls have already reported errors.
    fn drop(&mut self) {
        // SAFETY: `new` and `mark` created them, and there are no other references.
        unsafe {
            if let Marks::Events(marks, idle) = &mut self.marks {
                for event in marks.drain(..).chain(idle.drain(..)) {
                    let _ = sys::cuEventDestroy_v2(event);
                }
            }
            let _ = sys::cuStreamDestroy_v2(self.stream);
        }
    }
}

/// Pinned host memory, freed on drop.
struct PinnedZeros(*mut c_void);

impl Drop for PinnedZeros {
    fn drop(&mut self) {
        // SAFETY: `pinned_zeros` allocated it, and the lanes that write it are dropped first.
        let _ = unsafe { sys::cuMemFreeHost(self.0) };
    }
}

/// Copies with the CUDA driver; the module documentation describes them.
pub struct CudaCopies {
    context: CuContext,
    into: Lane,
    out: Lane,
    /// Two words for marks; `None` if marks are events. Dropped after the lanes, which write them.
    words: Option<PinnedZeros>,
}

impl CudaCopies {
    /// Creates two streams in `context`, which becomes current on the calling thread. With `by_stream`, streams write
    /// words if the device supports it.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub fn open(context: CuContext, by_stream: bool) -> Result<CudaCopies, String> {
        // SAFETY: NCCL keeps the context longer than its communicators.
        checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.0) })?;
        BOUND.set(context.0 as usize);
        let writes = device_has(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
        let words = if by_stream && writes { Some(PinnedZeros(pinned_zeros(256)?)) } else { None };
        // The words are 128 bytes apart, so that each is on its own cache line.
        let word = |index: usize| words.as_ref().map(|words| words.0.cast::<AtomicU64>().wrapping_add(index * 16));
        let (into, out) = (Lane::new(word(0))?, Lane::new(word(1))?);
        let mut copies = CudaCopies { context, into, out, words };
        copies.warm_up()?;
        Ok(copies)
    }

    /// Runs each kind of work once in each stream, before any kernel waits for it. The driver creates some resources at
    /// first use, and may have to wait for this until the GPU is idle.
    fn warm_up(&mut self) -> Result<(), String> {
        const BYTES: usize = 64 << 10;
        let (mut device, mut host) = (0, null_mut());
        // SAFETY: `device` and `host` are local variables to write to, and the context is current.
        checked("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut device, BYTES) })?;
        // SAFETY: `host` is a local variable to write to, and the context is current.
        let pinned = unsafe { sys::cuMemHostAlloc(&mut host, BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let each = |lane: &mut Lane| {
            // SAFETY: both allocations have `BYTES` bytes and no other users; the stream belongs to the current
            // context.
            unsafe {
                checked("cuMemcpyHtoDAsync", sys::cuMemcpyHtoDAsync_v2(device, host, BYTES, lane.stream))?;
                checked("cuMemcpyDtoHAsync", sys::cuMemcpyDtoHAsync_v2(host, device, BYTES, lane.stream))?;
            }
            lane.write(device, 0)?;
            lane.mark()?;
            // SAFETY: the stream belongs to the current context.
            checked("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(lane.stream) })?;
            lane.passed().map(drop)
        };
        let done =
            checked("cuMemHostAlloc", pinned).and_then(|()| each(&mut self.into)).and_then(|()| each(&mut self.out));
        // SAFETY: both were allocated above; the streams have finished, or their work has failed.
        unsafe {
            let _ = sys::cuMemFree_v2(device);
            let _ = sys::cuMemFreeHost(host);
        }
        done
    }
}

impl Copies for CudaCopies {
    fn bind(&mut self) -> Result<(), String> {
        if BOUND.get() == self.context.0 as usize {
            return Ok(());
        }
        // SAFETY: NCCL keeps the context longer than its communicators.
        checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context.0) })?;
        BOUND.set(self.context.0 as usize);
        Ok(())
    }

    unsafe fn pin(&mut self, address: u64, bytes: usize) -> Result<(), String> {
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller guarantees that the memory stays valid until `unpin`.
        let result = unsafe { sys::cuMemHostRegister_v2(address as *mut _, bytes, flags) };
        checked(&format!("cuMemHostRegister of {bytes} B"), result)
    }

    fn unpin(&mut self, address: u64) {
        // SAFETY: `pin` pinned it, and no copy is running (the owner calls `settle` before).
        let _ = unsafe { sys::cuMemHostUnregister(address as *mut _) };
    }

    unsafe fn put_in(&mut self, device: u64, host: u64, bytes: usize) -> Result<(), String> {
        self.into.flush()?;
        // SAFETY: the caller guarantees that both ranges stay valid until a later mark is passed; the stream belongs to
        // the current context.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(device, host as *const _, bytes, self.into.stream) };
        checked(&format!("cuMemcpyHtoDAsync of {bytes} B"), result)
    }

    unsafe fn put_word(&mut self, device: u64, scratch: *mut u64, value: u64) -> Result<(), String> {
        if self.into.write(device, value)? {
            return Ok(());
        }
        // SAFETY: the caller guarantees that both words stay valid until a later mark is passed.
        unsafe {
            scratch.write(value);
            self.put_in(device, scratch as u64, 8)
        }
    }

    unsafe fn take_out(&mut self, host: u64, device: u64, bytes: usize, after_puts: bool) -> Result<(), String> {
        let lane = if after_puts { &mut self.into } else { &mut self.out };
        lane.flush()?;
        // SAFETY: the caller guarantees that both ranges stay valid until a later mark is passed; the stream belongs to
        // the current context.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(host as *mut _, device, bytes, lane.stream) };
        checked(&format!("cuMemcpyDtoHAsync of {bytes} B"), result)
    }

    fn mark(&mut self, queue: CopyDirection) -> Result<u64, String> {
        match queue {
            CopyDirection::In => self.into.mark(),
            CopyDirection::Out => self.out.mark(),
        }
    }

    fn passed(&mut self, queue: CopyDirection) -> Result<u64, String> {
        match queue {
            CopyDirection::In => self.into.passed(),
            CopyDirection::Out => self.out.passed(),
        }
    }

    /// Submits words that are not followed by a mark.
    fn turn(&mut self) -> Result<(), String> {
        self.into.flush()
    }

    fn settle(&mut self) {
        for lane in [&mut self.into, &mut self.out] {
            let _ = lane.flush();
            // SAFETY: the stream belongs to the current context. Earlier calls have reported its errors.
            let _ = unsafe { sys::cuStreamSynchronize(lane.stream) };
        }
    }

    fn name(&self) -> String {
        let words = if self.words.is_none() { "" } else { "; words and marks by streams" };
        format!("copies through pinned host memory{words}")
    }
}

impl Drop for CudaCopies {
    /// Waits for the copies, since the memory that they access is freed next.
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        self.settle();
    }
}
