//! The ring: many device threads push commands, one CPU thread pops them, and completion is reported by a watermark.
//!
//! A [command](crate::command) is four words, each with 63 bits of content. (The study of queues, `crate::queue`, sends
//! elements of other widths through the same memory.)
//!
//! ```text
//! device memory                                host memory
//! -------------                                -----------
//! head             next ticket (add by n)      slots[capacity]   commands, each word with the lap's parity
//! tail_cache       last tail seen              tail              commands the proxy has taken
//! tail_poller      1 while a thread polls      completion        watermark, status: one 16-byte line
//! completion_cache watermark, status
//! completion_pollers, completion_waiting
//! ```
//!
//! Producers write `head`, the caches, the pollers and the slots; the proxy writes `tail` and `completion`. The parties
//! are [`push`](Ring::push) and [`wait`](Ring::wait) on the device, and the proxy's [`Consumer`](consumer::Consumer).
//! The ordering arguments are documented next to each implementation: in `producer.rs`, `space.rs`, `consumer.rs` and
//! `completion.rs`.

mod completion;
#[cfg(not(target_arch = "nvptx64"))]
pub mod consumer;
mod poller;
pub mod producer;
mod space;

use crate::command::COMMAND_WORDS;
use cuda_std::memory::{Word, WordPair};
use cuda_std::thread;

/// Number of threads that may poll the completion line at the same time, each on behalf of a share of the blocks. With
/// a single poller, a waiting thread often starts its own poll just when the poller leaves (with two blocks, two
/// pollers are faster than one).
pub const COMPLETION_POLLERS: usize = 2;

/// A word on its own 128 bytes. Neighbours written by other parties would cost one cache line transfer each.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct CachePadded<T>(pub T);

/// The control words of a ring in host memory, in addition to its slots.
#[repr(C)]
#[derive(Debug, Default)]
pub struct HostWords {
    /// Number of commands that the proxy has taken. Written only by the proxy.
    pub tail: CachePadded<Word>,
    /// Watermark (all tickets below it are complete) and status. Written only by the proxy.
    pub completion: CachePadded<WordPair>,
}

/// The control words of a ring in device memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct DeviceWords {
    /// The next ticket.
    pub head: CachePadded<Word>,
    /// Latest tail that a poller has stored here.
    pub tail_cache: CachePadded<Word>,
    /// 1 while a thread polls `tail` on behalf of all.
    pub tail_poller: CachePadded<Word>,
    /// Latest watermark and status that a poller has stored here.
    pub completion_cache: CachePadded<WordPair>,
    /// 1 while a thread polls `completion` on behalf of its share of the blocks.
    pub completion_poller: [CachePadded<Word>; COMPLETION_POLLERS],
    /// 1 if threads other than the pollers wait.
    pub completion_waiting: CachePadded<Word>,
}

/// A ring as seen by a kernel. Plain data: a kernel copies it once, so that its fields stay in registers. By reference,
/// the fields would be reloaded after every access to shared memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// `1 << log2_capacity` slots in host memory, all zero before the first push. Each slot is aligned to its size.
    pub slots: *const Word,
    /// Control words in host memory.
    pub host: *const HostWords,
    /// Control words in device memory.
    pub device: *const DeviceWords,
    /// Binary logarithm of the number of slots.
    pub log2_capacity: u32,
    /// Binary logarithm of the number of words per slot, at least that of a command.
    pub log2_slot_words: u32,
    /// Maximum time in one call without progress of the proxy, in nanoseconds. An advance of the tail or the watermark
    /// is progress.
    pub timeout_ns: u64,
    /// Index of this block's poller, below [`COMPLETION_POLLERS`]. [`Ring::of_block`] distributes the blocks of a ring
    /// evenly over the pollers.
    pub role: u32,
    /// 1 if every thread of the block uses this ring. If 0, lanes that push together first vote on which ring they use;
    /// the vote reduces the rate.
    pub of_block: u32,
    /// All tickets below this number have a free slot, according to the observations of the thread that holds this
    /// copy. Initially, the number is the capacity. A push with a lower ticket loads no memory to check for space.
    pub free_below: u64,
}

// SAFETY: the pointers refer to words that are shared by design and accessed only atomically.
unsafe impl Send for Ring {}
// SAFETY: the pointers refer to words that are shared by design and accessed only atomically.
unsafe impl Sync for Ring {}

