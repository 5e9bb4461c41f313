//! Fabrics: what the proxy asks of a rail, and the rails there are.
//!
//! A *rail* is one endpoint on one NIC domain with its own completion queue and its own memory registrations. The proxy
//! drives all rails of its thread through [`Rail`], with static dispatch.

pub mod any;
pub mod card;
pub mod chosen;
pub mod discover;
mod domain;
pub mod libfabric;
mod listed;
pub mod listing;
pub mod model;
pub mod null;
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

pub use chosen::{Chosen, RankPlace, TakesRails};
use std::fmt;
pub use wanted::{Fabric, NULL};

/// What a rail can do, asked of the provider and never guessed from its name.
#[derive(Clone, Debug, PartialEq)]
pub struct RailLimits {
    /// The largest single transfer in bytes.
    pub max_transfer_bytes: u64,
    /// How many transfers may be outstanding before the provider answers "again".
    pub max_outstanding: usize,
    /// Width of the remote immediate in bytes (4 on EFA); 0 when the provider has none.
    pub immediate_bytes: usize,
    /// Line rate in bits per second, where the provider tells it.
    pub link_bits_per_second: Option<u64>,
    /// Whether memory of a CUDA device can be registered as it is (FI_HMEM); otherwise it is staged.
    pub cuda_memory: bool,
}

/// A stretch of this process's memory to register.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// First byte, as the owner of the memory addresses it.
    pub address: u64,
    /// Length in bytes.
    pub bytes: usize,
    /// `None` for host memory, the CUDA device ordinal otherwise.
    pub cuda_device: Option<i32>,
}

/// What a region is registered for. Peers can do nothing with it but what is named here.
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
    /// Our writes and sends take their bytes here.
    pub const SOURCE: Access = Access(1);
    /// Our reads and receives put their bytes here.
    pub const SINK: Access = Access(2);
    /// Peers read it.
    pub const REMOTE_READ: Access = Access(4);
    /// Peers write it.
    pub const REMOTE_WRITE: Access = Access(8);
    /// All of these.
    pub const ALL: Access = Access(15);

    /// Whether all of `wanted` is among it.
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

/// What a peer must know to write into a registered region through one rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RemoteRegion {
    /// The provider's remote key.
    pub key: u64,
    /// Address of the first byte as the provider wants it: a virtual address, or 0 for offsets.
    pub base: u64,
    /// Length in bytes, for the check before posting.
    pub bytes: u64,
}

/// One transfer between a registered local region and a peer's region.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Offset of the first byte in the local region.
    pub local_offset: u64,
    /// Index of the peer, as [`Rail::add_peer`] has given it.
    pub peer: usize,
    /// The peer's region on this rail.
    pub remote: RemoteRegion,
    /// Offset of the first byte in the peer's region.
    pub remote_offset: u64,
    /// Bytes to move. 0 is allowed where an immediate is sent.
    pub bytes: u64,
    /// Immediate data raised at the target together with the last byte (writes only).
    pub immediate: Option<u32>,
    /// The caller's name for this transfer, given back by [`Completion::Done`].
    pub token: u64,
    /// More transfers follow at once on this rail: the provider may hold its doorbell (FI_MORE).
    pub more: bool,
}

/// A message to a peer, or room for one.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Offset of the first byte in the local region.
    pub offset: u64,
    /// Bytes to send, or room to receive into.
    pub bytes: u64,
    /// The caller's name for it, given back by its completion.
    pub token: u64,
}

/// Answer to a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// Taken by the provider; a completion will follow.
    Accepted,
    /// The provider is full (-FI_EAGAIN): poll, then post again.
    Again,
}

/// What a completion queue reports.
#[derive(Debug)]
pub enum Completion {
    /// The transfer named by the token is complete at the level the rail was opened with.
    Done {
        /// Token of the transfer.
        token: u64,
    },
    /// A message has arrived in the room named by the token.
    Received {
        /// Token of the receive.
        token: u64,
        /// Its length.
        bytes: u64,
    },
    /// A peer's write with immediate data has arrived in our memory.
    Immediate {
        /// The immediate.
        value: u32,
    },
    /// A transfer failed; the rail stays usable.
    Failed {
        /// Token of the transfer. `None` of a transfer that is none of ours: what a peer sent, which is its failure.
        token: Option<u64>,
        /// What happened, with the provider's own text. Boxed: completions that are well should stay small.
        error: Box<FabricError>,
    },
}

