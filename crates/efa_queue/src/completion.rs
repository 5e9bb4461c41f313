//! Completions: slots of a completion queue.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | ID, low 16 bits |
//! | 2 | status |
//! | 3 | 0 phase, 2:1 queue (1 send, 2 receive), 3 has an immediate, 6:4 operation, 7 took no receive |
//! | 4 | local queue pair |
//! | 6 | send: ID, bits 16 to 63 |
//! | 6 | receive: length, low 16 bits; 8 address handle of the sender; 10 its queue pair; 12 immediate |
//! | 16 | 32-byte entries, receive: length, high 16 bits (write), or the sender's address (handle [`UNKNOWN`]) |
//!
//! **Publication of an entry.** The NIC stores the first word, which has the phase, last and with release. A reader
//! polls the first word until its phase is that of the lap ([`crate::rules::completion_phase`]). It then reads the
//! other words, after an acquire.

use crate::{EfaOperation, bit};

/// Number of words of a 16-byte entry.
pub const WORDS: usize = 2;
/// Number of words of a 32-byte entry.
pub const WORDS_32: usize = 4;
/// Address handle of a sender for which the NIC has none.
pub const UNKNOWN: u16 = 0xffff;

/// Queue of a queue pair that an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QueueSide {
    /// Send queue: a request has completed.
    Send = 1,
    /// Receive queue: data has arrived.
    Receive = 2,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedCompletion {
    /// A completed request.
    Sent(Sent),
    /// An arrival.
    Arrived(Arrived),
}

/// Completion of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// ID of the request.
    pub id: u64,
    /// Hardware status code ([`crate::CompletionStatus`]).
    pub status: u8,
    /// Operation of the request.
    pub operation: EfaOperation,
    /// Queue pair that posted the request.
    pub pair: u16,
}

/// An arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// ID of the receive, or 0 if it took none.
    pub id: u16,
    /// Hardware status code.
    pub status: u8,
    /// [`EfaOperation::Send`] for a message, [`EfaOperation::Write`] for a write with immediate.
    pub operation: EfaOperation,
    /// Queue pair at which the data arrived.
    pub pair: u16,
    /// Length in bytes; a 16-byte entry has only the low 16 bits.
    pub length: u32,
    /// Local address handle of the sender, or [`UNKNOWN`].
    pub handle: u16,
    /// Queue pair of the sender.
    pub source: u16,
    /// Immediate data, if any.
    pub immediate: Option<u32>,
    /// Whether the arrival took no receive.
    pub unsolicited: bool,
}

impl Sent {
    /// Encodes the entry with this phase.
    #[inline(always)]
    pub const fn words(&self, phase: bool) -> [u64; WORDS] {
        let flags = flags(phase, QueueSide::Send, self.operation, false, false);
        let id = self.id;
        [id & 0xffff | first(self.status, flags, self.pair) | (id >> 16 & 0xffff) << 48, id >> 32]
    }
}

impl Arrived {
    /// Encodes the entry with this phase; the first two words are a 16-byte entry. The entry does not include the
    /// sender's address.
    #[inline(always)]
    pub const fn words(&self, phase: bool) -> [u64; WORDS_32] {
        let flags = flags(phase, QueueSide::Receive, self.operation, self.immediate.is_some(), self.unsolicited);
        let immediate = match self.immediate {
            Some(immediate) => immediate,
            None => 0,
        };
        // Only writes have the high bits; the entry of a message has the sender's address there.
        let high = match self.operation {
            EfaOperation::Write => self.length >> 16,
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
const fn flags(phase: bool, queue: QueueSide, operation: EfaOperation, immediate: bool, unsolicited: bool) -> u64 {
    bit(phase, 0) | (queue as u64) << 1 | bit(immediate, 3) | (operation as u64) << 4 | bit(unsolicited, 7)
}

#[inline(always)]
const fn first(status: u8, flags: u64, pair: u16) -> u64 {
    (status as u64) << 16 | flags << 24 | (pair as u64) << 32
}

/// Returns the phase bit of an entry's first word.
#[inline(always)]
pub const fn phase(first: u64) -> bool {
    first >> 24 & 1 != 0
}

/// Returns the low 16 bits of the ID in an entry's first word, which suffice for kernels that use 16-bit IDs.
#[inline(always)]
pub const fn id(first: u64) -> u16 {
    first as u16
}

/// Returns the status in an entry's first word.
#[inline(always)]
pub const fn status(first: u64) -> u8 {
    (first >> 16) as u8
}

/// Returns whether an entry's first word belongs to an arrival instead of a request.
#[inline(always)]
pub const fn is_arrival(first: u64) -> bool {
    first >> 25 & 3 == QueueSide::Receive as u64
}

/// Returns the immediate of an arrival, given the entry's first two words.
#[inline(always)]
pub const fn immediate(first: u64, second: u64) -> Option<u32> {
    if first >> 27 & 1 != 0 { Some((second >> 32) as u32) } else { None }
}

impl DecodedCompletion {
    /// Decodes an entry of 2 or 4 words. Returns `None` if its queue or operation is invalid.
    pub const fn decode(words: &[u64]) -> Option<DecodedCompletion> {
        if words.len() < WORDS {
            return None;
        }
        let head = words[0];
        let Some(operation) = EfaOperation::of((head >> 28 & 7) as u8) else { return None };
        let pair = (head >> 32) as u16;
        let low = head >> 48;
        match head >> 25 & 3 {
            1 => {
                let id = head & 0xffff | low << 16 | (words[1] & 0xffff_ffff) << 32;
                Some(DecodedCompletion::Sent(Sent { id, status: status(head), operation, pair }))
            }
            2 => {
                let has_high = matches!(operation, EfaOperation::Write) && words.len() >= WORDS_32;
                let high = if has_high { words[2] & 0xffff } else { 0 };
                Some(DecodedCompletion::Arrived(Arrived {
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
