//! Assignment of cores to the busy threads of all ranks of a machine. Cores are near the device that the threads serve,
//! and no core is assigned twice.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Requirements of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Want {
    /// Number of threads that need their own core.
    pub threads: usize,
    /// Cores that the rank may use.
    pub allowed: Vec<usize>,
    /// Cores near its GPU or NICs; empty if unknown.
    pub near: Vec<usize>,
}

/// Assigns cores to ranks. Each rank gets one core per thread, or none if there are not enough for all of its threads.
/// The result is deterministic, so that every rank of the machine computes the same result from the same input.
///
/// No core is assigned twice. A thread gets, in order of preference: a free physical core near the device, another
/// hardware thread of a near core, a free physical core anywhere, or any other hardware thread. Cores with high numbers
/// are preferred, because the system uses the first cores. Cores far from a device are assigned only after all ranks
/// have received those near theirs.
pub fn share_out(wants: &[Want], physical: &BTreeMap<usize, usize>) -> Vec<Vec<usize>> {
    let mut pool = Pool { physical, given: BTreeSet::new(), busy: BTreeSet::new() };
    let mut cores: Vec<Vec<usize>> = vec![Vec::new(); wants.len()];
    for far in [false, true] {
        for (want, cores) in wants.iter().zip(&mut cores) {
            let allowed = || want.allowed.iter().copied().filter(|core| far || want.near.contains(core));
            for own in [true, false] {
                while cores.len() < want.threads
                    && let Some(core) = pool.take(allowed(), own)
                {
                    cores.push(core);
                }
            }
        }
    }
    // Assigns all cores of a rank or none, because results of a rank with only some pinned threads would be harder to
    // explain.
    for (want, cores) in wants.iter().zip(&mut cores) {
        if cores.len() < want.threads {
            cores.clear();
        }
    }
    cores
}

struct Pool<'a> {
    physical: &'a BTreeMap<usize, usize>,
    given: BTreeSet<usize>,
    /// Physical cores of which a hardware thread has been assigned.
    busy: BTreeSet<usize>,
}

