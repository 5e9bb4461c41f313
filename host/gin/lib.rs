//! `gin` on the host: opens the ranks' symmetric heaps and the paths between them, and launches kernels that use them.
//!
//! ```no_run
//! use ginlab_bootstrap::Bootstrap;
//! use ginlab_gin::{Options, World};
//!
//! let mut ranks = Bootstrap::auto(Some(2), ginlab_bootstrap::Options::default())?;
//! let mut world = World::open(&mut ranks, &Options::default())?;
//! let numbers = world.alloc::<u64>(&mut ranks, 1024)?;
//! world.write(numbers, &[7; 1024])?;
//! // world.launch(&mut ranks, &KERNEL, grid, block, args)?;
//! world.close(&mut ranks)?;
//! ranks.finish()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The kernels' half, with what each call promises, is [`kernels::gin`].

mod cards;
mod error;
mod heap;
mod launch;
mod life;
mod mapped;
mod objects;
mod open;
mod rule;
mod series;

pub use cards::Unread;
pub use error::GinError;
pub use ginlab_fabric::Fabric;
pub use kernels::gin::{Inbox, Plain, Program, Signal, Sym};
pub use launch::Running;
pub use rule::Rule;
pub use series::HostPut;

use cards::Cards;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, Choice, Device, OpenedMemory};
use ginlab_fabric::libfabric::Level;
use ginlab_proxy::{Fault, ProxyError, ProxyGroup, Snapshot};
use ginlab_rails::strategy::Strategy;
use ginlab_sharing::{SAME_GPU, Sharing};
use ginlab_topology::cores::Pin;
use heap::Space;
use kernels::gin::TEAMS;
use std::collections::BTreeSet;
use std::time::Duration;

/// By which way other PEs are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::Display, strum::EnumString)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = unknown_path)]
pub enum Path {
    /// Where a PE is on this host (this network namespace) and its heap can be mapped, by loads and stores; by rails otherwise.
    #[default]
    Auto,
    /// By mapping alone, across the network namespaces of a machine too; an error where that cannot be.
    NvLink,
    /// By rails alone, but for oneself.
    Rails,
    /// By the card's own queues, in the kernel's hands, but for oneself: no proxy. Rails are `efa-verbs`.
    Direct,
}

fn unknown_path(text: &str) -> String {
    format!("path {text:?} is none of auto, nvlink, rails, direct")
}

/// How a world is opened. The same on every rank.
#[derive(Clone, Debug)]
pub struct Options {
    /// The device of each rank.
    pub device: Choice,
    /// Bytes of a heap that programs may allocate.
    pub heap_bytes: u64,
    /// See [`Path`].
    pub path: Path,
    /// So many ranks with neighbouring numbers count as a machine of their own: between them there are rails alone, as between machines.
    /// For studies of several nodes on one machine.
    pub node_size: Option<usize>,
    /// What the rails are, where some are needed.
    pub fabric: Fabric,
    /// When a transfer of them counts as complete. Rules `own` and `drain` are right at [`Level::Delivery`] alone.
    pub level: Level,
    /// Cores of the proxy threads.
    pub pin: Pin,
    /// Rails of each proxy thread.
    pub rails: usize,
    /// How puts are laid over them.
    pub strategy: Strategy,
    /// How a put and its signal are kept in order on rails.
    pub rule: Rule,
    /// Proxy threads, each with a ring of its own; by path direct, which has none, queue pairs.
    pub proxies: usize,
    /// Slots of a ring, a power of two.
    pub ring_slots: usize,
    /// Longest wait: of a call on the device, of a proxy without progress, of the ranks for each other.
    pub timeout: Duration,
    /// A fault for the proxies of this rank, for tests.
    pub fault: Option<Fault>,
    /// Signals do not wait for what their rule says, for tests.
    pub early_signals: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            device: Choice::Auto,
            heap_bytes: 64 << 20,
            path: Path::Auto,
            node_size: None,
            fabric: Fabric::default(),
            level: Level::Delivery,
            pin: Pin::Auto,
            rails: 1,
            strategy: Strategy::Auto { threshold: ginlab_rails::strategy::DEFAULT_AUTO_THRESHOLD },
            rule: Rule::default(),
            proxies: 1,
            ring_slots: ginlab_proxy::ring::DEFAULT_SLOTS,
            timeout: Duration::from_secs(30),
            fault: None,
            early_signals: false,
        }
    }
}

impl Options {
    /// The node of a rank, where one machine stands for several.
    fn node_of(&self, rank: usize) -> usize {
        self.node_size.map_or(0, |size| rank / size.max(1))
    }
}

