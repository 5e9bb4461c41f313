//! The verbs rail: requests are written directly to the NIC's ring, as libfabric does since 2.3.

use super::device::Verbs;
use super::errors;
use super::pair::Pair;
use super::queues::{CompletionReader, Poster};
use super::region::Region;
use super::view::PairOptions;
use crate::{
    Access, Completion, FabricError, Memory, Message, Messages, Post, Rail, RailLimits, RemoteRegion, Transfer, mistake,
};
use efa_queue::request::{self, Head};
use efa_queue::{Local, To, completion};
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
    pair: Pair,
    poster: Poster,
    completions: CompletionReader,
    arrivals: CompletionReader,
    flights: Slab<Flight>,
    peers: Vec<Option<Peer>>,
    limits: RailLimits,
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
            receives: 1,
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
        })
    }

    #[inline]
    fn post(&mut self, region: &Region, t: &Transfer, is_read: bool) -> Result<Post, FabricError> {
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
        if self.flights.len() >= self.limits.max_outstanding {
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

    #[cold]
    fn refuse(&self, region: &Region, t: &Transfer, is_read: bool) -> FabricError {
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
        // Ignores an unknown request, which is an entry of a queue that was overwritten.
        let Some(flight) = self.flights.try_remove(completion::id(first).into()) else { return };
        let status = completion::status(first);
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
    type Region = Region;

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

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Region, FabricError> {
        // SAFETY: forwards the call; the caller upholds the same contract.
        let region = unsafe { self.verbs.register(memory, access) };
        if region.is_err() && memory.cuda_device.is_some() {
            self.limits.cuda_memory = false;
        }
        region
    }

    fn remote(&self, region: &Region) -> RemoteRegion {
        RemoteRegion { key: region.rkey.into(), base: region.address, bytes: region.bytes }
    }

    #[inline]
    unsafe fn write(&mut self, region: &Region, transfer: &Transfer) -> Result<Post, FabricError> {
        self.post(region, transfer, false)
    }

    #[inline]
    unsafe fn read(&mut self, region: &Region, transfer: &Transfer) -> Result<Post, FabricError> {
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
            let Some([first, second]) = self.arrivals.next() else { break };
            match completion::immediate(first, second) {
                Some(value) if completion::status(first) == 0 => completions.push(Completion::Immediate { value }),
                _ => {
                    let operation = "data sent by a peer".to_owned();
                    let error = Box::new(errors::completed(self.verbs.name(), operation, completion::status(first)));
                    completions.push(Completion::Failed { token: None, error });
                }
            }
        }
        Ok(())
    }
}

/// Messages are not supported, because they need an order, which EFA's datagrams lack.
impl Messages for VerbsRail {
    unsafe fn send(&mut self, _: &Region, _: usize, _: &Message) -> Result<Post, FabricError> {
        Err(self.has_none("messages"))
    }

    unsafe fn receive(&mut self, _: &Region, _: &Message) -> Result<Post, FabricError> {
        Err(self.has_none("messages"))
    }

    fn cancel(&mut self, _token: u64) -> Result<(), FabricError> {
        Err(self.has_none("messages"))
    }
}
