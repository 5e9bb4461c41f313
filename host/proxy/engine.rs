//! The engine: commands in, transfers out over the rails, completions in, watermark out.
//!
//! One thread owns it, with all its rails. The proxy feeds it from a ring; the CPU-initiated baseline feeds it directly,
//! so that both sides of a comparison post through the same code.

mod ending;
mod error;
mod route;
mod signalled;
#[cfg(test)]
mod tests;
mod waiting;

pub(super) use ending::DRAIN;
pub use error::EngineError;
use route::{Peers, Queued, Region, Route};
use signalled::{VALUES, Values};
pub use waiting::SignalRule;
use waiting::Signals;

use super::stage::Stage;
use super::trace::Watch;
use super::tracker::Tracker;
use ginlab_cuda::Flush;
use ginlab_fabric::chosen::BareWrites;
use ginlab_fabric::libfabric::BareLoop;
use ginlab_fabric::{Access, Completion, FabricError, Post, Rail, RemoteRegion, Transfer};
use ginlab_rails::strategy::{Scheduler, Strategy};
use ginlab_rails::{self as rails, Counters, Lane, StallClock};
use kernels::command::{Command, Opcode};
use std::time::Duration;

/// Pieces that may wait for a full provider before the engine takes no more commands.
const MOST_QUEUED: usize = 1024;
/// Rails beyond those in use are polled once in so many polls.
const IDLE_RAIL_POLLS: u32 = 64;

/// An engine with what the peers need to know of its regions, by region and rail.
pub type Opened<R> = (Engine<R>, Vec<Vec<RemoteRegion>>);

/// See the module.
pub struct Engine<R: Rail> {
    // Dropped in this order, once nothing is posted (`ending`): regions before the rails that they are registered on.
    regions: Vec<Region<R>>,
    values: Option<Values<R>>,
    lanes: Vec<Lane<R, Queued>>,
    /// Pieces that wait, on all lanes.
    queued: usize,
    /// Transfers that a provider has taken and not completed, of whichever count of tickets.
    posted: u64,
    peers: Peers,
    scheduler: Scheduler,
    active_rails: usize,
    polls: u32,
    longest: u64,
    tracker: Tracker,
    window: usize,
    /// Whether any region is staged.
    stages: bool,
    /// Commands whose staging copies have finished, on their way to the rails.
    staged: Vec<(u64, Command)>,
    completions: Vec<Completion>,
    /// Between the poll of completions and what is told of them, where cards write into GPU memory that does not order them.
    flush: Option<Flush>,
    signals: Signals,
    /// Commands taken.
    commands: u64,
    /// What moves our own transfers on.
    clock: StallClock,
    /// What is posted has had its time to drain.
    drained: bool,
    bare_writes: Option<BareWrites<R>>,
}

impl<R: Rail> Engine<R> {
    /// An engine over these rails, at least one. `window` commands may be in flight; nothing may stand still for longer
    /// than `timeout`.
    pub fn new(rails: Vec<R>, window: usize, timeout: Duration) -> Engine<R> {
        let longest = rails.iter().map(|rail| rail.limits().max_transfer_bytes).min().unwrap_or(u64::MAX);
        let count = rails.len();
        Engine {
            regions: Vec::new(),
            values: None,
            queued: 0,
            posted: 0,
            peers: Peers::default(),
            scheduler: Scheduler::new(Strategy::Single, count),
            active_rails: count,
            polls: 0,
            longest,
            tracker: Tracker::new(window),
            window,
            stages: false,
            staged: Vec::new(),
            completions: Vec::with_capacity(1024),
            flush: None,
            signals: Signals::new(SignalRule::default(), 0),
            commands: 0,
            clock: StallClock::new(timeout),
            drained: false,
            bare_writes: None,
            lanes: rails.into_iter().map(Lane::new).collect(),
        }
    }

    /// The rails.
    pub fn rails(&self) -> impl ExactSizeIterator<Item = &R> {
        self.lanes.iter().map(|lane| &lane.rail)
    }

    /// The rails, to make peers known.
    pub fn rails_mut(&mut self) -> impl ExactSizeIterator<Item = &mut R> {
        self.lanes.iter_mut().map(|lane| &mut lane.rail)
    }

