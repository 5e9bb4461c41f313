//! What NCCL calls to put, to get and to ask for the end of it.

use crate::abi::{NcclResult, SIGNAL_ADD, SIGNAL_INC};
use crate::coll::{Coll, Region, RegionHandle};
use crate::handles::{Answer, Context, Refusal, guarded, look, place, refuse, set};
use crate::join::Joined;
use crate::operation::{Operation, Place, Request, Signal, Source, What};
use crate::process::now_ns;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

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
    // SAFETY: the caller's contract.
    let out = unsafe { place(out) }?;
    let request = Request::of(parts);
    let operation =
        Operation { what, peer, context: number as u16, at_ns: now_ns(), request: request.clone(), carried: None };
    // The reason has been said when it happened.
    coll.ask(operation).map_err(|_| refuse(NcclResult::REMOTE, ""))?;
    out.write(Arc::into_raw(request).cast_mut().cast());
    Ok(())
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
pub(crate) unsafe extern "C" fn iput15(
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
pub(crate) unsafe extern "C" fn iput(
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
pub(crate) unsafe extern "C" fn iput_signal15(
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
pub(crate) unsafe extern "C" fn iput_signal14(
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
pub(crate) unsafe extern "C" fn iput_signal13(
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
pub(crate) unsafe extern "C" fn iget15(
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
pub(crate) unsafe extern "C" fn iget(
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
pub(crate) unsafe extern "C" fn iflush(
    _context: *mut c_void,
    _number: c_int,
    _region: *mut c_void,
    _rank: u32,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("iflush", || {
        // SAFETY: NCCL's contract.
        unsafe { place(out) }?.write(Arc::into_raw(Request::of(0)).cast_mut().cast());
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn test(coll: *mut c_void, request: *mut c_void, done: *mut c_int) -> NcclResult {
    guarded("test", || {
        // SAFETY: NCCL's contract: of `connect`.
        let joined: &Joined = unsafe { look(coll, "communicator") }?;
        // SAFETY: NCCL's contract.
        let done = unsafe { place(done) }?;
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
        done.write(c_int::from(ended));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_last_error(context: *mut c_void, out: *mut bool) -> NcclResult {
    guarded("queryLastError", || {
        // SAFETY: NCCL's contract: of `createContext`.
        let context: &Context = unsafe { look(context, "context") }?;
        // SAFETY: NCCL's contract.
        unsafe { set(out, context.coll.failure().is_some()) }
    })
}
