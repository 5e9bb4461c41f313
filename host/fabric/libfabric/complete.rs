//! Completions: interpretation of the queue's entries.

use std::ffi::{CStr, c_void};
use std::ptr;

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::contexts::SlotOperation;
use super::errors::{self, FailedOperation};
use super::post::operation;
use super::rail::BATCH;
use super::{AGAIN, ERROR_WAITS, LibfabricRail};
use crate::{Completion, FabricError};

/// Maximum number of full batches read by one poll. It bounds the duration of a poll if completions arrive quickly.
const BATCHES: usize = 16;

impl LibfabricRail {
    /// Reads the available entries of the queue. Appends the completions that were read before an error.
    #[inline]
    pub(super) fn read_queue(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        for _ in 0..BATCHES {
            if !self.unposted.is_empty() {
                self.post_receives()?;
            }
            // SAFETY: the queue is open and the buffer has `BATCH` entries of the queue's format.
            match unsafe { ops::fi_cq_read(self.queue, self.entries.as_mut_ptr().cast(), BATCH) } {
                count @ 1.. => {
                    let count = (count as usize).min(BATCH);
                    for index in 0..count {
                        let entry = self.entries[index];
                        self.complete(&entry, completions);
                    }
                    if count < BATCH {
                        break;
                    }
                }
                0 | AGAIN => break,
                ERROR_WAITS => self.read_error(completions)?,
                code => return Err(self.error(FailedOperation::Transferring, "fi_cq_read", code)),
            }
        }
        // Reposts the receives that this poll has consumed.
        if self.unposted.is_empty() { Ok(()) } else { self.post_receives() }
    }

