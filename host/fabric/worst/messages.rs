//! Messages of a rail: sends that are late, and receives that they find in the order in which these were posted.
//!
//! Of one sender's messages the first finds a receive first (FI_ORDER_SAS, which rails for messages ask of libfabric), unless
//! `messages=any`; of several senders' any. When each is complete has no order at all.

use super::bytes;
use super::flight::{Packet, packets};
use super::law::Law;
use super::mailbox::{Announced, CHUNK, Mailbox, Turn};
use super::spec::Spec;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// Receives that may be posted at a time.
const RECEIVES: usize = 8192;

/// What becomes due.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// A send's next chunk goes out.
    Chunk(u64),
    /// A send is complete.
    Sent(u64),
    /// A receive is complete.
    Received { token: u64, bytes: u64 },
}

/// How something ended that cannot go on.
#[derive(Debug)]
pub(super) enum Broken {
    /// The source of a send was rewritten: token, and the send's bytes and peer.
    Rewritten { token: u64, bytes: u64, peer: usize },
    /// The receive was too small for its message, of so many bytes.
    TooLong { token: u64, bytes: u64, room: u64 },
    /// The sender's rail was closed in the middle.
    Abandoned { token: u64 },
}

/// The sending end at a peer.
#[derive(Debug)]
struct Line {
    mailbox: Rc<Mailbox>,
    sender: u32,
    /// Number of the next message.
    next: u64,
}

#[derive(Debug)]
struct Outgoing {
    token: u64,
    peer: usize,
    mailbox: Rc<Mailbox>,
    slot: usize,
    from: u64,
    bytes: u64,
    /// In the order in which they go out.
    chunks: Vec<Packet>,
    gone: usize,
    /// Its next step stands in the agenda.
    put_off: bool,
}

#[derive(Debug)]
struct Incoming {
    slot: usize,
    token: u64,
    to: u64,
    bytes: u64,
    got: u64,
}

/// Room for a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub token: u64,
    pub to: u64,
    pub bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Messages {
    spec: Spec,
    mailbox: Mailbox,
    lines: HashMap<usize, Line>,
    /// By numbers that are never given twice.
    outgoing: HashMap<u64, Outgoing>,
    last: u64,
    rooms: VecDeque<Room>,
    incoming: Vec<Incoming>,
    /// Number of the next message of each sender.
    expected: HashMap<u32, u64>,
    bounce: Vec<u8>,
}

impl Messages {
    /// None posted, none under way.
    pub fn new(spec: &Spec) -> std::io::Result<Messages> {
        Ok(Messages {
            spec: *spec,
            mailbox: Mailbox::create()?,
            lines: HashMap::new(),
            outgoing: HashMap::new(),
            last: 0,
            rooms: VecDeque::new(),
            incoming: Vec::new(),
            expected: HashMap::new(),
            bounce: Vec::new(),
        })
    }

    /// This rail's mailbox.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Posts a send; false when the peer has no slot for it now. `join` opens the peer's mailbox.
    ///
    /// # Safety
    /// The bytes stay valid until the send is complete.
    pub unsafe fn send<E>(
        &mut self,
        peer: usize,
        room: Room,
        law: &mut Law,
        join: impl FnOnce() -> Result<(Mailbox, u32), E>,
    ) -> Result<Option<Due>, E> {
        let Room { token, to: from, bytes } = room;
        let line = match self.lines.entry(peer) {
            std::collections::hash_map::Entry::Occupied(line) => line.into_mut(),
            std::collections::hash_map::Entry::Vacant(none) => {
                let (mailbox, sender) = join()?;
                none.insert(Line { mailbox: Rc::new(mailbox), sender, next: 0 })
            }
        };
        let Some(slot) = line.mailbox.take_slot() else { return Ok(None) };
        line.mailbox.describe(Announced { slot, sender: line.sender, number: line.next, bytes });
        line.next += 1;
        // SAFETY: the caller's contract.
        unsafe { bytes::take(&mut self.bounce, from, bytes) };
        let mut cuts = Vec::new();
        for (at, length) in law.cut(bytes) {
            let pieces = (0..length).step_by(CHUNK as usize);
            cuts.extend(pieces.map(|piece| (at + piece, CHUNK.min(length - piece))));
        }
        let (mut chunks, _) = packets(&self.bounce, &cuts);
        for last in (1..chunks.len()).rev() {
            chunks.swap(last, law.below(last as u64 + 1) as usize);
        }
        self.last += 1;
        let mailbox = line.mailbox.clone();
        let send = Outgoing { token, peer, mailbox, slot, from, bytes, chunks, gone: 0, put_off: true };
        self.outgoing.insert(self.last, send);
        Ok(Some(Due::Chunk(self.last)))
    }

    /// Posts room; false when there is no room for more of that.
    ///
    /// # Safety
    /// The bytes stay valid until the receive is complete.
    pub unsafe fn receive(&mut self, room: Room, poison: Option<u8>) -> bool {
        if self.rooms.len() >= RECEIVES {
            return false;
        }
        if let Some(poison) = poison {
            // SAFETY: the caller's contract.
            unsafe { bytes::fill(room.to, room.bytes, poison) };
        }
        self.rooms.push_back(room);
        true
    }

    /// Takes room back; false when a message has found it already.
    pub fn cancel(&mut self, token: u64) -> bool {
        let at = self.rooms.iter().position(|room| room.token == token);
        at.and_then(|at| self.rooms.remove(at)).is_some()
    }

