//! The least ordered network that EFA permits: `-p worst`, on one machine, without libfabric.
//!
//! Bytes are transferred through shared memory, as over [`same_host`](super::same_host), but late and in any order. All
//! random choices derive from one seed:
//!
//! - **Delays are counted in events**: a later post of the rail, a poll at which something arrived or was delivered, or
//!   64 polls (or 20 us; `idle=N`: N polls) without any of these. A put can therefore be overtaken by later puts of its
//!   sender, however fast the sender polls. Every transfer eventually arrives.
//! - **A write is split into packets** at random bytes. Each packet arrives at its own event, in any order.
//! - **Packets are written again** ("retransmission"), and are then read from the source again. This stops when the
//!   target is notified of the write's immediate, or the poster of its completion: a NIC drops duplicates of a
//!   completed message.
//! - **Immediates and completions** follow all bytes of their own write, at separate events, in any order.
//! - **"Again"** may be returned for any post, at most three times in a row. A rail also ignores arrivals for some
//!   polls.
//! - **The rail checks for errors**, and names them. These are a source that changes between the post and the
//!   completion, two concurrent puts of different bytes to one destination, and a get of bytes to which a put is in
//!   flight. Destinations contain a poison value from the post to the arrival.
//! - **A completion queue is limited** if `queue=N` is set: immediates arrive whether or not their target polls, and
//!   can overrun it.
//!
//! Memory that peers write to or read must be in [`MemoryLocation::File`](ginlab_cuda::MemoryLocation).
//! docs/worst-network.md documents the guarantees of EFA and the meaning of the errors.

mod bytes;
mod claims;
mod faults;
mod flight;
mod landed;
mod law;
mod mailbox;
mod messages;
mod rail_messages;
mod spec;
#[cfg(test)]
mod tests;
mod traffic;
mod transfers;

pub use spec::{NAME, WorstSpec, is_asked};

use super::same_host::SameHostRegion;
use super::same_host::inbox::Inbox;
use super::same_host::peers::{self, Peers, failed, key_of, name_of};
use super::{Access, Completion, FabricError, MemoryRange, Post, Rail, RailLimits, RemoteRegion, Transfer};
use claims::Claims;
use flight::Flight;
use law::{EventQueue, RailRandom};
use messages::Messages;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of transfers in flight.
const OUTSTANDING: usize = 512;
/// Number of polls without an event that count as an event.
const IDLE_POLLS: u64 = 64;
/// Time without an event that counts as an event, so that rare polls do not prolong the delays.
const IDLE_TIME: Duration = Duration::from_micros(20);
/// Number of idle polls between two reads of the clock.
const IDLE_LOOK: u32 = 8;
/// Maximum number of "again" answers in a row.
const AGAINS: u32 = 3;
/// Mean number of polls between periods in which the rail ignores arrivals, and maximum number of polls of such a
/// period.
const DEAF: u64 = 48;
/// Number of polls between two checks of whether the peers' processes are alive.
const LOOK_EVERY: u32 = 4096;

/// Identity of a rail, for messages and seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Index of the rank.
    pub rank: u32,
    /// Index of the rail's proxy thread; 0 if the CPU posts without a proxy.
    pub proxy: u16,
    /// Index of the rail in that thread.
    pub rail: u16,
}

/// A rail of the worst-case network. See the module documentation.
#[derive(Debug)]
pub struct WorstRail {
    name: String,
    spec: WorstSpec,
    who: Who,
    limits: RailLimits,
    law: RailRandom,
    inbox: Inbox,
    peers: Peers,
    /// Claims on each peer's memory, the key of its mailbox (0 for none), and its rank.
    tables: Vec<(Arc<Claims>, u64, u32)>,
    ours: Arc<Claims>,
    messages: Option<Messages>,
    /// Transfers in flight, by numbers that are never reused.
    flights: HashMap<u64, Flight>,
    last: u64,
    agenda: EventQueue<Due>,
    events: u64,
    polls: u32,
    idle: u32,
    idle_since: Option<Instant>,
    deaf: u64,
    agains: u32,
    regions: u32,
    /// Key of the first region's file.
    home: u64,
    ready: Vec<Completion>,
    arrived: Vec<u32>,
    bounce: Vec<u8>,
}

