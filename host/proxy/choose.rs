//! What a rank chooses together with the others: its rails, and cores for its busy threads.

use ginlab_bootstrap::{Bootstrap, BootstrapError};
use ginlab_cuda::Device;
use ginlab_fabric::discover::{Domain, Reach};
use ginlab_fabric::libfabric::RailOptions;
use ginlab_fabric::{Chosen, Fabric, RankPlace};
use ginlab_topology::cores::share::{self, Want};
use ginlab_topology::cores::{self, Pin};
use ginlab_topology::pci::PciAddress;
use std::path::Path;

/// Why no rails could be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// Another rank has gone, or has others.
    #[error("{0}")]
    Ranks(#[from] BootstrapError),
    /// What was asked for is not to be had here.
    #[error("{0}")]
    Usage(String),
}

/// Chooses `count` rails for this rank. What all ranks must agree on is compared before any is opened: rails pair by number, and a list of
/// another length or kind on another rank would write into the wrong place.
///
/// # Errors
/// See [`ChooseError`].
pub fn choose_rails(
    fabric: &Fabric,
    count: usize,
    options: RailOptions,
    ranks: &mut Bootstrap,
    device: &Device,
) -> Result<Chosen, ChooseError> {
    let place = RankPlace {
        rank: ranks.rank(),
        reach: if ranks.same_host() { Reach::SameHost } else { Reach::Network },
        one_machine: ranks.on_this_machine().len() == ranks.size(),
        gpu: device.pci_address().and_then(|address| address.parse().ok()),
        local_rank: ranks.local_rank(),
        local_size: ranks.local_size(),
    };
    let chosen = fabric.choose(count, &place, options).map_err(ChooseError::Usage)?;
    ranks.compare(vec![("provider".into(), chosen.name()), ("number of rails".into(), count.to_string())])?;
    Ok(chosen)
}

/// Cores for the busy threads of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// By thread; none where it is not pinned.
    pub cpus: Vec<usize>,
    /// Busy threads share cores: an idle one gives way.
    pub shared: bool,
    /// Cores of this machine that nobody is busy on.
    pub spare: usize,
}

/// One core for each of the `threads` of this rank, near its GPU or, without one, near its cards, where this machine has cores for all of
/// its `busy` threads, which are those of all ranks here. Every rank calls it, whatever it wants: those of one machine share out its cores.
///
/// # Errors
/// Another rank has gone.
pub fn choose_cores(
    pin: &Pin,
    threads: usize,
    busy: usize,
    ranks: &mut Bootstrap,
    device: &Device,
    domains: &[Domain],
) -> Result<Cores, BootstrapError> {
    let allowed = cores::allowed();
    let shared = busy > allowed.len();
    let gpu = device.pci_address().and_then(|address| address.parse().ok());
    let devices: Vec<PciAddress> = gpu.into_iter().chain(domains.iter().filter_map(|domain| domain.pci)).collect();
    let threads_here = if *pin == Pin::Auto && !shared { threads } else { 0 };
    let near = cores::near(Path::new("/"), &devices);
    let want = Want { threads: threads_here, allowed: allowed.to_vec(), near };
    let wants = ranks.all_gather_values(&want, "cores that ranks want")?;
    let here = ranks.on_this_machine();
    let wants: Vec<Want> = here.iter().map(|rank| wants[*rank].clone()).collect();
    let all: Vec<usize> = wants.iter().flat_map(|want| want.allowed.iter().copied()).collect();
    let mut shares = share::share_out(&wants, &cores::physical(Path::new("/"), &all));
    let mine = here.iter().position(|rank| *rank == ranks.rank()).unwrap_or_default();
    let first = ranks.local_rank() * threads;
    let cpus = match pin {
        Pin::List(list) => (first..first + threads).filter_map(|index| list.get(index).copied()).collect(),
        Pin::Off | Pin::Auto => shares.swap_remove(mine),
    };
    Ok(Cores { cpus, shared, spare: allowed.len().saturating_sub(busy) })
}
