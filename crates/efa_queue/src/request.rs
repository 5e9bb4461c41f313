//! Requests: slots of the send queue.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | ID, low 16 bits |
//! | 2 | 3:0 operation, 4 has an immediate, 5 has inline data, 6 extension (0), 7 always 1 |
//! | 3 | 0 phase, 2 first (1), 3 last (1), 4 requests a completion |
//! | 4 | the peer's queue pair |
//! | 6 | number of pieces, or of bytes of inline data |
//! | 8 | immediate |
//! | 12 | address handle |
//! | 14 | 1:0 hints |
//! | 16 | the peer's queue key |
//! | 26 | ID, bits 16 to 63, on devices that support them |
//! | 32 | send: up to two pieces {length, key, address}, or inline data |
//! | 32 | read, write: remote {length, key, address} |
//! | 48 | read, write: local {length, key, address}, or inline data (128-byte write) |

use crate::{EfaOperation, KEY_MASK, Local, Remote, bit};

/// Number of words of a 64-byte request.
pub const WORDS: usize = 8;
/// Number of words of a 128-byte request.
pub const WORDS_128: usize = 16;
/// Maximum number of pieces of a send.
pub const SEND_PIECES: usize = 2;
/// Maximum bytes of inline data of a 64-byte send.
pub const INLINE: usize = 32;
/// Maximum bytes of inline data of a 128-byte send or write.
pub const INLINE_128: usize = 80;
/// Hint to optimize for the rate of small requests instead of bandwidth.
pub const HINT_RATE: u8 = 1;
/// Maximum size of one read or write in bytes (`efadv_device_attr.max_rdma_size` of existing devices).
pub const MOST_BYTES: u32 = 1 << 30;

const HAS_IMMEDIATE: u8 = 1 << 4;
const CARRIES: u8 = 1 << 5;
const EXTENSION: u8 = 1 << 6;
const META: u8 = 1 << 7;
const PHASE: u8 = 1;
const FIRST: u8 = 1 << 2;
const LAST: u8 = 1 << 3;
const COMPLETION: u8 = 1 << 4;

/// Destination of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct To {
    /// Address handle: a number within the protection domain that created it.
    pub handle: u16,
    /// Queue pair of the peer.
    pub pair: u16,
    /// Queue key of that queue pair.
    pub key: u32,
}

/// Fields that all requests have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// ID returned in the completion. Devices without 64-bit IDs have only the low 16 bits; the others must be 0.
    pub id: u64,
    /// Phase of the slot ([`crate::rules::send_phase`]).
    pub phase: bool,
    /// Destination of the request.
    pub to: To,
    /// Immediate data, delivered to the peer's completion queue, if any.
    pub immediate: Option<u32>,
    /// [`HINT_RATE`] or 0.
    pub hints: u8,
}

/// Encodes the first four words; the table defines `length`.
#[inline(always)]
const fn first_words(head: &Head, operation: EfaOperation, carries: bool, length: u16) -> [u64; 4] {
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

/// Encodes a read or write between registered memory. Both lengths are `local.length`.
#[inline(always)]
const fn remote(head: &Head, operation: EfaOperation, local: Local, remote: u64, key: u32) -> [u64; WORDS] {
    let [a, b, c, d] = first_words(head, operation, false, 1);
    [a, b, c, d, pair(local.length, key), remote, pair(local.length, local.key & KEY_MASK), local.address]
}

/// Encodes a write of `local` to `address` of the peer under its `key`, with an immediate if the head has one.
#[inline(always)]
pub const fn write(head: &Head, local: Local, address: u64, key: u32) -> [u64; WORDS] {
    remote(head, EfaOperation::Write, local, address, key)
}

/// Encodes a read of `address` of the peer under its `key`, into `local`.
#[inline(always)]
pub const fn read(head: &Head, local: Local, address: u64, key: u32) -> [u64; WORDS] {
    remote(head, EfaOperation::Read, local, address, key)
}

/// Encodes a send of one piece.
#[inline(always)]
pub const fn send(head: &Head, piece: Local) -> [u64; WORDS] {
    let [a, b, c, d] = first_words(head, EfaOperation::Send, false, 1);
    [a, b, c, d, pair(piece.length, piece.key & KEY_MASK), piece.address, 0, 0]
}

/// Extends a 64-byte request for a queue with 128-byte slots.
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

/// Encodes a 128-byte write with inline data: the first `length` (at most [`INLINE_128`]) of `bytes`. The bytes after
/// them must be 0.
#[inline(always)]
pub const fn write_inline_128(head: &Head, bytes: [u64; 10], length: u16, address: u64, key: u32) -> [u64; WORDS_128] {
    let [a, b, c, d] = first_words(head, EfaOperation::Write, true, length);
    behind([a, b, c, d, pair(length as u32, key), address, 0, 0], bytes, 6)
}

/// Returns `words` with `bytes` stored at word `at` and in the following words.
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

/// A decoded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedRequest {
    /// Operation of the request.
    pub operation: EfaOperation,
    /// ID, phase and destination.
    pub head: Head,
    /// Data of the request.
    pub body: RequestData,
}

