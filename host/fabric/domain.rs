//! Domains, on which rails are opened.

use std::fmt;
use std::net::IpAddr;

use libfabric_sys as sys;

use super::libfabric::Entry;
use ginlab_topology::pci::PciAddress;

/// Address format of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// IPv4 socket address.
    Ipv4,
    /// IPv6 socket address.
    Ipv6,
    /// A name, as used by shm.
    Text,
    /// EFA address.
    Efa,
    /// Any other format, by libfabric's number.
    Other(u32),
}

impl AddressFamily {
    fn of(format: u32) -> Self {
        match format {
            sys::FI_SOCKADDR_IN => Self::Ipv4,
            sys::FI_SOCKADDR_IN6 => Self::Ipv6,
            sys::FI_ADDR_STR => Self::Text,
            sys::FI_ADDR_EFA => Self::Efa,
            other => Self::Other(other),
        }
    }

    /// Returns whether peers are reached over IP. A rail must then pair with the peer's rail in the same subnet.
    #[must_use]
    pub fn is_ip(self) -> bool {
        matches!(self, Self::Ipv4 | Self::Ipv6)
    }
}

/// A domain (usually a NIC) on which rails can be opened: reliable datagrams with remote reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Full name of the provider, such as `tcp;ofi_rxm`.
    pub provider: String,
    /// Name of the fabric: a subnet for providers over IP, otherwise a name chosen by the provider.
    pub fabric: String,
    /// Name of the domain: an interface or a device.
    pub name: String,
    /// Format of its addresses.
    pub family: AddressFamily,
    /// Local address, for providers over IP.
    pub address: Option<IpAddr>,
    /// Line rate in bits per second, if the provider reports it.
    pub link_bits_per_second: Option<u64>,
    /// PCI address of the NIC, if the provider reports it.
    pub pci: Option<PciAddress>,
    /// Width of remote immediates in bytes; 0 if they are not supported.
    pub immediate_bytes: usize,
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.provider, self.name)?;
        if let Some(address) = self.address {
            write!(f, " ({address})")?;
        }
        if let Some(pci) = self.pci {
            write!(f, " at {pci}")?;
        }
        Ok(())
    }
}

impl Domain {
    pub(super) fn of(entry: Entry<'_>) -> Self {
        Self {
            provider: entry.provider(),
            fabric: entry.fabric_name(),
            name: entry.domain_name(),
            family: AddressFamily::of(entry.info().addr_format),
            address: entry.ip(),
            link_bits_per_second: entry.link_bits_per_second(),
            pci: entry.pci(),
            immediate_bytes: entry.domain().cq_data_size,
        }
    }

    /// Returns whether an entry of libfabric describes this domain.
    pub(crate) fn matches(&self, entry: Entry<'_>) -> bool {
        self.is_same(&Self::of(entry))
    }

    /// Returns whether both describe the same domain, ignoring the other properties that the provider reports.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.provider, &self.fabric, &self.name, self.family, self.address)
            == (&other.provider, &other.fabric, &other.name, other.family, other.address)
    }
}

/// Width of the remote immediates that signals need.
pub(super) const IMMEDIATE_BYTES: usize = 4;
