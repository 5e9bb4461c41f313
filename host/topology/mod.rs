//! Where GPUs, network cards and cores are, and what connects them.
//!
//! The PCI tree comes from sysfs or from a recorded copy ([`tree`]), NVLink from the driver's management library
//! ([`nvlink`]), what a GPU's memory can be used for from the CUDA driver ([`crate::cuda::visible_gpus`]).

pub mod nvlink;
pub mod tree;

use crate::fabric::pci::{PciAddress, shared_path};
use tree::{Function, Kind, Tree};

/// A GPU with what is near it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near<'a> {
    /// The GPU.
    pub gpu: &'a Function,
    /// The network cards that share most of the way from the root, all equally near: cards with RMA where there are any. None
    /// where no card shares anything below a root.
    pub nics: Vec<&'a Function>,
}

/// How two devices reach each other over PCI, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
        match self {
            Way::Switch => "switch",
            Way::Root => "root",
            Way::Host => "host",
            Way::Nodes => "nodes",
        }
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
            let shared = |nic: &&Function| shared_path(&gpu.path, &nic.path);
            let most = nics.iter().map(shared).max().unwrap_or(0);
            let near = |nic: &&&Function| shared(nic) == most && way(gpu, nic) == Way::Switch;
            Near { gpu, nics: nics.iter().filter(near).copied().collect() }
        })
        .collect()
}
