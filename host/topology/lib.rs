//! Where GPUs, network cards and cores are, and what connects them.
//!
//! The PCI tree comes from sysfs, from a recorded copy ([`tree`]) or from a topology file of NCCL ([`nccl`]), NVLink from the driver's management library
//! ([`nvlink`]), what a GPU's memory can be used for from the CUDA driver (`visible_gpus` of ginlab_cuda).

pub mod cores;
pub mod environment;
pub mod nccl;
pub mod nvlink;
pub mod nvml;
pub mod pci;
mod recorded;
pub mod tree;

use crate::pci::{PciAddress, shared_path};
use tree::{Function, Kind, Tree};

/// A GPU with what is near it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near<'a> {
    /// The GPU.
    pub gpu: &'a Function,
    /// The network cards that are nearest, all equally near: cards with RMA where there are any. Cards below the closest bridge
    /// come first; without such a bridge, as VMs show their devices, those of the same root bus; without such a card those
    /// of the same NUMA node.
    pub nics: Vec<&'a Function>,
    /// The way to each of them; `None` where there are none.
    pub way: Option<Way>,
}

/// How two devices reach each other over PCI, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Way {
    /// Below one switch or bridge.
    Switch,
    /// Below one root.
    Root,
    /// Across roots of one NUMA node, or of nodes that nobody knows.
    Host,
    /// Across NUMA nodes.
    Nodes,
}

impl Way {
    /// One word, as a table shows it.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The way between two devices.
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

/// Each GPU of the tree with the cards near it.
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

/// How far a card is, less is nearer: by the way and, below bridges, by how much of it is shared. `None` where nothing is known
/// that would make it nearer than others.
fn distance(gpu: &Function, nic: &Function) -> Option<(Way, usize)> {
    match way(gpu, nic) {
        Way::Switch => Some((Way::Switch, usize::MAX - shared_path(&gpu.path, &nic.path))),
        Way::Root => Some((Way::Root, 0)),
        Way::Host if gpu.numa_node.is_some() && gpu.numa_node == nic.numa_node => Some((Way::Host, 0)),
        Way::Host | Way::Nodes => None,
    }
}
