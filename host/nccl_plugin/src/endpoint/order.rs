//! The order in which signals become visible.
//!
//! Signals of a context and peer become visible one after another, each after all earlier puts and signals of that
//! context and peer. The *turn* of a put is its number among the puts of a context to a peer. A signal is *started*
//! when every operation of an earlier turn has been applied, or has been started and precedes it in a queue that keeps
//! their order:
//!
//! ```text
//! word                                queue of its signals                     applied
//! only the plugin writes it           none: written to the stream of copies    immediately
//! a program may reset it              words to read first                      when written to the stream of copies
//! in host memory                      after marks of the stream of copies      when written
//! ```
//!
//! While a signal of a context is in one of the queues, later ones of that context join the same queue or wait.
//!
//! A completed operation has arrived, in any context. Signals and gets that the peer sends afterwards wait until the
//! operation has been applied. Bytes that it sends afterwards wait until the operation's bytes precede them in the
//! stream. Each header lists the operations that were complete when the slot was filled.

use super::Endpoint;
use super::incoming::Arrival;
use super::through::Through;
use crate::wire::{SlotHeader, SlotKind};
use ginlab_fabric::Rail;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Kind of the word to which a signal adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A word in GPU memory that only the plugin writes.
    Counted,
    /// A word in GPU memory that a program may reset.
    Read,
    /// A word in host memory. The value indicates that copies into GPU memory that precede the signal are in flight.
    Host(bool),
}

/// A queue of started signals that are not written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Signals whose words are read first.
    Read,
    /// Signals in host memory, which wait for preceding copies into GPU memory.
    Host,
}

/// Signals of one context.
#[derive(Default)]
struct ContextSignals {
    /// Turns that have been applied or started.
    started: Through,
    /// Signals that have arrived and must wait, by turn.
    waiting: BTreeMap<u64, Arrival>,
    /// Queue of the started signals, and their number; `None` if no started signal is queued.
    line: Option<(Line, u32)>,
}

/// Operations of one peer.
#[derive(Default)]
pub(super) struct Order {
    /// Operations whose bytes are in memory or in the stream, by number.
    bytes: Through,
    /// Operations that have been applied, including their signals, by number.
    here: Through,
    /// Signals by context.
    courses: HashMap<u16, ContextSignals>,
    /// Contexts with waiting signals.
    stopped: BTreeSet<u16>,
    /// Slots that wait for completed operations.
    held: Vec<Arrival>,
    /// Whether an operation has been applied since `follow` last ran.
    news: bool,
}

impl Order {
    /// Returns whether nothing waits.
    pub fn is_quiet(&self) -> bool {
        self.stopped.is_empty() && self.held.is_empty()
    }

    /// Appends descriptions of the arrivals from `rank` that wait, for messages.
    pub fn state(&self, rank: usize, parts: &mut Vec<String>) {
        if let Some((context, course)) = self.stopped.iter().find_map(|one| Some((one, self.courses.get(one)?))) {
            let count: usize = self.courses.values().map(|course| course.waiting.len()).sum();
            let next = course.started.through + 1;
            parts.push(format!("{count} signals of rank {rank} wait, one of context {context} for put {next} of it"));
        }
        if !self.held.is_empty() {
            parts.push(format!("{} slots of rank {rank} wait for earlier ones", self.held.len()));
        }
    }

    /// Returns whether the completed operations that a slot lists have arrived.
    fn may_land(&self, header: &SlotHeader) -> bool {
        // A get can also read words of signals, so these must have been applied.
        let landed = if header.kind == SlotKind::Get { &self.here } else { &self.bytes };
        landed.covers((header.behind, header.among))
    }

    /// Keeps a slot that must wait for completed operations. Returns whether it must.
    pub fn hold(&mut self, arrival: &Arrival) -> bool {
        let waits = !self.may_land(&arrival.header);
        if waits {
            self.held.push(*arrival);
        }
        waits
    }

    /// Records an operation without a signal whose bytes are in memory or in the stream.
    pub fn note(&mut self, header: &SlotHeader) {
        self.bytes.note(header.number);
        if header.kind == SlotKind::Put {
            self.courses.entry(header.context).or_default().started.note(header.turn);
        }
        self.is_here(header.number);
    }

    fn is_here(&mut self, number: u64) {
        self.here.note(number);
        self.news = true;
    }

    /// Returns the queue that a signal joins: `Some(None)` if it is written immediately, `None` if it must not start
    /// yet.
    fn line(&self, header: &SlotHeader, word: Word) -> Option<Option<Line>> {
        let course = self.courses.get(&header.context);
        let started = course.map_or(0, |course| course.started.through);
        if started + 1 < header.turn || !self.here.covers((header.behind, header.among)) {
            return None;
        }
        match (course.and_then(|course| course.line), word) {
            (None, Word::Counted | Word::Host(false)) => Some(None),
            (None, Word::Read) | (Some((Line::Read, _)), Word::Counted | Word::Read) => Some(Some(Line::Read)),
            (None, Word::Host(true)) | (Some((Line::Host, _)), Word::Host(_)) => Some(Some(Line::Host)),
            (Some((Line::Read, _)), Word::Host(_)) | (Some((Line::Host, _)), Word::Counted | Word::Read) => None,
        }
    }

