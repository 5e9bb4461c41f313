//! Locations of GPUs, NICs and cores, and the connections between them.
//!
//! The PCI tree is read from sysfs, from a recorded copy ([`tree`]) or from a topology file of NCCL ([`nccl`]). NVLinks
//! are read from NVML ([`nvlink`]), and the capabilities of GPU memory from the CUDA driver (`visible_gpus` of
//! ginlab_cuda).

pub mod cores;
pub mod environment;
pub mod nccl;
pub mod nvlink;
pub mod nvml;
pub mod pci;
mod recorded;
pub mod tree;
pub mod visible;

use crate::pci::{PciAddress, shared_path};
use tree::{Function, Kind, Tree};

/// A GPU with the nearest NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near<'a> {
    /// The GPU.
    pub gpu: &'a Function,
    /// The nearest NICs, all at the same distance. If there are NICs with RMA, only these are considered. NICs below
    /// the closest bridge are nearest. If there is no such bridge, as in VMs, NICs on the same root bus are nearest. If
    /// there are none, NICs on the same NUMA node are nearest.
    pub nics: Vec<&'a Function>,
    /// Path to the NICs; `None` if there are none.
    pub way: Option<Way>,
}

/// Path between two devices over PCI, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Way {
    /// The devices are below the same switch or bridge.
    Switch,
    /// The devices are below the same root.
    Root,
    /// The path crosses roots of one NUMA node, or of unknown nodes.
    Host,
    /// The path crosses NUMA nodes.
    Nodes,
}

impl Way {
    /// Returns the name of the path in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Returns the path between two devices.
pub fn way(one: &Function, other: &Function) -> Way {
    let shared = shared_path(&one.path, &other.path);
    let bridges = one.path.split('/').take(shared).filter(|part| part.parse::<PciAddress>().is_ok()).count();
    let root = one.path.split('/').take(shared).any(|part| part.starts_with("pci"));
    match (bridges, root) {
        (1.., _) => Way::Switch,
        (0, true) => Way::Root,
        _ if one.numa_node.is_some() && other.numa_node.is_some() && one.numa_node != other.numa_node => Way::Nodes,
        _ => Way::Host,
    }
}

/// Returns each GPU of the tree with the nearest NICs.
pub fn near(tree: &Tree) -> Vec<Near<'_>> {
    let with_rma = tree.of(Kind::Nic).any(|nic| nic.rma);
    let nics: Vec<&Function> = tree.of(Kind::Nic).filter(|nic| nic.rma || !with_rma).collect();
    tree.of(Kind::Gpu)
        .map(|gpu| {
            let distance = |nic: &Function| distance(gpu, nic);
            let nearest = nics.iter().filter_map(|nic| distance(nic)).min();
            let near = nics.iter().filter(|nic| nearest.is_some() && distance(nic) == nearest);
            Near { gpu, nics: near.copied().collect(), way: nearest.map(|(way, _)| way) }
        })
        .collect()
}

/// Returns the distance of a NIC for comparison, which is the path and, below bridges, the length of the shared part.
/// `None` if no criterion makes the NIC nearer than others.
fn distance(gpu: &Function, nic: &Function) -> Option<(Way, usize)> {
    match way(gpu, nic) {
        Way::Switch => Some((Way::Switch, usize::MAX - shared_path(&gpu.path, &nic.path))),
        Way::Root => Some((Way::Root, 0)),
        Way::Host if gpu.numa_node.is_some() && gpu.numa_node == nic.numa_node => Some((Way::Host, 0)),
        Way::Host | Way::Nodes => None,
    }
}
