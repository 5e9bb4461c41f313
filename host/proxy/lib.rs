//! The proxy: a busy-polling thread that drains a ring into the rails.
//!
//! ```text
//! ring --pop batch--> decode, check --> engine --post--> rails        Request::Write: the CPU-initiated baseline,
//!   ^                                     |                           through the same engine and rails
//!   +-- tail (slots free again)           +--poll--> completions --> watermark --> kernels' quiet
//! ```
//!
//! Each proxy thread owns its rails (endpoints, completion queues, registrations), so nothing in the loop is locked. On
//! the receiving rank the same loop runs without commands: a provider with manual progress needs the target to poll too.

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
pub use group::{Bytes, GroupOptions, GroupRegion, ProxyGroup};
pub use serve::{Fault, Setup};
pub use thread::{Proxy, connect};

use crossbeam_utils::CachePadded;
use engine::DRAIN;
use ginlab_fabric::RemoteRegion;
use ginlab_rails::Counters;
use serve::{Halt, Orders};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// How much longer than its proxy a kernel waits: the proxy's clocks are looked at now and then, on a core that may be shared.
const DEVICE_MARGIN: Duration = Duration::from_secs(2);

/// What the thread shows while it runs.
#[derive(Debug, Default)]
struct ThreadState {
    failure: Mutex<Option<ProxyError>>,
    /// Turns of a CPU-initiated write: while this moves, the thread is not stuck in the provider. The thread adds to it with
    /// every turn, and others look at it now and then.
    turns: CachePadded<AtomicU64>,
    /// Ends a CPU-initiated write, which looks at no orders.
    stop: AtomicBool,
    /// An order that does not wait for the next look at orders: somebody's time is measured.
    urgent: AtomicBool,
    /// Peers write here while somebody measures it. Over tcp it is our polls that answer them, and no poll says so: the thread gives way and
    /// does not sleep.
    awake: AtomicBool,
    /// The thread answers flags, and nothing else, until this is false.
    answering: AtomicBool,
}

/// What is done by a proxy thread, as it comes to it; the answer goes through a channel of the order's own.
type Order = Box<dyn FnOnce(&mut dyn Orders) -> Result<(), Halt> + Send>;

/// What a proxy thread offers to the peers once its rails are open.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Our address on each rail.
    pub addresses: Vec<Vec<u8>>,
    /// Our regions, by region and rail.
    pub regions: Vec<Vec<RemoteRegion>>,
    /// Names of the rails.
    pub rails: Vec<String>,
    /// CPU that the thread is pinned to.
    pub cpu: Option<usize>,
}

/// The timeout to give the rings of a proxy with this one. A stall ends both; the proxy's answer, which says what stood where,
/// comes once it has let drain what is posted, and must find the kernels still waiting.
pub fn device_timeout(proxy: Duration) -> Duration {
    proxy + DRAIN.min(proxy) + DEVICE_MARGIN
}

/// Counters of a proxy thread.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Commands taken.
    pub commands: u64,
    /// What has been posted.
    pub counters: Counters,
    /// How often each signal has arrived here.
    pub signals: Vec<u64>,
}

/// CPU-initiated writes: what the kernel's grid would put, posted by the proxy thread itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writes {
    /// The first producer of the grid that this thread stands in for.
    pub first_producer: u64,
    /// From one producer of this thread to the next.
    pub producer_step: u64,
    /// Producers of the whole grid.
    pub producers: u64,
    /// Slots of each.
    pub window: u64,
    /// Writes of each.
    pub iterations: u64,
    /// After so many writes wait until all are complete, before the next is posted; 0: at the end alone.
    pub quiet_every: u64,
    /// Bytes of one write.
    pub bytes: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Source region, destination region, peer.
    pub route: (u32, u32, u32),
}
