//! A put or a get between its post and its completion.

use super::bytes;
use super::claims::Claims;
use crate::Transfer;
use crc32fast::Hasher;
use ginlab_base::memory_file::MemoryFile;
use std::sync::Arc;

/// A stretch of a transfer that arrives at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// From the transfer's first byte.
    pub at: u64,
    pub bytes: u64,
    /// Checksum of the source at the post.
    pub sum: u32,
    pub arrived: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Flight {
    pub transfer: Transfer,
    pub read: bool,
    /// Number of our region, for messages.
    pub region: u32,
    /// First bytes, as this process addresses them.
    pub from: u64,
    pub to: u64,
    /// Keeps the peer's memory mapped; none of a transfer without bytes.
    pub file: Option<Arc<MemoryFile>>,
    pub packets: Vec<Packet>,
    /// Packets that have not arrived yet.
    pub missing: usize,
    /// The immediate that is not on its way yet.
    pub signal: Option<u32>,
    /// One of the two ends may have been told of it: no byte is written again.
    pub closed: bool,
    /// Claims, each with its table.
    pub claims: Vec<(Arc<Claims>, u32)>,
}

impl Flight {
    /// Nothing is written any more: the claims go.
    pub fn close(&mut self) {
        self.closed = true;
        for (claims, number) in self.claims.drain(..) {
            // A table whose lock is not to be had keeps the claim; whoever meets it says so.
            let _ = claims.release(number);
        }
    }

    /// Where in a put the first packet begins whose source is not as it was at the post. Before the put's completion has been told.
    pub fn changed(&self, bounce: &mut Vec<u8>) -> Option<u64> {
        if self.read || self.packets.is_empty() {
            return None;
        }
        // SAFETY: the source was found at the post, and is the poster's to keep until the completion.
        unsafe { bytes::take(bounce, self.from, self.transfer.bytes) };
        let is_same = |packet: &&Packet| {
            let bytes = &bounce[packet.at as usize..(packet.at + packet.bytes) as usize];
            crc32fast::hash(bytes) == packet.sum
        };
        self.packets.iter().find(|packet| !is_same(packet)).map(|packet| packet.at)
    }
}

/// Packets of these bytes, cut so, and the checksum of all.
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
