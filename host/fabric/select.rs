//! Selection of the domains of a rank's rails, as a pure function of the discovered domains.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use super::domain::{AddressFamily, Domain};
use super::{FabricError, mistake};
use ginlab_topology::pci::{PciAddress, shared_path};

/// Maximum number of rails. It exceeds the number of NICs per GPU of any machine, so a larger number is a mistake.
const MAX_RAILS: usize = 64;

/// Location of the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All peers are on this machine: providers over IP use only the loopback, so no data leaves the machine.
    SameHost,
    /// Peers are also on other machines: no loopback, no container bridges, no link-local addresses; IPv4 before IPv6.
    Network,
}

/// The domains of a rank's rails, one entry per rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainSelection {
    /// Rail `i` is opened on `domains[i]`. A domain may occur several times.
    pub domains: Vec<Domain>,
    /// Number of distinct domains.
    pub distinct: usize,
    /// Note for readers of the results, for example that several endpoints share a domain.
    pub note: Option<String>,
}

/// The request of [`super::discover::select_domains`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub provider: &'a str,
    pub count: usize,
    pub reach: Reach,
    pub explicit: &'a [String],
    pub nearest_to: Option<PciAddress>,
    pub local_rank: usize,
    pub local_size: usize,
}

pub(super) fn check_count(provider: &str, count: usize) -> Result<(), FabricError> {
    if (1..=MAX_RAILS).contains(&count) {
        return Ok(());
    }
    Err(mistake(provider, format!("choosing {count} rails"), format!("must be from 1 to {MAX_RAILS}")))
}

