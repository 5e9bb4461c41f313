//! Receives: slots of the receive queue, 16 bytes for each piece.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | address |
//! | 8 | id |
//! | 10 | length |
//! | 12 | 23:0 key, 30 first piece, 31 last piece |

use crate::{KEY_MASK, bit};

/// Words of a piece of a receive.
pub const WORDS: usize = 2;

/// One piece of a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receive {
    /// Comes back in the completion.
    pub id: u16,
    /// Where the bytes go.
    pub address: u64,
    /// How many there is room for.
    pub length: u16,
    /// The key of the memory, 24 bits.
    pub key: u32,
    /// Whether a receive begins with this piece.
    pub first: bool,
    /// Whether a receive ends with this piece.
    pub last: bool,
}

impl Receive {
    /// A receive of one piece.
    pub const fn one(id: u16, address: u64, length: u16, key: u32) -> Receive {
        Receive { id, address, length, key, first: true, last: true }
    }

    /// As words.
    #[inline(always)]
    pub const fn words(&self) -> [u64; WORDS] {
        let key = (self.key & KEY_MASK) as u64 | bit(self.first, 30) | bit(self.last, 31);
        [self.address, self.id as u64 | (self.length as u64) << 16 | key << 32]
    }

    /// Reads one piece; `None` where a bit that must be 0 is not.
    pub const fn decode(words: [u64; WORDS]) -> Option<Receive> {
        let control = (words[1] >> 32) as u32;
        if control & 0x3f00_0000 != 0 {
            return None;
        }
        Some(Receive {
            id: words[1] as u16,
            address: words[0],
            length: (words[1] >> 16) as u16,
            key: control & KEY_MASK,
            first: control & 1 << 30 != 0,
            last: control & 1 << 31 != 0,
        })
    }
}
