//! The physical NICs of domains, and their line rates.

use std::collections::BTreeMap;
use std::path::Path;

use super::domain::Domain;

/// Returns the total line rate, in bits per second, of the NICs of these domains. Each NIC counts once, because several
/// endpoints or domains on one NIC share its line. Returns `None` if a rate is unknown or a domain has no NIC: the rate
/// that a loopback or virtual interface reports has no meaning.
pub fn line_rate(domains: &[Domain]) -> Option<u64> {
    of_cards(domains, Path::new("/"))
}

/// Like [`line_rate`], with the files below `root`, which is `/` or a recorded tree.
fn of_cards(domains: &[Domain], root: &Path) -> Option<u64> {
    let mut cards: BTreeMap<String, u64> = BTreeMap::new();
    for domain in domains {
        let rate = domain.link_bits_per_second?;
        let card = match domain.pci {
            Some(address) => address.to_string(),
            None => device_of(root, &domain.name)?,
        };
        let known = cards.entry(card).or_default();
        *known = rate.max(*known);
    }
    (!cards.is_empty()).then(|| cards.values().sum())
}

/// Returns the system's name for the device of an interface or RDMA device, if the provider reports no PCI address.
/// `None` if the device is not hardware.
fn device_of(root: &Path, name: &str) -> Option<String> {
    // The provider may append a suffix to the device's name, as in rdmap79s0-rdm.
    let plain = name.split('-').next().unwrap_or(name);
    if plain.contains('/') || plain.starts_with('.') {
        return None;
    }
    let device = |class: &str| root.join(class).join(plain).join("device").canonicalize().ok();
    let path = device("sys/class/net").or_else(|| device("sys/class/infiniband"))?;
    Some(path.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::domain::AddressFamily;
    use super::*;
    use ginlab_report::Row;
    use std::fs;
    use std::os::unix::fs::symlink;

    const GBITS: u64 = 1_000_000_000;

    fn domain(name: &str, pci: Option<&str>, gbits: u64) -> Domain {
        Domain {
            provider: "efa".to_owned(),
            fabric: "efa".to_owned(),
            name: name.to_owned(),
            family: AddressFamily::Efa,
            address: None,
            link_bits_per_second: (gbits > 0).then_some(gbits * GBITS),
            pci: pci.map(|address| address.parse().unwrap()),
            immediate_bytes: 4,
        }
    }

    #[test]
    fn each_card_counts_once() {
        let [one, direct, two] = [
            domain("rdmap79s0-rdm", Some("4f:00.0"), 100),
            domain("rdmap79s0-direct", Some("4f:00.0"), 100),
            domain("rdmap80s0-rdm", Some("50:00.0"), 100),
        ];
        assert_eq!(line_rate(&[one.clone(), two.clone()]), Some(200 * GBITS));
        assert_eq!(line_rate(&[one.clone(), one.clone(), one.clone(), one.clone()]), Some(100 * GBITS));
        assert_eq!(line_rate(&[one.clone(), direct, two]), Some(200 * GBITS));
        assert_eq!(line_rate(&[one, domain("rdmap81s0", Some("51:00.0"), 0)]), None, "a card whose rate nobody tells");
        assert_eq!(line_rate(&[]), None);
    }

    #[test]
    fn rate_above_line_of_one_nic_is_suspect() {
        let line = line_rate(&vec![domain("rdmap79s0-rdm", Some("4f:00.0"), 100); 4]).unwrap();
        let mut row = Row::new("write", "write", "cpu", "efa");
        row.bandwidth_gbits_s = Some(150.0);
        row.line_rate(Some(line));
        assert!(row.suspect.is_some(), "150 Gb/s over a card of 100: {:?}", row.line_rate_pct);
    }

    #[test]
    fn nics_without_pci_address_are_identified_by_device() {
        let root = tempfile::tempdir().unwrap();
        let card = |class: &str, name: &str, device: &str| {
            let folder = root.path().join("sys/devices").join(device);
            fs::create_dir_all(&folder).unwrap();
            let at = root.path().join("sys/class").join(class).join(name);
            fs::create_dir_all(&at).unwrap();
            symlink(folder, at.join("device")).unwrap();
        };
        card("net", "eth0", "pci0000:00/0000:00:05.0");
        card("net", "eth1", "platform/virtio0");
        card("infiniband", "mlx5_0", "pci0000:00/0000:00:05.0");
        fs::create_dir_all(root.path().join("sys/class/net/lo")).unwrap();
        let rate = |names: &[&str]| {
            let domains: Vec<Domain> = names.iter().map(|name| domain(name, None, 10)).collect();
            of_cards(&domains, root.path())
        };
        assert_eq!(rate(&["eth0"]), Some(10 * GBITS));
        assert_eq!(rate(&["eth0", "eth0", "eth1"]), Some(20 * GBITS));
        assert_eq!(rate(&["eth0", "mlx5_0"]), Some(10 * GBITS), "one card under two names");
        assert_eq!(rate(&["lo"]), None);
        assert_eq!(rate(&["eth0", "lo"]), None);
        assert_eq!(rate(&["../net/eth0"]), None);
    }
}
