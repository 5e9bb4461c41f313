//! Topology files of NCCL: what `NCCL_TOPO_DUMP_FILE` writes and `NCCL_TOPO_FILE` reads.
//!
//! ```xml
//! <system version="1">
//!   <cpu numaid="0" affinity="0000ffff">
//!     <pci busid="0000:45:00.0" class="0x060400">
//!       <pci busid="0000:53:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
//!       <pci busid="0000:4f:00.0" class="0x020000"><nic><net name="rdmap79s0" gdr="1"/></nic></pci>
//!     </pci>
//!   </cpu>
//! </system>
//! ```
//! NCCL leaves bridges out that only pass on what is below them, and names no root: devices that stand side by side below a `cpu`
//! share one where their buses are the same.

#[cfg(test)]
mod tests;

use super::tree::{Function, Kind, Tree};
use crate::cores;
use crate::pci::PciAddress;
use roxmltree::{Document, Node};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::Path;

/// A file above this is no topology of one machine.
const MOST_BYTES: u64 = 16 << 20;

/// The only version of the format.
const VERSION: &str = "1";

/// Amazon's bridges that stand for a root bus, in files for machines without bridges, have this domain and bus too.
const VIRTUAL: (u32, u8) = (0xffff, 0xff);

/// Reads a file.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn read_file(path: &Path) -> Result<Tree, String> {
    let wrong = |why: String| format!("{}: {why}", path.display());
    let file = fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(wrong(format!("more than {} MiB are no topology of one machine", MOST_BYTES >> 20)));
    }
    parse(&text).map_err(wrong)
}

/// Reads a topology.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn parse(text: &str) -> Result<Tree, String> {
    let document = Document::parse(text).map_err(|error| format!("no XML: {error}"))?;
    let system = document.root_element();
    if !system.has_tag_name("system") {
        return Err(format!("<{}> in place of <system>: not a topology file of NCCL", system.tag_name().name()));
    }
    match system.attribute("version") {
        Some(VERSION) => {}
        other => return Err(format!("version {} of NCCL's topology, {VERSION} is known", other.unwrap_or("(none)"))),
    }
    let mut functions: Vec<Function> = Vec::new();
    for pci in system.descendants().filter(|node| node.has_tag_name("pci")) {
        let Some(function) = function(pci)? else { continue };
        if functions.iter().any(|other| other.address == function.address) {
            return Err(format!("{} is there twice", function.address));
        }
        functions.push(function);
    }
    Ok(Tree::sorted(functions))
}

/// A GPU or a network card; `None` for bridges and what else there is.
fn function(pci: Node<'_, '_>) -> Result<Option<Function>, String> {
    let address = address(pci)?;
    let class = pci.attribute("class").unwrap_or_default().trim();
    let has = |name: &str| pci.children().any(|child| child.has_tag_name(name));
    let vendor = pci.attribute("vendor").unwrap_or_default();
    let display = class.starts_with("0x0300") || class.starts_with("0x0302") || class == "0x03" || has("gpu");
    let kind = if display && (vendor.is_empty() || vendor == "0x10de") {
        Kind::Gpu
    } else if class.starts_with("0x02") || has("nic") {
        Kind::Nic
    } else {
        return Ok(None);
    };
    let nets = || pci.descendants().filter(|node| node.has_tag_name("net"));
    let efa = vendor == "0x1d0f" && pci.attribute("device").is_some_and(|device| device.starts_with("0xefa"));
    let reaches_gpus = |net: Node<'_, '_>| net.attribute("gdr") == Some("1");
    let rma = efa || vendor == "0x15b3" || class.starts_with("0x0207") || nets().any(reaches_gpus);
    let name = match kind {
        Kind::Gpu => "NVIDIA GPU",
        Kind::Nic => nets().find_map(|net| net.attribute("name")).unwrap_or(if efa { "EFA" } else { "network card" }),
    };
    let mut way: Vec<String> = Vec::new();
    let mut cpu = None;
    for above in pci.ancestors() {
        match above.tag_name().name() {
            "pci" => way.push(self::address(above)?.to_string()),
            "cpu" => cpu = cpu.or(Some(above)),
            _ => {}
        }
    }
    let Some(cpu) = cpu else { return Err(format!("{address} is below no <cpu>")) };
    // The bus of the first device below the processor stands for the root.
    let first: PciAddress = way.last().and_then(|first| first.parse().ok()).unwrap_or(address);
    let virtual_bridge = (first.domain, first.bus) == VIRTUAL;
    way.push(if virtual_bridge { format!("pci{first}") } else { format!("pci{:04x}:{:02x}", first.domain, first.bus) });
    way.push("/sys/devices".to_owned());
    way.reverse();
    let cores = cpu.attribute("affinity").map(|mask| cores_of_mask(mask).ok_or(mask)).transpose();
    let cores = cores.map_err(|mask| format!("affinity {mask:?} is no mask of cores like 00000000,0000ffff"))?;
    let text = |name: &str| pci.attribute(name).filter(|text| !text.is_empty() && *text != "0").map(str::to_owned);
    let link = text("link_speed").zip(text("link_width"));
    Ok(Some(Function {
        address,
        kind,
        name: name.to_owned(),
        driver: None,
        rma: kind == Kind::Nic && rma,
        path: way.join("/"),
        // -1 where the firmware says nothing.
        numa_node: cpu.attribute("numaid").and_then(|node| node.parse().ok()),
        cores: cores.filter(|cores| !cores.is_empty()).map(|cores| cores::list(&cores)),
        link: link.clone(),
        best_link: link,
    }))
}

