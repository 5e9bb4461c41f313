//! The relevant PCI devices of this machine, read from sysfs, or those of a recorded machine (`recorded`).

use crate::pci::PciAddress;
pub use crate::pci::PciKind;
use crate::pci::identity::{Identity, code};
use std::fs;
use std::path::{Path, PathBuf};

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// PCI address.
    pub address: PciAddress,
    /// Kind of the device.
    pub kind: PciKind,
    /// Name for messages: of the RDMA device or network interface (`rdmap79s0`, `eth0`), or as in a listing.
    pub name: String,
    /// Kernel driver, if known.
    pub driver: Option<String>,
    /// Whether it has an RDMA device, or is an EFA device.
    pub rma: bool,
    /// Whether it is an EFA device, by its ID or by its driver.
    pub efa: bool,
    /// Path in the tree: the root and the bridges.
    pub path: String,
    /// NUMA node, if the system reports it.
    pub numa_node: Option<u32>,
    /// Cores near it, for example `0-47,96-143`.
    pub cores: Option<String>,
    /// Current speed and number of lanes of the PCIe link, for example `32.0 GT/s PCIe` and `16`.
    pub link: Option<(String, String)>,
    /// Maximum speed and number of lanes of the PCIe link. An idle device may reduce them.
    pub best_link: Option<(String, String)>,
}

/// The relevant devices of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// GPUs and NICs, ordered by address.
    pub functions: Vec<PciFunction>,
    /// Information that a recording lacks, one line each.
    pub lacks: Vec<String>,
}

/// Directory in which sysfs lists PCI devices, below the root of a machine or of a copy.
pub(super) const DEVICES: &str = "sys/bus/pci/devices";

impl Tree {
    /// Reads the tree of this machine.
    ///
    /// # Errors
    /// Returns the reason why the PCI bus is not visible, in one line. For example, a container may hide the bus.
    pub fn here() -> Result<Tree, String> {
        Tree::of_sysfs(Path::new("/"))
    }

    /// Returns an empty tree of a bus that is not visible because of `why`.
    #[must_use]
    pub fn unseen(why: String) -> Tree {
        Tree { functions: Vec::new(), lacks: vec![format!("the PCI bus cannot be seen: {why}")] }
    }

    /// Reads a sysfs below `root`.
    ///
    /// # Errors
    /// Returns the directory or the device that cannot be read.
    pub(super) fn of_sysfs(root: &Path) -> Result<Tree, String> {
        let folder = root.join(DEVICES);
        let wrong = |error: std::io::Error| format!("{}: {error}", folder.display());
        let mut functions = Vec::new();
        for entry in fs::read_dir(&folder).map_err(wrong)? {
            functions.extend(of_device(&entry.map_err(wrong)?.path())?);
        }
        let mut tree = Tree::sorted(functions);
        let in_tree =
            |function: &PciFunction| function.path.split('/').any(|part| part.starts_with("pci") && part.len() > 3);
        if !tree.functions.iter().all(in_tree) {
            let text = "is not a link: the bridges above the devices are unknown, and therefore the distances between \
                        NICs and GPUs";
            tree.lacks.push(format!("{}/* {text}", folder.display()));
        }
        Ok(tree)
    }

    pub(super) fn sorted(mut functions: Vec<PciFunction>) -> Tree {
        functions.sort_by_key(|function| function.address);
        Tree { functions, lacks: Vec::new() }
    }

    /// Returns the devices of one kind, ordered by address.
    pub fn of(&self, kind: PciKind) -> impl Iterator<Item = &PciFunction> {
        self.functions.iter().filter(move |function| function.kind == kind)
    }
}

/// Reads a device's directory in sysfs. Returns `None` if it is neither a GPU nor a NIC.
fn of_device(link: &Path) -> Result<Option<PciFunction>, String> {
    let name = link.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let address = name.parse::<PciAddress>().map_err(|error| format!("{}: {error}", link.display()))?;
    let text = |name: &str| fs::read_to_string(link.join(name)).ok().map(|text| text.trim().to_owned());
    let needed = |name: &str| {
        fs::read_to_string(link.join(name)).map(|text| text.trim().to_owned()).map_err(|error| {
            format!("{}/{name}: {error}; a copy must contain the links of {DEVICES} and their targets", link.display())
        })
    };
    let number = |name: &str| text(name).as_deref().and_then(code);
    let class = needed("class")?;
    // Class, subclass and interface, for example 0x030200.
    let class =
        class.get(..6).and_then(code).ok_or_else(|| format!("{}/class: invalid class {class:?}", link.display()))?;
    if class >> 8 == 0x03 {
        needed("vendor")?;
    }
    let identity =
        Identity { class: Some(class), vendor: number("vendor"), device: number("device"), name: String::new() };
    let Some(kind) = identity.kind() else { return Ok(None) };
    let first = |name: &str| {
        let names = fs::read_dir(link.join(name)).ok()?;
        let mut names: Vec<String> = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names.into_iter().next()
    };
    let driver = fs::read_link(link.join("driver")).ok().and_then(file_name);
    let rdma = first("infiniband");
    let efa = identity.is_efa() || driver.as_deref() == Some("efa");
    let rma = rdma.is_some() || efa;
    let name = rdma.or_else(|| first("net")).or_else(|| driver.clone());
    let path = link.canonicalize().map_err(|error| format!("{}: {error}", link.display()))?;
    Ok(Some(PciFunction {
        address,
        kind,
        efa,
        name: name.unwrap_or_else(|| if kind == PciKind::Gpu { "NVIDIA GPU".into() } else { "network card".into() }),
        driver,
        rma,
        path: path.to_string_lossy().into_owned(),
        // The value is -1 if the firmware does not report it.
        numa_node: text("numa_node").and_then(|node| node.parse().ok()),
        cores: text("local_cpulist").filter(|cores| !cores.is_empty()),
        link: text("current_link_speed").zip(text("current_link_width")),
        best_link: text("max_link_speed").zip(text("max_link_width")),
    }))
}

fn file_name(path: PathBuf) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}
