//! Recorded trees of this or another machine: a copy of sysfs, saved listings, or a topology file of NCCL.

use super::nccl;
use super::tree::{DEVICES, PciFunction, Tree};
use crate::pci::printed::{lspci_devices, pci_tree};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const LSPCI: &str = "lspci.txt";
const LISTING: &str = "ls_sys_bus_pci_devices.txt";

impl Tree {
    /// Reads a recorded tree in one of three forms:
    ///
    /// - a directory with `sys/bus/pci/devices` below it (links and attributes as in sysfs);
    /// - a directory with the output of `lspci` and of `ls -l /sys/bus/pci/devices` in `lspci.txt` and
    ///   `ls_sys_bus_pci_devices.txt`, where the latter is not needed with `lspci -t`;
    /// - a topology file of NCCL ([`nccl`]).
    ///
    /// # Errors
    /// Returns a one-line description of what is missing or wrong.
    pub fn recorded(folder: &Path) -> Result<Tree, String> {
        if folder.is_file() {
            return nccl::read_file(folder);
        }
        if folder.join(DEVICES).is_dir() {
            return Tree::of_sysfs(folder);
        }
        let path = |name: &str| folder.join(name);
        let lspci = fs::read(path(LSPCI)).map_err(|error| {
            format!(
                "{}: {error}; a recorded tree has {DEVICES}/ or both {LSPCI} and {LISTING}, or is a topology file of NCCL",
                path(LSPCI).display()
            )
        })?;
        let listing = match fs::read(path(LISTING)) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(format!("{}: {error}", path(LISTING).display())),
        };
        let [lspci, listing] = [lspci, listing].map(|text| String::from_utf8_lossy(&text).into_owned());
        Tree::of_listings(&lspci, &listing).map_err(|why| format!("{}: {why}", folder.display()))
    }

    /// Parses the output of `lspci` and of `ls -l /sys/bus/pci/devices`.
    ///
    /// # Errors
    /// Returns the line that cannot be parsed, or the GPU or NIC whose path is unknown.
    pub fn of_listings(lspci: &str, listing: &str) -> Result<Tree, String> {
        let places = pci_tree(listing).map_err(|why| format!("{LISTING}: {why}"))?;
        let devices = lspci_devices(lspci).map_err(|why| format!("{LSPCI}: {why}"))?;
        let mut functions = Vec::new();
        for (address, printed) in devices {
            let Some(kind) = printed.kind(&address) else { continue };
            let place = places.iter().find(|(known, _)| *known == address).map(|(_, path)| path.clone());
            let path = place.or(printed.path).ok_or_else(|| match places.is_empty() {
                true => format!("{LSPCI} draws no tree, and there are no links in {LISTING}; record `lspci -tvnn`"),
                false => format!(
                    "{address} of {LSPCI} has no line in {LISTING}; record both on the same machine, or record \
                         `lspci -tvnn`"
                ),
            })?;
            let identity = printed.identity;
            functions.push(PciFunction {
                address,
                kind,
                rma: kind == crate::pci::PciKind::Nic && identity.has_rdma(),
                efa: identity.is_efa(),
                name: if identity.name.is_empty() { identity.ids() } else { identity.name },
                driver: printed.driver,
                path,
                numa_node: printed.numa_node,
                cores: None,
                link: printed.link,
                best_link: printed.best_link,
            });
        }
        Ok(Tree::sorted(functions))
    }
}
