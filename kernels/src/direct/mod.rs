//! A NIC's queues driven by a kernel: requests, doorbells and completions without a proxy.
//!
//! ```text
//! device memory                                   the NIC, or host memory that both access
//! -------------                                   ----------------------------------------
//! reserved     requests that have a slot          slots[depth]     requests of 64 bytes, each with its lap's phase
//! rung         requests covered by doorbells      doorbell         32 bits: the requests that are written
//! ended        watermark, failure; polling role   completions[..]  16 or 32 bytes each, with their lap's phase
//! ahead, turns[depth], done[depth]                counter          31 bits: the requests that have succeeded
//! ```
//!
//! - A request's number is its position in the order of all requests of the queue, from 0. Its id is the low 16 bits.
//!   [`post`](NicQueue::post) assigns the number.
//! - The *watermark*: all requests below it have completed. [`wait`](NicQueue::wait) waits for it.
//! - The first failure of a queue is final: a NIC status with its request, a deadline, or an abort by the host. All
//!   waits of all threads fail with it, and so do those of later launches. (Vendors' device code waits only for a
//!   counter, so that it waits indefinitely after an error.)
//!
//! The layout is that of `efa_queue`. `post.rs` documents how requests reach the NIC, and `wait.rs` how completions are
//! processed.

mod channel;
mod group;
mod post;
mod wait;

pub use channel::{Channel, ChannelHandle, PeerAddress};

use crate::gin::Control;
use crate::ring::{CachePadded, Status};
use core::fmt;
use cuda_std::memory::{Doorbell, Word, WordPair, compare_exchange_acq_rel_gpu_u64};
use efa_queue::request::{self, Head, To};
use efa_queue::{CompletionStatus, EfaOperation, Local, rules};

/// Words of a queue that the threads of the device share. Initially all zero.
#[repr(C)]
#[derive(Debug, Default)]
pub struct NicQueueWords {
    /// Number of the next request.
    pub reserved: CachePadded<Word>,
    /// Number of requests covered by doorbells. Each doorbell precedes the update of this word.
    pub rung: CachePadded<Word>,
    /// The watermark, whose highest bit is set while a thread polls for all; and the first failure ([`QueueFailure`]).
    pub ended: CachePadded<WordPair>,
    /// Number of completed requests above the watermark. Owned by the polling thread.
    pub ahead: CachePadded<Word>,
}

/// Flag in [`NicQueueWords::ended`]: a thread polls. Sharing the word with the watermark lets one store publish the
/// watermark and release the role.
const POLLED: u64 = 1 << 63;

/// A NIC queue as seen by a kernel. Plain data: a kernel copies it once, so that its fields stay in registers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NicQueue {
    /// Slots of the send queue, 8 words each.
    pub slots: *const Word,
    /// Doorbell of the send queue.
    pub doorbell: *const Doorbell,
    /// The completion queue.
    pub completions: *const Word,
    /// The NIC's counter of successful requests. Null if the NIC has no counter; completions then come from the
    /// completion queue.
    pub counter: *const Word,
    /// Device memory: the words shared by the device's threads.
    pub words: *const NicQueueWords,
    /// One word per slot in device memory, which orders the group that starts at the slot after the preceding doorbell
    /// ([`turn_at`], `written_to`).
    pub turns: *const Word,
    /// One word per slot in device memory: the number, plus 1, of the last completed request in the slot.
    pub done: *const Word,
    /// Host memory with which the host aborts waits and restarts their deadlines.
    pub abort: *const Control,
    /// Maximum wait of one call without progress, in nanoseconds.
    pub timeout_ns: u64,
    /// Number of slots: a power of two, at most [`rules::DEEPEST`].
    pub depth: u32,
    /// Maximum number of requests that are written but not covered by a doorbell: at least 1, and below the depth.
    pub max_batch: u32,
    /// Number of entries of the completion queue: a power of two, at least the depth.
    pub completion_entries: u32,
    /// Number of words per completion entry: 2 or 4.
    pub completion_words: u32,
    /// 1 if the slots are NIC registers, which require a separate store for each word of a request; 0 if they are
    /// memory.
    pub registers: u64,
    /// All requests below this number are known to this thread to have a slot. Local to the thread that holds this
    /// copy.
    pub free_below: u64,
    /// Number of the latest doorbell that is ordered before this thread's subsequent stores.
    pub ordered: u64,
    /// The first request after the last doorbell, if this thread rang that doorbell; otherwise [`NO_TURN`].
    pub turn: u64,
}

/// Value of [`NicQueue::turn`] in a thread that has not rung the last doorbell.
pub const NO_TURN: u64 = u64::MAX;

/// Returns the value in [`NicQueue::turns`] that means: doorbells cover all requests before `number`, and the thread
/// that writes its requests there must ring.
#[inline(always)]
pub const fn turn_at(number: u64) -> u64 {
    number << 1 | 1
}

/// Returns the value in [`NicQueue::turns`] that means: the group that starts here has written its requests up to `end`
/// (exclusive).
#[inline(always)]
const fn written_to(end: u64) -> u64 {
    end << 1
}

