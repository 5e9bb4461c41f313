//! The wire between the PEs. Posted transfers remain here until the explorer delivers them and lets either side observe
//! them.
//!
//! The wire also checks for errors that no network can tolerate. These are a source that is written while its put is in
//! flight, and concurrent puts of different bytes to the same location. Between post and arrival, a destination
//! contains [`POISON`], so that premature reads and prematurely returned slots do not contain the correct bytes by
//! chance.

use ginlab::fabric::{Access, Completion, FabricError, MemoryRange, Post, Rail, RailLimits, RemoteRegion, Transfer};
use kernels::command::SIGNALS;
use std::cell::RefCell;
use std::rc::Rc;

/// Content of a destination between the post of a put and its arrival.
const POISON: u8 = 0xEE;

/// First two bits of an immediate that returns credits.
const CREDIT: u32 = 3;

/// A posted transfer.
#[derive(Debug)]
pub struct Flight {
    pub source: usize,
    pub target: usize,
    pub from: u64,
    pub to: u64,
    pub immediate: Option<u32>,
    token: u64,
    /// The bytes at the time of posting.
    pub bytes: Box<[u8]>,
    /// Whether the bytes have arrived at the target.
    pub arrived: bool,
    /// Whether the target has polled the immediate, if there is one.
    pub told: bool,
    /// Whether the source has polled the completion.
    pub completed: bool,
}

impl Flight {
    /// Returns a hash of the transfer and its progress that does not depend on the order of posting.
    pub fn summary(&self) -> u64 {
        let place = (self.source as u64) << 56 | (self.target as u64) << 48 | self.from << 24 | self.to;
        let state = u64::from(self.arrived) | u64::from(self.told) << 1 | u64::from(self.completed) << 2;
        let said = self.immediate.map_or(0, |immediate| u64::from(immediate) + 1);
        super::mix(super::mix(place, self.token), said << 3 | state)
    }

    /// Describes the immediate.
    pub fn says(&self) -> String {
        let Some(bits) = self.immediate else { return "nothing".into() };
        match bits >> 30 {
            0 => format!("signal {} + {}", bits & (SIGNALS - 1), (bits >> 12) + 1),
            CREDIT => format!("{} places given back", bits & 0xffff),
            kind => format!("{} of place {}", if kind == 1 { "a part" } else { "the signal" }, bits >> 16 & 0x3fff),
        }
    }

    fn meets(&self, other: &Flight) -> bool {
        let end = |flight: &Flight| flight.to + flight.bytes.len() as u64;
        self.target == other.target && self.to < end(other) && other.to < end(self)
    }

    /// Returns whether the transfers have different bytes where they overlap.
    fn differs(&self, other: &Flight) -> bool {
        let first = self.to.max(other.to);
        let end = (self.to + self.bytes.len() as u64).min(other.to + other.bytes.len() as u64);
        let part = |flight: &Flight| flight.bytes[(first - flight.to) as usize..(end - flight.to) as usize].to_vec();
        part(self) != part(other)
    }
}

/// The wire between the PEs.
#[derive(Default)]
pub struct ExploreWire {
    heaps: Vec<*mut u8>,
    pub flights: Vec<Flight>,
    /// Completions that each PE's rail returns at its next poll.
    queues: Vec<Vec<Completion>>,
    /// Maximum number of transfers in flight per rail, beyond which posts return EAGAIN.
    room: usize,
    /// Fault to inject: a target returns one place of its account more than it has processed.
    credits_early: bool,
    /// Whether the execution is over, so that polled transfers complete.
    pub closed: bool,
    pub failure: Option<String>,
}

impl ExploreWire {
    pub fn new(heaps: Vec<*mut u8>, room: usize, credits_early: bool) -> Rc<RefCell<ExploreWire>> {
        let queues = heaps.iter().map(|_| Vec::new()).collect();
        Rc::new(RefCell::new(ExploreWire { heaps, room, credits_early, queues, ..ExploreWire::default() }))
    }

    fn memory(&self, pe: usize, offset: u64, bytes: usize) -> *mut [u8] {
        // SAFETY: the engine has checked that the range is in the heap.
        std::ptr::slice_from_raw_parts_mut(unsafe { self.heaps[pe].add(offset as usize) }, bytes)
    }

    fn fail(&mut self, text: String) {
        self.failure.get_or_insert(text);
    }