/// Location of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestData {
    /// A send: the pieces in order, and their number. The remaining ones are empty.
    Pieces([Local; SEND_PIECES], usize),
    /// A send with inline data: the words, and the number of bytes.
    Carried([u64; 10], usize),
    /// A read or write: local and remote memory.
    Memory(Local, Remote),
    /// A write with inline data: the words, the number of bytes, and the remote memory.
    CarriedTo([u64; 10], usize, Remote),
}

/// Reason why words are not a valid request. The hardware reports [`crate::CompletionStatus::UnsupportedOperation`] or
/// puts the queue pair in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bit that marks a request, `first` or `last` is not set.
    NotARequest,
    /// The operation does not exist.
    Operation(u8),
    /// A reserved bit is set.
    Reserved,
    /// More pieces than the operation permits, or none.
    Pieces(u16),
    /// More inline data than a request of this size can carry, or a read with inline data.
    Carried(u16),
    /// A local key of more than 24 bits.
    Key(u32),
    /// The two lengths of the request differ.
    Lengths(u32, u32),
}

/// Returns the phase bit of a request's first word, which changes with each lap.
#[inline(always)]
pub const fn phase(first: u64) -> bool {
    first >> 24 & PHASE as u64 != 0
}

impl DecodedRequest {
    /// Decodes a request of 8 or 16 words.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the words are not a valid request.
    pub const fn decode(words: &[u64]) -> Result<DecodedRequest, Malformed> {
        if words.len() != WORDS && words.len() != WORDS_128 {
            return Err(Malformed::NotARequest);
        }
        let (control, second) = ((words[0] >> 16) as u8, (words[0] >> 24) as u8);
        let marks = FIRST | LAST;
        if control & META == 0 || second & marks != marks {
            return Err(Malformed::NotARequest);
        }
        let Some(operation) = EfaOperation::of(control & 0xf) else {
            return Err(Malformed::Operation(control & 0xf));
        };
        // The byte of hints has two bits, and the next byte none. Six bytes between the queue key and the high ID are
        // reserved.
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
            Ok(body) => Ok(DecodedRequest { operation, head, body }),
            Err(malformed) => Err(malformed),
        }
    }

    /// Returns the operation of a request, valid or not, or `None` if it has no known one.
    pub const fn operation_of(words: &[u64]) -> Option<EfaOperation> {
        if words.is_empty() || (words[0] >> 16) as u8 & META == 0 {
            return None;
        }
        EfaOperation::of((words[0] >> 16) as u8 & 0xf)
    }

    /// Returns whether the words request a completion, as libraries always do.
    pub const fn asks_for_completion(words: &[u64]) -> bool {
        !words.is_empty() && words[0] >> 24 & COMPLETION as u64 != 0
    }

    /// Returns the number of bytes that the request moves.
    pub const fn bytes(&self) -> u64 {
        match self.body {
            RequestData::Pieces(pieces, _) => pieces[0].length as u64 + pieces[1].length as u64,
            RequestData::Carried(_, length) | RequestData::CarriedTo(_, length, _) => length as u64,
            RequestData::Memory(local, _) => local.length as u64,
        }
    }
}

const fn body(words: &[u64], operation: EfaOperation, carries: bool, length: u16) -> Result<RequestData, Malformed> {
    let is_wide = words.len() == WORDS_128;
    let is_send = matches!(operation, EfaOperation::Send);
    if carries {
        let room = match (is_send, is_wide) {
            (true, false) => INLINE,
            (true, true) => INLINE_128,
            (false, true) if matches!(operation, EfaOperation::Write) => INLINE_128,
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
            return Ok(RequestData::Carried(bytes, length as usize));
        }
        let to = there(words);
        return if to.length == length as u32 {
            Ok(RequestData::CarriedTo(bytes, length as usize, to))
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
        return Ok(RequestData::Pieces(pieces, length as usize));
    }
    match here(words, 6) {
        Ok(local) if local.length == there(words).length => Ok(RequestData::Memory(local, there(words))),
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
