//! The ring: many device threads push commands, one CPU thread pops them, completion comes back by a watermark.
//!
//! A [command](crate::command) is four words, each with 63 bits of content. (The study of queues, `crate::queue`, sends elements of
//! other widths through the same memory.)
//!
//! ```text
//! device memory                                host memory
//! -------------                                -----------
//! head             next ticket (add by n)      slots[capacity]   commands, each word with the lap's parity
//! tail_cache       last tail seen              tail              commands the proxy has taken
//! tail_poller      1 while someone refreshes   completion        watermark, status: one 16-byte line
//! completion_cache watermark, status
//! completion_pollers, completion_waiting
//! ```
//!
//! Who writes what: producers write `head`, the caches, the pollers and the slots; the proxy writes `tail` and
//! `completion`. The parties are [`push`](Ring::push) and [`wait`](Ring::wait) (device) and [`Consumer`](consumer::Consumer)
//! (proxy). Their ordering arguments stand beside the code of each: `producer.rs` and `space.rs`, `consumer.rs`, `completion.rs`.

mod completion;
#[cfg(not(target_arch = "nvptx64"))]
pub mod consumer;
mod poller;
pub mod producer;
mod space;

use crate::command::COMMAND_WORDS;
use cuda_std::memory::{Word, WordPair};
use cuda_std::thread;

/// Threads that may poll the completion line at once, each for the blocks of its number: with one, whoever waits beside it
/// often begins a poll of its own just when the first one leaves (H200, two blocks: 3.3 us with one, 1.9 us with two).
pub const COMPLETION_POLLERS: usize = 2;

/// A word alone on its 128 bytes: neighbours that other parties write would cost each a cache line transfer.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct CachePadded<T>(pub T);

/// The host-memory words of a ring beside its slots.
#[repr(C)]
#[derive(Debug, Default)]
pub struct HostWords {
    /// Commands the proxy has taken. Written by the proxy only.
    pub tail: CachePadded<Word>,
    /// Watermark (all tickets below it are done) and status. Written by the proxy only.
    pub completion: CachePadded<WordPair>,
}

/// The device-memory words of a ring.
#[repr(C)]
#[derive(Debug, Default)]
pub struct DeviceWords {
    /// The next ticket.
    pub head: CachePadded<Word>,
    /// The newest tail that a poller has brought here.
    pub tail_cache: CachePadded<Word>,
    /// 1 while a thread polls `tail` for all.
    pub tail_poller: CachePadded<Word>,
    /// The newest watermark and status that a poller has brought here.
    pub completion_cache: CachePadded<WordPair>,
    /// 1 while a thread polls `completion` for all.
    pub completion_poller: [CachePadded<Word>; COMPLETION_POLLERS],
    /// 1 when other threads than the pollers wait.
    pub completion_waiting: CachePadded<Word>,
}

/// A ring as a kernel sees it. Plain data: a kernel copies it once, so that its fields stay in registers. (Behind a
/// reference they are loaded again after every access to shared memory, from the L2 cache after an acquire: H200, one
/// thread, 1.3 instead of 3 Mops.)
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Host memory, `1 << log2_capacity` slots, all zero before the first push. A slot begins on a multiple of its size.
    pub slots: *const Word,
    /// Host memory.
    pub host: *const HostWords,
    /// Device memory.
    pub device: *const DeviceWords,
    /// Capacity is a power of two.
    pub log2_capacity: u32,
    /// Words from one slot to the next: a power of two, at least those of a command. [`TO_CARD`]: there are none.
    pub log2_slot_words: u32,
    /// Longest wait in any one call without a move of the proxy (tail or watermark), in nanoseconds.
    pub timeout_ns: u64,
    /// Which of the [`COMPLETION_POLLERS`] a thread stands for. The blocks of one ring share them evenly when it comes from
    /// [`Ring::of_block`].
    pub role: u32,
    /// 1: every thread of the block holds this ring. 0: nothing is known, and lanes that push together are first asked which
    /// ring they hold (H200, one warp: 65 instead of 79 Mops).
    pub of_block: u32,
    /// Tickets below this have a slot, as far as the thread that holds this copy knows: the capacity at first. While its
    /// tickets are below, a push asks no memory for space.
    pub free_below: u64,
}

