//! Fabrics: the interface between the proxy and its rails, and the available kinds of rails.
//!
//! A *rail* is one endpoint on one NIC domain with its own completion queue and its own memory registrations. The proxy
//! drives all rails of its thread through [`Rail`], with static dispatch.

pub mod any;
pub mod card;
pub mod chosen;
pub mod discover;
mod domain;
pub mod filter;
pub mod libfabric;
mod listed;
pub mod listing;
pub mod model;
pub mod null;
pub mod offsets;
#[doc(hidden)]
pub mod printed;
pub mod same_host;
mod select;
pub mod soft;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod verbs;
mod wanted;
pub mod worst;

pub use chosen::{RailPlan, RailVisitor, RankPlace};
use std::fmt;
pub use wanted::{Fabric, NULL};

/// Capabilities of a rail, as reported by the provider and never inferred from its name.
#[derive(Clone, Debug, PartialEq)]
pub struct RailLimits {
    /// Maximum size of one transfer in bytes.
    pub max_transfer_bytes: u64,
    /// Number of transfers that may be outstanding before the provider returns [`Post::Again`].
    pub max_outstanding: usize,
    /// Width of the remote immediate in bytes (4 on EFA); 0 if the provider has no immediates.
    pub immediate_bytes: usize,
    /// Line rate in bits per second, if the provider reports it.
    pub link_bits_per_second: Option<u64>,
    /// Whether memory of a CUDA device can be registered directly (FI_HMEM). Otherwise it is staged.
    pub cuda_memory: bool,
}

/// A range of this process's memory to register.
#[derive(Clone, Copy, Debug)]
pub struct MemoryRange {
    /// Address of the first byte, in the address space of the memory's owner.
    pub address: u64,
    /// Length in bytes.
    pub bytes: usize,
    /// CUDA device ordinal. `None` for host memory.
    pub cuda_device: Option<i32>,
}

/// Permitted uses of a region. Peers can access a region only as permitted here.
///
/// ```
/// use ginlab_fabric::Access;
///
/// let window = Access::REMOTE_WRITE | Access::SINK;
/// assert!(window.allows(Access::REMOTE_WRITE) && !window.allows(Access::REMOTE_READ));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// Source of this rank's writes and sends.
    pub const SOURCE: Access = Access(1);
    /// Destination of this rank's reads and receives.
    pub const SINK: Access = Access(2);
    /// Source of peers' reads.
    pub const REMOTE_READ: Access = Access(4);
    /// Destination of peers' writes.
    pub const REMOTE_WRITE: Access = Access(8);
    /// All uses.
    pub const ALL: Access = Access(15);

    /// Returns whether all uses in `wanted` are permitted.
    #[must_use]
    pub fn allows(self, wanted: Access) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// Description of a registered region that a peer needs to access it through one rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RemoteRegion {
    /// The provider's remote key.
    pub key: u64,
    /// Address of the first byte as the provider requires it: a virtual address, or 0 for offsets.
    pub base: u64,
    /// Length in bytes, for checks before posting.
    pub bytes: u64,
}

/// One transfer between a registered local region and a peer's region.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transfer {
    /// Offset of the first byte in the local region.
    pub local_offset: u64,
    /// Index of the peer, as returned by [`Rail::add_peer`].
    pub peer: usize,
    /// The peer's region on this rail.
    pub remote: RemoteRegion,
    /// Offset of the first byte in the peer's region.
    pub remote_offset: u64,
    /// Number of bytes to transfer. May be 0 if an immediate is sent.
    pub bytes: u64,
    /// Immediate data delivered to the target together with the last byte (writes only).
    pub immediate: Option<u32>,
    /// The caller's identifier of the transfer, returned by [`Completion::Done`].
    pub token: u64,
    /// Whether another post on this rail follows immediately, so that the provider may defer its doorbell (FI_MORE).
    pub more: bool,
}

impl Transfer {
    /// Creates a transfer of `bytes` between `local_offset` and an offset in a peer's region (`peer`, its region,
    /// offset), without an immediate.
    #[inline(always)]
    pub fn new(
        local_offset: u64,
        (peer, remote, remote_offset): (usize, RemoteRegion, u64),
        bytes: u64,
        token: u64,
    ) -> Self {
        Transfer { local_offset, peer, remote, remote_offset, bytes, immediate: None, token, more: false }
    }
}

/// A message to a peer, or a buffer for one.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Offset of the first byte in the local region.
    pub offset: u64,
    /// Number of bytes to send, or size of the receive buffer.
    pub bytes: u64,
    /// The caller's identifier of the message, returned by its completion.
    pub token: u64,
}

/// Result of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// The provider accepted the transfer; a completion will follow.
    Accepted,
    /// The provider is full (-FI_EAGAIN): poll, then post again.
    Again,
}

/// An event reported by a completion queue.
#[derive(Debug)]
pub enum Completion {
    /// The transfer with this token is complete at the level with which the rail was opened.
    Done {
        /// Token of the transfer.
        token: u64,
    },
    /// A message has arrived in the receive buffer identified by the token.
    Received {
        /// Token of the receive.
        token: u64,
        /// Length of the message in bytes.
        bytes: u64,
    },
    /// A peer's write with immediate data has arrived in this rank's memory.
    Immediate {
        /// The immediate.
        value: u32,
    },
    /// A transfer failed. The rail stays usable.
    Failed {
        /// Token of the transfer. `None` if a peer's transfer failed.
        token: Option<u64>,
        /// Description of the failure, including the provider's text. Boxed to keep successful completions small.
        error: Box<FabricError>,
    },
}

