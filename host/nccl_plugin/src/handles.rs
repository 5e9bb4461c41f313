//! Handles as NCCL keeps them, and what it is answered.
//!
//! NCCL's contract for all calls: pointers that it passes are valid for the call, and handles are those that it was given, until it has given
//! them back.

use crate::abi::NcclResult;
use crate::coll::Coll;
use crate::process::say;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What `createContext` makes.
pub(crate) struct Context {
    pub(crate) coll: Arc<Coll>,
}

/// What NCCL is told, and what a person is.
pub(crate) struct Refusal(pub(crate) NcclResult, pub(crate) String);

pub(crate) type Answer = Result<(), Refusal>;

pub(crate) fn refuse(result: NcclResult, why: impl Into<String>) -> Refusal {
    Refusal(result, why.into())
}

/// Nothing unwinds into NCCL.
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
            say(&format!("{call}: a mistake of the plugin (see above)"));
            NcclResult::INTERNAL
        }
    }
}

/// A handle of ours as NCCL keeps it.
pub(crate) fn give<T>(value: T) -> *mut c_void {
    Box::into_raw(Box::new(value)).cast()
}

/// What is behind a handle of ours.
///
/// # Safety
/// It came from [`give`] with this type, and was not taken.
pub(crate) unsafe fn look<'a, T>(handle: *mut c_void, what: &str) -> Result<&'a T, Refusal> {
    // SAFETY: the caller's contract.
    unsafe { handle.cast::<T>().as_ref() }.ok_or_else(|| refuse(NcclResult::ARGUMENT, format!("no {what} was given")))
}

/// Takes it back.
///
/// # Safety
/// As [`look`]; it is not used again.
pub(crate) unsafe fn take<T>(handle: *mut c_void) -> Option<Box<T>> {
    // SAFETY: the caller's contract.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle.cast()) })
}

/// Where an answer goes. Asked for before anything is made that only the answer names: without it nobody could give that back.
///
/// # Safety
/// It is null or valid for a write, as long as the caller uses it.
pub(crate) unsafe fn place<'a, T>(out: *mut T) -> Result<&'a mut MaybeUninit<T>, Refusal> {
    // SAFETY: the caller's contract.
    unsafe { out.cast::<MaybeUninit<T>>().as_mut() }
        .ok_or_else(|| refuse(NcclResult::ARGUMENT, "no place for the answer was given"))
}

/// Gives an answer that is a value.
///
/// # Safety
/// As [`place`].
pub(crate) unsafe fn set<T>(out: *mut T, value: T) -> Answer {
    // SAFETY: the caller's contract.
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
