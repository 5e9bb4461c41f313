//! Execution of a request at its target, and its status.

use crate::address::card_name;
use crate::alive::is_alive;
use crate::inbox::Arrival;
use crate::memory::{self, AccessError, FILLED, READ, Range, WRITTEN};
use crate::origin::Origin;
use crate::peer::PeerQueuePair;
use crate::request::{PostedRequest, RequestKind};
use crate::share::Shared;
use crate::status;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time after which a machine that does not answer is considered unreachable.
const PATIENCE: Duration = Duration::from_secs(1);
/// Retry interval for a peer without a receive. The request fails after as many intervals as the queue pair's retry
/// count.
const NOT_READY: Duration = Duration::from_micros(500);
/// Retry count that means unlimited retries.
pub const FOR_EVER: u8 = 7;
/// Maximum size of a message in bytes.
const MESSAGE: u64 = 8928;
/// Maximum size of a read or write in bytes.
const TRANSFER: u64 = 1 << 30;

/// Outcome of an attempt.
pub enum DeliveryOutcome {
    /// Complete with this status.
    Settled(u32),
    /// The attempt must be repeated. The request fails with this status after this time; `None` allows unlimited
    /// retries.
    Later(Option<Duration>, u32),
}

/// Returns the error status of a request that is invalid on the sender's side, if any.
pub fn local_status(origin: &Origin, request: &PostedRequest) -> Option<u32> {
    let most = if request.kind == RequestKind::Send { MESSAGE } else { TRANSFER };
    if request.bytes() > most {
        return Some(status::BAD_LENGTH);
    }
    let domain = origin.page.domain();
    if request.domain != domain {
        return Some(status::INVALID_HANDLE);
    }
    if request.inline.is_some() {
        return None;
    }
    let access = if request.kind == RequestKind::Read { FILLED } else { 0 };
    let table = &origin.context.table;
    let covered = |(&(address, bytes), key): (&(u64, u64), &u32)| {
        bytes == 0 || table.allows(*key, Range { address, bytes, access, domain })
    };
    (!request.pieces.iter().zip(&request.keys).all(covered)).then_some(status::INVALID_LKEY)
}

/// Executes a request at its peer.
pub fn deliver(origin: &Origin, request: &PostedRequest, rnr_retry: u8) -> DeliveryOutcome {
    let context = origin.context;
    let Some(peer) = origin.peer(&request.gid, request.number) else {
        // A reachable machine reports that it has no such queue pair; an unreachable one does not answer.
        return match Shared::exists(&card_name(&request.gid)) {
            true => DeliveryOutcome::Settled(status::REMOTE_BAD_NUMBER),
            false => DeliveryOutcome::Later(Some(PATIENCE), status::UNREACHABLE),
        };
    };
    if peer.page.qkey().load(Ordering::Relaxed) != request.qkey {
        return DeliveryOutcome::Settled(status::REMOTE_BAD_NUMBER);
    }
    if request.kind != RequestKind::Send && !peer.knows(&context.device.gid) {
        return DeliveryOutcome::Settled(status::UNKNOWN_PEER);
    }
    let inline;
    let pieces: &[(u64, u64)] = match &request.inline {
        Some(carried) => {
            inline = [(carried.0.as_ptr().expose_provenance() as u64, carried.1 as u64)];
            &inline
        }
        None => &request.pieces,
    };
    let arrival = Arrival {
        source: origin.number,
        gid: context.device.gid,
        bytes: request.bytes() as u32,
        immediate: request.immediate,
        is_write: request.kind == RequestKind::Write,
        ..Arrival::default()
    };
    let delivery = Delivery { origin, request, peer: &peer, pieces, rnr_retry };
    match request.kind {
        RequestKind::Send => delivery.send(arrival),
        RequestKind::Write => delivery.transfer(arrival, WRITTEN, true),
        RequestKind::Read => delivery.transfer(arrival, READ, false),
    }
}

/// A request, its peer, and its local bytes.
struct Delivery<'a> {
    origin: &'a Origin,
    request: &'a PostedRequest,
    peer: &'a PeerQueuePair,
    pieces: &'a [(u64, u64)],
    rnr_retry: u8,
}