/// A registered region with its number on this rail, from 0.
#[derive(Clone, Debug)]
pub struct WorstRegion {
    near: SameHostRegion,
    number: u32,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    /// A packet of a flight arrives, possibly not for the first time.
    Packet(u64, usize),
    /// A flight's immediate is sent to the target.
    Signal(u64),
    /// A flight completes.
    Complete(u64),
    /// An immediate of a peer is reported.
    Tell(u32),
    Message(messages::Due),
}

impl WorstRail {
    /// Opens a rail. With `messages`, the rail can send and receive messages.
    ///
    /// # Errors
    /// Returns an error if there is no shared memory for the structures to which peers write.
    pub fn open(spec: &WorstSpec, who: Who, messages: bool) -> Result<WorstRail, FabricError> {
        let name = format!("{spec} ({who})");
        let refused = |error: io::Error| failed(&name, "opening a rail in shared memory", &error);
        let (inbox, ours) = (Inbox::new().map_err(refused)?, Claims::of_this_process().map_err(refused)?);
        let messages = if messages { Some(Messages::new(spec).map_err(refused)?) } else { None };
        let limits = RailLimits {
            max_transfer_bytes: spec.longest,
            max_outstanding: OUTSTANDING,
            immediate_bytes: 4,
            link_bits_per_second: None,
            cuda_memory: false,
        };
        Ok(WorstRail {
            name,
            spec: *spec,
            who,
            limits,
            law: RailRandom::new(spec, who),
            inbox,
            peers: Peers::default(),
            tables: Vec::new(),
            ours,
            messages,
            flights: HashMap::new(),
            last: 0,
            agenda: EventQueue::default(),
            events: 0,
            polls: 0,
            idle: 0,
            idle_since: None,
            deaf: 0,
            agains: 0,
            regions: 0,
            home: 0,
            ready: Vec::new(),
            arrived: Vec::new(),
            bounce: Vec::new(),
        })
    }

    /// Returns the byte with which destinations are filled until the put arrives. `None` if they are not filled.
    fn poison(&self) -> Option<u8> {
        self.spec.poison.then_some(self.spec.poison_byte())
    }

    fn answers_again(&mut self) -> bool {
        let again = self.agains < AGAINS && self.law.happens(self.spec.again);
        self.agains = if again { self.agains + 1 } else { 0 };
        again
    }

    fn put_off(&mut self, delay: u64, due: Due) {
        self.agenda.put_off(self.events + delay, due, &mut self.law);
    }

    #[cold]
    fn end(&mut self, token: u64, error: FabricError) {
        self.ready.push(Completion::Failed { token: Some(token), error: Box::new(error) });
    }

    fn act(&mut self, due: Due) {
        match due {
            Due::Packet(key, number) => self.deliver(key, number),
            Due::Signal(key) => {
                if !self.signal(key) {
                    self.put_off(1, Due::Signal(key));
                }
            }
            Due::Complete(key) => self.complete(key),
            Due::Tell(value) => self.ready.push(Completion::Immediate { value }),
            Due::Message(messages::Due::Received { token, bytes }) => {
                self.ready.push(Completion::Received { token, bytes });
            }
            Due::Message(messages::Due::Chunk(key)) => self.message(key, false),
            Due::Message(messages::Due::Sent(key)) => self.message(key, true),
        }
    }

    fn message(&mut self, key: u64, done: bool) {
        let Some(messages) = &mut self.messages else { return };
        match messages.act(key, done) {
            Ok(token) => self.ready.extend(token.map(|token| Completion::Done { token })),
            Err(broken) => self.break_message(&broken),
        }
    }

