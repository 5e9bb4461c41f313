//! One rank's part of one of NCCL's collective communicators, as NCCL's threads see it: what they have asked for, and what has become of it.

use crate::counts::Counts;
use crate::operation::Operation;
use crate::process::{locked, say};
use crate::queues::{Arena, Block};
use crate::settings::Settings;
use crate::wire::Layout;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Registered memory. Its number is the same on every rank, since all register in the same order.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First byte.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// Memory of a GPU, which is reached by copies; the host's otherwise.
    pub cuda: bool,
    /// Nobody else writes its words: signals that the plugin counts by itself.
    pub never_reset: bool,
}

/// What NCCL holds for a registration.
#[derive(Debug)]
pub struct RegionHandle {
    /// Its number.
    pub number: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Coll {
    /// This rank.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// A number of this communicator that all its ranks know it by.
    pub number: u64,
    /// What the plugin was told.
    pub settings: Arc<Settings>,
    /// How operations are cut.
    pub layout: Layout,
    asked: Mutex<VecDeque<Operation>>,
    /// Set with each operation, so that who drives the rails looks at a flag and not at a lock.
    news: AtomicBool,
    regions: RwLock<Vec<Option<Region>>>,
    failure: OnceLock<String>,
    /// Queues that kernels write, by the order of their making.
    queues: RwLock<Vec<Arc<Block>>>,
    /// How often those have changed.
    queues_changed: AtomicU32,
    /// Memory of those queues.
    pub arena: Mutex<Arena>,
    /// What goes and comes.
    pub counts: Mutex<Counts>,
}

impl Coll {
    /// With nothing asked for.
    pub fn new(rank: usize, layout: Layout, number: u64, settings: Arc<Settings>, arena: Arena) -> Coll {
        let ranks = layout.ranks;
        let counts = Mutex::new(Counts::new(ranks, settings.trace));
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

    /// Hands it to the thread that drives the rails.
    ///
    /// # Errors
    /// Why there is none any more.
    pub fn ask(&self, operation: Operation) -> Result<(), String> {
        if let Some(why) = self.failure() {
            return Err(why.to_owned());
        }
        locked(&self.asked).push_back(operation);
        // Release: against the swap of `take`, whose thread then finds the operation behind the lock.
        self.news.store(true, Ordering::Release);
        Ok(())
    }

    /// What has been asked for since the last call.
    pub fn take(&self, into: &mut Vec<Operation>) {
        if self.news.load(Ordering::Relaxed) && self.news.swap(false, Ordering::Acquire) {
            into.extend(locked(&self.asked).drain(..));
        }
    }

    /// Registers memory.
    pub fn register(&self, region: Region) -> u32 {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.push(Some(region));
        regions.len() as u32 - 1
    }

    /// Takes a registration back. Its number is not used again.
    pub fn deregister(&self, number: u32) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = regions.get_mut(number as usize) {
            *region = None;
        }
    }

    /// A region; `None` before it is registered, and behind its end.
    pub fn region(&self, number: u32) -> Option<Region> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner).get(number as usize).copied().flatten()
    }

    /// Whether a region of this number was there and is not any more.
    pub fn has_had(&self, number: u32) -> bool {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.get(number as usize).is_some_and(Option::is_none)
    }

    /// One more block of queues.
    pub fn add_queues(&self, block: Arc<Block>) {
        self.queues.write().unwrap_or_else(PoisonError::into_inner).push(block);
        // Release: against `queues_since`, whose thread then finds the block.
        self.queues_changed.fetch_add(1, Ordering::Release);
    }

    /// Nobody writes them any more.
    pub fn remove_queues(&self, block: &Arc<Block>) {
        self.queues.write().unwrap_or_else(PoisonError::into_inner).retain(|one| !Arc::ptr_eq(one, block));
        self.queues_changed.fetch_add(1, Ordering::Release);
    }

    /// All blocks, where they have changed since the look that `seen` is of.
    pub fn queues_since(&self, seen: &mut u32) -> Option<Vec<Arc<Block>>> {
        let now = self.queues_changed.load(Ordering::Acquire);
        if now == *seen {
            return None;
        }
        *seen = now;
        Some(self.queues.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Why nothing goes any more.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Nothing goes any more. The first reason is said, once.
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