fn address(pci: Node<'_, '_>) -> Result<PciAddress, String> {
    let text = pci.attribute("busid").ok_or("a <pci> without busid")?;
    text.parse().map_err(|error| format!("busid: {error}"))
}

/// The cores of a mask in words of 32 bits, the last word first: `00000001,ffffffff`.
fn cores_of_mask(mask: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for (word, text) in mask.trim().rsplit(',').enumerate() {
        // As many words as 8192 cores have.
        if text.len() > 8 || word >= 256 {
            return None;
        }
        let bits = u32::from_str_radix(text, 16).ok()?;
        cores.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| word * 32 + bit));
    }
    Some(cores)
}

fn mask_of_cores(cores: &[usize]) -> String {
    let words = cores.iter().max().map_or(1, |last| last / 32 + 1);
    let mut mask = vec![0u32; words];
    for core in cores {
        mask[core / 32] |= 1 << (core % 32);
    }
    mask.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

/// A device or bridge, and what is below it.
#[derive(Default)]
struct Branch<'a> {
    below: BTreeMap<PciAddress, Branch<'a>>,
    device: Option<&'a Function>,
}

/// Writes the GPUs of a tree and its cards (with RMA where there are any) for NCCL.
///
/// Bridges that only pass on one device are left out, as NCCL does it. Where GPUs and cards stand side by side on a root bus, as VMs
/// show them, a bridge that does not exist is put above that bus: without it NCCL takes the way between them for one through
/// the processor.
#[must_use]
pub fn write(tree: &Tree) -> String {
    let with_rma = tree.of(Kind::Nic).any(|nic| nic.rma);
    let shown = |function: &&Function| function.kind == Kind::Gpu || function.rma || !with_rma;
    // By NUMA node, then by root.
    let mut nodes: BTreeMap<Option<u32>, BTreeMap<&str, Branch<'_>>> = BTreeMap::new();
    for function in tree.functions.iter().filter(shown) {
        let parts: Vec<&str> = function.path.split('/').collect();
        let root = parts.iter().copied().find(|part| part.starts_with("pci")).unwrap_or_default();
        let mut branch = nodes.entry(function.numa_node).or_default().entry(root).or_default();
        let above = parts.iter().filter_map(|part| part.parse::<PciAddress>().ok());
        for bridge in above.filter(|bridge| *bridge != function.address) {
            branch = branch.below.entry(bridge).or_default();
        }
        branch.below.entry(function.address).or_default().device = Some(function);
    }
    let mut virtual_bridges = 0;
    // Writing to a String cannot fail.
    let mut out = format!("<system version=\"{VERSION}\">\n");
    for (node, roots) in &nodes {
        let cores = |function: &&Function| function.numa_node == *node && function.cores.is_some();
        let cores = tree.functions.iter().find(cores).and_then(|function| function.cores.as_deref());
        let mask = cores.and_then(cores::parse_list).map(|cores| format!(" affinity=\"{}\"", mask_of_cores(&cores)));
        let number = node.map_or("-1".to_owned(), |node| node.to_string());
        // Without a node the mask would be that of some other device.
        let mask = mask.filter(|_| node.is_some()).unwrap_or_default();
        let _ = writeln!(out, "  <cpu numaid=\"{number}\"{mask}>");
        for root in roots.values() {
            let beside = |kind| root.below.values().any(|one| one.device.is_some_and(|device| device.kind == kind));
            if beside(Kind::Gpu) && beside(Kind::Nic) {
                let bridge = PciAddress {
                    domain: VIRTUAL.0,
                    bus: VIRTUAL.1,
                    device: 1 + virtual_bridges / 8,
                    function: virtual_bridges % 8,
                };
                virtual_bridges = (virtual_bridges + 1) % 240;
                // As fast as what is below it: NCCL would take an unknown link for a slow one.
                let best = root.below.values().filter_map(|one| link(one.device?)).max_by(|a, b| a.0.total_cmp(&b.0));
                let link = best.map(|(_, text)| text).unwrap_or_default();
                let _ = writeln!(out, "    <pci busid=\"{bridge}\" class=\"0x060400\"{link}>");
                root.below.iter().for_each(|(address, one)| element(&mut out, 6, *address, one, false));
                out += "    </pci>\n";
            } else {
                // Bridges beside each other say that they share a root.
                let several = root.below.len() > 1;
                root.below.iter().for_each(|(address, one)| element(&mut out, 4, *address, one, several));
            }
        }
        out += "  </cpu>\n";
    }
    out + "</system>\n"
}

/// `keep`: also a bridge that only passes on one device.
fn element(out: &mut String, indent: usize, address: PciAddress, branch: &Branch<'_>, keep: bool) {
    match branch.device {
        Some(device) => {
            let class = if device.kind == Kind::Gpu { "0x030200" } else { "0x020000" };
            let link = link(device).map(|(_, text)| text).unwrap_or_default();
            let _ = writeln!(out, "{:indent$}<pci busid=\"{address}\" class=\"{class}\"{link}/>", "");
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

/// The link of a device as attributes, with a number by which it compares: transfers per second times lanes. `None` where it is
/// not known; VMs say `Unknown`, and 0 or 255 lanes.
fn link(device: &Function) -> Option<(f64, String)> {
    let (speed, width) = device.best_link.as_ref().or(device.link.as_ref())?;
    let rate: f64 = speed.split(' ').next()?.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0)?;
    let lanes: u32 = width.parse().ok().filter(|lanes| (1..=32).contains(lanes))?;
    let plain = speed.chars().all(|c| c.is_ascii_alphanumeric() || " ./".contains(c));
    plain.then(|| (rate * f64::from(lanes), format!(" link_speed=\"{speed}\" link_width=\"{lanes}\"")))
}
