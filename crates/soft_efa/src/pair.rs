//! Queue pairs as C sees them.

use crate::abi::*;
use crate::address::Gid;
use crate::cause;
use crate::flight::SendSide;
use crate::inbox::{Arrival, Reading};
use crate::locked;
use crate::origin::Origin;
use crate::queue::PostedReceive;
use crate::request::{INLINE, PostedRequest, SHORT_INLINE};
use crate::rings::PairRings;
use crate::status;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

/// A queue pair. The part visible to C comes first.
#[repr(C)]
pub struct SoftQueuePair {
    verbs: UnsafeCell<ibv_qp_ex>,
    /// The EFA interface.
    pub efa: efadv_qp,
    /// Device, page and number of the queue pair.
    pub origin: Arc<Origin>,
    /// Send side.
    pub sender: Arc<Mutex<SendSide>>,
    /// Receive side.
    pub receiver: Mutex<Receiver>,
    /// Requests between start and completion of a session. C must use it from one thread at a time.
    session: UnsafeCell<PostingSession>,
    /// Whether a session is open.
    pub is_open: AtomicBool,
    /// The queues, once C has requested access to them.
    pub rings: OnceLock<PairRings>,
    /// Progress of the device's reads of the rings.
    pub intake: Mutex<RingProgress>,
    /// Whether C has moved the queue pair to the ready-to-send state.
    pub is_sending: AtomicBool,
    /// Capacities that C requested: requests, receives, pieces per request and receive, bytes of inline data.
    pub cap: ibv_qp_cap,
    /// Whether writes can carry inline data.
    pub inline_writes: bool,
}

// SAFETY: the part visible to C is written before the pair is shared. C uses the session from one thread at a time, and
// the rest is protected by locks.
unsafe impl Sync for SoftQueuePair {}

/// The receive side of a queue pair.
#[derive(Default)]
pub struct Receiver {
    /// Maximum number of receives.
    pub depth: u32,
    /// Number of receives posted whose completions have not been read.
    pub posted: u32,
    /// Progress of the reads of the inbox.
    reading: Reading,
}

/// Progress of the device's reads of the rings of a queue pair.
#[derive(Default)]
pub struct RingProgress {
    /// Number of requests read.
    pub sends: u64,
    /// Number of pieces of receives read.
    pub receives: u64,
    /// Whether the queue pair is in error: posted requests are flushed.
    pub is_broken: bool,
    /// Version of the device's address handles, and the addresses at that version by number.
    pub handles: (u64, Vec<Option<Gid>>),
    /// Values of the peers' operation counts that have been added to the completion counters.
    pub counted: [u64; 3],
    /// A receive whose last piece has not arrived, and its number of pieces so far.
    pub open: Option<(PostedReceive, usize)>,
}

/// Requests collected between start and completion of a session.
#[derive(Default)]
pub struct PostingSession {
    /// Requests in the order of C's calls.
    pub requests: Vec<PostedRequest>,
    /// First error, or 0.
    pub error: c_int,
}

impl SoftQueuePair {
    /// Creates the queue pair with the C part `verbs` and the capacities `cap`. No session is open.
    pub fn new(verbs: ibv_qp_ex, origin: Arc<Origin>, cap: ibv_qp_cap, inline_writes: bool) -> SoftQueuePair {
        SoftQueuePair {
            verbs: UnsafeCell::new(verbs),
            efa: efadv_qp { comp_mask: 0, wr_set_processing_hints: Some(set_processing_hints) },
            sender: Arc::new(Mutex::new(SendSide::new(origin.clone(), cap.max_send_wr.max(1)))),
            origin,
            receiver: Mutex::new(Receiver { depth: cap.max_recv_wr, ..Receiver::default() }),
            session: UnsafeCell::default(),
            is_open: AtomicBool::new(false),
            rings: OnceLock::new(),
            intake: Mutex::default(),
            is_sending: AtomicBool::new(false),
            cap,
            inline_writes,
        }
    }

    /// Returns the queue pair of a C pointer.
    ///
    /// # Safety
    /// `pair` must have been returned by [`efadv_create_qp_ex`](crate::efadv_create_qp_ex) and not be destroyed.
    pub unsafe fn of<'a>(pair: *mut ibv_qp) -> &'a SoftQueuePair {
        // SAFETY: an `ibv_qp` is the first member of the first member of a `SoftQueuePair`.
        unsafe { &*pair.cast::<SoftQueuePair>() }
    }

    /// Returns the number of the queue pair.
    pub fn number(&self) -> u32 {
        self.origin.number
    }

    /// Returns the maximum bytes of inline data of a request.
    pub fn inline(&self) -> usize {
        if self.is_wide() { INLINE } else { SHORT_INLINE }
    }

    /// Returns whether requests of this queue pair have 128 bytes.
    pub fn is_wide(&self) -> bool {
        self.inline_writes || self.cap.max_inline_data as usize > SHORT_INLINE
    }

    /// Returns the state that C has set.
    pub fn state(&self) -> c_uint {
        // SAFETY: C changes the state only by `ibv_modify_qp`, and not while it posts.
        unsafe { (*self.verbs.get()).qp_base.state }
    }

    /// Returns the completion queue for sends.
    pub fn sends_to(&self) -> *mut ibv_cq {
        // SAFETY: written once, before the pair is shared.
        unsafe { (*self.verbs.get()).qp_base.send_cq }
    }

    /// Returns the completion queue for receives.
    pub fn receives_to(&self) -> *mut ibv_cq {
        // SAFETY: written once, before the pair is shared.
        unsafe { (*self.verbs.get()).qp_base.recv_cq }
    }

    /// Removes and returns the oldest arrival.
    pub fn arrival(&self) -> Option<Arrival> {
        let mut receiver = locked(&self.receiver);
        let arrival = self.origin.page.get(&mut receiver.reading)?;
        receiver.posted -= u32::from(arrival.wr_id.is_some());
        if arrival.status == status::REMOTE_BAD_STATUS {
            cause::refused_to_peer();
        }
        Some(arrival)
    }

    /// Returns the number of arrivals that have not been taken, including those lost for lack of space.
    pub fn waiting(&self) -> u64 {
        self.origin.page.waiting(&locked(&self.receiver).reading)
    }

    /// Returns the session.
    ///
    /// # Safety
    /// Only one thread may use the session at a time, as C's contract for sessions requires.
    #[allow(clippy::mut_from_ref, reason = "C's contract stands in for the exclusive reference")]
    pub unsafe fn session(&self) -> &mut PostingSession {
        // SAFETY: the caller guarantees that no other thread uses the session.
        unsafe { &mut *self.session.get() }
    }
}

/// Ignores hints for the scheduling of a request: requests of software NICs do not compete for its pipeline.
unsafe extern "C" fn set_processing_hints(_: *mut efadv_qp, _: u32) {}
