//! The verbs rail: requests are written directly to the NIC's ring, as libfabric does since 2.3.

use super::device::Verbs;
use super::errors;
use super::messages::{IS_SEGMENT, Mailbox, SLOTS, Segment};
use super::pair::QueuePair;
use super::queues::{CompletionReader, Poster};
use super::region::VerbsRegion;
use super::view::PairOptions;
use crate::{
    Access, Completion, FabricError, MemoryRange, Message, Messages, Post, Rail, RailLimits, RemoteRegion, Transfer,
    mistake,
};
use efa_queue::request::{self, Head};
use efa_queue::{EfaOperation, Local, To, completion};
use slab::Slab;
use std::fmt;
use std::sync::Arc;

/// Default maximum number of requests in a queue. The NIC may support fewer.
const DEPTH: u32 = 4096;
/// Maximum number of entries read by one poll. It bounds the duration of a poll if completions arrive quickly.
const BATCH: usize = 256;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Flight {
    token: u64,
    peer: u32,
    is_read: bool,
    bytes: u64,
}

/// A peer: the destination of its requests, and its address.
#[derive(Debug)]
struct Peer {
    to: To,
    address: Vec<u8>,
}

/// A rail with one queue pair on one NIC.
pub struct VerbsRail {
    verbs: Verbs,
    pair: QueuePair,
    poster: Poster,
    completions: CompletionReader,
    arrivals: CompletionReader,
    flights: Slab<Flight>,
    peers: Vec<Option<Peer>>,
    limits: RailLimits,
    /// Messages. `None` if the rail has none.
    mailbox: Option<Box<Mailbox>>,
    /// Completions of messages for the next poll.
    ready: Vec<Completion>,
}

impl fmt::Debug for VerbsRail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} transfers", self.verbs.name(), self.flights.len())
    }
}

impl VerbsRail {
    /// Opens a rail on the device `card`, with space for `immediates` unpolled immediates. `most` is the maximum number
    /// of outstanding transfers; `None` for the limit of the NIC.
    ///
    /// # Errors
    /// Returns an error if the device has no RDMA write, or if it cannot be opened.
    pub fn open(card: &str, immediates: usize, most: Option<usize>) -> Result<VerbsRail, FabricError> {
        VerbsRail::with_receives(card, immediates, most, 1)
    }

    /// Opens a rail like [`open`](VerbsRail::open), which also sends and receives messages. Their order is restored by
    /// this process, which copies each received message once.
    ///
    /// # Errors
    /// Returns the errors of `open`, and an error if memory cannot be registered.
    pub fn with_messages(card: &str, immediates: usize, most: Option<usize>) -> Result<VerbsRail, FabricError> {
        let mut rail = VerbsRail::with_receives(card, immediates + SLOTS as usize, most, SLOTS)?;
        rail.mailbox = Some(Box::new(Mailbox::open(&rail.verbs, rail.pair.view().receive)?));
        Ok(rail)
    }

    fn with_receives(
        card: &str,
        immediates: usize,
        most: Option<usize>,
        receives: u32,
    ) -> Result<VerbsRail, FabricError> {
        let verbs = Verbs::open(card)?;
        if !verbs.writes() {
            return Err(mistake(
                verbs.name(),
                "opening a rail",
                "this EFA device has no RDMA write (p4d has none); use -p efa, which sends messages instead",
            ));
        }
        let depth = most.map_or(DEPTH, |most| most.clamp(1, DEPTH as usize) as u32).min(verbs.max_depth());
        let arrivals = u32::try_from(immediates).unwrap_or(u32::MAX).clamp(64, 32768);
        let pair = verbs.pair(&PairOptions {
            depth,
            completions: depth,
            arrivals,
            receives,
            unsolicited: true,
            counted: &[],
        })?;
        let view = pair.view();
        let depth = depth.min(view.completions.entries) as usize;
        let limits = RailLimits {
            max_transfer_bytes: verbs.max_transfer_bytes(),
            max_outstanding: depth,
            immediate_bytes: 4,
            link_bits_per_second: verbs.link_bits_per_second(),
            cuda_memory: verbs.takes_gpu_memory(),
        };
        Ok(VerbsRail {
            poster: Poster::new(view.send),
            // SAFETY: the rail holds the pair.
            completions: unsafe { CompletionReader::new(view.completions, 0) },
            // SAFETY: the rail holds the pair.
            arrivals: unsafe { CompletionReader::new(view.arrivals, 0) },
            flights: Slab::with_capacity(depth),
            peers: Vec::new(),
            limits,
            pair,
            verbs,
            mailbox: None,
            ready: Vec::new(),
        })
    }

