//! Posting: checks, slots and calls.

use std::ffi::c_void;
use std::ptr;

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::contexts::{Slot, SlotOperation};
use super::errors::FailedOperation;
use super::objects::Core;
use super::{AGAIN, Level, LibfabricRail, LibfabricRegion};
use crate::{FabricError, Message, Post, Transfer, mistake};

/// Deviations of providers from their reported attributes, detected by the tests in `tests/fabric.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quirks {
    /// Endpoints with FI_PROTO_XNET (`net` of 1.17, `tcp` with reliable datagrams of 2.x) accept FI_DELIVERY_COMPLETE
    /// as the endpoint's default but ignore it: `fi_write` completes before the data has arrived. They honour the flag
    /// of a single call, so all their writes use `fi_writemsg`.
    level_in_each_call: bool,
    /// Endpoints with FI_PROTO_SHM never complete an empty write with FI_DELIVERY_COMPLETE. It has no data to deliver,
    /// so an immediate without data uses the lower level.
    no_empty_delivery: bool,
}

impl Quirks {
    pub(super) fn of(core: &Core, level: Level) -> Self {
        let protocol = core.info.first().endpoint().protocol;
        let is = |other| level == Level::Delivery && protocol == other;
        Self { level_in_each_call: is(sys::FI_PROTO_XNET), no_empty_delivery: is(sys::FI_PROTO_SHM) }
    }
}

impl LibfabricRail {
    /// Checks the preconditions of a post. Returns the peer's address in the provider's numbering.
    #[inline]
    pub(super) fn check(
        &self,
        kind: SlotOperation,
        region: &LibfabricRegion,
        t: &Transfer,
    ) -> Result<sys::fi_addr_t, FabricError> {
        let within = |offset: u64, length: u64| offset.checked_add(t.bytes).is_some_and(|end| end <= length);
        match self.peers.get(t.peer) {
            // `FI_ADDR_UNSPEC` marks a removed peer.
            Some(peer)
                if *peer != sys::FI_ADDR_UNSPEC
                    && within(t.local_offset, region.bytes)
                    && within(t.remote_offset, t.remote.bytes)
                    && t.bytes <= self.limits.max_transfer_bytes
                    && (t.bytes > 0 || t.immediate.is_some() && kind == SlotOperation::Write)
                    && (t.immediate.is_none() || self.limits.immediate_bytes >= 4)
                    && region.belongs_to(&self.core) =>
            {
                Ok(*peer)
            }
            _ => Err(self.why_refused(kind, region, t)),
        }
    }

    /// Returns the address of a peer. `None` if no peer has this index or the peer was removed.
    pub(super) fn peer(&self, peer: usize) -> Option<sys::fi_addr_t> {
        self.peers.get(peer).copied().filter(|address| *address != sys::FI_ADDR_UNSPEC)
    }

    #[cold]
    fn why_no_peer(&self, peer: usize) -> String {
        match self.peers.len() {
            known if peer < known => format!("no such peer: peer {peer} was removed"),
            known => format!("no such peer: there are {known} peers"),
        }
    }

    /// Like [`check`](LibfabricRail::check), for a message. Returns the peer's address, or the unspecified address for
    /// a receive.
    pub(super) fn check_message(
        &self,
        kind: SlotOperation,
        region: &LibfabricRegion,
        peer: Option<usize>,
        m: &Message,
    ) -> Result<sys::fi_addr_t, FabricError> {
        let address = peer.map_or(Some(sys::FI_ADDR_UNSPEC), |peer| self.peer(peer));
        let text = if self.core.info.first().info().caps & sys::FI_MSG == 0 {
            "the rail was opened without messages".to_owned()
        } else if m.offset > region.bytes || m.bytes > region.bytes - m.offset {
            format!("offset {} and {} B exceed the region of {} B", m.offset, m.bytes, region.bytes)
        } else if m.bytes > self.limits.max_transfer_bytes {
            format!("the provider supports at most {} B per message", self.limits.max_transfer_bytes)
        } else if !region.belongs_to(&self.core) {
            "the region is registered with another rail".to_owned()
        } else if let Some(address) = address {
            return Ok(address);
        } else {
            self.why_no_peer(peer.unwrap_or_default())
        };
        Err(mistake(&self.name, operation(kind, m.bytes, peer.unwrap_or_default()), text))
    }

    #[cold]
    pub(super) fn why_refused(&self, kind: SlotOperation, region: &LibfabricRegion, t: &Transfer) -> FabricError {
        let outside = |what: &str, offset: u64, bytes: u64| {
            (offset > bytes || t.bytes > bytes - offset)
                .then(|| format!("offset {offset} and {} B exceed the {what} region of {bytes} B", t.bytes))
        };
        let text = if self.peer(t.peer).is_none() {
            self.why_no_peer(t.peer)
        } else if let Some(text) = outside("local", t.local_offset, region.bytes) {
            text
        } else if let Some(text) = outside("peer's", t.remote_offset, t.remote.bytes) {
            text
        } else if t.bytes > self.limits.max_transfer_bytes {
            format!("the provider supports at most {} B per transfer", self.limits.max_transfer_bytes)
        } else if !region.belongs_to(&self.core) {
            "the region is registered with another rail".to_owned()
        } else if t.bytes == 0 {
            "the transfer has neither bytes nor an immediate".to_owned()
        } else {
            format!("the provider's immediates have {} bytes, but 4 are needed", self.limits.immediate_bytes)
        };
        mistake(&self.name, operation(kind, t.bytes, t.peer), text)
    }

