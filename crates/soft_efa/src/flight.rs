//! Requests on their way: when each arrives, and what becomes of it.
//!
//! A card here works inside the calls of the process whose it is: when requests are posted and when completions are polled for;
//! when nobody polls, a thread of the process does ([`Sender::keep`]). Requests arrive in an order that the seed draws, since EFA's
//! reliable datagrams have none.

use crate::deliver::{FOR_EVER, Outcome, deliver, local_status};
use crate::origin::Origin;
use crate::request::{Kind, Request};
use crate::status;
use crate::wire::now;
use card_model::Fault;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// In picoseconds: a timed card asks again after this time.
const AGAIN: u64 = 5_000_000;

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
    /// What it did.
    pub kind: Kind,
}

/// The sending side of a queue pair.
pub struct Sender {
    origin: Arc<Origin>,
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
    /// Of a pair whose rings C writes: so many completions are kept for who polls by C's functions. A request's place is free when it is
    /// complete, and not when that is read.
    pub kept: Option<usize>,
    /// How many of them the keeper has seen.
    seen: u64,
    is_dead: bool,
}

impl Sender {
    /// For so many requests from there.
    pub fn new(origin: Arc<Origin>, depth: u32) -> Sender {
        Sender {
            origin,
            depth,
            outstanding: 0,
            rnr_retry: FOR_EVER,
            flights: Vec::new(),
            free: Vec::new(),
            events: BinaryHeap::new(),
            done: VecDeque::new(),
            polls: 0,
            kept: None,
            seen: 0,
            is_dead: false,
        }
    }

    /// Posts all of these, or none: the answer is C's code.
    pub fn post(&mut self, requests: &[Request]) -> c_int {
        if requests.is_empty() {
            return 0;
        }
        if self.origin.context.machine.is_full() || self.outstanding as usize + requests.len() > self.depth as usize {
            return libc::ENOMEM;
        }
        for request in requests {
            self.begin(request.clone());
        }
        // What is due at once need not wait for a poll.
        self.advance();
        0
    }

    /// Whether anything is on its way.
    pub fn is_busy(&self) -> bool {
        !self.events.is_empty()
    }

    /// The keeper's look: whether anything is on its way. Where nobody has polled since its last one, it does.
    pub fn keep(&mut self) -> bool {
        if self.is_busy() && self.seen == self.polls {
            // All that waits for polls has waited long enough.
            self.polls += self.origin.context.machine.spec.reorder;
            self.poll();
        }
        self.seen = self.polls;
        self.is_busy()
    }

    /// Takes a request.
    pub fn begin(&mut self, request: Request) {
        let context = self.origin.context;
        let spec = &context.machine.spec;
        let serial = context.machine.posted.fetch_add(1, Ordering::Relaxed) + 1;
        self.outstanding += 1;
        let mut status = local_status(&self.origin, &request);
        if spec.trace {
            eprintln!(
                "soft_efa: {serial} {:?} of {} B from {} to {} ({:?})",
                request.kind,
                request.bytes(),
                self.origin.number,
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
        let (arrives, completes) = match context.times(&request) {
            Some(times) => (times.arrives, times.completes),
            None => (self.polls + spec.delay(serial), 0),
        };
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
    pub fn poll(&mut self) {
        self.polls += 1;
        if !self.events.is_empty() {
            self.advance();
        }
    }

    fn advance(&mut self) {
        let is_timed = self.origin.context.wire.is_timed();
        let time = if is_timed { now() } else { self.polls };
        while let Some(&Reverse((due, serial, place))) = self.events.peek() {
            if due > time {
                return;
            }
            self.events.pop();
            let Some(mut flight) = self.flights[place].take() else { continue };
            let again = self.step(&mut flight, (due, time), is_timed);
            match again {
                Some(due) => {
                    self.flights[place] = Some(flight);
                    self.events.push(Reverse((due, serial, place)));
                }
                None => {
                    self.free.push(place);
                    self.complete(&flight);
                }
            }
        }
    }

    /// Goes on with a flight that is due; when it is due again, or nothing once it is complete.
    fn step(&self, flight: &mut Flight, (due, time): (u64, u64), is_timed: bool) -> Option<u64> {
        let later = if is_timed { time + AGAIN } else { time + 1 };
        if flight.status.is_none() {
            match deliver(&self.origin, &flight.request, self.rnr_retry) {
                Outcome::Settled(status) => {
                    flight.status = Some(status);
                    if is_timed {
                        let context = self.origin.context;
                        context.machine.late[context.device.card].add(due, now());
                    }
                }
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

    fn complete(&mut self, flight: &Flight) {
        let (spec, lost) = (&self.origin.context.machine.spec, Fault::Lose(flight.serial));
        if spec.trace {
            eprintln!("soft_efa: {} is complete, status {:?}", flight.serial, flight.status);
        }
        if spec.faults.contains(&lost) {
            return;
        }
        if self.kept.is_some() {
            self.outstanding -= 1;
        }
        let (request, status) = (&flight.request, flight.status.unwrap_or(status::OK));
        self.tell(request.wr_id, request.kind, status, request.is_silent);
    }

    fn tell(&mut self, wr_id: u64, kind: Kind, status: u32, is_silent: bool) {
        let operation = match kind {
            Kind::Send => 0,
            Kind::Read => 2,
            Kind::Write => 4,
        };
        if let Some(counter) = self.origin.counters[operation].get() {
            counter.add(1, status);
        }
        if is_silent && status == status::OK {
            return;
        }
        if self.kept.is_some_and(|kept| self.done.len() >= kept) {
            // Nobody reads them: a queue that is full is written over.
            self.done.pop_front();
        }
        self.done.push_back(Done { wr_id, status, kind });
    }

    /// A request that was never under way ends with this status.
    pub fn end(&mut self, wr_id: u64, kind: Kind, status: u32) {
        self.tell(wr_id, kind, status, false);
    }

    /// All that is under way is flushed.
    pub fn end_all(&mut self) {
        self.events.clear();
        for place in 0..self.flights.len() {
            if let Some(mut flight) = self.flights[place].take() {
                self.free.push(place);
                flight.status = Some(status::FLUSHED);
                self.complete(&flight);
            }
        }
    }

    /// Requests that have been taken and are not complete.
    pub fn under_way(&self) -> u32 {
        self.outstanding
    }

    /// The oldest completion.
    pub fn done(&mut self) -> Option<Done> {
        let done = self.done.pop_front()?;
        if self.kept.is_none() {
            self.outstanding -= 1;
        }
        Some(done)
    }

    /// Lets everything arrive that can.
    pub fn flush(&mut self) {
        for flight in self.flights.iter().flatten().filter(|flight| flight.status.is_none()) {
            let _ = deliver(&self.origin, &flight.request, self.rnr_retry);
        }
        self.events.clear();
    }
}
