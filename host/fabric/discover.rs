//! What fabrics there are on this machine, and which of them a run uses.

use libfabric_sys as sys;

use super::domain::IMMEDIATE_BYTES;
pub use super::domain::{AddressFamily, Domain};
use super::libfabric::{Doing, Level, Wanted, all_providers, query, refused};
use super::select::Place;
pub use super::select::{Plan, Reach};
use super::{FabricError, mistake, verbs};
use ginlab_topology::pci::PciAddress;

/// A provider compiled into the loaded libfabric, whether it finds hardware here or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Provider {
    /// Name, as `efa` or `tcp`.
    pub name: String,
    /// Version, as `117.0`.
    pub version: String,
}

/// The providers of the loaded libfabric, without its debugging hooks, in alphabetical order.
pub fn list_providers() -> Result<Vec<Provider>, FabricError> {
    let list = all_providers()?;
    let mut providers: Vec<_> = list
        .iter()
        .map(|entry| Provider { name: entry.provider(), version: entry.provider_version() })
        .filter(|provider| !provider.name.starts_with("ofi_hook"))
        .collect();
    providers.sort();
    providers.dedup();
    Ok(providers)
}

/// The domains of a provider that ginlab can use, at the completion level `Delivery`. `provider` is a full name, as
/// [`choose_provider`] returns it, or a core name such as `tcp`, which lists all its variants.
pub fn list_domains(provider: &str) -> Result<Vec<Domain>, FabricError> {
    list_domains_for(provider, Level::Delivery, false)
}

