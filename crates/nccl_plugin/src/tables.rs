//! The functions that NCCL calls, and the tables by which it finds them.
//!
//! NCCL's contract for all of them: pointers that it passes are valid for the call, and handles are those that it was given, until it has
//! given them back.

use crate::abi::{
    GinConfig13, HANDLE_BYTES, Logger, MR_NEVER_RESET, Name, NcclResult, PTR_CUDA, PTR_HOST, Properties, Rma13, Rma14,
    Rma15, Rma16, RmaConfig, RmaProperties, SIGNAL_ADD, SIGNAL_INC, VirtualDevice,
};
use crate::coll::{Coll, Operation, Place, Region, RegionHandle, Request, Signal, Source, What, now_ns, say};
use crate::join::{Joined, Listener, join};
use crate::settings::Settings;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What `createContext` makes.
struct Context {
    coll: Arc<Coll>,
}

/// What NCCL is told, and what a person is.
struct Refusal(NcclResult, String);

type Answer = Result<(), Refusal>;

fn refuse(result: NcclResult, why: impl Into<String>) -> Refusal {
    Refusal(result, why.into())
}

/// Nothing unwinds into NCCL.
fn guarded(call: &str, act: impl FnOnce() -> Answer) -> NcclResult {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => NcclResult::SUCCESS,
        Ok(Err(Refusal(result, why))) => {
            if !why.is_empty() {
                say(&format!("{call}: {why}"));
            }
            result
        }
        Err(_) => {
            say(&format!("{call}: a mistake of the plugin (see above)"));
            NcclResult::INTERNAL
        }
    }
}

/// A handle of ours as NCCL keeps it.
fn give<T>(value: T) -> *mut c_void {
    Box::into_raw(Box::new(value)).cast()
}

/// What is behind a handle of ours.
///
/// # Safety
/// It came from [`give`] with this type, and was not taken.
unsafe fn look<'a, T>(handle: *mut c_void, what: &str) -> Result<&'a T, Refusal> {
    // SAFETY: the caller's contract.
    unsafe { handle.cast::<T>().as_ref() }.ok_or_else(|| refuse(NcclResult::ARGUMENT, format!("no {what} was given")))
}

/// Takes it back.
///
/// # Safety
/// As [`look`]; it is not used again.
unsafe fn take<T>(handle: *mut c_void) -> Option<Box<T>> {
    // SAFETY: the caller's contract.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle.cast()) })
}

/// Where an answer goes.
///
/// # Safety
/// It is null or valid for a write.
unsafe fn set<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(refuse(NcclResult::ARGUMENT, "no place for the answer was given"));
    }
    // SAFETY: the caller's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// What `init` gives, and nobody looks at: NCCL's GIN calls `listen` and `connect` with a context of its own, or none.
static CONTEXT: u8 = 0;

/// What variables say, or why not.
fn settings() -> Result<Arc<Settings>, Refusal> {
    Settings::read(&crate::testing::variable).map(Arc::new).map_err(|why| refuse(NcclResult::USAGE, why))
}

