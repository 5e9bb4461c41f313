//! Rails of several ranks in one test, with limited completion queues. As over EFA, an entry arrives whether or not its
//! owner polls, transfers arrive in any order, and a queue that overflows is lost.

use crate::{Access, Completion, FabricError, MemoryRange, Post, Rail, RailLimits, RemoteRegion, Transfer, mistake};
use std::cell::RefCell;
use std::rc::Rc;

/// The transfers in flight, and the completion queues.
#[derive(Default)]
pub struct Network {
    /// Capacity of a queue in entries.
    room: usize,
    /// Queues by rank and rail.
    queues: Vec<Vec<Vec<Completion>>>,
    under_way: Vec<Flight>,
    random: u64,
    /// Maximum number of entries that any queue has had.
    pub fullest: usize,
}

struct Flight {
    from: usize,
    rail: usize,
    transfer: Transfer,
}

/// Number of its own transfers that a rail accepts before it returns "again".
pub const OUTSTANDING: usize = 64;

impl Network {
    /// Creates a network of `ranks` ranks with `rails` rails each. A queue has space for `immediates` in addition to
    /// the completions of its own rail's transfers.
    pub fn new(ranks: usize, rails: usize, immediates: usize, seed: u64) -> Rc<RefCell<Network>> {
        let queues = (0..ranks).map(|_| (0..rails).map(|_| Vec::new()).collect()).collect();
        Rc::new(RefCell::new(Network {
            room: OUTSTANDING + immediates,
            queues,
            random: seed | 1,
            ..Network::default()
        }))
    }

    fn raise(&mut self, rank: usize, rail: usize, entry: Completion) {
        let queue = &mut self.queues[rank][rail];
        queue.push(entry);
        self.fullest = self.fullest.max(queue.len());
    }

    /// Delivers and acknowledges one of the transfers in flight. Any rank may cause this by polling.
    fn arrive(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        // xorshift64; any sequence without a pattern suffices.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let which = self.random as usize % self.under_way.len();
        let Flight { from, rail, transfer } = self.under_way.swap_remove(which);
        if let Some(value) = transfer.immediate {
            self.raise(transfer.peer, rail, Completion::Immediate { value });
        }
        self.raise(from, rail, Completion::Done { token: transfer.token });
    }
}

/// A rail of one rank.
pub struct QueueRail {
    network: Rc<RefCell<Network>>,
    rank: usize,
    rail: usize,
    limits: RailLimits,
    outstanding: usize,
}

impl QueueRail {
    /// Creates a rail for transfers of up to `longest` bytes.
    pub fn new(network: &Rc<RefCell<Network>>, rank: usize, rail: usize, longest: u64) -> QueueRail {
        let limits = RailLimits {
            max_transfer_bytes: longest,
            max_outstanding: OUTSTANDING,
            immediate_bytes: 4,
            link_bits_per_second: None,
            cuda_memory: false,
        };
        QueueRail { network: network.clone(), rank, rail, limits, outstanding: 0 }
    }
}

impl Rail for QueueRail {
    type Region = u64;

    fn name(&self) -> &str {
        "a rail with a small queue"
    }
    fn limits(&self) -> &RailLimits {
        &self.limits
    }
    fn address(&self) -> Result<Vec<u8>, FabricError> {
        Ok(Vec::new())
    }
    fn add_peer(&mut self, _: &[u8]) -> Result<usize, FabricError> {
        Err(self.has_none("peers by address"))
    }
    fn remove_peer(&mut self, _: usize) -> Result<(), FabricError> {
        Err(self.has_none("peers by address"))
    }
    unsafe fn register(&mut self, memory: MemoryRange, _: Access) -> Result<u64, FabricError> {
        Ok(memory.bytes as u64)
    }
    fn remote(&self, region: &u64) -> RemoteRegion {
        RemoteRegion { key: 0, base: 0, bytes: *region }
    }
    unsafe fn write(&mut self, _: &u64, transfer: &Transfer) -> Result<Post, FabricError> {
        if self.outstanding == OUTSTANDING {
            return Ok(Post::Again);
        }
        self.outstanding += 1;
        self.network.borrow_mut().under_way.push(Flight { from: self.rank, rail: self.rail, transfer: *transfer });
        Ok(Post::Accepted)
    }
    unsafe fn read(&mut self, region: &u64, transfer: &Transfer) -> Result<Post, FabricError> {
        // SAFETY: no byte is moved, as for a write.
        unsafe { self.write(region, &Transfer { immediate: None, ..*transfer }) }
    }
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut network = self.network.borrow_mut();
        (0..4).for_each(|_| network.arrive());
        let room = network.room;
        let queue = &mut network.queues[self.rank][self.rail];
        if queue.len() > room {
            let text = format!("{} entries in a completion queue of {room}", queue.len());
            return Err(mistake("a rail with a small queue", "poll: overrun", text));
        }
        self.outstanding -= queue.iter().filter(|entry| matches!(entry, Completion::Done { .. })).count();
        completions.append(queue);
        Ok(())
    }
}
