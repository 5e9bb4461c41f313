//! Requests: slots of the send queue.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | id, the low 16 bits |
//! | 2 | 3:0 operation, 4 has an immediate, 5 carries its bytes, 6 extension (0), 7 always 1 |
//! | 3 | 0 phase, 2 first (1), 3 last (1), 4 asks for a completion |
//! | 4 | the peer's queue pair |
//! | 6 | number of pieces, or of the bytes that it carries |
//! | 8 | immediate |
//! | 12 | address handle |
//! | 14 | 1:0 hints |
//! | 16 | the peer's queue key |
//! | 26 | id, bits 16 to 63, where the card has them |
//! | 32 | send: up to two pieces {length, key, address}, or the bytes |
//! | 32 | read, write: the peer's bytes {length, key, address}; 48: one's own {length, key, address}, or (128 bytes, write) the bytes |

use crate::{KEY_MASK, Local, Operation, Remote, bit};

/// Words of a request of 64 bytes.
pub const WORDS: usize = 8;
/// Words of a request of 128 bytes.
pub const WORDS_128: usize = 16;
/// Pieces of a send.
pub const SEND_PIECES: usize = 2;
/// Bytes that a send of 64 bytes can carry itself.
pub const INLINE: usize = 32;
/// Bytes that a send or a write of 128 bytes can carry itself.
pub const INLINE_128: usize = 80;
/// The hint that many small requests matter more than bytes.
pub const HINT_RATE: u8 = 1;
/// The most bytes of one read or write (`efadv_device_attr.max_rdma_size` of the cards that there are).
pub const MOST_BYTES: u32 = 1 << 30;

const HAS_IMMEDIATE: u8 = 1 << 4;
const CARRIES: u8 = 1 << 5;
const EXTENSION: u8 = 1 << 6;
const META: u8 = 1 << 7;
const PHASE: u8 = 1;
const FIRST: u8 = 1 << 2;
const LAST: u8 = 1 << 3;
const COMPLETION: u8 = 1 << 4;

/// Whom a request goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct To {
    /// The address handle: a number of the protection domain that made it.
    pub handle: u16,
    /// The peer's queue pair.
    pub pair: u16,
    /// The key of that queue pair.
    pub key: u32,
}

/// What every request has beside its operation: its name, its lap, its peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Comes back in the completion. Cards without 64-bit ids have 16 bits of it; the others must be 0 there.
    pub id: u64,
    /// The phase of the slot ([`crate::rules::send_phase`]).
    pub phase: bool,
    /// Whom it goes to.
    pub to: To,
    /// Delivered with the message, to whoever polls there.
    pub immediate: Option<u32>,
    /// [`HINT_RATE`] or 0.
    pub hints: u8,
}

/// The first four words; `length` as the table has it.
#[inline(always)]
const fn first_words(head: &Head, operation: Operation, carries: bool, length: u16) -> [u64; 4] {
    let (has, immediate) = match head.immediate {
        Some(immediate) => (HAS_IMMEDIATE, immediate),
        None => (0, 0),
    };
    let control = operation as u8 | has | (bit(carries, 5) as u8) | META;
    let second = head.phase as u8 | FIRST | LAST | COMPLETION;
    let id = head.id;
    [
        (id & 0xffff)
            | (control as u64) << 16
            | (second as u64) << 24
            | (head.to.pair as u64) << 32
            | (length as u64) << 48,
        immediate as u64 | (head.to.handle as u64) << 32 | ((head.hints & 3) as u64) << 48,
        head.to.key as u64,
        id & !0xffff,
    ]
}

#[inline(always)]
const fn pair(length: u32, key: u32) -> u64 {
    length as u64 | (key as u64) << 32
}

/// A read or a write with its bytes in registered memory on both sides. Both lengths are `local.length`.
#[inline(always)]
const fn remote(head: &Head, operation: Operation, local: Local, remote: u64, key: u32) -> [u64; WORDS] {
    let [a, b, c, d] = first_words(head, operation, false, 1);
    [a, b, c, d, pair(local.length, key), remote, pair(local.length, local.key & KEY_MASK), local.address]
}

/// A write of `local` to the peer's address under its key; with an immediate where the head has one.
#[inline(always)]
pub const fn write(head: &Head, local: Local, address: u64, key: u32) -> [u64; WORDS] {
    remote(head, Operation::Write, local, address, key)
}