/// Keeps this library loaded: threads of it and of libfabric may outlive NCCL's last communicator by a moment.
fn stay_loaded() {
    let here = stay_loaded as fn() as *const c_void;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: a local to write to; `dli_fname` is the loader's own text, and opening a library that is loaded runs nothing.
    unsafe {
        if libc::dladdr(here, info.as_mut_ptr()) != 0 {
            let name = (*info.as_ptr()).dli_fname;
            libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

unsafe extern "C" fn init(out: *mut *mut c_void, _communicator: u64, _log: Logger) -> NcclResult {
    guarded("init", || {
        stay_loaded();
        settings()?;
        // SAFETY: NCCL's contract.
        unsafe { set(out, (&raw const CONTEXT).cast_mut().cast()) }
    })
}

unsafe extern "C" fn devices(out: *mut c_int) -> NcclResult {
    // SAFETY: NCCL's contract.
    guarded("devices", || unsafe { set(out, 1) })
}

unsafe extern "C" fn get_properties(device: c_int, out: *mut Properties) -> NcclResult {
    guarded("getProperties", || {
        if device != 0 {
            return Err(refuse(NcclResult::ARGUMENT, format!("there is one device, not number {device}")));
        }
        let properties = Properties {
            name: c"ginlab".as_ptr(),
            pci_path: std::ptr::null(),
            guid: 0x6769_6e6c_6162,
            pointers: PTR_HOST | PTR_CUDA,
            global_registration: 0,
            force_flush: 0,
            speed: 100_000,
            port: 1,
            latency: 0.0,
            most_communicators: 1024,
            most_receives: 8,
            device_type: crate::abi::DEVICE_PROXY,
            device_version: 0,
            virtual_device: VirtualDevice { count: 1, devices: [0; 8] },
            most_p2p_bytes: 1 << 40,
            most_collective_bytes: 1 << 40,
            most_requests: 1,
            rail: -1,
            plane: -1,
        };
        // SAFETY: NCCL's contract.
        unsafe { set(out, properties) }
    })
}

unsafe extern "C" fn get_rma_properties(_coll: *mut c_void, out: *mut RmaProperties) -> NcclResult {
    // A signal orders what its own rank has sent, and nothing of others.
    let properties = RmaProperties { flushes_all_puts_on_any_signal: false };
    // SAFETY: NCCL's contract.
    guarded("getRmaProperties", || unsafe { set(out, properties) })
}

unsafe extern "C" fn listen(
    _context: *mut c_void,
    _device: c_int,
    handle: *mut c_void,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("listen", || {
        let listener = Listener::open(settings()?).map_err(|why| refuse(NcclResult::SYSTEM, why))?;
        // SAFETY: NCCL's contract: a handle has so many bytes.
        unsafe { set(handle.cast::<[u8; HANDLE_BYTES]>(), listener.handle()) }?;
        // SAFETY: NCCL's contract.
        unsafe { set(out, give(listener)) }
    })
}

unsafe extern "C" fn connect(
    _context: *mut c_void,
    handles: *mut *mut c_void,
    ranks: c_int,
    rank: c_int,
    listener: *mut c_void,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("connect", || {
        if ranks < 1 || rank < 0 || rank >= ranks || handles.is_null() {
            return Err(refuse(NcclResult::ARGUMENT, format!("rank {rank} of {ranks}")));
        }
        // SAFETY: NCCL's contract: so many pointers to so many bytes; the listener is of `listen`.
        let (listener, handles) = unsafe {
            let listener: &Listener = look(listener, "listener")?;
            let pointers = std::slice::from_raw_parts(handles, ranks as usize);
            let read = |pointer: &*mut c_void| pointer.cast::<[u8; HANDLE_BYTES]>().as_ref().copied();
            (listener, pointers.iter().map(read).collect::<Option<Vec<_>>>())
        };
        let handles = handles.ok_or_else(|| refuse(NcclResult::ARGUMENT, "a rank has no handle"))?;
        let joined = join(&handles, rank as usize, listener)
            .map_err(|why| refuse(NcclResult::REMOTE, format!("rank {rank} of {ranks}: {why}")))?;
        // SAFETY: NCCL's contract.
        unsafe { set(out, give(joined)) }
    })
}

unsafe extern "C" fn create_context(coll: *mut c_void, _config: *mut RmaConfig, out: *mut *mut c_void) -> NcclResult {
    guarded("createContext", || {
        // SAFETY: NCCL's contract: of `connect`.
        let joined: &Joined = unsafe { look(coll, "communicator") }?;
        // SAFETY: NCCL's contract.
        unsafe { set(out, give(Context { coll: joined.coll.clone() })) }
    })
}

unsafe extern "C" fn create_context13(
    coll: *mut c_void,
    _config: *mut GinConfig13,
    out: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> NcclResult {
    if !device_handle.is_null() {
        // SAFETY: NCCL's contract. Of type 2 NCCL makes the handle itself.
        unsafe { device_handle.write(std::ptr::null_mut()) };
    }
    // SAFETY: passed on.
    unsafe { create_context(coll, std::ptr::null_mut(), out) }
}

unsafe extern "C" fn register(
    coll: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    flags: u64,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("regMrSym", || {
        // SAFETY: NCCL's contract: of `connect`.
        let joined: &Joined = unsafe { look(coll, "communicator") }?;
        let cuda = match kind {
            PTR_HOST => false,
            PTR_CUDA => true,
            _ => {
                return Err(refuse(
                    NcclResult::ARGUMENT,
                    format!("memory of kind {kind}: this plugin takes the host's (1) and CUDA's (2)"),
                ));
            }
        };
        let never_reset = flags & MR_NEVER_RESET != 0;
        let number = joined.coll.register(Region { address: data as u64, bytes: bytes as u64, cuda, never_reset });
        // SAFETY: NCCL's contract.
        unsafe { set(out, give(RegionHandle { number })) }
    })
}

unsafe extern "C" fn register13(
    coll: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    flags: u64,
    out: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    let result = unsafe { register(coll, data, bytes, kind, flags, out) };
    if result == NcclResult::SUCCESS && !device_handle.is_null() {
        // SAFETY: NCCL's contract; `out` was written.
        unsafe { device_handle.write(*out) };
    }
    result
}

/// Never asked for: the properties offer no dma-bufs. The memory is reached by copies in any case.
unsafe extern "C" fn register_dma_buf(
    coll: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    _offset: u64,
    _descriptor: c_int,
    flags: u64,
    out: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    unsafe { register(coll, data, bytes, kind, flags, out) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn register_dma_buf13(
    coll: *mut c_void,
    data: *mut c_void,
    bytes: usize,
    kind: c_int,
    _offset: u64,
    _descriptor: c_int,
    flags: u64,
    out: *mut *mut c_void,
    device_handle: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    unsafe { register13(coll, data, bytes, kind, flags, out, device_handle) }
}

unsafe extern "C" fn deregister(coll: *mut c_void, region: *mut c_void) -> NcclResult {
    guarded("deregMrSym", || {
        // SAFETY: NCCL's contract: of `connect` and `regMrSym`.
        let (joined, region) = unsafe { (look::<Joined>(coll, "communicator")?, take::<RegionHandle>(region)) };
        if let Some(region) = region {
            joined.coll.deregister(region.number);
        }
        Ok(())
    })
}

unsafe extern "C" fn destroy_context(context: *mut c_void) -> NcclResult {
    guarded("destroyContext", || {
        // SAFETY: NCCL's contract: of `createContext`.
        drop(unsafe { take::<Context>(context) });
        Ok(())
    })
}

unsafe extern "C" fn close_coll(coll: *mut c_void) -> NcclResult {
    guarded("closeColl", || {
        // SAFETY: NCCL's contract: of `connect`.
        if let Some(joined) = unsafe { take::<Joined>(coll) } {
            joined.close();
        }
        Ok(())
    })
}

unsafe extern "C" fn close_listen(listener: *mut c_void) -> NcclResult {
    guarded("closeListen", || {
        // SAFETY: NCCL's contract: of `listen`.
        drop(unsafe { take::<Listener>(listener) });
        Ok(())
    })
}

/// There is nothing left: what was opened has been closed by its own calls.
unsafe extern "C" fn finalize(_context: *mut c_void) -> NcclResult {
    NcclResult::SUCCESS
}

/// A stretch of a region, checked.
///
/// # Safety
/// The handle is null or of `regMrSym`.
unsafe fn stretch(
    coll: &Coll,
    handle: *mut c_void,
    offset: u64,
    bytes: u64,
    what: &str,
) -> Result<(Region, Place), Refusal> {
    // SAFETY: the caller's contract.
    let handle: &RegionHandle = unsafe { look(handle, what) }?;
    let number = handle.number;
    let region = coll
        .region(number)
        .ok_or_else(|| refuse(NcclResult::ARGUMENT, format!("{what}: region {number} is not registered")))?;
    if offset.checked_add(bytes).is_none_or(|end| end > region.bytes) {
        let text = format!("{what}: {bytes} B at {offset} of region {number}, which has {} B", region.bytes);
        return Err(refuse(NcclResult::ARGUMENT, text));
    }
    Ok((region, Place { region: number, offset }))
}

/// Hands an operation over, and gives NCCL its request.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn ask(context: &Context, number: c_int, rank: u32, parts: u32, what: What, out: *mut *mut c_void) -> Answer {
    let coll = &context.coll;
    let peer = rank as usize;
    if peer >= coll.ranks {
        return Err(refuse(NcclResult::ARGUMENT, format!("rank {rank} of {}", coll.ranks)));
    }
    if out.is_null() {
        return Err(refuse(NcclResult::ARGUMENT, "no place for the request was given"));
    }
    let request = Request::of(parts);
    let operation = Operation { what, peer, context: number as u16, at_ns: now_ns(), request: request.clone() };
    // The reason has been said when it happened.
    coll.ask(operation).map_err(|_| refuse(NcclResult::REMOTE, ""))?;
    // SAFETY: the caller's contract.
    unsafe { set(out, Arc::into_raw(request).cast_mut().cast()) }
}

/// A put, a signal, or both.
struct Wish {
    number: c_int,
    from: (u64, *mut c_void),
    bytes: usize,
    to: (u64, *mut c_void),
    rank: u32,
    signal: Option<SignalWish>,
}

struct SignalWish {
    at: (u64, *mut c_void),
    value: u64,
    operation: u32,
    strong: bool,
}

/// # Safety
/// NCCL's contract for iput and iputSignal.
unsafe fn put(context: *mut c_void, wish: &Wish, out: *mut *mut c_void) -> Answer {
    // SAFETY: NCCL's contract: of `createContext`.
    let context: &Context = unsafe { look(context, "context") }?;
    let coll = &context.coll;
    let bytes = wish.bytes as u64;
    let (mut from, mut to) = (Source { address: 0, cuda: false }, Place::default());
    if bytes > 0 {
        // SAFETY: NCCL's contract: of `regMrSym`.
        let (source, target) = unsafe {
            (
                stretch(coll, wish.from.1, wish.from.0, bytes, "source")?,
                stretch(coll, wish.to.1, wish.to.0, bytes, "destination")?,
            )
        };
        from = Source { address: source.0.address + wish.from.0, cuda: source.0.cuda };
        to = target.1;
    }
    let signal = match &wish.signal {
        None => None,
        Some(signal) => {
            // SAFETY: as above.
            let (_, at) = unsafe { stretch(coll, signal.at.1, signal.at.0, 8, "signal") }?;
            if at.offset % 8 != 0 {
                return Err(refuse(
                    NcclResult::ARGUMENT,
                    format!("a signal at {}, which is no multiple of 8", at.offset),
                ));
            }
            let add = match signal.operation {
                SIGNAL_INC => 1,
                SIGNAL_ADD => signal.value,
                other => {
                    return Err(refuse(
                        NcclResult::ARGUMENT,
                        format!("signal operation {other}: there are 1 (inc) and 2 (add)"),
                    ));
                }
            };
            Some(Signal { at, add, strong: signal.strong })
        }
    };
    let parts = bytes.div_ceil(coll.layout.room as u64).max(1) as u32;
    // SAFETY: NCCL's contract.
    unsafe { ask(context, wish.number, wish.rank, parts, What::Put { from, bytes, to, signal }, out) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn iput15(
    context: *mut c_void,
    number: c_int,
    from: u64,
    source: *mut c_void,
    bytes: usize,
    to: u64,
    target: *mut c_void,
    rank: u32,
    _flags: u32,
    out: *mut *mut c_void,
) -> NcclResult {
    let wish = Wish { number, from: (from, source), bytes, to: (to, target), rank, signal: None };
    // SAFETY: passed on.
    guarded("iput", || unsafe { put(context, &wish, out) })
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn iput(
    context: *mut c_void,
    number: c_int,
    from: u64,
    source: *mut c_void,
    bytes: usize,
    to: u64,
    target: *mut c_void,
    rank: u32,
    out: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    unsafe { iput15(context, number, from, source, bytes, to, target, rank, 0, out) }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn iput_signal15(
    context: *mut c_void,
    number: c_int,
    from: u64,
    source: *mut c_void,
    bytes: usize,
    to: u64,
    target: *mut c_void,
    rank: u32,
    signal_offset: u64,
    signal: *mut c_void,
    value: u64,
    operation: u32,
    strong: bool,
    _flags: u32,
    out: *mut *mut c_void,
) -> NcclResult {
    let signal = Some(SignalWish { at: (signal_offset, signal), value, operation, strong });
    let wish = Wish { number, from: (from, source), bytes, to: (to, target), rank, signal };
    // SAFETY: passed on.
    guarded("iputSignal", || unsafe { put(context, &wish, out) })
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn iput_signal14(
    context: *mut c_void,
    number: c_int,
    from: u64,
    source: *mut c_void,
    bytes: usize,
    to: u64,
    target: *mut c_void,
    rank: u32,
    signal_offset: u64,
    signal: *mut c_void,
    value: u64,
    operation: u32,
    strong: bool,
    out: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    unsafe {
        iput_signal15(
            context,
            number,
            from,
            source,
            bytes,
            to,
            target,
            rank,
            signal_offset,
            signal,
            value,
            operation,
            strong,
            0,
            out,
        )
    }
}

/// Signals of v13 are strong.
#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn iput_signal13(
    context: *mut c_void,
    number: c_int,
    from: u64,
    source: *mut c_void,
    bytes: usize,
    to: u64,
    target: *mut c_void,
    rank: u32,
    signal_offset: u64,
    signal: *mut c_void,
    value: u64,
    operation: u32,
    out: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    unsafe {
        iput_signal15(
            context,
            number,
            from,
            source,
            bytes,
            to,
            target,
            rank,
            signal_offset,
            signal,
            value,
            operation,
            true,
            0,
            out,
        )
    }
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn iget15(
    context: *mut c_void,
    number: c_int,
    from: u64,
    source: *mut c_void,
    bytes: usize,
    to: u64,
    target: *mut c_void,
    rank: u32,
    _flags: u32,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("iget", || {
        // SAFETY: NCCL's contract: of `createContext` and `regMrSym`.
        let (context, source, target) = unsafe {
            let context: &Context = look(context, "context")?;
            let (_, source) = stretch(&context.coll, source, from, bytes as u64, "source")?;
            let (_, target) = stretch(&context.coll, target, to, bytes as u64, "destination")?;
            (context, source, target)
        };
        let what = What::Get { from: source, bytes: bytes as u64, to: target };
        // SAFETY: NCCL's contract.
        unsafe { ask(context, number, rank, 1, what, out) }
    })
}

#[allow(clippy::too_many_arguments, reason = "NCCL's")]
unsafe extern "C" fn iget(
    context: *mut c_void,
    number: c_int,
    from: u64,
    source: *mut c_void,
    bytes: usize,
    to: u64,
    target: *mut c_void,
    rank: u32,
    out: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: passed on.
    unsafe { iget15(context, number, from, source, bytes, to, target, rank, 0, out) }
}

/// Bytes of a get are visible when its request is complete: there is nothing left to flush.
unsafe extern "C" fn iflush(
    _context: *mut c_void,
    _number: c_int,
    _region: *mut c_void,
    _rank: u32,
    out: *mut *mut c_void,
) -> NcclResult {
    // SAFETY: NCCL's contract.
    guarded("iflush", || unsafe { set(out, Arc::into_raw(Request::of(0)).cast_mut().cast()) })
}

unsafe extern "C" fn test(coll: *mut c_void, request: *mut c_void, done: *mut c_int) -> NcclResult {
    guarded("test", || {
        // SAFETY: NCCL's contract: of `connect`.
        let joined: &Joined = unsafe { look(coll, "communicator") }?;
        let pointer = request.cast::<Request>().cast_const();
        // SAFETY: NCCL's contract: of a put, a get or a flush, and not told as complete before.
        let ended = unsafe { pointer.as_ref() }.is_none_or(Request::is_done);
        if !ended && joined.coll.failure().is_some() {
            // Said when it happened. The request is left to the thread of the rails.
            return Err(refuse(NcclResult::REMOTE, ""));
        }
        if ended && !pointer.is_null() {
            // SAFETY: it came from `Arc::into_raw`, and NCCL does not use it again.
            drop(unsafe { Arc::from_raw(pointer) });
        }
        // SAFETY: NCCL's contract.
        unsafe { set(done, c_int::from(ended)) }
    })
}

unsafe extern "C" fn query_last_error(context: *mut c_void, out: *mut bool) -> NcclResult {
    guarded("queryLastError", || {
        // SAFETY: NCCL's contract: of `createContext`.
        let context: &Context = unsafe { look(context, "context") }?;
        // SAFETY: NCCL's contract.
        unsafe { set(out, context.coll.failure().is_some()) }
    })
}

/// As NCCL's logs call it.
const NAME: Name = Name(c"ginlab".as_ptr());

/// For NCCL 2.30.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclRmaPlugin_v13: Rma13 = Rma13 {
    name: NAME,
    init,
    devices,
    get_properties,
    listen,
    connect,
    create_context: create_context13,
    reg_mr_sym: register13,
    reg_mr_sym_dma_buf: register_dma_buf13,
    dereg_mr_sym: deregister,
    destroy_context,
    close_coll,
    close_listen,
    iput,
    iput_signal: iput_signal13,
    iget,
    iflush,
    test,
    progress: None,
    query_last_error,
    finalize,
};

/// For NCCL 2.30 and 2.31.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclRmaPlugin_v14: Rma14 = Rma14 {
    name: NAME,
    init,
    devices,
    get_properties,
    listen,
    connect,
    create_context,
    reg_mr_sym: register,
    reg_mr_sym_dma_buf: register_dma_buf,
    dereg_mr_sym: deregister,
    destroy_context,
    close_coll,
    close_listen,
    iput,
    iput_signal: iput_signal14,
    iget,
    iflush,
    test,
    progress: None,
    query_last_error,
    finalize,
};

/// For NCCL 2.31 and 2.32.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclRmaPlugin_v15: Rma15 = Rma15 {
    name: NAME,
    init,
    devices,
    get_properties,
    listen,
    connect,
    create_context,
    reg_mr_sym: register,
    reg_mr_sym_dma_buf: register_dma_buf,
    dereg_mr_sym: deregister,
    destroy_context,
    close_coll,
    close_listen,
    iput: iput15,
    iput_signal: iput_signal15,
    iget: iget15,
    iflush,
    test,
    progress: None,
    query_last_error,
    finalize,
};

/// For NCCL 2.32.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NCCL looks for this name")]
pub static ncclRmaPlugin_v16: Rma16 = Rma16 {
    name: NAME,
    init,
    devices,
    get_rma_properties,
    get_properties,
    listen,
    connect,
    create_context,
    reg_mr_sym: register,
    reg_mr_sym_dma_buf: register_dma_buf,
    dereg_mr_sym: deregister,
    destroy_context,
    close_coll,
    close_listen,
    iput: iput15,
    iput_signal: iput_signal15,
    iget: iget15,
    iflush,
    test,
    progress: None,
    query_last_error,
    finalize,
};
