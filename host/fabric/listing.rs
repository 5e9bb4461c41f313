//! Listing of all domains with the properties that their providers report, on this machine or from a saved dump.
//!
//! Both use the same parser. The entries of this machine are printed by libfabric, in the format of `fi_info -v`, and
//! parsed like a saved file. Properties that a file cannot contain are queried on this machine, with the query that
//! opens rails.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::FabricError;
use super::discover::{Provider, list_domains_for, list_providers, variants};
use super::domain::Domain;
use super::libfabric::{Level, everything};
pub use super::listed::Listed;
use super::printed::{FiInfoEntry, entries};
pub use super::select::Reach;
use ginlab_topology::pci::printed::pci_tree;
use ginlab_topology::pci::{self, PciAddress, PciKind};
use ginlab_topology::tree::Tree;

/// All domains and providers that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Providers of the library, whether or not they have domains here. For a dump, only the providers of its domains.
    pub providers: Vec<Provider>,
    /// Domains: EFA devices first, then in libfabric's order.
    pub domains: Vec<Listed>,
}

/// Error of a dump that cannot be read, as one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {text}", path.display())]
pub struct BadDump {
    path: PathBuf,
    text: String,
}

/// File names that are searched for in a directory.
const FI_INFO: [&str; 2] = ["fi_info.yaml", "fi_info.txt"];
const LSPCI: &str = "lspci.txt";
const PCI_DEVICES: &str = "ls_sys_bus_pci_devices.txt";

/// Maximum size of a dump. A dump has about 3 KiB per domain, so a larger file is not a dump.
const LARGEST_DUMP: u64 = 64 << 20;

impl Listing {
    /// Lists the domains of this machine.
    pub fn here() -> Result<Self, FabricError> {
        let mut listing = Self { providers: list_providers()?, domains: Vec::new() };
        // A missing entry is not an error: the machine may have no network.
        if let Ok(list) = everything() {
            for entry in list.iter() {
                let text = entry.text();
                let printed = entries(&text).first().and_then(|printed| printed.listed().ok());
                listing.domains.extend(printed.map(|listed| Listed { domain: Domain::of(entry), ..listed }));
            }
        }
        listing.probe();
        for listed in &mut listing.domains {
            listed.numa_node = listed.domain.pci.and_then(|address| address.numa_node());
        }
        // Without the PCI bus the nearest GPU is unknown.
        let tree = Tree::here().unwrap_or_default();
        let gpus = tree.of(PciKind::Gpu).map(|gpu| (gpu.address, gpu.path.clone())).collect::<Vec<_>>();
        listing.place(&gpus, &|nic| nic.tree_path());
        listing.sort();
        Ok(listing)
    }

    /// Queries the properties that a provider grants only on request, with the query that opens rails.
    fn probe(&mut self) {
        let mut names: Vec<String> = Vec::new();
        for listed in self.domains.iter().filter(|listed| listed.has_rma()) {
            if !names.contains(&listed.domain.provider) {
                names.push(listed.domain.provider.clone());
            }
        }
        for name in names {
            // An error means that no domain of the provider has the property.
            let offered = |level, cuda_memory| list_domains_for(&name, level, cuda_memory).unwrap_or_default();
            let delivery = offered(Level::Delivery, false);
            let cuda = offered(Level::Transmit, true);
            let of_provider = |listed: &&mut Listed| listed.has_rma() && listed.domain.provider == name;
            for listed in self.domains.iter_mut().filter(of_provider) {
                listed.delivery_complete = Some(delivery.contains(&listed.domain));
                listed.cuda_memory = Some(cuda.contains(&listed.domain));
            }
        }
    }