    #[inline]
    fn post(&mut self, region: &VerbsRegion, t: &Transfer, is_read: bool) -> Result<Post, FabricError> {
        let within = |offset: u64, bytes: u64| offset <= bytes && t.bytes <= bytes - offset;
        let peer = self.peers.get(t.peer).and_then(Option::as_ref);
        let (true, Some(peer)) = (
            within(t.local_offset, region.bytes)
                && within(t.remote_offset, t.remote.bytes)
                && t.bytes <= self.limits.max_transfer_bytes
                && (t.bytes > 0 || t.immediate.is_some() && !is_read)
                && Arc::ptr_eq(&region.verbs.0, &self.verbs.0),
            peer,
        ) else {
            return Err(self.refuse(region, t, is_read));
        };
        if self.in_queue() >= self.limits.max_outstanding {
            self.poster.ring();
            return Ok(Post::Again);
        }
        let to = peer.to;
        let flight = Flight { token: t.token, peer: t.peer as u32, is_read, bytes: t.bytes };
        let id = self.flights.insert(flight) as u64;
        let immediate = if is_read { None } else { t.immediate };
        let head = Head { id, phase: self.poster.phase(), to, immediate, hints: 0 };
        // The cast is lossless: the length is at most `max_transfer_bytes`, which has 32 bits.
        let local = Local { address: region.address + t.local_offset, length: t.bytes as u32, key: region.lkey };
        let (address, key) = (t.remote.base + t.remote_offset, t.remote.key as u32);
        let words = if is_read {
            request::read(&head, local, address, key)
        } else {
            request::write(&head, local, address, key)
        };
        self.poster.put(&words);
        if !t.more {
            self.poster.ring();
        }
        Ok(Post::Accepted)
    }

    /// Returns the number of requests in the send queue.
    #[inline]
    fn in_queue(&self) -> usize {
        self.flights.len() + self.mailbox.as_ref().map_or(0, |mailbox| mailbox.in_flight())
    }

    /// Posts segments of messages while the queue and their windows have room.
    fn pump_segments(&mut self) {
        while self.in_queue() < self.limits.max_outstanding
            && let Some(segment) = self.mailbox.as_mut().and_then(|mailbox| mailbox.next())
        {
            let Segment { id, peer, immediate, address, bytes, key } = segment;
            let to = self.peers.get(peer).and_then(Option::as_ref).map_or_else(To::default, |peer| peer.to);
            let head = Head { id: id.into(), phase: self.poster.phase(), to, immediate: Some(immediate), hints: 0 };
            self.poster.put(&request::send(&head, Local { address, length: bytes, key }));
        }
        self.poster.ring();
    }

    /// Returns the address of a message's bytes, or why they cannot be sent or received.
    fn range(&self, region: &VerbsRegion, message: &Message, peer: Option<usize>) -> Result<u64, FabricError> {
        let Message { offset, bytes, .. } = *message;
        let fits = offset <= region.bytes && bytes <= region.bytes - offset;
        let exists = peer.is_none_or(|peer| self.peers.get(peer).is_some_and(Option::is_some));
        if fits && exists && Arc::ptr_eq(&region.verbs.0, &self.verbs.0) {
            return Ok(region.address + offset);
        }
        let text = if !fits {
            format!("offset {offset} and {bytes} B exceed the region of {} B", region.bytes)
        } else if !exists {
            format!("no such peer: there are {} peers", self.peers.len())
        } else {
            "the region is registered with another rail".to_owned()
        };
        Err(mistake(self.verbs.name(), format!("a message of {bytes} B"), text))
    }

    /// Handles an entry of the queue where peers' operations arrive.
    fn arrived(&mut self, words: [u64; 2], completions: &mut Vec<Completion>) {
        let [first, second] = words;
        let status = completion::status(first);
        let immediate = completion::immediate(first, second).filter(|_| status == 0);
        if let Some(mailbox) = &mut self.mailbox
            && let Some(completion::DecodedCompletion::Arrived(arrived)) = completion::DecodedCompletion::decode(&words)
            && arrived.operation == EfaOperation::Send
        {
            if let Some(immediate) = immediate {
                let peer = (arrived.handle, arrived.source);
                return mailbox.landed(peer, arrived.id, arrived.length, immediate, completions);
            }
            mailbox.dropped(arrived.id);
        }
        completions.push(match immediate {
            Some(value) => Completion::Immediate { value },
            None => {
                let error = Box::new(errors::completed(self.verbs.name(), "data sent by a peer".to_owned(), status));
                Completion::Failed { token: None, error }
            }
        });
    }

    #[cold]
    fn refuse(&self, region: &VerbsRegion, t: &Transfer, is_read: bool) -> FabricError {
        let outside = |what: &str, offset: u64, bytes: u64| {
            (offset > bytes || t.bytes > bytes - offset)
                .then(|| format!("offset {offset} and {} B exceed the {what} region of {bytes} B", t.bytes))
        };
        let text = if let Some(text) = outside("local", t.local_offset, region.bytes) {
            text
        } else if let Some(text) = outside("peer's", t.remote_offset, t.remote.bytes) {
            text
        } else if t.bytes > self.limits.max_transfer_bytes {
            format!("the EFA device supports at most {} B per transfer", self.limits.max_transfer_bytes)
        } else if !Arc::ptr_eq(&region.verbs.0, &self.verbs.0) {
            "the region is registered with another rail".to_owned()
        } else if t.bytes == 0 {
            "the transfer has neither bytes nor an immediate".to_owned()
        } else {
            format!("no such peer: there are {} peers", self.peers.len())
        };
        mistake(self.verbs.name(), operation(is_read, t.bytes, t.peer), text)
    }