// SAFETY: the pointers refer to words that are shared by design and accessed only atomically.
unsafe impl Send for NicQueue {}
// SAFETY: the pointers refer to words that are shared by design and accessed only atomically.
unsafe impl Sync for NicQueue {}

/// A transfer that a kernel posts to the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicTransfer {
    /// [`EfaOperation::Write`] or [`EfaOperation::Read`].
    pub operation: EfaOperation,
    /// The peer's queue pair.
    pub to: To,
    /// Address, length and key of the local bytes.
    pub local: Local,
    /// Address of the peer's bytes.
    pub address: u64,
    /// Key of the peer's memory.
    pub key: u32,
    /// Immediate delivered with a write. `None` if there is none.
    pub immediate: Option<u32>,
}

impl NicTransfer {
    /// Encodes the transfer as request `number`.
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
            EfaOperation::Read => request::read(&head, self.local, self.address, self.key),
            _ => request::write(&head, self.local, self.address, self.key),
        }
    }
}

/// The first failure of a queue: a code and a request number. Codes below 32 are NIC status codes.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFailure(pub u64);

/// Number of bits of a failure's request number.
const NUMBER_BITS: u32 = 48;

impl QueueFailure {
    /// No request completed within the timeout. The request number is that of the first incomplete request.
    pub const DEADLINE: u16 = 0x100;
    /// The completion of a request that was not in flight was received.
    pub const COMPLETION: u16 = 0x101;
    /// The completion queue was overrun. It contains an unread completion of this request.
    pub const OVERRUN: u16 = 0x102;
    /// The host has aborted the queue. The low bits of the code are its [`Status`].
    pub const ABORT: u16 = 0x200;

    /// Creates a failure of request `number`.
    #[inline(always)]
    pub const fn of(code: u16, number: u64) -> QueueFailure {
        QueueFailure((code as u64) << NUMBER_BITS | (number & ((1 << NUMBER_BITS) - 1)))
    }

    /// Returns the failure code.
    #[inline(always)]
    pub const fn code(self) -> u16 {
        (self.0 >> NUMBER_BITS) as u16
    }

    /// Returns the number of the failed request.
    #[inline(always)]
    pub const fn number(self) -> u64 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }

    /// Returns the status that programs receive for this failure.
    #[inline(always)]
    pub const fn status(self) -> Status {
        match self.code() {
            QueueFailure::DEADLINE => Status::DEADLINE,
            code if code >= QueueFailure::ABORT => Status((code - QueueFailure::ABORT) as u64),
            _ => Status::FABRIC,
        }
    }

    /// Returns the NIC status, or `None` if the failure has a code defined here.
    pub const fn card(self) -> Option<CompletionStatus> {
        if self.code() < 32 { CompletionStatus::of(self.code() as u8) } else { None }
    }
}

impl fmt::Display for QueueFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number();
        match (self.code(), self.card()) {
            (code, Some(status)) => write!(f, "request {number}: {} ({code}): {}", status.name(), status.text()),
            (QueueFailure::DEADLINE, _) => {
                write!(f, "request {number} and those after it have not completed within the deadline")
            }
            (QueueFailure::COMPLETION, _) => write!(f, "a completion of request {number}, which was not in flight"),
            (QueueFailure::OVERRUN, _) => {
                write!(f, "the completion queue overran: request {number} completed a lap ahead of the reader")
            }
            (code, _) if code >= QueueFailure::ABORT => write!(f, "{}", self.status().text()),
            (code, _) => write!(f, "request {number}: unknown status {code}"),
        }
    }
}

impl NicQueue {
    /// Returns this block's queue. Blocks are assigned to the `count` queues round-robin.
    ///
    /// # Safety
    /// `queues` must be valid for `count` queues, at least one.
    #[inline(always)]
    pub unsafe fn of_block(queues: *const NicQueue, count: u32) -> NicQueue {
        // SAFETY: the caller guarantees that there are `count` queues, and the remainder is below `count`.
        unsafe { queues.add((cuda_std::thread::block_idx_x() % count) as usize).read() }
    }

    #[inline(always)]
    fn words(&self) -> &NicQueueWords {
        // SAFETY: the creator of the queue keeps its memory until no kernel uses it (contract of the struct).
        unsafe { &*self.words }
    }

    /// Returns the word for request `number` in an array that has one word per slot.
    #[inline(always)]
    fn of_slot(&self, words: *const Word, number: u64) -> &Word {
        // SAFETY: the array outlives the kernels, like `words`, and has one word per slot.
        unsafe { &*words.add(rules::slot(number, self.depth) as usize) }
    }

    /// Records a failure unless one is recorded already. Returns the recorded failure.
    #[inline(always)]
    fn fail(&self, failure: QueueFailure) -> QueueFailure {
        match compare_exchange_acq_rel_gpu_u64(&self.words().ended.0.1, 0, failure.0) {
            0 => failure,
            first => QueueFailure(first),
        }
    }
}