    /// Reads a file written by `fi_info -v`, or a directory with `fi_info.yaml` or `fi_info.txt` and optionally
    /// `lspci.txt` and `ls_sys_bus_pci_devices.txt`.
    pub fn from_dump(path: &Path) -> Result<Self, BadDump> {
        let bad = |text: String| BadDump { path: path.to_owned(), text };
        let is_folder = path.metadata().map_err(|error| bad(error.to_string()))?.is_dir();
        if !is_folder {
            return Self::from_text(&read(path).map_err(bad)?).map_err(bad);
        }
        let file = FI_INFO.iter().map(|name| path.join(name)).find(|file| file.exists());
        let file = file.ok_or_else(|| bad(format!("the directory has neither {} nor {}", FI_INFO[0], FI_INFO[1])))?;
        let bad_file = |text: String| BadDump { path: file.clone(), text };
        let mut listing = Self::from_text(&read(&file).map_err(bad_file)?).map_err(bad_file)?;
        let beside = |name: &str| match path.join(name) {
            file if file.exists() => read(&file).map_err(|text| BadDump { path: file, text }),
            _ => Ok(String::new()),
        };
        let (lspci, links) = (beside(LSPCI)?, beside(PCI_DEVICES)?);
        let places = pci_tree(&links).map_err(|why| BadDump { path: path.join(PCI_DEVICES), text: why })?;
        // Both files are needed to locate the GPUs.
        let tree = if lspci.is_empty() { Tree::default() } else { Tree::of_listings(&lspci, &links).map_err(bad)? };
        let place = |address: &PciAddress| {
            let listed = places.iter().find(|(known, _)| known == address).map(|(_, place)| place);
            listed.or_else(|| Some(&tree.functions.iter().find(|one| one.address == *address)?.path)).cloned()
        };
        let gpus = tree.of(PciKind::Gpu).map(|gpu| (gpu.address, gpu.path.clone()));
        listing.place(&gpus.collect::<Vec<_>>(), &place);
        Ok(listing)
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let printed = entries(text);
        if printed.is_empty() {
            let short = text.lines().any(|line| line.starts_with("provider: "));
            return Err(if short {
                "this is the short form of fi_info; record `fi_info -v`".to_owned()
            } else {
                "not a dump of `fi_info -v`: it has no line `fi_info:`".to_owned()
            });
        }
        let listed = |entry: &FiInfoEntry<'_>| {
            entry
                .listed()
                .map_err(|what| format!("the entry at line {} has no {what}: is the dump truncated?", entry.line))
        };
        let mut listing =
            Self { providers: Vec::new(), domains: printed.iter().map(listed).collect::<Result<_, _>>()? };
        for listed in &listing.domains {
            let provider =
                Provider { name: listed.domain.provider.clone(), version: listed.version.clone().unwrap_or_default() };
            if !listing.providers.contains(&provider) {
                listing.providers.push(provider);
            }
        }
        listing.providers.sort();
        listing.sort();
        Ok(listing)
    }

    /// Fills in the nearest GPUs.
    fn place(&mut self, gpus: &[(PciAddress, String)], tree_path: &dyn Fn(&PciAddress) -> Option<String>) {
        for listed in &mut self.domains {
            let nic = listed.domain.pci.as_ref().and_then(tree_path);
            listed.gpu = nic.and_then(|nic| pci::nearest(&nic, gpus).copied());
        }
    }

    fn sort(&mut self) {
        let default = self.default_provider().map(str::to_owned);
        // The sort is stable, and otherwise keeps the order of libfabric.
        self.domains.sort_by_key(|listed| {
            (!listed.is_efa(), default.as_ref() != Some(&listed.domain.provider), !listed.takes_rails())
        });
    }

    /// Returns the default provider of a run: `efa` if it has a device, otherwise the best variant of `tcp`.
    #[must_use]
    pub fn default_provider(&self) -> Option<&str> {
        let names = ["efa", "tcp"].into_iter().flat_map(variants);
        let rails =
            |name: &String| self.domains.iter().find(|listed| listed.domain.provider == *name && listed.takes_rails());
        names.into_iter().find_map(|name| rails(&name)).map(|listed| listed.domain.provider.as_str())
    }

    /// Returns the reach of rails on each domain. `None` if runs do not open rails on the domain by default.
    #[must_use]
    pub fn reaches(&self) -> Vec<Option<Reach>> {
        let of = |listed: &Listed, reach| {
            let like = |other: &&Listed| other.takes_rails() && other.domain.provider == listed.domain.provider;
            let domains = self.domains.iter().filter(like).map(|other| other.domain.clone()).collect();
            super::select::eligible(domains, reach).contains(&listed.domain)
        };
        let reach = |listed: &Listed| {
            [Reach::Network, Reach::SameHost].into_iter().find(|reach| listed.takes_rails() && of(listed, *reach))
        };
        self.domains.iter().map(reach).collect()
    }

    /// Returns, for each domain, the reason to omit it from a short listing. `None` if it should be shown.
    #[must_use]
    pub fn hidden(&self) -> Vec<Option<String>> {
        let place = |listed: &Listed| match listed.domain.address {
            Some(address) => format!("{} {address}", listed.domain.name),
            None => format!("{} {}", listed.domain.provider, listed.domain.name),
        };
        let preferred = variants("tcp");
        let rank = |listed: &Listed| {
            let variant = preferred.iter().position(|name| *name == listed.domain.provider);
            (!listed.takes_rails(), variant.unwrap_or(usize::MAX), listed.domain.fabric == "efa-direct")
        };
        let shown = |index: usize, listed: &Listed| {
            let rivals =
                self.domains.iter().enumerate().filter(|(_, other)| other.has_rma() && place(other) == place(listed));
            // Keeps the first of several equal domains.
            rivals
                .min_by_key(|(index, other)| (rank(other), *index))
                .filter(|(first, _)| *first != index)
                .map(|(_, other)| other)
        };
        let reason = |(index, listed): (usize, &Listed)| {
            if !listed.has_rma() {
                return Some("no reliable datagrams with RMA".to_owned());
            }
            let other = &shown(index, listed)?.domain;
            Some(if other.provider != listed.domain.provider {
                format!("the same address by {}", other.provider)
            } else if other.fabric != listed.domain.fabric {
                format!("the same device in the fabric {}", other.fabric)
            } else {
                "a duplicate".to_owned()
            })
        };
        self.domains.iter().enumerate().map(reason).collect()
    }

    /// Keeps the domains of one provider: a full name, or a component of layered names. The error lists the existing
    /// names.
    pub fn keep(&mut self, provider: &str) -> Result<(), String> {
        let known = |known: &Provider| known.name == provider || known.name.split(';').any(|part| part == provider);
        if !self.providers.iter().any(known) && !self.domains.iter().any(|listed| listed.is_of(provider)) {
            let mut names: Vec<_> = self.providers.iter().map(|known| known.name.as_str()).collect();
            names.dedup();
            return Err(format!("unknown provider {provider:?}; available: {}", names.join(", ")));
        }
        self.domains.retain(|listed| listed.is_of(provider));
        Ok(())
    }
}

