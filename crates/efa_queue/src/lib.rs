//! The queues of an EFA card, as words.
//!
//! Who writes requests (a kernel, the CPU) and who reads them (a card in software, a tool that prints a queue) have the layout and the rules
//! from here alone:
//!
//! - [`request`]: what stands in a slot of the send queue, 64 or 128 bytes;
//! - [`receive`]: what stands in a slot of the receive queue, 16 bytes;
//! - [`completion`]: what stands in a slot of a completion queue, 16 or 32 bytes;
//! - [`rules`]: slots, phases, doorbells, batches, counters;
//! - [`status`]: the statuses of completions, by name.
//!
//! A layout is an array of 64-bit words, little-endian, as a card reads it: the words are what is stored. The layouts are those of rdma-core's
//! `efa_io_defs.h`; tests hold every byte against vectors that its structs have made (tests/fixtures).
//!
//! Nothing here allocates, formats or panics, so that all of it compiles to PTX.

#![no_std]

pub mod completion;
pub mod receive;
pub mod request;
pub mod rules;
pub mod status;

pub use completion::Completion;
pub use receive::Receive;
pub use request::{Request, To};
pub use status::Status;

// A word's bytes are the card's bytes.
const _: () = assert!(cfg!(target_endian = "little"), "the layouts are little-endian");

/// What a request does; the number is the card's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Into a receive of the peer.
    Send = 0,
    /// Out of the peer's registered memory.
    Read = 1,
    /// Into the peer's registered memory.
    Write = 2,
}

impl Operation {
    /// The operation of a number.
    pub const fn of(number: u8) -> Option<Operation> {
        match number {
            0 => Some(Operation::Send),
            1 => Some(Operation::Read),
            2 => Some(Operation::Write),
            _ => None,
        }
    }
}

/// Bytes of one's own registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local {
    /// Where they begin.
    pub address: u64,
    /// How many.
    pub length: u32,
    /// The key of the memory. A queue has room for 24 bits of it ([`KEY_MASK`]).
    pub key: u32,
}

/// Bytes of a peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Where they begin, in the peer's process.
    pub address: u64,
    /// How many.
    pub length: u32,
    /// The key of the memory, as the peer has told it.
    pub key: u32,
}

/// What a local key has in a queue.
pub const KEY_MASK: u32 = (1 << 24) - 1;

/// One bit as 0 or 1, at its place.
const fn bit(set: bool, place: u32) -> u64 {
    (set as u64) << place
}
