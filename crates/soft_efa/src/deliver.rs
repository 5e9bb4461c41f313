//! What a request does where it arrives, and what is said of it.

use crate::address::card_name;
use crate::memory::{self, FILLED, READ, Range, Refused, WRITTEN};
use crate::origin::Origin;
use crate::queue::Arrival;
use crate::request::{Kind, Request};
use crate::share::Shared;
use crate::status;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A machine that does not answer is given up after this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// A peer without a receive is asked again so often, and given up after as many of these as the pair was told.
const NOT_READY: Duration = Duration::from_micros(500);
/// Told so often, a pair asks for ever.
pub const FOR_EVER: u8 = 7;
/// Bytes of a message at most.
const MESSAGE: u64 = 8928;
/// Bytes of a read or write at most.
const TRANSFER: u64 = 1 << 30;

/// What came of an attempt.
pub enum Outcome {
    /// With this status.
    Settled(u32),
    /// Not yet; it is given up after so long, with this status.
    Later(Option<Duration>, u32),
}

/// What is wrong with a request before it leaves.
pub fn local_status(origin: &Origin, request: &Request) -> Option<u32> {
    let most = if request.kind == Kind::Send { MESSAGE } else { TRANSFER };
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
    let access = if request.kind == Kind::Read { FILLED } else { 0 };
    let table = &origin.context.table;
    let covered = |(&(address, bytes), key): (&(u64, u64), &u32)| {
        bytes == 0 || table.allows(*key, Range { address, bytes, access, domain })
    };
    (!request.pieces.iter().zip(&request.keys).all(covered)).then_some(status::INVALID_LKEY)
}

/// Does what a request is to do at its peer.
pub fn deliver(origin: &Origin, request: &Request, rnr_retry: u8) -> Outcome {
    let context = origin.context;
    let Some(peer) = origin.peer(&request.gid, request.number) else {
        // A machine that is there says that it has no such queue pair; one that is not says nothing.
        return match Shared::exists(&card_name(&request.gid)) {
            true => Outcome::Settled(status::REMOTE_BAD_NUMBER),
            false => Outcome::Later(Some(PATIENCE), status::UNREACHABLE),
        };
    };
    if peer.page.qkey().load(Ordering::Relaxed) != request.qkey {
        return Outcome::Settled(status::REMOTE_BAD_NUMBER);
    }
    if request.kind != Kind::Send && !peer.knows(&context.device.gid) {
        return Outcome::Settled(status::UNKNOWN_PEER);
    }
    let pid = peer.page.pid();
    let moves = request.kind == Kind::Send || context.machine.moves.load(Ordering::Relaxed);
    let bytes = request.bytes();
    let inline;
    let pieces: &[(u64, u64)] = match &request.inline {
        Some(carried) => {
            inline = [(carried.0.as_ptr().expose_provenance() as u64, carried.1 as u64)];
            &inline
        }
        None => &request.pieces,
    };
    let gone = |refused: Refused| match refused {
        Refused::Gone => {
            origin.forget(&request.gid, request.number);
            status::REMOTE_BAD_NUMBER
        }
        Refused::Key => status::REMOTE_BAD_ADDRESS,
        Refused::System(code) => {
            refused_once(code);
            status::REMOTE_BAD_STATUS
        }
    };
    let not_ready = || {
        if !is_alive(pid) {
            return Outcome::Settled(gone(Refused::Gone));
        }
        let patience = (rnr_retry < FOR_EVER).then(|| NOT_READY * u32::from(rnr_retry));
        Outcome::Later(patience, status::REMOTE_NOT_READY)
    };
    let arrival = Arrival {
        source: origin.number,
        gid: context.device.gid,
        bytes: bytes as u32,
        immediate: request.immediate,
        is_write: request.kind == Kind::Write,
        ..Arrival::default()
    };
    if request.kind == Kind::Send {
        let Some(receive) = peer.page.take() else { return not_ready() };
        let room = receive.pieces.map(|(address, length)| (address, u64::from(length)));
        let status = if bytes > receive.room() {
            status::REMOTE_BAD_LENGTH
        } else {
            // SAFETY: C leaves the bytes alone until the completion.
            unsafe { memory::copy(pid, pieces, &room, true) }.map_or_else(gone, |_| status::OK)
        };
        peer.page.put(&Arrival { wr_id: Some(receive.wr_id), status, ..arrival });
        if status == status::OK {
            peer.page.counts()[0].fetch_add(1, Ordering::Release);
        }
        return Outcome::Settled(status);
    }
    let (access, out) = if request.kind == Kind::Write { (WRITTEN, true) } else { (READ, false) };
    // Nothing of a request that is refused is seen there, so this comes before a receive is taken.
    let hold = match bytes {
        0 => Ok(None),
        _ => {
            let range = Range { address: request.address, bytes, access, domain: peer.page.domain() };
            peer.table.hold(request.key, range).map(Some)
        }
    };
    let hold = match hold {
        Ok(hold) => hold,
        Err(refused) => return Outcome::Settled(gone(refused)),
    };
    let mut arrival = arrival;
    if request.immediate.is_some() && peer.page.is_solicited() {
        let Some(receive) = peer.page.take() else { return not_ready() };
        arrival.wr_id = Some(receive.wr_id);
    }
    let moved = match hold {
        Some(_) if moves => {
            let cut = context.machine.spec.cut(request.address ^ request.wr_id, bytes);
            // SAFETY: C leaves the bytes alone until the completion.
            unsafe { memory::copy_end_first(pid, pieces, (request.address, bytes), cut, out) }
        }
        _ if peer.is_alive(|| is_alive(pid)) => Ok(()),
        _ => Err(Refused::Gone),
    };
    drop(hold);
    arrival.status = moved.map_or_else(gone, |()| status::OK);
    let tells = request.immediate.is_some() && (arrival.status == status::OK || arrival.wr_id.is_some());
    if tells && !peer.page.put(&arrival) {
        // It has no room for it now.
        return not_ready();
    }
    if arrival.status == status::OK {
        // Behind the bytes: the peer's counter is read by acquire.
        peer.page.counts()[if out { 2 } else { 1 }].fetch_add(1, Ordering::Release);
    }
    Outcome::Settled(arrival.status)
}

fn is_alive(pid: i32) -> bool {
    // SAFETY: sends nothing.
    unsafe { libc::kill(pid, 0) == 0 }
}

/// Says, once, that the system lets no process into another one's memory.
fn refused_once(code: i32) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        let error = std::io::Error::from_raw_os_error(code);
        eprintln!(
            "soft_efa: reaching a peer's registered memory: {error}; in a container it needs CAP_SYS_PTRACE or a seccomp profile \
             that allows process_vm_writev"
        );
    });
}
