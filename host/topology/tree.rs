//! The PCI devices that matter here: of this machine, as its sysfs tells them, or of a copy of it (`recorded`).

pub use crate::pci::Kind;
use crate::pci::PciAddress;
use std::fs;
use std::path::{Path, PathBuf};

/// A PCI device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Where it is on the bus.
    pub address: PciAddress,
    /// What it is.
    pub kind: Kind,
    /// A name for people: the RDMA device or interface (`rdmap79s0`, `eth0`), or what a listing calls it.
    pub name: String,
    /// The kernel's driver, where it is known.
    pub driver: Option<String>,
    /// Whether it has an RDMA device, or is an EFA card.
    pub rma: bool,
    /// Its place in the tree: path of the bridges from the root on.
    pub path: String,
    /// The NUMA node, where the system knows it.
    pub numa_node: Option<u32>,
    /// Cores near it, as `0-47,96-143`.
    pub cores: Option<String>,
    /// The PCIe link as it runs now: transfers per second and lanes, as `32.0 GT/s PCIe` and `16`.
    pub link: Option<(String, String)>,
    /// The same as it may run: an idle card lowers its link.
    pub best_link: Option<(String, String)>,
}

/// All of them, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// GPUs and network cards.
    pub functions: Vec<Function>,
}

/// Where sysfs lists PCI devices, below the root of a machine or of a copy.
pub(super) const DEVICES: &str = "sys/bus/pci/devices";

impl Tree {
    /// This machine's.
    pub fn here() -> Tree {
        // A system without PCI has no such folder, and no device.
        Tree::of_sysfs(Path::new("/")).unwrap_or_default()
    }

    /// Of a sysfs below this root.
    pub(super) fn of_sysfs(root: &Path) -> Result<Tree, String> {
        let folder = root.join(DEVICES);
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let functions = entries.filter_map(|entry| of_device(&entry.ok()?.path()));
        Ok(Tree::sorted(functions.collect()))
    }

    pub(super) fn sorted(mut functions: Vec<Function>) -> Tree {
        functions.sort_by_key(|function| function.address);
        Tree { functions }
    }

    /// Those of one kind, by address.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(move |function| function.kind == kind)
    }
}

/// A device's folder in sysfs; `None` for what is neither GPU nor network card.
fn of_device(link: &Path) -> Option<Function> {
    let address: PciAddress = link.file_name()?.to_str()?.parse().ok()?;
    let text = |name: &str| fs::read_to_string(link.join(name)).ok().map(|text| text.trim().to_owned());
    let class = text("class")?;
    let kind = match (class.get(..4)?, class.get(..6)?) {
        (_, "0x0300" | "0x0302") if text("vendor")? == "0x10de" => Kind::Gpu,
        ("0x02", _) => Kind::Nic,
        _ => return None,
    };
    let first = |name: &str| {
        let names = fs::read_dir(link.join(name)).ok()?;
        let mut names: Vec<String> = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        names.into_iter().next()
    };
    let driver = fs::read_link(link.join("driver")).ok().and_then(file_name);
    let rdma = first("infiniband");
    let rma = rdma.is_some() || driver.as_deref() == Some("efa");
    let name = rdma.or_else(|| first("net")).or_else(|| driver.clone());
    Some(Function {
        address,
        kind,
        name: name.unwrap_or_else(|| if kind == Kind::Gpu { "NVIDIA GPU".into() } else { "network card".into() }),
        driver,
        rma,
        path: link.canonicalize().ok()?.to_string_lossy().into_owned(),
        // -1 where the firmware says nothing.
        numa_node: text("numa_node").and_then(|node| node.parse().ok()),
        cores: text("local_cpulist").filter(|cores| !cores.is_empty()),
        link: text("current_link_speed").zip(text("current_link_width")),
        best_link: text("max_link_speed").zip(text("max_link_width")),
    })
}

fn file_name(path: PathBuf) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}
