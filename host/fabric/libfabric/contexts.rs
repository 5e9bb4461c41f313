//! Contexts of posted operations, allocated once per rail.
//!
//! Providers with mode FI_CONTEXT or FI_CONTEXT2 keep notes in the context of each posted operation, so it must stay in
//! place until the completion. A pool of fixed slots gives that without an allocation per post, and its size is the rail's
//! credit.

use std::cell::UnsafeCell;
use std::ffi::c_void;

use libfabric_sys as sys;

/// What a slot was posted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing is posted.
    Free,
    Write,
    Read,
    Send,
    Receive,
}

/// One posted operation. The provider's part comes first: its address is the operation's context.
#[repr(C, align(64))]
pub(crate) struct Slot {
    provider: sys::fi_context2,
    /// The caller's token.
    pub token: u64,
    /// Bytes and peer, for the words of an error.
    pub bytes: u64,
    pub peer: u32,
    pub kind: Kind,
}

impl Slot {
    fn new() -> UnsafeCell<Self> {
        UnsafeCell::new(Self { provider: sys::fi_context2::default(), token: 0, bytes: 0, peer: 0, kind: Kind::Free })
    }
}

/// The slots of a rail: for transfers, for posted receives, and for the bare loop.
pub(crate) struct Pool {
    transfers: Box<[UnsafeCell<Slot>]>,
    receives: Box<[UnsafeCell<Slot>]>,
    bare: Box<[UnsafeCell<Slot>]>,
}

/// Writes in flight in the bare loop.
pub(crate) const BARE_WINDOW: usize = 64;

impl Pool {
    pub fn new(transfers: usize, receives: usize) -> Self {
        let slots = |count| (0..count).map(|_| Slot::new()).collect();
        Self { transfers: slots(transfers), receives: slots(receives), bare: slots(BARE_WINDOW) }
    }

    /// The transfer slots.
    pub fn transfers(&self) -> impl DoubleEndedIterator<Item = *mut Slot> {
        self.transfers.iter().map(UnsafeCell::get)
    }

    /// Slots of the posted receives.
    pub fn receives(&self) -> impl Iterator<Item = *mut Slot> {
        self.receives.iter().map(UnsafeCell::get)
    }

    /// Slots of the bare loop.
    pub fn bare(&self) -> impl Iterator<Item = *mut Slot> {
        self.bare.iter().map(UnsafeCell::get)
    }

    /// The transfer slot of a completion's context; `None` for any other address. Never reads through the pointer.
    #[inline]
    pub fn transfer(&self, context: *mut c_void) -> Option<*mut Slot> {
        find(&self.transfers, context)
    }

    /// Whether the context is one of the bare loop's.
    pub fn is_bare(&self, context: *mut c_void) -> bool {
        find(&self.bare, context).is_some()
    }

    /// Whether the context is one of the posted receives'.
    pub fn is_receive(&self, context: *mut c_void) -> bool {
        find(&self.receives, context).is_some()
    }
}

#[inline]
fn find(slots: &[UnsafeCell<Slot>], context: *mut c_void) -> Option<*mut Slot> {
    let offset = context.addr().wrapping_sub(slots.as_ptr().addr());
    let size = size_of::<Slot>();
    if !offset.is_multiple_of(size) {
        return None;
    }
    slots.get(offset / size).map(UnsafeCell::get)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_slot_addresses_are_found(count in 1usize..40, offset in -300isize..6000) {
            let pool = Pool::new(count, 0);
            let first = pool.transfers().next().expect("at least one");
            let probe = first.cast::<u8>().wrapping_offset(offset).cast::<c_void>();
            let expected = pool.transfers().find(|slot| slot.cast::<c_void>() == probe);
            prop_assert_eq!(pool.transfer(probe), expected);
        }
    }

    #[test]
    fn null_and_other_pools_are_not_found() {
        let pool = Pool::new(4, 2);
        assert_eq!(pool.transfer(std::ptr::null_mut()), None);
        let receive = pool.receives().next().expect("two").cast();
        assert!(pool.is_receive(receive) && !pool.is_bare(receive) && pool.transfer(receive).is_none());
        assert_eq!(pool.bare().count(), BARE_WINDOW);
    }
}