    /// Handles the completion of a request.
    #[inline]
    fn ended(&mut self, first: u64, completions: &mut Vec<Completion>) {
        let (id, status) = (completion::id(first), completion::status(first));
        if id & IS_SEGMENT != 0
            && let Some(mailbox) = &mut self.mailbox
        {
            let name = self.verbs.name();
            let error = |bytes, peer| {
                let what = || format!("message of {bytes} B to peer {peer}");
                (status != 0).then(|| errors::completed(name, what(), status))
            };
            return mailbox.sent(id, completions, error);
        }
        // Ignore an unknown request: an entry of a queue that was overwritten.
        let Some(flight) = self.flights.try_remove(id.into()) else { return };
        completions.push(if status == 0 {
            Completion::Done { token: flight.token }
        } else {
            let what = operation(flight.is_read, flight.bytes, flight.peer as usize);
            let error = Box::new(errors::completed(self.verbs.name(), what, status));
            Completion::Failed { token: Some(flight.token), error }
        });
    }
}

fn operation(is_read: bool, bytes: u64, peer: usize) -> String {
    format!("{} of {bytes} B to peer {peer}", if is_read { "read" } else { "write" })
}

impl Rail for VerbsRail {
    type Region = VerbsRegion;

    fn name(&self) -> &str {
        self.verbs.name()
    }

    fn limits(&self) -> &RailLimits {
        &self.limits
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        Ok(self.pair.address())
    }

    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        let to = self.verbs.handle(address)?;
        self.peers.push(Some(Peer { to, address: address.to_owned() }));
        Ok(self.peers.len() - 1)
    }

    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        let Some(gone) = self.peers.get_mut(peer).and_then(Option::take) else {
            return Err(mistake(self.verbs.name(), format!("removing peer {peer}"), "no such peer"));
        };
        self.verbs.release(&gone.address);
        Ok(())
    }

    unsafe fn register(&mut self, memory: MemoryRange, access: Access) -> Result<VerbsRegion, FabricError> {
        // SAFETY: forwards the call; the caller upholds the same contract.
        let region = unsafe { self.verbs.register(memory, access) };
        if region.is_err() && memory.cuda_device.is_some() {
            self.limits.cuda_memory = false;
        }
        region
    }

    fn remote(&self, region: &VerbsRegion) -> RemoteRegion {
        RemoteRegion { key: region.rkey.into(), base: region.address, bytes: region.bytes }
    }

    #[inline]
    unsafe fn write(&mut self, region: &VerbsRegion, transfer: &Transfer) -> Result<Post, FabricError> {
        self.post(region, transfer, false)
    }

    #[inline]
    unsafe fn read(&mut self, region: &VerbsRegion, transfer: &Transfer) -> Result<Post, FabricError> {
        self.post(region, transfer, true)
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        // Rings the doorbell if a caller has announced a post (`more`) but not made it.
        self.poster.ring();
        for _ in 0..BATCH {
            let Some([first, _]) = self.completions.next() else { break };
            self.ended(first, completions);
        }
        for _ in 0..BATCH {
            let Some(words) = self.arrivals.next() else { break };
            self.arrived(words, completions);
        }
        if self.mailbox.is_some() {
            completions.append(&mut self.ready);
            self.pump_segments();
        }
        Ok(())
    }
}

/// Messages of rails that were opened with them.
impl Messages for VerbsRail {
    unsafe fn send(&mut self, region: &VerbsRegion, peer: usize, message: &Message) -> Result<Post, FabricError> {
        let address = self.range(region, message, Some(peer))?;
        let Some(mailbox) = &mut self.mailbox else { return Err(self.has_none("messages")) };
        if !mailbox.send(peer, address, region.lkey, message) {
            return Ok(Post::Again);
        }
        self.pump_segments();
        Ok(Post::Accepted)
    }

    unsafe fn receive(&mut self, region: &VerbsRegion, message: &Message) -> Result<Post, FabricError> {
        let address = self.range(region, message, None)?;
        let Some(mailbox) = &mut self.mailbox else { return Err(self.has_none("messages")) };
        mailbox.receive(address, message, &mut self.ready);
        Ok(Post::Accepted)
    }

    fn cancel(&mut self, token: u64) -> Result<(), FabricError> {
        let Some(mailbox) = &mut self.mailbox else { return Err(self.has_none("messages")) };
        if mailbox.cancel(token) {
            let error = Box::new(mistake(self.verbs.name(), "receiving a message", "the receive was cancelled"));
            self.ready.push(Completion::Failed { token: Some(token), error });
        }
        Ok(())
    }
}