    /// Registers memory on all rails as the next region; `staged_from` when the kernel's bytes lie elsewhere and are to
    /// be copied here before each write; `access` is what it is for, and nothing else is allowed. Returns what peers need, by rail.
    ///
    /// # Safety
    /// The memory stays valid and in place as long as the engine.
    ///
    /// # Errors
    /// The provider's.
    pub unsafe fn register(
        &mut self,
        memory: ginlab_fabric::Memory,
        access: Access,
        staged_from: Option<Stage>,
    ) -> Result<Vec<RemoteRegion>, FabricError> {
        let mut on_rail = Vec::with_capacity(self.lanes.len());
        let mut remotes = Vec::with_capacity(self.lanes.len());
        for rail in self.rails_mut() {
            // SAFETY: the caller's contract.
            let region = unsafe { rail.register(memory, access) }?;
            remotes.push(rail.remote(&region));
            on_rail.push(region);
        }
        self.stages |= staged_from.is_some();
        self.regions.push(Region { bytes: memory.bytes as u64, on_rail, staged_from });
        Ok(remotes)
    }

    /// Makes the peers' regions known, by peer, region and rail. All peers have the same regions on the same rails.
    ///
    /// # Errors
    /// [`EngineError::Refused`] when they have not.
    pub fn set_peers(&mut self, peers: &[Vec<Vec<RemoteRegion>>]) -> Result<(), EngineError> {
        let (regions, rails) = (peers.first().map_or(0, Vec::len), self.lanes.len());
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

    /// What the plainest loop of writes over one of the rails is.
    pub fn set_bare_writes(&mut self, bare: Option<BareWrites<R>>) {
        self.bare_writes = bare;
    }

    /// Runs this after each poll that has found completions, before signals are counted and the watermark moves.
    pub fn set_flush(&mut self, flush: Option<Flush>) {
        self.flush = flush;
    }

    /// Uses the first `rails` rails in this way from now on. Call it while nothing is in flight.
    pub fn configure(&mut self, rails: usize, strategy: Strategy) {
        self.active_rails = rails.clamp(1, self.lanes.len());
        self.scheduler = Scheduler::new(strategy, self.active_rails);
    }

    /// How many commands may be submitted now.
    #[inline]
    pub fn room(&self) -> usize {
        if self.queued < MOST_QUEUED { self.tracker.room() } else { 0 }
    }

    /// Takes one command; its ticket is the number of commands before it. Posting happens in [`pump`](Engine::pump). A
    /// command that moves no bytes and raises no signal is complete at once: rails refuse empty transfers.
    ///
    /// # Errors
    /// [`EngineError::Refused`] when it names what is not there. Its ticket is then never complete.
    #[inline]
    pub fn submit(&mut self, command: &Command) -> Result<u64, EngineError> {
        if self.tracker.in_flight() == 0 {
            self.clock.moved();
        }
        let ticket = self.tracker.begin();
        self.commands += 1;
        let route = self.check(command)?;
        if command.bytes == 0 && matches!(command.opcode, Opcode::Put | Opcode::Get) {
            self.clock.moved();
            self.tracker.complete(ticket);
            return Ok(ticket);
        }
        if self.stages
            && command.bytes > 0
            && let Some(stage) = &mut self.regions[route.local].staged_from
            && matches!(command.opcode, Opcode::Put | Opcode::PutSignal)
            && stage.is_needed()
        {
            stage.start(ticket, command)?;
            return Ok(ticket);
        }
        self.place(ticket, route, command);
        Ok(ticket)
    }

    /// Posts what is queued, as far as the providers take it.
    ///
    /// # Errors
    /// The provider's, or the driver's for staging copies.
    #[inline]
    pub fn pump(&mut self, watch: &mut impl Watch) -> Result<(), EngineError> {
        if self.stages {
            self.take_staged()?;
        }
        if self.signals.has_more() {
            self.follow_up();
        }
        if self.queued == 0 {
            return Ok(());
        }
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let (taken, outcome) = lane.pump(|rail, queued, more| {
                let region = match (queued.local_region, &self.values) {
                    (VALUES, Some(values)) => &values.on_rail[index],
                    _ => &self.regions[queued.local_region as usize].on_rail[index],
                };
                let remote = self.peers.table.get(queued.remote as usize + index);
                let transfer = Transfer {
                    local_offset: queued.local_offset,
                    peer: queued.peer as usize,
                    // `check` found the region on rail 0, and the table is even.
                    remote: remote.copied().unwrap_or_default(),
                    remote_offset: queued.remote_offset,
                    bytes: queued.bytes,
                    immediate: queued.immediate,
                    token: queued.ticket,
                    more,
                };
                // SAFETY: `check` found the bytes inside registered regions; the producer leaves them alone until the
                // watermark passes the ticket.
                let posted = unsafe {
                    match queued.read {
                        true => rail.read(region, &transfer),
                        false => rail.write(region, &transfer),
                    }
                };
                if let Ok(Post::Accepted) = posted {
                    watch.posted(queued.ticket, index);
                }
                posted
            });
            self.queued -= taken;
            self.posted += taken as u64;
            outcome?;
        }
        Ok(())
    }

