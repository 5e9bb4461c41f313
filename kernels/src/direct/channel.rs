//! Converts a program's commands into NIC requests: a ring whose other end is a NIC queue instead of a proxy.
//!
//! Programs issue commands (region, offset, peer). Each becomes one request, with addresses and keys from a table that
//! the host has filled. A put becomes a write; a put with a signal becomes a write with the signal as its immediate. A
//! signal without data becomes a write of no bytes with an immediate, and a get becomes a read. A command's ticket is
//! the number of its request.
//!
//! A put's signal needs no ordering rule: a put is a single write, and a NIC delivers the immediate, or counts the
//! write, only after all its bytes have arrived.

use super::group::Group;
use super::post::Known;
use super::{Failure, Queue, Transfer};
use crate::command::{Command, MAX_OFFSET, Opcode, signal_of};
use crate::ring::Status;
use crate::ring::producer::Words;
use cuda_std::memory::{Word, store_relaxed_sys_u64};
use efa_queue::request::{MOST_BYTES, To};
use efa_queue::{Local, Operation, rules};

/// Addressing information of a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer {
    /// The peer's queue pair.
    pub to: To,
    /// Key of the peer's heap.
    pub key: u32,
    /// Address of the peer's heap in the peer's address space.
    pub heap: u64,
}

/// A NIC queue and the addressing information of its requests. Stored in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// The NIC queue.
    pub queue: Queue,
    /// Device memory: one entry per PE, including this one, for signals to itself.
    pub peers: *const Peer,
    /// Device memory: destinations of signals that NICs count, indexed by signal and PE. Each is a queue pair for that
    /// signal only, whose counter counts arriving writes.
    pub counted: *const To,
    /// Number of PEs.
    pub pes: u32,
    /// Signals below this number are counted by NICs if they add 1.
    pub counted_signals: u32,
    /// Key of this PE's heap.
    pub local_key: u32,
    /// Address of this PE's heap.
    pub heap: u64,
    /// Length of this PE's heap in bytes.
    pub heap_bytes: u64,
    /// Address of the staging words: one word per slot, after the heap and under its key, from which values of
    /// [`Opcode::PutValue`] are sent.
    pub staging: u64,
}

// SAFETY: the pointers refer to words that are shared by design and accessed only atomically, and to tables that are
// never written.
unsafe impl Send for Channel {}
// SAFETY: the pointers refer to words that are shared by design and accessed only atomically, and to tables that are
// never written.
unsafe impl Sync for Channel {}

/// Posts the command encoded in `words`. Returns its request number, and the number below which requests have a slot.
/// Out of line and by pointer, for kernels with several call sites.
#[inline(never)]
pub(crate) fn push(channel: *const Channel, words: Words, free_below: u64) -> (Result<u64, Status>, u64) {
    // SAFETY: a ring with `TO_CARD` points to a channel, which outlives the kernels that use the ring.
    let mut channel = unsafe { *channel };
    // `free_below` is 0 if the caller does not have a bound yet.
    channel.queue.free_below = channel.queue.free_below.max(free_below);
    let Some(command) = Command::decode(words) else { return (Err(Status::REFUSED), free_below) };
    let posted = match channel.transfer(&command) {
        Some(transfer) if command.opcode == Opcode::PutValue => channel.post_value(&transfer, &command),
        Some(transfer) => channel.queue.post_from(&transfer, Known::Asked),
        None => return (Err(Status::REFUSED), free_below),
    };
    (posted.map_err(Failure::status), channel.queue.free_below)
}

/// Waits for a request and all preceding ones. Returns the watermark. Out of line, like [`push`].
#[inline(never)]
pub(crate) fn wait(channel: *const Channel, number: u64, free_below: u64) -> Result<u64, Status> {
    // SAFETY: as in `push`, the ring points to a channel that outlives the kernels.
    let mut queue = unsafe { (*channel).queue };
    queue.free_below = free_below;
    queue.wait(number).map_err(Failure::status)
}

impl Channel {
    /// Builds the request for a command. Returns `None` if the command names a PE or range that does not exist.
    #[inline(always)]
    fn transfer(&self, command: &Command) -> Option<Transfer> {
        if command.peer >= self.pes || command.bytes > MOST_BYTES as u64 {
            return None;
        }
        // SAFETY: `peers` has one entry per PE, and `command.peer` is below `pes`.
        let peer = unsafe { *self.peers.add(command.peer as usize) };
        let is_read = command.opcode == Opcode::Get;
        let (own, theirs) = match command.opcode {
            Opcode::Get => (command.destination_offset, command.source_offset),
            Opcode::PutValue => (0, command.destination_offset),
            _ => (command.source_offset, command.destination_offset),
        };
        let fits = |offset: u64| offset <= self.heap_bytes && command.bytes <= self.heap_bytes - offset;
        if !fits(own) || !fits(theirs) {
            return None;
        }
        let mut immediate = match command.opcode {
            Opcode::PutSignal | Opcode::Signal => Some(command.immediate),
            _ => None,
        };
        let mut to = peer.to;
        if let Some((signal, 1)) = immediate.and_then(signal_of)
            && signal < self.counted_signals
        {
            // The NIC counts the write itself, after its bytes have arrived. Signals that add more than 1 are sent as
            // immediates, because several writes are not ordered.
            // SAFETY: `counted` has one entry per PE for each such signal.
            to = unsafe { *self.counted.add((signal * self.pes + command.peer) as usize) };
            immediate = None;
        }
        Some(Transfer {
            operation: if is_read { Operation::Read } else { Operation::Write },
            to,
            local: Local { address: self.heap + own, length: command.bytes as u32, key: self.local_key },
            address: peer.heap + theirs,
            key: peer.key,
            immediate,
        })
    }

    /// Posts a [`Opcode::PutValue`]: stores the value in the staging word of the request's slot and writes it from
    /// there. The word is not reused before the request has completed. (Requests of 128 bytes could carry the value
    /// inline.)
    #[inline(always)]
    fn post_value(&mut self, transfer: &Transfer, command: &Command) -> Result<u64, Failure> {
        let value = command.source_offset & MAX_OFFSET | (command.immediate as u64) << 48;
        let place = self.queue.reserve(Group::alone(), 1, Known::Asked)?;
        let address = self.staging + rules::slot(place.first, self.queue.depth) as u64 * 8;
        // SAFETY: there is one word per slot, and only this request uses it until the request has completed.
        store_relaxed_sys_u64(unsafe { &*(address as *const Word) }, value);
        self.queue.fill(place, &Transfer { local: Local { address, ..transfer.local }, ..*transfer });
        Ok(place.first)
    }
}
