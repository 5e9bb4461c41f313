//! Posting: the checks, the slot, the call.

use std::ffi::c_void;
use std::ptr;

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::contexts::{Kind, Slot};
use super::errors::Doing;
use super::objects::Core;
use super::{AGAIN, Level, LibfabricRail, LibfabricRegion};
use crate::{FabricError, Message, Post, Transfer, mistake};

/// Where a provider does not do what its answer promised, found by the tests of `tests/fabric.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quirks {
    /// Endpoints that speak FI_PROTO_XNET (`net` of 1.17, `tcp` with reliable datagrams of 2.x) take FI_DELIVERY_COMPLETE as
    /// the endpoint's default and do not heed it: `fi_write` completes before the data has arrived. They heed the flag of
    /// the single call, so every write of theirs goes through `fi_writemsg`.
    level_in_each_call: bool,
    /// FI_PROTO_SHM never completes an empty write with FI_DELIVERY_COMPLETE. There is no data to be delivered, so an
    /// immediate alone goes at the level below.
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
    /// Everything that must hold before a post; the peer's address in the provider's numbering.
    #[inline]
    pub(super) fn check(
        &self,
        kind: Kind,
        region: &LibfabricRegion,
        t: &Transfer,
    ) -> Result<sys::fi_addr_t, FabricError> {
        let within = |offset: u64, length: u64| offset.checked_add(t.bytes).is_some_and(|end| end <= length);
        match self.peers.get(t.peer) {
            Some(peer)
                if within(t.local_offset, region.bytes)
                    && within(t.remote_offset, t.remote.bytes)
                    && t.bytes <= self.limits.max_transfer_bytes
                    && (t.bytes > 0 || t.immediate.is_some() && kind == Kind::Write)
                    && (t.immediate.is_none() || self.limits.immediate_bytes >= 4)
                    && region.belongs_to(&self.core) =>
            {
                Ok(*peer)
            }
            _ => Err(self.why_refused(kind, region, t)),
        }
    }

    /// The same for a message; the peer's address, or any for a receive.
    pub(super) fn check_message(
        &self,
        kind: Kind,
        region: &LibfabricRegion,
        peer: Option<usize>,
        m: &Message,
    ) -> Result<sys::fi_addr_t, FabricError> {
        let address = peer.map_or(Some(sys::FI_ADDR_UNSPEC), |peer| self.peers.get(peer).copied());
        let text = if self.core.info.first().info().caps & sys::FI_MSG == 0 {
            "the rail was opened without messages".to_owned()
        } else if m.offset > region.bytes || m.bytes > region.bytes - m.offset {
            format!("offset {} and {} B do not lie in the region of {} B", m.offset, m.bytes, region.bytes)
        } else if m.bytes > self.limits.max_transfer_bytes {
            format!("the provider takes {} B at most in one message", self.limits.max_transfer_bytes)
        } else if !region.belongs_to(&self.core) {
            "the region is registered with another rail".to_owned()
        } else if let Some(address) = address {
            return Ok(address);
        } else {
            format!("there are {} peers", self.peers.len())
        };
        Err(mistake(&self.name, operation(kind, m.bytes, peer.unwrap_or_default()), text))
    }

    #[cold]
    pub(super) fn why_refused(&self, kind: Kind, region: &LibfabricRegion, t: &Transfer) -> FabricError {
        let outside = |what: &str, offset: u64, bytes: u64| {
            (offset > bytes || t.bytes > bytes - offset)
                .then(|| format!("offset {offset} and {} B do not lie in the {what} region of {bytes} B", t.bytes))
        };
        let text = if t.peer >= self.peers.len() {
            format!("there are {} peers", self.peers.len())
        } else if let Some(text) = outside("local", t.local_offset, region.bytes) {
            text
        } else if let Some(text) = outside("peer's", t.remote_offset, t.remote.bytes) {
            text
        } else if t.bytes > self.limits.max_transfer_bytes {
            format!("the provider takes {} B at most in one transfer", self.limits.max_transfer_bytes)
        } else if !region.belongs_to(&self.core) {
            "the region is registered with another rail".to_owned()
        } else if t.bytes == 0 {
            "nothing to move and no immediate".to_owned()
        } else {
            format!("the provider's immediates have {} bytes, 4 are needed", self.limits.immediate_bytes)
        };
        mistake(&self.name, operation(kind, t.bytes, t.peer), text)
    }

    /// What came of a post: the slot is spent, or nothing has happened.
    #[inline]
    pub(super) fn posted(&mut self, what: impl Fn() -> String, code: isize) -> Result<Post, FabricError> {
        match code {
            0 => {
                self.free.pop();
                Ok(Post::Accepted)
            }
            AGAIN => Ok(Post::Again),
            code => Err(self.error(Doing::Transferring, what(), code)),
        }
    }

    /// Fills the next free slot; `None` when the credit is used up.
    #[inline]
    pub(super) fn prepare(&mut self, kind: Kind, peer: usize, bytes: u64, token: u64) -> Option<*mut Slot> {
        let slot = *self.free.last()?;
        // SAFETY: the slot is free: the provider does not hold it, and only this rail writes to its slots. Its own part
        // (`provider`) is left alone.
        unsafe {
            (*slot).token = token;
            (*slot).bytes = bytes;
            (*slot).peer = peer as u32;
            (*slot).kind = kind;
        }
        Some(slot)
    }

    /// Posts with flags of its own: those of the call replace the endpoint's, so the level is named again.
    ///
    /// # Safety
    /// As for [`Rail::write`] and [`Rail::read`]; the transfer is checked and the slot prepared.
    pub(super) unsafe fn post_message(
        &self,
        kind: Kind,
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
        if kind == Kind::Read {
            // SAFETY: as below. Reads complete when the data is here, whatever the level.
            return unsafe { ops::fi_readmsg(self.endpoint, &message, more | sys::FI_COMPLETION) };
        }
        let level = if t.bytes == 0 && self.quirks.no_empty_delivery { Level::Transmit } else { self.level };
        let flags = more | sys::FI_COMPLETION | level.flag();
        let immediate = if t.immediate.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
        // SAFETY: the endpoint is open, the message lives during the call, the caller vouches for the memory.
        unsafe { ops::fi_writemsg(self.endpoint, &message, flags | immediate) }
    }

    /// Whether to pass FI_MORE: not with the last credit, since the next post would be refused before it reaches the
    /// provider and the doorbell would stay held.
    #[inline]
    pub(super) fn hold_doorbell(&self, t: &Transfer) -> bool {
        t.more && self.free.len() > 1
    }

    /// Whether the write needs flags that differ from the endpoint's.
    #[inline]
    pub(super) fn needs_flags(&self, t: &Transfer) -> bool {
        self.hold_doorbell(t) || self.quirks.level_in_each_call || t.bytes == 0 && self.quirks.no_empty_delivery
    }

    /// Posts one write without any check but that the provider takes it; for the bare loop.
    ///
    /// # Safety
    /// As for [`Rail::write`]; the transfer is within both regions, the slot is not in use.
    #[inline]
    pub(super) unsafe fn post_bare(&self, slot: *mut Slot, region: &LibfabricRegion, t: &Transfer, peer: u64) -> isize {
        if self.quirks.level_in_each_call {
            // SAFETY: passed on.
            return unsafe { self.post_message(Kind::Write, slot, region.address, region.descriptor, t, peer) };
        }
        let (source, length) = (ptr::with_exposed_provenance(region.address as usize), t.bytes as usize);
        let (remote, key) = (t.remote.base, t.remote.key);
        // SAFETY: passed on.
        unsafe { ops::fi_write(self.endpoint, source, length, region.descriptor, peer, remote, key, slot.cast()) }
    }
}

/// `fi_write of 4096 B to peer 1`.
#[cold]
pub(super) fn operation(kind: Kind, bytes: u64, peer: usize) -> String {
    match kind {
        Kind::Read => format!("fi_read of {bytes} B from peer {peer}"),
        Kind::Send => format!("fi_send of {bytes} B to peer {peer}"),
        Kind::Receive => format!("fi_recv of up to {bytes} B"),
        _ => format!("fi_write of {bytes} B to peer {peer}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors and stalls name what was under way by these words.
    #[test]
    fn an_operation_is_named_with_its_bytes_and_its_peer() {
        assert_eq!(operation(Kind::Write, 4096, 1), "fi_write of 4096 B to peer 1");
        assert_eq!(operation(Kind::Read, 8, 2), "fi_read of 8 B from peer 2");
        assert_eq!(operation(Kind::Send, 0, 3), "fi_send of 0 B to peer 3");
        assert_eq!(operation(Kind::Receive, 64, 0), "fi_recv of up to 64 B");
    }
}
