//! The rail of verbs: requests written straight into the card's ring, as libfabric does from 2.3 on.

use super::device::Verbs;
use super::errors;
use super::pair::{Pair, PairOptions};
use super::queues::{Poster, Reader};
use super::region::Region;
use crate::{
    Access, Completion, FabricError, Memory, Message, Messages, Post, Rail, RailLimits, RemoteRegion, Transfer, mistake,
};
use efa_queue::request::{self, Head};
use efa_queue::{Local, To, completion};
use slab::Slab;
use std::fmt;
use std::sync::Arc;

/// Requests that a queue takes unless its card takes fewer.
const DEPTH: u32 = 4096;
/// Entries read by one poll: it stays bounded however fast completions come.
const BATCH: usize = 256;

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    token: u64,
    peer: u32,
    is_read: bool,
    bytes: u64,
}

/// A peer: whom its requests go to, and its address.
#[derive(Debug)]
struct Peer {
    to: To,
    address: Vec<u8>,
}

/// One queue pair on one card.
pub struct VerbsRail {
    verbs: Verbs,
    pair: Pair,
    poster: Poster,
    completions: Reader,
    arrivals: Reader,
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
    /// Opens a rail on the card of this name, with room for so many immediates that nobody has polled for, and for so many transfers at most
    /// (`None`: what the card takes).
    ///
    /// # Errors
    /// What is missing, or what the card says.
    pub fn open(card: &str, immediates: usize, most: Option<usize>) -> Result<VerbsRail, FabricError> {
        let verbs = Verbs::open(card)?;
        if !verbs.writes() {
            return Err(mistake(
                verbs.name(),
                "opening a rail",
                "this card has no RDMA write (a p4d's has none); -p efa sends messages there",
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
            completions: Reader::new(view.completions),
            arrivals: Reader::new(view.arrivals),
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
        // At most max_transfer_bytes, which has 32 bits.
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
                .then(|| format!("offset {offset} and {} B do not lie in the {what} region of {bytes} B", t.bytes))
        };
        let text = if let Some(text) = outside("local", t.local_offset, region.bytes) {
            text
        } else if let Some(text) = outside("peer's", t.remote_offset, t.remote.bytes) {
            text
        } else if t.bytes > self.limits.max_transfer_bytes {
            format!("the card takes {} B at most in one transfer", self.limits.max_transfer_bytes)
        } else if !Arc::ptr_eq(&region.verbs.0, &self.verbs.0) {
            "the region is registered with another rail".to_owned()
        } else if t.bytes == 0 {
            "nothing to move and no immediate".to_owned()
        } else {
            format!("there are {} peers, and this is none of them", self.peers.len())
        };
        mistake(self.verbs.name(), operation(is_read, t.bytes, t.peer), text)
    }

    /// A request has ended.
    #[inline]
    fn ended(&mut self, first: u64, completions: &mut Vec<Completion>) {
        // One that is not ours any more: of a queue that was written over.
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
            return Err(mistake(self.verbs.name(), format!("removing peer {peer}"), "there is no such peer"));
        };
        self.verbs.release(&gone.address);
        Ok(())
    }

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Region, FabricError> {
        // SAFETY: the caller's contract.
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
        // What a caller announced (`more`) and did not post.
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
                    let operation = "what a peer has sent".to_owned();
                    let error = Box::new(errors::completed(self.verbs.name(), operation, completion::status(first)));
                    completions.push(Completion::Failed { token: None, error });
                }
            }
        }
        Ok(())
    }
}

/// EFA's datagrams have no order, which messages need.
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
