//! A card's queues in the hands of a kernel: requests, doorbells and completions without a proxy.
//!
//! ```text
//! device memory                                   the card, or host memory that both see
//! -------------                                   --------------------------------------
//! reserved     requests that have a slot          slots[depth]     requests of 64 bytes, each with its lap's phase
//! rung         requests that are rung for         doorbell         32 bits: the requests that are written
//! ended        watermark, failure; who polls      completions[..]  16 or 32 bytes each, with their lap's phase
//! ahead, turns[depth], done[depth]                counter          31 bits: the requests that have ended well
//! ```
//!
//! - A request's number is its place in the order of all requests of the queue, from 0; its id is the low 16 bits. [`post`](Queue::post) gives it.
//! - The *watermark*: all requests below it have ended. [`wait`](Queue::wait) waits for it.
//! - The first failure is the queue's last word: the card's status and the request that it is of, a deadline, what the host has said. Every wait ends
//!   with it, of every thread, and so do later launches'. (What vendors' device code waits for is a counter alone: after an error it waits for
//!   ever.)
//!
//! The layout is `efa_queue`'s. How a request comes to the card stands in `post.rs`, how its end comes back in `wait.rs`.

mod channel;
mod group;
mod post;
mod wait;

pub use channel::{Channel, Peer};
pub(crate) use channel::{push, wait as wait_for_channel};

use crate::ring::{CachePadded, Status};
use core::fmt;
use cuda_std::memory::{Doorbell, Word, WordPair, compare_exchange_acq_rel_gpu_u64};
use efa_queue::request::{self, Head, To};
use efa_queue::{Local, Operation, Status as CardStatus, rules};

/// Words of a queue that the threads of the device share. All zero at first.
#[repr(C)]
#[derive(Debug, Default)]
pub struct QueueWords {
    /// The number of the next request.
    pub reserved: CachePadded<Word>,
    /// Requests that have been rung for, by doorbells behind which a system fence stands.
    pub rung: CachePadded<Word>,
    /// The watermark, with its highest bit set while a thread polls for all; and the failure ([`Failure`]).
    pub ended: CachePadded<WordPair>,
    /// Requests above the watermark that have ended. Of whoever polls.
    pub ahead: CachePadded<Word>,
}

/// In [`QueueWords::ended`]: a thread polls. One word says both, so that the store that publishes a watermark also gives the role back.
const POLLED: u64 = 1 << 63;

/// A card's queue as a kernel sees it. Plain data: a kernel copies it once, so that its fields stay in registers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The send queue: slots of 8 words.
    pub slots: *const Word,
    /// Its doorbell.
    pub doorbell: *const Doorbell,
    /// The completion queue.
    pub completions: *const Word,
    /// The card's counter of requests that have ended well; null: it has none, and ends come by the completion queue.
    pub counter: *const Word,
    /// Device memory.
    pub words: *const QueueWords,
    /// Device memory, one for each slot: where the group that begins there and the doorbell before it meet ([`turn_at`], `written_to`).
    pub turns: *const Word,
    /// Device memory, one for each slot: one more than the number of the last request there that has ended.
    pub done: *const Word,
    /// Host memory: not 0 ends every wait with that [`Status`].
    pub abort: *const Word,
    /// Longest wait of one call in which nothing ends, in nanoseconds.
    pub timeout_ns: u64,
    /// Slots: a power of two, at most [`rules::DEEPEST`].
    pub depth: u32,
    /// Requests that may be written and not rung, at least 1 and below the depth.
    pub max_batch: u32,
    /// Entries of the completion queue: a power of two, at least the depth.
    pub completion_entries: u32,
    /// Words from one entry to the next: 2 or 4.
    pub completion_words: u32,
    /// 1: the slots are a card's registers, and each word of a request is one store to them. 0: they are memory.
    pub registers: u64,
    /// Requests below this have a slot, as far as the thread that holds this copy knows.
    pub free_below: u64,
    /// Doorbells up to this count are ordered before what this thread stores now.
    pub ordered: u64,
    /// The request whose turn it is to be rung for, where this thread has rung last; otherwise [`NO_TURN`].
    pub turn: u64,
}

/// Of a thread that has not rung last.
pub const NO_TURN: u64 = u64::MAX;

/// In [`Queue::turns`]: all before this request has been rung for, and who writes it rings.
#[inline(always)]
pub const fn turn_at(number: u64) -> u64 {
    number << 1 | 1
}

/// In [`Queue::turns`]: the group that begins here is written up to this request, without it.
#[inline(always)]
const fn written_to(end: u64) -> u64 {
    end << 1
}

