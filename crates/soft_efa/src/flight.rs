//! Requests in flight: their arrival times, and their completion.
//!
//! A device works inside calls of its process: when requests are posted and when completions are polled. If no thread
//! polls, a background thread of the process does ([`SendSide::keep`]). Requests arrive in an order drawn from the
//! seed, because EFA's reliable datagrams are unordered.

use crate::deliver::{DeliveryOutcome, FOR_EVER, deliver, local_status};
use crate::origin::Origin;
use crate::request::{PostedRequest, RequestIdentity, RequestKind};
use crate::status;
use crate::wire::now;
use card_model::NicFault;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Retry interval of a timed device, in picoseconds.
const AGAIN: u64 = 5_000_000;

/// A request in flight.
struct Flight {
    request: PostedRequest,
    /// Number among the process's requests.
    serial: u64,
    /// Time at which the request's acknowledgement arrives.
    completes: u64,
    /// Time at which the request started to wait for a peer that is not ready or does not exist.
    waits: Option<Instant>,
    /// Final status, once it is known.
    status: Option<u32>,
}

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub struct CompletedRequest {
    /// C's ID of the request.
    pub wr_id: u64,
    /// EFA status code.
    pub status: u32,
    /// Kind of the request.
    pub kind: RequestKind,
}

/// Send side of a queue pair.
pub struct SendSide {
    origin: Arc<Origin>,
    depth: u32,
    /// Requests posted whose completions have not been read.
    outstanding: u32,
    /// Number of retries if a peer is not ready.
    pub rnr_retry: u8,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Due requests: time (of a timed device) or number of polls, then serial number and index.
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    done: VecDeque<CompletedRequest>,
    polls: u64,
    /// Maximum number of completions kept for callers that poll through the C functions, if C writes the rings of the
    /// queue pair. A request's slot is then freed on completion, not when the completion is read. `None` for other
    /// queue pairs.
    pub kept: Option<usize>,
    /// Number of polls that the keeper has seen.
    seen: u64,
}

impl SendSide {
    /// Creates a send side for `depth` requests from `origin`.
    pub fn new(origin: Arc<Origin>, depth: u32) -> SendSide {
        SendSide {
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
        }
    }

    /// Posts all of these requests, or none. Returns C's error code.
    pub fn post(&mut self, requests: &[PostedRequest]) -> c_int {
        if requests.is_empty() {
            return 0;
        }
        if self.origin.context.machine.is_full() || self.outstanding as usize + requests.len() > self.depth as usize {
            return libc::ENOMEM;
        }
        for request in requests {
            self.begin(request.clone());
        }
        // Processes requests that are due immediately without waiting for a poll.
        self.advance();
        0
    }

    /// Returns whether any request is in flight.
    pub fn is_busy(&self) -> bool {
        !self.events.is_empty()
    }

    /// Called by the keeper: polls if there was no poll since its last call. Returns whether any request is in flight.
    pub fn keep(&mut self) -> bool {
        if self.is_busy() && self.seen == self.polls {
            // Requests that are delayed by a number of polls have waited long enough.
            self.polls += self.origin.context.machine.spec.reorder;
            self.poll();
        }
        self.seen = self.polls;
        self.is_busy()
    }

    /// Starts a request.
    pub fn begin(&mut self, mut request: PostedRequest) {
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
                NicFault::Dead(at) if serial == *at => {
                    context.machine.dead[context.device.card].store(true, Ordering::Relaxed)
                }
                NicFault::Fail(at, code) if serial == *at => status = Some(*code),
                NicFault::Short(at) if serial == *at => request.drop_last_byte(),
                _ => {}
            }
        }
        // Uses relaxed order: the flag orders nothing. All queues of the NIC drop requests that are posted afterwards.
        if context.machine.dead[context.device.card].load(Ordering::Relaxed) {
            return;
        }
        let (arrives, completes) = match context.times(&request) {
            Some(times) => (times.arrives, times.completes),
            None => (self.polls + spec.delay(serial), 0),
        };
        let mut flight = Flight { request, serial, completes, waits: None, status };
        // A request that is due now, with none before it, is processed without queueing.
        let is_next =
            self.kept.is_some() && self.events.is_empty() && !context.wire.is_timed() && arrives <= self.polls;
        let arrives = match is_next {
            true => match self.step(&mut flight, (arrives, self.polls), false) {
                Some(again) => again,
                None => return self.complete(&flight),
            },
            false => arrives,
        };
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

    /// Counts a poll, which is the unit of time of untimed devices, and processes due requests.
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

    /// Processes a due request. Returns the time at which it is due again, or `None` once it is complete.
    fn step(&self, flight: &mut Flight, (due, time): (u64, u64), is_timed: bool) -> Option<u64> {
        let later = if is_timed { time + AGAIN } else { time + 1 };
        if flight.status.is_none() {
            match deliver(&self.origin, &flight.request, self.rnr_retry) {
                DeliveryOutcome::Settled(status) => {
                    flight.status = Some(status);
                    if is_timed {
                        let context = self.origin.context;
                        context.machine.late[context.device.card].add(due, now());
                    }
                }
                DeliveryOutcome::Later(patience, status) => {
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
        let (spec, lost) = (&self.origin.context.machine.spec, NicFault::Lose(flight.serial));
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

    fn tell(&mut self, wr_id: u64, kind: RequestKind, status: u32, is_silent: bool) {
        let operation = match kind {
            RequestKind::Send => 0,
            RequestKind::Read => 2,
            RequestKind::Write => 4,
        };
        if let Some(counter) = self.origin.counters[operation].get() {
            counter.add(1, status);
        }
        if is_silent && status == status::OK {
            return;
        }
        if self.kept.is_some_and(|kept| self.done.len() >= kept) {
            // The caller does not read them: a full completion queue is overwritten.
            self.done.pop_front();
        }
        self.done.push_back(CompletedRequest { wr_id, status, kind });
    }

    /// Completes a request that was never in flight with this status.
    pub fn end(&mut self, identity: RequestIdentity, status: u32) {
        self.tell(identity.wr_id, identity.kind, status, false);
    }

    /// Flushes all requests in flight, in the order posted; the first one completes with status `first`. Returns
    /// whether there were any.
    pub fn end_all(&mut self, first: u32) -> bool {
        self.events.clear();
        let mut ended: Vec<Flight> = self.flights.drain(..).flatten().collect();
        self.free.clear();
        ended.sort_by_key(|flight| flight.serial);
        for (index, flight) in ended.iter_mut().enumerate() {
            flight.status = Some(if index == 0 { first } else { status::FLUSHED });
            self.complete(flight);
        }
        !ended.is_empty()
    }

    /// Returns the number of requests that have been started and are not complete.
    pub fn under_way(&self) -> u32 {
        self.outstanding
    }

    /// Returns whether there are completions.
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Removes and returns the oldest completion.
    pub fn done(&mut self) -> Option<CompletedRequest> {
        let done = self.done.pop_front()?;
        if self.kept.is_none() {
            self.outstanding -= 1;
        }
        Some(done)
    }

    /// Delivers all requests that can be delivered.
    pub fn flush(&mut self) {
        for flight in self.flights.iter().flatten().filter(|flight| flight.status.is_none()) {
            let _ = deliver(&self.origin, &flight.request, self.rnr_retry);
        }
        self.events.clear();
    }
}