/// A read of the peer's address under its key, into `local`.
#[inline(always)]
pub const fn read(head: &Head, local: Local, address: u64, key: u32) -> [u64; WORDS] {
    remote(head, Operation::Read, local, address, key)
}

/// A send of one piece.
#[inline(always)]
pub const fn send(head: &Head, piece: Local) -> [u64; WORDS] {
    let [a, b, c, d] = first_words(head, Operation::Send, false, 1);
    [a, b, c, d, pair(piece.length, piece.key & KEY_MASK), piece.address, 0, 0]
}

/// A send of two pieces, in this order.
#[inline(always)]
pub const fn send_two(head: &Head, first: Local, second: Local) -> [u64; WORDS] {
    let [a, b, c, d] = first_words(head, Operation::Send, false, 2);
    let (one, two) = (pair(first.length, first.key & KEY_MASK), pair(second.length, second.key & KEY_MASK));
    [a, b, c, d, one, first.address, two, second.address]
}

/// A send that carries its bytes: the first `length` (at most [`INLINE`]) of these words; bytes behind them must be 0.
#[inline(always)]
pub const fn send_inline(head: &Head, bytes: [u64; 4], length: u16) -> [u64; WORDS] {
    let [a, b, c, d] = first_words(head, Operation::Send, true, length);
    [a, b, c, d, bytes[0], bytes[1], bytes[2], bytes[3]]
}

/// The same request in a queue whose slots have 128 bytes.
#[inline(always)]
pub const fn wide(words: [u64; WORDS]) -> [u64; WORDS_128] {
    let mut wide = [0; WORDS_128];
    let mut index = 0;
    while index < WORDS {
        wide[index] = words[index];
        index += 1;
    }
    wide
}

/// A send of 128 bytes that carries its bytes: the first `length` (at most [`INLINE_128`]) of these words; bytes behind them must be 0.
#[inline(always)]
pub const fn send_inline_128(head: &Head, bytes: [u64; 10], length: u16) -> [u64; WORDS_128] {
    let [a, b, c, d] = first_words(head, Operation::Send, true, length);
    behind([a, b, c, d, 0, 0, 0, 0], bytes, 4)
}

/// A write of 128 bytes that carries its bytes: the first `length` (at most [`INLINE_128`]) of these words; bytes behind them must be 0.
#[inline(always)]
pub const fn write_inline_128(head: &Head, bytes: [u64; 10], length: u16, address: u64, key: u32) -> [u64; WORDS_128] {
    let [a, b, c, d] = first_words(head, Operation::Write, true, length);
    behind([a, b, c, d, pair(length as u32, key), address, 0, 0], bytes, 6)
}

/// These words, and from `at` on these bytes.
#[inline(always)]
const fn behind(words: [u64; WORDS], bytes: [u64; 10], at: usize) -> [u64; WORDS_128] {
    let mut wide = wide(words);
    let mut index = 0;
    while index < bytes.len() {
        wide[at + index] = bytes[index];
        index += 1;
    }
    wide
}

/// A request as its reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it does.
    pub operation: Operation,
    /// Its name, lap and peer.
    pub head: Head,
    /// Its bytes.
    pub body: Body,
}

/// Where a request's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A send: so many pieces, in this order; those behind them are empty.
    Pieces([Local; SEND_PIECES], usize),
    /// A send that carries its bytes: so many of these words.
    Carried([u64; 10], usize),
    /// A read or a write: one's own bytes and the peer's.
    Memory(Local, Remote),
    /// A write that carries its bytes: so many of these words, to the peer's.
    CarriedTo([u64; 10], usize, Remote),
}

/// Why words are no request. A card answers such a one with [`crate::Status::UnsupportedOperation`] or by an error of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bit that marks a request is not set, or `first`, or `last`.
    NotARequest,
    /// A number of no operation.
    Operation(u8),
    /// A bit that must be 0 is not.
    Reserved,
    /// More pieces than the operation takes, or none.
    Pieces(u16),
    /// More bytes than a request of this size carries, or a read that carries some.
    Carried(u16),
    /// A local key of more than 24 bits.
    Key(u32),
    /// The request's two lengths differ.
    Lengths(u32, u32),
}

/// The phase bit of a request's first word, which changes with each lap.
#[inline(always)]
pub const fn phase(first: u64) -> bool {
    first >> 24 & PHASE as u64 != 0
}

