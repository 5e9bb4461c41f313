//! Host side of `gin`: opens the symmetric heaps of the ranks and the paths between them, and launches kernels that use
//! them.
//!
//! ```no_run
//! use ginlab_bootstrap::Bootstrap;
//! use ginlab_gin::{World, WorldOptions};
//!
//! let mut ranks = Bootstrap::auto(Some(2), ginlab_bootstrap::BootstrapOptions::default())?;
//! let mut world = World::open(&mut ranks, &WorldOptions::default())?;
//! let numbers = world.alloc::<u64>(&mut ranks, 1024)?;
//! world.write(numbers, &[7; 1024])?;
//! // world.launch(&mut ranks, &KERNEL, grid, block, args)?;
//! world.close(&mut ranks)?;
//! ranks.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The device side is [`kernels::gin`], which documents the guarantees of each call.

mod cards;
pub mod collective;
pub mod direct;
mod error;
mod heap;
mod launch;
mod life;
mod mapped;
mod naming;
mod objects;
mod open;
mod rule;
pub mod seat;
mod series;
pub mod watch;

pub use cards::Unread;
pub use error::GinError;
pub use ginlab_fabric::Fabric;
pub use kernels::gin::{Inbox, Plain, Program, Signal, Sym};
pub use launch::RunningGrid;
pub use rule::PutSignalRule;
pub use series::HostPut;

use cards::Cards;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, Device, DeviceChoice, OpenedMemory};
use ginlab_fabric::libfabric::Level;
use ginlab_proxy::{ProxyError, ProxyFault, ProxyGroup, Snapshot};
use ginlab_rails::strategy::Strategy;
use ginlab_sharing::{SAME_GPU, Sharing};
use ginlab_topology::cores::Pin;
use heap::Space;
use kernels::gin::TEAMS;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

/// Path by which other PEs are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown_path)]
pub enum PePath {
    /// Loads and stores if the PE is on this host (this network namespace) and its heap can be mapped; rails otherwise.
    #[default]
    Auto,
    /// Mapped heaps only, also across the network namespaces of a machine. Opening the world fails if a heap cannot be
    /// mapped.
    NvLink,
    /// Rails only, except for this PE itself.
    Rails,
    /// Queues of the NIC that kernels drive without a proxy, except for this PE itself. The fabric is `efa-verbs`.
    Direct,
}

fn unknown_path(text: &str) -> String {
    format!("invalid path {text:?}: expected one of auto, nvlink, rails, direct")
}

/// Options of a world. They must be the same on every rank, except [`pin`](WorldOptions::pin) and
/// [`ring_slots`](WorldOptions::ring_slots). If another option differs, opening the world fails with the name of the
/// first such option.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// Device of each rank. All ranks must open a GPU, or all the emulated device.
    pub device: DeviceChoice,
    /// Size of the heap in bytes, available for allocations.
    pub heap_bytes: u64,
    /// Path to other PEs.
    pub path: PePath,
    /// Number of consecutive ranks that form a node. Nodes are connected only by rails, as if they were separate
    /// machines. `None` to use the actual machines. Used for studies of several nodes on one machine.
    pub node_size: Option<usize>,
    /// Fabric of the rails, if rails are needed.
    pub fabric: Fabric,
    /// Condition under which a transfer of a rail counts as complete. The rules `own` and `drain` are correct only with
    /// [`Level::Delivery`].
    pub level: Level,
    /// Cores for the proxy threads.
    pub pin: Pin,
    /// Number of rails of each proxy thread.
    pub rails: usize,
    /// Strategy for striping puts over the rails.
    pub strategy: Strategy,
    /// Rule that orders a put and its signal on rails.
    pub rule: PutSignalRule,
    /// Number of proxy threads, each with its own ring. With path `direct`, which has no proxies, the number of queue
    /// pairs.
    pub proxies: usize,
    /// Number of slots of a ring; a power of two.
    pub ring_slots: usize,
    /// Maximum time without progress: of a call on the device, of a proxy, and of the ranks when they wait for each
    /// other.
    pub timeout: Duration,
    /// Fault to inject into the proxies of every rank, for tests.
    pub fault: Option<ProxyFault>,
    /// Whether signals are sent or counted without waiting for the condition of their rule, for tests.
    pub early_signals: bool,
}

