//! Topology files of NCCL, as written with `NCCL_TOPO_DUMP_FILE` and read with `NCCL_TOPO_FILE`.
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
//! NCCL omits bridges that have a single device below them, and does not name roots. Therefore, sibling devices below a
//! `cpu` are assumed to share a root if their buses are the same.

#[cfg(test)]
mod tests;
mod write;

pub use write::write;

use super::tree::{PciFunction, PciKind, Tree};
use crate::cores;
use crate::pci::PciAddress;
use crate::pci::identity::{self, Identity};
use roxmltree::{Document, Node};
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;

/// Maximum size of a file. A larger file cannot be the topology of one machine.
const MOST_BYTES: u64 = 16 << 20;

/// The only version of the format.
const VERSION: &str = "1";

/// Attribute of a device with an unknown NUMA node that [`write`] has placed below a `<cpu>` with GPUs. NCCL ignores
/// it.
const UNPLACED: &str = "ginlab_unplaced";

/// Domain and bus of virtual bridges, which represent a root bus in files for machines without bridges. Amazon's files
/// use the same numbers.
const VIRTUAL: (u32, u8) = (0xffff, 0xff);

/// Reads a topology file.
///
/// # Errors
/// Returns the problem of the file, in one line.
pub fn read_file(path: &Path) -> Result<Tree, String> {
    let wrong = |why: String| format!("{}: {why}", path.display());
    let file = fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut text = String::new();
    file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(wrong(format!(
            "the file is larger than {} MiB, too large for the topology of one machine",
            MOST_BYTES >> 20
        )));
    }
    parse(&text).map_err(wrong)
}

/// Parses a topology.
///
/// # Errors
/// Returns the problem of the text, in one line.
pub fn parse(text: &str) -> Result<Tree, String> {
    let document = Document::parse(text).map_err(|error| format!("invalid XML: {error}"))?;
    let system = document.root_element();
    if !system.has_tag_name("system") {
        return Err(format!("<{}> instead of <system>: not a topology file of NCCL", system.tag_name().name()));
    }
    match system.attribute("version") {
        Some(VERSION) => {}
        other => {
            return Err(format!(
                "version {} of NCCL's topology, but only {VERSION} is supported",
                other.unwrap_or("(none)")
            ));
        }
    }
    one_host(system)?;
    let mut functions: Vec<PciFunction> = Vec::new();
    let mut lacks = Lacks::default();
    for pci in system.descendants().filter(|node| node.has_tag_name("pci")) {
        // As in NCCL, all content of an unknown element is ignored.
        if let Some(unknown) =
            pci.ancestors().find(|above| above.is_element() && !KNOWN.contains(&above.tag_name().name()))
        {
            lacks.unknown.insert(unknown.tag_name().name().to_owned());
            continue;
        }
        let Some(function) = function(pci, &mut lacks)? else { continue };
        if functions.iter().any(|other| other.address == function.address) {
            return Err(format!("{} is listed twice", function.address));
        }
        functions.push(function);
    }
    let mut tree = Tree::sorted(functions);
    tree.lacks = lacks.lines();
    if tree.functions.is_empty() && !tree.lacks.is_empty() {
        return Err(tree.lacks.join("; "));
    }
    Ok(tree)
}

/// Elements that may contain a `<pci>`.
const KNOWN: [&str; 3] = ["system", "cpu", "pci"];

/// Information that is missing from a file.
#[derive(Default)]
struct Lacks {
    /// Devices without class, `<gpu>` and `<nic>` whose IDs do not determine their kind.
    kinds: Vec<PciAddress>,
    /// Whether a `<cpu>` has no numaid.
    nodes: bool,
    /// Elements that NCCL does not know and that contain a `<pci>`.
    unknown: BTreeSet<String>,
}

impl Lacks {
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(first) = self.kinds.first() {
            let count = self.kinds.len();
            lines.push(format!(
                "{count} devices ({first}{}) have no class: NCCL queries the machine for it, so that their kind (GPU \
                 or NIC) is unknown; write a complete file with NCCL_TOPO_DUMP_FILE",
                if count > 1 { " and more" } else { "" }
            ));
        }
        if self.nodes {
            lines.push("a <cpu> has no numaid: the NUMA node of its devices is unknown".to_owned());
        }
        lines.extend(self.unknown.iter().map(|name| format!("<pci> below <{name}> is ignored: NCCL ignores <{name}>")));
        lines
    }
}

/// Rejects a file with several hosts, which NCCL writes for NVLink domains, because bus addresses are unique only
/// within a host.
fn one_host(system: Node<'_, '_>) -> Result<(), String> {
    let cpus = system.descendants().filter(|node| node.has_tag_name("cpu"));
    let hosts: BTreeSet<&str> = cpus.filter_map(|cpu| cpu.attribute("host_hash")).collect();
    if hosts.len() < 2 {
        return Ok(());
    }
    let names: Vec<&str> = hosts.iter().copied().collect();
    Err(format!(
        "the file has {} hosts (host_hash {}), but only one machine is supported; keep the <cpu> elements of one \
         host_hash",
        names.len(),
        names.join(", ")
    ))
}

