//! PCI listings that people save: what `ls -l /sys/bus/pci/devices` and `lspci` print.

use super::{Kind, PciAddress};

/// Places in the PCI tree from `ls -l /sys/bus/pci/devices`.
pub fn pci_tree(listing: &str) -> Vec<(PciAddress, String)> {
    let place = |line: &str| {
        let (before, target) = line.split_once(" -> ")?;
        Some((before.split_whitespace().next_back()?.parse().ok()?, target.trim().to_owned()))
    };
    listing.lines().filter_map(place).collect()
}

/// The GPUs and network cards in what `lspci`, `lspci -D` or `lspci -tv` says, with what they are called. The last names no
/// classes, so there a GPU is what NVIDIA makes and does not call a switch or a network card, and a card goes by its name.
pub fn lspci_devices(listing: &str) -> Vec<(PciAddress, Kind, String)> {
    const NIC: [&str; 5] = ["Elastic Fabric Adapter", "Elastic Network Adapter", "Ethernet", "InfiniBand", "ConnectX"];
    let mut root = 0;
    let device = |line: &str| {
        // `+-[0000:bb]---00.0-[bc-cb]--...--[ca]----00.0  NVIDIA Corporation ...`
        if let Some((_, rest)) = line.split_once("-[").filter(|(_, rest)| rest.get(4..5) == Some(":")) {
            root = u32::from_str_radix(rest.get(..4)?, 16).ok()?;
        }
        let line = line.trim_end();
        if let Some((place, last)) = line.rsplit_once("]----") {
            let (function, name) = last.split_once("  ")?;
            let address = format!("{root:04x}:{}:{function}", place.rsplit_once('[')?.1).parse().ok()?;
            let kind = if NIC.iter().any(|card| name.contains(card)) {
                Kind::Nic
            } else if name.starts_with("NVIDIA") && !name.contains("NVSwitch") {
                Kind::Gpu
            } else {
                return None;
            };
            return Some((address, kind, name.to_owned()));
        }
        // `0000:ca:00.0 3D controller: NVIDIA Corporation ...`
        let (address, rest) = line.split_once(' ')?;
        let (class, name) = rest.split_once(": ")?;
        // A number may follow: `3D controller [0302]`.
        let is = |classes: &[&str]| classes.iter().any(|name| class.starts_with(name));
        let kind = if is(&["3D controller", "VGA compatible controller"]) && name.starts_with("NVIDIA") {
            Kind::Gpu
        } else if is(&["Ethernet controller", "Infiniband controller", "Network controller"]) {
            Kind::Nic
        } else {
            return None;
        };
        Some((address.parse().ok()?, kind, name.to_owned()))
    };
    listing.lines().filter_map(device).collect()
}

#[cfg(test)]
mod tests {

    use super::*;

    fn gpus(listing: &str) -> Vec<String> {
        let devices = lspci_devices(listing).into_iter();
        devices.filter(|(_, kind, _)| *kind == Kind::Gpu).map(|(address, _, _)| address.to_string()).collect()
    }

    #[test]
    fn gpus_by_each_form_of_lspci() {
        let tree = "-+-[0000:cc]---00.0-[cd-d2]----00.0-[ce-d2]--+-00.0-[cf]----00.0  NVIDIA Corporation GH100 [H100 NVSwitch]\n \
                    +-[0001:bb]---00.0-[bc-cb]----00.0-[bd-cb]--+-00.0-[be]----00.0  Amazon.com, Inc. ENA\n \
                    |                                           +-01.4-[ca]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]\n \
                    \\-[0000:00]-+-00.0  Intel Corporation 440FX\n";
        let found = gpus(tree);
        assert_eq!(found, ["0001:ca:00.0"]);
        let flat = "ca:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\
                    0000:cb:00.0 Bridge: NVIDIA Corporation GH100 [H100 NVSwitch]\n\
                    0002:0a:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device\n\
                    cc:00.0 Ethernet controller: Amazon.com, Inc. Elastic Fabric Adapter (EFA)\n";
        let found = gpus(flat);
        assert_eq!(found, ["0000:ca:00.0", "0002:0a:00.0"]);
    }

    #[test]
    fn places_in_the_tree_by_ls() {
        let listing = "total 0\ndrwxr-xr-x 2 root root 0 Oct 14 04:36 .\nlrwxrwxrwx 1 root root 0 Oct 14 04:36 \
                       0000:4f:00.0 -> ../../../devices/pci0000:44/0000:44:00.0/0000:4f:00.0\n";
        let tree = pci_tree(listing);
        assert_eq!(tree.len(), 1);
        assert_eq!(tree[0].0.to_string(), "0000:4f:00.0");
        assert_eq!(tree[0].1, "../../../devices/pci0000:44/0000:44:00.0/0000:4f:00.0");
    }
}
