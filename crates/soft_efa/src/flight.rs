//! Requests on their way: when each arrives, what it does there, and what becomes of it.
//!
//! A card here works inside the calls of the process whose it is: when requests are posted and when completions are polled for;
//! when nobody polls, [`keeper`](crate::keeper) does. Requests arrive in an order that the seed draws, since EFA's reliable datagrams have none.

use crate::abi::*;
use crate::context::{INLINE, SEND_PIECES, now};
use crate::memory::{self, FILLED, READ, Refused, WRITTEN};
use crate::pair::Pair;
use crate::peer::{Gid, card_name};
use crate::queue::Arrival;
use crate::share::Shared;
use card_model::Fault;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// EFA's statuses of completions, as its hardware reports them.
pub mod status {
    /// All is well.
    pub const OK: u32 = 0;
    /// A local key does not cover the bytes.
    pub const INVALID_LKEY: u32 = 5;
    /// More bytes than a message takes.
    pub const BAD_LENGTH: u32 = 6;
    /// A remote key does not cover the range for this use.
    pub const REMOTE_BAD_ADDRESS: u32 = 7;
    /// There is no queue pair of this number.
    pub const REMOTE_BAD_NUMBER: u32 = 9;
    /// No receive is posted there.
    pub const REMOTE_NOT_READY: u32 = 10;
    /// The receive there is too short.
    pub const REMOTE_BAD_LENGTH: u32 = 11;
    /// Something else went wrong there.
    pub const REMOTE_BAD_STATUS: u32 = 12;
    /// Nobody answers.
    pub const UNRESPONSIVE: u32 = 13;
}

/// A machine that does not answer is given up after this time.
const PATIENCE: Duration = Duration::from_secs(1);
/// A peer without a receive is asked again so often, and given up after as many of these as the pair was told.
const NOT_READY: Duration = Duration::from_micros(500);
/// Told so often, a pair asks for ever.
const FOR_EVER: u8 = 7;
/// In picoseconds: a timed card asks again after this time.
const AGAIN: u64 = 5_000_000;
/// Bytes of a message at most.
const MESSAGE: u64 = 8928;
/// Bytes of a read or write at most.
const TRANSFER: u64 = 1 << 30;

/// Requests of this process, on all its cards.
static POSTED: AtomicU64 = AtomicU64::new(0);

/// What a request does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Into a receive of the peer.
    #[default]
    Send,
    /// Into the peer's registered memory.
    Write,
    /// Out of the peer's registered memory.
    Read,
}

/// A request as it was posted.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// C's name for it.
    pub wr_id: u64,
    /// What it does.
    pub kind: Kind,
    /// Whom it goes to: card, queue pair, key.
    pub gid: Gid,
    /// See `gid`.
    pub number: u32,
    /// See `gid`.
    pub qkey: u32,
    /// The peer's memory.
    pub address: u64,
    /// The key of that memory.
    pub key: u32,
    /// Immediate.
    pub immediate: Option<u32>,
    /// Where its bytes are.
    pub pieces: [(u64, u64); SEND_PIECES],
    /// The keys of that memory.
    pub keys: [u32; SEND_PIECES],
    /// The bytes themselves, of a request that carries them.
    pub inline: Option<([u8; INLINE], usize)>,
}

impl Request {
    /// Takes over its bytes: where they are, or, inline, themselves.
    ///
    /// # Safety
    /// The list has so many pieces; inline their bytes are there.
    pub unsafe fn take(&mut self, list: *const ibv_sge, count: usize, inline: bool) -> c_int {
        let mut bytes = ([0; INLINE], 0);
        for index in 0..count {
            // SAFETY: the list has so many.
            let piece = unsafe { *list.add(index) };
            if !inline {
                self.pieces[index] = (piece.addr, u64::from(piece.length));
                self.keys[index] = piece.lkey;
                continue;
            }
            let end = bytes.1 + piece.length as usize;
            let Some(room) = bytes.0.get_mut(bytes.1..end) else { return libc::EINVAL };
            // SAFETY: C's bytes, which are there.
            let from = unsafe {
                std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(piece.addr as usize), room.len())
            };
            room.copy_from_slice(from);
            bytes.1 = end;
        }
        self.inline = inline.then_some(bytes);
        0
    }

    fn bytes(&self) -> u64 {
        match &self.inline {
            Some((_, length)) => *length as u64,
            None => self.pieces.iter().map(|(_, length)| length).sum(),
        }
    }
}

