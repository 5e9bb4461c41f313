//! Rails of `--peers`. Each rank opens its own rails and reports whether it could, so that a host whose rails cannot be
//! opened is a finding, and the other hosts are tested without it.
//!
//! Every rail has its own flow, so that a rail that stalls does not affect the others.

use super::DoctorArgs;
use crate::error::Failure;
use crate::job::check_room;
use crate::rails::check_provider;
use ginlab::bootstrap::Bootstrap;
use ginlab::cuda::{self, Device, DeviceChoice};
use ginlab::fabric::any::AnyRail;
use ginlab::fabric::discover::Reach;
use ginlab::fabric::libfabric::RailOptions;
use ginlab::fabric::{Access, Rail as _, RankPlace};
use ginlab::flow::{Flow, Offer, Region, Target};

/// An open rail with its memory.
pub struct OwnRail {
    pub flow: Flow<AnyRail>,
    pub name: String,
    /// Source of writes to peers.
    pub source: Region<AnyRail>,
    /// Destination of writes of peers.
    pub inbox: Region<AnyRail>,
    /// Destinations by rank; `None` for ranks without this rail.
    pub targets: Vec<Option<Target>>,
    /// Line rate of the NIC in bits per second, if the provider reports it.
    pub line_rate: Option<u64>,
}

/// Sizes of the memory of each rail.
#[derive(Clone, Copy)]
pub struct RailMemorySizes {
    pub source: usize,
    pub inbox: usize,
}

/// Rails of this rank, connected with those of its peers.
pub struct Met {
    pub rails: Vec<OwnRail>,
    /// Names of the rails of each rank, or the reason if the rank has none.
    pub of_ranks: Vec<Result<Vec<String>, String>>,
    /// Peers whose address a rail rejects, one line each. Such a rail has no target for the peer.
    pub rejected: Vec<String>,
}

impl Met {
    /// Returns the ranks other than `rank` that have rail `rail`.
    pub fn peers(&self, rank: usize, rail: usize) -> impl Iterator<Item = (usize, &Target)> {
        let targets = self.rails.get(rail).map_or(&[][..], |rail| &rail.targets);
        targets.iter().enumerate().filter_map(move |(peer, target)| Some((peer, target.as_ref()?))).filter(
            move |(peer, _)| {
                // The EFA provider of libfabric 2.1 rejects writes to this rank itself (EOPNOTSUPP), because it does
                // not learn that its own endpoint accepts immediates without a posted receive.
                *peer != rank
            },
        )
    }
}

/// Opens `rails` rails of this rank. With `all`, the choice depends neither on a GPU nor on other ranks of the host.
pub fn open(
    args: &DoctorArgs,
    rails: usize,
    sizes: RailMemorySizes,
    all: bool,
    ranks: &Bootstrap,
) -> Result<Vec<OwnRail>, String> {
    let said = |failure: Failure| failure.text().unwrap_or_default();
    let fabric = check_provider(args.job.provider.as_deref(), &args.job.domain).map_err(said)?;
    let place = RankPlace {
        rank: ranks.rank(),
        reach: if ranks.same_host() { Reach::SameHost } else { Reach::Network },
        one_machine: ranks.on_this_machine().len() == ranks.size(),
        gpu: if all { None } else { near_gpu(args, ranks.local_rank()) },
        // Ranks that share NICs open them in different orders. If all NICs are used, a rail must be the same NIC on
        // every node.
        local_rank: if all { 0 } else { ranks.local_rank() },
        local_size: if all { 1 } else { ranks.local_size() },
    };
    let options = RailOptions { level: args.job.completion, ..RailOptions::default() };
    let plan = fabric.choose(rails, &place, options)?;
    check_room(ranks.size(), 1, plan.immediates()).map_err(said)?;
    let opened = plan.open().map_err(|error| error.to_string())?;
    let memory = |flow: &Flow<AnyRail>, bytes: usize, access| {
        let buffer = Device::Emulated.allocate(plan.place(), bytes.max(64)).map_err(|error| error.to_string())?;
        flow.register(buffer, access).map_err(|error| error.to_string())
    };
    let mut own = Vec::new();
    for (index, rail) in opened.into_iter().enumerate() {
        let name = rail.name().to_owned();
        let flow = Flow::new(vec![rail], args.job.meet.timeout);
        let source = memory(&flow, sizes.source, Access::SOURCE)?;
        let inbox = memory(&flow, sizes.inbox, Access::REMOTE_WRITE)?;
        let line_rate = plan.domains().get(index).and_then(|domain| domain.link_bits_per_second);
        own.push(OwnRail { flow, name, source, inbox, targets: Vec::new(), line_rate });
    }
    Ok(own)
}

/// Returns the PCI address of the GPU that a rank with this index on its host uses.
fn near_gpu(args: &DoctorArgs, local_rank: usize) -> Option<ginlab::topology::pci::PciAddress> {
    if args.job.device == DeviceChoice::Emulated {
        return None;
    }
    let gpus = cuda::visible_gpus().ok().filter(|gpus| !gpus.is_empty())?;
    gpus[local_rank % gpus.len()].address
}

/// Exchanges the addresses of the rails. Ranks without rails take part. After this call the job needs all its ranks.
pub fn connect(opened: Result<Vec<OwnRail>, String>, ranks: &mut Bootstrap) -> Result<Met, Failure> {
    let offered = opened.and_then(|rails| {
        let offer = |rail: &OwnRail| rail.flow.offer(&[&rail.inbox]).map_err(|error| error.to_string());
        let offers: Vec<Offer> = rails.iter().map(offer).collect::<Result<_, _>>()?;
        Ok((rails, offers))
    });
    let (mut rails, mine) = match offered {
        Ok((rails, offers)) => (rails, Ok(offers)),
        Err(why) => (Vec::new(), Err(why)),
    };
    let offers: Vec<Result<Vec<Offer>, String>> = ranks.all_gather_values(&mine, "addresses and memory keys")?;
    ranks.set_partial(false);
    let addresses: Vec<Vec<Vec<u8>>> = offers
        .iter()
        .map(|offers| offers.iter().flatten().flat_map(|offer| offer.addresses.iter().cloned()).collect())
        .collect();
    if addresses.iter().all(|addresses| !addresses.is_empty()) {
        ranks.check_addresses(addresses.iter().map(|addresses| &addresses[..]))?;
    }
    let mut rejected = Vec::new();
    for (index, rail) in rails.iter_mut().enumerate() {
        for (rank, offers) in offers.iter().enumerate() {
            let Some(offer) = offers.as_ref().ok().and_then(|offers| offers.get(index)) else {
                rail.targets.push(None);
                continue;
            };
            // A peer that has chosen another provider has addresses of another form.
            let target = rail.flow.add_peer(offer).and_then(|peer| Target::new(peer, offer, 0));
            if let Err(error) = &target {
                let host = ranks.members().get(rank).map_or("", |member| &member.host);
                let theirs = offer.rails.join(", ");
                rejected.push(format!("rank {rank} ({host}, {theirs}) over {} (rail {index}): {error}", rail.name));
            }
            rail.targets.push(target.ok());
        }
    }
    // EFA devices reject writes from a peer whose address has not been inserted, so no rank may write before all ranks
    // have inserted all addresses.
    ranks.barrier("connected")?;
    let names = |offers: Vec<Offer>| offers.iter().flat_map(|offer| offer.rails.iter().cloned()).collect();
    Ok(Met { rails, rejected, of_ranks: offers.into_iter().map(|offers| offers.map(names)).collect() })
}
