//! Converts a program's commands into NIC requests: a channel is a NIC queue together with the tables that its requests
//! need.
//!
//! Programs issue commands (region, offset, peer). Each becomes one request, with addresses and keys from a table that
//! the host has filled. A put becomes a write; a put with a signal becomes a write with the signal as its immediate. A
//! signal without data becomes an empty write with an immediate, and a get becomes a read. A command's ticket is the
//! number of its request.
//!
//! A put's signal needs no ordering rule: a put is a single write, and a NIC delivers the immediate, or counts the
//! write, only after all its bytes have arrived.

use super::group::Group;
use super::post::CachedState;
use super::{NO_TURN, NicQueue, NicTransfer, QueueFailure};
use crate::command::{Command, Opcode, signal_of};
use crate::ring::Status;
use cuda_std::call::by_address;
use cuda_std::memory::{Word, store_relaxed_sys_u64};
use efa_queue::request::{MOST_BYTES, To};
use efa_queue::{EfaOperation, Local, rules};

/// Addresses and keys of a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerAddress {
    /// The peer's queue pair.
    pub to: To,
    /// Key of the peer's heap.
    pub key: u32,
    /// Address of the peer's heap in the peer's address space.
    pub heap: u64,
}

/// A NIC queue and the addresses and keys for its requests. Stored in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    /// The NIC queue.
    pub queue: NicQueue,
    /// Device memory: one entry per PE, including this one, for signals to itself.
    pub peers: *const PeerAddress,
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
    /// Address of the staging words, from which values of [`Opcode::PutValue`] are sent. There is one word per slot,
    /// after the heap and with the heap's key.
    pub staging: u64,
}

// SAFETY: the pointers refer to words that are shared by design and accessed only atomically, and to tables that are
// never written.
unsafe impl Send for Channel {}
// SAFETY: the pointers refer to words that are shared by design and accessed only atomically, and to tables that are
// never written.
unsafe impl Sync for Channel {}

/// A thread's handle of a channel in device memory. The handle refers to the channel instead of copying it, because a
/// copy would occupy registers between calls.
#[derive(Clone, Copy, Debug)]
pub struct ChannelHandle {
    channel: *const Channel,
    /// Number of slots.
    depth: u32,
    /// State of the thread between calls, as encoded by [`keep`]. 0 before the first post.
    pub(crate) kept: u64,
}

/// Number of bits of the first number of [`keep`]. The other bits hold a distance of at most [`rules::DEEPEST`] plus 1.
const KEPT_BITS: u32 = 48;

/// Encodes what a thread keeps of a queue between calls: the number below which requests have a slot, and the first
/// request after its last doorbell, if that was the queue's last one ([`NicQueue::turn`]). Without the latter, each
/// request of a thread would be published to other threads before its doorbell, with a second system fence.
#[inline(always)]
const fn keep(free_below: u64, turn: u64, depth: u32) -> u64 {
    let ahead = turn.wrapping_sub(free_below.wrapping_sub(depth as u64));
    let is_kept = turn != NO_TURN && ahead <= depth as u64;
    free_below | if is_kept { (ahead + 1) << KEPT_BITS } else { 0 }
}

/// Decodes the two numbers of [`keep`]. The second is [`NO_TURN`] if `word` is 0.
#[inline(always)]
const fn kept(word: u64, depth: u32) -> (u64, u64) {
    let (free_below, ahead) = (word & ((1 << KEPT_BITS) - 1), word >> KEPT_BITS);
    (free_below, if ahead == 0 { NO_TURN } else { free_below - depth as u64 + ahead - 1 })
}

impl ChannelHandle {
    /// Creates a handle of a thread that has posted nothing yet.
    ///
    /// # Safety
    /// `channel` must be valid until the kernel ends.
    #[inline(always)]
    pub unsafe fn new(channel: *const Channel) -> ChannelHandle {
        // SAFETY: the caller guarantees that the channel is valid.
        ChannelHandle { channel, depth: unsafe { (*channel).queue.depth }, kept: 0 }
    }