/// Parses a GPU or NIC. Returns `None` for bridges and other devices.
fn function(pci: Node<'_, '_>, lacks: &mut Lacks) -> Result<Option<PciFunction>, String> {
    let address = address(pci)?;
    let has = |name: &str| pci.children().any(|child| child.has_tag_name(name));
    let identity = identity(pci, address)?;
    let kind = match identity.kind() {
        // NCCL gets GPUs from the driver and NICs from plugins, and writes its findings below the device.
        _ if has("nic") => PciKind::Nic,
        _ if has("gpu") => PciKind::Gpu,
        Some(kind) => kind,
        // Only later versions write the vendor.
        None if identity.class.is_some_and(|class| class >> 8 == 0x03) && identity.vendor.is_none() => PciKind::Gpu,
        None => {
            if identity.class.is_none() && !has("pci") {
                lacks.kinds.push(address);
            }
            return Ok(None);
        }
    };
    let nets = || pci.descendants().filter(|node| node.has_tag_name("net"));
    let efa = identity.is_efa();
    let reaches_gpus = |net: Node<'_, '_>| net.attribute("gdr") == Some("1");
    let rma = identity.has_rdma() || nets().any(reaches_gpus);
    let name = match kind {
        PciKind::Gpu => "NVIDIA GPU",
        PciKind::Nic => {
            nets().find_map(|net| net.attribute("name")).unwrap_or(if efa { "EFA" } else { "network card" })
        }
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
    let Some(cpu) = cpu else { return Err(format!("{address} is not below a <cpu>")) };
    // The bus of the first device below the CPU represents the root.
    let first: PciAddress = way.last().and_then(|first| first.parse().ok()).unwrap_or(address);
    let virtual_bridge = (first.domain, first.bus) == VIRTUAL;
    way.push(if virtual_bridge { format!("pci{first}") } else { format!("pci{:04x}:{:02x}", first.domain, first.bus) });
    way.push("/sys/devices".to_owned());
    way.reverse();
    let mask = cpu.attribute("affinity").map(str::trim).filter(|mask| !mask.is_empty());
    let cores = mask.map(|mask| cores_of_mask(mask).ok_or(mask)).transpose();
    let cores =
        cores.map_err(|mask| format!("invalid affinity {mask:?}: expected a mask of cores like 00000000,0000ffff"))?;
    let text = |name: &str| pci.attribute(name).filter(|text| !text.is_empty() && *text != "0").map(str::to_owned);
    let link = text("link_speed").zip(text("link_width"));
    lacks.nodes |= cpu.attribute("numaid").is_none();
    // A device that `write` placed below this <cpu> does not belong to its node and cores.
    let placed = pci.attribute(UNPLACED).is_none();
    Ok(Some(PciFunction {
        address,
        kind,
        name: name.to_owned(),
        driver: None,
        rma: kind == PciKind::Nic && rma,
        efa,
        path: way.join("/"),
        numa_node: numa_node(cpu)?.filter(|_| placed),
        cores: cores.filter(|cores| placed && !cores.is_empty()).map(|cores| cores::list(&cores)),
        link: link.clone(),
        best_link: link,
    }))
}

/// Returns the NUMA node of a `<cpu>`; `None` if it is missing, or -1, which means that the firmware does not report
/// it.
fn numa_node(cpu: Node<'_, '_>) -> Result<Option<u32>, String> {
    let Some(text) = cpu.attribute("numaid") else { return Ok(None) };
    let number = text.trim().parse::<i64>();
    number
        .map(|node| u32::try_from(node).ok())
        .map_err(|_| format!("invalid numaid {text:?}: expected the number of a NUMA node"))
}

/// Parses the class and IDs of a `<pci>`. An empty attribute is treated as missing.
fn identity(pci: Node<'_, '_>, address: PciAddress) -> Result<Identity, String> {
    let code = |name: &str| {
        let text = pci.attribute(name).map(str::trim).filter(|text| !text.is_empty());
        let digits = |text: &str| text.strip_prefix("0x").unwrap_or(text).to_owned();
        // The class includes the interface: 0x030200. Early versions wrote 0x03.
        let read = |text: &str| match digits(text) {
            class if name == "class" && class.len() == 2 => u16::from_str_radix(&class, 16).ok().map(|base| base << 8),
            class if name == "class" => class.get(..4).and_then(identity::code),
            id => identity::code(&id),
        };
        text.map(|text| {
            read(text).ok_or_else(|| format!("invalid {name} {text:?} of {address}: expected a number like 0x030200"))
        })
        .transpose()
    };
    let (class, vendor, device) = (code("class")?, code("vendor")?, code("device")?);
    Ok(Identity { class, vendor, device, name: String::new() })
}

fn address(pci: Node<'_, '_>) -> Result<PciAddress, String> {
    let text = pci.attribute("busid").ok_or("a <pci> without busid")?;
    text.parse().map_err(|error| format!("busid: {error}"))
}

/// Parses a CPU mask of 32-bit words, the last word first (`00000001,ffffffff`), or of a single number of any length.
fn cores_of_mask(mask: &str) -> Option<Vec<usize>> {
    let mask = mask.strip_prefix("0x").unwrap_or(mask);
    let words: Vec<&str> = match mask.contains(',') {
        true => mask.rsplit(',').collect(),
        false => (0..mask.len().div_ceil(8))
            .map(|word| mask.get(mask.len().saturating_sub(word * 8 + 8)..mask.len() - word * 8))
            .collect::<Option<_>>()?,
    };
    let mut cores = Vec::new();
    for (word, text) in words.into_iter().enumerate() {
        // Number of words for 8192 cores.
        if text.len() > 8 || word >= 256 {
            return None;
        }
        let bits = u32::from_str_radix(text.trim(), 16).ok()?;
        cores.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| word * 32 + bit));
    }
    Some(cores)
}