/// As [`list_domains`], for any completion level; with `cuda_memory` only those whose rails take memory of CUDA devices.
pub(super) fn list_domains_for(provider: &str, level: Level, cuda_memory: bool) -> Result<Vec<Domain>, FabricError> {
    let mut domains: Vec<Domain> = Vec::new();
    let mut first_error = None;
    // A provider that needs posted receives answers the second question only.
    for posted_receives in [false, true] {
        let wanted =
            Wanted { provider, fabric: None, domain: None, level, cuda_memory, posted_receives, messages: false };
        match query(&wanted) {
            Ok(list) => {
                for domain in list.iter().map(Domain::of) {
                    if !domains.contains(&domain) {
                        domains.push(domain);
                    }
                }
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
        if !domains.is_empty() {
            return Ok(domains);
        }
    }
    match first_error {
        Some(mut error) => {
            add_known_providers(&mut error, provider);
            Err(error)
        }
        None => Ok(domains),
    }
}

/// A wrong name is the commonest cause: say which names there are.
fn add_known_providers(error: &mut FabricError, provider: &str) {
    let Ok(known) = list_providers() else { return };
    let core = provider.split(';').next().unwrap_or(provider);
    if known.iter().all(|known| known.name != core) {
        let names: Vec<_> = known.iter().map(|known| known.name.as_str()).collect();
        error.text = format!("there is no provider {provider:?}");
        error.hint = format!("this libfabric has {}", names.join(", "));
    }
}

/// Whether an interface of this name may lead to other machines: bridges of container runtimes and hypervisors do not.
#[must_use]
pub fn leaves_the_machine(interface: &str) -> bool {
    interface != "lo" && !super::select::is_bridge(interface)
}

/// The provider that a run uses, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The full name to open, as `tcp;ofi_rxm`.
    pub provider: String,
    /// Why this one, for people.
    pub reason: String,
}

/// Chooses the provider: the one that was asked for, otherwise `efa` where it finds a device, otherwise `tcp`.
///
/// A core name means its best variant that has what ginlab needs (reliable datagrams, RMA, 4 bytes of remote immediate,
/// delivery complete), which is probed. For `tcp` the order is: `tcp` itself where it has reliable datagrams (libfabric 2.x),
/// then `tcp;ofi_rxm`, then `net`. Over the loopback the last two are equally fast (libfabric 1.17: 4.6 us per write of 8 B,
/// 5.5 GB/s at 64 KiB); `tcp;ofi_rxm` has eight times the queue and heeds the completion level without help. A name with a `;`
/// is taken as it is.
pub fn choose_provider(requested: Option<&str>) -> Result<Choice, FabricError> {
    let Some(name) = requested.map(str::trim).filter(|name| !name.is_empty()) else {
        return match choose_named("efa") {
            Ok(choice) => Ok(Choice { reason: "default: an EFA device is here".to_owned(), ..choice }),
            Err(_) => {
                let choice = choose_named("tcp")?;
                Ok(Choice { reason: format!("default: no EFA device is here; {}", choice.reason), ..choice })
            }
        };
    };
    choose_named(name)
}

/// The full names that a name may stand for, best first.
pub(super) fn variants(name: &str) -> Vec<String> {
    let mut variants = vec![name.to_owned()];
    if !name.contains(';') {
        variants.push(format!("{name};ofi_rxm"));
        variants.push(format!("{name};ofi_rxd"));
    }
    if name == "tcp" {
        variants.push("net".to_owned());
    }
    variants
}

fn choose_named(name: &str) -> Result<Choice, FabricError> {
    if verbs::is_asked(name) {
        if verbs::cards()?.is_empty() {
            return Err(mistake(name, "looking for cards", "there is no card of EFA's here"));
        }
        let reason = "EFA's cards by verbs, without libfabric".to_owned();
        return Ok(Choice { provider: verbs::label(), reason });
    }
    if super::soft::is_asked(name) {
        let label = super::soft::label().ok_or_else(|| {
            let text = "the cards are loaded by the option -p alone, before anything else";
            mistake(name, "cards in software", text)
        })?;
        let reason =
            "cards in software below libfabric's EFA provider: no figure of them is a measured card's".to_owned();
        return choose_named("efa").map(|_| Choice { provider: label.to_owned(), reason });
    }
    let variants = variants(name);
    let mut first_error = None;
    for variant in &variants {
        let domains = match list_domains(variant) {
            Ok(domains) => domains,
            Err(error) => {
                first_error = first_error.or(Some(error));
                continue;
            }
        };
        if domains.iter().any(|domain| domain.provider == *variant && domain.immediate_bytes >= IMMEDIATE_BYTES) {
            let reason = format!("{variant} has RDM, RMA, remote immediates and delivery complete here");
            return Ok(Choice { provider: variant.clone(), reason });
        }
    }
    Err(first_error.unwrap_or_else(|| {
        let text = "it has no remote immediates of 4 bytes with reliable datagrams and RMA";
        refused(name, Doing::Opening, "choosing the provider", sys::FI_ENODATA, text)
    }))
}

/// Cards of a provider (of the one that would be chosen, where none is named) that rails are opened on unasked; `None` where its
/// domains are no cards, as those of tcp are not, or where it finds nothing.
#[must_use]
pub fn cards(requested: Option<&str>) -> Option<usize> {
    if requested.is_some_and(verbs::is_asked) {
        return Some(verbs::cards().ok()?.len());
    }
    let chosen = choose_provider(requested).ok()?.provider;
    let provider = if super::soft::is_asked(&chosen) { "efa" } else { chosen.as_str() };
    let mut domains = list_domains(provider).ok()?;
    domains.retain(|domain| domain.provider == provider);
    let domains = super::select::eligible(domains, Reach::Network);
    domains.first()?.pci.map(|_| domains.len())
}

/// Chooses the domains of one rank's rails; see [`Plan`].
///
/// `explicit` names domains (or `fabric:domain`, where a device is in several fabrics) and settles them in that order;
/// otherwise there are `count` distinct domains. Where the machine has fewer, cards are refused (several endpoints share a card's
/// line and are no rails), and providers without cards open `count` endpoints on the first domain, with a note. `nearest_to`
/// is the GPU; of NICs that are equally near, ranks with different `local_rank` get different
/// ones. With [`Reach::SameHost`] providers over IP use the loopback only.
pub fn select_domains(
    provider: &str,
    count: usize,
    reach: Reach,
    explicit: &[String],
    nearest_to: Option<PciAddress>,
    local_rank: usize,
    local_size: usize,
) -> Result<Plan, FabricError> {
    super::select::check_count(provider, count)?;
    let chosen = choose_named(provider)?.provider;
    let is_verbs = verbs::is_asked(&chosen);
    let provider = if !is_verbs && super::soft::is_asked(&chosen) { "efa" } else { chosen.as_str() };
    let domains = if is_verbs { verbs::cards()? } else { list_domains(provider)? };
    let request = super::select::Request { provider, count, reach, explicit, nearest_to, local_rank, local_size };
    let place = |address: &PciAddress| Some(Place { path: address.tree_path()?, numa_node: address.numa_node() });
    super::select::select(domains, &request, &place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_and_the_loopback_stay_on_the_machine() {
        for (interface, leaves) in
            [("lo", false), ("docker0", false), ("virbr0", false), ("eth0", true), ("ens5", true)]
        {
            assert_eq!(leaves_the_machine(interface), leaves, "{interface}");
        }
    }
}
