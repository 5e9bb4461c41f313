//! NCCL's signals: 64-bit words in memory of a GPU (or of the host), to which only this rank's plugin adds.
//!
//! Words that nobody resets are counted here, and their new value follows the bytes in the stream that copies in. Others are read first, in
//! the same stream: a user's own words, which a kernel may set back to 0. All that wait are read together, and a word to which several add is
//! read and written once: one by one, each waited for a look, a copy and a mark (5.9 us on an H200, and NCCL EP sends 128 to 256 at once).

use super::Endpoint;
use crate::coll::Region;
use crate::copies::Queue;
use crate::operation::Place;
use crate::wire::Header;
use ginlab_fabric::Rail;
use std::collections::{HashMap, HashSet, VecDeque};
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
    /// Signals whose words are read first.
    read: VecDeque<Waiting>,
    /// So many of them are being read, by copies before this mark.
    reading: Option<(u64, usize)>,
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
        self.write_word(region, &waiting, value)?;
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
    fn write_word(&mut self, region: Region, waiting: &Waiting, value: u64) -> Result<(), String> {
        let Waiting { from, header, .. } = waiting;
        let scratch = self.scratch(waiting);
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
        if let Some((mark, count)) = self.inc.counted.reading {
            if mark > passed {
                return Ok(());
            }
            self.inc.counted.reading = None;
            let read: Vec<Waiting> = self.inc.counted.read.drain(..count).collect();
            self.add_to_words(&read)?;
        }
        self.read_words()
    }

    /// Starts to read the words of all signals that wait for it, each word once.
    fn read_words(&mut self) -> Result<(), String> {
        let (mut words, count) = (HashSet::new(), self.inc.counted.read.len());
        for at in 0..count {
            let waiting = self.inc.counted.read[at];
            let Some(region) = self.coll.region(waiting.header.then.region) else { continue };
            if words.insert(waiting.header.then) {
                let (scratch, word) = (self.scratch(&waiting), region.address + waiting.header.then.offset);
                // SAFETY: a word inside the region, and a field of a slot that is ours.
                unsafe { self.copies.take_out(scratch as u64, word, 8, true) }
                    .map_err(|why| format!("reading a signal for rank {}: {why}", waiting.from))?;
                self.inc.copied = true;
            }
        }
        if count > 0 {
            self.inc.counted.reading = Some((self.mark_in()?, count));
        }
        Ok(())
    }

    /// Adds to words that have been read. The bytes of all these signals were put into the stream before the words were read.
    fn add_to_words(&mut self, read: &[Waiting]) -> Result<(), String> {
        let last: HashMap<Place, usize> = read.iter().enumerate().map(|(at, of)| (of.header.then, at)).collect();
        let mut values = HashMap::new();
        for (at, waiting) in read.iter().enumerate() {
            let Some(region) = self.region_of(waiting) else { continue };
            let Waiting { from, slot, header } = *waiting;
            // SAFETY: the copy into it is through: the first of a word's signals here is the one whose field `read_words` has taken.
            let value = values.entry(header.then).or_insert_with(|| unsafe { self.scratch(waiting).read() });
            *value = value.wrapping_add(header.add);
            let value = *value;
            if last.get(&header.then) == Some(&at) {
                self.write_word(region, waiting, value)?;
            }
            self.inc.end_all(from, slot, header, value);
        }
        Ok(())
    }

    /// A word of pinned memory: a field of the signal's slot.
    fn scratch(&self, waiting: &Waiting) -> *mut u64 {
        self.head(waiting.from, waiting.slot).wrapping_add(Header::SCRATCH).cast()
    }
}