    /// Converts the code of a post. On success, the prepared slot is consumed.
    #[inline]
    pub(super) fn posted(&mut self, what: impl Fn() -> String, code: isize) -> Result<Post, FabricError> {
        match code {
            0 => {
                self.free.pop();
                Ok(Post::Accepted)
            }
            AGAIN => Ok(Post::Again),
            code => Err(self.error(FailedOperation::Transferring, what(), code)),
        }
    }

    /// Fills the next free slot without removing it from the free list. `None` if the credit is used up.
    #[inline]
    pub(super) fn prepare(&mut self, kind: SlotOperation, peer: usize, bytes: u64, token: u64) -> Option<*mut Slot> {
        let slot = *self.free.last()?;
        // SAFETY: the slot is free, so the provider does not hold it, and only this rail writes to its slots. The
        // provider's part (`provider`) is not changed.
        unsafe {
            (*slot).token = token;
            (*slot).bytes = bytes;
            (*slot).peer = peer as u32;
            (*slot).kind = kind;
        }
        Some(slot)
    }

    /// Posts with explicit flags. These replace the endpoint's flags, so the completion level is repeated.
    ///
    /// # Safety
    /// The contracts of [`Rail::write`] and [`Rail::read`] must hold, the transfer must be checked and the slot
    /// prepared.
    pub(super) unsafe fn post_message(
        &self,
        kind: SlotOperation,
        slot: *mut Slot,
        local: u64,
        mut descriptor: *mut c_void,
        t: &Transfer,
        peer: u64,
    ) -> isize {
        let stretch =
            sys::iovec { iov_base: ptr::with_exposed_provenance_mut(local as usize), iov_len: t.bytes as usize };
        let target = sys::fi_rma_iov {
            addr: t.remote.base.wrapping_add(t.remote_offset),
            len: t.bytes as usize,
            key: t.remote.key,
        };
        let message = sys::fi_msg_rma {
            msg_iov: &stretch,
            desc: &mut descriptor,
            iov_count: 1,
            addr: peer,
            rma_iov: &target,
            rma_iov_count: 1,
            context: slot.cast(),
            data: t.immediate.map_or(0, u64::from),
        };
        let more = if self.hold_doorbell(t) { sys::FI_MORE } else { 0 };
        if kind == SlotOperation::Read {
            // SAFETY: the endpoint is open, the message is valid during the call, and the caller guarantees that the
            // memory is valid. Reads complete when the data has arrived here, at any level.
            return unsafe { ops::fi_readmsg(self.endpoint, &message, more | sys::FI_COMPLETION) };
        }
        let level = if t.bytes == 0 && self.quirks.no_empty_delivery { Level::Transmit } else { self.level };
        let flags = more | sys::FI_COMPLETION | level.flag();
        let immediate = if t.immediate.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
        // SAFETY: the endpoint is open, the message is valid during the call, and the caller guarantees that the memory
        // is valid.
        unsafe { ops::fi_writemsg(self.endpoint, &message, flags | immediate) }
    }

    /// Returns whether to pass FI_MORE. Returns `false` for the last credit: the next post would be refused before it
    /// reaches the provider, and the doorbell would stay deferred.
    #[inline]
    pub(super) fn hold_doorbell(&self, t: &Transfer) -> bool {
        t.more && self.free.len() > 1
    }

    /// Returns whether the write needs flags that differ from the endpoint's.
    #[inline]
    pub(super) fn needs_flags(&self, t: &Transfer) -> bool {
        self.hold_doorbell(t) || self.quirks.level_in_each_call || t.bytes == 0 && self.quirks.no_empty_delivery
    }

    /// Posts one write without checks, for the bare loop.
    ///
    /// # Safety
    /// The contract of [`Rail::write`] must hold, the transfer must be within both regions, and the slot must not be in
    /// use.
    #[inline]
    pub(super) unsafe fn post_bare(&self, slot: *mut Slot, region: &LibfabricRegion, t: &Transfer, peer: u64) -> isize {
        if self.quirks.level_in_each_call {
            // SAFETY: forwards the call; the caller upholds the same contract.
            return unsafe {
                self.post_message(SlotOperation::Write, slot, region.address, region.descriptor, t, peer)
            };
        }
        let (source, length) = (ptr::with_exposed_provenance(region.address as usize), t.bytes as usize);
        let (remote, key) = (t.remote.base, t.remote.key);
        // SAFETY: the endpoint is open, and the caller guarantees that the transfer is within both regions and the slot
        // is not in use.
        unsafe { ops::fi_write(self.endpoint, source, length, region.descriptor, peer, remote, key, slot.cast()) }
    }
}

/// Returns the name of an operation for messages: `fi_write of 4096 B to peer 1`.
#[cold]
pub(super) fn operation(kind: SlotOperation, bytes: u64, peer: usize) -> String {
    match kind {
        SlotOperation::Read => format!("fi_read of {bytes} B from peer {peer}"),
        SlotOperation::Send => format!("fi_send of {bytes} B to peer {peer}"),
        SlotOperation::Receive => format!("fi_recv of up to {bytes} B"),
        _ => format!("fi_write of {bytes} B to peer {peer}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error and stall messages use this text.
    #[test]
    fn operation_names_bytes_and_peer() {
        assert_eq!(operation(SlotOperation::Write, 4096, 1), "fi_write of 4096 B to peer 1");
        assert_eq!(operation(SlotOperation::Read, 8, 2), "fi_read of 8 B from peer 2");
        assert_eq!(operation(SlotOperation::Send, 0, 3), "fi_send of 0 B to peer 3");
        assert_eq!(operation(SlotOperation::Receive, 64, 0), "fi_recv of up to 64 B");
    }
}
