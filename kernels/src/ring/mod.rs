//! The ring: many device threads push commands, one proxy thread pops them, completion comes back by a watermark.
//!
//! ```text
//! device memory                                host memory
//! -------------                                -----------
//! head             next ticket (add by n)      slots[capacity]   commands, each word with the lap's parity
//! tail_cache       last tail seen              tail              commands the proxy has taken
//! tail_poller      1 while someone refreshes   completion        watermark, status: one 16-byte line
//! completion_cache watermark, status
//! completion_poller, completion_waiting
//! ```
//!
//! Who writes what: producers write `head`, the caches, the pollers and the slots; the proxy writes `tail` and
//! `completion`. The parties are [`push`](Ring::push) and [`wait`](Ring::wait) (device, [`producer`]) and
//! [`Consumer`](consumer::Consumer) (proxy). Their ordering arguments stand beside the code of each.

#[cfg(not(target_arch = "nvptx64"))]
pub mod consumer;
pub mod producer;

use cuda_std::memory::{Word, WordPair};

/// One slot: a command of four words. 32-byte aligned, so that a warp's adjacent slots make full PCIe writes.
#[repr(C, align(32))]
#[derive(Debug)]
pub struct Slot(pub WordPair, pub WordPair);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 32);

/// A word alone on its 128 bytes: neighbours that other parties write would cost each a cache line transfer.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Alone<T>(pub T);

/// The host-memory words of a ring beside its slots.
#[repr(C)]
#[derive(Debug)]
pub struct HostWords {
    /// Commands the proxy has taken. Written by the proxy only.
    pub tail: Alone<Word>,
    /// Watermark (all tickets below it are done) and status. Written by the proxy only.
    pub completion: Alone<WordPair>,
}

/// The device-memory words of a ring.
#[repr(C)]
#[derive(Debug)]
pub struct DeviceWords {
    /// The next ticket.
    pub head: Alone<Word>,
    /// The newest tail that a poller has brought here.
    pub tail_cache: Alone<Word>,
    /// 1 while a thread polls `tail` for all.
    pub tail_poller: Alone<Word>,
    /// The newest watermark and status that a poller has brought here.
    pub completion_cache: Alone<WordPair>,
    /// 1 while a thread polls `completion` for all.
    pub completion_poller: Alone<Word>,
    /// 1 when other threads than the poller wait.
    pub completion_waiting: Alone<Word>,
}

impl Default for HostWords {
    fn default() -> Self {
        HostWords { tail: Alone(Word::new(0)), completion: Alone(WordPair::new(0, 0)) }
    }
}

impl Default for DeviceWords {
    fn default() -> Self {
        DeviceWords {
            head: Alone(Word::new(0)),
            tail_cache: Alone(Word::new(0)),
            tail_poller: Alone(Word::new(0)),
            completion_cache: Alone(WordPair::new(0, 0)),
            completion_poller: Alone(Word::new(0)),
            completion_waiting: Alone(Word::new(0)),
        }
    }
}

/// A ring as a kernel sees it. Plain data: it is copied into the kernel's arguments.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Host memory, `1 << log2_capacity` slots, all zero before the first push.
    pub slots: *const Slot,
    /// Host memory.
    pub host: *const HostWords,
    /// Device memory.
    pub device: *const DeviceWords,
    /// Capacity is a power of two, at least 2.
    pub log2_capacity: u32,
    /// Longest wait in any one call, in nanoseconds.
    pub timeout_ns: u64,
}

// SAFETY: the pointers are to words that are shared by design and reached only through atomic operations.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Slots in the ring.
    #[inline(always)]
    pub fn capacity(&self) -> u64 {
        1 << self.log2_capacity
    }
}

/// The parity bit of the lap that this ticket is in: set in lap 0, so that a zeroed ring is empty.
#[inline(always)]
pub fn parity(ticket: u64, log2_capacity: u32) -> u64 {
    !(ticket >> log2_capacity) << 63
}

/// Why a device call ended without success. Zero is never used: it means "no reason" on the completion line.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop(pub u64);

impl Stop {
    /// The fabric reported an error; the proxy has the provider's text.
    pub const FABRIC: Stop = Stop(1);
    /// The proxy refused a command: unknown opcode, region, peer, or bytes outside the region.
    pub const REFUSED: Stop = Stop(2);
    /// The proxy was stopped.
    pub const STOPPED: Stop = Stop(3);
    /// The wait ran into the ring's timeout.
    pub const DEADLINE: Stop = Stop(4);

    /// The reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Stop::FABRIC => "fabric error",
            Stop::REFUSED => "command refused by the proxy",
            Stop::STOPPED => "proxy stopped",
            Stop::DEADLINE => "deadline passed on the device",
            _ => "unknown reason",
        }
    }
}
