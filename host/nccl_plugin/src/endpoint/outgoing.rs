//! From operations to slots on the rails.

use super::through::Through;
use super::{Driven, Endpoint, LANDING, OUTGOING};
use crate::copies::Queue;
use crate::counts::Entry;
use crate::operation::{Operation, Request, Source, What};
use crate::process::{locked, now_ns};
use crate::settings::Fault;
use crate::wire::{Layout, NAMES};
use cuda_std::memory::load_acquire_host_u64;
use ginlab_fabric::Rail;
use kernels::command::{Command, Opcode, signal_immediate};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Bytes that are taken for one peer before those that are ready are posted: the first of a long put shall not wait for its last.
const FILL_AT_ONCE: usize = 128 << 10;

/// An operation whose slots are being filled.
pub(super) struct Sending {
    pub operation: Operation,
    pub number: u64,
    pub parts: u32,
    pub next: u32,
}

/// What is read again when its write is complete: see `checking`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    pub source: Source,
    /// Of the bytes that go out.
    pub sum: u32,
}

/// A slot that is on its way, and who is told when it has gone.
pub(super) struct Part {
    pub peer: usize,
    pub slot: usize,
    pub bytes: usize,
    /// The operation that it is the last part of: parts go in their order.
    pub ends: Option<u64>,
    pub request: Option<Arc<Request>>,
    pub note: Option<Box<Entry>>,
    pub watched: Option<Watched>,
}

/// A slot of ours at a peer.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Its write is complete here.
    gone: bool,
    /// The peer is done with it.
    returned: bool,
}

/// One peer.
pub(super) struct Peer {
    pub queue: VecDeque<Sending>,
    free: VecDeque<usize>,
    slots: Vec<Slot>,
    /// How often each has been given back.
    returns: Vec<u64>,
    operations: u64,
    /// Those that are complete.
    pub complete: Through,
}

/// A get that has not been answered in full.
pub(super) struct Wanted {
    pub request: Arc<Request>,
    pub left: u64,
    pub note: Option<Box<Entry>>,
    pub peer: usize,
}

/// See the module.
pub(super) struct Outgoing {
    pub peers: Vec<Peer>,
    /// Slots whose bytes come out of a GPU, by mark.
    pub copying: VecDeque<(u64, Part)>,
    /// Slots that are filled.
    pub ready: VecDeque<Part>,
    /// Slots of peers that we are done with.
    returning: VecDeque<(usize, usize)>,
    /// By ticket.
    flights: VecDeque<(u64, Part)>,
    pub gets: HashMap<u64, Wanted>,
    pub last_get: u64,
    /// Slots for this rank itself.
    pub own: Vec<usize>,
    /// Whether a slot that is free again is used last. Of one that threads have copied just now their cores' caches have lines still, which a GPU that
    /// writes it waits for. Where the thread that posts copies itself it is used next: its bytes are in the cache of that one core.
    rotates: bool,
}

impl Outgoing {
    pub fn new(layout: Layout, rotates: bool) -> Outgoing {
        let peer = || Peer {
            queue: VecDeque::new(),
            free: (0..layout.slots).collect(),
            slots: vec![Slot::default(); layout.slots],
            returns: vec![0; layout.slots],
            operations: 0,
            complete: Through::default(),
        };
        Outgoing {
            peers: (0..layout.ranks).map(|_| peer()).collect(),
            copying: VecDeque::new(),
            ready: VecDeque::new(),
            returning: VecDeque::new(),
            flights: VecDeque::new(),
            gets: HashMap::new(),
            last_get: 0,
            own: Vec::new(),
            rotates,
        }
    }

    pub fn is_quiet(&self) -> bool {
        self.copying.is_empty()
            && self.ready.is_empty()
            && self.returning.is_empty()
            && self.flights.is_empty()
            && self.gets.is_empty()
            && self.peers.iter().all(|peer| peer.queue.is_empty())
    }

