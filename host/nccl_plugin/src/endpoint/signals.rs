//! NCCL's signals: 64-bit words in GPU or host memory, to which only this rank's plugin adds.
//!
//! The plugin keeps the values of words that only it writes, and writes a new value after the bytes in the stream that
//! copies in. Other words, which a kernel may reset to 0, are read first in the same stream. The words of all waiting
//! signals are read together. Read individually, each would need a poll, a copy and a mark, which take 5.9 us on an
//! H200, and NCCL EP sends 128 to 256 signals together. The new values are written in the order in which the signals
//! were started, since a written word must not reveal a later signal.

use super::Endpoint;
use super::incoming::Arrival;
use super::order::{Line, Word};
use crate::coll::PluginRegion;
use crate::copies::CopyDirection;
use crate::operation::RemoteLocation;
use crate::wire::SlotHeader;
use ginlab_fabric::Rail;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

/// Values of words, and queues of started signals.
#[derive(Default)]
pub(super) struct Counted {
    /// Values of words that only the plugin writes.
    values: HashMap<RemoteLocation, u64>,
    /// Signals in host memory, each with the mark of the copies into GPU memory for which it waits.
    behind: VecDeque<(u64, Arrival)>,
    /// Signals whose words are read first, and signals that follow one of these.
    read: VecDeque<Arrival>,
    /// Mark of the copies that are reading words, and the number of signals at the front of `read` to which these words
    /// belong.
    reading: Option<(u64, usize)>,
}

impl Counted {
    pub fn is_quiet(&self) -> bool {
        self.behind.is_empty() && self.read.is_empty()
    }
}

impl std::hash::Hash for RemoteLocation {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (u64::from(self.region) << 40 ^ self.offset).hash(state);
    }
}

impl<R: Rail> Endpoint<R> {
    /// Returns the kind of a signal's word. A word whose region has been deregistered is not written, so it is treated
    /// as the simplest kind.
    pub(super) fn word_of(&mut self, header: &SlotHeader) -> Result<Word, String> {
        Ok(match self.coll.region(header.then.region) {
            Some(region) if !region.cuda => {
                Word::Host(self.inc.copied || self.copies.passed(CopyDirection::In)? < self.inc.last_mark)
            }
            Some(region) if !region.never_reset => Word::Read,
            _ => Word::Counted,
        })
    }

    /// Applies a signal that need not wait: its word is in host memory, or only the plugin writes the word.
    pub(super) fn count(&mut self, waiting: &Arrival) -> Result<(), String> {
        let Some(region) = self.region_of(waiting) else { return Ok(()) };
        if !region.cuda {
            self.count_in_host_memory(region, waiting);
            return Ok(());
        }
        let Arrival { from, slot, header } = *waiting;
        let value = self.count_here(&header);
        self.write_word(region, waiting, value)?;
        self.inc.end_all(from, slot, header, value);
        Ok(())
    }

    /// Appends a started signal to a queue.
    pub(super) fn join(&mut self, line: Line, waiting: Arrival) -> Result<(), String> {
        match line {
            Line::Read => self.inc.counted.read.push_back(waiting),
            Line::Host => {
                let mark = self.mark_in()?;
                self.inc.counted.behind.push_back((mark, waiting));
            }
        }
        Ok(())
    }

    /// Adds to a word that only the plugin writes. Returns the new value.
    fn count_here(&mut self, header: &SlotHeader) -> u64 {
        let value = self.inc.counted.values.entry(header.then).or_insert(0);
        *value = value.wrapping_add(header.add);
        *value
    }

    fn region_of(&mut self, waiting: &Arrival) -> Option<PluginRegion> {
        let region = self.coll.region(waiting.header.then.region);
        if region.is_none() {
            // The region was deregistered in the meantime, so the word is no longer read.
            self.inc.end_all(waiting.from, waiting.slot, waiting.header, 0);
        }
        region
    }