impl Pool<'_> {
    /// Takes the last free core. With `own`, the whole physical core must be free.
    fn take(&mut self, cores: impl Iterator<Item = usize>, own: bool) -> Option<usize> {
        let physical = |core: &usize| *self.physical.get(core).unwrap_or(core);
        let taken = |core: &usize| self.given.contains(core) || own && self.busy.contains(&physical(core));
        // Ordered by physical core first, because the last hardware thread of the first core shares that core with the
        // system.
        let core = cores.filter(|core| !taken(core)).max_by_key(|core| (physical(core), *core))?;
        self.given.insert(core);
        self.busy.insert(physical(&core));
        Some(core)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::cores::{list, near, parse_list, physical};
    use crate::pci::PciAddress;
    use crate::pci::printed::pci_tree;
    use proptest::prelude::*;
    use std::fs;
    use std::path::Path;

    /// A p5.48xlarge: roots 44 to 77 on the first socket, 88 to bb on the second; 2 x 48 cores with two hardware
    /// threads each.
    const NODES: [&str; 2] = ["0-47,96-143", "48-95,144-191"];

    /// Recreates the recorded tree of a p5 as sysfs shows it: cores near each device, and the hardware threads of each
    /// core.
    fn p5(root: &Path) -> Vec<(PciAddress, usize)> {
        let listing = fs::read_to_string("../../tests/fixtures/p5/ls_sys_bus_pci_devices.txt").unwrap();
        let mut gpus = Vec::new();
        for (address, path) in pci_tree(&listing).unwrap() {
            let node = usize::from(&path.split("pci0000:").nth(1).unwrap()[..2] >= "88");
            let folder = root.join("sys/bus/pci/devices").join(address.to_string());
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("local_cpulist"), format!("{}\n", NODES[node])).unwrap();
            // The GPU is the last device below its switch.
            if path.contains(":01.4/") {
                gpus.push((address, node));
            }
        }
        for core in 0..192 {
            let folder = root.join(format!("sys/devices/system/cpu/cpu{core}/topology"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("thread_siblings_list"), format!("{},{}\n", core % 96, core % 96 + 96)).unwrap();
        }
        gpus
    }

    #[test]
    fn p5_ranks_get_cores_of_gpu_socket() {
        let root = tempfile::tempdir().unwrap();
        let gpus = p5(root.path());
        assert_eq!(gpus.iter().map(|(_, node)| *node).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
        let allowed: Vec<usize> = (0..192).collect();
        let siblings = physical(root.path(), &allowed);
        assert_eq!((siblings.len(), siblings[&100]), (192, 4));
        for threads in [1, 4, 12] {
            let want = |gpu: &PciAddress| Want { threads, allowed: allowed.clone(), near: near(root.path(), &[*gpu]) };
            let wants: Vec<Want> = gpus.iter().map(|(gpu, _)| want(gpu)).collect();
            let cores = share_out(&wants, &siblings);
            for ((_, node), cores) in gpus.iter().zip(&cores) {
                assert_eq!(cores.len(), threads);
                let near = parse_list(NODES[*node]).unwrap();
                assert!(cores.iter().all(|core| near.contains(core)), "{threads}: {cores:?} on node {node}");
            }
            let mut physical: Vec<usize> = cores.concat().iter().map(|core| siblings[core]).collect();
            physical.sort_unstable();
            physical.dedup();
            assert_eq!(physical.len(), 8 * threads, "each a physical core of its own");
            assert!(!physical.contains(&0) || threads == 12, "the system's core goes last");
        }
        assert!(near(root.path(), &["0000:00:1f.0".parse().unwrap()]).is_empty(), "a device of which nothing is said");
    }

    #[test]
    fn near_cores_are_assigned_to_near_ranks() {
        // A rank without known devices comes first, but does not take cores from the node of the second rank.
        let wants = [
            Want { threads: 2, allowed: (0..4).collect(), near: vec![] },
            Want { threads: 2, allowed: (0..4).collect(), near: vec![2, 3] },
        ];
        assert_eq!(share_out(&wants, &BTreeMap::new()), [[1, 0], [3, 2]]);
        // If the node is full, the remaining cores come from elsewhere.
        let wants = [Want { threads: 3, allowed: (0..4).collect(), near: vec![0, 1] }];
        assert_eq!(share_out(&wants, &BTreeMap::new()), [[1, 0, 3]]);
        // If there are too few cores, the rank gets none, and its threads are not pinned.
        let wants = [Want { threads: 3, allowed: vec![5, 6], near: vec![] }, Want { threads: 0, ..Want::default() }];
        assert!(share_out(&wants, &BTreeMap::new()).iter().all(Vec::is_empty));
    }

    #[test]
    fn hardware_threads_of_one_core_come_last() {
        let siblings: BTreeMap<usize, usize> = (0..8).map(|core| (core, core % 4)).collect();
        let near = |near: &str| Want { threads: 3, allowed: (0..8).collect(), near: parse_list(near).unwrap() };
        // A node with two cores of two threads each: both cores first, then a second thread, before the other node.
        assert_eq!(share_out(&[near("2-3,6-7")], &siblings), [[7, 6, 3]]);
        assert_eq!(list(&[3, 6, 7]), "3,6-7");
    }

    proptest! {
        /// Checks any machine and requirements. No core is assigned twice or without permission, and each rank gets all
        /// its cores or none. A thread is far from its device only if all near cores have been assigned.
        #[test]
        fn no_core_is_given_twice(
            wants in prop::collection::vec((0usize..6, 1u32..u32::MAX, 0u32..u32::MAX), 1..9), smt in 1usize..3,
        ) {
            let of_mask = |mask: u32| (0..32).filter(|core| mask >> core & 1 == 1).collect::<Vec<usize>>();
            let wants: Vec<Want> = wants
                .iter()
                .map(|(threads, allowed, near)| Want {
                    threads: *threads, allowed: of_mask(*allowed), near: of_mask(near & allowed),
                })
                .collect();
            let siblings: BTreeMap<usize, usize> = (0..32).map(|core| (core, core % (32 / smt))).collect();
            let cores = share_out(&wants, &siblings);
            let mut all = cores.concat();
            all.sort_unstable();
            let count = all.len();
            all.dedup();
            prop_assert_eq!(all.len(), count);
            for (want, cores) in wants.iter().zip(&cores) {
                prop_assert!(cores.is_empty() || cores.len() == want.threads);
                prop_assert!(cores.iter().all(|core| want.allowed.contains(core)));
            }
            // If there are enough cores for all ranks, each rank gets its cores.
            let total: usize = wants.iter().map(|want| want.threads).sum();
            if wants.iter().all(|want| want.allowed.len() >= total) {
                prop_assert_eq!(count, total);
            }
            // A single rank gets no far core while a near core is free.
            let alone = share_out(&wants[..1], &siblings).remove(0);
            let far = alone.iter().filter(|core| !wants[0].near.contains(core)).count();
            prop_assert!(alone.is_empty() || far == wants[0].threads.saturating_sub(wants[0].near.len()));
        }
    }
}
