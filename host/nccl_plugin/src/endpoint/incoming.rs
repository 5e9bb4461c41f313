//! Receiving side: copies the bytes of written slots into memory.

use super::Endpoint;
use super::order::Order;
use super::signals::Counted;
use crate::coll::PluginRegion;
use crate::copies::CopyDirection;
use crate::counts::TraceEntry;
use crate::process::{locked, now_ns};
use crate::wire::{HEADER, SlotHeader, SlotKind, ZoneLayout};
use cuda_std::memory::load_acquire_host_u64;
use ginlab_fabric::Rail;
use std::collections::{HashMap, VecDeque};

/// A slot that has been written.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    pub from: usize,
    pub slot: usize,
    pub header: SlotHeader,
}

/// A slot whose bytes are in memory, or are being copied into memory.
pub(super) struct Ended {
    from: usize,
    slot: usize,
    note: Option<Note>,
    /// Number of the get, and number of bytes in this slot, if the slot is an answer.
    answer: Option<(u64, u64)>,
}

/// Report of a put that has arrived completely.
pub(super) struct Note {
    header: SlotHeader,
    /// Value that its signal's word has reached, if known; otherwise 0.
    reached: u64,
}

/// State of the slots received from one rank.
#[derive(Default)]
struct From {
    /// Number of writes of each slot.
    written: Vec<u64>,
    /// Number of missing parts, by operation with several parts.
    open: HashMap<u64, u32>,
}

/// State of the receiving side.
pub(super) struct Incoming {
    from: Vec<From>,
    /// Order of signals, by rank.
    pub order: Vec<Order>,
    pub arrivals: VecDeque<Arrival>,
    /// Slots for regions that are not registered on this rank yet.
    early: Vec<Arrival>,
    /// Slots that the next mark will cover.
    ended: Vec<Ended>,
    /// Slots whose copies are complete once the mark is passed.
    marked: VecDeque<(u64, Ended)>,
    /// Whether something has been copied in since the last mark.
    pub copied: bool,
    pub last_mark: u64,
    pub counted: Counted,
    /// Gets that wait for a mark.
    pub asked: VecDeque<(u64, Arrival)>,
}

impl Incoming {
    pub fn new(layout: ZoneLayout) -> Incoming {
        let from = || From { written: vec![0; layout.slots], ..From::default() };
        Incoming {
            from: (0..layout.ranks).map(|_| from()).collect(),
            order: (0..layout.ranks).map(|_| Order::default()).collect(),
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
            && self.order.iter().all(Order::is_quiet)
    }

    /// Returns descriptions of the waiting arrivals, for messages.
    pub fn state(&self) -> Vec<String> {
        let mut parts = Vec::new();
        if let Some(first) = self.early.first() {
            let (from, region) = (first.from, first.header.at.region);
            parts.push(format!(
                "{} slots wait, one of rank {from} for region {region}, which is not registered",
                self.early.len()
            ));
        }
        for (rank, order) in self.order.iter().enumerate() {
            order.state(rank, &mut parts);
        }
        if !self.marked.is_empty() {
            parts.push(format!("{} slots are being copied to the GPU", self.marked.len()));
        }
        parts
    }

    /// Marks a slot as finished. It may be returned after the copies started so far are complete.
    pub fn end(&mut self, from: usize, slot: usize) {
        self.ended.push(Ended { from, slot, note: None, answer: None });
    }

    /// Like [`end`](Incoming::end), for the last slot of an operation, which is then reported.
    pub fn end_all(&mut self, from: usize, slot: usize, header: SlotHeader, reached: u64) {
        self.ended.push(Ended { from, slot, note: Some(Note { header, reached }), answer: None });
    }
}

impl<R: Rail> Endpoint<R> {
    /// Detects which slots have been written.
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
                    return Err(format!("slot {slot} of rank {from} was written {times} times before it was returned"));
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
            .ok_or_else(|| format!("slot {slot} of rank {from} has no valid header"))?;
        self.inc.arrivals.push_back(Arrival { from, slot, header });
        Ok(())
    }

    /// Returns the address of a slot's bytes.
    pub(super) fn body(&self, arrival: &Arrival) -> u64 {
        self.head(arrival.from, arrival.slot) as u64 + HEADER as u64
    }

    /// Returns the address of the header of a slot that has arrived. Slots from this rank to itself are still in the
    /// outgoing zone.
    pub(super) fn head(&self, from: usize, slot: usize) -> *mut u8 {
        self.slot(from == self.coll.rank, from, slot)
    }

