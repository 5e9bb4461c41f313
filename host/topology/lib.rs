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
use tree::{PciFunction, PciKind, Tree};

/// A GPU with the nearest NICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near<'a> {
    /// The GPU.
    pub gpu: &'a PciFunction,
    /// The nearest NICs, all at the same distance. If there are NICs with RMA, only these are considered. NICs below
    /// the closest bridge are nearest. If there is no such bridge, as in VMs, NICs on the same root bus are nearest. If
    /// there are none, NICs on the same NUMA node are nearest.
    pub nics: Vec<&'a PciFunction>,
    /// Path to the NICs; `None` if there are none.
    pub way: Option<PciPath>,
}

/// Path between two devices over PCI, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum PciPath {
    /// The devices are below the same switch or bridge.
    Switch,
    /// The devices are below the same root.
    Root,
    /// The path crosses roots of one NUMA node, or of unknown nodes.
    Host,
    /// The path crosses NUMA nodes.
    Nodes,
}

impl PciPath {
    /// Returns the name of the path in tables.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Returns the path between two devices.
pub fn way(one: &PciFunction, other: &PciFunction) -> PciPath {
    let shared = shared_path(&one.path, &other.path);
    let bridges = one.path.split('/').take(shared).filter(|part| part.parse::<PciAddress>().is_ok()).count();
    let root = one.path.split('/').take(shared).any(|part| part.starts_with("pci"));
    match (bridges, root) {
        (1.., _) => PciPath::Switch,
        (0, true) => PciPath::Root,
        _ if one.numa_node.is_some() && other.numa_node.is_some() && one.numa_node != other.numa_node => PciPath::Nodes,
        _ => PciPath::Host,
    }
}

/// Returns each GPU of the tree with the nearest NICs.
pub fn near(tree: &Tree) -> Vec<Near<'_>> {
    let with_rma = tree.of(PciKind::Nic).any(|nic| nic.rma);
    let nics: Vec<&PciFunction> = tree.of(PciKind::Nic).filter(|nic| nic.rma || !with_rma).collect();
    tree.of(PciKind::Gpu)
        .map(|gpu| {
            let distance = |nic: &PciFunction| distance(gpu, nic);
            let nearest = nics.iter().filter_map(|nic| distance(nic)).min();
            let near = nics.iter().filter(|nic| nearest.is_some() && distance(nic) == nearest);
            Near { gpu, nics: near.copied().collect(), way: nearest.map(|(way, _)| way) }
        })
        .collect()
}

/// Returns the distance of a NIC for comparison, which is the path and, below bridges, the length of the shared part.
/// `None` if no criterion makes the NIC nearer than others.
fn distance(gpu: &PciFunction, nic: &PciFunction) -> Option<(PciPath, usize)> {
    match way(gpu, nic) {
        PciPath::Switch => Some((PciPath::Switch, usize::MAX - shared_path(&gpu.path, &nic.path))),
        PciPath::Root => Some((PciPath::Root, 0)),
        PciPath::Host if gpu.numa_node.is_some() && gpu.numa_node == nic.numa_node => Some((PciPath::Host, 0)),
        PciPath::Host | PciPath::Nodes => None,
    }
}
