//! From slots that have been written to memory.

use super::Endpoint;
use super::signals::{Counted, Waiting};
use super::through::Through;
use crate::coll::Region;
use crate::copies::Queue;
use crate::counts::Entry;
use crate::process::{locked, now_ns};
use crate::wire::{HEADER, Header, Kind, Layout};
use cuda_std::memory::load_acquire_host_u64;
use ginlab_fabric::Rail;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A slot that has been written.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub from: usize,
    pub slot: usize,
    pub header: Header,
}

/// A slot whose bytes are on their way into memory, or there.
pub(super) struct Ended {
    from: usize,
    slot: usize,
    note: Option<Note>,
    /// A get's number and bytes of its answer.
    answer: Option<(u64, u64)>,
}

/// What is told of an operation that is here in full.
pub(super) struct Note {
    header: Header,
    /// What its signal's word has reached, where it is known.
    reached: u64,
}

/// What has come from one rank.
#[derive(Default)]
struct From {
    /// How often each slot has been written.
    written: Vec<u64>,
    /// Parts that are missing, by operation of several.
    open: HashMap<u64, u32>,
    /// Operations that are here.
    here: Through,
    /// Those that must wait for some that were complete before them.
    held: Vec<Arrival>,
    /// Strong signals that wait for operations before theirs.
    strong: BTreeMap<u64, Arrival>,
}

/// See the module.
pub(super) struct Incoming {
    from: Vec<From>,
    arrivals: VecDeque<Arrival>,
    /// For regions that are not registered here yet.
    early: Vec<Arrival>,
    /// To be marked.
    ended: Vec<Ended>,
    /// Behind a mark.
    marked: VecDeque<(u64, Ended)>,
    /// Something has been copied in since the last mark.
    pub copied: bool,
    pub last_mark: u64,
    pub counted: Counted,
    /// Gets that wait, by mark.
    pub asked: VecDeque<(u64, Arrival)>,
}

impl Incoming {
    pub fn new(layout: Layout) -> Incoming {
        let from = || From { written: vec![0; layout.slots], ..From::default() };
        Incoming {
            from: (0..layout.ranks).map(|_| from()).collect(),
            arrivals: VecDeque::new(),
            early: Vec::new(),
            ended: Vec::new(),
            marked: VecDeque::new(),
            copied: false,
            last_mark: 0,
            counted: Counted::default(),
            asked: VecDeque::new(),
        }
    }

    pub fn is_quiet(&self) -> bool {
        self.arrivals.is_empty()
            && self.early.is_empty()
            && self.ended.is_empty()
            && self.marked.is_empty()
            && self.asked.is_empty()
            && self.counted.is_quiet()
            && self.from.iter().all(|from| from.strong.is_empty() && from.held.is_empty())
    }

    /// What waits, for messages.
    pub fn state(&self) -> Vec<String> {
        let mut parts = Vec::new();
        if let Some(first) = self.early.first() {
            let (from, region) = (first.from, first.header.at.region);
            parts.push(format!(
                "{} slots wait, one of rank {from} for region {region}, which is not registered here",
                self.early.len()
            ));
        }
        for (rank, from) in self.from.iter().enumerate() {
            if !from.strong.is_empty() {
                let (count, next) = (from.strong.len(), from.here.through + 1);
                parts.push(format!("{count} strong signals of rank {rank} wait for its operation {next}"));
            }
            if !from.held.is_empty() {
                parts.push(format!("{} slots of rank {rank} wait for earlier ones", from.held.len()));
            }
        }
        if !self.marked.is_empty() {
            parts.push(format!("{} slots are being copied to the GPU", self.marked.len()));
        }
        parts
    }

    /// The next ones may be given back once what has been started is copied.
    pub fn end(&mut self, from: usize, slot: usize) {
        self.ended.push(Ended { from, slot, note: None, answer: None });
    }

    /// The same, of an operation's last slot.
    pub fn end_all(&mut self, from: usize, slot: usize, header: Header, reached: u64) {
        self.ended.push(Ended { from, slot, note: Some(Note { header, reached }), answer: None });
    }
}

