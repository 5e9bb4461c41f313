//! Functions with which NCCL submits puts and gets, and tests whether they are complete.

use crate::abi::{NcclResult, SIGNAL_ADD, SIGNAL_INC};
use crate::coll::{Coll, PluginRegion, RegionHandle};
use crate::handles::{Answer, Context, Refusal, guarded, look, place, refuse, set};
use crate::join::Joined;
use crate::operation::{RemoteLocation, RemoteSignal, Request, Source, SubmittedOperation, What};
use crate::process::now_ns;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Checks a range of a region. Returns the region and the start of the range.
///
/// # Safety
/// `handle` must be null, or a handle of `regMrSym` that has not been returned.
unsafe fn stretch(
    coll: &Coll,
    handle: *mut c_void,
    offset: u64,
    bytes: u64,
    what: &str,
) -> Result<(PluginRegion, RemoteLocation), Refusal> {
    // SAFETY: the caller guarantees that the handle is null or valid.
    let handle: &RegionHandle = unsafe { look(handle, what) }?;
    let number = handle.number;
    let region = coll
        .region(number)
        .ok_or_else(|| refuse(NcclResult::ARGUMENT, format!("{what}: region {number} is not registered")))?;
    if offset.checked_add(bytes).is_none_or(|end| end > region.bytes) {
        let text = format!("{what}: {bytes} B at {offset} of region {number}, which has {} B", region.bytes);
        return Err(refuse(NcclResult::ARGUMENT, text));
    }
    Ok((region, RemoteLocation { region: number, offset }))
}

/// Submits an operation, and returns its request to NCCL.
///
/// # Safety
/// `out` must be null or valid for writes.
unsafe fn ask(context: &Context, number: c_int, rank: u32, parts: u32, what: What, out: *mut *mut c_void) -> Answer {
    let coll = &context.coll;
    let peer = rank as usize;
    if peer >= coll.ranks {
        return Err(refuse(NcclResult::ARGUMENT, format!("rank {rank} of {}", coll.ranks)));
    }
    // SAFETY: the caller guarantees that `out` is null or valid for writes.
    let out = unsafe { place(out) }?;
    let request = Request::of(parts);
    let operation = SubmittedOperation {
        what,
        peer,
        context: number as u16,
        at_ns: now_ns(),
        request: request.clone(),
        carried: None,
    };
    // The reason was printed when the communicator failed.
    coll.ask(operation).map_err(|_| refuse(NcclResult::REMOTE, ""))?;
    out.write(Arc::into_raw(request).cast_mut().cast());
    Ok(())
}

/// Arguments of a put, a signal, or both.
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
}

/// Submits a put.
///
/// # Safety
/// NCCL's contract for iput and iputSignal must hold.
unsafe fn put(context: *mut c_void, wish: &Wish, out: *mut *mut c_void) -> Answer {
    // SAFETY: NCCL passes a handle of `createContext`.
    let context: &Context = unsafe { look(context, "context") }?;
    let coll = &context.coll;
    let bytes = wish.bytes as u64;
    let (mut from, mut to) = (Source { address: 0, cuda: false }, RemoteLocation::default());
    if bytes > 0 {
        // SAFETY: NCCL passes handles of `regMrSym`.
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
            // SAFETY: NCCL passes a handle of `regMrSym`.
            let (_, at) = unsafe { stretch(coll, signal.at.1, signal.at.0, 8, "signal") }?;
            if at.offset % 8 != 0 {
                return Err(refuse(
                    NcclResult::ARGUMENT,
                    format!("a signal at {}, which is not a multiple of 8", at.offset),
                ));
            }
            let add = match signal.operation {
                SIGNAL_INC => 1,
                SIGNAL_ADD => signal.value,
                other => {
                    return Err(refuse(
                        NcclResult::ARGUMENT,
                        format!("invalid signal operation {other}: expected 1 (inc) or 2 (add)"),
                    ));
                }
            };
            Some(RemoteSignal { at, add })
        }
    };
    let parts = bytes.div_ceil(coll.layout.room as u64).max(1) as u32;
    // SAFETY: NCCL guarantees that `out` is valid.
    unsafe { ask(context, wish.number, wish.rank, parts, What::Put { from, bytes, to, signal }, out) }
}

