//! The proxy: a busy-polling thread that drains a ring into the rails.
//!
//! ```text
//! ring --pop batch--> decode, check --> engine --post--> rails        Request::Write: the CPU-initiated baseline,
//!   ^                                     |                           through the same engine and rails
//!   +-- tail (slots free again)           +--poll--> completions --> watermark --> kernels' quiet
//! ```
//!
//! Each proxy thread owns its rails (endpoints, completion queues, registrations), so the loop needs no locks. On the
//! receiving rank the same loop runs without commands, because a provider with manual progress also requires the target
//! to poll.

mod choose;
pub mod clocks;
pub mod engine;
mod error;
mod group;
pub mod ping_pong;
pub mod ring;
mod serve;
pub mod signal_order;
pub mod stage;
mod thread;
pub mod trace;
pub mod tracker;

pub use choose::{ChooseError, Cores, choose_cores, choose_rails};
pub use error::ProxyError;
pub use group::{GroupOptions, GroupRegion, ProxyGroup, RegionMemory};
pub use serve::{ProxyFault, ProxyThreadOptions};
pub use thread::{Proxy, connect};

use crossbeam_utils::CachePadded;
use engine::{DRAIN, SetUp};
use ginlab_fabric::RemoteRegion;
use ginlab_rails::Counters;
use serve::{Halt, Orders};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Additional time that a kernel waits compared with its proxy. The proxy checks its clock only at intervals, on a core
/// that may be shared.
const DEVICE_MARGIN: Duration = Duration::from_secs(2);

/// State that a proxy thread shares with its [`Proxy`] handle while it runs.
#[derive(Debug, Default)]
struct ThreadState {
    failure: Mutex<Option<ProxyError>>,
    /// Number of iterations of CPU-initiated writes. While it increases, the thread is not stuck in the provider. The
    /// thread increments it in each iteration; the handle reads it at intervals.
    turns: CachePadded<AtomicU64>,
    /// Stops CPU-initiated writes, which do not check for orders.
    stop: AtomicBool,
    /// Whether an order must be handled now instead of at the next periodic check, because its time is measured.
    urgent: AtomicBool,
    /// Whether a measurement of peers' writes to this rank is in progress. Over tcp these writes progress only when
    /// this thread polls, and no poll reports them. The thread therefore yields and does not sleep.
    awake: AtomicBool,
    /// Whether the thread must answer flags. It performs no other work until this is false.
    answering: AtomicBool,
}

/// A request to a proxy thread, which runs on that thread and returns its result through its own channel.
type Order = Box<dyn FnOnce(&mut dyn Orders) -> Result<(), Halt> + Send>;

/// Addresses and regions that a proxy thread offers to peers once its rails are open.
#[derive(Clone, Debug, Default)]
pub struct ProxyOffer {
    /// Address of this rank on each rail.
    pub addresses: Vec<Vec<u8>>,
    /// Remote descriptors of this rank's regions, indexed by region and rail.
    pub regions: Vec<Vec<RemoteRegion>>,
    /// Names of the rails.
    pub rails: Vec<String>,
    /// CPU to which the thread is pinned; `None` if it is not pinned.
    pub cpu: Option<usize>,
}

/// Returns the timeout for the rings of a proxy with the timeout `proxy`. A stall ends both. The proxy reports the
/// outstanding work only after it has drained the posted transfers, and the kernels must still be waiting at that time.
pub fn device_timeout(proxy: Duration) -> Duration {
    proxy + DRAIN.min(proxy) + DEVICE_MARGIN
}

/// Counters of a proxy thread.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Number of commands submitted.
    pub commands: u64,
    /// Totals posted.
    pub counters: Counters,
    /// Value of each signal of this rank: the sum of all arrivals.
    pub signals: Vec<u64>,
    /// Whether the command that [`ProxyFault::Corrupt`] selects has no bytes and was therefore not changed.
    pub fault_without_bytes: bool,
    /// Times of the thread's set-up.
    pub set_up: SetUp,
}

/// CPU-initiated writes: the puts of the kernel's grid, posted by the proxy thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writes {
    /// Index of the first producer of the grid whose puts this thread posts.
    pub first_producer: u64,
    /// Distance between the indices of two producers of this thread.
    pub producer_step: u64,
    /// Number of producers of the whole grid.
    pub producers: u64,
    /// Number of slots per producer.
    pub window: u64,
    /// Number of writes per producer.
    pub iterations: u64,
    /// Number of writes after which the thread waits until all are complete before it posts the next one. With 0, it
    /// waits only at the end.
    pub quiet_every: u64,
    /// Bytes per write.
    pub bytes: u64,
    /// Distance between two slots, in bytes.
    pub stride: u64,
    /// Source region, destination region and peer.
    pub route: (u32, u32, u32),
}
