//! Receives: slots of the receive queue, 16 bytes per piece.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | address |
//! | 8 | ID |
//! | 10 | length |
//! | 12 | 23:0 key, 30 first piece, 31 last piece |

use crate::{KEY_MASK, bit};

/// Number of words of a piece of a receive.
pub const WORDS: usize = 2;

/// One piece of a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivePiece {
    /// ID returned in the completion.
    pub id: u16,
    /// Address of the buffer.
    pub address: u64,
    /// Size of the buffer in bytes.
    pub length: u16,
    /// Local key of the memory, 24 bits.
    pub key: u32,
    /// Whether this is the first piece of a receive.
    pub first: bool,
    /// Whether this is the last piece of a receive.
    pub last: bool,
}

impl ReceivePiece {
    /// Creates a receive of one piece.
    pub const fn one(id: u16, address: u64, length: u16, key: u32) -> ReceivePiece {
        ReceivePiece { id, address, length, key, first: true, last: true }
    }

    /// Encodes the piece.
    #[inline(always)]
    pub const fn words(&self) -> [u64; WORDS] {
        let key = (self.key & KEY_MASK) as u64 | bit(self.first, 30) | bit(self.last, 31);
        [self.address, self.id as u64 | (self.length as u64) << 16 | key << 32]
    }

    /// Decodes one piece. Returns `None` if a reserved bit is set.
    pub const fn decode(words: [u64; WORDS]) -> Option<ReceivePiece> {
        let control = (words[1] >> 32) as u32;
        if control & 0x3f00_0000 != 0 {
            return None;
        }
        Some(ReceivePiece {
            id: words[1] as u16,
            address: words[0],
            length: (words[1] >> 16) as u16,
            key: control & KEY_MASK,
            first: control & 1 << 30 != 0,
            last: control & 1 << 31 != 0,
        })
    }
}
