//! Intake of a send queue: the rules that a software NIC enforces on the writer of the queue (a kernel or a C program).
//!
//! A NIC polls ([`Intake::poll`]), and checks each request that the doorbell covers ([`Intake::check`] on its first
//! word, or [`Intake::decode`] on all words). Each violated rule is a [`Refusal`]; the NIC decides what it ends.

use crate::request::{DecodedRequest, Malformed};
use crate::rules::{self, DoorbellError};
use core::fmt;

/// Words of a send queue that a NIC polls.
pub trait SendQueue {
    /// Loads the doorbell. Must be an acquire, because the requests that the doorbell covers were stored before it.
    fn doorbell(&self) -> u32;

    /// Loads the first word of the slot of request `number`. Must be an acquire, because the writer of a request has
    /// previously rung the doorbell for the request that precedes it by `max_batch`.
    fn first_word(&self, number: u64) -> u64;
}

/// Position of a NIC in a send queue, and the limits of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intake {
    /// Number of requests that the NIC has taken from the queue.
    pub seen: u64,
    /// Number of slots of the queue.
    pub depth: u32,
    /// Maximum number of requests that may be written before the doorbell is rung; `depth` or more for no limit.
    pub max_batch: u32,
}

/// Rule that the writer of a queue has violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The doorbell decreased.
    Back {
        /// Amount by which the doorbell decreased.
        by: u32,
        /// Number of requests that the NIC had taken before.
        seen: u64,
    },
    /// More requests in flight than the queue has slots.
    Depth {
        /// Number of requests in flight.
        flight: u32,
        /// Number of slots.
        depth: u32,
    },
    /// A request is written further ahead of the doorbell than a batch.
    Batch {
        /// Number of the request.
        number: u64,
        /// Number of requests for which the doorbell was rung.
        seen: u64,
        /// Maximum number of requests per doorbell.
        max_batch: u32,
    },
    /// The doorbell covers a slot that does not contain its request.
    Slot {
        /// Number of the request.
        number: u64,
        /// First word of the slot.
        first: u64,
    },
    /// The words of a request are invalid.
    Malformed {
        /// Number of the request.
        number: u64,
        /// Invalid part.
        why: Malformed,
    },
}

impl Intake {
    /// Polls the queue. `ended` is the number of completed requests. Returns the number of requests that the doorbell
    /// covers, which is `seen` if there are no new requests. The caller stores the result in `seen` when it has taken
    /// them.
    ///
    /// # Errors
    /// Returns [`Refusal::Back`] or [`Refusal::Depth`] for an invalid doorbell, and [`Refusal::Batch`] if requests are
    /// written too far ahead of it.
    #[inline(always)]
    pub fn poll(&self, queue: &impl SendQueue, ended: u64) -> Result<u64, Refusal> {
        let Intake { seen, depth, .. } = *self;
        let doorbell = queue.doorbell();
        if doorbell as u16 == seen as u16 {
            return self.check_batch(queue).map(|()| seen);
        }
        // Several stores to the doorbell may be observed as one, so one observed doorbell may cover up to `depth`.
        match rules::rung(seen, ended, doorbell, depth, depth) {
            Ok(count) => Ok(count),
            Err(DoorbellError::Back(by)) => Err(Refusal::Back { by, seen }),
            Err(DoorbellError::Batch(flight) | DoorbellError::Depth(flight)) => Err(Refusal::Depth { flight, depth }),
        }
    }

    /// Checks that no request is written further ahead of the doorbell than a batch.
    #[inline(always)]
    fn check_batch(&self, queue: &impl SendQueue) -> Result<(), Refusal> {
        let Intake { seen, depth, max_batch } = *self;
        let number = seen + u64::from(max_batch);
        // Loads the word before the doorbell, because a valid writer of `number` has rung the doorbell for a request
        // after `seen`.
        if max_batch < depth
            && rules::is_written(queue.first_word(number), number, depth)
            && queue.doorbell() as u16 == seen as u16
        {
            return Err(Refusal::Batch { number, seen, max_batch });
        }
        Ok(())
    }

    /// Checks that a slot covered by the doorbell contains request `number`. A load of `first` after that of the
    /// doorbell may be relaxed.
    ///
    /// # Errors
    /// Returns [`Refusal::Slot`] if it contains no request, or one of another lap.
    #[inline(always)]
    pub const fn check(&self, number: u64, first: u64) -> Result<(), Refusal> {
        if rules::is_written(first, number, self.depth) { Ok(()) } else { Err(Refusal::Slot { number, first }) }
    }

    /// Checks and decodes the 8 or 16 words of request `number`.
    ///
    /// # Errors
    /// Returns [`Refusal::Slot`] or [`Refusal::Malformed`] if the words are not this request.
    #[inline]
    pub fn decode(&self, number: u64, words: &[u64]) -> Result<DecodedRequest, Refusal> {
        self.check(number, words.first().copied().unwrap_or_default())?;
        DecodedRequest::decode(words).map_err(|why| Refusal::Malformed { number, why })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Refusal::Back { by, seen } => write!(f, "the doorbell moved back by {by} after {seen} requests"),
            Refusal::Depth { flight, depth } => {
                write!(f, "{flight} requests are in flight, but the queue has {depth} slots")
            }
            Refusal::Batch { number, seen, max_batch } => write!(
                f,
                "request {number} is written, but the doorbell is at {seen}: batches may have at most {max_batch} \
                 requests"
            ),
            Refusal::Slot { number, first } => write!(
                f,
                "request {number} is not in its slot, although the doorbell covers it: its first word is {first:#x}"
            ),
            Refusal::Malformed { number, why } => write!(f, "request {number} is invalid: {why:?}"),
        }
    }
}
