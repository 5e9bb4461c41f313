//! PCI listings saved by users: output of `ls -l /sys/bus/pci/devices` and of `lspci`. A listing is parsed completely
//! or rejected.

mod flat;
mod forest;

use super::PciAddress;
use super::identity::Identity;
use std::collections::BTreeMap;

/// A function listed by `lspci`, with all parsed properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LspciFunction {
    /// Class, ids and name.
    pub identity: Identity,
    /// Path below `/sys/devices`, if the listing draws the bridges (`lspci -t`, `lspci -PP`).
    pub path: Option<String>,
    /// Kernel driver (`lspci -k` and `-v`).
    pub driver: Option<String>,
    /// NUMA node (`lspci -v`).
    pub numa_node: Option<u32>,
    /// Current speed and width of the link (`lspci -vv`).
    pub link: Option<(String, String)>,
    /// Maximum speed and width of the link (`lspci -vv`).
    pub best_link: Option<(String, String)>,
}

/// Parses the paths printed by `ls -l /sys/bus/pci/devices`. The returned paths begin with `/sys/devices/`.
///
/// # Errors
/// Returns the number of the first line with a link that is not a PCI device.
pub fn pci_tree(listing: &str) -> Result<Vec<(PciAddress, String)>, String> {
    let mut places = Vec::new();
    for (number, line) in listing.lines().enumerate() {
        let Some((before, target)) = line.split_once(" -> ") else { continue };
        let place = || {
            let address: PciAddress = before.split_whitespace().next_back()?.parse().ok()?;
            let (_, below) = target.trim().split_once("devices/")?;
            let last: PciAddress = below.rsplit('/').next()?.parse().ok()?;
            (last == address).then(|| (address, format!("/sys/devices/{below}")))
        };
        places.push(place().ok_or_else(|| {
            format!(
                "line {} is not a link of /sys/bus/pci/devices: {:?}; is the file truncated?",
                number + 1,
                short(line)
            )
        })?);
    }
    Ok(places)
}

/// Parses the output of `lspci` in any format, including several outputs in one file: `-t`, `-tv`, `-tvnn`; plain,
/// `-D`, `-n`, `-nn`, `-k`, `-v`, `-vv`, `-vvv`, `-PP`, `-m`, `-mm`, `-vmm`.
///
/// # Errors
/// Returns the number of the first line that is not part of such output.
pub fn lspci_devices(listing: &str) -> Result<BTreeMap<PciAddress, LspciFunction>, String> {
    let mut found = BTreeMap::new();
    let (mut forest, mut flat) = (forest::Forest::default(), flat::Flat::default());
    // The first bytes of files that PowerShell writes.
    let listing = listing.trim_start_matches('\u{feff}');
    for (number, line) in listing.lines().enumerate() {
        let line = line.trim_end();
        // Prompts, remarks and messages of lspci, which users may also save.
        if line.is_empty() || ["$", "#", "pcilib:", "lspci:"].iter().any(|start| line.starts_with(start)) {
            continue;
        }
        let read = if forest::is_branch(line) { forest.line(line, &mut found) } else { flat.line(line, &mut found) };
        read.ok_or_else(|| {
            format!(
                "line {} is not a line of `lspci`, or is truncated: {:?}; record `lspci -Dnn`",
                number + 1,
                short(line)
            )
        })?;
    }
    if !forest.is_whole() {
        return Err("the output of `lspci -t` ends within a branch: it is truncated; record `lspci -tvnn`".to_owned());
    }
    if found.is_empty() {
        return Err("no line is from `lspci`; record `lspci -Dnn`".to_owned());
    }
    if found.values().all(|one| one.identity == Identity::default()) {
        return Err("the output of `lspci -t` names no devices; record `lspci -tvnn` or `lspci -Dnn`".to_owned());
    }
    if found.values().any(|one| one.identity.is_unstated()) {
        return Err(
            "IDs without classes do not identify GPUs and NICs; record `lspci -tvnn` or `lspci -Dnn`".to_owned()
        );
    }
    Ok(found)
}

impl LspciFunction {
    /// Returns the kind; `None` if the function is neither GPU nor NIC.
    #[must_use]
    pub fn kind(&self, address: &PciAddress) -> Option<super::PciKind> {
        // The other functions of a GPU are for example audio and USB. Without class and name, only the function number
        // distinguishes them.
        self.identity
            .kind()
            .filter(|kind| *kind != super::PciKind::Gpu || address.function == 0 || !self.identity.is_guessed())
    }
}

/// Adds facts that another line contains about a function, if they are not known yet. A class or an ID is preferred to
/// a name.
fn add(found: &mut BTreeMap<PciAddress, LspciFunction>, address: PciAddress, identity: Identity, path: Option<String>) {
    let known = found.entry(address).or_default();
    known.path = known.path.take().or(path);
    let old = &mut known.identity;
    if old.name.is_empty() || (old.device.is_none() && identity.device.is_some() && !identity.name.is_empty()) {
        old.name = identity.name;
    }
    old.class = old.class.or(identity.class);
    old.vendor = old.vendor.or(identity.vendor);
    old.device = old.device.or(identity.device);
}

fn short(line: &str) -> String {
    line.trim().chars().take(60).collect()
}

#[cfg(test)]
mod tests;