    fn count_in_host_memory(&mut self, region: PluginRegion, waiting: &Arrival) {
        let Arrival { from, slot, header } = *waiting;
        // SAFETY: NCCL's memory. `take` checked that the word is in the region, `iputSignal` that its offset is a
        // multiple of 8.
        let word = unsafe { AtomicU64::from_ptr((region.address + header.then.offset) as *mut u64) };
        // Uses release order: a thread that acquires the word sees the bytes that were copied before.
        let before = word.fetch_add(header.add, Ordering::Release);
        self.inc.end_all(from, slot, header, before.wrapping_add(header.add));
    }

    /// Writes a word's new value after the work in the stream. The value is stored in the slot's header until it is
    /// copied.
    fn write_word(&mut self, region: PluginRegion, waiting: &Arrival, value: u64) -> Result<(), String> {
        let Arrival { from, header, .. } = waiting;
        let scratch = self.scratch(waiting);
        // SAFETY: `iputSignal` checked that the word is in the region at a multiple of 8. The scratch word is in a slot
        // of this rank, which is returned only when a later mark is passed.
        unsafe { self.copies.put_word(region.address + header.then.offset, scratch, value) }
            .map_err(|why| format!("writing a signal of rank {from}: {why}"))?;
        self.inc.copied = true;
        Ok(())
    }

    /// Applies signals that were waiting for copies, and starts reading the words of further signals.
    pub(super) fn go_on_counting(&mut self) -> Result<(), String> {
        if self.inc.counted.is_quiet() {
            return Ok(());
        }
        let passed = self.copies.passed(CopyDirection::In)?;
        while self.inc.counted.behind.front().is_some_and(|(mark, _)| *mark <= passed)
            && let Some((_, waiting)) = self.inc.counted.behind.pop_front()
        {
            if let Some(region) = self.region_of(&waiting) {
                self.count_in_host_memory(region, &waiting);
            }
            self.inc.order[waiting.from].written(&waiting.header);
        }
        if let Some((mark, count)) = self.inc.counted.reading {
            if mark > passed {
                return self.follow();
            }
            self.inc.counted.reading = None;
            let read: Vec<Arrival> = self.inc.counted.read.drain(..count).collect();
            self.add_to_words(&read)?;
        }
        // Signals that were waiting for these may be read together with those that are read now.
        self.follow()?;
        self.read_words()
    }

    /// Starts reading the words of all signals in the queue, each word once.
    fn read_words(&mut self) -> Result<(), String> {
        let (mut words, count) = (HashSet::new(), self.inc.counted.read.len());
        for at in 0..count {
            let waiting = self.inc.counted.read[at];
            let Some(region) = self.coll.region(waiting.header.then.region) else { continue };
            if !region.never_reset && words.insert(waiting.header.then) {
                let (scratch, word) = (self.scratch(&waiting), region.address + waiting.header.then.offset);
                // SAFETY: the word is in the region, and the scratch word is in a slot of this rank.
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

    /// Adds to words that have been read, in the order of their signals. The bytes of all these signals were put into
    /// the stream before the words were read. For consecutive signals with the same word, only the last value is
    /// written.
    fn add_to_words(&mut self, read: &[Arrival]) -> Result<(), String> {
        let mut values = HashMap::new();
        for (at, waiting) in read.iter().enumerate() {
            let Arrival { from, slot, header } = *waiting;
            if let Some(region) = self.region_of(waiting) {
                let value = if region.never_reset {
                    self.count_here(&header)
                } else {
                    // SAFETY: the copy into the scratch word is complete: the first of a word's signals here is the one
                    // whose slot `read_words` used.
                    let value = values.entry(header.then).or_insert_with(|| unsafe { self.scratch(waiting).read() });
                    *value = value.wrapping_add(header.add);
                    *value
                };
                if read.get(at + 1).is_none_or(|next| next.header.then != header.then) {
                    self.write_word(region, waiting, value)?;
                }
                self.inc.end_all(from, slot, header, value);
            }
            self.inc.order[from].written(&header);
        }
        Ok(())
    }

    /// Returns a word of pinned memory: a field of the header in the signal's slot.
    fn scratch(&self, waiting: &Arrival) -> *mut u64 {
        self.head(waiting.from, waiting.slot).wrapping_add(SlotHeader::SCRATCH).cast()
    }
}
