//! Completions: slots of a completion queue.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | id, the low 16 bits |
//! | 2 | status |
//! | 3 | 0 phase, 2:1 queue (1 send, 2 receive), 3 has an immediate, 6:4 operation, 7 took no receive |
//! | 4 | the queue pair whose completion it is |
//! | 6 | send: id, bits 16 to 63 |
//! | 6 | receive: length, low 16 bits; 8 address handle of the sender; 10 its queue pair; 12 immediate |
//! | 16 | 32-byte entries, receive: length, high 16 bits (of a write), or the sender's address where the handle is [`UNKNOWN`] |
//!
//! **How an entry is handed over.** The card stores the words behind the first, and the first one, which has the phase, last, with release. Whoever
//! polls reads the first word until its phase is the lap's ([`crate::rules::completion_phase`]), then, behind an acquire, the others.

use crate::{Operation, bit};

/// Words of an entry of 16 bytes.
pub const WORDS: usize = 2;
/// Words of an entry of 32 bytes.
pub const WORDS_32: usize = 4;
/// The address handle of a sender that the card does not know.
pub const UNKNOWN: u16 = 0xffff;

/// Which of the two queues of a pair an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Queue {
    /// A request has ended.
    Send = 1,
    /// Something has arrived.
    Receive = 2,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A request has ended.
    Sent(Sent),
    /// Something has arrived.
    Arrived(Arrived),
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The request's.
    pub id: u64,
    /// The card's number for how it ended ([`crate::Status`]).
    pub status: u8,
    /// What the request was to do.
    pub operation: Operation,
    /// The queue pair that posted it.
    pub pair: u16,
}

/// An arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The receive's id; 0 where it took none.
    pub id: u16,
    /// The card's number for how it ended.
    pub status: u8,
    /// [`Operation::Send`]: a message; [`Operation::Write`]: a write with immediate.
    pub operation: Operation,
    /// The queue pair where it has arrived.
    pub pair: u16,
    /// Bytes. An entry of 16 bytes has 16 bits of it.
    pub length: u32,
    /// The sender's address handle here, or [`UNKNOWN`].
    pub handle: u16,
    /// The sender's queue pair.
    pub source: u16,
    /// Immediate.
    pub immediate: Option<u32>,
    /// Whether it took no receive.
    pub unsolicited: bool,
}

impl Sent {
    /// As words, for this phase.
    #[inline(always)]
    pub const fn words(&self, phase: bool) -> [u64; WORDS] {
        let flags = flags(phase, Queue::Send, self.operation, false, false);
        let id = self.id;
        [id & 0xffff | first(self.status, flags, self.pair) | (id >> 16 & 0xffff) << 48, id >> 32]
    }
}

impl Arrived {
    /// As words, for this phase: the first two are an entry of 16 bytes. The sender's address, where there is one, is not among them.
    #[inline(always)]
    pub const fn words(&self, phase: bool) -> [u64; WORDS_32] {
        let flags = flags(phase, Queue::Receive, self.operation, self.immediate.is_some(), self.unsolicited);
        let immediate = match self.immediate {
            Some(immediate) => immediate,
            None => 0,
        };
        // The high bits are a write's alone: there a message's entry has the sender's address.
        let high = match self.operation {
            Operation::Write => self.length >> 16,
            _ => 0,
        };
        [
            self.id as u64 | first(self.status, flags, self.pair) | (self.length as u64 & 0xffff) << 48,
            self.handle as u64 | (self.source as u64) << 16 | (immediate as u64) << 32,
            high as u64,
            0,
        ]
    }
}

#[inline(always)]
const fn flags(phase: bool, queue: Queue, operation: Operation, immediate: bool, unsolicited: bool) -> u64 {
    bit(phase, 0) | (queue as u64) << 1 | bit(immediate, 3) | (operation as u64) << 4 | bit(unsolicited, 7)
}

#[inline(always)]
const fn first(status: u8, flags: u64, pair: u16) -> u64 {
    (status as u64) << 16 | flags << 24 | (pair as u64) << 32
}

/// The phase bit of an entry's first word.
#[inline(always)]
pub const fn phase(first: u64) -> bool {
    first >> 24 & 1 != 0
}

/// The low 16 bits of the id in an entry's first word: all that a kernel needs that gave 16-bit ids.
#[inline(always)]
pub const fn id(first: u64) -> u16 {
    first as u16
}

/// The status in an entry's first word.
#[inline(always)]
pub const fn status(first: u64) -> u8 {
    (first >> 16) as u8
}

/// Whether an entry's first word is of an arrival, not of a request.
#[inline(always)]
pub const fn is_arrival(first: u64) -> bool {
    first >> 25 & 3 == Queue::Receive as u64
}

/// The immediate of an arrival, by the entry's first two words.
#[inline(always)]
pub const fn immediate(first: u64, second: u64) -> Option<u32> {
    if first >> 27 & 1 != 0 { Some((second >> 32) as u32) } else { None }
}

impl Completion {
    /// Reads an entry of 2 or 4 words; `None` where its queue or its operation is none that there is.
    pub const fn decode(words: &[u64]) -> Option<Completion> {
        if words.len() < WORDS {
            return None;
        }
        let head = words[0];
        let Some(operation) = Operation::of((head >> 28 & 7) as u8) else { return None };
        let pair = (head >> 32) as u16;
        let low = head >> 48;
        match head >> 25 & 3 {
            1 => {
                let id = head & 0xffff | low << 16 | (words[1] & 0xffff_ffff) << 32;
                Some(Completion::Sent(Sent { id, status: status(head), operation, pair }))
            }
            2 => {
                let has_high = matches!(operation, Operation::Write) && words.len() >= WORDS_32;
                let high = if has_high { words[2] & 0xffff } else { 0 };
                Some(Completion::Arrived(Arrived {
                    id: id(head),
                    status: status(head),
                    operation,
                    pair,
                    length: (low | high << 16) as u32,
                    handle: words[1] as u16,
                    source: (words[1] >> 16) as u16,
                    immediate: immediate(head, words[1]),
                    unsolicited: head >> 31 & 1 != 0,
                }))
            }
            _ => None,
        }
    }
}