    /// Does what has become due: the token of a send that is complete.
    pub fn act(&mut self, key: u64, done: bool) -> Result<Option<u64>, Broken> {
        let Some(send) = self.outgoing.get_mut(&key) else { return Ok(None) };
        send.put_off = false;
        let rewritten = Broken::Rewritten { token: send.token, bytes: send.bytes, peer: send.peer };
        if done {
            // SAFETY: `send`'s contract: its completion is told behind this.
            unsafe { bytes::take(&mut self.bounce, send.from, send.bytes) };
            let same = |chunk: &Packet| {
                let bytes = &self.bounce[chunk.at as usize..(chunk.at + chunk.bytes) as usize];
                crc32fast::hash(bytes) == chunk.sum
            };
            let whole = !self.spec.watch || send.chunks.iter().all(same);
            let token = send.token;
            if let Some(send) = self.outgoing.remove(&key) {
                send.mailbox.hand_over(send.slot, Turn::Free);
            }
            return if whole { Ok(Some(token)) } else { Err(rewritten) };
        }
        let turn = if send.gone == 0 { Turn::Announced } else { Turn::Filled };
        let Some(chunk) = send.chunks.get(send.gone).copied() else {
            // Nothing but its announcement.
            send.mailbox.fill(send.slot, 0, &[], turn);
            return Ok(None);
        };
        // SAFETY: `send`'s contract: it is not complete.
        unsafe { bytes::take(&mut self.bounce, send.from + chunk.at, chunk.bytes) };
        if self.spec.watch && crc32fast::hash(&self.bounce) != chunk.sum {
            send.mailbox.abandon(send.slot);
            self.outgoing.remove(&key);
            return Err(rewritten);
        }
        send.gone += 1;
        send.mailbox.fill(send.slot, chunk.at, &self.bounce, turn);
        Ok(None)
    }

    /// Looks at all slots; calls `later` with what is to be done, and whether it may take long.
    pub fn look(&mut self, law: &mut Law, mut later: impl FnMut(Due, &mut Law), broken: &mut Vec<Broken>) {
        for (key, send) in &mut self.outgoing {
            if send.put_off {
                continue;
            }
            let due = match send.mailbox.turn(send.slot) {
                Turn::Wanted => Due::Chunk(*key),
                Turn::Done => Due::Sent(*key),
                _ => continue,
            };
            send.put_off = true;
            later(due, law);
        }
        self.find_room(law, broken);
        let mailbox = &self.mailbox;
        self.incoming.retain_mut(|message| match mailbox.turn(message.slot) {
            Turn::Announced | Turn::Filled => {
                let (at, length, from) = mailbox.chunk(message.slot);
                if at.checked_add(length).is_none_or(|end| end > message.bytes) {
                    mailbox.hand_over(message.slot, Turn::Done);
                    broken.push(Broken::Abandoned { token: message.token });
                    return false;
                }
                // SAFETY: the chunk is the receiver's now; the room is of the message's length, and its owner's contract of the post
                // holds until the completion, which is behind this.
                unsafe {
                    std::ptr::copy_nonoverlapping(from as *const u8, (message.to + at) as *mut u8, length as usize)
                };
                message.got += length;
                let done = message.got >= message.bytes;
                mailbox.hand_over(message.slot, if done { Turn::Done } else { Turn::Wanted });
                if done {
                    later(Due::Received { token: message.token, bytes: message.bytes }, law);
                }
                !done
            }
            Turn::Abandoned => {
                mailbox.hand_over(message.slot, Turn::Free);
                broken.push(Broken::Abandoned { token: message.token });
                false
            }
            _ => true,
        });
    }

    /// Gives room to messages that have been announced: of a sender's the first one first.
    fn find_room(&mut self, law: &mut Law, broken: &mut Vec<Broken>) {
        while !self.rooms.is_empty() {
            let taken: Vec<usize> = self.incoming.iter().map(|message| message.slot).collect();
            let is_next = |message: &Announced| {
                !taken.contains(&message.slot)
                    && (!self.spec.ordered_messages
                        || self.expected.get(&message.sender).copied().unwrap_or(0) == message.number)
            };
            let waiting: Vec<Announced> = self.mailbox.announced().filter(is_next).collect();
            if waiting.is_empty() {
                return;
            }
            let message = waiting[law.below(waiting.len() as u64) as usize];
            let Some(room) = self.rooms.pop_front() else { return };
            self.expected.insert(message.sender, message.number + 1);
            let (token, to, bytes) = (room.token, room.to, message.bytes);
            if bytes > room.bytes {
                self.mailbox.hand_over(message.slot, Turn::Done);
                broken.push(Broken::TooLong { token, bytes, room: room.bytes });
                continue;
            }
            self.incoming.push(Incoming { slot: message.slot, token, to, bytes, got: 0 });
        }
    }

    /// Sends under way to a peer, which is not there any more.
    pub fn give_up(&mut self, gone: impl Fn(usize) -> bool) -> Vec<(u64, usize, u64)> {
        let lost: Vec<u64> = self.outgoing.iter().filter(|(_, send)| gone(send.peer)).map(|(key, _)| *key).collect();
        let send = lost.iter().filter_map(|key| self.outgoing.remove(key));
        send.map(|send| (send.token, send.peer, send.bytes)).collect()
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.outgoing.values().for_each(|send| send.mailbox.abandon(send.slot));
    }
}
