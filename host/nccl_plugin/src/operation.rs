//! What NCCL asks for, and who is told of its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

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