    /// Posts one command per active lane and returns the number of the lane's request. Converged lanes of a warp ring
    /// the doorbell once. The fence before the doorbell covers the payload: no other fence is needed.
    ///
    /// # Errors
    /// Returns the first failure of the queue, or [`Status::REFUSED`] for a command that names a PE or range that does
    /// not exist.
    #[inline(always)]
    pub(crate) fn post(&mut self, command: &Command) -> Result<u64, Status> {
        // SAFETY: the creator of the handle guarantees that the channel is valid.
        let (posted, kept) = unsafe { post(self.channel, command, self.kept) };
        self.kept = kept;
        posted
    }

    /// Waits for a request and all preceding ones. Returns the watermark.
    ///
    /// # Errors
    /// Returns the first failure of the queue.
    #[inline(always)]
    pub(crate) fn wait(&mut self, number: u64) -> Result<u64, Status> {
        let (free_below, turn) = kept(self.kept, self.depth);
        // SAFETY: the creator of the handle guarantees that the channel is valid.
        let watermark = unsafe { by_address(wait as unsafe fn(_, _, _) -> _)(self.channel, number, free_below) }?;
        self.kept = keep(free_below.max(watermark + self.depth as u64), turn, self.depth);
        Ok(watermark)
    }
}

/// Implements [`ChannelHandle::post`]. Not inlined, for kernels with several call sites. `word` is the thread's state
/// before the call. The second result is its state after the call.
///
/// # Safety
/// `channel` must be valid until the kernel ends.
#[inline(never)]
unsafe fn post(channel: *const Channel, command: &Command, word: u64) -> (Result<u64, Status>, u64) {
    // SAFETY: the caller guarantees that the channel is valid.
    let mut channel = unsafe { *channel };
    let (free_below, turn) = kept(word, channel.queue.depth);
    channel.queue.free_below = channel.queue.free_below.max(free_below);
    channel.queue.recall(turn);
    let posted = match channel.transfer(command) {
        Some(transfer) if command.opcode == Opcode::PutValue => channel.post_value(&transfer, command),
        Some(transfer) => channel.queue.post_from(&transfer, CachedState::Asked),
        None => return (Err(Status::REFUSED), word),
    };
    let queue = &channel.queue;
    (posted.map_err(QueueFailure::status), keep(queue.free_below, queue.turn_to_keep(), queue.depth))
}

/// Implements [`ChannelHandle::wait`]. Not inlined, like [`post`].
///
/// # Safety
/// `channel` must be valid until the kernel ends.
#[inline(never)]
unsafe fn wait(channel: *const Channel, number: u64, free_below: u64) -> Result<u64, Status> {
    // SAFETY: the caller guarantees that the channel is valid.
    let mut queue = unsafe { (*channel).queue };
    queue.free_below = queue.free_below.max(free_below);
    queue.wait(number).map_err(QueueFailure::status)
}

impl Channel {
    /// Builds the request for a command. Returns `None` if the command names a PE or range that does not exist.
    #[inline(always)]
    fn transfer(&self, command: &Command) -> Option<NicTransfer> {
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
        Some(NicTransfer {
            operation: if is_read { EfaOperation::Read } else { EfaOperation::Write },
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
    fn post_value(&mut self, transfer: &NicTransfer, command: &Command) -> Result<u64, QueueFailure> {
        let place = self.queue.reserve(Group::alone(), 1, CachedState::Asked)?;
        let address = self.staging + rules::slot(place.first, self.queue.depth) as u64 * 8;
        // SAFETY: there is one word per slot, and only this request uses it until the request has completed.
        store_relaxed_sys_u64(unsafe { &*(address as *const Word) }, command.value());
        self.queue.fill(place, &NicTransfer { local: Local { address, ..transfer.local }, ..*transfer });
        Ok(place.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_numbers_are_found_again() {
        for depth in [4, 1 << 15] {
            for watermark in [0, 7, (1 << KEPT_BITS) - 2 * u64::from(depth)] {
                let free_below = watermark + u64::from(depth);
                for turn in [watermark, watermark + 1, free_below, NO_TURN] {
                    assert_eq!(kept(keep(free_below, turn, depth), depth), (free_below, turn));
                }
                // Requests up to the watermark are complete: none of them is the next one.
                assert_eq!(kept(keep(free_below, watermark.wrapping_sub(1), depth), depth), (free_below, NO_TURN));
            }
            assert_eq!(kept(0, depth), (0, NO_TURN));
        }
    }
}
