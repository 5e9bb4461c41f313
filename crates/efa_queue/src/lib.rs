//! Layout of the queues of an EFA device.
//!
//! Writers of requests (a kernel, the CPU) and their readers (a software NIC, a tool that prints a queue) share the
//! layouts and rules defined here:
//!
//! - [`request`]: slots of the send queue, 64 or 128 bytes;
//! - [`receive`]: slots of the receive queue, 16 bytes;
//! - [`completion`]: slots of a completion queue, 16 or 32 bytes;
//! - [`rules`]: slots, phases, doorbells, batches, counters;
//! - `intake`: the checks of a software NIC, which reads a send queue (not in PTX);
//! - [`status`]: completion status codes, by name.
//!
//! A layout is an array of little-endian 64-bit words, exactly as the hardware reads it. The layouts are those of
//! rdma-core's `efa_io_defs.h`; tests compare every byte with vectors generated from its structures (tests/fixtures).
//!
//! The crate neither allocates nor panics, and only `intake` formats text, so all other modules compile to PTX.

#![no_std]

pub mod completion;
#[cfg(not(target_arch = "nvptx64"))]
pub mod intake;
pub mod receive;
pub mod request;
pub mod rules;
pub mod status;

pub use completion::DecodedCompletion;
pub use receive::ReceivePiece;
pub use request::{DecodedRequest, To};
pub use status::CompletionStatus;

// The bytes of a word must be in the order of the hardware.
const _: () = assert!(cfg!(target_endian = "little"), "the layouts are little-endian");

/// Operation of a request, with the value that the hardware uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EfaOperation {
    /// Sends into a receive of the peer.
    Send = 0,
    /// Reads the peer's registered memory.
    Read = 1,
    /// Writes to the peer's registered memory.
    Write = 2,
}

impl EfaOperation {
    /// Returns the operation with this value, if it exists.
    pub const fn of(number: u8) -> Option<EfaOperation> {
        match number {
            0 => Some(EfaOperation::Send),
            1 => Some(EfaOperation::Read),
            2 => Some(EfaOperation::Write),
            _ => None,
        }
    }
}

/// A range of local registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the memory. A queue has space for 24 bits ([`KEY_MASK`]).
    pub key: u32,
}

/// A range of a peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte in the peer's process.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Remote key of the memory, as received from the peer.
    pub key: u32,
}

/// Bits of a local key that fit in a queue.
pub const KEY_MASK: u32 = (1 << 24) - 1;

/// Returns one bit as 0 or 1, shifted to `place`.
const fn bit(set: bool, place: u32) -> u64 {
    (set as u64) << place
}
