//! A domain as a listing shows it.

use super::domain::{Domain, IMMEDIATE_BYTES};
use ginlab_topology::pci::PciAddress;

/// A domain with what its provider tells about it, in libfabric's own words. What is not known is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// What rails are opened by.
    pub domain: Domain,
    /// The provider's version.
    pub version: Option<String>,
    /// `FI_EP_RDM`, `FI_EP_MSG`, `FI_EP_DGRAM`.
    pub endpoint: Option<String>,
    /// The protocol, as `FI_PROTO_EFA`.
    pub protocol: Option<String>,
    /// The local address without port and queue.
    pub address: Option<String>,
    /// What can be done.
    pub capabilities: Vec<String>,
    /// The largest single transfer; the largest number means that there is no limit.
    pub max_message_bytes: Option<u64>,
    /// How many transfers its queue takes.
    pub queue: Option<u64>,
    /// What a registration must look like.
    pub mr_mode: Vec<String>,
    /// Which threads may call at the same time.
    pub threading: Option<String>,
    /// Whether data moves without the program's polling.
    pub progress: Option<String>,
    /// What arrives in the order it was posted in.
    pub order: Option<Vec<String>>,
    /// The device below.
    pub device: Option<String>,
    /// The device's driver.
    pub driver: Option<String>,
    /// State of the link.
    pub link_state: Option<String>,
    /// The link's largest packet.
    pub mtu_bytes: Option<u64>,
    /// Whether a completion can mean that the data is in the target's memory.
    pub delivery_complete: Option<bool>,
    /// Whether the provider grants FI_HMEM. That memory of a CUDA device really registers is known only by trying.
    pub cuda_memory: Option<bool>,
    /// The NUMA node of the card.
    pub numa_node: Option<u32>,
    /// The GPU that is nearest in the PCI tree.
    pub gpu: Option<PciAddress>,
}

impl Listed {
    /// Reliable datagrams with reads and writes of the peer's memory.
    #[must_use]
    pub fn has_rma(&self) -> bool {
        let needed = ["FI_RMA", "FI_READ", "FI_WRITE", "FI_REMOTE_READ", "FI_REMOTE_WRITE"];
        self.endpoint.as_deref() == Some("FI_EP_RDM")
            && needed.iter().all(|needed| self.capabilities.iter().any(|capability| capability == needed))
    }

    /// Whether rails can be opened here, as far as is known.
    #[must_use]
    pub fn takes_rails(&self) -> bool {
        self.has_rma() && self.domain.immediate_bytes >= IMMEDIATE_BYTES && self.delivery_complete != Some(false)
    }

    /// Whether this is an EFA device.
    #[must_use]
    pub fn is_efa(&self) -> bool {
        self.is_of("efa")
    }

    /// Whether the provider has this full name, or this part of a layered one.
    #[must_use]
    pub fn is_of(&self, provider: &str) -> bool {
        self.domain.provider == provider || self.domain.provider.split(';').any(|part| part == provider)
    }
}