impl Delivery<'_> {
    /// Returns the status of a refused access to the peer's memory.
    fn status_of(&self, refused: AccessError) -> u32 {
        match refused {
            AccessError::Gone => {
                self.origin.forget(&self.request.gid, self.request.number);
                status::REMOTE_BAD_NUMBER
            }
            AccessError::Key => status::REMOTE_BAD_ADDRESS,
            AccessError::System => status::REMOTE_BAD_STATUS,
        }
    }

    fn is_alive(&self) -> bool {
        self.peer.is_alive(|| is_alive(self.peer.page.pid()))
    }

    /// The peer has no receive, or no space for a completion.
    fn not_ready(&self) -> DeliveryOutcome {
        if !self.is_alive() {
            return DeliveryOutcome::Settled(self.status_of(AccessError::Gone));
        }
        let patience = (self.rnr_retry < FOR_EVER).then(|| NOT_READY * u32::from(self.rnr_retry));
        DeliveryOutcome::Later(patience, status::REMOTE_NOT_READY)
    }

    /// Delivers a message to the peer's next receive.
    fn send(&self, arrival: Arrival) -> DeliveryOutcome {
        let page = &self.peer.page;
        let Some(receive) = page.take() else { return self.not_ready() };
        let room = receive.pieces.map(|(address, length)| (address, u64::from(length)));
        let status = if self.request.bytes() > receive.room() {
            status::REMOTE_BAD_LENGTH
        } else {
            // SAFETY: C must not access the bytes until the completion.
            let copied = unsafe { memory::copy(page.pid(), self.pieces, &room, true) };
            copied.map_or_else(|refused| self.status_of(refused), |_| status::OK)
        };
        page.put(&Arrival { wr_id: Some(receive.wr_id), status, ..arrival });
        if status == status::OK {
            page.counts()[0].fetch_add(1, Ordering::Release);
        }
        DeliveryOutcome::Settled(status)
    }

    /// Performs a write (`out`) or a read, for which the peer's key must allow `access`.
    fn transfer(&self, mut arrival: Arrival, access: u32, out: bool) -> DeliveryOutcome {
        let Delivery { request, peer, .. } = *self;
        let (context, bytes) = (self.origin.context, request.bytes());
        // This precedes the taking of a receive, because a refused request has no effect at the target.
        let hold = match bytes {
            0 => Ok(None),
            _ => {
                let range = Range { address: request.address, bytes, access, domain: peer.page.domain() };
                peer.table.hold(request.key, range).map(Some)
            }
        };
        let hold = match hold {
            Ok(hold) => hold,
            Err(refused) => return DeliveryOutcome::Settled(self.status_of(refused)),
        };
        if request.immediate.is_some() && peer.page.is_solicited() {
            let Some(receive) = peer.page.take() else { return self.not_ready() };
            arrival.wr_id = Some(receive.wr_id);
        }
        let moved = match hold {
            Some(_) if context.machine.moves.load(Ordering::Relaxed) => {
                let cut = context.machine.spec.cut(request.address ^ request.wr_id, bytes);
                // SAFETY: C must not access the bytes until the completion.
                unsafe { memory::copy_end_first(peer.page.pid(), self.pieces, (request.address, bytes), cut, out) }
            }
            _ if self.is_alive() => Ok(()),
            _ => Err(AccessError::Gone),
        };
        drop(hold);
        arrival.status = moved.map_or_else(|refused| self.status_of(refused), |()| status::OK);
        let tells = request.immediate.is_some() && (arrival.status == status::OK || arrival.wr_id.is_some());
        if tells && !peer.page.put(&arrival) {
            if arrival.wr_id.is_some() || peer.page.is_drained() {
                return self.not_ready();
            }
            // A NIC writes an immediate that takes no receive into the completion queue, regardless of whether the
            // program reads it.
            peer.page.lose();
        }
        if arrival.status == status::OK {
            // Uses release order, after the bytes, because the peer acquires its counter.
            peer.page.counts()[if out { 2 } else { 1 }].fetch_add(1, Ordering::Release);
        }
        DeliveryOutcome::Settled(arrival.status)
    }
}
