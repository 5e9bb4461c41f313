//! Choices that a rank makes together with the other ranks: rails, and cores for its busy threads.

use ginlab_bootstrap::{Bootstrap, BootstrapError};
use ginlab_cuda::Device;
use ginlab_fabric::discover::{Domain, Reach};
use ginlab_fabric::libfabric::RailOptions;
use ginlab_fabric::{Fabric, RailPlan, RankPlace};
use ginlab_topology::cores::share::{self, Want};
use ginlab_topology::cores::{self, Pin};
use ginlab_topology::pci::PciAddress;
use std::path::Path;

/// Errors when choosing rails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChooseError {
    /// Another rank has disconnected, or chose a different provider or number of rails.
    #[error("{0}")]
    Ranks(#[from] BootstrapError),
    /// The requested rails are not available here.
    #[error("{0}")]
    Usage(String),
}

/// Chooses `count` rails for this rank. Provider and number of rails are compared between all ranks before any rail is
/// opened. Rails are paired by index, so a rank with a different provider or number of rails would write to the wrong
/// place.
///
/// # Errors
/// Returns [`ChooseError::Usage`] if the requested rails are not available, and [`ChooseError::Ranks`] if the ranks
/// disagree or one has disconnected.
pub fn choose_rails(
    fabric: &Fabric,
    count: usize,
    options: RailOptions,
    ranks: &mut Bootstrap,
    device: &Device,
) -> Result<RailPlan, ChooseError> {
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
    /// Core of each thread. Empty if the threads are not pinned.
    pub cpus: Vec<usize>,
    /// Whether busy threads share cores, so that an idle thread must yield.
    pub shared: bool,
    /// Number of cores of this machine without a busy thread.
    pub spare: usize,
}

/// Chooses one core for each of the `threads` of this rank, near its GPU or, without one, near its NICs. `busy` is the
/// number of busy threads of all ranks on this machine; threads are pinned only if the machine has a core for each. All
/// ranks must call this function, regardless of their requests, because the ranks of one machine divide its cores among
/// themselves.
///
/// # Errors
/// Returns an error if another rank has disconnected.
pub fn choose_cores(
    pin: &Pin,
    threads: usize,
    busy: usize,
    ranks: &mut Bootstrap,
    device: &Device,
    domains: &[Domain],
) -> Result<Cores, BootstrapError> {
    let allowed = cores::allowed();
    let shared = busy > cores::usable();
    let gpu = device.pci_address().and_then(|address| address.parse().ok());
    let devices: Vec<PciAddress> = gpu.into_iter().chain(domains.iter().filter_map(|domain| domain.pci)).collect();
    let threads_here = if *pin == Pin::Auto && !shared { threads } else { 0 };
    let near = cores::near(Path::new("/"), &devices);
    let want = Want { threads: threads_here, allowed: allowed.to_vec(), near };
    let wants = ranks.all_gather_values(&want, "cores that ranks request")?;
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
    Ok(Cores { cpus, shared, spare: cores::usable().saturating_sub(busy) })
}
