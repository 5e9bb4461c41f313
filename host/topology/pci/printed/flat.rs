//! The list formats of `lspci`: one line per device, or one paragraph (`-v`, `-vmm`).

use super::super::PciAddress;
use super::super::identity::{Identity, class_of, code};
use super::{LspciFunction, add};
use std::collections::BTreeMap;

/// Parser of a list.
#[derive(Default)]
pub struct Flat {
    /// Device to which indented lines and keys belong.
    current: Option<PciAddress>,
}

impl Flat {
    /// Parses a line. Returns `None` if this fails.
    pub fn line(&mut self, line: &str, found: &mut BTreeMap<PciAddress, LspciFunction>) -> Option<()> {
        if line.starts_with([' ', '\t']) {
            let known = found.get_mut(&self.current?)?;
            detail(known, line.trim());
            return Some(());
        }
        if let Some((key, value)) = line.split_once(":\t") {
            return self.key(key, value.trim(), found);
        }
        if is_dump(line) {
            return self.current.map(drop);
        }
        let (place, rest) = line.split_once(' ')?;
        let mut way = place.split('/').map(str::parse::<PciAddress>);
        let first = way.next()?.ok()?;
        let (mut address, mut path) =
            (first, format!("/sys/devices/pci{:04x}:{:02x}/{first}", first.domain, first.bus));
        // Output of `lspci -PP`. Without bus numbers (`-P`), the path is unknown, and its parts are not addresses.
        for next in way {
            address = next.ok()?;
            address.domain = first.domain;
            path += &format!("/{address}");
        }
        let identity = if rest.starts_with('"') {
            let mut fields = rest.split('"').skip(1).step_by(2);
            let (class, vendor, device) = (fields.next()?, fields.next()?, fields.next()?);
            of_fields(class_of(class), vendor, device)
        } else {
            let (class, name) = rest.split_once(": ")?;
            Identity::of_text(Some(class_of(class)), name)
        };
        add(found, address, identity, place.contains('/').then_some(path));
        self.current = Some(address);
        Some(())
    }

    /// Parses a line of a paragraph of `lspci -vmm`.
    fn key(&mut self, key: &str, value: &str, found: &mut BTreeMap<PciAddress, LspciFunction>) -> Option<()> {
        // With a single `-m`, the key of the address is also `Device`.
        if let ("Slot" | "Device", Ok(address)) = (key, value.parse::<PciAddress>()) {
            add(found, address, Identity::default(), None);
            self.current = Some(address);
            return Some(());
        }
        let known = found.get_mut(&self.current?)?;
        let identity = &mut known.identity;
        match key {
            "Class" => identity.class = Some(class_of(value)),
            "Vendor" => *identity = of_fields(identity.class?, value, ""),
            "Device" => *identity = of_fields(identity.class?, &field(identity), value),
            "Driver" => known.driver = Some(value.to_owned()),
            "NUMANode" => known.numa_node = value.parse().ok(),
            _ => {}
        }
        key.bytes().all(|byte| byte.is_ascii_alphabetic()).then_some(())
    }
}

/// Returns the vendor of an identity in the format of `-mm`.
fn field(identity: &Identity) -> String {
    let id = identity.vendor.map_or(String::new(), |vendor| format!(" [{vendor:04x}]"));
    format!("{}{id}", identity.name)
}

/// Parses vendor and device in the format of `-mm`: `NVIDIA Corporation [10de]` and `GH100 [2330]`, without codes, or
/// only codes.
fn of_fields(class: u16, vendor: &str, device: &str) -> Identity {
    let bracketed = |text: &str| text.rsplit_once('[').and_then(|(_, rest)| code(rest.strip_suffix(']')?));
    let plain = |text: &str| match bracketed(text) {
        Some(_) => text.rsplit_once('[').map_or("", |(name, _)| name.trim()).to_owned(),
        None => text.trim().to_owned(),
    };
    let vendor_id = bracketed(vendor).or_else(|| code(vendor));
    if vendor_id.is_none() {
        return Identity::of_text(Some(class), format!("{} {}", vendor.trim(), device.trim()).trim());
    }
    // A device's name may end in text that looks like a code. It is treated as a code only if the vendor has a code.
    let device_id = bracketed(device).or_else(|| code(device.trim().strip_prefix("Device ").unwrap_or(device)));
    let name = format!("{} {}", plain(vendor), plain(device)).trim().to_owned();
    Identity { class: Some(class), vendor: vendor_id, device: device_id, name }
}

/// Returns whether this is a line of `lspci -x`, such as `00: 86 80 37 12`.
fn is_dump(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(at, bytes)| {
        let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (2..=3).contains(&at.len()) && hex(at) && bytes.split(' ').all(|byte| byte.len() == 2 && hex(byte))
    })
}

/// Parses an indented line of `lspci -v`.
fn detail(known: &mut LspciFunction, line: &str) {
    let Some((key, value)) = line.split_once(':') else { return };
    let link = || {
        let speed = value.split_once("Speed ")?.1.split([',', ' ']).next()?;
        let width: String = value.split_once("Width x")?.1.chars().take_while(char::is_ascii_digit).collect();
        Some((format!("{} GT/s PCIe", speed.strip_suffix("GT/s")?), width))
    };
    match key {
        "Kernel driver in use" => known.driver = Some(value.trim().to_owned()),
        "NUMA node" => known.numa_node = value.trim().parse().ok(),
        "LnkCap" => known.best_link = known.best_link.take().or_else(link),
        "LnkSta" => known.link = known.link.take().or_else(link),
        _ => {}
    }
}
