//! Two-sided messages over datagrams that arrive in any order.
//!
//! SRD delivers each datagram once, has no order, and carries at most one MTU. A message is therefore sent as segments
//! of at most one MTU with a sequence number per pair of rails ([`Label`]), and the receiver restores the order:
//!
//! ```text
//! send --segments--> NIC ~~any order~~> landing slots --in sequence--> copied to the oldest posted receive
//!                                           ^ segments that came early, or before their receive, wait
//! ```
//!
//! A segment waits in its slot. If more than [`MOST_WAITING`] do, further ones are copied out, so that the next segment
//! of a message that is arriving always finds a slot, for any number of peers and of messages without a receive. A
//! sender has at most [`WINDOW`] consecutive segments without completion, which limits the early ones. A receive is
//! taken by the first segment of a message, so messages of several peers can arrive concurrently.

use super::device::Verbs;
use super::queues::ReceivePoster;
use super::region::VerbsRegion;
use super::view::WorkRing;
use crate::{Access, Completion, FabricError, MemoryRange, Message, mistake};
use slab::Slab;
use std::cell::UnsafeCell;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Number of landing slots. A power of two.
pub(super) const SLOTS: u32 = 512;
/// Number of slots in which segments wait. The others belong to the NIC.
const MOST_WAITING: u32 = SLOTS / 2;
/// Maximum number of segments without completion per peer.
const WINDOW: u32 = 128;
/// Maximum number of accepted messages that are not sent completely.
const MOST_MESSAGES: usize = 256;
/// Bit of a request's ID that distinguishes segments from writes and reads.
pub(super) const IS_SEGMENT: u16 = 1 << 15;

/// Fields of the immediate of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label {
    /// Number of segments before this one between the two rails, modulo 2^31.
    sequence: u32,
    /// Whether the segment is the last one of its message.
    is_last: bool,
}

/// Mask of a sequence number.
const SEQUENCE: u32 = u32::MAX >> 1;

impl Label {
    fn encode(self) -> u32 {
        self.sequence & SEQUENCE | u32::from(self.is_last) << 31
    }

    fn decode(immediate: u32) -> Label {
        Label { sequence: immediate & SEQUENCE, is_last: immediate >> 31 == 1 }
    }
}

/// A message of this side.
#[derive(Clone, Copy, Debug)]
struct Sending {
    token: u64,
    peer: usize,
    bytes: u64,
    /// Address of the bytes that have not been posted, and their number.
    address: u64,
    left: u64,
    key: u32,
    /// Whether the last segment has been posted.
    is_posted: bool,
    /// Number of posted segments without completion.
    in_flight: u32,
    /// Whether a segment has failed, which has been reported.
    has_failed: bool,
}

/// A segment in the send queue.
#[derive(Clone, Copy, Debug)]
struct Posted {
    message: usize,
    peer: usize,
    sequence: u32,
}

/// Segments to one peer.
#[derive(Clone, Debug, Default)]
struct Outgoing {
    /// Sequence number of the next segment.
    next: u32,
    /// Whether each segment since the oldest one without completion has completed.
    completed: VecDeque<bool>,
}

impl Outgoing {
    /// Records a completion.
    fn ended(&mut self, sequence: u32) {
        let oldest = self.next.wrapping_sub(self.completed.len() as u32);
        if let Some(completed) = self.completed.get_mut((sequence.wrapping_sub(oldest) & SEQUENCE) as usize) {
            *completed = true;
        }
        while self.completed.front().is_some_and(|completed| *completed) {
            self.completed.pop_front();
        }
    }
}

/// A segment to post: its request ID, peer, immediate, and bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub id: u16,
    pub peer: usize,
    pub immediate: u32,
    pub address: u64,
    pub bytes: u32,
    pub key: u32,
}

/// A posted receive: its token, and its bytes.
#[derive(Clone, Copy, Debug)]
struct Receive {
    token: u64,
    address: u64,
    bytes: u64,
    filled: u64,
}

/// Place in which a segment waits.
#[derive(Clone, Debug)]
enum Waiting {
    Slot(u16),
    Copy(Box<[u8]>),
}

/// A segment that has landed.
#[derive(Clone, Debug)]
struct Landed {
    place: Waiting,
    bytes: u32,
    is_last: bool,
}

/// Segments from one peer.
#[derive(Clone, Debug, Default)]
struct Incoming {
    /// Sequence number of the next segment in order.
    next: u32,
    /// Segments that have landed, by their distance to the first one of the rail (a number that never wraps around).
    landed: BTreeMap<u64, Landed>,
    taken: u64,
    /// Receive of the message that is arriving.
    receive: Option<Receive>,
}

/// Messages of a rail.
pub(super) struct Mailbox {
    name: String,
    mtu: u32,
    /// Landing slots of one MTU each. The registration precedes its memory, because it is dropped first.
    region: VerbsRegion,
    _memory: Box<[UnsafeCell<u8>]>,
    poster: ReceivePoster,
    /// Number of slots in which segments wait.
    waiting: u32,
    sending: Slab<Sending>,
    /// Messages with segments that are not posted, in order.
    queue: VecDeque<usize>,
    posted: Slab<Posted>,
    outgoing: Vec<Outgoing>,
    receives: VecDeque<Receive>,
    incoming: HashMap<(u16, u16), Incoming>,
}

