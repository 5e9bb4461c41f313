//! Rails for applications that accept any provider: libfabric, verbs or the worst-case network. Every call dispatches
//! on the kind.

use super::libfabric::{BareLoop, LibfabricRail, LibfabricRegion};
use super::verbs::{self, VerbsRail};
use super::worst::{WorstRail, WorstRegion};
use super::{
    Access, Completion, FabricError, MemoryRange, Message, Messages, Post, Rail, RailLimits, RemoteRegion, Transfer,
    mistake,
};

/// Defines the enums of the kinds listed below, and their dispatch.
macro_rules! any_rail {
    ($($(#[$doc:meta])* $kind:ident($rail:ty, $region:ty);)*) => {
        /// A rail of one of these kinds.
        #[derive(Debug)]
        #[allow(clippy::large_enum_variant, reason = "what is measured is not behind a pointer, and rails are few")]
        pub enum AnyRail {
            $($(#[$doc])* $kind($rail),)*
        }

        /// A region on an [`AnyRail`].
        #[derive(Debug)]
        pub enum AnyRegion {
            $($(#[$doc])* $kind($region),)*
        }

        impl Rail for AnyRail {
            type Region = AnyRegion;

            fn name(&self) -> &str {
                match self { $(AnyRail::$kind(rail) => rail.name(),)* }
            }

            fn limits(&self) -> &RailLimits {
                match self { $(AnyRail::$kind(rail) => rail.limits(),)* }
            }

            fn address(&self) -> Result<Vec<u8>, FabricError> {
                match self { $(AnyRail::$kind(rail) => rail.address(),)* }
            }

            fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
                match self { $(AnyRail::$kind(rail) => rail.add_peer(address),)* }
            }

            fn insert_peers(&mut self, addresses: &[Vec<u8>]) -> Result<(), FabricError> {
                match self { $(AnyRail::$kind(rail) => rail.insert_peers(addresses),)* }
            }

            fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
                match self { $(AnyRail::$kind(rail) => rail.remove_peer(peer),)* }
            }

            unsafe fn register(&mut self, memory: MemoryRange, access: Access) -> Result<AnyRegion, FabricError> {
                match self {
                    // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
                    $(AnyRail::$kind(rail) => unsafe { rail.register(memory, access) }.map(AnyRegion::$kind),)*
                }
            }

            fn remote(&self, region: &AnyRegion) -> RemoteRegion {
                match (self, region) {
                    $((AnyRail::$kind(rail), AnyRegion::$kind(region)) => rail.remote(region),)*
                    // Peers cannot reach the region through this rail.
                    _ => RemoteRegion::default(),
                }
            }

            #[inline(always)]
            unsafe fn write(&mut self, region: &AnyRegion, t: &Transfer) -> Result<Post, FabricError> {
                match (self, region) {
                    // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
                    $((AnyRail::$kind(rail), AnyRegion::$kind(region)) => unsafe { rail.write(region, t) },)*
                    (rail, _) => Err(stranger(rail)),
                }
            }

            #[inline]
            unsafe fn read(&mut self, region: &AnyRegion, t: &Transfer) -> Result<Post, FabricError> {
                match (self, region) {
                    // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
                    $((AnyRail::$kind(rail), AnyRegion::$kind(region)) => unsafe { rail.read(region, t) },)*
                    (rail, _) => Err(stranger(rail)),
                }
            }

            #[inline]
            fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
                match self { $(AnyRail::$kind(rail) => rail.poll(completions),)* }
            }
        }

        impl Messages for AnyRail {
            unsafe fn send(&mut self, region: &AnyRegion, peer: usize, message: &Message) -> Result<Post, FabricError> {
                match (self, region) {
                    // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
                    $((AnyRail::$kind(rail), AnyRegion::$kind(region)) => unsafe { rail.send(region, peer, message) },)*
                    (rail, _) => Err(stranger(rail)),
                }
            }

            unsafe fn receive(&mut self, region: &AnyRegion, message: &Message) -> Result<Post, FabricError> {
                match (self, region) {
                    // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
                    $((AnyRail::$kind(rail), AnyRegion::$kind(region)) => unsafe { rail.receive(region, message) },)*
                    (rail, _) => Err(stranger(rail)),
                }
            }

            fn cancel(&mut self, token: u64) -> Result<(), FabricError> {
                match self { $(AnyRail::$kind(rail) => rail.cancel(token),)* }
            }
        }
    };
}

any_rail! {
    /// Rails over libfabric.
    Libfabric(LibfabricRail, LibfabricRegion);
    /// Verbs rails, without libfabric.
    Verbs(VerbsRail, verbs::VerbsRegion);
    /// Rails of the worst-case network.
    Worst(Box<WorstRail>, WorstRegion);
}

#[cold]
fn stranger(rail: &AnyRail) -> FabricError {
    mistake(rail.name(), "a post", "the region is registered on a rail of another kind")
}

impl AnyRail {
    /// Like [`LibfabricRail::bare_writes`]. Returns `None` for other kinds of rails, which have no lower-level
    /// interface.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`LibfabricRail::bare_writes`].
    pub unsafe fn bare_writes(&mut self, region: &AnyRegion, run: &BareLoop) -> Option<Result<f64, FabricError>> {
        match (self, region) {
            // SAFETY: forwards the call; the caller upholds the contract of `LibfabricRail::bare_writes`.
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => Some(unsafe { rail.bare_writes(region, run) }),
            (rail @ AnyRail::Libfabric(_), _) => Some(Err(stranger(rail))),
            _ => None,
        }
    }
}
