//! Messages of a rail: delayed sends, and their matching with receives in the order in which the receives were posted.
//!
//! Messages of one sender are matched in the order of their posts (FI_ORDER_SAS, which rails for messages request from
//! libfabric), unless `messages=any`. Messages of several senders are matched in any order. Completions have no order.

use super::bytes;
use super::flight::{Packet, packets};
use super::law::RailRandom;
use super::mailbox::{Announced, CHUNK, Mailbox, Turn};
use super::spec::WorstSpec;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// Maximum number of posted receives.
const RECEIVES: usize = 8192;

/// A delayed event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// The next chunk of a send is to be sent.
    Chunk(u64),
    /// A send is complete.
    Sent(u64),
    /// A receive is complete.
    Received { token: u64, bytes: u64 },
}

/// Failure of a send or receive.
#[derive(Debug)]
pub(super) enum Broken {
    /// The source of a send has changed in these bytes since the post. Contains token, size and peer of the send.
    Rewritten { token: u64, total: u64, peer: usize, from: u64, bytes: u64, since: u64 },
    /// The receive buffer was too small for its message of `bytes` bytes.
    TooLong { token: u64, bytes: u64, room: u64 },
    /// The sender's rail was closed during the message.
    Abandoned { token: u64 },
}

/// The sending end of messages to a peer.
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
    /// Count of this process's table at the time of the post.
    since: u64,
    /// Chunks in the order in which they are sent.
    chunks: Vec<Packet>,
    gone: usize,
    /// Whether the next step is in the queue of delayed events.
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

/// A receive buffer, or the source of a send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub token: u64,
    pub to: u64,
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct Messages {
    spec: WorstSpec,
    mailbox: Mailbox,
    lines: HashMap<usize, Line>,
    /// Sends in progress, by numbers that are never reused.
    outgoing: HashMap<u64, Outgoing>,
    last: u64,
    rooms: VecDeque<Room>,
    incoming: Vec<Incoming>,
    /// Number of the next message of each sender.
    expected: HashMap<u32, u64>,
    bounce: Vec<u8>,
}

impl Messages {
    /// Creates an empty set of messages.
    pub fn new(spec: &WorstSpec) -> std::io::Result<Messages> {
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

    /// Returns this rail's mailbox.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Posts a send. Returns `None` if the peer has no free slot. `join` opens the peer's mailbox.
    ///
    /// # Safety
    /// The bytes must stay valid until the send is complete.
    pub unsafe fn send<E>(
        &mut self,
        peer: usize,
        room: Room,
        since: u64,
        law: &mut RailRandom,
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
        // SAFETY: the caller guarantees that the bytes are valid.
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
        let send = Outgoing { token, peer, mailbox, slot, from, bytes, since, chunks, gone: 0, put_off: true };
        self.outgoing.insert(self.last, send);
        Ok(Some(Due::Chunk(self.last)))
    }

    /// Posts a receive buffer. Returns `false` if too many are posted.
    ///
    /// # Safety
    /// The bytes must stay valid until the receive is complete.
    pub unsafe fn receive(&mut self, room: Room, poison: Option<u8>) -> bool {
        if self.rooms.len() >= RECEIVES {
            return false;
        }
        if let Some(poison) = poison {
            // SAFETY: the caller guarantees that the bytes are valid.
            unsafe { bytes::fill(room.to, room.bytes, poison) };
        }
        self.rooms.push_back(room);
        true
    }

    /// Cancels a receive. Returns `false` if a message was already matched with it.
    pub fn cancel(&mut self, token: u64) -> bool {
        let at = self.rooms.iter().position(|room| room.token == token);
        at.and_then(|at| self.rooms.remove(at)).is_some()
    }

    /// Runs a due step of a send. Returns the token of the send if it is complete.
    pub fn act(&mut self, key: u64, done: bool) -> Result<Option<u64>, Broken> {
        let Some(send) = self.outgoing.get_mut(&key) else { return Ok(None) };
        send.put_off = false;
        let Outgoing { token, peer, bytes: total, from, since, .. } = *send;
        let rewritten = move |chunk: &Packet| Broken::Rewritten {
            token,
            total,
            peer,
            from: from + chunk.at,
            bytes: chunk.bytes,
            since,
        };
        if done {
            // SAFETY: the source is valid until the completion, which is reported after this (contract of `send`).
            unsafe { bytes::take(&mut self.bounce, send.from, send.bytes) };
            let same = |chunk: &Packet| {
                let bytes = &self.bounce[chunk.at as usize..(chunk.at + chunk.bytes) as usize];
                crc32fast::hash(bytes) == chunk.sum
            };
            let changed = send.chunks.iter().find(|chunk| self.spec.watch && !same(chunk)).copied();
            if let Some(send) = self.outgoing.remove(&key) {
                send.mailbox.hand_over(send.slot, Turn::Free);
            }
            return changed.map_or(Ok(Some(token)), |chunk| Err(rewritten(&chunk)));
        }
        let turn = if send.gone == 0 { Turn::Announced } else { Turn::Filled };
        let Some(chunk) = send.chunks.get(send.gone).copied() else {
            // An empty message consists only of its announcement.
            send.mailbox.fill(send.slot, 0, &[], turn);
            return Ok(None);
        };
        // SAFETY: the source is valid until the completion, which has not been reported (contract of `send`).
        unsafe { bytes::take(&mut self.bounce, send.from + chunk.at, chunk.bytes) };
        if self.spec.watch && crc32fast::hash(&self.bounce) != chunk.sum {
            send.mailbox.abandon(send.slot);
            self.outgoing.remove(&key);
            return Err(rewritten(&chunk));
        }
        send.gone += 1;
        send.mailbox.fill(send.slot, chunk.at, &self.bounce, turn);
        Ok(None)
    }

    /// Polls all slots. Calls `later` for each step that is to be delayed.
    pub fn look(
        &mut self,
        law: &mut RailRandom,
        mut later: impl FnMut(Due, &mut RailRandom),
        broken: &mut Vec<Broken>,
    ) {
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
                // SAFETY: the receiver owns the slot, so the chunk is stable. The range is in the buffer, which is
                // valid until the completion, reported after this (contract of `receive`).
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

    /// Matches announced messages with receive buffers. Messages of one sender are matched in order.
    fn find_room(&mut self, law: &mut RailRandom, broken: &mut Vec<Broken>) {
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

    /// Removes the sends to peers that have exited. Returns token, peer and size of each.
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