    /// What waits, for messages.
    pub fn state(&self) -> Vec<String> {
        let mut parts = Vec::new();
        for (rank, peer) in self.peers.iter().enumerate() {
            let gone = peer.slots.len() - peer.free.len();
            if !peer.queue.is_empty() {
                parts.push(format!(
                    "{} operations to rank {rank} wait for a slot there ({gone} are in use)",
                    peer.queue.len()
                ));
            } else if gone > 0 {
                parts.push(format!("{gone} slots are with rank {rank}"));
            }
        }
        if let Some(first) = self.gets.values().next() {
            parts.push(format!("{} gets wait, one for {} B of rank {}", self.gets.len(), first.left, first.peer));
        }
        parts
    }

    /// We are done with a peer's slot.
    pub fn give_back(&mut self, peer: usize, slot: usize) {
        self.returning.push_back((peer, slot));
    }

    /// Bytes of an answer are in memory; at the last, the get is complete.
    pub fn answered(&mut self, get: u64, bytes: u64) -> Option<Wanted> {
        let wanted = self.gets.get_mut(&get)?;
        wanted.left = wanted.left.saturating_sub(bytes);
        if wanted.left == 0 { self.gets.remove(&get) } else { None }
    }

    fn free(&mut self, peer: usize, slot: usize, change: impl FnOnce(&mut Slot)) {
        let Some(of) = self.peers.get_mut(peer) else { return };
        let state = &mut of.slots[slot];
        change(state);
        if state.gone && state.returned {
            *state = Slot::default();
            if self.rotates {
                of.free.push_back(slot);
            } else {
                of.free.push_front(slot);
            }
        }
    }

    /// This rank is done with a slot for itself.
    pub fn own_is_done(&mut self, me: usize, slot: usize) {
        self.free(me, slot, |slot| (slot.gone, slot.returned) = (true, true));
    }
}

impl Wanted {
    /// Its bytes are where they were wanted.
    pub fn complete(self) -> Option<Entry> {
        self.request.part_is_done();
        self.note.map(|mut note| {
            note.done_ns = now_ns();
            *note
        })
    }
}

impl<R: Rail> Endpoint<R> {
    /// Takes what NCCL has asked for.
    pub(super) fn accept(&mut self) -> Result<bool, String> {
        let mut fresh = std::mem::take(&mut self.fresh);
        self.coll.take(&mut fresh);
        self.read_queues(&mut fresh)?;
        self.hold_back(&mut fresh);
        let any = !fresh.is_empty();
        if any && self.is_quiet() {
            // What was idle for long is not stalled.
            self.clock.moved();
        }
        for operation in fresh.drain(..) {
            match self.fault() {
                Some(Fault::Error(number)) => {
                    return Err(format!("injected fault: operation {number}, to rank {}", operation.peer));
                }
                Some(Fault::Lost(_)) => continue,
                Some(Fault::Dead(_)) => {
                    self.dead = true;
                    break;
                }
                Some(Fault::Slow(_)) | None => {}
            }
            {
                let mut counts = locked(&self.coll.counts);
                match &operation.what {
                    What::Put { bytes, signal, .. } => {
                        counts.put(operation.peer, *bytes, signal.map(|signal| signal.add));
                    }
                    What::Get { bytes, .. } => counts.get(operation.peer, *bytes),
                    What::Answer { .. } => {}
                }
            }
            self.enqueue(operation);
        }
        self.fresh = fresh;
        Ok(any)
    }

    /// Puts it behind the others to that peer.
    pub(super) fn enqueue(&mut self, operation: Operation) {
        let room = self.layout.room as u64;
        let parts = match operation.what {
            What::Put { bytes, .. } | What::Answer { bytes, .. } => bytes.div_ceil(room).max(1) as u32,
            What::Get { .. } => 1,
        };
        if let Some(peer) = self.out.peers.get_mut(operation.peer) {
            peer.operations += 1;
            peer.queue.push_back(Sending { number: peer.operations, operation, parts, next: 0 });
        }
    }