impl Mailbox {
    /// Creates the messages of a rail with the receive ring `ring`.
    ///
    /// # Errors
    /// Returns an error if the landing slots cannot be registered.
    pub(super) fn open(verbs: &Verbs, ring: WorkRing) -> Result<Mailbox, FabricError> {
        let mtu = verbs.max_message_bytes()?;
        let memory: Box<[UnsafeCell<u8>]> = (0..SLOTS as usize * mtu as usize).map(|_| UnsafeCell::new(0)).collect();
        let address = memory.as_ptr().expose_provenance() as u64;
        let bytes = MemoryRange { address, bytes: memory.len(), cuda_device: None };
        // SAFETY: the mailbox drops the region before its memory, which does not move.
        let region = unsafe { verbs.register(bytes, Access::SINK) }?;
        let mut mailbox = Mailbox {
            name: verbs.name().to_owned(),
            mtu: mtu.into(),
            region,
            _memory: memory,
            poster: ReceivePoster::new(ring),
            waiting: 0,
            sending: Slab::new(),
            queue: VecDeque::new(),
            posted: Slab::new(),
            outgoing: Vec::new(),
            receives: VecDeque::new(),
            incoming: HashMap::new(),
        };
        (0..SLOTS).for_each(|slot| mailbox.give(slot as u16));
        mailbox.poster.ring();
        Ok(mailbox)
    }

    /// Returns the number of segments in the send queue.
    pub(super) fn in_flight(&self) -> usize {
        self.posted.len()
    }

    /// Accepts a message of the range at `address`. Returns whether there was room.
    pub(super) fn send(&mut self, peer: usize, address: u64, key: u32, message: &Message) -> bool {
        if self.queue.len() >= MOST_MESSAGES {
            return false;
        }
        let Message { bytes, token, .. } = *message;
        let message = Sending {
            token,
            peer,
            bytes,
            address,
            left: bytes,
            key,
            is_posted: false,
            in_flight: 0,
            has_failed: false,
        };
        self.queue.push_back(self.sending.insert(message));
        true
    }

    /// Adds a receive of the range at `address`.
    pub(super) fn receive(&mut self, address: u64, message: &Message, completions: &mut Vec<Completion>) {
        let Message { bytes, token, .. } = *message;
        self.receives.push_back(Receive { token, address, bytes, filled: 0 });
        // Messages may have landed before.
        let waiting: Vec<(u16, u16)> = self.incoming.keys().copied().collect();
        for peer in waiting {
            self.deliver(peer, completions);
        }
    }

    /// Cancels a receive that no message has taken. Returns whether there was one.
    pub(super) fn cancel(&mut self, token: u64) -> bool {
        let before = self.receives.len();
        self.receives.retain(|receive| receive.token != token);
        self.receives.len() < before
    }

    /// Returns the next segment to post, in the order of the messages to its peer. `None` if there is none, or if the
    /// window of its peer is full.
    pub(super) fn next(&mut self) -> Option<Segment> {
        let message = *self.queue.front()?;
        let sending = &mut self.sending[message];
        let peer = sending.peer;
        self.outgoing.resize_with(self.outgoing.len().max(peer + 1), Outgoing::default);
        let outgoing = &mut self.outgoing[peer];
        if outgoing.completed.len() >= WINDOW as usize {
            return None;
        }
        let (address, key, sequence) = (sending.address, sending.key, outgoing.next & SEQUENCE);
        let bytes = sending.left.min(self.mtu.into());
        sending.address += bytes;
        sending.left -= bytes;
        sending.in_flight += 1;
        sending.is_posted = sending.left == 0;
        if sending.is_posted {
            self.queue.pop_front();
        }
        let is_last = self.sending[message].is_posted;
        outgoing.next = outgoing.next.wrapping_add(1) & SEQUENCE;
        outgoing.completed.push_back(false);
        let id = self.posted.insert(Posted { message, peer, sequence }) as u16 | IS_SEGMENT;
        let immediate = Label { sequence, is_last }.encode();
        // The cast is lossless: at most one MTU.
        Some(Segment { id, peer, immediate, address, bytes: bytes as u32, key })
    }

