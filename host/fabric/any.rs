//! Rails of programs that take whichever provider is named: libfabric's, those of verbs, or the worst network. The kind is looked at with each call.

use super::libfabric::{BareLoop, LibfabricRail, LibfabricRegion};
use super::verbs::{self, VerbsRail};
use super::worst::{WorstRail, WorstRegion};
use super::{
    Access, Completion, FabricError, Memory, Message, Messages, Post, Rail, RailLimits, RemoteRegion, Transfer, mistake,
};

/// A rail of one of these kinds.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "what is measured is not behind a pointer, and rails are few")]
pub enum AnyRail {
    /// Of libfabric.
    Libfabric(LibfabricRail),
    /// Of verbs.
    Verbs(VerbsRail),
    /// Of the worst network.
    Worst(Box<WorstRail>),
}

/// A region on one.
#[derive(Debug)]
pub enum AnyRegion {
    /// On a rail of libfabric.
    Libfabric(LibfabricRegion),
    /// On a rail of verbs.
    Verbs(verbs::Region),
    /// On one of the worst network.
    Worst(WorstRegion),
}

#[cold]
fn stranger(rail: &AnyRail) -> FabricError {
    mistake(rail.name(), "a post", "the region is registered on a rail of another kind")
}

impl Rail for AnyRail {
    type Region = AnyRegion;

    fn name(&self) -> &str {
        match self {
            AnyRail::Libfabric(rail) => rail.name(),
            AnyRail::Verbs(rail) => rail.name(),
            AnyRail::Worst(rail) => rail.name(),
        }
    }

    fn limits(&self) -> &RailLimits {
        match self {
            AnyRail::Libfabric(rail) => rail.limits(),
            AnyRail::Verbs(rail) => rail.limits(),
            AnyRail::Worst(rail) => rail.limits(),
        }
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.address(),
            AnyRail::Verbs(rail) => rail.address(),
            AnyRail::Worst(rail) => rail.address(),
        }
    }

    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.add_peer(address),
            AnyRail::Verbs(rail) => rail.add_peer(address),
            AnyRail::Worst(rail) => rail.add_peer(address),
        }
    }

    fn insert_peers(&mut self, addresses: &[Vec<u8>]) -> Result<(), FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.insert_peers(addresses),
            AnyRail::Verbs(rail) => rail.insert_peers(addresses),
            AnyRail::Worst(rail) => rail.insert_peers(addresses),
        }
    }

    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.remove_peer(peer),
            AnyRail::Verbs(rail) => rail.remove_peer(peer),
            AnyRail::Worst(rail) => rail.remove_peer(peer),
        }
    }

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<AnyRegion, FabricError> {
        match self {
            // SAFETY: passed on.
            AnyRail::Libfabric(rail) => unsafe { rail.register(memory, access) }.map(AnyRegion::Libfabric),
            // SAFETY: passed on.
            AnyRail::Verbs(rail) => unsafe { rail.register(memory, access) }.map(AnyRegion::Verbs),
            // SAFETY: passed on.
            AnyRail::Worst(rail) => unsafe { rail.register(memory, access) }.map(AnyRegion::Worst),
        }
    }

    fn remote(&self, region: &AnyRegion) -> RemoteRegion {
        match (self, region) {
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => rail.remote(region),
            (AnyRail::Verbs(rail), AnyRegion::Verbs(region)) => rail.remote(region),
            (AnyRail::Worst(rail), AnyRegion::Worst(region)) => rail.remote(region),
            // Peers cannot reach it through this rail.
            _ => RemoteRegion::default(),
        }
    }

    #[inline(always)]
    unsafe fn write(&mut self, region: &AnyRegion, t: &Transfer) -> Result<Post, FabricError> {
        match (self, region) {
            // SAFETY: passed on.
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => unsafe { rail.write(region, t) },
            // SAFETY: passed on.
            (AnyRail::Verbs(rail), AnyRegion::Verbs(region)) => unsafe { rail.write(region, t) },
            // SAFETY: passed on.
            (AnyRail::Worst(rail), AnyRegion::Worst(region)) => unsafe { rail.write(region, t) },
            (rail, _) => Err(stranger(rail)),
        }
    }

    #[inline]
    unsafe fn read(&mut self, region: &AnyRegion, t: &Transfer) -> Result<Post, FabricError> {
        match (self, region) {
            // SAFETY: passed on.
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => unsafe { rail.read(region, t) },
            // SAFETY: passed on.
            (AnyRail::Verbs(rail), AnyRegion::Verbs(region)) => unsafe { rail.read(region, t) },
            // SAFETY: passed on.
            (AnyRail::Worst(rail), AnyRegion::Worst(region)) => unsafe { rail.read(region, t) },
            (rail, _) => Err(stranger(rail)),
        }
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.poll(completions),
            AnyRail::Verbs(rail) => rail.poll(completions),
            AnyRail::Worst(rail) => rail.poll(completions),
        }
    }
}

impl Messages for AnyRail {
    unsafe fn send(&mut self, region: &AnyRegion, peer: usize, message: &Message) -> Result<Post, FabricError> {
        match (self, region) {
            // SAFETY: passed on.
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => unsafe { rail.send(region, peer, message) },
            // SAFETY: passed on.
            (AnyRail::Verbs(rail), AnyRegion::Verbs(region)) => unsafe { rail.send(region, peer, message) },
            // SAFETY: passed on.
            (AnyRail::Worst(rail), AnyRegion::Worst(region)) => unsafe { rail.send(region, peer, message) },
            (rail, _) => Err(stranger(rail)),
        }
    }

    unsafe fn receive(&mut self, region: &AnyRegion, message: &Message) -> Result<Post, FabricError> {
        match (self, region) {
            // SAFETY: passed on.
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => unsafe { rail.receive(region, message) },
            // SAFETY: passed on.
            (AnyRail::Verbs(rail), AnyRegion::Verbs(region)) => unsafe { rail.receive(region, message) },
            // SAFETY: passed on.
            (AnyRail::Worst(rail), AnyRegion::Worst(region)) => unsafe { rail.receive(region, message) },
            (rail, _) => Err(stranger(rail)),
        }
    }

    fn cancel(&mut self, token: u64) -> Result<(), FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.cancel(token),
            AnyRail::Verbs(rail) => rail.cancel(token),
            AnyRail::Worst(rail) => rail.cancel(token),
        }
    }
}

impl AnyRail {
    /// See [`LibfabricRail::bare_writes`]; `None` where there is no plainer interface below.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn bare_writes(&mut self, region: &AnyRegion, run: &BareLoop) -> Option<Result<f64, FabricError>> {
        match (self, region) {
            // SAFETY: passed on.
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => Some(unsafe { rail.bare_writes(region, run) }),
            (AnyRail::Verbs(_), AnyRegion::Verbs(_)) | (AnyRail::Worst(_), AnyRegion::Worst(_)) => None,
            (rail, _) => Some(Err(stranger(rail))),
        }
    }
}