/// A rank's part of the job: device, heap, paths to all PEs. Calls that take the ranks are collective: every rank makes them, in the
/// same order.
///
/// [`close`](World::close) ends it in order. A world that is dropped without, as after an error, waits for nobody: its proxies stop, so
/// that puts of others to this PE fail there, and GPU memory that other PEs have mapped stays allocated until the process ends.
///
/// Fields are dropped in this order: the proxies let go of the memory before it is freed.
#[derive(Debug)]
pub struct World {
    group: Option<ProxyGroup>,
    cards: Option<Cards>,
    opened: Vec<Option<OpenedMemory>>,
    heap: Buffer,
    /// Where it is.
    place: &'static str,
    space: Space,
    signals: u32,
    far: Buffer,
    /// What the description points to.
    _tables: [Buffer; 4],
    report: Buffer,
    abort: Buffer,
    device: Device,
    sharing: Sharing,
    description: kernels::gin::World,
    fabric: String,
    line_rate: Option<u64>,
    notes: Vec<String>,
    /// Other busy threads share this machine's cores with ours: whoever spins gives way.
    shares_core: bool,
}

impl World {
    /// Opens the job: this rank's device and heap, the other ranks' heaps where they can be mapped, rails where not.
    ///
    /// # Errors
    /// What could not be opened and why; what ranks do not agree on.
    pub fn open(ranks: &mut Bootstrap, options: &Options) -> Result<World, GinError> {
        open::open(ranks, options)
    }

    /// This PE's number.
    pub fn my_pe(&self) -> u32 {
        self.description.me
    }

    /// The number of PEs.
    pub fn n_pes(&self) -> u32 {
        self.description.pes
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The rails' fabric as rows name it: `tcp`, `model:p5`. Where no PE is reached by rails, how they are reached: `nvlink`, `same-gpu`, or
    /// both joined by `+`; `memory` on the emulated device.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// How PE `pe` is reached: `self`, `nvlink`, `same-gpu` where it is on this PE's GPU and no link is crossed (both `memory` on the emulated
    /// device), or the fabric of the rails.
    pub fn path_to(&self, pe: u32) -> &str {
        match self.opened.get(pe as usize) {
            _ if pe == self.my_pe() => "self",
            Some(Some(_)) => mapping_name(&self.device, &self.sharing, pe as usize),
            _ => &self.fabric,
        }
    }

    /// Which PEs share a GPU, and how they run there.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Where the heap is: `device`, or `pinned` host memory where rails cannot reach the device's.
    pub fn memory(&self) -> &'static str {
        self.place
    }

    /// What a header should say.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The proxies' rails, for headers.
    pub fn rail_names(&self) -> Vec<String> {
        let of_group = self.group.as_ref().map(|group| group.offer().rails.clone());
        of_group.or_else(|| self.cards.as_ref().map(|cards| vec![cards.name()])).unwrap_or_default()
    }

    /// Cores of the proxy threads, for headers; nothing without rails.
    pub fn affinity(&self) -> Option<String> {
        self.group.as_ref().map(ProxyGroup::affinity).or_else(|| self.cards.as_ref().map(Cards::affinity))
    }

    /// Line rate of this rank's cards in bits per second, whichever proxies share them; `None` without rails, or where it is not known.
    pub fn line_rate(&self) -> Option<u64> {
        self.line_rate
    }

    /// The proxies' counters.
    ///
    /// # Errors
    /// When one has failed.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, ProxyError> {
        self.group.as_ref().map_or(Ok(Vec::new()), ProxyGroup::snapshots)
    }

    /// Bytes of the heap that nothing is allocated in.
    pub fn free_bytes(&self) -> u64 {
        self.space.free_bytes()
    }

    /// Waits until all ranks are here. Their kernels have ended by then; puts that no kernel has waited for may still be under way.
    ///
    /// # Errors
    /// Who is missing; that of a proxy that has failed, also where no kernel has waited for it since.
    pub fn barrier(&mut self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        // Proxies answer in order: behind what their kernels had them do.
        self.snapshots()?;
        Ok(ranks.barrier("a barrier of the world")?)
    }

    /// Closes the job in order: no PE unmaps or frees what another one may still use.
    ///
    /// # Errors
    /// Who is missing.
    pub fn close(mut self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        self.barrier(ranks)?;
        (self.group, self.cards) = (None, None);
        self.opened.clear();
        // A heap is freed once nobody has it mapped; without this barrier it is not.
        self.barrier(ranks)?;
        self.heap.lend(false);
        Ok(())
    }
}

/// What a mapped heap of another PE is reached by.
fn mapping_name(device: &Device, sharing: &Sharing, pe: usize) -> &'static str {
    match device {
        Device::Emulated => "memory",
        Device::Gpu(_) if sharing.here().contains(&pe) => SAME_GPU,
        Device::Gpu(_) => "nvlink",
    }
}

/// All that the mapped PEs are reached by, each once.
fn mapping_names(device: &Device, sharing: &Sharing, mapped: impl Iterator<Item = usize>) -> String {
    let mut names: BTreeSet<&str> = mapped.map(|pe| mapping_name(device, sharing, pe)).collect();
    if names.is_empty() {
        names.insert(if matches!(device, Device::Emulated) { "memory" } else { "self" });
    }
    names.into_iter().rev().collect::<Vec<_>>().join("+")
}

/// Barriers' counters: one word for each team.
const BARRIER_BYTES: usize = TEAMS * 8;
