//! A put or a get between its post and its completion.

use super::bytes;
use super::claims::Claims;
use crate::Transfer;
use crc32fast::Hasher;
use ginlab_base::memory_file::MemoryFile;
use std::sync::Arc;

/// A range of a transfer that arrives as a unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// Offset from the transfer's first byte.
    pub at: u64,
    pub bytes: u64,
    /// Checksum of the source at the time of the post.
    pub sum: u32,
    pub arrived: bool,
}

/// A put or a get in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub transfer: Transfer,
    pub read: bool,
    /// Rank at the other end, and the number of the put or get among those with that rank.
    pub other: u32,
    pub number: u32,
    /// Count of this process's table at the time of the post.
    pub posted: u64,
    /// Number of this rank's region, for messages.
    pub region: u32,
    /// Addresses of the first bytes in this process.
    pub from: u64,
    pub to: u64,
    /// Keeps the peer's memory mapped. `None` for a transfer without bytes.
    pub file: Option<Arc<MemoryFile>>,
    pub packets: Vec<Packet>,
    /// Number of packets that have not arrived yet.
    pub missing: usize,
    /// The immediate, until it is sent.
    pub signal: Option<u32>,
    /// Whether one of the two ends may have been notified of the transfer. If so, no byte may be written again.
    pub closed: bool,
    /// Claims, each with its table.
    pub claims: Vec<(Arc<Claims>, u32)>,
}

impl Flight {
    /// Ends all writes of the transfer and releases its claims.
    pub fn close(&mut self) {
        self.closed = true;
        for (claims, number) in self.claims.drain(..) {
            // If the lock of a table cannot be taken, the claim stays. A transfer that conflicts with it reports the
            // error.
            let _ = claims.release(number);
        }
    }

    /// Returns the first packet of a put whose source has changed since the post. Must be called before the put's
    /// completion is reported.
    pub fn changed(&self, bounce: &mut Vec<u8>) -> Option<Packet> {
        if self.read || self.packets.is_empty() {
            return None;
        }
        // SAFETY: the source was checked at the post, and the poster keeps it valid until the completion.
        unsafe { bytes::take(bounce, self.from, self.transfer.bytes) };
        let is_same = |packet: &&Packet| {
            let bytes = &bounce[packet.at as usize..(packet.at + packet.bytes) as usize];
            crc32fast::hash(bytes) == packet.sum
        };
        self.packets.iter().find(|packet| !is_same(packet)).copied()
    }
}

/// Splits bytes into packets at `cuts`. Also returns the checksum of all bytes.
pub(super) fn packets(bytes: &[u8], cuts: &[(u64, u64)]) -> (Vec<Packet>, u32) {
    let mut whole = Hasher::new();
    let packet = |(at, length): &(u64, u64)| {
        let mut part = Hasher::new();
        part.update(&bytes[*at as usize..(at + length) as usize]);
        whole.combine(&part);
        Packet { at: *at, bytes: *length, sum: part.finalize(), arrived: false }
    };
    let packets = cuts.iter().map(packet).collect();
    (packets, whole.finalize())
}
