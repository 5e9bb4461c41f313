//! Registered memory, and the information about it that a rank sends to its peers.

use super::FlowError;
use ginlab_cuda::Buffer;
use ginlab_fabric::{Messages, RemoteRegion};
use serde::{Deserialize, Serialize};
use std::rc::Rc;

/// Memory with its registration on every rail.
#[derive(Debug)]
pub struct Registered<R: Messages> {
    // This field is declared before `buffer`, because registrations must be dropped before the memory.
    pub(crate) on_rail: Vec<R::Region>,
    pub(crate) buffer: Rc<Buffer>,
}

/// A registered memory region, shared by operations.
pub type Region<R> = Rc<Registered<R>>;

impl<R: Messages> Registered<R> {
    /// Returns the memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Returns the length of the memory in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.buffer.bytes() as u64
    }
}

/// Information that a rank sends to its peers: its address on each rail, and its regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Names of the rails.
    pub rails: Vec<String>,
    /// Addresses of this rank, per rail.
    pub addresses: Vec<Vec<u8>>,
    /// Regions of this rank, by region and rail.
    pub regions: Vec<Vec<RemoteRegion>>,
}

/// A peer of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub(crate) usize);

/// A region of a peer, as the target of writes and the source of reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub(crate) peer: Peer,
    pub(crate) on_rail: Rc<[RemoteRegion]>,
}

impl Target {
    /// Creates a target for region number `region` of those that `peer` offered.
    ///
    /// # Errors
    /// Returns [`FlowError::Refused`] if `offer` has no such region.
    pub fn new(peer: Peer, offer: &Offer, region: usize) -> Result<Target, FlowError> {
        let on_rail = offer.regions.get(region).ok_or_else(|| {
            FlowError::Refused(format!(
                "peer {} offers {} regions, but no region {region}",
                peer.0,
                offer.regions.len()
            ))
        })?;
        Ok(Target { peer, on_rail: on_rail.clone().into() })
    }

    /// Returns the length of the region in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.on_rail.first().map_or(0, |region| region.bytes)
    }
}
