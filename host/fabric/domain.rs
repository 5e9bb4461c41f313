//! A domain: what rails are opened on.

use std::fmt;
use std::net::IpAddr;

use libfabric_sys as sys;

use super::libfabric::Entry;
use ginlab_topology::pci::PciAddress;

/// How a domain's addresses look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressFamily {
    /// IPv4 socket address.
    Ipv4,
    /// IPv6 socket address.
    Ipv6,
    /// A name, as shm has.
    Text,
    /// EFA's.
    Efa,
    /// Any other, by libfabric's number.
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

    /// Whether peers are reached over IP, where a rail must pair with the peer's rail of the same subnet.
    #[must_use]
    pub fn is_ip(self) -> bool {
        matches!(self, Self::Ipv4 | Self::Ipv6)
    }
}

/// A domain (a NIC, mostly) on which rails can be opened: reliable datagrams with remote reads and writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The provider's full name, as `tcp;ofi_rxm`.
    pub provider: String,
    /// The fabric: a subnet for providers over IP, otherwise the provider's word.
    pub fabric: String,
    /// The domain: an interface or a device.
    pub name: String,
    /// How its addresses look.
    pub family: AddressFamily,
    /// The local address, for providers over IP.
    pub address: Option<IpAddr>,
    /// Line rate in bits per second, where the provider tells it.
    pub link_bits_per_second: Option<u64>,
    /// Where the NIC is, where the provider tells it.
    pub pci: Option<PciAddress>,
    /// Width of remote immediates in bytes; 0 when there are none.
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

    /// Whether an answer of libfabric is about this domain.
    pub(crate) fn matches(&self, entry: Entry<'_>) -> bool {
        let other = Self::of(entry);
        (&self.provider, &self.fabric, &self.name, self.family, self.address)
            == (&other.provider, &other.fabric, &other.name, other.family, other.address)
    }
}

/// Width of the remote immediates that signals need.
pub(super) const IMMEDIATE_BYTES: usize = 4;
