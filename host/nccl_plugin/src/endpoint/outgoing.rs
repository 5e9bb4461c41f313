//! Sending side: converts operations to slots and posts them to the rails.

use super::through::Through;
use super::{Endpoint, LANDING, OUTGOING};
use crate::copies::CopyDirection;
use crate::counts::TraceEntry;
use crate::operation::{Request, Source, SubmittedOperation, What};
use crate::process::{locked, now_ns};
use crate::settings::PluginFault;
use crate::wire::{NAMES, ZoneLayout};
use cuda_std::memory::load_acquire_host_u64;
use ginlab_fabric::Rail;
use kernels::command::{Command, signal_immediate};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Number of bytes after which filling for one peer pauses until filled slots are posted. The first bytes of a long put
/// then need not wait for its last bytes.
const FILL_AT_ONCE: usize = 128 << 10;

/// An operation whose slots are being filled.
pub(super) struct Sending {
    pub operation: SubmittedOperation,
    pub number: u64,
    /// Number of the put among those of its context to this peer, from 1. Gets and answers have the number 0.
    pub turn: u64,
    pub parts: u32,
    pub next: u32,
}

/// A source that is read again after the part's write is complete (`checking`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Watched {
    pub source: Source,
    /// Checksum of the bytes that were sent.
    pub sum: u32,
}

/// A filled slot, and the state to update when its write is complete.
pub(super) struct Part {
    pub peer: usize,
    pub slot: usize,
    pub bytes: usize,
    /// Number of the operation, if this is its last part. Parts are sent in order.
    pub ends: Option<u64>,
    pub request: Option<Arc<Request>>,
    pub note: Option<Box<TraceEntry>>,
    pub watched: Option<Watched>,
}

/// State of an outgoing slot in use.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Whether the write is complete on this rank.
    gone: bool,
    /// Whether the peer has returned the slot.
    returned: bool,
}

/// State of the sending side for one peer.
pub(super) struct Peer {
    pub queue: VecDeque<Sending>,
    free: VecDeque<usize>,
    slots: Vec<Slot>,
    /// Number of times that each slot has been returned.
    returns: Vec<u64>,
    operations: u64,
    /// Number of puts, by context.
    turns: HashMap<u16, u64>,
    /// Operations that are complete.
    pub complete: Through,
}

impl Peer {
    /// Returns whether the peer has returned this slot.
    pub fn has_returned(&self, slot: usize) -> bool {
        self.slots[slot].returned
    }
}

/// A get that has not been answered completely.
pub(super) struct PendingGet {
    pub request: Arc<Request>,
    pub left: u64,
    pub note: Option<Box<TraceEntry>>,
    pub peer: usize,
}

/// State of the sending side.
pub(super) struct Outgoing {
    pub peers: Vec<Peer>,
    /// Slots whose bytes are being copied out of GPU memory, by mark.
    pub copying: VecDeque<(u64, Part)>,
    /// Slots that are filled.
    pub ready: VecDeque<Part>,
    /// Slots of peers that can be returned.
    returning: VecDeque<(usize, usize)>,
    /// Slots whose writes are in flight, by ticket.
    pub flights: VecDeque<(u64, Part)>,
    pub gets: HashMap<u64, PendingGet>,
    pub last_get: u64,
    /// Filled slots from this rank to itself.
    pub own: Vec<usize>,
    /// Last error of a transfer that was not started by an operation of this rank.
    pub stray: Option<String>,
    /// Whether a freed slot is reused last. Set if separate threads copy the bytes: the caches of their cores still
    /// contain lines of the slot, and a GPU that writes it would wait for them. If the posting thread copies the bytes,
    /// a freed slot is reused first, because its bytes are in the cache of that core.
    rotates: bool,
}

impl Outgoing {
    pub fn new(layout: ZoneLayout, rotates: bool) -> Outgoing {
        let peer = || Peer {
            queue: VecDeque::new(),
            free: (0..layout.slots).collect(),
            slots: vec![Slot::default(); layout.slots],
            returns: vec![0; layout.slots],
            operations: 0,
            turns: HashMap::new(),
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
            stray: None,
            rotates,
        }
    }

    /// Returns whether nothing is in progress.
    pub fn is_quiet(&self) -> bool {
        self.returning.is_empty() && !self.is_busy()
    }

    /// Returns whether an operation is in progress. The return of a slot is not an operation, because no operation of
    /// the peer waits for it.
    pub fn is_busy(&self) -> bool {
        !(self.copying.is_empty()
            && self.ready.is_empty()
            && self.flights.is_empty()
            && self.gets.is_empty()
            && self.peers.iter().all(|peer| peer.queue.is_empty()))
    }

    /// Returns whether the peers have returned all slots.
    pub fn has_all_slots(&self) -> bool {
        self.peers.iter().all(|peer| peer.free.len() == peer.slots.len())
    }

    /// Returns descriptions of the waiting operations, for messages.
    pub fn state(&self) -> Vec<String> {
        let mut parts = Vec::new();
        for (rank, peer) in self.peers.iter().enumerate() {
            let gone = peer.slots.len() - peer.free.len();
            if !peer.queue.is_empty() {
                parts.push(format!(
                    "{} operations to rank {rank} wait for one of its slots ({gone} are in use)",
                    peer.queue.len()
                ));
            } else if gone > 0 {
                parts.push(format!("rank {rank} holds {gone} slots"));
            }
        }
        if let Some(error) = &self.stray {
            parts.push(format!("an incoming transfer has failed: {error}"));
        }
        if let Some(first) = self.gets.values().next() {
            parts.push(format!("{} gets wait, one for {} B of rank {}", self.gets.len(), first.left, first.peer));
        }
        parts
    }

