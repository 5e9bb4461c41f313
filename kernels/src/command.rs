//! The 32-byte command: four words, each with 63 bits of content below the lap parity bit.
//!
//! ```text
//! word 0   parity | opcode 4 | source region 11      | source offset 48
//! word 1   parity | 0      4 | destination region 11 | destination offset 48
//! word 2   parity | peer  15                         | bytes 48
//! word 3   parity | 0     31                         | immediate 32
//! ```
//!
//! A command names registered regions and offsets, never addresses: whatever a kernel writes here, the proxy can check it
//! against what was registered, and a bad command becomes an error instead of a wild write.

/// Words of a command.
pub const COMMAND_WORDS: u32 = 4;
/// The top bit of each word belongs to the ring.
pub const PARITY: u64 = 1 << 63;
/// Offsets and lengths are below 2^48.
pub const MAX_OFFSET: u64 = (1 << 48) - 1;
/// Regions are numbered below 2^11.
pub const MAX_REGION: u32 = (1 << 11) - 1;
/// Peers are numbered below 2^15.
pub const MAX_PEER: u32 = (1 << 15) - 1;

/// What the proxy shall do.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Write the source bytes to the peer.
    Put = 1,
    /// Write, then count the immediate at the target when all bytes have arrived.
    PutSignal = 2,
    /// Read the peer's bytes (named as the *source*) into our region (the *destination*).
    Get = 3,
    /// Count the immediate at the target; no bytes.
    Signal = 4,
}

/// One command, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub opcode: Opcode,
    /// Region that is read.
    pub source_region: u32,
    /// First byte read, from the start of the region.
    pub source_offset: u64,
    /// Region that is written.
    pub destination_region: u32,
    /// First byte written, from the start of the region.
    pub destination_offset: u64,
    /// Bytes to move.
    pub bytes: u64,
    /// The other rank, as an index into the proxy's peers.
    pub peer: u32,
    /// Immediate data for the target (signals).
    pub immediate: u32,
}

impl Command {
    /// The four words, parity bits clear.
    ///
    /// Fields that are too large are cut to their width. The device has no way to report it, and the cut command still
    /// names a registered region or is refused.
    #[inline(always)]
    pub fn encode(&self) -> [u64; 4] {
        [
            (self.opcode as u64) << 59
                | ((self.source_region & MAX_REGION) as u64) << 48
                | (self.source_offset & MAX_OFFSET),
            ((self.destination_region & MAX_REGION) as u64) << 48 | (self.destination_offset & MAX_OFFSET),
            ((self.peer & MAX_PEER) as u64) << 48 | (self.bytes & MAX_OFFSET),
            self.immediate as u64,
        ]
    }

    /// The command in these words (parity bits are ignored), or `None` when the opcode is unknown or a reserved bit is
    /// set. Regions, offsets and peer are the proxy's to check: only it knows what is registered.
    #[inline]
    pub fn decode(words: [u64; 4]) -> Option<Command> {
        let opcode = match (words[0] >> 59) & 0xf {
            1 => Opcode::Put,
            2 => Opcode::PutSignal,
            3 => Opcode::Get,
            4 => Opcode::Signal,
            _ => return None,
        };
        if (words[1] >> 59) & 0xf != 0 || (words[3] & !PARITY) >> 32 != 0 {
            return None;
        }
        Some(Command {
            opcode,
            source_region: (words[0] >> 48) as u32 & MAX_REGION,
            source_offset: words[0] & MAX_OFFSET,
            destination_region: (words[1] >> 48) as u32 & MAX_REGION,
            destination_offset: words[1] & MAX_OFFSET,
            bytes: words[2] & MAX_OFFSET,
            peer: (words[2] >> 48) as u32 & MAX_PEER,
            immediate: words[3] as u32,
        })
    }
}
