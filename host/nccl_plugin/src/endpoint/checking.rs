//! Over the worst network: whether sources are left alone until their puts are complete.
//!
//! The bytes that went out stand in a slot. When its write is complete, the source is read once more, before anybody is told; what has changed
//! was written under way, and on a card that reads late it would have gone out wrong.

use super::Endpoint;
use super::outgoing::{Part, Watched};
use crate::copies::Queue;
use crate::wire::HEADER;
use ginlab_fabric::Rail;
use std::collections::VecDeque;

/// Parts whose sources are read again, by mark.
#[derive(Default)]
pub(super) struct Checking(VecDeque<(u64, Part)>);

impl Checking {
    pub fn is_quiet(&self) -> bool {
        self.0.is_empty()
    }
}

impl<R: Rail> Endpoint<R> {
    /// The bytes of a slot of ours, as a number.
    pub(super) fn sum_of(&self, part: &Part) -> u32 {
        let body = self.slot(true, part.peer, part.slot).wrapping_add(HEADER);
        // SAFETY: a slot of ours, which nobody writes now.
        crc32fast::hash(unsafe { std::slice::from_raw_parts(body, part.bytes - HEADER) })
    }

    /// Reads the source of a part whose write is complete again; `false` where nobody watches it.
    pub(super) fn watch_again(&mut self, part: Part) -> Result<Option<Part>, String> {
        let Some(Watched { source, .. }) = part.watched else { return Ok(Some(part)) };
        let body = self.slot(true, part.peer, part.slot).wrapping_add(HEADER);
        let bytes = part.bytes - HEADER;
        if !source.cuda {
            // SAFETY: NCCL's memory, of a put whose request is not complete; the slot is ours until it is free.
            unsafe { std::ptr::copy_nonoverlapping(source.address as *const u8, body, bytes) };
            self.compare(&part)?;
            return Ok(Some(part));
        }
        // SAFETY: as above, of the GPU's memory.
        unsafe { self.copies.take_out(body as u64, source.address, bytes, false) }
            .map_err(|why| format!("reading {bytes} B again: {why}"))?;
        let mark = self.copies.mark(Queue::Out)?;
        self.checking.0.push_back((mark, part));
        Ok(None)
    }

    /// Parts whose sources have been read.
    pub(super) fn watched(&mut self) -> Result<bool, String> {
        if self.checking.is_quiet() {
            return Ok(false);
        }
        let passed = self.copies.passed(Queue::Out)?;
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
                "the source of a put to rank {} was written while it was under way: {} B at {:#x}; it may be written when the put is complete \
                 (flush, counter), and not when its signal has come",
                part.peer,
                part.bytes - HEADER,
                watched.source.address
            )),
            _ => Ok(()),
        }
    }
}