/// An error of a fabric operation: the rail and call, the error code, the provider's text and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricError {
    /// Name of the rail, or of the provider if no rail is open yet.
    pub rail: String,
    /// The C call or operation, with peer and size if known: `fi_write of 4096 B to peer 1`.
    pub operation: String,
    /// The provider's positive error number.
    pub code: i32,
    /// The provider's error text.
    pub text: String,
    /// A likely cause and a remedy; empty if none is known.
    pub hint: String,
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_no_library() {
            f.write_str(&self.text)?;
        } else if self.is_misuse() {
            // Order: cause, remedy, operation.
            let hint = if self.hint.is_empty() { String::new() } else { format!("; {}", self.hint) };
            let network = self.rail.split(" (").next().unwrap_or_default();
            return write!(f, "{}{hint}; {} ({network})", self.text, self.operation);
        } else {
            write!(f, "rail {}: {} failed: {} ({})", self.rail, self.operation, self.text, self.code)?;
        }
        if !self.hint.is_empty() {
            write!(f, "; {}", self.hint)?;
        }
        Ok(())
    }
}

impl FabricError {
    /// Code of an error that libfabric could not be loaded (ELIBACC).
    pub(crate) const NO_LIBRARY: i32 = nix::libc::ELIBACC;

    /// Code with which the worst-case network reports incorrect use by the application.
    pub(crate) const MISUSE: i32 = nix::libc::EBADE;

    /// Returns whether the worst-case network reports incorrect use by the application: a missing wait, or conflicting
    /// concurrent transfers.
    #[must_use]
    pub fn is_misuse(&self) -> bool {
        self.code == Self::MISUSE
    }

    /// Returns whether the cause of the error is that this machine has no usable libfabric.
    #[must_use]
    pub fn is_no_library(&self) -> bool {
        self.code == Self::NO_LIBRARY
    }
}

impl std::error::Error for FabricError {}

/// Creates the error of an invalid call, detected before any call to the provider. The only remedy is to correct the
/// call.
#[cold]
pub(crate) fn mistake(rail: &str, operation: impl Into<String>, text: impl Into<String>) -> FabricError {
    let (operation, text, hint) = (operation.into(), text.into(), String::new());
    FabricError { rail: rail.to_owned(), operation, code: nix::libc::EINVAL, text, hint }
}

/// A rail: registered memory, peers, writes, reads and completions. All methods are called by the one thread that owns
/// it.
///
/// A rail must return the error for unsupported operations explicitly ([`has_none`](Rail::has_none)). No operation
/// returns it by default, so that a wrapping rail cannot forget to forward a call.
pub trait Rail: Sized {
    /// A registered local region. Must be dropped before the rail.
    type Region;

    /// Returns provider and domain for display, such as `tcp;ofi_rxm:lo`.
    fn name(&self) -> &str;

    /// Returns the rail's capabilities.
    fn limits(&self) -> &RailLimits;

    /// Returns this rank's address on the rail, for the peers' [`Rail::add_peer`].
    fn address(&self) -> Result<Vec<u8>, FabricError>;

    /// Adds a peer and returns its index. Indices start at 0, and those of other peers do not change.
    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError>;

    /// Adds several peers, in this order.
    fn insert_peers(&mut self, addresses: &[Vec<u8>]) -> Result<(), FabricError> {
        addresses.iter().try_for_each(|address| self.add_peer(address).map(drop))
    }

    /// Removes a peer, to which no transfer may be outstanding. Its index is not reused.
    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError>;

    /// Registers memory for the uses in `access`. Other uses are denied if the rail can distinguish them.
    ///
    /// # Safety
    /// The memory must stay valid and must not move until the region is dropped.
    unsafe fn register(&mut self, memory: MemoryRange, access: Access) -> Result<Self::Region, FabricError>;

    /// Returns the description that a peer needs to access this region through this rail.
    fn remote(&self, region: &Self::Region) -> RemoteRegion;

    /// Posts a write from the local region to the peer.
    ///
    /// # Safety
    /// The source bytes must be in the region and must not be written until the completion of the token.
    unsafe fn write(&mut self, region: &Self::Region, transfer: &Transfer) -> Result<Post, FabricError>;

    /// Posts a read from the peer into the local region. The immediate is ignored.
    ///
    /// # Safety
    /// The destination bytes must be in the region and must not be accessed until the completion of the token.
    unsafe fn read(&mut self, region: &Self::Region, transfer: &Transfer) -> Result<Post, FabricError>;

    /// Drives the provider's progress and appends completions, without blocking. An error is returned without
    /// completions, because earlier completions have already been returned.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError>;

    /// Returns the error of an operation that this rail does not support.
    #[cold]
    fn has_none(&self, what: &str) -> FabricError {
        FabricError { code: nix::libc::ENOSYS, ..mistake(self.name(), what, "this rail has none") }
    }
}

/// A rail that also supports messages.
pub trait Messages: Rail {
    /// Posts a message to a peer, which completes as [`Completion::Done`].
    ///
    /// # Safety
    /// The bytes must be in the region and must not be written until the completion of the token.
    unsafe fn send(&mut self, region: &Self::Region, peer: usize, message: &Message) -> Result<Post, FabricError>;

    /// Posts a buffer for the next message from any peer, which completes as [`Completion::Received`].
    ///
    /// # Safety
    /// The bytes must be in the region and must not be accessed until the completion of the token.
    unsafe fn receive(&mut self, region: &Self::Region, message: &Message) -> Result<Post, FabricError>;

    /// Cancels a posted receive, if still possible. It then completes as [`Completion::Failed`].
    fn cancel(&mut self, token: u64) -> Result<(), FabricError>;
}