/// Reads a text file. Returns the system's error, or an error if it is far too long. Accepts pipes, and the limit
/// bounds reads from devices.
fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(LARGEST_DUMP + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > LARGEST_DUMP {
        return Err(format!("not a dump of `fi_info -v`: it is longer than {} MiB", LARGEST_DUMP >> 20));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::discover::{AddressFamily, choose_provider};

    #[test]
    fn printed_domains_parse_back_to_rail_domains() {
        for entry in everything().unwrap().iter() {
            let (text, domain) = (entry.text(), Domain::of(entry));
            let printed = entries(&text);
            assert_eq!(printed.len(), 1, "{text}");
            let read = printed[0].listed().unwrap().domain;
            if !matches!(domain.family, AddressFamily::Other(_)) {
                assert_eq!(read, domain, "{text}");
            }
        }
    }

    #[test]
    fn listed_default_matches_chosen_provider() {
        let listing = Listing::here().unwrap();
        let chosen = choose_provider(None).ok().map(|choice| choice.provider);
        assert_eq!(listing.default_provider(), chosen.as_deref());
    }

    #[test]
    fn efa_direct_duplicates_are_hidden() {
        let path = Path::new("../../tests/fixtures/p5/fi_info.yaml");
        let mut listing = Listing::from_dump(path).unwrap();
        let mut direct = listing.domains[0].clone();
        direct.domain.fabric = "efa-direct".to_owned();
        listing.domains.insert(0, direct);
        let hidden = listing.hidden();
        assert_eq!(hidden[0].as_deref(), Some("the same device in the fabric efa"));
        assert_eq!(hidden[1], None);
    }

    #[test]
    fn listing_prefers_entry_that_supports_rails() {
        let path = Path::new("../../tests/fixtures/p5/fi_info.yaml");
        let mut listing = Listing::from_dump(path).unwrap();
        let mut without = listing.domains[0].clone();
        assert!(without.takes_rails());
        without.domain.immediate_bytes = 0;
        listing.domains.insert(0, without);
        let hidden = listing.hidden();
        assert_eq!((hidden[0].as_deref(), hidden[1].as_deref()), (Some("a duplicate"), None));
    }
}