    /// Posts receives for immediates, for providers that consume one per immediate (FI_RX_CQ_DATA). Receives for which
    /// the provider has no space are posted by a later poll.
    ///
    /// The receives have no buffer: `iov_count` is 0. efa-direct refuses `fi_recv` of an empty buffer, because it is
    /// one segment, and each segment requires a descriptor of registered memory (FI_MR_LOCAL).
    #[cold]
    pub(super) fn post_receives(&mut self) -> Result<(), FabricError> {
        while let Some(context) = self.unposted.pop() {
            let message = sys::fi_msg {
                msg_iov: ptr::null(),
                desc: ptr::null_mut(),
                iov_count: 0,
                addr: sys::FI_ADDR_UNSPEC,
                context,
                data: 0,
            };
            // SAFETY: the endpoint is open. The message is valid during the call and has no segments. The context is
            // valid as long as the endpoint.
            match unsafe { ops::fi_recvmsg(self.endpoint, &message, sys::FI_COMPLETION) } {
                0 => {}
                AGAIN => {
                    self.unposted.push(context);
                    break;
                }
                code => {
                    return Err(self.error(
                        FailedOperation::Opening,
                        "fi_recvmsg of an empty message for immediates",
                        code,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Converts one queue entry to a completion.
    #[inline]
    fn complete(&mut self, entry: &sys::fi_cq_data_entry, completions: &mut Vec<Completion>) {
        const OURS: u64 = sys::FI_WRITE | sys::FI_READ;
        // Tests the flags before the context, because a target's entry may carry a context of the initiator. efa of
        // libfabric 1.17 sets FI_WRITE in addition to FI_REMOTE_WRITE.
        let of_peer = entry.flags & sys::FI_REMOTE_WRITE != 0 || entry.flags & OURS == 0;
        if entry.flags & sys::FI_REMOTE_CQ_DATA != 0 && of_peer {
            completions.push(Completion::Immediate { value: entry.data as u32 });
            if self.core.contexts.receives.holds(entry.op_context) {
                self.unposted.push(entry.op_context);
            }
        } else if let Some((token, kind, ..)) = self.release(entry.op_context) {
            completions.push(match kind {
                SlotOperation::Receive => Completion::Received { token, bytes: entry.len as u64 },
                _ => Completion::Done { token },
            });
        }
        // Any other entry is a late completion of a bare loop that timed out, and is ignored.
    }

    /// Frees the slot of a completed operation. Returns `None` if the context does not belong to a posted operation.
    #[inline]
    pub(super) fn release(&mut self, context: *mut c_void) -> Option<(u64, SlotOperation, u64, u32)> {
        let slot = self.core.contexts.transfers.find(context)?;
        // SAFETY: the slot belongs to this rail and the provider has returned it.
        let (token, kind, bytes, peer) = unsafe { ((*slot).token, (*slot).kind, (*slot).bytes, (*slot).peer) };
        if kind == SlotOperation::Free {
            return None;
        }
        // SAFETY: the slot belongs to this rail and the provider has returned it.
        unsafe { (*slot).kind = SlotOperation::Free };
        self.free.push(slot);
        Some((token, kind, bytes, peer))
    }

    #[cold]
    pub(super) fn read_error(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut entry = sys::fi_cq_err_entry::default();
        // SAFETY: the queue is open, and the entry is a local variable.
        let code = unsafe { ops::fi_cq_readerr(self.queue, &mut entry, 0) };
        if code == AGAIN {
            return Ok(());
        }
        if code < 0 {
            return Err(self.error(FailedOperation::Transferring, "fi_cq_readerr", code));
        }
        let (token, what) = match self.release(entry.op_context) {
            Some((token, kind, bytes, peer)) => (Some(token), operation(kind, bytes, peer as usize)),
            None if self.core.contexts.bare.holds(entry.op_context) => (None, "a write of the bare loop".to_owned()),
            None => (None, "an incoming transfer".to_owned()),
        };
        let error = errors::refused(&self.name, FailedOperation::Transferring, what, entry.err, self.words_of(&entry));
        completions.push(Completion::Failed { token, error: Box::new(error) });
        Ok(())
    }

    /// Returns libfabric's text for the code, followed by the provider's text if it differs.
    pub(super) fn words_of(&self, entry: &sys::fi_cq_err_entry) -> String {
        let text = errors::text(entry.err);
        let mut buffer = [0; 256];
        // SAFETY: queue and buffer are valid, and the error data belongs to the entry.
        let words = unsafe {
            ops::fi_cq_strerror(self.queue, entry.prov_errno, entry.err_data, buffer.as_mut_ptr(), buffer.len())
        };
        if words.is_null() {
            return text;
        }
        // SAFETY: the pointer is not null, and therefore refers to a C string, which is static or in the buffer.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        if words.is_empty() || words == text { text } else { format!("{text}: {words} [{}]", entry.prov_errno) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::super::scripted::{Reading, Script, rail};
    use super::*;
    use crate::Rail;

    /// Number of receives, which equals the number of completions of a batch.
    const ROOM: usize = BATCH;

    fn immediates(contexts: &[*mut c_void]) -> Reading {
        let entry = |(number, context): (usize, &*mut c_void)| sys::fi_cq_data_entry {
            op_context: *context,
            flags: sys::FI_REMOTE_CQ_DATA | sys::FI_RECV,
            data: number as u64,
            ..Default::default()
        };
        Reading::Entries(contexts.iter().enumerate().map(entry).collect())
    }

    fn values(completions: &[Completion]) -> Vec<u32> {
        let value = |completion: &Completion| match completion {
            Completion::Immediate { value } => *value,
            other => panic!("{other:?}"),
        };
        completions.iter().map(value).collect()
    }

    #[test]
    fn full_receive_queue_is_refilled_without_loss() {
        let Some(mut rail) = rail(ROOM, Script { recv: vec![0, AGAIN], ..Script::default() }) else { return };
        // Opening the rail posted one receive, after which the provider was full.
        assert_eq!(Script::now(|script| script.posted.len()), 1);
        rail.poll(&mut Vec::new()).unwrap();
        let contexts = Script::now(|script| std::mem::take(&mut script.posted));
        assert_eq!(contexts.len(), ROOM, "the others follow by the next poll");

        // All receives complete in one batch, and the provider has space for two new ones.
        Script::now(|script| {
            script.readings = vec![immediates(&contexts)];
            script.recv = vec![0, 0, AGAIN, AGAIN];
        });
        let mut completions = Vec::new();
        rail.poll(&mut completions).unwrap();
        assert_eq!(values(&completions), (0..ROOM as u32).collect::<Vec<_>>());
        rail.poll(&mut completions).unwrap();
        rail.poll(&mut completions).unwrap();
        let mut again = Script::now(|script| script.posted.clone());
        let mut all = contexts;
        all.sort();
        again.sort();
        assert_eq!((again, completions.len()), (all, ROOM), "each is posted once more");
    }

    #[test]
    fn receive_error_follows_completions_of_batch() {
        let Some(mut rail) = rail(ROOM, Script::default()) else { return };
        let contexts = Script::now(|script| std::mem::take(&mut script.posted));
        Script::now(|script| {
            script.readings = vec![immediates(&contexts)];
            script.recv = vec![0, -(sys::FI_EIO as isize)];
        });
        let mut completions = Vec::new();
        rail.poll(&mut completions).unwrap();
        assert_eq!(values(&completions).len(), ROOM);
        let error = rail.poll(&mut completions).unwrap_err();
        assert_eq!((error.code, completions.len()), (sys::FI_EIO, ROOM), "{error}");
        // The rail can still be polled.
        rail.poll(&mut completions).unwrap();
        assert_eq!(Script::now(|script| script.posted.len()), ROOM - 1, "all but the one that was refused");
    }

    #[test]
    fn queue_error_follows_completions_read_before() {
        for (reading, code) in [(Reading::Error(sys::FI_EIO), sys::FI_EIO), (Reading::LostError, sys::FI_ENOSYS)] {
            let Some(mut rail) = rail(ROOM, Script::default()) else { return };
            let contexts = Script::now(|script| std::mem::take(&mut script.posted));
            Script::now(|script| script.readings = vec![immediates(&contexts), reading]);
            let mut completions = Vec::new();
            rail.poll(&mut completions).unwrap();
            assert_eq!(values(&completions).len(), ROOM);
            assert_eq!(rail.poll(&mut completions).unwrap_err().code, code);
            assert_eq!(completions.len(), ROOM);
        }
    }
}
