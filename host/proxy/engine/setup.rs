//! Set-up of an engine: regions, peers, and rails in use.

use super::route::{Peers, Region};
use super::{Engine, EngineError, SetUp};
use crate::stage::Stage;
use ginlab_cuda::Flush;
use ginlab_fabric::chosen::BareWrites;
use ginlab_fabric::{Access, FabricError, Rail, RemoteRegion};
use ginlab_rails::RailQueue;
use ginlab_rails::strategy::{Scheduler, Strategy};
use std::time::Instant;

impl<R: Rail> Engine<R> {
    /// Registers `memory` on all rails as the next region, only for the uses in `access`. With `staged_from`, the
    /// kernel's data is elsewhere and is copied to `memory` before each write. Returns the remote descriptors, one per
    /// rail.
    ///
    /// # Safety
    /// The memory must stay valid and must not move for the lifetime of the engine.
    ///
    /// # Errors
    /// Returns the provider's error if the registration fails on a rail.
    pub unsafe fn register(
        &mut self,
        memory: ginlab_fabric::MemoryRange,
        access: Access,
        staged_from: Option<Stage>,
    ) -> Result<Vec<RemoteRegion>, FabricError> {
        let started = Instant::now();
        let mut on_rail = Vec::with_capacity(self.queues.len());
        let mut remotes = Vec::with_capacity(self.queues.len());
        for rail in self.rails_mut() {
            // SAFETY: the caller guarantees that the memory outlives the engine, and the engine drops its regions
            // first.
            let region = unsafe { rail.register(memory, access) }?;
            remotes.push(rail.remote(&region));
            on_rail.push(region);
        }
        if self.regions.is_empty() {
            self.set_up.registered = started.elapsed();
        }
        self.stages |= staged_from.is_some();
        self.regions.push(Region { bytes: memory.bytes as u64, on_rail, staged_from });
        Ok(remotes)
    }

    /// Sets the peers' regions, indexed by peer, region and rail. All peers must have the same regions on the same
    /// rails.
    ///
    /// # Errors
    /// Returns [`EngineError::Refused`] if the peers have different numbers of regions, or a peer has another number of
    /// rails than this engine.
    pub fn set_peers(&mut self, peers: &[Vec<Vec<RemoteRegion>>]) -> Result<(), EngineError> {
        let (regions, rails) = (peers.first().map_or(0, Vec::len), self.queues.len());
        let even =
            |peer: &Vec<Vec<RemoteRegion>>| peer.len() == regions && peer.iter().all(|region| region.len() == rails);
        if !peers.iter().all(even) {
            return Err(EngineError::Refused(format!(
                "peers with other regions or rails than {regions} on {rails} rails"
            )));
        }
        let table = peers.iter().flatten().flatten().copied().collect();
        self.peers = Peers { table, peers: peers.len(), regions, rails };
        Ok(())
    }

    /// Makes the peers known to the rails: their addresses by peer and rail, and their regions as for
    /// [`set_peers`](Engine::set_peers).
    ///
    /// # Errors
    /// Returns [`EngineError::Refused`] if a peer has another number of rails, and the same errors as `set_peers`.
    pub fn connect(
        &mut self,
        addresses: &[Vec<Vec<u8>>],
        regions: &[Vec<Vec<RemoteRegion>>],
    ) -> Result<(), EngineError> {
        let rails = self.queues.len();
        if let Some(peer) = addresses.iter().position(|peer| peer.len() != rails) {
            let (theirs, mine) = (addresses[peer].len(), rails);
            return Err(EngineError::Refused(format!("peer {peer} has {theirs} rails, but this rank has {mine}")));
        }
        let started = Instant::now();
        for (index, rail) in self.rails_mut().enumerate() {
            let of_rail: Vec<Vec<u8>> = addresses.iter().map(|peer| peer[index].clone()).collect();
            rail.insert_peers(&of_rail)?;
        }
        self.set_up.inserted = started.elapsed();
        self.set_peers(regions)
    }

    /// Returns the times of the set-up so far.
    pub fn set_up(&self) -> SetUp {
        self.set_up
    }

    /// Sets the function that runs the minimal write loop on a rail ([`bare_writes`](Engine::bare_writes)).
    pub fn set_bare_writes(&mut self, bare: Option<BareWrites<R>>) {
        self.bare_writes = bare;
    }

    /// Sets a flush to run after each poll that returns completions, before signals are counted and the watermark
    /// advances.
    pub fn set_flush(&mut self, flush: Option<Flush>) {
        self.flush = flush;
    }

    /// Uses the first `rails` rails with `strategy` for subsequent commands. Must not be called while commands are in
    /// flight.
    pub fn configure(&mut self, rails: usize, strategy: Strategy) {
        self.active_rails = rails.clamp(1, self.queues.len());
        self.scheduler = Scheduler::new(strategy, self.active_rails);
    }

    /// Starts to measure the time with transfers in flight on each rail
    /// ([`Counters::rail_busy`](ginlab_rails::Counters::rail_busy)). Must not be called while commands are in flight.
    pub fn time_rails(&mut self) {
        self.queues.iter_mut().for_each(RailQueue::time);
    }
}
