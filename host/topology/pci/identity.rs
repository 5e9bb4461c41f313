//! Kind of a PCI function, derived from its class and IDs. A name is used only if a listing has neither.

use super::PciKind;

/// Vendor ID of NVIDIA.
pub const NVIDIA: u16 = 0x10de;
/// Vendor ID of Amazon.
pub const AMAZON: u16 = 0x1d0f;
/// Vendor ID of Mellanox, for all NICs of the ConnectX and BlueField families.
pub const MELLANOX: u16 = 0x15b3;
/// Class of a function that is neither GPU nor NIC, if a listing names the class without its code.
const OTHER_CLASS: u16 = 0xffff;

/// Facts that a source contains about a PCI function; `None` or an empty name if it does not contain them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Class and subclass, for example `0x0302`.
    pub class: Option<u16>,
    /// Vendor ID.
    pub vendor: Option<u16>,
    /// Device ID.
    pub device: Option<u16>,
    /// Name of vendor and device, as `lspci` prints it.
    pub name: String,
}

impl Identity {
    /// Parses the vendor and device as printed by `lspci`: `Vendor Name [10de:2330] (rev a1)`, `10de:2330`, `Vendor
    /// Device 2330` or `Device 10de:2330`. The name is stored without IDs and revision.
    #[must_use]
    pub fn of_text(class: Option<u16>, text: &str) -> Identity {
        let mut name = text.trim();
        while let Some((start, _)) = name.rsplit_once(" (").filter(|_| name.ends_with(')') && is_remark(name)) {
            name = start.trim_end();
        }
        let pair = |text: &str| {
            let (vendor, device) = text.split_once(':')?;
            Some((code(vendor)?, code(device)?))
        };
        let bracketed = name.rsplit_once('[').and_then(|(before, rest)| Some((before, pair(rest.strip_suffix(']')?)?)));
        let (name, ids) = match bracketed {
            Some((before, ids)) => (before.trim_end(), Some(ids)),
            None => (name, pair(name.strip_prefix("Device ").unwrap_or(name))),
        };
        let device = || code(name.rsplit_once("Device ").filter(|(before, _)| !before.is_empty())?.1);
        let (vendor, device) = (ids.map(|ids| ids.0).or_else(|| vendor_of(name)), ids.map(|ids| ids.1).or_else(device));
        let name = if pair(name).is_some() { "" } else { name };
        Identity { class, vendor, device, name: name.to_owned() }
    }

    /// Returns the vendor and device ID, for example `10de:2330`; empty if they are unknown.
    #[must_use]
    pub fn ids(&self) -> String {
        let ids = self.vendor.zip(self.device);
        ids.map_or(String::new(), |(vendor, device)| format!("{vendor:04x}:{device:04x}"))
    }

    /// Returns whether the function is an EFA device.
    #[must_use]
    pub fn is_efa(&self) -> bool {
        match self.device {
            Some(device) => self.vendor == Some(AMAZON) && device & 0xfff0 == 0xefa0,
            None => self.vendor == Some(AMAZON) && self.name.contains("Elastic Fabric Adapter"),
        }
    }

    /// Returns whether the NIC has RDMA according to its IDs and class.
    #[must_use]
    pub fn has_rdma(&self) -> bool {
        let by_name = || self.class.is_none() && self.device.is_none() && self.has_word(&["infiniband", "omni-path"]);
        self.is_efa() || self.vendor == Some(MELLANOX) || matches!(self.class, Some(0x0207 | 0x0208)) || by_name()
    }

    /// Returns the kind; `None` if the function is neither GPU nor NIC.
    #[must_use]
    pub fn kind(&self) -> Option<PciKind> {
        let is_nvidia = self.vendor == Some(NVIDIA);
        match self.class.map(|class| class >> 8) {
            _ if self.is_efa() => Some(PciKind::Nic),
            Some(0x03) => is_nvidia.then_some(PciKind::Gpu),
            Some(0x02) => Some(PciKind::Nic),
            Some(_) => None,
            None => self.kind_by_name(is_nvidia),
        }
    }