    fn post(&mut self, source: usize, transfer: &Transfer) -> Post {
        let under_way = self.flights.iter().filter(|flight| flight.source == source && !flight.completed).count();
        if under_way >= self.room {
            return Post::Again;
        }
        let Transfer { local_offset: from, peer: target, remote_offset: to, immediate, token, .. } = *transfer;
        // The count of a credit is in the low bits (host/proxy/signal_order.rs).
        let early = |immediate: u32| immediate + u32::from(self.credits_early && immediate >> 30 == CREDIT);
        let immediate = immediate.map(early);
        let length = transfer.bytes as usize;
        // SAFETY: kernels also run on this CPU thread, and none has a reference into its heap while it does not run.
        let bytes: Box<[u8]> = unsafe { &*self.memory(source, from, length) }.into();
        let flight = Flight {
            source,
            target,
            from,
            to,
            immediate,
            token,
            arrived: bytes.is_empty(),
            bytes,
            told: immediate.is_none(),
            completed: false,
        };
        let number = self.flights.len();
        let others = || self.flights.iter().enumerate().filter(|(_, other)| !other.completed && flight.meets(other));
        if let Some((first, _)) = others().find(|(_, other)| flight.differs(other)) {
            self.fail(format!(
                "puts {first} and {number} of different bytes are under way to one place of PE {target}"
            ));
        } else if others().next().is_none() {
            // SAFETY: as for the source, no kernel has a reference into its heap now.
            unsafe { &mut *self.memory(target, to, length) }.fill(POISON);
        }
        self.flights.push(flight);
        Post::Accepted
    }

    /// Checks that the source of a put has not changed since it was posted.
    fn check_source(&mut self, number: usize) {
        let flight = &self.flights[number];
        // SAFETY: as in `post`, no kernel has a reference into its heap now.
        let now = unsafe { &*self.memory(flight.source, flight.from, flight.bytes.len()) };
        if *now != *flight.bytes {
            let text = format!("PE {} has written the source of put {number}, which is under way", flight.source);
            self.fail(text);
        }
    }

    /// Makes the bytes of a transfer arrive at the target.
    pub fn arrive(&mut self, number: usize) {
        self.check_source(number);
        let flight = &mut self.flights[number];
        flight.arrived = true;
        let flight = &self.flights[number];
        let memory = self.memory(flight.target, flight.to, flight.bytes.len());
        // SAFETY: as in `post`, no kernel has a reference into its heap now.
        unsafe { &mut *memory }.copy_from_slice(&flight.bytes);
    }

    /// Makes the target's next poll return the immediate. Returns the target.
    pub fn tell(&mut self, number: usize) -> usize {
        let flight = &mut self.flights[number];
        flight.told = true;
        if let Some(value) = flight.immediate {
            self.queues[flight.target].push(Completion::Immediate { value });
        }
        flight.target
    }

    /// Makes the source's next poll return the completion. Returns the source.
    pub fn complete(&mut self, number: usize) -> usize {
        self.check_source(number);
        let flight = &mut self.flights[number];
        flight.completed = true;
        self.queues[flight.source].push(Completion::Done { token: flight.token });
        flight.source
    }
}

/// Rail of a PE.
pub struct WireRail {
    pe: usize,
    limits: RailLimits,
    wire: Rc<RefCell<ExploreWire>>,
}

impl WireRail {
    pub fn new(pe: usize, longest: u64, wire: &Rc<RefCell<ExploreWire>>) -> WireRail {
        let limits = RailLimits {
            max_transfer_bytes: longest,
            max_outstanding: wire.borrow().room,
            immediate_bytes: 4,
            link_bits_per_second: None,
            cuda_memory: false,
        };
        WireRail { pe, limits, wire: wire.clone() }
    }
}

impl Rail for WireRail {
    /// Length of the region. The only region is the heap.
    type Region = u64;

    fn name(&self) -> &str {
        "wire"
    }
    fn limits(&self) -> &RailLimits {
        &self.limits
    }
    fn address(&self) -> Result<Vec<u8>, FabricError> {
        Ok(Vec::new())
    }
    fn add_peer(&mut self, _: &[u8]) -> Result<usize, FabricError> {
        Err(self.has_none("peers one by one"))
    }
    fn remove_peer(&mut self, _: usize) -> Result<(), FabricError> {
        Err(self.has_none("peers that leave"))
    }
    unsafe fn register(&mut self, memory: MemoryRange, _: Access) -> Result<u64, FabricError> {
        Ok(memory.bytes as u64)
    }
    fn remote(&self, region: &u64) -> RemoteRegion {
        RemoteRegion { key: 0, base: 0, bytes: *region }
    }
    unsafe fn write(&mut self, _: &u64, transfer: &Transfer) -> Result<Post, FabricError> {
        if transfer.bytes == 0 && transfer.immediate.is_none() {
            return Err(self.has_none("writes of nothing that say nothing"));
        }
        Ok(self.wire.borrow_mut().post(self.pe, transfer))
    }
    unsafe fn read(&mut self, _: &u64, _: &Transfer) -> Result<Post, FabricError> {
        Err(self.has_none("reads"))
    }
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut wire = self.wire.borrow_mut();
        completions.append(&mut wire.queues[self.pe]);
        if wire.closed {
            let open = wire.flights.iter_mut().filter(|flight| flight.source == self.pe && !flight.completed);
            completions.extend(open.map(|flight| {
                flight.completed = true;
                Completion::Done { token: flight.token }
            }));
        }
        Ok(())
    }
}
