//! Rails over libfabric: `efa`, `tcp`, `net`, `shm`, `sockets`, `verbs` and any other provider with reliable datagrams
//! and RMA.
//!
//! A rail has its own domain, endpoint, completion queue and address vector. [`crate::discover`] selects the domain. A
//! provider's capabilities are taken from its reported attributes, never from its name.

mod bare;
mod closing;
mod complete;
mod contexts;
mod errors;
mod gpu;
mod info;
mod objects;
mod post;
mod rail;
mod region;
#[cfg(test)]
mod scripted;
mod shared_memory;
mod sockets;

pub use bare::BareLoop;
pub use closing::left_open;
#[cfg(any(test, feature = "testing"))]
pub(crate) use errors::error;
pub(crate) use errors::{FailedOperation, refused};
pub use gpu::GpuMemory;
pub(crate) use info::{Entry, ProviderRequirements, all_providers, everything, query};
pub use rail::LibfabricRail;
pub use region::LibfabricRegion;

use libfabric_sys as sys;

use crate::FabricError;

/// Code for "no entry to read" or "no space to post".
const AGAIN: isize = -(sys::FI_EAGAIN as isize);
/// Code that indicates that the next entry of the queue is an error.
const ERROR_WAITS: isize = -(sys::FI_EAVAIL as isize);

/// Maximum number of outstanding transfers on a rail, even if the provider's queue holds more.
const MAX_OUTSTANDING: usize = 8192;

/// Point at which a transfer counts as complete.
///
/// The first paragraph of each variant's documentation is its `--help` text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Arrived at the target, as quiet requires
    ///
    /// The data is in the target's memory (FI_DELIVERY_COMPLETE).
    #[default]
    Delivery,
    /// Handed to the transport
    ///
    /// The data has left this machine, and the transport will deliver it (FI_TRANSMIT_COMPLETE). Cheaper with some
    /// providers.
    Transmit,
}

impl Level {
    const fn flag(self) -> u64 {
        match self {
            Self::Delivery => sys::FI_DELIVERY_COMPLETE,
            Self::Transmit => sys::FI_TRANSMIT_COMPLETE,
        }
    }
}

/// Options for opening a rail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RailOptions {
    /// Point at which a transfer counts as complete.
    pub level: Level,
    /// Whether to request memory of CUDA devices (FI_HMEM) first. If the provider does not offer it, or offers it only
    /// with CUDA calls, the rail is opened without it. [`RailLimits::cuda_memory`](crate::RailLimits) and
    /// [`LibfabricRail::gpu_memory`] report this.
    pub cuda_memory: bool,
    /// Whether to also request messages (FI_MSG). See [`Messages`](crate::Messages).
    pub messages: bool,
    /// Maximum number of outstanding transfers. `None`: the size of the provider's queue.
    pub max_outstanding: Option<usize>,
    /// Number of immediates that peers may send while this side does not poll. The completion queue has space for these
    /// in addition to the completions of the rail's own transfers. `None`: [`IMMEDIATES`].
    ///
    /// The senders must respect the limit, because an overflow of the queue loses completions. The proxies' credits
    /// ensure this (`signal_order::unpolled` of ginlab_proxy). Completions at the sender do not bound the number,
    /// because a NIC also acknowledges immediates that its host has not polled.
    pub immediates: Option<usize>,
}

/// Default for [`RailOptions::immediates`], for applications that answer each other after a few immediates. They divide
/// it among their peers (`serve`), or refuse more ranks than it supports (`write`, `all2all`).
pub const IMMEDIATES: usize = 4096;

/// Returns the version of the loaded libfabric, such as `1.17`. `None` if there is none.
#[must_use]
pub fn library_version() -> Option<String> {
    Some(sys::Dotted(sys::library().ok()?.version()).to_string())
}

/// Returns version and file of the loaded libfabric, such as `1.17 (/lib/x86_64-linux-gnu/libfabric.so.1)`. Returns
/// `none` if there is none.
#[must_use]
pub fn library_text() -> String {
    let text =
        |library: &sys::LibfabricLibrary| format!("{} ({})", sys::Dotted(library.version()), library.path().display());
    sys::library().map_or_else(|_| "none".to_owned(), text)
}

/// Returns the common error of operations that need libfabric if libfabric cannot be loaded.
pub fn require_library() -> Result<(), FabricError> {
    library().map(drop)
}

fn library() -> Result<&'static sys::LibfabricLibrary, FabricError> {
    sys::library().map_err(errors::missing)
}
