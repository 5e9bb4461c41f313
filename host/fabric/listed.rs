//! A domain as shown in a listing.

use super::domain::{Domain, IMMEDIATE_BYTES};
use ginlab_topology::pci::PciAddress;

/// A domain with the properties that its provider reports, in libfabric's terms. Unknown properties are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The domain, as used to open rails.
    pub domain: Domain,
    /// Version of the provider.
    pub version: Option<String>,
    /// Endpoint type: `FI_EP_RDM`, `FI_EP_MSG`, `FI_EP_DGRAM`.
    pub endpoint: Option<String>,
    /// Protocol, such as `FI_PROTO_EFA`.
    pub protocol: Option<String>,
    /// Local address without port and queue.
    pub address: Option<String>,
    /// Capabilities.
    pub capabilities: Vec<String>,
    /// Maximum size of one transfer in bytes. The maximum integer means that there is no limit.
    pub max_message_bytes: Option<u64>,
    /// Maximum number of transfers in its queue.
    pub queue: Option<u64>,
    /// Requirements on memory registrations.
    pub mr_mode: Vec<String>,
    /// Threading model: the threads that may make concurrent calls.
    pub threading: Option<String>,
    /// Progress model: whether data is transferred without polling by the application.
    pub progress: Option<String>,
    /// Guaranteed orders between posts and their arrival.
    pub order: Option<Vec<String>>,
    /// Name of the underlying device.
    pub device: Option<String>,
    /// Driver of the device.
    pub driver: Option<String>,
    /// State of the link.
    pub link_state: Option<String>,
    /// Maximum packet size of the link in bytes.
    pub mtu_bytes: Option<u64>,
    /// Whether a completion can mean that the data is in the target's memory.
    pub delivery_complete: Option<bool>,
    /// Whether the provider grants FI_HMEM. Only an attempt shows whether memory of a CUDA device can be registered.
    pub cuda_memory: Option<bool>,
    /// NUMA node of the NIC.
    pub numa_node: Option<u32>,
    /// Nearest GPU in the PCI tree.
    pub gpu: Option<PciAddress>,
}

impl Listed {
    /// Returns whether the domain has reliable datagrams with reads and writes of the peer's memory.
    #[must_use]
    pub fn has_rma(&self) -> bool {
        let needed = ["FI_RMA", "FI_READ", "FI_WRITE", "FI_REMOTE_READ", "FI_REMOTE_WRITE"];
        self.endpoint.as_deref() == Some("FI_EP_RDM")
            && needed.iter().all(|needed| self.capabilities.iter().any(|capability| capability == needed))
    }

    /// Returns whether rails can be opened on the domain. Unknown properties are assumed to suffice.
    #[must_use]
    pub fn takes_rails(&self) -> bool {
        self.has_rma() && self.domain.immediate_bytes >= IMMEDIATE_BYTES && self.delivery_complete != Some(false)
    }

    /// Returns whether this is an EFA device.
    #[must_use]
    pub fn is_efa(&self) -> bool {
        self.is_of("efa")
    }

    /// Returns whether `provider` is the full name of the provider, or a component of its layered name.
    #[must_use]
    pub fn is_of(&self, provider: &str) -> bool {
        self.domain.provider == provider || self.domain.provider.split(';').any(|part| part == provider)
    }
}
