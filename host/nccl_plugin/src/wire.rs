//! Contents of a slot: a header, followed by the bytes.

use crate::operation::RemoteLocation;
use ginlab_fabric::same_host::MAX_SENDERS;

/// Number of bytes of a header.
pub const HEADER: usize = 128;
/// Number of the engine's signals that name written slots. As many further signals return slots.
pub const NAMES: usize = kernels::command::SIGNALS as usize / 2;
/// Maximum number of ranks. Each needs at least two slots, and each sends to the inbox of every other rank.
pub const MOST_RANKS: usize = if NAMES / 2 < MAX_SENDERS { NAMES / 2 } else { MAX_SENDERS };
/// Maximum number of slots per peer, and of all peers together if there are few. It is limited because all slots are
/// checked whenever a transfer completes or arrives.
const MOST_SLOTS: usize = 64;
const ALL_SLOTS: usize = 128;
/// Minimum number of slots per peer, if there are enough signals for them.
const LEAST_SLOTS: usize = 8;
/// Number of bytes of a zone, unless slots of [`LEAST`] bytes require more.
const ZONE: usize = 16 << 20;
/// Minimum and maximum number of bytes in a slot, after its header.
const LEAST: usize = 8 << 10;
const MOST: usize = 128 << 10;

/// Division of the zones into slots, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneLayout {
    /// Number of ranks.
    pub ranks: usize,
    /// Number of slots per rank.
    pub slots: usize,
    /// Number of bytes in a slot, after its header.
    pub room: usize,
}

impl ZoneLayout {
    /// Returns the layout for `ranks` ranks, or `None` if there are none or more than [`MOST_RANKS`].
    pub fn of(ranks: usize) -> Option<ZoneLayout> {
        let few = (ALL_SLOTS / ranks.max(1)).clamp(LEAST_SLOTS, MOST_SLOTS);
        let slots = (NAMES / ranks.max(1)).min(few);
        let room = (ZONE / (ranks.max(1) * slots.max(1))).clamp(LEAST, MOST) & !4095;
        (1..=MOST_RANKS).contains(&ranks).then_some(ZoneLayout { ranks, slots, room })
    }

    /// Returns the distance between two slots in bytes.
    pub fn stride(&self) -> usize {
        // Payloads start at page boundaries, and headers precede them.
        self.room + 4096
    }

    /// Returns the number of bytes of a zone.
    pub fn bytes(&self) -> usize {
        self.ranks * self.slots * self.stride()
    }

    /// Returns the offset of a slot's header in a zone.
    pub fn header(&self, peer: usize, slot: usize) -> usize {
        (peer * self.slots + slot) * self.stride() + 4096 - HEADER
    }

    /// Returns the engine's signal that names slot `slot` of rank `rank`, below [`NAMES`].
    pub fn name(&self, rank: usize, slot: usize) -> u32 {
        (rank * self.slots + slot) as u32
    }
}

/// Kind of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SlotKind {
    /// Bytes of a put, or only its signal.
    Put = 1,
    /// Request of a get.
    Get = 2,
    /// Bytes of the answer to a get.
    Answer = 3,
}

/// Header of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    /// Kind of the slot.
    pub kind: SlotKind,
    /// Whether the operation has a signal.
    pub signals: bool,
    /// Number of NCCL's context.
    pub context: u16,
    /// Number of bytes in this slot.
    pub bytes: u32,
    /// Number of the operation among the sender's operations to this rank, from 1.
    pub number: u64,
    /// Number among the puts of its context to this rank, from 1. Gets and answers have the number 0.
    pub turn: u64,
    /// Number of slots of the operation.
    pub parts: u32,
    /// Destination of the bytes in this slot. For a get, the source of its bytes.
    pub at: RemoteLocation,
    /// Word of the signal. For a get, the destination of its bytes.
    pub then: RemoteLocation,
    /// Value that the signal adds.
    pub add: u64,
    /// Total number of bytes of the operation.
    pub total: u64,
    /// Number of the get, which its answer also contains.
    pub get: u64,
    /// Time of submission, by the sender's clock, in nanoseconds.
    pub at_ns: u64,
    /// All operations of the sender to this rank up to this number were complete when the slot was filled. The slot
    /// must not be applied before they have arrived.
    pub behind: u64,
    /// Mask of those of the 64 operations after `behind` that were also complete. An operation that takes long
    /// therefore does not hold back the others.
    pub among: u64,
}

impl SlotHeader {
    /// Offset of the word in which the receiver keeps a signal's new value until it has been copied to the GPU. The
    /// word is a field that has already been read by then.
    pub const SCRATCH: usize = 120;

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0] = self.kind as u8;
        out[1] = u8::from(self.signals);
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
            self.turn,
        ];
        for (index, word) in words.iter().enumerate() {
            out[8 + index * 8..16 + index * 8].copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Decodes a header; `None` if no rank can have written these bytes.
    pub fn decode(bytes: &[u8; HEADER]) -> Option<SlotHeader> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 + index * 8..16 + index * 8]);
            u64::from_le_bytes(word)
        };
        let kind = match bytes[0] {
            1 => SlotKind::Put,
            2 => SlotKind::Get,
            3 => SlotKind::Answer,
            _ => return None,
        };
        Some(SlotHeader {
            kind,
            signals: bytes[1] & 1 != 0,
            context: u16::from_le_bytes([bytes[2], bytes[3]]),
            bytes: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            number: word(0),
            parts: word(1) as u32,
            at: RemoteLocation { region: word(2) as u32, offset: word(3) },
            then: RemoteLocation { region: (word(2) >> 32) as u32, offset: word(4) },
            add: word(5),
            total: word(6),
            get: word(7),
            at_ns: word(8),
            behind: word(9),
            among: word(10),
            turn: word(11),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        let header = SlotHeader {
            kind: SlotKind::Answer,
            signals: true,
            context: 515,
            bytes: 77,
            number: 1 << 40,
            turn: 1 << 39 | 7,
            parts: 9,
            at: RemoteLocation { region: 5, offset: 1 << 41 },
            then: RemoteLocation { region: u32::MAX, offset: 3 },
            add: u64::MAX,
            total: 123,
            get: 456,
            at_ns: 789,
            behind: 987,
            among: 1 << 63 | 5,
        };
        assert_eq!(SlotHeader::decode(&header.encode()), Some(header));
        assert_eq!(SlotHeader::decode(&[0; HEADER]), None);
    }

    #[test]
    fn slots_are_disjoint_with_unique_names() {
        for ranks in [1, 2, 3, 8, 64, 1024] {
            let layout = ZoneLayout::of(ranks).expect("that many");
            let last = layout.header(ranks - 1, layout.slots - 1) + HEADER + layout.room;
            assert!(layout.header(0, 1) - layout.header(0, 0) >= HEADER + layout.room && last <= layout.bytes());
            assert!((layout.name(ranks - 1, layout.slots - 1) as usize) < NAMES && layout.room >= 4096, "{layout:?}");
            assert!(layout.bytes() < 40 << 20 || ranks > 64, "{layout:?}");
        }
        assert_eq!((ZoneLayout::of(0), ZoneLayout::of(1025)), (None, None));
    }

    #[test]
    fn rank_limit_matches_inbox_senders() {
        assert!(
            ZoneLayout::of(MAX_SENDERS).is_some() && ZoneLayout::of(MAX_SENDERS + 1).is_none(),
            "{MAX_SENDERS} senders"
        );
    }
}