impl Default for WorldOptions {
    fn default() -> Self {
        WorldOptions {
            device: DeviceChoice::Auto,
            heap_bytes: 64 << 20,
            path: PePath::Auto,
            node_size: None,
            fabric: Fabric::default(),
            level: Level::Delivery,
            pin: Pin::Auto,
            rails: 1,
            strategy: Strategy::Auto { threshold: ginlab_rails::strategy::DEFAULT_AUTO_THRESHOLD },
            rule: PutSignalRule::default(),
            proxies: 1,
            ring_slots: ginlab_proxy::ring::DEFAULT_SLOTS,
            timeout: Duration::from_secs(30),
            fault: None,
            early_signals: false,
        }
    }
}

impl WorldOptions {
    /// Returns the node of a rank, if one machine is divided into several nodes.
    fn node_of(&self, rank: usize) -> usize {
        self.node_size.map_or(0, |size| rank / size.max(1))
    }
}

/// One rank's part of the job: its device, its heap, and its paths to all PEs. Calls that take the ranks are
/// collective: every rank must make them in the same order.
///
/// [`close`](World::close) shuts a world down in order. A world that is dropped without this call, for example after an
/// error, does not wait for other ranks. Its proxies stop, so that puts of other PEs to this PE fail. GPU memory that
/// other PEs have mapped stays allocated until the process exits.
///
/// Fields are dropped in this order: the proxies release the memory before it is freed.
#[derive(Debug)]
pub struct World {
    group: Option<ProxyGroup>,
    cards: Option<Cards>,
    opened: Vec<Option<OpenedMemory>>,
    heap: Buffer,
    /// Kind of memory of the heap; see [`memory`](World::memory).
    place: &'static str,
    space: Space,
    signals: u32,
    inboxes: Vec<Inbox>,
    far: Buffer,
    /// Tables to which the description points.
    _tables: [Buffer; 4],
    report: Buffer,
    abort: Buffer,
    /// The first final failure, and whether it was a timeout. Failed calls of this PE's own kernels are not final.
    failed: OnceLock<(String, bool)>,
    device: Device,
    sharing: Sharing,
    description: kernels::gin::WorldView,
    fabric: String,
    line_rate: Option<u64>,
    notes: Vec<String>,
    /// Whether other busy threads share this machine's cores with this process. Spinning threads must then yield.
    shares_core: bool,
    fault: Option<ProxyFault>,
}

impl World {
    /// Opens the job: this rank's device and heap, and the other ranks' heaps, which are mapped if possible and reached
    /// over rails otherwise.
    ///
    /// # Errors
    /// Returns an error if a resource cannot be opened, with the reason, or if the ranks disagree.
    pub fn open(ranks: &mut Bootstrap, options: &WorldOptions) -> Result<World, GinError> {
        open::open(ranks, options)
    }

    /// Returns the number of this PE.
    pub fn my_pe(&self) -> u32 {
        self.description.me
    }

    /// Returns the number of PEs.
    pub fn n_pes(&self) -> u32 {
        self.description.pes
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the fabric name shown in result rows, for example `tcp` or `model:p5`. Without rails, returns the path
    /// to the other PEs: `nvlink`, `same-gpu`, both joined by `+`, or `memory` on the emulated device.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// Returns the path to PE `pe`: `self`, `nvlink`, or the fabric of the rails. `same-gpu` indicates a PE on this
    /// PE's GPU, so that no link is crossed. On the emulated device, the path to mapped PEs is `memory`.
    pub fn path_to(&self, pe: u32) -> &str {
        match self.opened.get(pe as usize) {
            _ if pe == self.my_pe() => "self",
            Some(Some(_)) => mapping_name(&self.device, &self.sharing, pe as usize),
            _ => &self.fabric,
        }
    }

    /// Returns the PEs that share a GPU, and how their kernels run on it.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Returns the kind of memory of the heap: `device`, or `pinned` host memory if rails cannot reach device memory.
    pub fn memory(&self) -> &'static str {
        self.place
    }

    /// Returns notes for the header of results.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the names of the proxies' rails, for headers.
    pub fn rail_names(&self) -> Vec<String> {
        let of_group = self.group.as_ref().map(|group| group.offer().rails.clone());
        of_group.or_else(|| self.cards.as_ref().map(|cards| vec![cards.name()])).unwrap_or_default()
    }