/// A request on its way.
struct Flight {
    request: Request,
    /// Number among the process's requests.
    serial: u64,
    /// When its acknowledgement is back.
    completes: u64,
    /// Since when it waits for a peer that is not ready, or not there.
    waits: Option<Instant>,
    /// What became of it, once that is settled.
    status: Option<u32>,
}

/// A request that is complete.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// C's name for it.
    pub wr_id: u64,
    /// EFA's status.
    pub status: u32,
    /// What it did, as C names it.
    pub opcode: c_uint,
}

/// The sending side of a queue pair.
pub struct Sender {
    depth: u32,
    /// Posted, and their completions not read.
    outstanding: u32,
    /// How often to ask a peer that is not ready.
    pub rnr_retry: u8,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// What is due, by time (of a timed card) or by polls, and then in the order posted.
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    done: VecDeque<Done>,
    polls: u64,
    /// How many of them the keeper has seen.
    seen: u64,
    is_dead: bool,
}

/// What came of an attempt.
enum Outcome {
    Settled(u32),
    /// Not yet; it is given up after so long, with this status.
    Later(Option<Duration>, u32),
}

impl Sender {
    /// For so many requests.
    pub fn new(depth: u32) -> Sender {
        Sender {
            depth,
            outstanding: 0,
            rnr_retry: FOR_EVER,
            flights: Vec::new(),
            free: Vec::new(),
            events: BinaryHeap::new(),
            done: VecDeque::new(),
            polls: 0,
            seen: 0,
            is_dead: false,
        }
    }

    /// Posts all of these, or none: the answer is C's code.
    pub fn post(&mut self, pair: &Pair, requests: &[Request]) -> c_int {
        if requests.is_empty() {
            return 0;
        }
        let spec = &pair.context.machine.spec;
        let first = POSTED.load(Ordering::Relaxed) + 1;
        let is_full = spec.faults.iter().any(|fault| matches!(fault, Fault::Full(at) if first >= *at));
        if is_full || self.outstanding as usize + requests.len() > self.depth as usize {
            return libc::ENOMEM;
        }
        for request in requests {
            self.begin(pair, request.clone());
        }
        // What is due at once need not wait for a poll.
        self.advance(pair);
        if !self.events.is_empty() {
            crate::keeper::wake();
        }
        0
    }

    /// The keeper's look: whether anything is on its way. Where nobody has polled since its last one, it does.
    pub fn keep(&mut self, pair: &Pair) -> bool {
        if !self.events.is_empty() && self.seen == self.polls {
            // All that waits for polls has waited long enough.
            self.polls += pair.context.machine.spec.reorder;
            self.poll(pair);
        }
        self.seen = self.polls;
        !self.events.is_empty()
    }

    fn begin(&mut self, pair: &Pair, request: Request) {
        let (context, spec) = (pair.context, &pair.context.machine.spec);
        let serial = POSTED.fetch_add(1, Ordering::Relaxed) + 1;
        self.outstanding += 1;
        let mut status = local_status(pair, &request);
        if spec.trace {
            eprintln!(
                "soft_efa: {serial} {:?} of {} B from {} to {} ({:?})",
                request.kind,
                request.bytes(),
                pair.number(),
                request.number,
                request.immediate
            );
        }
        for fault in &spec.faults {
            match fault {
                Fault::Dead(at) if serial >= *at && (serial == *at || self.is_dead) => self.is_dead = true,
                Fault::Fail(at, code) if serial == *at => status = Some(*code),
                _ => {}
            }
        }
        if self.is_dead {
            return;
        }
        let (arrives, completes) = context
            .course(request.bytes(), request.kind == Kind::Read)
            .unwrap_or_else(|| (self.polls + spec.delay(serial), 0));
        let flight = Flight { request, serial, completes, waits: None, status };
        let place = match self.free.pop() {
            Some(place) => {
                self.flights[place] = Some(flight);
                place
            }
            None => {
                self.flights.push(Some(flight));
                self.flights.len() - 1
            }
        };
        self.events.push(Reverse((arrives, serial, place)));
    }