    /// Returns whether the IDs are known but not the class and the name, and the IDs do not determine the kind.
    #[must_use]
    pub fn is_unstated(&self) -> bool {
        self.class.is_none() && self.vendor.is_some() && self.name.is_empty() && self.kind().is_none()
    }

    /// Returns whether the kind is derived from a vendor and a device ID for which pci.ids has no name.
    #[must_use]
    pub fn is_guessed(&self) -> bool {
        self.class.is_none() && self.device.is_some() && self.name.contains("Device ") && !self.is_efa()
    }

    /// Returns the kind by name, for `lspci -tv`, which prints no classes.
    fn kind_by_name(&self, is_nvidia: bool) -> Option<PciKind> {
        const OTHER: [&str; 10] =
            ["audio", "usb", "ucsi", "switch", "bridge", "controller", "memory", "management", "nvme", "dma"];
        const NIC: [&str; 9] = [
            "ethernet",
            "infiniband",
            "network",
            "gigabit",
            "gbe",
            "netxtreme",
            "omni-path",
            "elastic fabric adapter",
            "connectx",
        ];
        if self.name.is_empty() {
            // An ID without class and name suffices only for vendors that make nothing but NICs.
            return (self.vendor == Some(MELLANOX)).then_some(PciKind::Nic);
        }
        let nic = self.has_word(&NIC) || (self.vendor == Some(MELLANOX) && self.has_word(&["bluefield"]));
        let ena = self.vendor == Some(AMAZON) && matches!(self.device, Some(0x0ec2 | 0x1ec2 | 0xec20..=0xec22));
        match () {
            () if ena => Some(PciKind::Nic),
            () if is_nvidia => (!self.is_switch() && !nic && !self.has_word(&OTHER)).then_some(PciKind::Gpu),
            () if nic && !self.has_word(&["bridge", "switch", "audio", "management", "nvme", "dma"]) => {
                Some(PciKind::Nic)
            }
            () => None,
        }
    }

    /// Returns whether the device is an NVSwitch of an A100, H100 or V100 system.
    fn is_switch(&self) -> bool {
        matches!(self.device, Some(0x1ac2 | 0x1af1 | 0x22a3))
    }

    fn has_word(&self, words: &[&str]) -> bool {
        let name = self.name.to_ascii_lowercase();
        words.iter().any(|word| name.contains(word))
    }
}

/// Returns whether the text ends in a remark of `lspci`, such as `(rev a1)` or `(prog-if 02 [NVM Express])`.
fn is_remark(text: &str) -> bool {
    ["(rev ", "(prog-if ", "(subsys"]
        .iter()
        .any(|start| text.rfind('(').is_some_and(|at| text[at..].starts_with(start)))
}

/// Parses a code of four hexadecimal digits, as printed by `lspci` and sysfs: `2330` or `0x2330`.
#[must_use]
pub fn code(text: &str) -> Option<u16> {
    let text = text.trim();
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    (digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| u16::from_str_radix(digits, 16).ok())?
}

/// Returns the vendor ID for a name in pci.ids.
fn vendor_of(name: &str) -> Option<u16> {
    const VENDORS: [(&str, u16); 3] =
        [("nvidia corporation", NVIDIA), ("amazon.com", AMAZON), ("mellanox technologies", MELLANOX)];
    let name = name.to_ascii_lowercase();
    VENDORS.into_iter().find(|(vendor, _)| name.starts_with(vendor)).map(|(_, id)| id)
}