    /// Returns the cores of the proxy threads, for headers. `None` without rails.
    pub fn affinity(&self) -> Option<String> {
        self.group.as_ref().map(ProxyGroup::affinity).or_else(|| self.cards.as_ref().map(Cards::affinity))
    }

    /// Returns the line rate of this rank's NICs in bits per second, regardless of the number of proxies that share
    /// them. `None` without rails, or if the rate is unknown.
    pub fn line_rate(&self) -> Option<u64> {
        self.line_rate
    }

    /// Starts to measure the time with transfers in flight on each rail of the proxies. Must not be called while
    /// kernels run.
    ///
    /// # Errors
    /// Returns the error of a proxy that has failed.
    pub fn time_rails(&self) -> Result<(), ProxyError> {
        self.group.as_ref().map_or(Ok(()), ProxyGroup::time_rails).map_err(|error| self.named(error))
    }

    /// Returns the proxies' counters.
    ///
    /// # Errors
    /// Returns the error of a proxy that has failed.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, ProxyError> {
        self.group.as_ref().map_or(Ok(Vec::new()), ProxyGroup::snapshots).map_err(|error| self.named(error))
    }

    /// Returns the number of unallocated bytes of the heap.
    pub fn free_bytes(&self) -> u64 {
        self.space.free_bytes()
    }

    /// Waits until all ranks have called this function. Their kernels have then ended, but puts for which no kernel has
    /// waited may still be in flight.
    ///
    /// # Errors
    /// Returns an error that names the missing ranks, or the error of a failed proxy, even if no kernel has
    /// waited for it since.
    pub fn barrier(&mut self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        // Proxies answer requests in order, so the snapshot follows all commands that their kernels have submitted.
        self.snapshots()?;
        Ok(ranks.barrier("a barrier of the world")?)
    }

    /// Closes the job in an order that ensures that no PE unmaps or frees memory that another PE may still use.
    ///
    /// # Errors
    /// Returns an error that names the missing ranks.
    pub fn close(mut self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        self.last_barrier(ranks)?;
        (self.group, self.cards) = (None, None);
        self.opened.clear();
        // The heap is freed once no other PE has it mapped. If this barrier fails, it is never freed.
        self.barrier(ranks)?;
        self.heap.lend(false);
        Ok(())
    }
}

impl World {
    /// Like [`barrier`](World::barrier). Also prints a note to stderr, once per job, if [`ProxyFault::Corrupt`]
    /// selected a command without bytes.
    fn last_barrier(&self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        let mine = self.snapshots()?.iter().any(|snapshot| snapshot.fault_without_bytes);
        let all = ranks.all_gather_values(&mine, "a barrier of the world")?;
        if let Some(ProxyFault::Corrupt(number)) = self.fault
            && self.my_pe() == 0
            && all.contains(&true)
        {
            let pes: Vec<String> = (0..all.len()).filter(|pe| all[*pe]).map(|pe| pe.to_string()).collect();
            eprintln!(
                "ginlab: note: fault corrupt={number}: command {number} of PE {} has no bytes (only a signal): nothing \
                 was changed",
                pes.join(", ")
            );
        }
        Ok(())
    }
}

/// Returns the name of the path to a mapped heap of another PE.
fn mapping_name(device: &Device, sharing: &Sharing, pe: usize) -> &'static str {
    match device {
        Device::Emulated => "memory",
        Device::Gpu(_) if sharing.here().contains(&pe) => SAME_GPU,
        Device::Gpu(_) => "nvlink",
    }
}

/// Returns the distinct names of the paths to all mapped PEs, joined by `+`.
fn mapping_names(device: &Device, sharing: &Sharing, mapped: impl Iterator<Item = usize>) -> String {
    let mut names: BTreeSet<&str> = mapped.map(|pe| mapping_name(device, sharing, pe)).collect();
    if names.is_empty() {
        names.insert(if matches!(device, Device::Emulated) { "memory" } else { "self" });
    }
    names.into_iter().rev().collect::<Vec<_>>().join("+")
}

/// Size of the barriers' counters: one word per team.
const BARRIER_BYTES: usize = TEAMS * 8;