    /// A poll: time goes on, for cards that have no other.
    pub fn poll(&mut self, pair: &Pair) {
        self.polls += 1;
        if !self.events.is_empty() {
            self.advance(pair);
        }
    }

    fn advance(&mut self, pair: &Pair) {
        let is_timed = pair.context.is_timed();
        let time = if is_timed { now() } else { self.polls };
        while let Some(&Reverse((due, serial, place))) = self.events.peek() {
            if due > time {
                return;
            }
            self.events.pop();
            let Some(mut flight) = self.flights[place].take() else { continue };
            let again = self.step(pair, &mut flight, time, is_timed);
            match again {
                Some(due) => {
                    self.flights[place] = Some(flight);
                    self.events.push(Reverse((due, serial, place)));
                }
                None => {
                    self.free.push(place);
                    self.complete(pair, &flight);
                }
            }
        }
    }

    /// Goes on with a flight that is due; when it is due again, or nothing once it is complete.
    fn step(&self, pair: &Pair, flight: &mut Flight, time: u64, is_timed: bool) -> Option<u64> {
        let later = if is_timed { time + AGAIN } else { time + 1 };
        if flight.status.is_none() {
            match deliver(pair, &flight.request, self.rnr_retry) {
                Outcome::Settled(status) => flight.status = Some(status),
                Outcome::Later(patience, status) => {
                    let waits = *flight.waits.get_or_insert_with(Instant::now);
                    if patience.is_none_or(|patience| waits.elapsed() < patience) {
                        return Some(later);
                    }
                    flight.status = Some(status);
                }
            }
        }
        (is_timed && flight.completes > time).then_some(flight.completes)
    }

    fn complete(&mut self, pair: &Pair, flight: &Flight) {
        let (spec, lost) = (&pair.context.machine.spec, Fault::Lose(flight.serial));
        if spec.trace {
            eprintln!("soft_efa: {} is complete, status {:?}", flight.serial, flight.status);
        }
        if spec.faults.contains(&lost) {
            return;
        }
        let opcode = if flight.request.kind == Kind::Write { IBV_WC_RDMA_WRITE } else { IBV_WC_SEND };
        let status = flight.status.unwrap_or(status::OK);
        self.done.push_back(Done { wr_id: flight.request.wr_id, status, opcode });
    }

    /// The oldest completion.
    pub fn done(&mut self) -> Option<Done> {
        let done = self.done.pop_front()?;
        self.outstanding -= 1;
        Some(done)
    }

    /// Lets everything arrive that can.
    pub fn flush(&mut self, pair: &Pair) {
        for flight in self.flights.iter().flatten().filter(|flight| flight.status.is_none()) {
            let _ = deliver(pair, &flight.request, self.rnr_retry);
        }
        self.events.clear();
    }
}

/// What is wrong with a request before it leaves.
fn local_status(pair: &Pair, request: &Request) -> Option<u32> {
    let most = if request.kind == Kind::Send { MESSAGE } else { TRANSFER };
    if request.bytes() > most {
        return Some(status::BAD_LENGTH);
    }
    if request.inline.is_some() {
        return None;
    }
    let access = if request.kind == Kind::Read { FILLED } else { 0 };
    let table = &pair.context.table;
    let covered = |(piece, key): (&(u64, u64), &u32)| piece.1 == 0 || table.allows(*key, piece.0, piece.1, access);
    (!request.pieces.iter().zip(&request.keys).all(covered)).then_some(status::INVALID_LKEY)
}

