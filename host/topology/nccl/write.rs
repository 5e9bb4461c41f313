//! Writing of trees in NCCL's format.

use super::{UNPLACED, VERSION, VIRTUAL};
use crate::cores;
use crate::pci::PciAddress;
use crate::tree::{PciFunction, PciKind, Tree};
use std::collections::BTreeMap;
use std::fmt::Write;

pub(super) fn mask_of_cores(cores: &[usize]) -> String {
    let words = cores.iter().max().map_or(1, |last| last / 32 + 1);
    let mut mask = vec![0u32; words];
    for core in cores {
        mask[core / 32] |= 1 << (core % 32);
    }
    mask.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

/// The `<cpu>` below which each device is written. NCCL 2.22 and later crash on a `<cpu numaid="-1">` next to others:
/// they assume that it belongs to another host, from which there is no path to a GPU. Therefore, a device without a
/// known node is placed below a known one.
struct Placed<'a> {
    /// Known node of each root bus.
    of_root: BTreeMap<&'a str, u32>,
    /// Node of the first GPU with a known node. If there is none, node of the first other device with a known node.
    any: Option<u32>,
}

impl<'a> Placed<'a> {
    fn of(tree: &'a Tree) -> Placed<'a> {
        let mut of_root = BTreeMap::new();
        for function in &tree.functions {
            if let Some(node) = function.numa_node.filter(|_| !root(function).is_empty()) {
                of_root.entry(root(function)).or_insert(node);
            }
        }
        let any = tree.of(PciKind::Gpu).chain(&tree.functions).find_map(|function| function.numa_node);
        Placed { of_root, any }
    }

    fn node(&self, function: &PciFunction) -> Option<u32> {
        function.numa_node.or_else(|| self.of_root.get(root(function)).copied()).or(self.any)
    }
}

/// Returns the root bus in a device's path, for example `pci0000:44`; empty if it has none.
fn root(function: &PciFunction) -> &str {
    function.path.split('/').find(|part| part.starts_with("pci")).unwrap_or_default()
}

/// A device or bridge, and all devices below it.
#[derive(Default)]
struct Branch<'a> {
    below: BTreeMap<PciAddress, Branch<'a>>,
    device: Option<&'a PciFunction>,
    /// Whether the device is below a `<cpu>` whose node may not be that of the device.
    unplaced: bool,
}

/// Writes the GPUs and NICs of a tree for NCCL. If there are NICs with RMA, only these are written.
///
/// As in NCCL, bridges with a single device below them are omitted. If GPUs and NICs are on the same root bus without
/// bridges, as in VMs, a virtual bridge is inserted above them. Without it, NCCL would assume that the path between
/// them crosses the CPU.
#[must_use]
pub fn write(tree: &Tree) -> String {
    let with_rma = tree.of(PciKind::Nic).any(|nic| nic.rma);
    let shown = |function: &&PciFunction| function.kind == PciKind::Gpu || function.rma || !with_rma;
    let places = Placed::of(tree);
    // Grouped by NUMA node, then by root.
    let mut nodes: BTreeMap<Option<u32>, BTreeMap<&str, Branch<'_>>> = BTreeMap::new();
    for function in tree.functions.iter().filter(shown) {
        let parts: Vec<&str> = function.path.split('/').collect();
        let mut branch = nodes.entry(places.node(function)).or_default().entry(root(function)).or_default();
        let above = parts.iter().filter_map(|part| part.parse::<PciAddress>().ok());
        for bridge in above.filter(|bridge| *bridge != function.address) {
            branch = branch.below.entry(bridge).or_default();
        }
        branch = branch.below.entry(function.address).or_default();
        branch.device = Some(function);
        branch.unplaced = places.node(function) != function.numa_node;
    }
    let mut virtual_bridges = 0;
    // Writing to a String cannot fail.
    let mut out = format!("<system version=\"{VERSION}\">\n");
    for (node, roots) in &nodes {
        let cores = |function: &&PciFunction| function.numa_node == *node && function.cores.is_some();
        let cores = tree.functions.iter().find(cores).and_then(|function| function.cores.as_deref());
        let mask = cores.and_then(cores::parse_list).map(|cores| format!(" affinity=\"{}\"", mask_of_cores(&cores)));
        let number = node.map_or("-1".to_owned(), |node| node.to_string());
        // Without a node, the mask would be that of an unrelated device.
        let mask = mask.filter(|_| node.is_some()).unwrap_or_default();
        let _ = writeln!(out, "  <cpu numaid=\"{number}\"{mask}>");
        for root in roots.values() {
            let beside = |kind| root.below.values().any(|one| one.device.is_some_and(|device| device.kind == kind));
            if beside(PciKind::Gpu) && beside(PciKind::Nic) {
                let bridge = PciAddress {
                    domain: VIRTUAL.0,
                    bus: VIRTUAL.1,
                    device: 1 + virtual_bridges / 8,
                    function: virtual_bridges % 8,
                };
                virtual_bridges = (virtual_bridges + 1) % 240;
                // The link is written as fast as the devices below it, because NCCL assumes that an unknown link is
                // slow.
                let best = root.below.values().filter_map(|one| link(one.device?)).max_by(|a, b| a.0.total_cmp(&b.0));
                let link = best.map(|(_, text)| text).unwrap_or_default();
                let _ = writeln!(out, "    <pci busid=\"{bridge}\" class=\"0x060400\"{link}>");
                root.below.iter().for_each(|(address, one)| element(&mut out, 6, *address, one, false));
                out += "    </pci>\n";
            } else {
                // Sibling bridges indicate that their devices share a root.
                let several = root.below.len() > 1;
                root.below.iter().for_each(|(address, one)| element(&mut out, 4, *address, one, several));
            }
        }
        out += "  </cpu>\n";
    }
    out + "</system>\n"
}

/// Writes a branch. `keep` also keeps bridges with a single device below them.
fn element(out: &mut String, indent: usize, address: PciAddress, branch: &Branch<'_>, keep: bool) {
    match branch.device {
        Some(device) => {
            let class = if device.kind == PciKind::Gpu { "0x030200" } else { "0x020000" };
            let link = link(device).map(|(_, text)| text).unwrap_or_default();
            let unplaced = if branch.unplaced { format!(" {UNPLACED}=\"1\"") } else { String::new() };
            let _ = writeln!(out, "{:indent$}<pci busid=\"{address}\" class=\"{class}\"{link}{unplaced}/>", "");
        }
        None if branch.below.len() == 1 && !keep => {
            branch.below.iter().for_each(|(address, one)| element(out, indent, *address, one, false));
        }
        None => {
            let _ = writeln!(out, "{:indent$}<pci busid=\"{address}\" class=\"0x060400\">", "");
            branch.below.iter().for_each(|(address, one)| element(out, indent + 2, *address, one, false));
            let _ = writeln!(out, "{:indent$}</pci>", "");
        }
    }
}

/// Returns the attributes for a device's link, and a number for comparison: transfer rate times lanes. `None` if the
/// link is unknown; VMs report `Unknown`, and 0 or 255 lanes.
fn link(device: &PciFunction) -> Option<(f64, String)> {
    let (speed, width) = device.best_link.as_ref().or(device.link.as_ref())?;
    let rate: f64 = speed.split(' ').next()?.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0)?;
    let lanes: u32 = width.parse().ok().filter(|lanes| (1..=32).contains(lanes))?;
    let plain = speed.chars().all(|c| c.is_ascii_alphanumeric() || " ./".contains(c));
    plain.then(|| (rate * f64::from(lanes), format!(" link_speed=\"{speed}\" link_width=\"{lanes}\"")))
}
