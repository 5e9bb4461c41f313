//! NCCL's signals: 64-bit words in memory of a GPU (or of the host), to which only this rank's plugin adds.
//!
//! Words that nobody resets are counted here, and their new value follows the bytes in the stream that copies in. Others are read first, in
//! the same stream, one after another: a user's own words, which a kernel may set back to 0.

use super::Endpoint;
use crate::coll::{Place, Region};
use crate::copies::Queue;
use crate::wire::Header;
use ginlab_fabric::Rail;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// A signal whose bytes are in memory, or on their way in the stream.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub from: usize,
    pub slot: usize,
    pub header: Header,
}

/// What is known of the words.
#[derive(Default)]
pub(super) struct Counted {
    /// Values of words that nobody else writes.
    values: HashMap<Place, u64>,
    /// Signals in the host's memory, which wait for the GPU's bytes before them.
    behind: VecDeque<(u64, Waiting)>,
    /// Signals whose words are read first; the first one's read is behind the mark.
    read: VecDeque<Waiting>,
    reading: Option<u64>,
}

impl Counted {
    pub fn is_quiet(&self) -> bool {
        self.behind.is_empty() && self.read.is_empty()
    }
}

impl std::hash::Hash for Place {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (u64::from(self.region) << 40 ^ self.offset).hash(state);
    }
}

impl<R: Rail> Endpoint<R> {
    /// Counts a signal, now or as soon as what stands before it is in memory.
    pub(super) fn count(&mut self, waiting: Waiting) -> Result<(), String> {
        let Some(region) = self.region_of(&waiting) else { return Ok(()) };
        let Waiting { from, slot, header } = waiting;
        if !region.cuda {
            if self.inc.copied || self.copies.passed(Queue::In)? < self.inc.last_mark {
                let mark = self.mark_in()?;
                self.inc.counted.behind.push_back((mark, waiting));
            } else {
                self.count_in_host_memory(region, waiting);
            }
            return Ok(());
        }
        if !region.never_reset {
            self.inc.counted.read.push_back(waiting);
            return Ok(());
        }
        let value = self.inc.counted.values.entry(header.then).or_insert(0);
        *value = value.wrapping_add(header.add);
        let value = *value;
        self.write_word(region, from, slot, &header, value)?;
        self.inc.end_all(from, slot, header, value);
        Ok(())
    }

    fn region_of(&mut self, waiting: &Waiting) -> Option<Region> {
        let region = self.coll.region(waiting.header.then.region);
        if region.is_none() {
            // Taken back meanwhile: nobody looks at the word any more.
            self.inc.end_all(waiting.from, waiting.slot, waiting.header, 0);
        }
        region
    }

    fn count_in_host_memory(&mut self, region: Region, waiting: Waiting) {
        let Waiting { from, slot, header } = waiting;
        // SAFETY: NCCL's memory, a word inside the region (`take` has found it) at a multiple of 8 (`iputSignal` has).
        let word = unsafe { AtomicU64::from_ptr((region.address + header.then.offset) as *mut u64) };
        // Release: whoever acquires the word sees the bytes that were copied before.
        let before = word.fetch_add(header.add, Ordering::Release);
        self.inc.end_all(from, slot, header, before.wrapping_add(header.add));
    }

    /// Lets the new value follow what is in the stream. It stands in the slot's header until it is copied.
    fn write_word(
        &mut self,
        region: Region,
        from: usize,
        slot: usize,
        header: &Header,
        value: u64,
    ) -> Result<(), String> {
        let scratch = self.head(from, slot).wrapping_add(Header::SCRATCH).cast::<u64>();
        // SAFETY: a word inside the region at a multiple of 8 (`iputSignal` has checked it), and a field of a slot that is ours and is given
        // back behind a mark behind this.
        unsafe { self.copies.put_word(region.address + header.then.offset, scratch, value) }
            .map_err(|why| format!("writing a signal of rank {from}: {why}"))?;
        self.inc.copied = true;
        Ok(())
    }

    /// Signals that have waited for copies.
    pub(super) fn go_on_counting(&mut self) -> Result<(), String> {
        if self.inc.counted.is_quiet() {
            return Ok(());
        }
        let passed = self.copies.passed(Queue::In)?;
        while self.inc.counted.behind.front().is_some_and(|(mark, _)| *mark <= passed)
            && let Some((_, waiting)) = self.inc.counted.behind.pop_front()
        {
            if let Some(region) = self.region_of(&waiting) {
                self.count_in_host_memory(region, waiting);
            }
        }
        while let Some(&waiting) = self.inc.counted.read.front() {
            let Waiting { from, slot, header } = waiting;
            let Some(region) = self.coll.region(header.then.region) else {
                self.inc.counted.reading = None;
                self.inc.counted.read.pop_front();
                self.inc.end_all(from, slot, header, 0);
                continue;
            };
            let scratch = self.head(from, slot).wrapping_add(Header::SCRATCH).cast::<u64>();
            match self.inc.counted.reading {
                None => {
                    // SAFETY: a word inside the region, and a field of a slot that is ours.
                    unsafe { self.copies.take_out(scratch as u64, region.address + header.then.offset, 8, true) }
                        .map_err(|why| format!("reading a signal for rank {from}: {why}"))?;
                    self.inc.copied = true;
                    self.inc.counted.reading = Some(self.mark_in()?);
                    return Ok(());
                }
                Some(mark) if mark <= passed => {
                    // SAFETY: the copy into it is through.
                    let value = unsafe { scratch.read() }.wrapping_add(header.add);
                    self.inc.counted.reading = None;
                    self.inc.counted.read.pop_front();
                    self.write_word(region, from, slot, &header, value)?;
                    self.inc.end_all(from, slot, header, value);
                }
                Some(_) => return Ok(()),
            }
        }
        Ok(())
    }
}
