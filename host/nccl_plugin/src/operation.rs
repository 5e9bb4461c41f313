//! Operations that NCCL submits, and the requests that track their completion.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// NCCL's handle of an operation. For a request that a kernel has written, it contains the counter of completions
/// instead.
#[derive(Debug, Default)]
pub struct Request {
    /// Number of incomplete parts.
    left: AtomicU32,
    done: AtomicBool,
    counter: Option<Counter>,
}

/// A counter of completed requests, in pinned host memory. Kernels read it there, or read its copy in GPU memory.
#[derive(Clone, Copy, Debug)]
pub struct Counter(*const AtomicU64);

// SAFETY: the pointer refers to an atomic word.
unsafe impl Send for Counter {}
// SAFETY: the pointer refers to an atomic word.
unsafe impl Sync for Counter {}

impl Counter {
    /// Creates a counter at `address`.
    ///
    /// # Safety
    /// The word must stay valid until the last request that uses it is complete or dropped.
    pub unsafe fn at(address: u64) -> Counter {
        Counter(address as *const AtomicU64)
    }

    /// Returns the current value.
    pub fn value(self) -> u64 {
        // SAFETY: the caller of `at` guarantees that the word is valid. Uses relaxed order: only this process writes
        // it.
        unsafe { (*self.0).load(Ordering::Relaxed) }
    }

    /// Adds one. Like the counter of an EFA device, it has 31 bits. Uses release order: a kernel that acquires the
    /// value sees the bytes of a get, and may overwrite the source of a put.
    fn count(self) {
        // SAFETY: the caller of `at` guarantees that the word is valid. Only one thread counts: the one that drives the
        // rails.
        unsafe { (*self.0).store((self.value() + 1) & efa_queue::rules::COUNTER_MASK, Ordering::Release) }
    }
}

impl Request {
    /// Creates a request of `parts` parts.
    pub fn of(parts: u32) -> Arc<Request> {
        Arc::new(Request { left: AtomicU32::new(parts), done: AtomicBool::new(parts == 0), counter: None })
    }

    /// Creates a request of `parts` parts, whose completion is counted in `counter`.
    pub fn counted(parts: u32, counter: Counter) -> Arc<Request> {
        Arc::new(Request { left: AtomicU32::new(parts), done: AtomicBool::new(false), counter: Some(counter) })
    }

    /// Records that a part is complete. Uses release order: a thread that sees the completion of the request also sees
    /// the bytes.
    pub fn part_is_done(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.store(true, Ordering::Release);
            if let Some(counter) = self.counter {
                counter.count();
            }
        }
    }

    /// Returns whether the request is complete. Uses acquire order, which pairs with the release in
    /// [`part_is_done`](Request::part_is_done) on the thread that drives the rails.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

/// A location in this rank's memory.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Address of the first byte.
    pub address: u64,
    /// Whether the memory is GPU memory.
    pub cuda: bool,
}

/// A location in another rank's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteLocation {
    /// Number of the region.
    pub region: u32,
    /// Offset from the region's first byte.
    pub offset: u64,
}

/// A signal of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSignal {
    /// Word to which the signal adds.
    pub at: RemoteLocation,
    /// Value that the operation adds.
    pub add: u64,
}

/// Kinds of operations.
#[derive(Debug)]
pub enum What {
    /// Writes bytes to another rank, raises a signal after them, or does only one of the two.
    Put {
        /// Source of the bytes.
        from: Source,
        /// Number of bytes.
        bytes: u64,
        /// Destination of the bytes.
        to: RemoteLocation,
        /// Signal to raise after the bytes, if any.
        signal: Option<RemoteSignal>,
    },
    /// Reads bytes of another rank.
    Get {
        /// Source of the bytes.
        from: RemoteLocation,
        /// Number of bytes.
        bytes: u64,
        /// Destination of the bytes.
        to: RemoteLocation,
    },
    /// Answers another rank's get.
    Answer {
        /// Source of the bytes.
        from: Source,
        /// Number of bytes.
        bytes: u64,
        /// Destination of the bytes.
        to: RemoteLocation,
        /// Number of the get on that rank.
        get: u64,
    },
}

/// An operation with its peer, its time of submission and its request.
#[derive(Debug)]
pub struct SubmittedOperation {
    /// Kind of operation, with its arguments.
    pub what: What,
    /// The other rank.
    pub peer: usize,
    /// Number of NCCL's context.
    pub context: u16,
    /// Time of submission, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Request that tracks the completion.
    pub request: Arc<Request>,
    /// Bytes of a put that its request contains; the put's source is their address.
    pub carried: Option<Box<[u64; 10]>>,
}