    /// Queues a peer's slot to be returned.
    pub fn give_back(&mut self, peer: usize, slot: usize) {
        self.returning.push_back((peer, slot));
    }

    /// Records that `bytes` bytes of an answer are in memory. Returns the get if this completes it.
    pub fn answered(&mut self, get: u64, bytes: u64) -> Option<PendingGet> {
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

    /// Frees a slot from this rank to itself.
    pub fn own_is_done(&mut self, me: usize, slot: usize) {
        self.free(me, slot, |slot| (slot.gone, slot.returned) = (true, true));
    }
}

impl PendingGet {
    /// Completes the get's request. Returns its entry for the trace, if any.
    pub fn complete(self) -> Option<TraceEntry> {
        self.request.part_is_done();
        self.note.map(|mut note| {
            note.done_ns = now_ns();
            *note
        })
    }
}

impl<R: Rail> Endpoint<R> {
    /// Takes the operations that NCCL has submitted. Returns whether there were any.
    pub(super) fn accept(&mut self) -> Result<bool, String> {
        let mut fresh = std::mem::take(&mut self.fresh);
        self.coll.take(&mut fresh);
        self.read_queues(&mut fresh)?;
        self.hold_back(&mut fresh);
        let any = !fresh.is_empty();
        if any && self.is_quiet() {
            // The time without operations must not count as a stall.
            self.clock.moved();
        }
        for operation in fresh.drain(..) {
            match self.fault() {
                Some(PluginFault::Error(number)) => {
                    return Err(format!("injected fault: operation {number}, to rank {}", operation.peer));
                }
                Some(PluginFault::Lost(_)) => continue,
                Some(PluginFault::Dead(_)) => {
                    self.dead = true;
                    break;
                }
                Some(PluginFault::Slow(_)) | None => {}
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

    /// Appends an operation to its peer's queue.
    pub(super) fn enqueue(&mut self, operation: SubmittedOperation) {
        let room = self.layout.room as u64;
        let parts = match operation.what {
            What::Put { bytes, .. } | What::Answer { bytes, .. } => bytes.div_ceil(room).max(1) as u32,
            What::Get { .. } => 1,
        };
        if let Some(peer) = self.out.peers.get_mut(operation.peer) {
            peer.operations += 1;
            let turn = if matches!(operation.what, What::Put { .. }) {
                let turns = peer.turns.entry(operation.context).or_default();
                *turns += 1;
                *turns
            } else {
                0
            };
            peer.queue.push_back(Sending { number: peer.operations, turn, operation, parts, next: 0 });
        }
    }

    /// Fills free slots. Returns whether any were filled.
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

    /// Makes slots ready whose bytes have been copied out of GPU memory. Returns whether there were any.
    pub(super) fn copied_out(&mut self) -> Result<bool, String> {
        if self.out.copying.is_empty() {
            return Ok(false);
        }
        let passed = self.copies.passed(CopyDirection::Out)?;
        let mut moved = false;
        while self.out.copying.front().is_some_and(|(mark, _)| *mark <= passed)
            && let Some((_, part)) = self.out.copying.pop_front()
        {
            self.out.ready.push_back(part);
            moved = true;
        }
        Ok(moved)
    }

    /// Submits slots to the engine until it has no capacity. Slots that are returned to peers come first.
    pub(super) fn post(&mut self) -> Result<(), String> {
        let me = self.coll.rank;
        while self.engine.room() > 0
            && let Some((peer, slot)) = self.out.returning.pop_front()
        {
            let immediate = signal_immediate(NAMES as u32 + self.layout.name(me, slot), 1);
            self.engine.submit(&Command::signal(peer as u32, immediate)).map_err(|error| error.to_string())?;
        }
        while self.engine.room() > 0
            && let Some(part) = self.out.ready.pop_front()
        {
            if part.peer == me {
                // The bytes stay in the outgoing slot.
                self.out.own.push(part.slot);
                self.finish(part);
                continue;
            }
            let mut part = part;
            if let Some(mut watched) = part.watched {
                watched.sum = self.sum_of(&part);
                part.watched = Some(watched);
            }
            let source = (OUTGOING, self.layout.header(part.peer, part.slot) as u64);
            let destination = (LANDING, self.layout.header(me, part.slot) as u64);
            let command = Command::put(source, destination, part.bytes as u64, part.peer as u32)
                .with_signal(signal_immediate(self.layout.name(me, part.slot), 1));
            let ticket = self.engine.submit(&command).map_err(|error| error.to_string())?;
            self.out.flights.push_back((ticket, part));
        }
        Ok(())
    }

    /// Detects which outgoing slots have been returned.
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

    /// Processes completed writes. Returns whether there were any.
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

    /// Handles the completion of a slot's write.
    pub(super) fn gone(&mut self, part: Part) {
        self.out.free(part.peer, part.slot, |slot| slot.gone = true);
        self.finish(part);
    }

    /// Completes a part of an operation. After its last part, the source may be reused.
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