impl<R: Rail> Endpoint<R> {
    /// Looks which slots have been written.
    pub(super) fn slots_written(&mut self) -> Result<(), String> {
        for from in 0..self.layout.ranks {
            for slot in 0..self.layout.slots {
                let value = load_acquire_host_u64(&self.words[self.layout.name(from, slot) as usize]);
                let written = &mut self.inc.from[from].written[slot];
                if value == *written {
                    continue;
                }
                let times = value.wrapping_sub(*written);
                *written = value;
                if times != 1 {
                    return Err(format!(
                        "slot {slot} of rank {from} was written {times} times before it was given back"
                    ));
                }
                self.arrive(false, from, slot)?;
            }
        }
        Ok(())
    }

    fn arrive(&mut self, outgoing: bool, from: usize, slot: usize) -> Result<(), String> {
        let header = self
            .header(outgoing, from, slot)
            .filter(|header| header.bytes as usize <= self.layout.room && header.parts > 0)
            .ok_or_else(|| format!("slot {slot} of rank {from} holds no header"))?;
        self.inc.arrivals.push_back(Arrival { from, slot, header });
        Ok(())
    }

    /// Where the bytes of a slot are.
    pub(super) fn body(&self, arrival: &Arrival) -> u64 {
        self.head(arrival.from, arrival.slot) as u64 + HEADER as u64
    }

    /// The header of a slot that has come; those for ourselves have not moved.
    pub(super) fn head(&self, from: usize, slot: usize) -> *mut u8 {
        self.slot(from == self.coll.rank, from, slot)
    }

    /// Takes what has come, in the order of its coming.
    pub(super) fn handle(&mut self) -> Result<bool, String> {
        for slot in std::mem::take(&mut self.out.own) {
            self.arrive(true, self.coll.rank, slot)?;
        }
        if !self.inc.early.is_empty() {
            let early = std::mem::take(&mut self.inc.early);
            for arrival in early {
                self.take(arrival)?;
            }
        }
        let mut moved = false;
        while let Some(arrival) = self.inc.arrivals.pop_front() {
            moved = true;
            self.take(arrival)?;
        }
        self.go_on_counting()?;
        self.go_on_answering()?;
        let mark = self.mark_in()?;
        for ended in std::mem::take(&mut self.inc.ended) {
            self.inc.marked.push_back((mark, ended));
        }
        Ok(moved)
    }