    /// Takes the immediates and messages that peers have sent, unless this poll ignores arrivals. Returns whether there
    /// were any.
    fn take(&mut self) -> Result<bool, FabricError> {
        if self.deaf > 0 {
            self.deaf -= 1;
            return Ok(false);
        }
        if self.law.below(DEAF) == 0 {
            self.deaf = self.law.below(DEAF);
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        self.inbox.take(|value| arrived.push(value));
        // Immediates that arrived since the last check were all in the queue at the same time.
        let unpolled = arrived.len() as u64;
        if let Some(room) = self.spec.queue.filter(|room| unpolled > *room) {
            return Err(faults::overrun(&self.name, unpolled, room));
        }
        let mut any = !arrived.is_empty();
        for value in arrived.drain(..) {
            let delay = self.law.delay();
            self.put_off(delay, Due::Tell(value));
        }
        self.arrived = arrived;
        let Some(messages) = &mut self.messages else { return Ok(any) };
        let (agenda, events, mut broken) = (&mut self.agenda, self.events, Vec::new());
        let later = |due, law: &mut RailRandom| {
            any = true;
            let delay = if matches!(due, messages::Due::Chunk(_)) { law.short() } else { law.delay() };
            agenda.put_off(events + delay, Due::Message(due), law);
        };
        messages.look(&mut self.law, later, &mut broken);
        broken.iter().for_each(|broken| self.break_message(broken));
        Ok(any)
    }

    fn pass(&mut self, moved: bool) -> u64 {
        if moved || self.agenda.is_empty() {
            (self.idle, self.idle_since) = (0, None);
            return u64::from(moved);
        }
        self.idle += 1;
        let mut events = u64::from(u64::from(self.idle) >= self.spec.idle.unwrap_or(IDLE_POLLS));
        if events == 0 && self.spec.idle.is_none() && self.idle.is_multiple_of(IDLE_LOOK) {
            let waited = self.idle_since.get_or_insert_with(Instant::now).elapsed();
            events = (waited.as_micros() / IDLE_TIME.as_micros()) as u64;
        }
        if events > 0 {
            (self.idle, self.idle_since) = (0, None);
        }
        events
    }

    #[cold]
    fn look(&mut self) {
        self.peers.look();
        let Some(messages) = &mut self.messages else { return };
        let peers = &self.peers;
        for (token, peer, bytes) in messages.give_up(|peer| peers.get(peer).is_none_or(|peer| peer.has_ended)) {
            let error = faults::gone(&self.name, token, peer, bytes);
            self.end(token, error);
        }
    }
}

impl Rail for WorstRail {
    type Region = WorstRegion;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &RailLimits {
        &self.limits
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        let mailbox = self.messages.as_ref().map_or(0, |messages| key_of(messages.mailbox().name()));
        let keys = [key_of(self.ours.name()), mailbox, self.who.rank.into()].map(u64::to_le_bytes);
        Ok([&peers::address(self.inbox.name())[..], keys.as_flattened()].concat())
    }

    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        let (near, keys) = address.split_at_checked(address.len().saturating_sub(24)).unwrap_or((address, &[]));
        let peer = self.peers.add(&self.name, near)?;
        let key = |at: usize| keys.get(at..at + 8).and_then(|key| key.try_into().ok()).map_or(0, u64::from_le_bytes);
        let pid = self.peers.get(peer).map_or(0, |peer| peer.inbox.pid);
        let theirs = if key(0) == key_of(self.ours.name()) && pid == std::process::id() {
            Ok(self.ours.clone())
        } else {
            Claims::open(name_of(pid, key(0))).map(Arc::new)
        };
        let (table, error) = match theirs {
            Ok(table) => (table, None),
            Err(error) => (self.ours.clone(), Some(failed(&self.name, format!("connecting to peer {peer}"), &error))),
        };
        self.tables.push((table, key(8), key(16) as u32));
        match error {
            None => Ok(peer),
            Some(error) => self.peers.remove(&self.name, peer).and(Err(error)),
        }
    }

    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        self.peers.remove(&self.name, peer)
    }

    unsafe fn register(&mut self, memory: MemoryRange, _access: Access) -> Result<WorstRegion, FabricError> {
        let near = SameHostRegion::new(&self.name, memory)?;
        self.regions += 1;
        self.home = if self.home == 0 { near.remote().key } else { self.home };
        Ok(WorstRegion { near, number: self.regions - 1 })
    }

    fn remote(&self, region: &WorstRegion) -> RemoteRegion {
        region.near.remote()
    }

    unsafe fn write(&mut self, region: &WorstRegion, t: &Transfer) -> Result<Post, FabricError> {
        // Refused like in libfabric's rails, so that tests over this rail also detect the mistake.
        if t.bytes == 0 && t.immediate.is_none() {
            return Err(self.has_none("the transfer has neither bytes nor an immediate"));
        }
        self.post(region, t, false)
    }

    unsafe fn read(&mut self, region: &WorstRegion, t: &Transfer) -> Result<Post, FabricError> {
        self.post(region, t, true)
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
        let mut moved = self.take()?;
        while let Some(due) = self.agenda.take_due(self.events) {
            moved = true;
            self.act(due);
        }
        self.events += self.pass(moved);
        completions.append(&mut self.ready);
        Ok(())
    }
}

impl Drop for WorstRail {
    /// Ends all writes of transfers in flight.
    fn drop(&mut self) {
        self.flights.values_mut().for_each(Flight::close);
    }
}