    /// Records that a signal has joined a queue.
    fn joins(&mut self, header: &SlotHeader, line: Line) {
        let course = self.courses.entry(header.context).or_default();
        course.started.note(header.turn);
        course.line = Some((line, course.line.map_or(0, |(_, count)| count) + 1));
    }

    /// Records that a queued signal has been written.
    pub fn written(&mut self, header: &SlotHeader) {
        if let Some(course) = self.courses.get_mut(&header.context) {
            course.line = course.line.and_then(|(line, count)| (count > 1).then_some((line, count - 1)));
        }
        self.is_here(header.number);
    }
}

impl<R: Rail> Endpoint<R> {
    /// Starts the signal of a put whose bytes have arrived, or keeps it until it may start.
    pub(super) fn signal_arrives(&mut self, arrival: Arrival) -> Result<(), String> {
        let Arrival { from, header, .. } = arrival;
        let order = &mut self.inc.order[from];
        order.bytes.note(header.number);
        order.news |= !order.held.is_empty();
        if self.start(arrival)? {
            return Ok(());
        }
        let order = &mut self.inc.order[from];
        order.courses.entry(header.context).or_default().waiting.insert(header.turn, arrival);
        order.stopped.insert(header.context);
        Ok(())
    }

    /// Starts a signal. Returns `false` if it must wait.
    fn start(&mut self, arrival: Arrival) -> Result<bool, String> {
        let Arrival { from, header, .. } = arrival;
        let word = self.word_of(&header)?;
        let Some(line) = self.inc.order[from].line(&header, word) else { return Ok(false) };
        match line {
            None => {
                self.count(&arrival)?;
                let order = &mut self.inc.order[from];
                order.courses.entry(header.context).or_default().started.note(header.turn);
                order.is_here(header.number);
            }
            Some(line) => {
                self.inc.order[from].joins(&header, line);
                self.join(line, arrival)?;
            }
        }
        Ok(true)
    }

    /// Releases slots and signals that were waiting for operations that have now been applied.
    pub(super) fn follow(&mut self) -> Result<(), String> {
        for from in 0..self.inc.order.len() {
            while std::mem::take(&mut self.inc.order[from].news) {
                let order = &mut self.inc.order[from];
                if !order.held.is_empty() {
                    let held = std::mem::take(&mut order.held);
                    let (go, stay) = held.into_iter().partition(|held| order.may_land(&held.header));
                    order.held = stay;
                    self.inc.arrivals.extend::<Vec<Arrival>>(go);
                }
                for context in self.inc.order[from].stopped.iter().copied().collect::<Vec<_>>() {
                    self.start_waiting(from, context)?;
                }
            }
        }
        Ok(())
    }

    fn start_waiting(&mut self, from: usize, context: u16) -> Result<(), String> {
        loop {
            let course = self.inc.order[from].courses.get(&context);
            let Some((turn, first)) = course.and_then(|course| course.waiting.first_key_value()) else { break };
            let (turn, first) = (*turn, *first);
            if !self.start(first)? {
                return Ok(());
            }
            if let Some(course) = self.inc.order[from].courses.get_mut(&context) {
                course.waiting.remove(&turn);
            }
        }
        self.inc.order[from].stopped.remove(&context);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::RemoteLocation;

    /// Returns a slot that was filled after operation 1 was complete at the sender.
    fn after_first(kind: SlotKind) -> Arrival {
        let header = SlotHeader {
            kind,
            signals: false,
            context: 0,
            bytes: 8,
            number: 2,
            turn: u64::from(kind == SlotKind::Put),
            parts: 1,
            at: RemoteLocation::default(),
            then: RemoteLocation::default(),
            add: 0,
            total: 8,
            get: 0,
            at_ns: 0,
            behind: 1,
            among: 0,
        };
        Arrival { from: 0, slot: 0, header }
    }

    #[test]
    fn slot_waits_for_completed_operations() {
        for kind in [SlotKind::Put, SlotKind::Answer, SlotKind::Get] {
            let (mut order, arrival) = (Order::default(), after_first(kind));
            assert!(order.hold(&arrival) && !order.is_quiet(), "{kind:?}");
            // A get also reads words of signals.
            order.bytes.note(1);
            assert_eq!(order.may_land(&arrival.header), kind != SlotKind::Get, "{kind:?}");
            order.is_here(1);
            assert!(order.may_land(&arrival.header), "{kind:?}");
        }
    }
}
