//! What of a program's commands becomes requests: a ring whose other end is a card's queue, not a proxy.
//!
//! Programs say what they want by commands (region, offset, peer); here each becomes one request, with the addresses and keys that the host has
//! put into a table. A put is a write, a put with a signal a write with the signal as its immediate, a signal by itself a write of no bytes
//! with it, a get a read. Their ticket is the request's number.
//!
//! A put's signal needs no rule: a card delivers an immediate, or counts a write, when all bytes of the write have arrived, and a put is one write.

use super::group::Group;
use super::post::Known;
use super::{Failure, Queue, Transfer};
use crate::command::{Command, MAX_OFFSET, Opcode, signal_of};
use crate::ring::Status;
use crate::ring::producer::Words;
use cuda_std::memory::{Word, store_relaxed_sys_u64};
use efa_queue::request::{MOST_BYTES, To};
use efa_queue::{Local, Operation, rules};

/// A peer as a request names it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer {
    /// Its queue pair.
    pub to: To,
    /// The key of its heap.
    pub key: u32,
    /// Its heap, as it addresses it.
    pub heap: u64,
}

/// A queue, and what its requests name. In device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// The queue.
    pub queue: Queue,
    /// Device memory: one for each PE; this one is among them, for signals to itself.
    pub peers: *const Peer,
    /// Device memory: where signals go that cards count, one for each PE for each such signal: a queue pair of that signal's, whose counter counts the
    /// writes that arrive.
    pub counted: *const To,
    /// PEs.
    pub pes: u32,
    /// Signals below this are counted by cards where they add 1.
    pub counted_signals: u32,
    /// The key of this PE's heap.
    pub local_key: u32,
    /// This PE's heap.
    pub heap: u64,
    /// Its length.
    pub heap_bytes: u64,
    /// Behind the heap, under its key: a word for each slot, from which values of [`Opcode::PutValue`] are taken.
    pub staging: u64,
}

// SAFETY: the pointers are to memory that is shared by design: words that are reached by atomic operations, and a table that nobody writes.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

/// Posts what a command's words say; its number, and below which number requests have a slot. Out of line, with a pointer: kernels that put
/// in several places.
#[inline(never)]
pub(crate) fn push(channel: *const Channel, words: Words, free_below: u64) -> (Result<u64, Status>, u64) {
    // SAFETY: what a ring to a card points to (`TO_CARD`); whoever made it keeps it.
    let mut channel = unsafe { *channel };
    // A caller that knows of none yet says 0.
    channel.queue.free_below = channel.queue.free_below.max(free_below);
    let Some(command) = Command::decode(words) else { return (Err(Status::REFUSED), free_below) };
    let posted = match channel.transfer(&command) {
        Some(transfer) if command.opcode == Opcode::PutValue => channel.post_value(&transfer, &command),
        Some(transfer) => channel.queue.post_from(&transfer, Known::Asked),
        None => return (Err(Status::REFUSED), free_below),
    };
    (posted.map_err(Failure::status), channel.queue.free_below)
}

/// Waits for a request and all before it; the watermark. Out of line, as [`push`].
#[inline(never)]
pub(crate) fn wait(channel: *const Channel, number: u64, free_below: u64) -> Result<u64, Status> {
    // SAFETY: as for `push`.
    let mut queue = unsafe { (*channel).queue };
    queue.free_below = free_below;
    queue.wait(number).map_err(Failure::status)
}

impl Channel {
    /// The request that a command is; `None` where it names what is not there.
    #[inline(always)]
    fn transfer(&self, command: &Command) -> Option<Transfer> {
        if command.peer >= self.pes || command.bytes > MOST_BYTES as u64 {
            return None;
        }
        // SAFETY: one for each PE.
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
            // The write itself is what is counted, when its bytes are there. What adds more goes as an immediate: several writes have no order.
            // SAFETY: one for each PE for each such signal.
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

    /// A value travels by the word of its slot: nobody uses that before the request has ended. (Requests of 128 bytes could carry it.)
    #[inline(always)]
    fn post_value(&mut self, transfer: &Transfer, command: &Command) -> Result<u64, Failure> {
        let value = command.source_offset & MAX_OFFSET | (command.immediate as u64) << 48;
        let place = self.queue.reserve(Group::alone(), 1, Known::Asked)?;
        let address = self.staging + rules::slot(place.first, self.queue.depth) as u64 * 8;
        // SAFETY: one word for each slot; this request alone has it until it has ended.
        store_relaxed_sys_u64(unsafe { &*(address as *const Word) }, value);
        self.queue.fill(place, &Transfer { local: Local { address, ..transfer.local }, ..*transfer });
        Ok(place.first)
    }
}