impl Ring {
    /// Returns this block's ring. Blocks are assigned to the `count` rings round-robin, and each half of a ring's
    /// blocks has its own poller.
    ///
    /// # Safety
    /// `rings` must be valid for `count` rings, at least one. All threads of a block must pass the same `rings` and
    /// `count`: threads that push together through the returned value must push to the same ring.
    #[inline(always)]
    pub unsafe fn of_block(rings: *const Ring, count: u32) -> Ring {
        let block = thread::block_idx_x();
        // SAFETY: the caller guarantees that there are `count` rings, and the remainder is below `count`.
        let ring = unsafe { rings.add((block % count) as usize).read() };
        Ring { role: Ring::role(count), of_block: 1, ..ring }
    }

    /// Returns the index of this block's poller if blocks are distributed over `count` rings.
    #[inline(always)]
    pub(crate) fn role(count: u32) -> u32 {
        thread::block_idx_x() / count.max(1) % COMPLETION_POLLERS as u32
    }

    /// Returns the number of slots.
    #[inline(always)]
    pub fn capacity(&self) -> u64 {
        1 << self.log2_capacity
    }

    #[inline(always)]
    fn host(&self) -> &HostWords {
        // SAFETY: the creator of a `Ring` keeps its memory valid while a kernel uses it (contract of the struct).
        unsafe { &*self.host }
    }

    #[inline(always)]
    fn device(&self) -> &DeviceWords {
        // SAFETY: the creator of a `Ring` keeps its memory valid while a kernel uses it (contract of the struct).
        unsafe { &*self.device }
    }
}

/// Binary logarithm of the number of words per slot in a ring of commands.
pub const LOG2_COMMAND_WORDS: u32 = COMMAND_WORDS.trailing_zeros();

/// Observer of a push or a wait, for measurements. Other callers pass `()`, which compiles to nothing.
pub trait Observe {
    /// Called when the queue is full.
    fn full(&mut self) {}
    /// Called when the ticket is taken, its slot is free, and the payload is fenced.
    fn ordered(&mut self) {}
    /// Called when the command's stores have been issued.
    fn stored(&mut self) {}
    /// Called for each load from memory shared with the CPU.
    fn host_poll(&mut self) {}
    /// Called when another thread has won a compare-exchange.
    fn lost_exchange(&mut self) {}
}

impl Observe for () {}

/// Returns the parity bit of the lap that contains this ticket. The bit is set in lap 0, so that a zeroed ring is
/// empty.
#[inline(always)]
pub fn parity(ticket: u64, log2_capacity: u32) -> u64 {
    !(ticket >> log2_capacity) << 63
}

/// Reason for the failure of a device call. 0 is not used: on the completion line it means that there is no failure.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u64);

impl Status {
    /// The fabric reported an error; the proxy has the provider's message.
    pub const FABRIC: Status = Status(1);
    /// The proxy rejected a command: unknown opcode, region or peer, or bytes outside the region.
    pub const REFUSED: Status = Status(2);
    /// The proxy was stopped.
    pub const STOPPED: Status = Status(3);
    /// The proxy has made no progress for the ring's timeout.
    pub const DEADLINE: Status = Status(4);
    /// The operation is not supported on this path.
    pub const UNSUPPORTED: Status = Status(5);
    /// The host aborted the wait, because a peer exited or the run was interrupted.
    pub const ENDED: Status = Status(6);

    /// Returns the reason as text.
    pub fn text(self) -> &'static str {
        match self {
            Status::FABRIC => "fabric error",
            Status::REFUSED => "command refused by the proxy",
            Status::STOPPED => "proxy stopped",
            Status::DEADLINE => "deadline passed on the device",
            Status::UNSUPPORTED => "not supported on this path",
            Status::ENDED => "aborted by the host",
            _ => "unknown reason",
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use cuda_std::emulation;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    #[test]
    fn every_ring_has_blocks_of_every_poller() {
        for count in 1..=6u32 {
            let host = HostWords::default();
            let device = DeviceWords::default();
            // Each ring has a different number of slots, which identifies it.
            let rings: Vec<Ring> = (0..count)
                .map(|log2_capacity| Ring {
                    slots: std::ptr::null(),
                    host: &host,
                    device: &device,
                    log2_capacity,
                    log2_slot_words: LOG2_COMMAND_WORDS,
                    timeout_ns: 0,
                    role: 0,
                    of_block: 0,
                    free_below: 0,
                })
                .collect();
            let seen = Mutex::new(BTreeSet::new());
            emulation::run(COMPLETION_POLLERS as u32 * count, 1, || {
                // SAFETY: there are `count` rings.
                let ring = unsafe { Ring::of_block(rings[..].as_ptr(), count) };
                seen.lock().expect("no panic").insert((ring.log2_capacity, ring.role));
            })
            .expect("runs");
            let all = (0..count).flat_map(|ring| (0..COMPLETION_POLLERS as u32).map(move |role| (ring, role)));
            assert_eq!(seen.into_inner().expect("no panic"), all.collect(), "{count} rings");
        }
    }
}