    /// Handles the completion of a segment. `error` is its failure, if it failed, given the size and peer of its
    /// message.
    pub(super) fn sent(
        &mut self,
        id: u16,
        completions: &mut Vec<Completion>,
        error: impl FnOnce(u64, usize) -> Option<FabricError>,
    ) {
        let Some(Posted { message, peer, sequence }) = self.posted.try_remove((id & !IS_SEGMENT).into()) else {
            return;
        };
        self.outgoing[peer].ended(sequence);
        let Some(sending) = self.sending.get_mut(message) else { return };
        sending.in_flight -= 1;
        let Sending { token, bytes, has_failed, .. } = *sending;
        if let Some(error) = error(bytes, peer).filter(|_| !has_failed) {
            (sending.has_failed, sending.is_posted) = (true, true);
            self.queue.retain(|queued| *queued != message);
            completions.push(Completion::Failed { token: Some(token), error: Box::new(error) });
        } else if !has_failed && sending.is_posted && sending.in_flight == 0 {
            completions.push(Completion::Done { token });
        }
        if self.sending[message].is_posted && self.sending[message].in_flight == 0 {
            self.sending.remove(message);
        }
    }

    /// Handles a segment that has landed in `slot`.
    pub(super) fn landed(
        &mut self,
        peer: (u16, u16),
        slot: u16,
        bytes: u32,
        immediate: u32,
        completions: &mut Vec<Completion>,
    ) {
        let Label { sequence, is_last } = Label::decode(immediate);
        let incoming = self.incoming.entry(peer).or_default();
        let ahead = sequence.wrapping_sub(incoming.next) & SEQUENCE;
        let number = incoming.taken + u64::from(ahead);
        incoming.landed.insert(number, Landed { place: Waiting::Slot(slot), bytes, is_last });
        self.waiting += 1;
        if ahead == 0 {
            self.deliver(peer, completions);
        }
        if self.waiting > MOST_WAITING {
            self.copy_out(peer, number);
        }
    }

    /// Copies a segment that waits in a slot out of it.
    fn copy_out(&mut self, peer: (u16, u16), number: u64) {
        let landed = self.incoming.get_mut(&peer).and_then(|incoming| incoming.landed.get_mut(&number));
        let Some(Landed { place, bytes, .. }) = landed else { return };
        let Waiting::Slot(slot) = *place else { return };
        let mut copy = vec![0u8; *bytes as usize].into_boxed_slice();
        // SAFETY: the slot is in the mailbox's memory and has at least this length, and the NIC does not write it until
        // it is given back.
        unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(landing(&self.region, self.mtu, slot), copy.len()) };
        *place = Waiting::Copy(copy);
        self.waiting -= 1;
        self.give(slot);
        self.poster.ring();
    }

    /// Copies the segments of a peer that are in sequence to the posted receives.
    fn deliver(&mut self, peer: (u16, u16), completions: &mut Vec<Completion>) {
        let Some(incoming) = self.incoming.get_mut(&peer) else { return };
        let mut freed = Vec::new();
        while incoming.landed.contains_key(&incoming.taken) {
            let Some(mut receive) = incoming.receive.take().or_else(|| self.receives.pop_front()) else { break };
            let Some(Landed { place, bytes, is_last }) = incoming.landed.remove(&incoming.taken) else { break };
            incoming.taken += 1;
            incoming.next = incoming.next.wrapping_add(1) & SEQUENCE;
            let room = receive.bytes.saturating_sub(receive.filled).min(bytes.into());
            let from = match &place {
                Waiting::Slot(slot) => landing(&self.region, self.mtu, *slot),
                Waiting::Copy(copy) => copy.as_ptr(),
            };
            // SAFETY: `from` is a copy, or a slot in the mailbox's memory, which the NIC does not write until it is
            // given back. The other range is in a region of the receive, whose poster does not access it until the
            // completion.
            unsafe {
                let to = std::ptr::with_exposed_provenance_mut::<u8>((receive.address + receive.filled) as usize);
                to.copy_from_nonoverlapping(from, room as usize);
            }
            receive.filled += u64::from(bytes);
            if let Waiting::Slot(slot) = place {
                freed.push(slot);
            }
            let Receive { token, bytes: most, filled, .. } = receive;
            if !is_last {
                incoming.receive = Some(receive);
            } else if filled <= most {
                completions.push(Completion::Received { token, bytes: filled });
            } else {
                let text = format!("a message of {filled} B does not fit in the receive buffer of {most} B");
                let error = Box::new(mistake(&self.name, "receiving a message", text));
                completions.push(Completion::Failed { token: Some(token), error });
            }
        }
        // The cast is lossless: there are at most `SLOTS` of them.
        self.waiting -= freed.len() as u32;
        freed.into_iter().for_each(|slot| self.give(slot));
        self.poster.ring();
    }

    /// Posts a landing slot to the NIC again.
    fn give(&mut self, slot: u16) {
        let address = landing(&self.region, self.mtu, slot).expose_provenance() as u64;
        // The cast is lossless: an MTU has 16 bits.
        self.poster.put(slot, address, self.mtu as u16, self.region.lkey);
    }

    /// Returns a landing slot whose segment is not valid.
    pub(super) fn dropped(&mut self, slot: u16) {
        self.give(slot);
        self.poster.ring();
    }
}

/// Returns the address of a landing slot.
fn landing(region: &VerbsRegion, mtu: u32, slot: u16) -> *const u8 {
    std::ptr::with_exposed_provenance((region.address + u64::from(slot) * u64::from(mtu)) as usize)
}