/// Returns whether the interface belongs to a container runtime or hypervisor. Such subnets repeat on every machine,
/// and no other machine can be reached through them.
pub(super) fn is_bridge(name: &str) -> bool {
    ["docker", "br-", "virbr", "cni", "flannel", "podman", "lxcbr", "lxdbr", "nerdctl"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Returns whether peers of this reach can be reached through the domain.
fn is_eligible(domain: &Domain, reach: Reach) -> bool {
    // Providers of shared memory have no addresses that distinguish machines, so their name decides.
    if domain.provider.starts_with("shm") || domain.provider.starts_with("sm2") {
        return reach == Reach::SameHost;
    }
    let Some(address) = domain.address.filter(|_| domain.family.is_ip()) else { return true };
    match reach {
        Reach::SameHost => address.is_loopback() && address.is_ipv4(),
        Reach::Network => {
            let link_local = match address {
                std::net::IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
                std::net::IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
            };
            !address.is_loopback() && !link_local && !is_bridge(&domain.name)
        }
    }
}

/// Returns one entry per name: IPv4 before IPv6, fabric `efa` before `efa-direct` (which has stricter limits),
/// otherwise the first.
fn one_per_name(domains: Vec<Domain>) -> Vec<Domain> {
    let rank = |domain: &Domain| (domain.family == AddressFamily::Ipv6, domain.fabric == "efa-direct");
    let mut kept: Vec<Domain> = Vec::new();
    for domain in domains {
        match kept.iter_mut().find(|other| other.name == domain.name) {
            Some(other) if rank(&domain) < rank(other) => *other = domain,
            Some(_) => {}
            None => kept.push(domain),
        }
    }
    kept
}

fn names(domains: &[Domain]) -> String {
    let names: Vec<_> = domains.iter().map(|domain| domain.name.as_str()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns the domains on which rails are opened by default, in the order found.
pub(super) fn eligible(mut domains: Vec<Domain>, reach: Reach) -> Vec<Domain> {
    domains.retain(|domain| is_eligible(domain, reach));
    one_per_name(domains)
}

/// Location of a device: its path in the PCI tree, and the NUMA node if known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceLocation {
    pub path: String,
    pub numa_node: Option<u32>,
}

impl DeviceLocation {
    /// Returns the proximity of two devices; greater is nearer. Compares the shared part of their PCI paths first, then
    /// whether they have the same NUMA node.
    fn nearness(&self, other: &DeviceLocation) -> (usize, bool) {
        let same_node = self.numa_node.is_some() && self.numa_node == other.numa_node;
        (shared_path(&self.path, &other.path), same_node)
    }
}

/// Selects the domains of a rank's rails. `place` returns the location of a device.
pub(super) fn select(
    mut domains: Vec<Domain>,
    request: &Request<'_>,
    place: &dyn Fn(&PciAddress) -> Option<DeviceLocation>,
) -> Result<DomainSelection, FabricError> {
    let Request { provider, count, reach, explicit, .. } = *request;
    check_count(provider, count)?;
    domains.retain(|domain| domain.provider == provider);
    if !explicit.is_empty() {
        return select_named(domains, request);
    }
    let all = domains.clone();
    let mut domains = eligible(domains, reach);
    if domains.is_empty() {
        let place = match reach {
            Reach::SameHost => "on this machine's loopback",
            Reach::Network => "on a network to other machines",
        };
        let text = format!("no domain {place}; available: {}", names(&one_per_name(all)));
        return Err(mistake(provider, format!("choosing {count} rails"), text));
    }
    if !domains[0].family.is_ip() {
        // Over IP the order is kept, because rail `i` must be in the same subnet as the peer's rail `i`.
        nearest_first(&mut domains, request, place);
    }
    if domains.len() >= count {
        domains.truncate(count);
        return Ok(DomainSelection { domains, distinct: count, note: None });
    }
    if domains[0].pci.is_some() {
        // Several endpoints on a NIC are only as fast as the NIC, but a result row would call them rails.
        let text = format!(
            "{count} rails need {count} NICs, but there are {}: {}; use fewer rails, or name the domains of NICs \
             for several endpoints",
            domains.len(),
            names(&domains)
        );
        return Err(mistake(provider, format!("choosing {count} rails"), text));
    }
    // There are fewer domains than rails. The first one is used for all rails, so that these are equal.
    let first = &domains[0];
    let note = match domains.len() {
        1 => format!("{count} endpoints share the one domain {}", first.name),
        _ => format!("{count} endpoints share the domain {}, not enough for one each: {}", first.name, names(&domains)),
    };
    let note = (count > 1).then_some(note);
    Ok(DomainSelection { domains: vec![first.clone(); count], distinct: 1, note })
}

/// Selects the named domains in their order, with several endpoints on each if there are more rails than names.
fn select_named(domains: Vec<Domain>, request: &Request<'_>) -> Result<DomainSelection, FabricError> {
    let Request { provider, count, reach, explicit, .. } = *request;
    let fail = |text| Err(mistake(provider, format!("choosing the domains {}", explicit.join(", ")), text));
    // A name may select a domain that is not used by default, such as a bridge or a link-local address. On one machine,
    // only the loopback is permitted.
    let usable: Vec<_> =
        domains.into_iter().filter(|domain| reach == Reach::Network || is_eligible(domain, reach)).collect();
    let distinct = one_per_name(usable.clone());
    if explicit.len() > distinct.len() {
        return fail(format!("{} are named, but there are {}: {}", explicit.len(), distinct.len(), names(&distinct)));
    }
    if explicit.len() > count {
        return fail(format!("{} are named for {count} rails", explicit.len()));
    }
    let mut chosen: Vec<Domain> = Vec::new();
    for name in explicit {
        let by_name = distinct.iter().find(|domain| domain.name == *name);
        let by_both = || usable.iter().find(|domain| format!("{}:{}", domain.fabric, domain.name) == *name);
        match by_name.or_else(by_both) {
            Some(domain) if chosen.contains(domain) => return fail(format!("{name} is named twice")),
            Some(domain) => chosen.push(domain.clone()),
            None => return fail(format!("no {name}; available: {}", names(&distinct))),
        }
    }
    let distinct = chosen.len();
    let note = (count > distinct).then(|| format!("{count} endpoints on {distinct} named domains"));
    let domains = chosen.iter().cycle().take(count).cloned().collect();
    Ok(DomainSelection { domains, distinct, note })
}

/// Sorts by proximity to the GPU. Equally near NICs are rotated by the local rank, so that ranks of one machine use
/// different ones.
fn nearest_first(domains: &mut [Domain], request: &Request<'_>, place: &dyn Fn(&PciAddress) -> Option<DeviceLocation>) {
    let gpu = request.nearest_to.as_ref().and_then(place);
    let nearness = |domain: &Domain| match (&gpu, domain.pci.as_ref().and_then(place)) {
        (Some(gpu), Some(nic)) => gpu.nearness(&nic),
        _ => (0, false),
    };
    domains.sort_by_cached_key(|domain| (Reverse(nearness(domain)), domain.pci, domain.name.clone()));
    for tied in domains.chunk_by_mut(|a, b| nearness(a) == nearness(b)) {
        let turn = share(tied.len(), request.count, request.local_rank, request.local_size);
        tied.rotate_left(turn);
    }
}

/// Returns the index at which a rank starts in a cycle of `tied` equally near NICs. If there are enough for all ranks,
/// each gets its own block. Otherwise the starts are spread evenly.
fn share(tied: usize, count: usize, local_rank: usize, local_size: usize) -> usize {
    let size = local_size.max(1);
    let rank = local_rank % size;
    if tied >= count * size { rank * count } else { rank * tied / size }
}
