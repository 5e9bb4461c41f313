//! PCI addresses, and distances in the PCI tree.

pub mod identity;
pub mod printed;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// Address of a PCI function, for example `0000:4f:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
    /// Function of the device.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Kinds of PCI devices that ginlab uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciKind {
    /// A display or 3D controller of NVIDIA.
    Gpu,
    /// A network or InfiniBand controller.
    Nic,
}

/// Error for text that is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid PCI address {0:?}: expected a form like 0000:4f:00.0")]
pub struct BadPciAddress(String);

impl FromStr for PciAddress {
    type Err = BadPciAddress;

    /// Accepts `0000:4f:00.0`, CUDA's `00000000:4F:00.0`, and `4f:00.0` for domain 0.
    fn from_str(text: &str) -> Result<Self, BadPciAddress> {
        let parse = || {
            let (place, function) = text.trim().rsplit_once('.')?;
            let mut parts = place.rsplit(':');
            let device = u8::from_str_radix(parts.next()?, 16).ok()?;
            let bus = u8::from_str_radix(parts.next()?, 16).ok()?;
            let domain = parts.next().map_or(Some(0), |domain| u32::from_str_radix(domain, 16).ok())?;
            let function = u8::from_str_radix(function, 16).ok()?;
            (parts.next().is_none() && device < 32 && function < 8).then_some(Self { domain, bus, device, function })
        };
        parse().ok_or_else(|| BadPciAddress(text.to_owned()))
    }
}

impl PciAddress {
    /// Returns the device's path in the PCI tree: the target of the link `/sys/bus/pci/devices/<address>`.
    #[must_use]
    pub fn tree_path(&self) -> Option<String> {
        let link = Path::new("/sys/bus/pci/devices").join(self.to_string());
        Some(link.canonicalize().ok()?.to_string_lossy().into_owned())
    }

    /// Returns the NUMA node, if the system reports it (-1 if it does not).
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        let path = Path::new("/sys/bus/pci/devices").join(self.to_string()).join("numa_node");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}

/// Returns the GPU that is nearest to a NIC, by their paths in the PCI tree. `None` if several GPUs are equally near,
/// or if no GPU shares a bridge with the NIC.
pub fn nearest<'a>(nic: &str, gpus: &'a [(PciAddress, String)]) -> Option<&'a PciAddress> {
    let shared = |path: &str| shared_path(nic, path);
    let most = gpus.iter().map(|(_, path)| shared(path)).max()?;
    let mut nearest = gpus.iter().filter(|(_, path)| shared(path) == most);
    let (address, path) = nearest.next()?;
    // Two devices below one root share the root's name, but no bridge below it.
    let below_root = path.split('/').take(most).any(|part| part.parse::<PciAddress>().is_ok());
    (below_root && nearest.next().is_none()).then_some(address)
}

/// Returns the number of leading path components that two devices share. A larger number means that they are nearer:
/// two devices below one switch share the path down to it.
#[must_use]
pub fn shared_path(one: &str, other: &str) -> usize {
    one.split('/').zip(other.split('/')).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_round_trips(domain in 0u32..0x1_0000, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn shared_length_is_symmetric_and_bounded(a in "(/[ab]{1,2}){0,6}", b in "(/[ab]{1,2}){0,6}") {
            prop_assert_eq!(shared_path(&a, &b), shared_path(&b, &a));
            prop_assert!(shared_path(&a, &b) <= shared_path(&a, &a));
        }
    }

    #[test]
    fn usual_spellings_parse() {
        let address = PciAddress { domain: 0, bus: 0x4f, device: 0, function: 0 };
        for text in ["0000:4f:00.0", "00000000:4F:00.0", "4f:00.0"] {
            assert_eq!(text.parse(), Ok(address), "{text}");
        }
        for text in ["", "4f", "4f:00", "4f:20.0", "4f:00.8", "1:2:3:4.0", "x:00.0"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn components_are_compared_whole() {
        assert_eq!(shared_path("/sys/devices/pci0000:44/0000:44:00.0", "/sys/devices/pci0000:44/0000:44:01.0"), 4);
        assert_eq!(shared_path("/a/bc", "/a/b"), 2);
    }
}
