//! What stands in a slot: a header, and behind it the bytes.
//!
//! Each rank has a *landing zone* with slots for each rank, and an *outgoing zone* of the same shape: slot `i` for a peer is written into
//! slot `i` that the peer has for us. A slot is used again when its write is complete here, and the peer has said that it is done with it.

use crate::operation::Place;

/// Bytes of a header.
pub const HEADER: usize = 128;
/// Signals of the engine that name slots which have been written, and as many that give slots back.
pub const NAMES: usize = kernels::command::SIGNALS as usize / 2;
/// Slots for each peer at most, and for all peers together where there are few: they are all looked at, whenever something has come.
const MOST_SLOTS: usize = 64;
const ALL_SLOTS: usize = 128;
/// Slots for each peer at least, where there are names for them.
const LEAST_SLOTS: usize = 8;
/// Bytes of a zone, unless slots of [`LEAST`] bytes need more.
const ZONE: usize = 16 << 20;
/// Bytes of a slot behind its header.
const LEAST: usize = 8 << 10;
const MOST: usize = 128 << 10;

/// How zones are divided: the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Ranks.
    pub ranks: usize,
    /// Slots for each.
    pub slots: usize,
    /// Bytes behind a slot's header.
    pub room: usize,
}

impl Layout {
    /// For so many ranks; `None` for more than there are names for.
    pub fn of(ranks: usize) -> Option<Layout> {
        let few = (ALL_SLOTS / ranks.max(1)).clamp(LEAST_SLOTS, MOST_SLOTS);
        let slots = (NAMES / ranks.max(1)).min(few);
        let room = (ZONE / (ranks.max(1) * slots.max(1))).clamp(LEAST, MOST) & !4095;
        (ranks > 0 && slots >= 2).then_some(Layout { ranks, slots, room })
    }

    /// Bytes from one slot to the next.
    pub fn stride(&self) -> usize {
        // Payloads lie on pages, headers before them.
        self.room + 4096
    }

    /// Of a zone.
    pub fn bytes(&self) -> usize {
        self.ranks * self.slots * self.stride()
    }

    /// Where a slot's header is, from the first byte of a zone.
    pub fn header(&self, peer: usize, slot: usize) -> usize {
        (peer * self.slots + slot) * self.stride() + 4096 - HEADER
    }

    /// The name of a slot of this rank at its peers, below [`NAMES`].
    pub fn name(&self, rank: usize, slot: usize) -> u32 {
        (rank * self.slots + slot) as u32
    }
}

/// What a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Bytes of a put, or its signal alone.
    Put = 1,
    /// Somebody wants bytes.
    Get = 2,
    /// Bytes of the answer.
    Answer = 3,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Whether a signal follows.
    pub signals: bool,
    /// Whether that is a strong one.
    pub strong: bool,
    /// NCCL's context.
    pub context: u16,
    /// Bytes of this slot.
    pub bytes: u32,
    /// Of the sender's operations to this rank, from 1.
    pub number: u64,
    /// Slots of the operation.
    pub parts: u32,
    /// Where the bytes of this slot go; of a get: where they are.
    pub at: Place,
    /// Where its signal is counted; of a get: where its bytes go.
    pub then: Place,
    /// What the signal adds.
    pub add: u64,
    /// Bytes of the operation.
    pub total: u64,
    /// The number of a get, also in its answer.
    pub get: u64,
    /// When it was asked for, by the sender's clock.
    pub at_ns: u64,
    /// All operations of the sender to this rank up to this one were complete before: what comes later lands behind them.
    pub behind: u64,
    /// Those of the 64 after that one which were complete before too, by bit: one that took long has not held them up.
    pub among: u64,
}

impl Header {
    /// Where the receiver keeps a signal's new value until it has been copied to the GPU: a field that it has read by then.
    pub const SCRATCH: usize = 120;

    /// As bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0] = self.kind as u8;
        out[1] = u8::from(self.signals) | u8::from(self.strong) << 1;
        out[2..4].copy_from_slice(&self.context.to_le_bytes());
        out[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        let words = [
            self.number,
            u64::from(self.parts),
            u64::from(self.at.region) | u64::from(self.then.region) << 32,
            self.at.offset,
            self.then.offset,
            self.add,
            self.total,
            self.get,
            self.at_ns,
            self.behind,
            self.among,
        ];
        for (index, word) in words.iter().enumerate() {
            out[8 + index * 8..16 + index * 8].copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// From bytes; `None` for what no rank writes.
    pub fn decode(bytes: &[u8; HEADER]) -> Option<Header> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 + index * 8..16 + index * 8]);
            u64::from_le_bytes(word)
        };
        let kind = match bytes[0] {
            1 => Kind::Put,
            2 => Kind::Get,
            3 => Kind::Answer,
            _ => return None,
        };
        Some(Header {
            kind,
            signals: bytes[1] & 1 != 0,
            strong: bytes[1] & 2 != 0,
            context: u16::from_le_bytes([bytes[2], bytes[3]]),
            bytes: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            number: word(0),
            parts: word(1) as u32,
            at: Place { region: word(2) as u32, offset: word(3) },
            then: Place { region: (word(2) >> 32) as u32, offset: word(4) },
            add: word(5),
            total: word(6),
            get: word(7),
            at_ns: word(8),
            behind: word(9),
            among: word(10),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        let header = Header {
            kind: Kind::Answer,
            signals: true,
            strong: true,
            context: 515,
            bytes: 77,
            number: 1 << 40,
            parts: 9,
            at: Place { region: 5, offset: 1 << 41 },
            then: Place { region: u32::MAX, offset: 3 },
            add: u64::MAX,
            total: 123,
            get: 456,
            at_ns: 789,
            behind: 987,
            among: 1 << 63 | 5,
        };
        assert_eq!(Header::decode(&header.encode()), Some(header));
        assert_eq!(Header::decode(&[0; HEADER]), None);
    }

    #[test]
    fn slots_do_not_overlap_and_have_names_of_their_own() {
        for ranks in [1, 2, 3, 8, 64, 1024] {
            let layout = Layout::of(ranks).expect("that many");
            let last = layout.header(ranks - 1, layout.slots - 1) + HEADER + layout.room;
            assert!(layout.header(0, 1) - layout.header(0, 0) >= HEADER + layout.room && last <= layout.bytes());
            assert!((layout.name(ranks - 1, layout.slots - 1) as usize) < NAMES && layout.room >= 4096, "{layout:?}");
            assert!(layout.bytes() < 40 << 20 || ranks > 64, "{layout:?}");
        }
        assert_eq!((Layout::of(0), Layout::of(1025)), (None, None));
    }
}
