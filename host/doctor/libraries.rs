//! Checks of libfabric, of its domains' capabilities, and of the kernels in this executable.

use super::gpu::if_direct_is_expected;
use super::machine::Machine;
use super::trial::TransferTimes;
use super::{Checked, fail, ok, skipped, warn};
use ginlab_fabric::filter;
use ginlab_fabric::listing::{Listed, Listing};

/// Returns the listing, or the result of a check if there is no listing.
fn listing(machine: &Machine) -> Checked<&Listing> {
    match &machine.listing {
        None => skipped("no `fi_info -v` was recorded"),
        Some(Ok(listing)) => Ok(listing),
        Some(Err(why)) => fail(why, "apt-get install libfabric1 (EFA: the EFA installer), or GINLAB_LIBFABRIC=PATH"),
    }
}

/// Returns the domains of EFA devices of one fabric on which rails can be opened.
fn of_efa<'a>(listing: &'a Listing, fabric: &'a str) -> impl Iterator<Item = &'a Listed> {
    listing.domains.iter().filter(move |listed| listed.is_efa() && listed.has_rma() && listed.domain.fabric == fabric)
}

pub fn libfabric(machine: &Machine) -> Checked {
    let listing = listing(machine)?;
    let library = machine.asked.libfabric.clone().unwrap_or_else(|| "recorded".to_owned());
    let fabrics: Vec<String> = ["efa", "efa-direct"]
        .iter()
        .map(|fabric| (fabric, of_efa(listing, fabric).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(fabric, count)| format!("{count} of {fabric}"))
        .collect();
    let domains = of_efa(listing, "efa").count();
    let names: Vec<&str> = listing.providers.iter().map(|provider| provider.name.as_str()).collect();
    let found = if fabrics.is_empty() {
        format!("libfabric {library}: providers {}", names.join(", "))
    } else {
        format!("libfabric {library}: RDM domains {}", fabrics.join(", "))
    };
    // Only part of a node may be intended.
    let cards = machine.usable_cards().min(machine.wanted.cards.unwrap_or(usize::MAX));
    if domains == 0 && machine.means_efa() {
        let mend = match machine.environment.get(filter::VARIABLE) {
            Some(value) if !filter::shows(value, "efa") => format!("unset FI_PROVIDER (it is {value})"),
            _ if names.contains(&"efa") => "make /dev/infiniband/uverbs* readable for this process".to_owned(),
            _ => "GINLAB_LIBFABRIC=/opt/amazon/efa/lib/libfabric.so.1".to_owned(),
        };
        return fail(format!("{found}; no RDM domain of efa"), mend);
    }
    if domains < cards && machine.means_efa() {
        let text = format!("{found}; {cards} EFA devices are present");
        if let Some(value) = machine.variable("FI_EFA_IFACE").filter(|value| value != "all") {
            return fail(text, format!("unset FI_EFA_IFACE (it is {value}, which hides the other devices)"));
        }
        return fail(
            text,
            "compare `ls /dev/infiniband` with `ls /sys/class/infiniband_verbs`: each EFA device needs its node",
        );
    }
    ok(found)
}

pub fn capabilities(machine: &Machine) -> Checked {
    let listing = match listing(machine) {
        Ok(listing) => listing,
        Err(said) if said.state == super::CheckState::Skipped => return Err(said),
        Err(_) => return skipped("without libfabric"),
    };
    let provider = if machine.means_efa() { Some("efa") } else { listing.default_provider() };
    let Some(provider) = provider else {
        return fail("no provider supports rails", "apt-get install libfabric1, and an interface that is up");
    };
    let domains: Vec<&Listed> =
        listing.domains.iter().filter(|listed| listed.is_of(provider) && listed.has_rma()).collect();
    let Some(first) = domains.first() else {
        return if machine.means_efa() {
            fail("no domain of efa has RMA with reliable datagrams", "install the EFA installer's libfabric")
        } else {
            skipped(format!("no domain of {provider} has RMA with reliable datagrams"))
        };
    };
    let said = |value: Option<bool>| value.map_or("unknown", |yes| if yes { "yes" } else { "no" });
    let size = first.max_message_bytes.map_or("unknown".to_owned(), |bytes| {
        if bytes == u64::MAX { "without limit".to_owned() } else { ginlab_base::size::human(bytes) }
    });
    let found = format!(
        "{provider}: RMA, immediates of {} B, messages {size}, delivery complete {}, GPU memory (FI_HMEM) {}",
        first.domain.immediate_bytes,
        said(first.delivery_complete),
        by_gpu(machine, first.cuda_memory)
    );
    if domains.iter().any(|listed| !listed.takes_rails()) {
        return fail(
            format!("{found}: rails need 4 B of immediates and delivery complete"),
            "install a newer libfabric",
        );
    }
    if provider == "efa" && machine.profile().is_some_and(|profile| profile.rdma_write.value == 0.0) {
        return warn(
            format!("{found}; this instance's EFA devices have no RDMA write: the provider sends messages instead"),
            "compare with an instance of the p5 family or later",
        );
    }
    if_direct_is_expected(machine, of_gpu_memory(machine, &domains, found))
}

/// Returns the result of [`capabilities`] for GPU memory.
fn of_gpu_memory(machine: &Machine, domains: &[&Listed], found: String) -> Checked {
    let has_gpu = !machine.gpus().is_empty();
    if has_gpu && copies(machine) {
        return warn(
            format!("{found}: payloads in GPU memory are staged through the host, which rows record"),
            "see gpu-direct and gpu-register: the EFA device cannot access GPU memory",
        );
    }
    if has_gpu && machine.asked.trials.iter().flatten().any(|trial| trial.gpu && trial.outcome.is_err()) {
        return warn(found, "see gpu-register and gpu-direct: the provider's claim is wrong");
    }
    if has_gpu && domains.iter().any(|listed| listed.cuda_memory == Some(false)) {
        return warn(
            format!("{found}: payloads in GPU memory are staged through the host, which rows record"),
            "install the EFA installer's libfabric (built with CUDA)",
        );
    }
    if fastest(machine).is_some_and(|paces| paces.looks_staged()) {
        return warn(
            format!("{found}: not faster than through the host, as if the provider copied nevertheless"),
            "see gpu-direct; compare rows of `ginlab proxy --memory device` with those of `--memory pinned`",
        );
    }
    ok(found)
}

/// Returns the times of the fastest rail that wrote to GPU memory. A NIC on the other socket is not representative.
fn fastest(machine: &Machine) -> Option<TransferTimes> {
    machine.asked.trials.iter().flatten().filter_map(|trial| trial.paces).min_by_key(|paces| paces.by_rail)
}

/// Returns whether a provider accesses GPU memory only by CUDA calls.
fn copies(machine: &Machine) -> bool {
    machine.asked.trials.iter().flatten().any(|trial| trial.copied)
}

/// Describes GPU memory on the rails: whether the provider claims support and, if a write was tried, the method of
/// access.
fn by_gpu(machine: &Machine, claimed: Option<bool>) -> String {
    let mut tried = machine.asked.trials.iter().flatten().filter(|trial| trial.gpu).peekable();
    match claimed {
        _ if copies(machine) => "claimed, by CUDA copies of the provider",
        None => "unknown",
        Some(false) => "no",
        Some(true) if tried.peek().is_none() => "claimed, but not tested with a write",
        Some(true) if tried.all(|trial| trial.outcome.is_ok()) => {
            let paces = fastest(machine).map_or(String::new(), |paces| format!(" ({paces})"));
            return format!("written without CUDA calls of the provider{paces}");
        }
        Some(true) => "claimed, but a write failed (see gpu-register)",
    }
    .to_owned()
}

pub fn toolchain(machine: &Machine) -> Checked {
    let for_gpus = !machine.usable_gpus().is_empty() && !machine.wanted.emulated;
    if !machine.wanted.developer && !for_gpus {
        return skipped("only with a GPU, or with --dev");
    }
    match machine.asked.ptx.as_deref() {
        None => skipped("a recorded machine has no program"),
        Some("") if for_gpus => fail(
            "this program contains no PTX: it runs no kernel on the GPUs of this machine",
            "scripts/setup.sh build; make build; or install a release, whose `ginlab --version` has `kernels by`",
        ),
        Some("") => fail("this program contains no PTX: kernels run only on the emulated device", "make build"),
        Some(text) if !machine.wanted.developer => ok(format!("kernels by rustc {text}")),
        Some(text) if text.contains("not the project's") => {
            warn(format!("kernels by rustc {text}"), "scripts/setup.sh build; make build")
        }
        Some(text) => ok(format!("kernels by rustc {text}")),
    }
}
