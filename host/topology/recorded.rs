//! Trees that somebody has recorded, of this or another machine: a copy of sysfs, two saved listings, a topology file of NCCL.

use super::nccl;
use super::tree::{DEVICES, Function, Tree};
use crate::pci::printed::{lspci_devices, pci_tree};
use std::fs;
use std::path::Path;

const LSPCI: &str = "lspci.txt";
const LISTING: &str = "ls_sys_bus_pci_devices.txt";

impl Tree {
    /// A recorded one: a folder with `sys/bus/pci/devices` below it (links and attributes as in sysfs), or with what
    /// `lspci -tv` and `ls -l /sys/bus/pci/devices` said, in `lspci.txt` and `ls_sys_bus_pci_devices.txt`; or a file, as NCCL
    /// writes its topology ([`nccl`]).
    ///
    /// # Errors
    /// What is missing or wrong, in one line.
    pub fn recorded(folder: &Path) -> Result<Tree, String> {
        if folder.is_file() {
            return nccl::read_file(folder);
        }
        if folder.join(DEVICES).is_dir() {
            return Tree::of_sysfs(folder);
        }
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|error| {
                format!(
                    "{}: {error}; a recorded tree has {DEVICES}/ or both {LSPCI} and {LISTING}, or is a topology file of NCCL",
                    path.display()
                )
            })
        };
        Ok(Tree::of_listings(&read(LSPCI)?, &read(LISTING)?))
    }

    /// From what `lspci` and `ls -l /sys/bus/pci/devices` print.
    pub fn of_listings(lspci: &str, listing: &str) -> Tree {
        let places = pci_tree(listing);
        let functions = lspci_devices(lspci).into_iter().filter_map(|(address, kind, name)| {
            let (_, path) = places.iter().find(|(known, _)| *known == address)?;
            Some(Function {
                address,
                kind,
                rma: name.contains("EFA") || name.contains("InfiniBand") || name.contains("ConnectX"),
                name,
                driver: None,
                path: path.clone(),
                numa_node: None,
                cores: None,
                link: None,
                best_link: None,
            })
        });
        Tree::sorted(functions.collect())
    }
}
