//! What a server and those who join it tell each other.

use ginlab::fabric::discover::Reach;
use ginlab::flow::Offer;
use serde::{Deserialize, Serialize};

/// Names of the steps, for both sides.
pub const SERVER: &str = "server";
pub const JOINING: &str = "joining";
pub const PLACE: &str = "place";
pub const DONE: &str = "writes";
pub const VERDICT: &str = "verdict";

/// The server, first: how to open rails that reach it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Server {
    pub provider: String,
    pub rails: usize,
    /// The rails are on the loopback, or are shared memory: peers of other hosts cannot reach them.
    pub local: bool,
    /// Bytes of a place.
    pub bytes: u64,
}

impl Server {
    pub fn reach(&self) -> Reach {
        if self.local { Reach::SameHost } else { Reach::Network }
    }
}

/// A peer that wants to join.
#[derive(Debug, Serialize, Deserialize)]
pub struct Joining {
    /// Its address on each rail, and no region: the server never writes to it, but a card must know whose writes it takes.
    pub offer: Offer,
    /// Bytes of each of its writes.
    pub write_bytes: u64,
}

/// Where it may write: into region 0 of the offer, raising its tag behind each write.
#[derive(Debug, Serialize, Deserialize)]
pub struct Place {
    pub offer: Offer,
    /// What the server's events call it.
    pub number: u32,
    /// Random, and known to nobody else: whoever raises it counts as this peer.
    pub tag: u32,
    /// So many writes ahead of those that the server says it has counted, and no more.
    pub window: u64,
}

/// The peer has written: so many writes, and this many bytes from the start of its place are to be right.
#[derive(Debug, Serialize, Deserialize)]
pub struct Done {
    pub writes: u64,
    pub extent: u64,
}

/// What the server says to the writes, under the label [`DONE`].
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It has counted so many: the peer may go on.
    Counted(u64),
    /// The last one, once the peer is done.
    Checksum(Checksum),
}

/// What has arrived.
#[derive(Debug, Serialize, Deserialize)]
pub struct Checksum {
    pub crc32: u32,
    pub writes: u64,
}

/// The peer's last word.
#[derive(Debug, Serialize, Deserialize)]
pub struct Verdict {
    pub right: bool,
}
