//! State of one rank in an NCCL collective communicator, as seen by NCCL's threads: submitted operations and their
//! results.

use crate::counts::CommunicatorStats;
use crate::operation::SubmittedOperation;
use crate::process::{locked, say};
use crate::queues::{Arena, QueueBlock};
use crate::settings::Settings;
use crate::wire::ZoneLayout;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Registered memory. Its number is the same on every rank, since all ranks register in the same order.
#[derive(Clone, Copy, Debug)]
pub struct PluginRegion {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Whether the memory belongs to a GPU and is accessed by copies. Otherwise it is host memory.
    pub cuda: bool,
    /// Whether only the plugin writes its words, so that the plugin can cache the values of signals.
    pub never_reset: bool,
}

/// State of a region number.
#[derive(Clone, Copy, Debug)]
enum Entry {
    /// Reserved. Peers may use the number before this rank has registered the region.
    Coming,
    Here(PluginRegion),
    Gone,
}

/// Handle of a registration, given to NCCL.
#[derive(Debug)]
pub struct RegionHandle {
    /// Number of the region.
    pub number: u32,
}

/// A communicator on one rank; the module documentation describes it.
#[derive(Debug)]
pub struct Coll {
    /// Number of this rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// ID of this communicator, the same on all its ranks.
    pub number: u64,
    /// Settings of the plugin.
    pub settings: Arc<Settings>,
    /// Layout of the slots into which operations are split.
    pub layout: ZoneLayout,
    asked: Mutex<VecDeque<SubmittedOperation>>,
    /// Whether operations have been submitted. The thread that drives the rails checks this flag instead of taking a
    /// lock.
    news: AtomicBool,
    regions: RwLock<Vec<Entry>>,
    failure: OnceLock<String>,
    /// Queues that kernels write, in the order of their creation.
    queues: RwLock<Vec<Arc<QueueBlock>>>,
    /// Number of changes of `queues`.
    queues_changed: AtomicU32,
    /// Memory of these queues.
    pub arena: Mutex<Arena>,
    /// Statistics of sent and received operations.
    pub counts: Mutex<CommunicatorStats>,
}

impl Coll {
    /// Creates a communicator without operations.
    pub fn new(rank: usize, layout: ZoneLayout, number: u64, settings: Arc<Settings>, arena: Arena) -> Coll {
        let ranks = layout.ranks;
        let counts = Mutex::new(CommunicatorStats::new(ranks, settings.trace));
        Coll {
            rank,
            ranks,
            layout,
            number,
            settings,
            asked: Mutex::default(),
            news: AtomicBool::new(false),
            regions: RwLock::default(),
            failure: OnceLock::new(),
            queues: RwLock::default(),
            queues_changed: AtomicU32::new(0),
            arena: Mutex::new(arena),
            counts,
        }
    }

    /// Submits an operation to the thread that drives the rails.
    ///
    /// # Errors
    /// Returns the reason if the communicator has failed.
    pub fn ask(&self, operation: SubmittedOperation) -> Result<(), String> {
        if let Some(why) = self.failure() {
            return Err(why.to_owned());
        }
        locked(&self.asked).push_back(operation);
        // Uses release order, which pairs with the swap in `take`. The thread that sees the flag then finds the
        // operation under the lock.
        self.news.store(true, Ordering::Release);
        Ok(())
    }

    /// Appends the operations submitted since the last call to `into`.
    pub fn take(&self, into: &mut Vec<SubmittedOperation>) {
        if self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Acquire) {
            into.extend(locked(&self.asked).drain(..));
        }
    }

    /// Reserves the next region number. Every call of NCCL that creates a region reserves exactly one number on each
    /// rank, even if the call fails. Otherwise later numbers would differ between ranks.
    pub fn reserve(&self) -> u32 {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.push(Entry::Coming);
        regions.len() as u32 - 1
    }

    /// Registers memory under a reserved number.
    pub fn register(&self, number: u32, region: PluginRegion) {
        self.enter(number, Entry::Here(region));
    }

    /// Removes a registration, or releases a reserved number. The number is not reused.
    pub fn deregister(&self, number: u32) {
        self.enter(number, Entry::Gone);
    }

    fn enter(&self, number: u32, entry: Entry) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = regions.get_mut(number as usize) {
            *place = entry;
        }
    }

    fn entry(&self, number: u32) -> Entry {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.get(number as usize).copied().unwrap_or(Entry::Coming)
    }

    /// Returns a region; `None` before it is registered and after it is deregistered.
    pub fn region(&self, number: u32) -> Option<PluginRegion> {
        match self.entry(number) {
            Entry::Here(region) => Some(region),
            Entry::Coming | Entry::Gone => None,
        }
    }

    /// Returns whether the number was used and has been deregistered.
    pub fn has_had(&self, number: u32) -> bool {
        matches!(self.entry(number), Entry::Gone)
    }

    /// Adds a block of queues.
    pub fn add_queues(&self, block: Arc<QueueBlock>) {
        self.queues.write().unwrap_or_else(PoisonError::into_inner).push(block);
        // Uses release order, which pairs with the load in `queues_since`, whose thread then finds the block.
        self.queues_changed.fetch_add(1, Ordering::Release);
    }

    /// Removes a block of queues. Kernels must no longer write them.
    pub fn remove_queues(&self, block: &Arc<QueueBlock>) {
        self.queues.write().unwrap_or_else(PoisonError::into_inner).retain(|one| !Arc::ptr_eq(one, block));
        self.queues_changed.fetch_add(1, Ordering::Release);
    }

    /// Returns all blocks if they have changed since the call that set `seen`.
    pub fn queues_since(&self, seen: &mut u32) -> Option<Vec<Arc<QueueBlock>>> {
        let now = self.queues_changed.load(Ordering::Acquire);
        if now == *seen {
            return None;
        }
        *seen = now;
        Some(self.queues.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Returns the reason why the communicator has failed, if it has.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Marks the communicator as failed. Prints the first reason, once.
    pub fn fail(&self, why: &str) {
        let mut first = false;
        self.failure.get_or_init(|| {
            first = true;
            why.to_owned()
        });
        if first {
            say(&format!("rank {} of {}: {why}", self.rank, self.ranks));
        }
    }
}