    fn take_staged(&mut self) -> Result<(), EngineError> {
        for local in 0..self.regions.len() {
            let Some(stage) = &mut self.regions[local].staged_from else { continue };
            let mut staged = std::mem::take(&mut self.staged);
            stage.finished(&mut staged)?;
            for (ticket, command) in staged.drain(..) {
                self.clock.moved();
                let route = self.check(&command)?;
                self.place(ticket, route, &command);
            }
            self.staged = staged;
        }
        Ok(())
    }

    /// Polls every rail and advances the watermark. Returns whether anything completed or arrived.
    ///
    /// # Errors
    /// The first dead rail or failed transfer. All rails have been polled all the same, and what they completed counts.
    #[inline]
    pub fn progress(&mut self, watch: &mut impl Watch) -> Result<bool, EngineError> {
        // The rails that are not in use now have nothing of ours; peers may still need them to move.
        self.polls = self.polls.wrapping_add(1);
        let polled = if self.polls.is_multiple_of(IDLE_RAIL_POLLS) { self.lanes.len() } else { self.active_rails };
        // A dead rail does not keep the completions of the others from being heard.
        let mut dead = None;
        for lane in &mut self.lanes[..polled] {
            if let Err(error) = lane.rail.poll(&mut self.completions) {
                dead = dead.or(Some(error));
            }
        }
        if self.completions.is_empty() {
            return dead.map_or(Ok(false), |error| Err(error.into()));
        }
        if let Some(flush) = &mut self.flush
            && let Err(error) = flush.run()
        {
            return Err(self.unflushed(error));
        }
        let mut failed = dead.map(Box::new);
        let before = self.posted;
        for completion in &self.completions {
            match completion {
                Completion::Done { token } => {
                    self.posted = self.posted.saturating_sub(1);
                    self.tracker.complete(*token);
                    self.signals.landed(*token);
                    watch.completed(*token);
                }
                Completion::Immediate { value } => self.signals.arrive(*value),
                // The proxy's rails are opened without messages.
                Completion::Received { .. } => {}
                Completion::Failed { token, error } => {
                    // Without a token it was none of ours: what a peer sent, say.
                    self.posted = self.posted.saturating_sub(token.is_some().into());
                    failed = failed.or_else(|| Some(error.clone()));
                }
            }
        }
        self.completions.clear();
        // What arrives from peers says nothing about our own transfers: it does not put off the stall.
        if self.posted != before {
            self.clock.moved();
        }
        failed.map_or(Ok(true), |error| Err((*error).into()))
    }

    /// All commands below this ticket are complete.
    #[inline]
    pub fn watermark(&self) -> u64 {
        self.tracker.watermark()
    }

    /// Commands that are not complete.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.tracker.in_flight()
    }

    /// Transfers that the providers have taken and not completed: until then the bytes are the NIC's.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// The plainest loop of writes on rail 0, without the engine: the yardstick. `None` where the rails have none. Call it while nothing is in flight.
    ///
    /// # Errors
    /// The provider's, or that the route does not exist.
    pub fn bare_writes(&mut self, route: (u32, u32, u32), bytes: u64, count: u64) -> Result<Option<f64>, EngineError> {
        let (source, destination, peer) = route;
        let entry = self.peers.first_entry(peer as usize, destination as usize);
        let remote = entry.and_then(|entry| self.peers.table.get(entry)).copied();
        let (Some(region), Some(remote)) = (self.regions.get(source as usize), remote) else {
            return Err(EngineError::Refused(format!("route {route:?} of a bare loop")));
        };
        let Some(bare) = self.bare_writes else { return Ok(None) };
        let run = BareLoop { peer: peer as usize, remote, bytes, count, deadline: self.clock.timeout() };
        // SAFETY: nothing is in flight (the caller's contract), and no kernel runs that would change the source.
        Ok(Some(unsafe { bare(&mut self.lanes[0].rail, &region.on_rail[0], &run) }?))
    }

    /// Begins a new count of tickets from 0 and returns the old count, for [`resume`](Engine::resume): the baseline's
    /// writes are not the ring's. Call it while nothing is in flight.
    pub fn suspend(&mut self) -> Tracker {
        std::mem::replace(&mut self.tracker, Tracker::new(self.window))
    }

    /// Goes on with an old count.
    pub fn resume(&mut self, tracker: Tracker) {
        self.tracker = tracker;
    }

    /// Commands taken since the engine was made.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// What has been posted since the engine was made.
    pub fn counters(&self) -> Counters {
        rails::counters(&self.lanes)
    }
}
