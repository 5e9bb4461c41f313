//! Rails over libfabric: `efa`, `tcp`, `net`, `shm`, `sockets`, `verbs` and whatever else offers reliable datagrams with RMA.
//!
//! A rail has a domain, an endpoint, a completion queue and an address vector of its own; which domain is chosen by
//! [`crate::discover`]. What the provider can do is read from what it answered, never from its name.

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

pub use bare::BareLoop;
pub use closing::left_open;
#[cfg(any(test, feature = "testing"))]
pub(crate) use errors::error;
pub(crate) use errors::{Doing, refused};
pub use gpu::GpuMemory;
pub(crate) use info::{Entry, Wanted, all_providers, everything, query};
pub use rail::LibfabricRail;
pub use region::LibfabricRegion;

use libfabric_sys as sys;

use crate::FabricError;

/// Nothing to read, or no room to post.
const AGAIN: isize = -(sys::FI_EAGAIN as isize);
/// The next entry of the queue is an error.
const ERROR_WAITS: isize = -(sys::FI_EAVAIL as isize);

/// More transfers than this are never outstanding on a rail, whatever the provider's queue takes.
const MAX_OUTSTANDING: usize = 8192;

/// When a transfer counts as complete.
///
/// Of each value the first paragraph is what `--help` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// At the target, as quiet promises.
    ///
    /// The data is in the target's memory (FI_DELIVERY_COMPLETE).
    #[default]
    Delivery,
    /// Handed to the transport.
    ///
    /// The data has left and the transport will deliver it (FI_TRANSMIT_COMPLETE); cheaper with some providers.
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

/// How a rail is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RailOptions {
    /// When a transfer counts as complete.
    pub level: Level,
    /// Ask for memory of CUDA devices first (FI_HMEM). Where the provider does not offer it, or not without CUDA calls of its own, the
    /// rail opens without, and says so in [`RailLimits::cuda_memory`](crate::RailLimits) and [`LibfabricRail::gpu_memory`].
    pub cuda_memory: bool,
    /// Ask for messages too (FI_MSG): see [`Messages`](crate::Messages).
    pub messages: bool,
    /// Outstanding transfers at most; `None`: what the provider's queue takes.
    pub max_outstanding: Option<usize>,
    /// Immediates that peers may send while this side does not poll: the completion queue has room for so many beside the completions of
    /// the rail's own transfers. `None`: [`IMMEDIATES`]. The senders must keep to it, which the proxies' credits do
    /// (`order::unpolled` of ginlab_proxy): an overflow of the queue is lost. Completion at the sender is no bound: a card
    /// acknowledges what its own host has not polled.
    pub immediates: Option<usize>,
}

/// Immediates that a rail has room for unless its [`RailOptions`] say otherwise: for programs that answer each other every few of them. They share
/// it out among their peers (`serve`), or refuse more ranks than it is enough for (`write`, `all2all`).
pub const IMMEDIATES: usize = 4096;

/// The version of the loaded libfabric, as `1.17`; `None` where there is none.
#[must_use]
pub fn library_version() -> Option<String> {
    Some(sys::Dotted(sys::library().ok()?.version()).to_string())
}

/// Version and file of the loaded libfabric, as `1.17 (/lib/x86_64-linux-gnu/libfabric.so.1)`; `none` where there is none.
#[must_use]
pub fn library_text() -> String {
    let text = |library: &sys::Library| format!("{} ({})", sys::Dotted(library.version()), library.path().display());
    sys::library().map_or_else(|_| "none".to_owned(), text)
}

/// The error of all that needs libfabric, where it cannot be loaded.
pub fn require_library() -> Result<(), FabricError> {
    library().map(drop)
}

fn library() -> Result<&'static sys::Library, FabricError> {
    sys::library().map_err(errors::missing)
}
