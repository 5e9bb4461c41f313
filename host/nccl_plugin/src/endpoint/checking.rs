//! Check on the worst-case network model: a put's source must not change until the put is complete.
//!
//! The bytes that were sent are in a slot. When the write of the slot is complete, and before the request is completed,
//! the source is read again. A difference shows that the source was written during the put. A NIC that reads late would
//! then have sent wrong bytes.

use super::Endpoint;
use super::outgoing::{Part, Watched};
use crate::copies::CopyDirection;
use crate::wire::HEADER;
use ginlab_fabric::Rail;
use std::collections::VecDeque;

/// Parts whose sources are being read again, by mark.
#[derive(Default)]
pub(super) struct Checking(VecDeque<(u64, Part)>);

impl Checking {
    pub fn is_quiet(&self) -> bool {
        self.0.is_empty()
    }
}

impl<R: Rail> Endpoint<R> {
    /// Returns the checksum of the bytes in one of this rank's outgoing slots.
    pub(super) fn sum_of(&self, part: &Part) -> u32 {
        let body = self.slot(true, part.peer, part.slot).wrapping_add(HEADER);
        // SAFETY: the slot is one of this rank, and nothing writes it now.
        crc32fast::hash(unsafe { std::slice::from_raw_parts(body, part.bytes - HEADER) })
    }

    /// Reads the source of a part again, after its write is complete. Returns the part if the check is finished or not
    /// required. Returns `None` if a copy out of the GPU must complete first.
    pub(super) fn watch_again(&mut self, part: Part) -> Result<Option<Part>, String> {
        let Some(Watched { source, .. }) = part.watched else { return Ok(Some(part)) };
        let body = self.slot(true, part.peer, part.slot).wrapping_add(HEADER);
        let bytes = part.bytes - HEADER;
        if !source.cuda {
            // SAFETY: NCCL's memory, of a put whose request is not complete; the slot belongs to this rank until it is
            // free.
            unsafe { std::ptr::copy_nonoverlapping(source.address as *const u8, body, bytes) };
            self.compare(&part)?;
            return Ok(Some(part));
        }
        // SAFETY: GPU memory of NCCL, of a put whose request is not complete; the slot belongs to this rank until it is
        // free.
        unsafe { self.copies.take_out(body as u64, source.address, bytes, false) }
            .map_err(|why| format!("cannot reread {bytes} B: {why}"))?;
        let mark = self.copies.mark(CopyDirection::Out)?;
        self.checking.0.push_back((mark, part));
        Ok(None)
    }

    /// Checks the parts whose sources have been read again. Returns whether there were any.
    pub(super) fn watched(&mut self) -> Result<bool, String> {
        if self.checking.is_quiet() {
            return Ok(false);
        }
        let passed = self.copies.passed(CopyDirection::Out)?;
        let mut moved = false;
        while self.checking.0.front().is_some_and(|(mark, _)| *mark <= passed)
            && let Some((_, part)) = self.checking.0.pop_front()
        {
            self.compare(&part)?;
            self.gone(part);
            moved = true;
        }
        Ok(moved)
    }

    fn compare(&self, part: &Part) -> Result<(), String> {
        match part.watched {
            Some(watched) if watched.sum != self.sum_of(part) => Err(format!(
                "source of a put to rank {} was modified while the put was in flight: {} B at {:#x}; reuse it only \
                 after the put has completed (flush, counter), not after its signal has arrived",
                part.peer,
                part.bytes - HEADER,
                watched.source.address
            )),
            _ => Ok(()),
        }
    }
}