impl Request {
    /// Reads a request: 8 words or 16.
    pub const fn decode(words: &[u64]) -> Result<Request, Malformed> {
        if words.len() != WORDS && words.len() != WORDS_128 {
            return Err(Malformed::NotARequest);
        }
        let (control, second) = ((words[0] >> 16) as u8, (words[0] >> 24) as u8);
        let marks = FIRST | LAST;
        if control & META == 0 || second & marks != marks {
            return Err(Malformed::NotARequest);
        }
        let Some(operation) = Operation::of(control & 0xf) else {
            return Err(Malformed::Operation(control & 0xf));
        };
        // The byte of hints has two, the one behind it none; between the queue key and the long id are six bytes.
        let reserved = second & !(PHASE | marks | COMPLETION) != 0
            || control & EXTENSION != 0
            || words[1] >> 50 != 0
            || words[2] >> 32 != 0
            || words[3] & 0xffff != 0;
        if reserved {
            return Err(Malformed::Reserved);
        }
        let head = Head {
            id: words[0] & 0xffff | words[3],
            phase: phase(words[0]),
            to: To { handle: (words[1] >> 32) as u16, pair: (words[0] >> 32) as u16, key: words[2] as u32 },
            immediate: if control & HAS_IMMEDIATE != 0 { Some(words[1] as u32) } else { None },
            hints: (words[1] >> 48) as u8,
        };
        let length = (words[0] >> 48) as u16;
        match body(words, operation, control & CARRIES != 0, length) {
            Ok(body) => Ok(Request { operation, head, body }),
            Err(malformed) => Err(malformed),
        }
    }

    /// Whether its words ask for a completion; libraries always do.
    pub const fn asks_for_completion(words: &[u64]) -> bool {
        !words.is_empty() && words[0] >> 24 & COMPLETION as u64 != 0
    }

    /// Bytes that it moves.
    pub const fn bytes(&self) -> u64 {
        match self.body {
            Body::Pieces(pieces, _) => pieces[0].length as u64 + pieces[1].length as u64,
            Body::Carried(_, length) | Body::CarriedTo(_, length, _) => length as u64,
            Body::Memory(local, _) => local.length as u64,
        }
    }
}

const fn body(words: &[u64], operation: Operation, carries: bool, length: u16) -> Result<Body, Malformed> {
    let is_wide = words.len() == WORDS_128;
    let is_send = matches!(operation, Operation::Send);
    if carries {
        let room = match (is_send, is_wide) {
            (true, false) => INLINE,
            (true, true) => INLINE_128,
            (false, true) if matches!(operation, Operation::Write) => INLINE_128,
            _ => return Err(Malformed::Carried(length)),
        };
        if length as usize > room {
            return Err(Malformed::Carried(length));
        }
        let mut bytes = [0; 10];
        let at = if is_send { 4 } else { 6 };
        let mut index = 0;
        while index < bytes.len() && at + index < words.len() {
            bytes[index] = words[at + index];
            index += 1;
        }
        if is_send {
            return Ok(Body::Carried(bytes, length as usize));
        }
        let to = there(words);
        return if to.length == length as u32 {
            Ok(Body::CarriedTo(bytes, length as usize, to))
        } else {
            Err(Malformed::Lengths(length as u32, to.length))
        };
    }
    let most = if is_send { SEND_PIECES } else { 1 };
    if length as usize > most || length == 0 && !is_send {
        return Err(Malformed::Pieces(length));
    }
    if is_send {
        let mut pieces = [Local { address: 0, length: 0, key: 0 }; SEND_PIECES];
        let mut index = 0;
        while index < length as usize {
            pieces[index] = match here(words, 4 + 2 * index) {
                Ok(piece) => piece,
                Err(malformed) => return Err(malformed),
            };
            index += 1;
        }
        return Ok(Body::Pieces(pieces, length as usize));
    }
    match here(words, 6) {
        Ok(local) if local.length == there(words).length => Ok(Body::Memory(local, there(words))),
        Ok(local) => Err(Malformed::Lengths(local.length, there(words).length)),
        Err(malformed) => Err(malformed),
    }
}

const fn here(words: &[u64], at: usize) -> Result<Local, Malformed> {
    let key = (words[at] >> 32) as u32;
    if key > KEY_MASK {
        return Err(Malformed::Key(key));
    }
    Ok(Local { address: words[at + 1], length: words[at] as u32, key })
}

const fn there(words: &[u64]) -> Remote {
    Remote { address: words[5], length: words[4] as u32, key: (words[4] >> 32) as u32 }
}
