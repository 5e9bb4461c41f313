//! Queue pairs as C sees them.

use crate::abi::*;
use crate::address::Gid;
use crate::flight::Sender;
use crate::locked;
use crate::origin::Origin;
use crate::queue::{Arrival, Receive as Posted};
use crate::request::{INLINE, Request, SHORT_INLINE};
use crate::rings::Rings;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

/// A queue pair. What C sees comes first.
#[repr(C)]
pub struct Pair {
    verbs: UnsafeCell<ibv_qp_ex>,
    /// Its card, its page and its number.
    pub origin: Arc<Origin>,
    /// What it sends.
    pub sender: Arc<Mutex<Sender>>,
    /// What it receives.
    pub receiver: Mutex<Receiver>,
    /// Requests between start and completion. C lets one thread at a time be in there.
    session: UnsafeCell<Session>,
    /// Whether there is such a session.
    pub is_open: AtomicBool,
    /// Its queues, once C has asked for them.
    pub rings: OnceLock<Rings>,
    /// How far the card has read them.
    pub intake: Mutex<Intake>,
    /// Whether C has brought it so far that it sends.
    pub is_sending: AtomicBool,
    /// What C asked for: requests, receives, pieces of a receive, bytes of its own.
    pub cap: ibv_qp_cap,
    /// Whether writes may carry their bytes.
    pub inline_writes: bool,
}

// SAFETY: what C sees is written before it is shared; the session is one thread's by C's contract, the rest is behind locks.
unsafe impl Sync for Pair {}

/// The receiving side of a queue pair.
#[derive(Default)]
pub struct Receiver {
    /// For so many receives.
    pub depth: u32,
    /// Posted, and their completions not read.
    pub posted: u32,
    /// What was taken out of the box.
    read: u64,
}

/// How far the card has read the rings of a pair.
#[derive(Default)]
pub struct Intake {
    /// Requests.
    pub sends: u64,
    /// Pieces of receives.
    pub receives: u64,
    /// The pair is in error: what is posted is flushed.
    pub is_broken: bool,
    /// Address handles by number, as of this version of the card's.
    pub handles: (u64, Vec<Option<Gid>>),
    /// What counters of the peers' doings have been told.
    pub counted: [u64; 3],
    /// The pieces of a receive whose last one is not there.
    pub open: Option<(Posted, usize)>,
}

/// What is staged between start and completion of a session.
#[derive(Default)]
pub struct Session {
    /// In the order of C's calls.
    pub requests: Vec<Request>,
    /// What was wrong first; 0 is nothing.
    pub error: c_int,
}

impl Pair {
    /// The pair behind what C sees, as large as it says. No session is open.
    pub fn new(verbs: ibv_qp_ex, origin: Arc<Origin>, cap: ibv_qp_cap, inline_writes: bool) -> Pair {
        Pair {
            verbs: UnsafeCell::new(verbs),
            sender: Arc::new(Mutex::new(Sender::new(origin.clone(), cap.max_send_wr.max(1)))),
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

    /// The pair that C means.
    ///
    /// # Safety
    /// The pointer is one that [`efadv_create_qp_ex`](crate::efadv_create_qp_ex) returned and that is not destroyed.
    pub unsafe fn of<'a>(pair: *mut ibv_qp) -> &'a Pair {
        // SAFETY: the first member of the first member.
        unsafe { &*pair.cast::<Pair>() }
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.origin.number
    }

    /// Bytes that a request carries at most.
    pub fn inline(&self) -> usize {
        if self.is_wide() { INLINE } else { SHORT_INLINE }
    }

    /// Whether its requests have 128 bytes.
    pub fn is_wide(&self) -> bool {
        self.inline_writes || self.cap.max_inline_data as usize > SHORT_INLINE
    }

    /// In which state C has brought it.
    pub fn state(&self) -> c_uint {
        // SAFETY: C changes it by `ibv_modify_qp` alone, and not while it posts.
        unsafe { (*self.verbs.get()).qp_base.state }
    }

    /// Where its sends complete.
    pub fn sends_to(&self) -> *mut ibv_cq {
        // SAFETY: written once, before it is shared.
        unsafe { (*self.verbs.get()).qp_base.send_cq }
    }

    /// Where its receives complete.
    pub fn receives_to(&self) -> *mut ibv_cq {
        // SAFETY: as above.
        unsafe { (*self.verbs.get()).qp_base.recv_cq }
    }

    /// The oldest arrival.
    pub fn arrival(&self) -> Option<Arrival> {
        let mut receiver = locked(&self.receiver);
        let arrival = self.origin.page.get(&mut receiver.read)?;
        receiver.posted -= u32::from(arrival.wr_id.is_some());
        Some(arrival)
    }

    /// The session.
    ///
    /// # Safety
    /// One thread at a time, by C's contract for sessions.
    #[allow(clippy::mut_from_ref, reason = "C's contract stands in for the exclusive reference")]
    pub unsafe fn session(&self) -> &mut Session {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.session.get() }
    }
}