    /// The region that bytes go to or come from; `None` while it is not registered.
    pub(super) fn find(
        &self,
        arrival: &Arrival,
        number: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<Region>, String> {
        let what = || format!("{} B at {offset} of region {number}, from rank {}", bytes, arrival.from);
        match self.coll.region(number) {
            Some(region) if offset.checked_add(bytes).is_some_and(|end| end <= region.bytes) => Ok(Some(region)),
            Some(region) => Err(format!("{}: the region has {} B here", what(), region.bytes)),
            None if self.coll.has_had(number) => Err(format!("{}: it is not registered any more", what())),
            None => Ok(None),
        }
    }

    fn take(&mut self, arrival: Arrival) -> Result<(), String> {
        let Arrival { from, slot, header } = arrival;
        if !self.inc.from[from].here.covers((header.behind, header.among)) {
            // What was complete there is in a slot here, and about to be seen.
            self.inc.from[from].held.push(arrival);
            return Ok(());
        }
        let bytes = if header.kind == Kind::Get { header.total } else { u64::from(header.bytes) };
        let mut region = None;
        if bytes > 0 {
            region = self.find(&arrival, header.at.region, header.at.offset, bytes)?;
            if region.is_none() {
                self.inc.early.push(arrival);
                return Ok(());
            }
        }
        if header.signals && self.find(&arrival, header.then.region, header.then.offset, 8)?.is_none() {
            self.inc.early.push(arrival);
            return Ok(());
        }
        if header.kind == Kind::Get {
            self.asked(arrival, region)?;
            return self.operation_is_here(from, header.number);
        }
        if let Some(region) = region {
            let (target, source) = (region.address + header.at.offset, self.body(&arrival));
            if region.cuda {
                // SAFETY: NCCL's memory, inside a region that is registered; the slot is kept until a mark behind this. Its bytes begin on a page.
                let put = unsafe {
                    if bytes == 8 && target.is_multiple_of(8) {
                        let word = source as *mut u64;
                        self.copies.put_word(target, word, word.read())
                    } else {
                        self.copies.put_in(target, source, bytes as usize)
                    }
                };
                put.map_err(|why| format!("writing {bytes} B from rank {from}: {why}"))?;
                self.inc.copied = true;
            } else {
                // SAFETY: as above, of the host's memory.
                unsafe { std::ptr::copy_nonoverlapping(source as *const u8, target as *mut u8, bytes as usize) };
            }
        }
        if header.kind == Kind::Answer {
            self.inc.ended.push(Ended { from, slot, note: None, answer: Some((header.get, bytes)) });
        }
        if header.parts > 1 {
            let left = self.inc.from[from].open.entry(header.number).or_insert(header.parts);
            *left = left.saturating_sub(1);
            if *left > 0 {
                if header.kind != Kind::Answer {
                    self.inc.end(from, slot);
                }
                return Ok(());
            }
            self.inc.from[from].open.remove(&header.number);
        }
        // All of it is here, or on its way into memory in the order of one stream.
        if header.kind == Kind::Put {
            if header.signals && header.strong && self.inc.from[from].here.through + 1 < header.number {
                self.inc.from[from].strong.insert(header.number, arrival);
            } else {
                self.end_put(arrival)?;
            }
        }
        self.operation_is_here(from, header.number)
    }

    /// A put has no more to wait for: its signal is counted, if it has one.
    fn end_put(&mut self, arrival: Arrival) -> Result<(), String> {
        let Arrival { from, slot, header } = arrival;
        if header.signals {
            return self.count(Waiting { from, slot, header });
        }
        self.inc.end_all(from, slot, header, 0);
        Ok(())
    }

    /// Notes it, and lets strong signals go that have waited for it.
    fn operation_is_here(&mut self, from: usize, number: u64) -> Result<(), String> {
        let state = &mut self.inc.from[from];
        state.here.note(number);
        if !state.held.is_empty() {
            let From { held, here, .. } = state;
            let covered = |held: &Arrival| here.covers((held.header.behind, held.header.among));
            let (go, stay): (Vec<Arrival>, _) = held.drain(..).partition(covered);
            *held = stay;
            self.inc.arrivals.extend(go);
        }
        // One that waits is here itself: all before it must be.
        while let Some(first) = self.inc.from[from].strong.first_entry()
            && first.get().header.number <= self.inc.from[from].here.through + 1
        {
            let Some((_, arrival)) = self.inc.from[from].strong.pop_first() else { break };
            self.end_put(arrival)?;
        }
        Ok(())
    }

    /// Slots whose copies are through go back; what was waited for is told.
    pub(super) fn copied_in(&mut self) -> Result<bool, String> {
        if self.inc.marked.is_empty() {
            return Ok(false);
        }
        let passed = self.copies.passed(Queue::In)?;
        let mut moved = false;
        let mut now = 0;
        while self.inc.marked.front().is_some_and(|(mark, _)| *mark <= passed)
            && let Some((_, ended)) = self.inc.marked.pop_front()
        {
            moved = true;
            let Ended { from, slot, note, answer } = ended;
            if let Some((get, bytes)) = answer
                && let Some(wanted) = self.out.answered(get, bytes)
            {
                if let Some(entry) = wanted.complete() {
                    locked(&self.coll.counts).note(entry);
                }
                self.readers.note(true);
            }
            if let Some(Note { header, reached }) = note {
                if now == 0 {
                    now = now_ns();
                }
                self.tell(from, &header, reached, now);
            }
            if from == self.coll.rank {
                self.out.own_is_done(from, slot);
            } else {
                self.out.give_back(from, slot);
            }
        }
        Ok(moved)
    }

    fn tell(&self, from: usize, header: &Header, reached: u64, now: u64) {
        let mut counts = locked(&self.coll.counts);
        counts.arrived(from, header.total, header.signals.then_some(header.add), now.saturating_sub(header.at_ns));
        if counts.traces() {
            counts.note(Entry {
                kind: "arrival",
                peer: from,
                number: header.number,
                context: header.context,
                bytes: header.total,
                asked_ns: header.at_ns,
                done_ns: now,
                signal: header.signals.then_some((header.then.region, header.then.offset, reached)),
                add: header.add,
            });
        }
    }
}