/// Parses a class as printed by `lspci`: `3D controller`, `3D controller [0302]`, `Class 0302` or `0302`.
#[must_use]
pub fn class_of(text: &str) -> u16 {
    let text = text.trim();
    let bracketed = text.rsplit_once('[').and_then(|(_, rest)| code(rest.strip_suffix(']')?));
    let bare = || code(text.strip_prefix("Class ").unwrap_or(text));
    bracketed.or_else(bare).unwrap_or_else(|| match text.to_ascii_lowercase().as_str() {
        "vga compatible controller" => 0x0300,
        "xga compatible controller" => 0x0301,
        "3d controller" => 0x0302,
        "display controller" => 0x0380,
        "ethernet controller" => 0x0200,
        "infiniband controller" => 0x0207,
        "fabric controller" => 0x0208,
        "network controller" => 0x0280,
        name if name.ends_with("network controller") => 0x0280,
        _ => OTHER_CLASS,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_every_spelling() {
        for (text, ids, name) in [
            (
                "NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)",
                (Some(NVIDIA), Some(0x2330)),
                "NVIDIA Corporation GH100 [H100 SXM5 80GB]",
            ),
            ("10de:2330 (rev a1)", (Some(NVIDIA), Some(0x2330)), ""),
            ("Amazon.com, Inc. Device efa0", (Some(AMAZON), Some(0xefa0)), "Amazon.com, Inc. Device efa0"),
            ("Device 1d0f:efa3", (Some(AMAZON), Some(0xefa3)), "Device 1d0f:efa3"),
            ("Device [1d0f:efa3]", (Some(AMAZON), Some(0xefa3)), "Device"),
            ("Samsung NVMe [144d:a80a] (prog-if 02 [NVM Express])", (Some(0x144d), Some(0xa80a)), "Samsung NVMe"),
            (
                "NVIDIA Corporation GA100 [A100 SXM4 40GB]",
                (Some(NVIDIA), None),
                "NVIDIA Corporation GA100 [A100 SXM4 40GB]",
            ),
        ] {
            let read = Identity::of_text(None, text);
            assert_eq!(((read.vendor, read.device), read.name.as_str()), (ids, name), "{text}");
        }
    }

    #[test]
    fn ids_and_classes_decide_before_names() {
        let kind = |class, text| Identity::of_text(class, text).kind();
        for (class, text, expected) in [
            (Some(0x0302), "Device 10de:2901", Some(PciKind::Gpu)),
            (Some(0x0300), "NVIDIA Corporation Network [Ethernet]", Some(PciKind::Gpu)),
            (Some(0x0300), "ASPEED Technology, Inc. [1a03:2000]", None),
            (Some(0x0403), "NVIDIA Corporation GB202 [GeForce]", None),
            (Some(0x0680), "NVIDIA Corporation GH100 [H100 NVSwitch]", None),
            (Some(0x0200), "NVIDIA Corporation GH100", Some(PciKind::Nic)),
            (None, "Amazon.com, Inc. Device efa2", Some(PciKind::Nic)),
            (None, "Amazon.com, Inc. Device ec20", Some(PciKind::Nic)),
            (None, "Amazon.com, Inc. Device 8061", None),
            (None, "NVIDIA Corporation GB202 High Definition Audio Controller", None),
            (None, "NVIDIA Corporation TU102 USB 3.1 Host Controller", None),
            (None, "NVIDIA Corporation TU102 USB Type-C UCSI Controller", None),
            (None, "NVIDIA Corporation Device 22a3", None),
            (None, "NVIDIA Corporation Device 2330", Some(PciKind::Gpu)),
            (None, "Mellanox Technologies MT2892 Family [ConnectX-6 Dx]", Some(PciKind::Nic)),
            (None, "Mellanox Technologies MT43244 BlueField-3 SoC Management Interface", None),
            (None, "Intel Corporation 440FX - 82441FX PMC [Natoma]", None),
        ] {
            assert_eq!(kind(class, text), expected, "{class:?} {text}");
        }
        let named = Identity::of_text(Some(0x0200), "Amazon.com, Inc. Elastic Fabric Adapter (EFA) [1d0f:ec20]");
        assert!(!named.is_efa() && !named.has_rdma(), "the id of an ENA");
        for device in ["efa0", "efa1", "efa2", "efa3", "efa4", "efaf"] {
            let efa = Identity::of_text(Some(0x0200), &format!("Amazon.com, Inc. Device {device}"));
            assert!(efa.is_efa() && efa.has_rdma(), "{device}");
        }
    }

    #[test]
    fn classes_are_read_with_and_without_code() {
        for (text, class) in [
            ("3D controller", 0x0302),
            ("3D controller [0302]", 0x0302),
            ("0302", 0x0302),
            ("Class 0302", 0x0302),
            ("Class [0207]", 0x0207),
            ("Infiniband controller", 0x0207),
            ("Bridge", OTHER_CLASS),
        ] {
            assert_eq!(class_of(text), class, "{text}");
        }
    }
}
