//! Discovery of the fabrics of this machine, and selection of the provider and domains of a run.

use libfabric_sys as sys;

use super::domain::IMMEDIATE_BYTES;
pub use super::domain::{AddressFamily, Domain};
use super::libfabric::{FailedOperation, Level, ProviderRequirements, all_providers, query, refused};
use super::select::DeviceLocation;
pub use super::select::{DomainSelection, Reach};
use super::{FabricError, mistake, verbs};
use ginlab_topology::pci::PciAddress;

/// A provider compiled into the loaded libfabric, whether or not it finds hardware here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Provider {
    /// Name, such as `efa` or `tcp`.
    pub name: String,
    /// Version, such as `117.0`.
    pub version: String,
}

/// Returns the providers of the loaded libfabric, without its debugging hooks, in alphabetical order.
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

/// Returns the domains of a provider that ginlab can use, at the completion level `Delivery`. `provider` is a full
/// name, as returned by [`choose_provider`], or a core name such as `tcp`, which lists all its variants.
pub fn list_domains(provider: &str) -> Result<Vec<Domain>, FabricError> {
    list_domains_for(provider, Level::Delivery, false)
}

/// Like [`list_domains`], for any completion level. With `cuda_memory`, returns only the domains whose rails accept
/// memory of CUDA devices.
///
/// Queries twice, with and without receives for immediates (FI_RX_CQ_DATA), and returns the union, because a provider
/// may have a fabric of each kind. Without unsolicited write receives, efa of libfabric 2.4 has four domains of `efa`
/// and four of `efa-direct`, and only the second query finds the latter.
pub(super) fn list_domains_for(provider: &str, level: Level, cuda_memory: bool) -> Result<Vec<Domain>, FabricError> {
    let mut domains: Vec<Domain> = Vec::new();
    let mut first_error = None;
    for posted_receives in [false, true] {
        let wanted = ProviderRequirements {
            provider,
            fabric: None,
            domain: None,
            level,
            cuda_memory,
            posted_receives,
            messages: false,
        };
        match query(&wanted) {
            Ok(list) => {
                for domain in list.iter().map(Domain::of) {
                    if !domains.iter().any(|known| known.is_same(&domain)) {
                        domains.push(domain);
                    }
                }
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error.filter(|_| domains.is_empty()) {
        Some(mut error) => {
            add_known_providers(&mut error, provider);
            Err(error)
        }
        None => Ok(domains),
    }
}

/// Adds the existing names to the error, since a wrong name is the most common cause. If the software NICs could not be
/// opened, the EFA provider is also missing, and the error then contains the reason.
fn add_known_providers(error: &mut FabricError, provider: &str) {
    if super::soft::first_cause().is_some() {
        return;
    }
    let Ok(known) = list_providers() else { return };
    let core = provider.split(';').next().unwrap_or(provider);
    if known.iter().all(|known| known.name != core) {
        let names: Vec<_> = known.iter().map(|known| known.name.as_str()).collect();
        error.text = format!("unknown provider {provider:?}");
        error.hint = format!("this libfabric has {}", names.join(", "));
    }
}

/// Returns whether an interface of this name can lead to other machines. Bridges of container runtimes and hypervisors
/// do not.
#[must_use]
pub fn leaves_the_machine(interface: &str) -> bool {
    interface != "lo" && !super::select::is_bridge(interface)
}

/// The provider selected for a run, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderChoice {
    /// Full name of the provider, such as `tcp;ofi_rxm`.
    pub provider: String,
    /// Reason for the choice, for display.
    pub reason: String,
}

/// Chooses the provider: the requested one, otherwise `efa` if it finds a device, otherwise `tcp`.
///
/// A core name selects its best variant with the capabilities that ginlab requires (reliable datagrams, RMA, 4 bytes of
/// remote immediate, delivery complete), which are probed. For `tcp` the order is: `tcp` itself if it has reliable
/// datagrams (libfabric 2.x), then `tcp;ofi_rxm`, then `net`. Over the loopback the last two are equally fast, but
/// `tcp;ofi_rxm` has eight times the queue and honours the completion level without a workaround. A name with a `;` is
/// used unchanged.
pub fn choose_provider(requested: Option<&str>) -> Result<ProviderChoice, FabricError> {
    let Some(name) = requested.map(str::trim).filter(|name| !name.is_empty()) else {
        return match choose_named("efa") {
            Ok(choice) => Ok(ProviderChoice { reason: "default: an EFA device is present".to_owned(), ..choice }),
            Err(_) => {
                let choice = choose_named("tcp")?;
                Ok(ProviderChoice { reason: format!("default: no EFA device; {}", choice.reason), ..choice })
            }
        };
    };
    choose_named(name)
}

/// Returns the full names that a name may refer to, best first.
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

fn choose_named(name: &str) -> Result<ProviderChoice, FabricError> {
    if verbs::is_asked(name) {
        if verbs::cards()?.is_empty() {
            // Software NICs that cannot be opened are not listed. Reports the reason first.
            let cause = super::soft::first_cause();
            let (text, hint) = cause.unwrap_or_else(|| ("no EFA device".to_owned(), String::new()));
            return Err(FabricError { hint, ..mistake(name, "listing EFA devices", text) });
        }
        let reason = "EFA devices by verbs, without libfabric".to_owned();
        return Ok(ProviderChoice { provider: verbs::label(), reason });
    }
    if super::soft::is_asked(name) {
        let label = super::soft::label().ok_or_else(|| {
            let text = "software NICs can be loaded only by the option -p, before anything else";
            mistake(name, "loading software NICs", text)
        })?;
        let reason =
            "software NICs below libfabric's EFA provider: their figures are not measurements of an EFA device"
                .to_owned();
        return choose_named("efa").map(|_| ProviderChoice { provider: label.to_owned(), reason });
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
            let reason = format!("{variant} has RDM, RMA, remote immediates and delivery complete on this machine");
            return Ok(ProviderChoice { provider: variant.clone(), reason });
        }
    }
    Err(first_error.unwrap_or_else(|| {
        let text = "it does not support remote immediates of 4 bytes with reliable datagrams and RMA";
        refused(name, FailedOperation::Opening, "choosing the provider", sys::FI_ENODATA, text)
    }))
}

/// Returns the number of NICs of a provider on which rails are opened by default. Without `requested`, uses the
/// provider that would be chosen. Returns `None` if the provider finds no domain, or its domains are not NICs, such as
/// those of tcp.
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

/// Selects the domains of one rank's rails. See [`DomainSelection`].
///
/// `explicit` names domains, or `fabric:domain` if a device is in several fabrics, which are used in that order.
/// Otherwise `count` distinct domains are selected. If the machine has fewer NICs than that, the request is refused,
/// because several endpoints on one NIC share its line and are not separate rails. Providers without NICs open `count`
/// endpoints on the first domain, with a note.
///
/// `nearest_to` is the GPU. Among equally near NICs, ranks with different `local_rank` get different ones. With
/// [`Reach::SameHost`], providers over IP use only the loopback.
pub fn select_domains(
    provider: &str,
    count: usize,
    reach: Reach,
    explicit: &[String],
    nearest_to: Option<PciAddress>,
    local_rank: usize,
    local_size: usize,
) -> Result<DomainSelection, FabricError> {
    super::select::check_count(provider, count)?;
    let chosen = choose_named(provider)?.provider;
    let is_verbs = verbs::is_asked(&chosen);
    let provider = if !is_verbs && super::soft::is_asked(&chosen) { "efa" } else { chosen.as_str() };
    let domains = if is_verbs { verbs::cards()? } else { list_domains(provider)? };
    let request = super::select::Request { provider, count, reach, explicit, nearest_to, local_rank, local_size };
    let place =
        |address: &PciAddress| Some(DeviceLocation { path: address.tree_path()?, numa_node: address.numa_node() });
    super::select::select(domains, &request, &place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_and_loopback_are_local() {
        for (interface, leaves) in
            [("lo", false), ("docker0", false), ("virbr0", false), ("eth0", true), ("ens5", true)]
        {
            assert_eq!(leaves_the_machine(interface), leaves, "{interface}");
        }
    }
}
