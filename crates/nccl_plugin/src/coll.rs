//! One rank's part of one of NCCL's collective communicators, as NCCL's threads see it: what they have asked for, and what has become of it.

use crate::queues::{Arena, Block};
use crate::record::Counts;
use crate::settings::Settings;
use crate::wire::Layout;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// Whoever has panicked while it held the lock: what is behind it is whole between two statements.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds of the system's monotonic clock: one for all processes of a machine.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local to write to; this clock is there on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

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

/// What NCCL holds for a put; of a put that a kernel has written itself: what is counted at its end.
#[derive(Debug, Default)]
pub struct Request {
    /// Parts that are not complete.
    left: AtomicU32,
    done: AtomicBool,
    counter: Option<Counter>,
}

/// A counter of requests that are complete, in pinned memory of the host. Kernels read it there, or what follows it in the GPU's memory.
#[derive(Clone, Copy, Debug)]
pub struct Counter(*const AtomicU64);

// SAFETY: an atomic word.
unsafe impl Send for Counter {}
// SAFETY: as above.
unsafe impl Sync for Counter {}

impl Counter {
    /// This word.
    ///
    /// # Safety
    /// It is there until the last request that counts in it is complete or has gone.
    pub unsafe fn at(address: u64) -> Counter {
        Counter(address as *const AtomicU64)
    }

    /// What it says.
    pub fn value(self) -> u64 {
        // SAFETY: the contract of `at`. Relaxed: only this process writes it.
        unsafe { (*self.0).load(Ordering::Relaxed) }
    }

    /// One more: as a card's, it has 31 bits. Release: a kernel that acquires it sees the bytes of a get, and may write its source again.
    fn count(self) {
        // SAFETY: the contract of `at`. One thread counts: the one that drives the rails.
        unsafe { (*self.0).store((self.value() + 1) & efa_queue::rules::COUNTER_MASK, Ordering::Release) }
    }
}

impl Request {
    /// Of so many parts.
    pub fn of(parts: u32) -> Arc<Request> {
        Arc::new(Request { left: AtomicU32::new(parts), done: AtomicBool::new(parts == 0), counter: None })
    }

    /// Of so many parts, at whose end it is counted.
    pub fn counted(parts: u32, counter: Counter) -> Arc<Request> {
        Arc::new(Request { left: AtomicU32::new(parts), done: AtomicBool::new(false), counter: Some(counter) })
    }

    /// One of them is complete. Release: who sees the end sees the bytes.
    pub fn part_is_done(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.store(true, Ordering::Release);
            if let Some(counter) = self.counter {
                counter.count();
            }
        }
    }

    /// Acquire: against [`part_is_done`](Request::part_is_done) of the thread that drives the rails.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

/// A place in the memory of this rank.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its first byte.
    pub address: u64,
    /// Whether it is a GPU's.
    pub cuda: bool,
}

/// A place in the memory of another rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Number of the region.
    pub region: u32,
    /// From its first byte.
    pub offset: u64,
}

/// A signal behind a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Where it is counted.
    pub at: Place,
    /// What it adds.
    pub add: u64,
    /// It says that all earlier puts to that rank have arrived, and not its own alone.
    pub strong: bool,
}

/// What NCCL has asked for.
#[derive(Debug)]
pub enum What {
    /// Bytes to another rank, a signal behind them, or one of the two.
    Put {
        /// Where the bytes are.
        from: Source,
        /// How many.
        bytes: u64,
        /// Where they go.
        to: Place,
        /// What follows.
        signal: Option<Signal>,
    },
    /// Bytes of another rank.
    Get {
        /// Where they are.
        from: Place,
        /// How many.
        bytes: u64,
        /// Where they go.
        to: Place,
    },
    /// The answer to another rank's get of this number.
    Answer {
        /// Where the bytes are.
        from: Source,
        /// How many.
        bytes: u64,
        /// Where they go.
        to: Place,
        /// Its number there.
        get: u64,
    },
}

/// With whom, since when, and who is told.
#[derive(Debug)]
pub struct Operation {
    /// What is asked.
    pub what: What,
    /// The other rank.
    pub peer: usize,
    /// NCCL's context.
    pub context: u16,
    /// When it was asked for.
    pub at_ns: u64,
    /// Who is told of its end.
    pub request: Arc<Request>,
    /// Bytes of a put that stand in the request itself; its source is their address.
    pub carried: Option<Box<[u64; 10]>>,
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

/// One line on stderr.
pub fn say(text: &str) {
    eprintln!("ginlab (nccl plugin): {text}");
}
