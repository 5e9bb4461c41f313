//! Completions: what the queue's entries mean.

use std::ffi::{CStr, c_void};

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::LibfabricRail;
use super::contexts::Kind;
use super::errors::{self, Doing};
use super::post::operation;
use crate::fabric::{Completion, FabricError};

impl LibfabricRail {
    /// Turns one queue entry into a completion.
    #[inline]
    pub(super) fn complete(
        &mut self,
        entry: &sys::fi_cq_data_entry,
        completions: &mut Vec<Completion>,
    ) -> Result<(), FabricError> {
        const OURS: u64 = sys::FI_WRITE | sys::FI_READ;
        // By flags before by context: a target's entry may carry a context that is the initiator's.
        if entry.flags & sys::FI_REMOTE_CQ_DATA != 0 && entry.flags & OURS == 0 {
            completions.push(Completion::Immediate { value: entry.data as u32 });
            if self.core.contexts.is_receive(entry.op_context) {
                self.post_receive(entry.op_context)?;
            }
        } else if let Some((token, kind, ..)) = self.release(entry.op_context) {
            completions.push(match kind {
                Kind::Receive => Completion::Received { token, bytes: entry.len as u64 },
                _ => Completion::Done { token },
            });
        }
        // Anything else is a late completion of a bare loop that ran out of time: nobody waits for it.
        Ok(())
    }

    /// Takes a completed slot back; `None` when the context names none that is posted.
    #[inline]
    pub(super) fn release(&mut self, context: *mut c_void) -> Option<(u64, Kind, u64, u32)> {
        let slot = self.core.contexts.transfer(context)?;
        // SAFETY: the slot is one of this rail's and the provider has given it back.
        let (token, kind, bytes, peer) = unsafe { ((*slot).token, (*slot).kind, (*slot).bytes, (*slot).peer) };
        if kind == Kind::Free {
            return None;
        }
        // SAFETY: as above.
        unsafe { (*slot).kind = Kind::Free };
        self.free.push(slot);
        Some((token, kind, bytes, peer))
    }

    /// Reads one error entry.
    #[cold]
    pub(super) fn read_error(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut entry = sys::fi_cq_err_entry::default();
        // SAFETY: the queue is open, the entry is ours.
        let code = unsafe { ops::fi_cq_readerr(self.queue, &mut entry, 0) };
        if code == -(sys::FI_EAGAIN as isize) {
            return Ok(());
        }
        if code < 0 {
            return Err(self.error(Doing::Transferring, "fi_cq_readerr", code));
        }
        let (token, what) = match self.release(entry.op_context) {
            Some((token, kind, bytes, peer)) => (Some(token), operation(kind, bytes, peer as usize)),
            None if self.core.contexts.is_bare(entry.op_context) => (None, "a write of the bare loop".to_owned()),
            None => (None, "an incoming transfer".to_owned()),
        };
        let error = errors::refused(&self.name, Doing::Transferring, what, entry.err, self.words_of(&entry));
        completions.push(Completion::Failed { token, error: Box::new(error) });
        Ok(())
    }

    /// libfabric's text for the code, and the provider's own where it says more.
    pub(super) fn words_of(&self, entry: &sys::fi_cq_err_entry) -> String {
        let text = errors::text(entry.err);
        let mut buffer = [0; 256];
        // SAFETY: queue and buffer are valid; the error data is the entry's.
        let words = unsafe {
            ops::fi_cq_strerror(self.queue, entry.prov_errno, entry.err_data, buffer.as_mut_ptr(), buffer.len())
        };
        if words.is_null() {
            return text;
        }
        // SAFETY: not null, hence a C string: static or in the buffer.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        if words.is_empty() || words == text { text } else { format!("{text}: {words} [{}]", entry.prov_errno) }
    }
}