// SAFETY: the pointers are to words that are shared by design and reached only through atomic operations.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// No ring, for who has nobody to push to.
    pub const NONE: Ring = Ring {
        slots: core::ptr::null(),
        host: core::ptr::null(),
        device: core::ptr::null(),
        log2_capacity: 0,
        log2_slot_words: LOG2_COMMAND_WORDS,
        timeout_ns: 0,
        role: 0,
        of_block: 1,
        free_below: 0,
    };

    /// This block's ring out of so many, over which the blocks are dealt in turn; the two halves of a ring's blocks have
    /// different pollers.
    ///
    /// # Safety
    /// `rings` is valid for `count` rings, at least one. A block calls this with one `rings` and one `count`: threads that
    /// push together by what it returns push to one ring.
    #[inline(always)]
    pub unsafe fn of_block(rings: *const Ring, count: u32) -> Ring {
        let block = thread::block_idx_x();
        // SAFETY: contract of the caller; the remainder is below `count`.
        let ring = unsafe { rings.add((block % count) as usize).read() };
        Ring { role: Ring::role(count), of_block: 1, ..ring }
    }

    /// Which of the pollers this block stands for, where blocks are dealt over so many rings.
    #[inline(always)]
    pub(crate) fn role(count: u32) -> u32 {
        thread::block_idx_x() / count.max(1) % COMPLETION_POLLERS as u32
    }

    /// Whether the other end is a card's queue, not a proxy. Modules without programs know no cards.
    #[inline(always)]
    pub(crate) fn is_to_card(&self) -> bool {
        cfg!(any(not(target_arch = "nvptx64"), feature = "by_card")) && self.log2_slot_words == TO_CARD
    }

    /// Slots in the ring.
    #[inline(always)]
    pub fn capacity(&self) -> u64 {
        1 << self.log2_capacity
    }

    #[inline(always)]
    fn host(&self) -> &HostWords {
        // SAFETY: whoever made the Ring keeps its memory until no kernel uses it (contract of the struct).
        unsafe { &*self.host }
    }

    #[inline(always)]
    fn device(&self) -> &DeviceWords {
        // SAFETY: as for `host`.
        unsafe { &*self.device }
    }
}

/// In [`Ring::log2_slot_words`]: the other end is a card's queue, and `Ring::device` points to a channel of `direct`.
pub const TO_CARD: u32 = u32::MAX;

/// Words from one slot to the next in a ring of commands.
pub const LOG2_COMMAND_WORDS: u32 = COMMAND_WORDS.trailing_zeros();

/// What a study wants to know of a push or a wait. The product passes `()`, and nothing of it is left in the code.
pub trait Observe {
    /// The queue was full.
    fn full(&mut self) {}
    /// The ticket is held, its slot is free, and what the command speaks of is fenced.
    fn ordered(&mut self) {}
    /// The command's stores have been issued.
    fn stored(&mut self) {}
    /// One look at memory that the CPU shares.
    fn host_poll(&mut self) {}
    /// Another thread was quicker in a compare-exchange.
    fn lost_exchange(&mut self) {}
}

impl Observe for () {}

/// The parity bit of the lap that this ticket is in: set in lap 0, so that a zeroed ring is empty.
#[inline(always)]
pub fn parity(ticket: u64, log2_capacity: u32) -> u64 {
    !(ticket >> log2_capacity) << 63
}

/// Why a device call ended without success. Zero is never used: it means "no reason" on the completion line.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u64);

impl Status {
    /// The fabric reported an error; the proxy has the provider's text.
    pub const FABRIC: Status = Status(1);
    /// The proxy refused a command: unknown opcode, region, peer, or bytes outside the region.
    pub const REFUSED: Status = Status(2);
    /// The proxy was stopped.
    pub const STOPPED: Status = Status(3);
    /// The proxy has not moved for the ring's timeout.
    pub const DEADLINE: Status = Status(4);
    /// What was asked cannot be done on this path.
    pub const UNSUPPORTED: Status = Status(5);
    /// The host has ended it: a peer has gone, or somebody has pressed Ctrl-C.
    pub const ENDED: Status = Status(6);

    /// The reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Status::FABRIC => "fabric error",
            Status::REFUSED => "command refused by the proxy",
            Status::STOPPED => "proxy stopped",
            Status::DEADLINE => "deadline passed on the device",
            Status::UNSUPPORTED => "not possible on this path",
            Status::ENDED => "ended by the host",
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
            // Told apart by their number of slots.
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
                // SAFETY: so many rings.
                let ring = unsafe { Ring::of_block(rings[..].as_ptr(), count) };
                seen.lock().expect("no panic").insert((ring.log2_capacity, ring.role));
            })
            .expect("runs");
            let all = (0..count).flat_map(|ring| (0..COMPLETION_POLLERS as u32).map(move |role| (ring, role)));
            assert_eq!(seen.into_inner().expect("no panic"), all.collect(), "{count} rings");
        }
    }
}
