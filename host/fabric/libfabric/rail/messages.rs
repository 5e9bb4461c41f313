//! The rail's interface for messages.

use super::LibfabricRail;
use crate::libfabric::LibfabricRegion;
use crate::libfabric::contexts::{Slot, SlotOperation};
use crate::libfabric::errors::FailedOperation;
use crate::libfabric::post::operation;
use crate::{FabricError, Message, Messages, Post};
use libfabric_sys::{self as sys, ops};
use std::ptr;
use std::sync::Arc;

impl Messages for LibfabricRail {
    unsafe fn send(&mut self, region: &LibfabricRegion, peer: usize, m: &Message) -> Result<Post, FabricError> {
        let address = self.check_message(SlotOperation::Send, region, Some(peer), m)?;
        let Some(slot) = self.prepare(SlotOperation::Send, peer, m.bytes, m.token) else { return Ok(Post::Again) };
        let source = ptr::with_exposed_provenance((region.address + m.offset) as usize);
        // SAFETY: the endpoint is open, the range is in the region, and the caller guarantees that its memory is valid.
        let code =
            unsafe { ops::fi_send(self.endpoint, source, m.bytes as usize, region.descriptor, address, slot.cast()) };
        self.posted(|| operation(SlotOperation::Send, m.bytes, peer), code)
    }

    unsafe fn receive(&mut self, region: &LibfabricRegion, m: &Message) -> Result<Post, FabricError> {
        let address = self.check_message(SlotOperation::Receive, region, None, m)?;
        let Some(slot) = self.prepare(SlotOperation::Receive, 0, m.bytes, m.token) else { return Ok(Post::Again) };
        let target = ptr::with_exposed_provenance_mut((region.address + m.offset) as usize);
        // SAFETY: the endpoint is open, the range is in the region, and the caller guarantees that its memory is valid.
        let code =
            unsafe { ops::fi_recv(self.endpoint, target, m.bytes as usize, region.descriptor, address, slot.cast()) };
        self.posted(|| operation(SlotOperation::Receive, m.bytes, 0), code)
    }

    fn cancel(&mut self, token: u64) -> Result<(), FabricError> {
        let core = Arc::clone(&self.core);
        // SAFETY: the slots belong to this rail, and no other code accesses these fields.
        let of_token = |slot: &*mut Slot| unsafe { (**slot).kind == SlotOperation::Receive && (**slot).token == token };
        let Some(slot) = core.contexts.transfers.iter().find(of_token) else { return Ok(()) };
        // SAFETY: the endpoint is open and the context is posted.
        match unsafe { ops::fi_cancel(self.endpoint, slot.cast()) } {
            0 => Ok(()),
            // The cancellation is too late: the completion of the receive follows.
            code if code == -(sys::FI_ENOENT as isize) => Ok(()),
            code => Err(self.error(FailedOperation::Transferring, "fi_cancel of a receive", code)),
        }
    }
}