// SAFETY: the pointers are to words that are shared by design and reached only through atomic operations.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// What a kernel asks of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// [`Operation::Write`] or [`Operation::Read`].
    pub operation: Operation,
    /// Whom it goes to.
    pub to: To,
    /// One's own bytes.
    pub local: Local,
    /// The peer's bytes begin here.
    pub address: u64,
    /// The key of the peer's memory.
    pub key: u32,
    /// Delivered with a write.
    pub immediate: Option<u32>,
}

impl Transfer {
    /// The request of this number.
    #[inline(always)]
    pub fn request(&self, number: u64, depth: u32) -> [u64; request::WORDS] {
        let head = Head {
            id: number & 0xffff,
            phase: rules::send_phase(number, depth),
            to: self.to,
            immediate: self.immediate,
            hints: 0,
        };
        match self.operation {
            Operation::Read => request::read(&head, self.local, self.address, self.key),
            _ => request::write(&head, self.local, self.address, self.key),
        }
    }
}

/// The first thing that went wrong on a queue: a code, and the request that it is of. The codes below 32 are the card's statuses.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub u64);

/// Bits of a failure's request.
const NUMBER_BITS: u32 = 48;

impl Failure {
    /// Nothing has ended for the timeout. The request is the first that has not.
    pub const DEADLINE: u16 = 0x100;
    /// A completion of a request that is not under way.
    pub const COMPLETION: u16 = 0x101;
    /// A completion of this request stands in the queue where nobody reads it: the queue was overrun.
    pub const OVERRUN: u16 = 0x102;
    /// The host has ended it: the code's low bits are its [`Status`].
    pub const ABORT: u16 = 0x200;

    /// A failure of this request.
    #[inline(always)]
    pub const fn of(code: u16, number: u64) -> Failure {
        Failure((code as u64) << NUMBER_BITS | (number & ((1 << NUMBER_BITS) - 1)))
    }

    /// What it was.
    #[inline(always)]
    pub const fn code(self) -> u16 {
        (self.0 >> NUMBER_BITS) as u16
    }

    /// Which request.
    #[inline(always)]
    pub const fn number(self) -> u64 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }

    /// The reason as programs know it.
    #[inline(always)]
    pub const fn status(self) -> Status {
        match self.code() {
            Failure::DEADLINE => Status::DEADLINE,
            code if code >= Failure::ABORT => Status((code - Failure::ABORT) as u64),
            _ => Status::FABRIC,
        }
    }

    /// The card's status, where it is one.
    pub const fn card(self) -> Option<CardStatus> {
        if self.code() < 32 { CardStatus::of(self.code() as u8) } else { None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number();
        match (self.code(), self.card()) {
            (code, Some(status)) => write!(f, "request {number}: {} ({code}): {}", status.name(), status.text()),
            (Failure::DEADLINE, _) => {
                write!(f, "request {number} and those behind it have not ended within the deadline")
            }
            (Failure::COMPLETION, _) => write!(f, "a completion of request {number}, which was not under way"),
            (Failure::OVERRUN, _) => {
                write!(f, "the completion queue was overrun: request {number} has ended there a lap ahead of who reads")
            }
            (code, _) if code >= Failure::ABORT => write!(f, "{}", self.status().text()),
            (code, _) => write!(f, "request {number}: status {code}, which has no name"),
        }
    }
}

impl Queue {
    /// This block's queue out of so many, over which the blocks are dealt in turn.
    ///
    /// # Safety
    /// `queues` is valid for `count` queues, at least one.
    #[inline(always)]
    pub unsafe fn of_block(queues: *const Queue, count: u32) -> Queue {
        // SAFETY: contract of the caller; the remainder is below `count`.
        unsafe { queues.add((cuda_std::thread::block_idx_x() % count) as usize).read() }
    }

    #[inline(always)]
    fn words(&self) -> &QueueWords {
        // SAFETY: whoever made the queue keeps its memory until no kernel uses it (contract of the struct).
        unsafe { &*self.words }
    }

    /// One of the words that there are for each slot.
    #[inline(always)]
    fn of_slot(&self, words: *const Word, number: u64) -> &Word {
        // SAFETY: as `words`; there is one for each slot.
        unsafe { &*words.add(rules::slot(number, self.depth) as usize) }
    }

    /// Leaves a failure, unless there has been one; which it is then.
    #[inline(always)]
    fn fail(&self, failure: Failure) -> Failure {
        match compare_exchange_acq_rel_gpu_u64(&self.words().ended.0.1, 0, failure.0) {
            0 => failure,
            first => Failure(first),
        }
    }
}
