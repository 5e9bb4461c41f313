//! A completion queue that can be overrun, for callers that poll through the C functions.
//!
//! A NIC writes completions whether they are read or not. A reader that lags by one lap finds entries of the other
//! phase, so it sees no completions until the NIC has written one more lap. Then it finds later completions in the
//! slots of earlier ones. Entries in memory ([`crate::entries`]) have this property without further code.

use crate::entries::CompletionEntry;
use efa_queue::rules;

/// The entries of such a queue, from the first unread completion on.
pub struct Lap {
    /// Number and content of the newest completion of each slot. The content is `None` if it was lost.
    places: Vec<Option<(u64, Option<CompletionEntry>)>>,
    written: u64,
    read: u64,
}

impl Lap {
    /// Creates an empty queue of `depth` entries, a power of two.
    pub fn new(depth: u32) -> Lap {
        Lap { places: vec![None; depth as usize], written: 0, read: 0 }
    }

    fn depth(&self) -> u32 {
        self.places.len() as u32
    }

    /// Writes a completion. `entry` is `None` if its content was lost.
    pub fn put(&mut self, entry: Option<CompletionEntry>) {
        let place = rules::slot(self.written, self.depth()) as usize;
        self.places[place] = Some((self.written, entry));
        self.written += 1;
    }

    /// Returns the next completion, if its slot has the phase that a reader expects.
    pub fn get(&mut self) -> Option<CompletionEntry> {
        let phase = |number| rules::completion_phase(number, self.depth());
        let (number, entry) = self.places[rules::slot(self.read, self.depth()) as usize]?;
        if number < self.read || phase(number) != phase(self.read) {
            return None;
        }
        self.read += u64::from(entry.is_some());
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_reader_finds_other_phase() {
        let entry = |wr_id| Some(CompletionEntry { wr_id, ..CompletionEntry::default() });
        let mut lap = Lap::new(4);
        let read = |lap: &mut Lap| std::iter::from_fn(|| lap.get()).map(|entry| entry.wr_id).collect::<Vec<_>>();
        (0..4).for_each(|number| lap.put(entry(number)));
        assert_eq!(read(&mut lap), [0, 1, 2, 3]);
        (4..10).for_each(|number| lap.put(entry(number)));
        assert_eq!(read(&mut lap), [], "two places are of the next lap");
        (10..13).for_each(|number| lap.put(entry(number)));
        assert_eq!(read(&mut lap), [12], "the place has come round, and the next one has not");
        lap.put(None);
        assert_eq!(read(&mut lap), [], "the content of a lost one is not known");
    }
}