    /// Processes the slots that have arrived, in the order of their arrival. Returns whether there were any.
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
        loop {
            while let Some(arrival) = self.inc.arrivals.pop_front() {
                moved = true;
                self.take(arrival)?;
            }
            self.follow()?;
            if self.inc.arrivals.is_empty() {
                break;
            }
        }
        self.go_on_counting()?;
        self.go_on_answering()?;
        let mark = self.mark_in()?;
        for ended in std::mem::take(&mut self.inc.ended) {
            self.inc.marked.push_back((mark, ended));
        }
        Ok(moved)
    }

    /// Returns the region that is the source or destination of the bytes; `None` while it is not registered.
    pub(super) fn find(
        &self,
        arrival: &Arrival,
        number: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<PluginRegion>, String> {
        let what = || format!("{} B at {offset} of region {number}, from rank {}", bytes, arrival.from);
        match self.coll.region(number) {
            Some(region) if offset.checked_add(bytes).is_some_and(|end| end <= region.bytes) => Ok(Some(region)),
            Some(region) => Err(format!("{}: the region has {} B", what(), region.bytes)),
            None if self.coll.has_had(number) => Err(format!("{}: it is no longer registered", what())),
            None => Ok(None),
        }
    }

    /// Returns whether the region of a signal is not registered yet. A deregistered region is not an error, since its
    /// words are no longer read.
    fn signal_is_early(&self, arrival: &Arrival) -> Result<bool, String> {
        let at = arrival.header.then;
        Ok(!self.coll.has_had(at.region) && self.find(arrival, at.region, at.offset, 8)?.is_none())
    }

    fn take(&mut self, arrival: Arrival) -> Result<(), String> {
        let Arrival { from, slot, header } = arrival;
        if self.inc.order[from].hold(&arrival) {
            // The completed operations that must precede it are already in slots on this rank and will be detected
            // soon.
            return Ok(());
        }
        let bytes = if header.kind == SlotKind::Get { header.total } else { u64::from(header.bytes) };
        let mut region = None;
        if bytes > 0 {
            region = self.find(&arrival, header.at.region, header.at.offset, bytes)?;
            if region.is_none() {
                self.inc.early.push(arrival);
                return Ok(());
            }
        }
        if header.signals && self.signal_is_early(&arrival)? {
            self.inc.early.push(arrival);
            return Ok(());
        }
        if header.kind == SlotKind::Get {
            self.asked(arrival, region)?;
            self.inc.order[from].note(&header);
            return Ok(());
        }
        if let Some(region) = region {
            let (target, source) = (region.address + header.at.offset, self.body(&arrival));
            if region.cuda {
                // SAFETY: the destination is NCCL's memory, in a region that is registered. The slot is kept until a
                // later mark is passed, and its bytes start at a page boundary.
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
                // SAFETY: host memory of NCCL, in a region that is registered.
                unsafe { std::ptr::copy_nonoverlapping(source as *const u8, target as *mut u8, bytes as usize) };
            }
        }
        if header.kind == SlotKind::Answer {
            self.inc.ended.push(Ended { from, slot, note: None, answer: Some((header.get, bytes)) });
        }
        if header.parts > 1 {
            let left = self.inc.from[from].open.entry(header.number).or_insert(header.parts);
            *left = left.saturating_sub(1);
            if *left > 0 {
                if header.kind != SlotKind::Answer {
                    self.inc.end(from, slot);
                }
                return Ok(());
            }
            self.inc.from[from].open.remove(&header.number);
        }
        // All parts have arrived. They are in memory or being copied into it, in the order of one stream.
        if header.kind == SlotKind::Put && header.signals {
            return self.signal_arrives(arrival);
        }
        if header.kind == SlotKind::Put {
            self.inc.end_all(from, slot, header, 0);
        }
        self.inc.order[from].note(&header);
        Ok(())
    }

    /// Returns slots whose copies are complete, and reports their operations. Returns whether there were any.
    pub(super) fn copied_in(&mut self) -> Result<bool, String> {
        if self.inc.marked.is_empty() {
            return Ok(false);
        }
        let passed = self.copies.passed(CopyDirection::In)?;
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

    fn tell(&self, from: usize, header: &SlotHeader, reached: u64, now: u64) {
        let mut counts = locked(&self.coll.counts);
        counts.arrived(from, header.total, header.signals.then_some(header.add), now.saturating_sub(header.at_ns));
        if counts.traces() {
            counts.note(TraceEntry {
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