/// Does what a request is to do at its peer.
fn deliver(pair: &Pair, request: &Request, rnr_retry: u8) -> Outcome {
    let context = pair.context;
    let Some(peer) = context.peers.find(&request.gid, request.number) else {
        // A machine that is there says that it has no such queue pair; one that is not says nothing.
        return match Shared::exists(&card_name(&request.gid)) {
            true => Outcome::Settled(status::REMOTE_BAD_NUMBER),
            false => Outcome::Later(Some(PATIENCE), status::UNRESPONSIVE),
        };
    };
    if peer.page.qkey().load(Ordering::Relaxed) != request.qkey {
        return Outcome::Settled(status::REMOTE_BAD_NUMBER);
    }
    let pid = peer.page.pid();
    let moves = request.kind == Kind::Send || context.machine.moves.load(Ordering::Relaxed);
    let bytes = request.bytes();
    let inline;
    let pieces: &[(u64, u64)] = match &request.inline {
        Some((bytes, length)) => {
            inline = [(bytes.as_ptr().expose_provenance() as u64, *length as u64)];
            &inline
        }
        None => &request.pieces,
    };
    let gone = |refused: Refused| match refused {
        Refused::Gone => {
            context.peers.forget(&request.gid, request.number);
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
        source: pair.number(),
        gid: context.device.gid,
        bytes: bytes as u32,
        immediate: request.immediate,
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
        return Outcome::Settled(status);
    }
    let mut arrival = arrival;
    if request.immediate.is_some() && peer.page.is_solicited() {
        let Some(receive) = peer.page.take() else { return not_ready() };
        arrival.wr_id = Some(receive.wr_id);
    }
    let (access, out) = if request.kind == Kind::Write { (WRITTEN, true) } else { (READ, false) };
    let moved = match bytes {
        0 => alive(pid),
        _ => peer.table.hold(request.key, request.address, bytes, access).and_then(|_hold| match moves {
            // SAFETY: C leaves the bytes alone until the completion.
            true => unsafe { memory::copy(pid, pieces, &[(request.address, bytes)], out) }.map(|_| ()),
            false => alive(pid),
        }),
    };
    if let Err(refused) = moved {
        return Outcome::Settled(gone(refused));
    }
    if request.immediate.is_some() && !peer.page.put(&arrival) {
        // It has no room for it now.
        return not_ready();
    }
    Outcome::Settled(status::OK)
}

fn is_alive(pid: i32) -> bool {
    // SAFETY: sends nothing.
    unsafe { libc::kill(pid, 0) == 0 }
}

fn alive(pid: i32) -> Result<(), Refused> {
    if is_alive(pid) { Ok(()) } else { Err(Refused::Gone) }
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

/// How C names a status.
pub fn verbs_status(status: u32) -> c_uint {
    match status {
        status::OK => IBV_WC_SUCCESS,
        1 => IBV_WC_WR_FLUSH_ERR,
        2..=4 => IBV_WC_LOC_QP_OP_ERR,
        status::INVALID_LKEY => IBV_WC_LOC_PROT_ERR,
        status::BAD_LENGTH => IBV_WC_LOC_LEN_ERR,
        status::REMOTE_BAD_ADDRESS => IBV_WC_REM_ACCESS_ERR,
        8 => IBV_WC_REM_ABORT_ERR,
        status::REMOTE_BAD_NUMBER => IBV_WC_REM_INV_RD_REQ_ERR,
        status::REMOTE_NOT_READY => IBV_WC_RNR_RETRY_EXC_ERR,
        status::REMOTE_BAD_LENGTH => IBV_WC_REM_INV_REQ_ERR,
        status::REMOTE_BAD_STATUS => IBV_WC_BAD_RESP_ERR,
        status::UNRESPONSIVE | 15 => IBV_WC_RESP_TIMEOUT_ERR,
        14 => IBV_WC_REM_OP_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}
