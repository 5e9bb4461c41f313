//! Completions: what the queue's entries mean.

use std::ffi::{CStr, c_void};
use std::ptr;

use libfabric_sys as sys;
use libfabric_sys::ops;

use super::contexts::Kind;
use super::errors::{self, Doing};
use super::post::operation;
use super::rail::BATCH;
use super::{AGAIN, ERROR_WAITS, LibfabricRail};
use crate::{Completion, FabricError};

/// Full batches read by one poll: a poll stays bounded however fast completions come.
const BATCHES: usize = 16;

impl LibfabricRail {
    /// Reads what the queue has. Completions that were read before an error are appended.
    #[inline]
    pub(super) fn read_queue(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        for _ in 0..BATCHES {
            if !self.unposted.is_empty() {
                self.post_receives()?;
            }
            // SAFETY: the queue is open and the buffer has BATCH entries of the queue's format.
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
                code => return Err(self.error(Doing::Transferring, "fi_cq_read", code)),
            }
        }
        // Those that this poll has emptied.
        if self.unposted.is_empty() { Ok(()) } else { self.post_receives() }
    }

    /// Posts receives for immediates, for providers that spend one on each (FI_RX_CQ_DATA). What the provider has no room for
    /// now is posted by a later poll. Written after the manual; no provider of libfabric 1.17 that runs here asks for it.
    #[cold]
    pub(super) fn post_receives(&mut self) -> Result<(), FabricError> {
        let none = ptr::null_mut();
        while let Some(context) = self.unposted.pop() {
            // SAFETY: the endpoint is open, the buffer is empty, and the context lives as long as the endpoint.
            match unsafe { ops::fi_recv(self.endpoint, none, 0, none, sys::FI_ADDR_UNSPEC, context) } {
                0 => {}
                AGAIN => {
                    self.unposted.push(context);
                    break;
                }
                code => return Err(self.error(Doing::Opening, "fi_recv of an empty message for immediates", code)),
            }
        }
        Ok(())
    }

    /// Turns one queue entry into a completion.
    #[inline]
    fn complete(&mut self, entry: &sys::fi_cq_data_entry, completions: &mut Vec<Completion>) {
        const OURS: u64 = sys::FI_WRITE | sys::FI_READ;
        // By flags before by context: a target's entry may carry a context that is the initiator's. That of libfabric 1.17's efa
        // says FI_WRITE beside FI_REMOTE_WRITE.
        let of_peer = entry.flags & sys::FI_REMOTE_WRITE != 0 || entry.flags & OURS == 0;
        if entry.flags & sys::FI_REMOTE_CQ_DATA != 0 && of_peer {
            completions.push(Completion::Immediate { value: entry.data as u32 });
            if self.core.contexts.receives.holds(entry.op_context) {
                self.unposted.push(entry.op_context);
            }
        } else if let Some((token, kind, ..)) = self.release(entry.op_context) {
            completions.push(match kind {
                Kind::Receive => Completion::Received { token, bytes: entry.len as u64 },
                _ => Completion::Done { token },
            });
        }
        // Anything else is a late completion of a bare loop that ran out of time: nobody waits for it.
    }

    /// Takes a completed slot back; `None` when the context names none that is posted.
    #[inline]
    pub(super) fn release(&mut self, context: *mut c_void) -> Option<(u64, Kind, u64, u32)> {
        let slot = self.core.contexts.transfers.find(context)?;
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
        if code == AGAIN {
            return Ok(());
        }
        if code < 0 {
            return Err(self.error(Doing::Transferring, "fi_cq_readerr", code));
        }
        let (token, what) = match self.release(entry.op_context) {
            Some((token, kind, bytes, peer)) => (Some(token), operation(kind, bytes, peer as usize)),
            None if self.core.contexts.bare.holds(entry.op_context) => (None, "a write of the bare loop".to_owned()),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::super::scripted::{Reading, Script, rail};
    use super::*;
    use crate::Rail;

    /// As many receives as a batch has completions.
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
    fn a_full_queue_of_receives_is_filled_later_and_loses_nothing() {
        let Some(mut rail) = rail(ROOM, Script { recv: vec![0, AGAIN], ..Script::default() }) else { return };
        // Opening has posted one; the provider was full.
        assert_eq!(Script::now(|script| script.posted.len()), 1);
        rail.poll(&mut Vec::new()).unwrap();
        let contexts = Script::now(|script| std::mem::take(&mut script.posted));
        assert_eq!(contexts.len(), ROOM, "the others follow by the next poll");

        // All come back by one batch, and there is room for two of them.
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
    fn an_error_of_a_receive_comes_after_the_completions_of_its_batch() {
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
        // The rail can still be drained.
        rail.poll(&mut completions).unwrap();
        assert_eq!(Script::now(|script| script.posted.len()), ROOM - 1, "all but the one that was refused");
    }

    #[test]
    fn an_error_of_the_queue_comes_after_the_completions_that_were_read_before() {
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
