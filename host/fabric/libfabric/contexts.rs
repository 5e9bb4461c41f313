//! Contexts of posted operations, allocated once per rail.
//!
//! Providers with mode FI_CONTEXT or FI_CONTEXT2 store state in the context of each posted operation, so it must stay
//! in place until the completion. A pool of fixed slots ensures this without an allocation per post. Its size is the
//! rail's credit.

use std::cell::UnsafeCell;
use std::ffi::c_void;

use libfabric_sys as sys;

use super::closing::left_open;

/// Operation for which a slot is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotOperation {
    /// No operation is posted.
    Free,
    Write,
    Read,
    Send,
    Receive,
}

/// One posted operation. The provider's part is first, because its address is the operation's context.
#[repr(C, align(64))]
pub(crate) struct Slot {
    provider: sys::fi_context2,
    /// The caller's token.
    pub token: u64,
    /// Bytes and peer, for error messages.
    pub bytes: u64,
    pub peer: u32,
    pub kind: SlotOperation,
}

impl Slot {
    fn new() -> UnsafeCell<Self> {
        UnsafeCell::new(Self {
            provider: sys::fi_context2::default(),
            token: 0,
            bytes: 0,
            peer: 0,
            kind: SlotOperation::Free,
        })
    }
}

/// Slots for one kind of use. They are leaked if an endpoint was left open, because its provider may write to them.
pub(crate) struct Slots(Box<[UnsafeCell<Slot>]>);

impl Slots {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| Slot::new()).collect())
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = *mut Slot> {
        self.0.iter().map(UnsafeCell::get)
    }

    /// Returns the slot that contains a completion's context, or `None` for any other address. Does not dereference the
    /// pointer.
    #[inline]
    pub fn find(&self, context: *mut c_void) -> Option<*mut Slot> {
        let offset = context.addr().wrapping_sub(self.0.as_ptr().addr());
        let size = size_of::<Slot>();
        if !offset.is_multiple_of(size) {
            return None;
        }
        self.0.get(offset / size).map(UnsafeCell::get)
    }

    /// Returns whether the context belongs to one of these slots.
    pub fn holds(&self, context: *mut c_void) -> bool {
        self.find(context).is_some()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if left_open().is_some() {
            std::mem::forget(std::mem::take(&mut self.0));
        }
    }
}

pub(crate) struct Pool {
    pub transfers: Slots,
    /// Slots of the posted receives for immediates.
    pub receives: Slots,
    /// Slots of the bare loop.
    pub bare: Slots,
}

/// Number of writes in flight in the bare loop.
pub(crate) const BARE_WINDOW: usize = 64;

impl Pool {
    pub fn new(transfers: usize, receives: usize) -> Self {
        Self { transfers: Slots::new(transfers), receives: Slots::new(receives), bare: Slots::new(BARE_WINDOW) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_slot_addresses_are_found(count in 1usize..40, offset in -300isize..6000) {
            let pool = Pool::new(count, 0);
            let first = pool.transfers.iter().next().expect("at least one");
            let probe = first.cast::<u8>().wrapping_offset(offset).cast::<c_void>();
            let expected = pool.transfers.iter().find(|slot| slot.cast::<c_void>() == probe);
            prop_assert_eq!(pool.transfers.find(probe), expected);
        }
    }

    #[test]
    fn null_and_other_pools_are_not_found() {
        let pool = Pool::new(4, 2);
        assert_eq!(pool.transfers.find(std::ptr::null_mut()), None);
        let receive = pool.receives.iter().next().expect("two").cast();
        assert!(pool.receives.holds(receive));
        assert!(!pool.bare.holds(receive) && pool.transfers.find(receive).is_none());
        assert_eq!(pool.bare.iter().count(), BARE_WINDOW);
    }
}
