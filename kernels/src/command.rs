//! The 32-byte command: four words, each with 63 bits of content below the lap parity bit.
//!
//! ```text
//! word 0   parity | opcode 4 | source region 11      | source offset 48
//! word 1   parity | 0      4 | destination region 11 | destination offset 48
//! word 2   parity | peer  15                         | bytes 48
//! word 3   parity | 0     31                         | immediate 32
//! ```
//!
//! The immediate of a signal holds the index of the signal (12 bits) and the increment minus 1 (14 bits). A put of a
//! value carries the value itself: its low 48 bits replace the source offset, the others the immediate.
//!
//! A command refers to registered regions and offsets, never to addresses. The proxy can check whatever a kernel writes
//! here against the registrations, so a bad command causes an error instead of a wild write.

/// Number of words of a command.
pub const COMMAND_WORDS: u32 = 4;
/// The top bit of each word, reserved for the ring's lap parity.
pub const PARITY: u64 = 1 << 63;
/// Maximum offset and length in bytes.
pub const MAX_OFFSET: u64 = (1 << 48) - 1;
/// Maximum index of a region.
pub const MAX_REGION: u32 = (1 << 11) - 1;
/// Maximum index of a peer.
pub const MAX_PEER: u32 = (1 << 15) - 1;

/// Operation that the proxy performs.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Write the source bytes to the peer.
    Put = 1,
    /// Write the source bytes to the peer, and deliver the immediate to the target after all of them have arrived.
    PutSignal = 2,
    /// Read bytes of the peer (the *source*) into a region of this rank (the *destination*).
    Get = 3,
    /// Deliver the immediate to the target without data.
    Signal = 4,
    /// Write the 1 to 8 bytes that are inline in the command.
    PutValue = 5,
}

/// Number of signals of a PE.
pub const SIGNALS: u32 = 1 << 12;
/// Maximum increment of one signal.
pub const MOST_ADDED: u32 = 1 << 14;

/// Returns the immediate of a signal: its index, below [`SIGNALS`], and the increment, 1 to [`MOST_ADDED`].
#[inline(always)]
pub const fn signal_immediate(signal: u32, add: u32) -> u32 {
    add.wrapping_sub(1) << 12 | signal
}

/// Returns the signal and the increment of an immediate; `None` if the immediate is not that of a signal.
#[inline(always)]
pub const fn signal_of(immediate: u32) -> Option<(u32, u64)> {
    let add = (immediate >> 12) + 1;
    if add <= MOST_ADDED { Some((immediate & (SIGNALS - 1), add as u64)) } else { None }
}

/// A decoded command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Operation.
    pub opcode: Opcode,
    /// Index of the region to read.
    pub source_region: u32,
    /// Offset of the first byte to read, from the start of the region.
    pub source_offset: u64,
    /// Index of the region to write.
    pub destination_region: u32,
    /// Offset of the first byte to write, from the start of the region.
    pub destination_offset: u64,
    /// Number of bytes to transfer.
    pub bytes: u64,
    /// Index of the other rank among the proxy's peers.
    pub peer: u32,
    /// Immediate data for the target (signals).
    pub immediate: u32,
}

impl Command {
    /// Creates a put of `bytes` bytes from a region and offset of this rank to those of `peer`.
    #[inline(always)]
    pub const fn put(source: (u32, u64), destination: (u32, u64), bytes: u64, peer: u32) -> Command {
        Command {
            opcode: Opcode::Put,
            source_region: source.0,
            source_offset: source.1,
            destination_region: destination.0,
            destination_offset: destination.1,
            bytes,
            peer,
            immediate: 0,
        }
    }

    /// Creates a get of `bytes` bytes from a region and offset of `peer` to those of this rank.
    #[inline(always)]
    pub const fn get(source: (u32, u64), destination: (u32, u64), bytes: u64, peer: u32) -> Command {
        Command { opcode: Opcode::Get, ..Command::put(source, destination, bytes, peer) }
    }

    /// Creates a signal to `peer` without bytes.
    #[inline(always)]
    pub const fn signal(peer: u32, immediate: u32) -> Command {
        Command { opcode: Opcode::Signal, immediate, ..Command::put((0, 0), (0, 0), 0, peer) }
    }

    /// Creates a put of the low `bytes` bytes (1 to 8) of `value`, which the command carries.
    #[inline(always)]
    pub const fn put_value(value: u64, destination: (u32, u64), bytes: u64, peer: u32) -> Command {
        Command {
            opcode: Opcode::PutValue,
            immediate: (value >> 48) as u32,
            ..Command::put((0, value & MAX_OFFSET), destination, bytes, peer)
        }
    }

    /// Converts a put into one that delivers `immediate` to the target after all its bytes have arrived.
    #[inline(always)]
    pub const fn with_signal(self, immediate: u32) -> Command {
        Command { opcode: Opcode::PutSignal, immediate, ..self }
    }

    /// Returns the four words, with parity bits clear.
    ///
    /// Fields that are too large are truncated. The device cannot report this, and the truncated command still refers
    /// to a registered region or is rejected.
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

    /// Returns the command encoded in these words, ignoring parity bits; `None` if the opcode is unknown or a reserved
    /// bit is set. The proxy must check regions, offsets and peer, since only it has the registrations.
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

    /// Returns the value of a [`PutValue`](Opcode::PutValue).
    #[inline(always)]
    pub fn value(&self) -> u64 {
        self.source_offset & MAX_OFFSET | (self.immediate as u64) << 48
    }
}
