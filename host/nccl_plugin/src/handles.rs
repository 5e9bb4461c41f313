//! Handles that NCCL keeps, and results that it receives.
//!
//! NCCL's contract for all calls: pointers that it passes are valid for the call, and it passes only handles that it
//! has received and not returned yet.

use crate::abi::NcclResult;
use crate::coll::Coll;
use crate::process::say;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Object behind a handle of `createContext`.
pub(crate) struct Context {
    pub(crate) coll: Arc<Coll>,
}

/// The result for NCCL, and the human-readable reason.
pub(crate) struct Refusal(pub(crate) NcclResult, pub(crate) String);

pub(crate) type Answer = Result<(), Refusal>;

pub(crate) fn refuse(result: NcclResult, why: impl Into<String>) -> Refusal {
    Refusal(result, why.into())
}

/// Runs the body of a call. Reports an error or a panic, so that no panic unwinds into NCCL.
pub(crate) fn guarded(call: &str, act: impl FnOnce() -> Answer) -> NcclResult {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(())) => NcclResult::SUCCESS,
        Ok(Err(Refusal(result, why))) => {
            if !why.is_empty() {
                say(&format!("{call}: {why}"));
            }
            result
        }
        Err(_) => {
            say(&format!("{call}: a bug of the plugin (see above)"));
            NcclResult::INTERNAL
        }
    }
}

/// Converts a value to a handle for NCCL.
pub(crate) fn give<T>(value: T) -> *mut c_void {
    Box::into_raw(Box::new(value)).cast()
}

/// Returns the value of a handle.
///
/// # Safety
/// The handle must be null, or come from [`give`] with this type and not have been taken.
pub(crate) unsafe fn look<'a, T>(handle: *mut c_void, what: &str) -> Result<&'a T, Refusal> {
    // SAFETY: the caller guarantees that the handle is null or refers to a `T`.
    unsafe { handle.cast::<T>().as_ref() }.ok_or_else(|| refuse(NcclResult::ARGUMENT, format!("no {what} was given")))
}

/// Takes back the value of a handle; `None` if the handle is null.
///
/// # Safety
/// The requirements are those of [`look`]. The handle must not be used again.
pub(crate) unsafe fn take<T>(handle: *mut c_void) -> Option<Box<T>> {
    // SAFETY: the caller guarantees that the handle came from `give` with this type, and is not used again.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle.cast()) })
}

/// Returns the place for a result. Must be called before any object is created to which only the result refers, because
/// such an object could not be freed without a place.
///
/// # Safety
/// `out` must be null, or valid for writes as long as the caller uses the place.
pub(crate) unsafe fn place<'a, T>(out: *mut T) -> Result<&'a mut MaybeUninit<T>, Refusal> {
    // SAFETY: the caller guarantees that `out` is null or valid for writes.
    unsafe { out.cast::<MaybeUninit<T>>().as_mut() }
        .ok_or_else(|| refuse(NcclResult::ARGUMENT, "no place for the result was given"))
}

/// Writes a result.
///
/// # Safety
/// The requirements are those of [`place`].
pub(crate) unsafe fn set<T>(out: *mut T, value: T) -> Answer {
    // SAFETY: the caller guarantees that `out` is null or valid for writes.
    unsafe { place(out) }?.write(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_unwinds_into_nccl() {
        assert_eq!(guarded("a call", || panic!("a mistake, on purpose")), NcclResult::INTERNAL);
        assert_eq!(guarded("a call", || Err(refuse(NcclResult::SYSTEM, "why"))), NcclResult::SYSTEM);
        assert_eq!(guarded("a call", || Ok(())), NcclResult::SUCCESS);
    }
}
