//! Messages between a server and its peers.

use ginlab::fabric::discover::Reach;
use ginlab::flow::Offer;
use serde::{Deserialize, Serialize};

/// Names of the steps, used by both sides.
pub const SERVER: &str = "server";
pub const JOINING: &str = "joining";
pub const PLACE: &str = "place";
pub const DONE: &str = "writes";
pub const VERDICT: &str = "verdict";

/// First message of the server: how to open rails that reach it.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServerHello {
    pub provider: String,
    pub rails: usize,
    /// Whether the rails are on the loopback or use shared memory, so that peers on other hosts cannot reach them.
    pub local: bool,
    /// Bytes of a slot.
    pub bytes: u64,
}

impl ServerHello {
    pub fn reach(&self) -> Reach {
        if self.local { Reach::SameHost } else { Reach::Network }
    }
}

/// Request of a peer to join.
#[derive(Debug, Serialize, Deserialize)]
pub struct Joining {
    /// Address of the peer on each rail, without regions. The server never writes to the peer, but an EFA device
    /// accepts writes only from known addresses.
    pub offer: Offer,
    /// Bytes of each write of the peer.
    pub write_bytes: u64,
}

/// The peer's slot: it may write to region 0 of the offer, and raises its tag with each write.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlotGrant {
    pub offer: Offer,
    /// Number of the peer in the server's events.
    pub number: u32,
    /// Random immediate known only to this peer. Writes with this immediate count as those of the peer.
    pub tag: u32,
    /// Maximum number of writes by which the peer may be ahead of those that the server has reported as counted.
    pub window: u64,
}

/// The peer has finished writing: the number of writes, and the number of bytes from the start of its slot that must be
/// correct.
#[derive(Debug, Serialize, Deserialize)]
pub struct WritesDone {
    pub writes: u64,
    pub extent: u64,
}

/// Messages of the server about writes, with the label [`DONE`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// Number of writes counted so far, which lets the peer continue.
    Counted(u64),
    /// The last message, when the peer is done.
    Checksum(Checksum),
}

/// Checksum of the received data.
#[derive(Debug, Serialize, Deserialize)]
pub struct Checksum {
    pub crc32: u32,
    pub writes: u64,
}

/// Last message of the peer.
#[derive(Debug, Serialize, Deserialize)]
pub struct PeerVerdict {
    pub right: bool,
}
