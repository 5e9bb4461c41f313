//! Rails of programs that take whichever provider is named: libfabric's, or the worst network. The kind is looked at with each call.

use super::discover::Domain;
use super::libfabric::{IMMEDIATES, LibfabricRail, LibfabricRegion, RailOptions};
use super::worst::{self, Spec, Who, WorstRail, WorstRegion};
use super::{
    Access, BareLoop, Completion, FabricError, Memory, Message, Post, Rail, RailLimits, RemoteRegion, Transfer, mistake,
};
use ginlab_cuda::Place;

/// Rails that have been chosen and not been opened.
#[derive(Clone, Debug)]
pub enum Chosen {
    /// One on each of these domains of libfabric.
    Libfabric(Vec<Domain>),
    /// So many of the worst network.
    Worst(Spec, usize),
}

impl Chosen {
    /// So many rails of the worst network, where that is what a provider's name asks for; nothing where it is libfabric's.
    ///
    /// # Errors
    /// An option that there is not, in one line with those that there are.
    pub fn worst(provider: Option<&str>, count: usize) -> Result<Option<Chosen>, String> {
        let name = provider.filter(|name| worst::is_asked(name));
        name.map(|name| name.parse().map(|spec| Chosen::Worst(spec, count))).transpose()
    }

    /// Opens them. `rank` tells rails of the worst network apart, in messages and in what they draw.
    ///
    /// # Errors
    /// What could not be opened.
    pub fn open(&self, options: &RailOptions, rank: usize) -> Result<Vec<AnyRail>, FabricError> {
        match self {
            Chosen::Libfabric(domains) => {
                domains.iter().map(|domain| LibfabricRail::open(domain, options).map(AnyRail::Libfabric)).collect()
            }
            Chosen::Worst(spec, count) => {
                let who = |rail| Who { rank: rank as u32, proxy: 0, rail: rail as u16 };
                let open = |rail| {
                    WorstRail::open(spec, who(rail), options.messages).map(|rail| AnyRail::Worst(Box::new(rail)))
                };
                (0..*count).map(open).collect()
            }
        }
    }

    /// Where memory has to lie that peers write to or read.
    #[must_use]
    pub fn place(&self) -> Place {
        match self {
            Chosen::Libfabric(_) => Place::Host,
            Chosen::Worst(..) => Place::File,
        }
    }

    /// Immediates that the completion queue of each rail has room for while nobody polls it, where the [`RailOptions`] ask for no other number.
    #[must_use]
    pub fn immediates(&self) -> usize {
        match self {
            Chosen::Worst(Spec { queue: Some(queue), .. }, _) => *queue as usize,
            _ => IMMEDIATES,
        }
    }

    /// The seed and options, where they are of the worst network.
    #[must_use]
    pub fn label(&self) -> Option<String> {
        match self {
            Chosen::Libfabric(_) => None,
            Chosen::Worst(spec, _) => Some(spec.to_string()),
        }
    }

    /// What a header should say of them.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        match self {
            Chosen::Libfabric(_) => None,
            Chosen::Worst(spec, _) => Some(spec.note()),
        }
    }

    /// The domains, of libfabric.
    #[must_use]
    pub fn domains(&self) -> &[Domain] {
        match self {
            Chosen::Libfabric(domains) => domains,
            Chosen::Worst(..) => &[],
        }
    }
}

/// A rail of either kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "what is measured is not behind a pointer, and rails are few")]
pub enum AnyRail {
    /// Of libfabric.
    Libfabric(LibfabricRail),
    /// Of the worst network.
    Worst(Box<WorstRail>),
}

/// A region of either kind.
#[derive(Debug)]
pub enum AnyRegion {
    /// On a rail of libfabric.
    Libfabric(LibfabricRegion),
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
            AnyRail::Worst(rail) => rail.name(),
        }
    }

    fn limits(&self) -> &RailLimits {
        match self {
            AnyRail::Libfabric(rail) => rail.limits(),
            AnyRail::Worst(rail) => rail.limits(),
        }
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.address(),
            AnyRail::Worst(rail) => rail.address(),
        }
    }

    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.add_peer(address),
            AnyRail::Worst(rail) => rail.add_peer(address),
        }
    }

    fn insert_peers(&mut self, addresses: &[Vec<u8>]) -> Result<(), FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.insert_peers(addresses),
            AnyRail::Worst(rail) => rail.insert_peers(addresses),
        }
    }

    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.remove_peer(peer),
            AnyRail::Worst(rail) => rail.remove_peer(peer),
        }
    }

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<AnyRegion, FabricError> {
        match self {
            // SAFETY: passed on.
            AnyRail::Libfabric(rail) => unsafe { rail.register(memory, access) }.map(AnyRegion::Libfabric),
            // SAFETY: passed on.
            AnyRail::Worst(rail) => unsafe { rail.register(memory, access) }.map(AnyRegion::Worst),
        }
    }

    fn remote(&self, region: &AnyRegion) -> RemoteRegion {
        match (self, region) {
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => rail.remote(region),
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
            (AnyRail::Worst(rail), AnyRegion::Worst(region)) => unsafe { rail.read(region, t) },
            (rail, _) => Err(stranger(rail)),
        }
    }

    unsafe fn send(&mut self, region: &AnyRegion, peer: usize, message: &Message) -> Result<Post, FabricError> {
        match (self, region) {
            // SAFETY: passed on.
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => unsafe { rail.send(region, peer, message) },
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
            (AnyRail::Worst(rail), AnyRegion::Worst(region)) => unsafe { rail.receive(region, message) },
            (rail, _) => Err(stranger(rail)),
        }
    }

    fn cancel(&mut self, token: u64) -> Result<(), FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.cancel(token),
            AnyRail::Worst(rail) => rail.cancel(token),
        }
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        match self {
            AnyRail::Libfabric(rail) => rail.poll(completions),
            AnyRail::Worst(rail) => rail.poll(completions),
        }
    }

    unsafe fn bare_writes(&mut self, region: &AnyRegion, run: &BareLoop) -> Option<Result<f64, FabricError>> {
        match (self, region) {
            // SAFETY: passed on.
            (AnyRail::Libfabric(rail), AnyRegion::Libfabric(region)) => unsafe { rail.bare_writes(region, run) },
            // SAFETY: passed on.
            (AnyRail::Worst(rail), AnyRegion::Worst(region)) => unsafe { rail.bare_writes(region, run) },
            (rail, _) => Some(Err(stranger(rail))),
        }
    }

    fn counted(&self) -> Option<(u64, u64, u64)> {
        match self {
            AnyRail::Libfabric(rail) => rail.counted(),
            AnyRail::Worst(rail) => rail.counted(),
        }
    }
}
