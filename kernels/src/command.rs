//! The 32-byte command: four words, each with 63 bits of content below the lap parity bit.
//!
//! ```text
//! word 0   parity | opcode 4 | source region 11      | source offset 48
//! word 1   parity | 0      4 | destination region 11 | destination offset 48
//! word 2   parity | peer  15                         | bytes 48
//! word 3   parity | 0     31                         | immediate 32
//! ```
//!
//! A signal's immediate names the signal (12 bits) and what it adds, less one (14 bits). A put of a value carries the value
//! itself: its low 48 bits in place of the source's offset, the others in place of the immediate.
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
    /// Write the 1 to 8 bytes that stand in the command.
    PutValue = 5,
}

/// Signals of a PE.
pub const SIGNALS: u32 = 1 << 12;
/// The most that one signal adds.
pub const MOST_ADDED: u32 = 1 << 14;

/// The immediate of a signal: which, below [`SIGNALS`], and what it adds, 1 to [`MOST_ADDED`].
#[inline(always)]
pub const fn signal_immediate(signal: u32, add: u32) -> u32 {
    add.wrapping_sub(1) << 12 | signal
}

/// Signal and what it adds, of an immediate; `None` when it is none of a signal.
#[inline(always)]
pub const fn signal_of(immediate: u32) -> Option<(u32, u64)> {
    let add = (immediate >> 12) + 1;
    if add <= MOST_ADDED { Some((immediate & (SIGNALS - 1), add as u64)) } else { None }
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
            5 => Opcode::PutValue,
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

    /// The value of a [`PutValue`](Opcode::PutValue).
    #[inline(always)]
    pub fn value(&self) -> u64 {
        self.source_offset & MAX_OFFSET | (self.immediate as u64) << 48
    }
}