/// An error of a fabric operation: which call on which rail, the code, the provider's own words, and what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricError {
    /// The rail's name, or the provider's when no rail is open yet.
    pub rail: String,
    /// The C call or operation, with peer and size where it has them: `fi_write of 4096 B to peer 1`.
    pub operation: String,
    /// The provider's positive error number.
    pub code: i32,
    /// The provider's own text.
    pub text: String,
    /// A likely cause and what to try, empty when there is none.
    pub hint: String,
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_no_library() {
            f.write_str(&self.text)?;
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
    /// The code of an error that means that libfabric could not be loaded (ELIBACC).
    pub(crate) const NO_LIBRARY: i32 = nix::libc::ELIBACC;

    /// Whether the reason is that there is no libfabric on this machine, or none that will do.
    #[must_use]
    pub fn is_no_library(&self) -> bool {
        self.code == Self::NO_LIBRARY
    }
}

impl std::error::Error for FabricError {}

/// A mistake of the caller, found before any call: nothing can be tried but to correct it.
#[cold]
pub(crate) fn mistake(rail: &str, operation: impl Into<String>, text: impl Into<String>) -> FabricError {
    let (operation, text, hint) = (operation.into(), text.into(), String::new());
    FabricError { rail: rail.to_owned(), operation, code: nix::libc::EINVAL, text, hint }
}

/// One rail: registered memory, peers, writes, reads, completions. All methods are called by the one thread that owns it.
///
/// What a rail does not do it says itself ([`has_none`](Rail::has_none)): no default stands in for a call that was not passed on.
pub trait Rail: Sized {
    /// A registered local region. Dropped before the rail.
    type Region;

    /// Provider and domain, for people: `tcp;ofi_rxm:lo`.
    fn name(&self) -> &str;

    /// What this rail can do.
    fn limits(&self) -> &RailLimits;

    /// Our address on this rail, for the peers' [`Rail::add_peer`].
    fn address(&self) -> Result<Vec<u8>, FabricError>;

    /// Makes one more peer known and returns its index, from 0; the others keep theirs.
    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError>;

    /// Makes several peers known, in this order.
    fn insert_peers(&mut self, addresses: &[Vec<u8>]) -> Result<(), FabricError> {
        addresses.iter().try_for_each(|address| self.add_peer(address).map(drop))
    }

    /// Forgets a peer, to which nothing is outstanding. Its index is not used again.
    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError>;

    /// Registers memory for these uses, and no others where the rail can tell them apart.
    ///
    /// # Safety
    /// The memory must stay valid and in place until the region is dropped.
    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Self::Region, FabricError>;

    /// What a peer needs to reach this region through this rail.
    fn remote(&self, region: &Self::Region) -> RemoteRegion;

    /// Posts a write from the local region to the peer.
    ///
    /// # Safety
    /// The source bytes must lie in the region and must not be written until the completion of the token.
    unsafe fn write(&mut self, region: &Self::Region, transfer: &Transfer) -> Result<Post, FabricError>;

    /// Posts a read from the peer into the local region (`immediate` is ignored).
    ///
    /// # Safety
    /// The destination bytes must lie in the region and must not be touched until the completion of the token.
    unsafe fn read(&mut self, region: &Self::Region, transfer: &Transfer) -> Result<Post, FabricError>;

    /// Moves the provider forward and appends what has completed. Never waits. An error comes alone: what completed before it
    /// has been handed out.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError>;

    /// The error of what this rail does not do.
    #[cold]
    fn has_none(&self, what: &str) -> FabricError {
        FabricError { code: nix::libc::ENOSYS, ..mistake(self.name(), what, "this rail has none") }
    }
}

/// A rail that has messages too.
pub trait Messages: Rail {
    /// Posts a message to a peer; it completes as [`Completion::Done`].
    ///
    /// # Safety
    /// The bytes must lie in the region and must not be written until the completion of the token.
    unsafe fn send(&mut self, region: &Self::Region, peer: usize, message: &Message) -> Result<Post, FabricError>;

    /// Posts room for the next message of any peer; it completes as [`Completion::Received`].
    ///
    /// # Safety
    /// The bytes must lie in the region and must not be touched until the completion of the token.
    unsafe fn receive(&mut self, region: &Self::Region, message: &Message) -> Result<Post, FabricError>;

    /// Takes a posted receive back, if that can still be done: it then completes as [`Completion::Failed`].
    fn cancel(&mut self, token: u64) -> Result<(), FabricError>;
}