    /// Fills slots that are free.
    pub(super) fn fill(&mut self) -> Result<bool, String> {
        let mut moved = false;
        for peer in 0..self.layout.ranks {
            let mut filled = 0;
            while filled < FILL_AT_ONCE
                && !self.out.peers[peer].queue.is_empty()
                && let Some(slot) = self.out.peers[peer].free.pop_front()
            {
                filled += self.fill_slot(peer, slot)?.max(1 << 10);
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Slots whose bytes have come out of the GPU.
    pub(super) fn copied_out(&mut self) -> Result<bool, String> {
        if self.out.copying.is_empty() {
            return Ok(false);
        }
        let passed = self.copies.passed(Queue::Out)?;
        let mut moved = false;
        while self.out.copying.front().is_some_and(|(mark, _)| *mark <= passed)
            && let Some((_, part)) = self.out.copying.pop_front()
        {
            self.out.ready.push_back(part);
            moved = true;
        }
        Ok(moved)
    }

    /// Hands slots to the engine as far as it has room: first those that go back.
    pub(super) fn post(&mut self) -> Result<(), String> {
        let me = self.coll.rank;
        while self.engine.room() > 0
            && let Some((peer, slot)) = self.out.returning.pop_front()
        {
            let immediate = signal_immediate(NAMES as u32 + self.layout.name(me, slot), 1);
            let command = Command { peer: peer as u32, immediate, ..command(Opcode::Signal) };
            self.engine.submit(&command).map_err(|error| error.to_string())?;
        }
        while self.engine.room() > 0
            && let Some(part) = self.out.ready.pop_front()
        {
            if part.peer == me {
                // Its bytes stay where they are.
                self.out.own.push(part.slot);
                self.finish(part);
                continue;
            }
            let mut part = part;
            if let Some(mut watched) = part.watched {
                watched.sum = self.sum_of(&part);
                part.watched = Some(watched);
            }
            let command = Command {
                source_region: OUTGOING,
                source_offset: self.layout.header(part.peer, part.slot) as u64,
                destination_region: LANDING,
                destination_offset: self.layout.header(me, part.slot) as u64,
                bytes: part.bytes as u64,
                peer: part.peer as u32,
                immediate: signal_immediate(self.layout.name(me, part.slot), 1),
                ..command(Opcode::PutSignal)
            };
            let ticket = self.engine.submit(&command).map_err(|error| error.to_string())?;
            self.out.flights.push_back((ticket, part));
        }
        Ok(())
    }

    /// Looks which slots of ours have been given back.
    pub(super) fn slots_returned(&mut self) {
        for peer in 0..self.layout.ranks {
            for slot in 0..self.layout.slots {
                let word = &self.words[NAMES + self.layout.name(peer, slot) as usize];
                let value = load_acquire_host_u64(word);
                if value != self.out.peers[peer].returns[slot] {
                    self.out.peers[peer].returns[slot] = value;
                    self.out.free(peer, slot, |slot| slot.returned = true);
                }
            }
        }
    }

    /// Writes that are complete.
    pub(super) fn complete(&mut self) -> Result<bool, String> {
        let watermark = self.engine.watermark();
        let mut moved = false;
        while self.out.flights.front().is_some_and(|(ticket, _)| *ticket < watermark)
            && let Some((_, part)) = self.out.flights.pop_front()
        {
            moved = true;
            if let Some(part) = self.watch_again(part)? {
                self.gone(part);
            }
        }
        Ok(moved)
    }

    /// A slot's write is complete.
    pub(super) fn gone(&mut self, part: Part) {
        self.out.free(part.peer, part.slot, |slot| slot.gone = true);
        self.finish(part);
    }

    /// The part has gone: who asked for it may use its source again.
    fn finish(&mut self, part: Part) {
        if let Some(mut note) = part.note {
            note.done_ns = now_ns();
            locked(&self.coll.counts).note(*note);
        }
        if let Some(number) = part.ends
            && let Some(peer) = self.out.peers.get_mut(part.peer)
        {
            peer.complete.note(number);
        }
        if let Some(request) = part.request {
            request.part_is_done();
            self.readers.note(false);
        }
    }
}

/// A command that names nothing yet.
fn command(opcode: Opcode) -> Command {
    Command {
        opcode,
        source_region: 0,
        source_offset: 0,
        destination_region: 0,
        destination_offset: 0,
        bytes: 0,
        peer: 0,
        immediate: 0,
    }
}
