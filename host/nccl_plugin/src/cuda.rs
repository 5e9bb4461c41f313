//! [`Copies`] by the CUDA driver, in the context that NCCL's thread had when it connected.
//!
//! Words (signals, and puts of 8 bytes) and marks are written by the stream itself where the device can do that (`cuStreamBatchMemOp`): several of
//! them are one call, and whether a mark is passed is a look at host memory. Otherwise words are copied, and marks are events.

use crate::copies::{Copies, Queue};
use cudarc::driver::sys::{self, CUcontext, CUevent, CUresult, CUstream};
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words that are written by one call at most.
const BATCH: usize = 64;

thread_local! {
    /// The context that the thread of the rails has: nobody else sets one there.
    static BOUND: Cell<usize> = const { Cell::new(0) };
}

/// The error of a call, by its name and the driver's number and words.
pub(crate) fn checked(call: &str, result: CUresult) -> Result<(), String> {
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

    /// Does it with this context as the calling thread's.
    ///
    /// # Errors
    /// The driver's, or its own.
    pub(crate) fn with<T>(self, act: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        // SAFETY: a context that NCCL keeps longer than its communicators; it is taken off again below.
        checked("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.0) })?;
        let answer = act();
        let mut before: CUcontext = null_mut();
        // SAFETY: a local to write to.
        checked("cuCtxPopCurrent", unsafe { sys::cuCtxPopCurrent_v2(&mut before) })?;
        answer
    }

    /// Writes to the device's memory by a stream that waits for no kernel.
    ///
    /// # Safety
    /// So many bytes are there, and nobody looks at them.
    pub(crate) unsafe fn write(self, device: u64, bytes: &[u8]) -> Result<(), String> {
        self.with(|| {
            let lane = Lane::new(None)?;
            // SAFETY: the caller's contract; the bytes stay until the stream is through.
            let copied = unsafe {
                checked(
                    &format!("cuMemcpyHtoDAsync of {} B", bytes.len()),
                    sys::cuMemcpyHtoDAsync_v2(device, bytes.as_ptr().cast(), bytes.len(), lane.stream),
                )
                .and_then(|()| checked("cuStreamSynchronize", sys::cuStreamSynchronize(lane.stream)))
            };
            // SAFETY: the stream made above.
            let _ = unsafe { sys::cuStreamDestroy_v2(lane.stream) };
            copied
        })
    }
}

/// Whether the device of the current context has this attribute.
pub(crate) fn device_has(attribute: sys::CUdevice_attribute) -> bool {
    let (mut device, mut can) = (0, 0);
    // SAFETY: locals to write to; a context is current.
    unsafe {
        sys::cuCtxGetDevice(&mut device) == CUresult::CUDA_SUCCESS
            && sys::cuDeviceGetAttribute(&mut can, attribute, device) == CUresult::CUDA_SUCCESS
            && can == 1
    }
}

/// A stream that does not wait for the legacy one, in the current context.
///
/// Of the highest priority, which shares no queue at the GPU with kernels of the usual one. It is not what mended the first copies: with it and
/// without 3 of 26 runs hung on an H200 (data/2026-11-26-h200); `warm_up` did.
pub(crate) fn urgent_stream() -> Result<CUstream, String> {
    let (mut stream, mut highest): (CUstream, c_int) = (null_mut(), 0);
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: locals to write to; the context is current.
    let result = unsafe {
        checked("cuCtxGetStreamPriorityRange", sys::cuCtxGetStreamPriorityRange(null_mut(), &mut highest))?;
        sys::cuStreamCreateWithPriority(&mut stream, flags, highest)
    };
    checked("cuStreamCreateWithPriority", result).map(|()| stream)
}

/// Pinned memory of the host, all zero, which all contexts of the process and their devices reach; the current context allocates it.
pub(crate) fn pinned_zeros(bytes: usize) -> Result<*mut c_void, String> {
    let mut host = null_mut();
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: a local to write to.
    checked(&format!("cuMemHostAlloc of {bytes} B"), unsafe { sys::cuMemHostAlloc(&mut host, bytes, flags) })?;
    // SAFETY: so many bytes are there.
    unsafe { std::ptr::write_bytes(host.cast::<u8>(), 0, bytes) };
    Ok(host)
}

/// A stream with the marks in it.
struct Lane {
    stream: CUstream,
    made: u64,
    marks: Marks,
}

/// How marks are made.
enum Marks {
    /// The stream writes their numbers here; words that are to be written before the next copy or mark.
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

    /// Lets the stream write a word behind what it has. `false` where it does not.
    fn write(&mut self, address: u64, value: u64) -> Result<bool, String> {
        let Marks::Word(_, words) = &mut self.marks else { return Ok(false) };
        let mut word = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
        word.writeValue = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
            operation: sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_64,
            address,
            __bindgen_anon_1: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                value64: value,
            },
            // The default, and the only one that this call takes: a barrier before the write, so that who sees it sees what stands before it.
            flags: 0,
            alias: 0,
        };
        words.push(word);
        if words.len() >= BATCH {
            self.flush()?;
        }
        Ok(true)
    }

    /// Hands the driver what has been gathered: before anything else goes into the stream.
    fn flush(&mut self) -> Result<(), String> {
        let Marks::Word(_, words) = &mut self.marks else { return Ok(()) };
        if words.is_empty() {
            return Ok(());
        }
        // SAFETY: so many words; the stream is of the current context; addresses are those of `put_word` and `mark`.
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
                    // SAFETY: a local to write to; the context is current.
                    let result =
                        unsafe { sys::cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32) };
                    checked("cuEventCreate", result)?;
                    event
                }
            };
            // SAFETY: both are of the current context.
            checked("cuEventRecord", unsafe { sys::cuEventRecord(event, self.stream) })?;
            marks.push_back(event);
        }
        Ok(self.made)
    }

    fn passed(&mut self) -> Result<u64, String> {
        match &mut self.marks {
            // SAFETY: pinned memory that is freed behind the lanes. Acquire: who sees the mark sees the bytes that were copied out before.
            Marks::Word(word, _) => Ok(unsafe { (**word).load(Ordering::Acquire) }),
            Marks::Events(marks, idle) => {
                while let Some(&event) = marks.front() {
                    // SAFETY: an event of the current context.
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

/// See the module.
pub struct CudaCopies {
    context: Context,
    into: Lane,
    out: Lane,
    /// Two words of pinned memory, for marks; null where marks are events.
    words: *mut c_void,
}

impl CudaCopies {
    /// With two streams in this context, which becomes the calling thread's. `by_stream`: words are written by streams, where they can.
    ///
    /// # Errors
    /// The driver's.
    pub fn open(context: Context, by_stream: bool) -> Result<CudaCopies, String> {
        // SAFETY: a context that NCCL keeps longer than its communicators.
        checked("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.0) })?;
        BOUND.set(context.0 as usize);
        let writes = device_has(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
        let words = if by_stream && writes { pinned_zeros(256)? } else { null_mut() };
        // Lines of their own.
        let word = |index: usize| (!words.is_null()).then(|| words.cast::<AtomicU64>().wrapping_add(index * 16));
        let mut copies = CudaCopies { context, into: Lane::new(word(0))?, out: Lane::new(word(1))?, words };
        copies.warm_up()?;
        Ok(copies)
    }

    /// Each kind of work once in each stream, before any kernel waits for it: what the driver makes at first use may have to wait until the GPU is idle.
    fn warm_up(&mut self) -> Result<(), String> {
        const BYTES: usize = 64 << 10;
        let (mut device, mut host) = (0, null_mut());
        // SAFETY: locals to write to; the context is current.
        checked("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut device, BYTES) })?;
        // SAFETY: as above.
        let pinned = unsafe { sys::cuMemHostAlloc(&mut host, BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let each = |lane: &mut Lane| {
            // SAFETY: both have so many bytes, which nobody else knows; the stream is of the current context.
            unsafe {
                checked("cuMemcpyHtoDAsync", sys::cuMemcpyHtoDAsync_v2(device, host, BYTES, lane.stream))?;
                checked("cuMemcpyDtoHAsync", sys::cuMemcpyDtoHAsync_v2(host, device, BYTES, lane.stream))?;
            }
            lane.write(device, 0)?;
            lane.mark()?;
            // SAFETY: as above.
            checked("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(lane.stream) })?;
            lane.passed().map(drop)
        };
        let done =
            checked("cuMemHostAlloc", pinned).and_then(|()| each(&mut self.into)).and_then(|()| each(&mut self.out));
        // SAFETY: what was allocated above; the streams are through, or their work has failed.
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
        self.into.flush()?;
        // SAFETY: the caller's contract; the stream is of the current context.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(device, host as *const _, bytes, self.into.stream) };
        checked(&format!("cuMemcpyHtoDAsync of {bytes} B"), result)
    }

    unsafe fn put_word(&mut self, device: u64, scratch: *mut u64, value: u64) -> Result<(), String> {
        if self.into.write(device, value)? {
            return Ok(());
        }
        // SAFETY: the caller's contract.
        unsafe {
            scratch.write(value);
            self.put_in(device, scratch as u64, 8)
        }
    }

    unsafe fn take_out(&mut self, host: u64, device: u64, bytes: usize, behind_puts: bool) -> Result<(), String> {
        let lane = if behind_puts { &mut self.into } else { &mut self.out };
        lane.flush()?;
        // SAFETY: the caller's contract; the stream is of the current context.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(host as *mut _, device, bytes, lane.stream) };
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

    /// Words that no mark follows.
    fn turn(&mut self) -> Result<(), String> {
        self.into.flush()
    }

    fn settle(&mut self) {
        for lane in [&mut self.into, &mut self.out] {
            let _ = lane.flush();
            // SAFETY: a stream of the current context. Its errors are those of the calls before.
            let _ = unsafe { sys::cuStreamSynchronize(lane.stream) };
        }
    }

    fn name(&self) -> String {
        let words = if self.words.is_null() { "" } else { "; words and marks by streams" };
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
                if let Marks::Events(marks, idle) = &mut lane.marks {
                    for event in marks.drain(..).chain(idle.drain(..)) {
                        let _ = sys::cuEventDestroy_v2(event);
                    }
                }
                let _ = sys::cuStreamDestroy_v2(lane.stream);
            }
        }
        if !self.words.is_null() {
            // SAFETY: allocated by `open`, and no stream writes it any more.
            let _ = unsafe { sys::cuMemFreeHost(self.words) };
        }
    }
}