/// Submits a get.
///
/// # Safety
/// NCCL's contract for iget must hold.
unsafe fn get(context: *mut c_void, wish: &Wish, out: *mut *mut c_void) -> Answer {
    let bytes = wish.bytes as u64;
    // SAFETY: NCCL passes handles of `createContext` and `regMrSym`.
    let (context, source, target) = unsafe {
        let context: &Context = look(context, "context")?;
        let (_, source) = stretch(&context.coll, wish.from.1, wish.from.0, bytes, "source")?;
        let (_, target) = stretch(&context.coll, wish.to.1, wish.to.0, bytes, "destination")?;
        (context, source, target)
    };
    // SAFETY: NCCL guarantees that `out` is valid.
    unsafe { ask(context, wish.number, wish.rank, 1, What::Get { from: source, bytes, to: target }, out) }
}

/// Defines the functions of all versions that submit a transfer. Each line contains the function's name, NCCL's name,
/// the arguments in addition to the common ones, and the function that submits the transfer, with the signal.
macro_rules! transfers {
    ($($name:ident, $call:literal, ($($extra:ident: $kind:ty),*) => $submit:ident($signal:expr);)*) => {$(
        #[allow(clippy::too_many_arguments, reason = "NCCL's")]
        pub(crate) unsafe extern "C" fn $name(
            context: *mut c_void,
            number: c_int,
            from: u64,
            source: *mut c_void,
            bytes: usize,
            to: u64,
            target: *mut c_void,
            rank: u32,
            $($extra: $kind,)*
            out: *mut *mut c_void,
        ) -> NcclResult {
            let wish = Wish { number, from: (from, source), bytes, to: (to, target), rank, signal: $signal };
            // SAFETY: the arguments are NCCL's, which upholds the contract of this call.
            guarded($call, || unsafe { $submit(context, &wish, out) })
        }
    )*};
}

// Weak signals are handled like strong ones, and those of v13 are strong.
transfers! {
    iput, "iput", () => put(None);
    iput15, "iput", (_flags: u32) => put(None);
    iget, "iget", () => get(None);
    iget15, "iget", (_flags: u32) => get(None);
    iput_signal13, "iputSignal", (at: u64, region: *mut c_void, value: u64, operation: u32)
        => put(Some(SignalWish { at: (at, region), value, operation }));
    iput_signal14, "iputSignal", (at: u64, region: *mut c_void, value: u64, operation: u32, _strong: bool)
        => put(Some(SignalWish { at: (at, region), value, operation }));
    iput_signal15, "iputSignal", (at: u64, region: *mut c_void, value: u64, operation: u32, _strong: bool, _flags: u32)
        => put(Some(SignalWish { at: (at, region), value, operation }));
}

/// Returns a request that is already complete, because the bytes of a get are visible when its own request is complete.
pub(crate) unsafe extern "C" fn iflush(
    _context: *mut c_void,
    _number: c_int,
    _region: *mut c_void,
    _rank: u32,
    out: *mut *mut c_void,
) -> NcclResult {
    guarded("iflush", || {
        // SAFETY: NCCL guarantees that `out` is valid.
        unsafe { place(out) }?.write(Arc::into_raw(Request::of(0)).cast_mut().cast());
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn test(coll: *mut c_void, request: *mut c_void, done: *mut c_int) -> NcclResult {
    guarded("test", || {
        // SAFETY: NCCL passes a handle of `connect`.
        let joined: &Joined = unsafe { look(coll, "communicator") }?;
        // SAFETY: NCCL guarantees that `done` is valid.
        let done = unsafe { place(done) }?;
        let pointer = request.cast::<Request>().cast_const();
        // SAFETY: NCCL passes a request of a put, a get or a flush that has not been reported as complete.
        let ended = unsafe { pointer.as_ref() }.is_none_or(Request::is_done);
        if !ended && joined.coll.failure().is_some() {
            // The reason was printed at the time of the failure. The request is left to the thread that drives the
            // rails.
            return Err(refuse(NcclResult::REMOTE, ""));
        }
        if ended && !pointer.is_null() {
            // SAFETY: the pointer came from `Arc::into_raw`, and NCCL does not use it again.
            drop(unsafe { Arc::from_raw(pointer) });
        }
        done.write(c_int::from(ended));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_last_error(context: *mut c_void, out: *mut bool) -> NcclResult {
    guarded("queryLastError", || {
        // SAFETY: NCCL passes a handle of `createContext`.
        let context: &Context = unsafe { look(context, "context") }?;
        // SAFETY: NCCL guarantees that `out` is valid.
        unsafe { set(out, context.coll.failure().is_some()) }
    })
}
