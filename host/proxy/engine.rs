//! The engine turns commands into transfers on the rails, and completions into a watermark.
//!
//! One thread owns the engine and all its rails. The proxy submits commands from a ring; the CPU-initiated baseline
//! submits them directly. Both sides of a comparison therefore post through the same code.

mod ending;
mod error;
mod losses;
mod route;
mod setup;
mod signalled;
#[cfg(test)]
mod tests;
mod waiting;

pub(super) use ending::DRAIN;
pub use error::EngineError;
pub use losses::Loss;
use route::{Peers, Queued, Region, Route};
use signalled::{VALUES, Values};
pub use waiting::SignalRule;
use waiting::Signals;

use super::trace::EngineObserver;
use super::tracker::Tracker;
use ginlab_cuda::Flush;
use ginlab_fabric::chosen::BareWrites;
use ginlab_fabric::libfabric::BareLoop;
use ginlab_fabric::{Completion, Post, Rail, RemoteRegion, Transfer};
use ginlab_rails::strategy::{Scheduler, Strategy};
use ginlab_rails::{self as rails, Counters, RailQueue, StallClock};
use kernels::command::{Command, Opcode};
use std::time::Duration;

/// The engine accepts no commands while this many fragments of commands are queued.
const MOST_QUEUED: usize = 1024;
/// Number of calls of [`Engine::progress`] per poll of inactive rails.
const IDLE_RAIL_POLLS: u32 = 64;

/// An engine, and the descriptors with which peers access its regions, indexed by region and rail.
pub type OpenedEngine<R> = (Engine<R>, Vec<Vec<RemoteRegion>>);

/// Posts commands over a set of rails and tracks their completion. See the module documentation.
pub struct Engine<R: Rail> {
    // Field order matters: after `drop` (in `ending.rs`) has drained the rails, regions are dropped before the rails on
    // which they are registered.
    regions: Vec<Region<R>>,
    /// Registered buffer for the values that are inline in commands; `None` before `accept_values`.
    values: Option<Values<R>>,
    queues: Vec<RailQueue<R, Queued>>,
    /// Number of fragments of commands that are queued, over all rails.
    queued: usize,
    /// Number of transfers that the providers have accepted and not completed, including those of the ticket sequence
    /// that `suspend` returned.
    posted: u64,
    peers: Peers,
    scheduler: Scheduler,
    active_rails: usize,
    /// Number of calls of `progress`, modulo 2^32.
    polls: u32,
    /// Maximum bytes of a transfer that every rail accepts.
    longest: u64,
    tracker: Tracker,
    window: usize,
    /// Whether any region uses a staging copy.
    stages: bool,
    /// Scratch buffer of `take_staged`: commands whose staging copies have finished.
    staged: Vec<(u64, Command)>,
    completions: Vec<Completion>,
    /// Failed transfers; `None` unless [`keep_losses`](Engine::keep_losses) was called.
    losses: Option<Vec<Loss>>,
    /// Flush that runs between polling completions and acting on them, if NICs write to GPU memory and the GPU does not
    /// order the writes.
    flush: Option<Flush>,
    signals: Signals,
    /// Number of commands submitted since the engine was created.
    commands: u64,
    /// Detects stalls of this engine's own transfers.
    clock: StallClock,
    /// Set once `drain` has run, so that `drop` does not drain again.
    drained: bool,
    bare_writes: Option<BareWrites<R>>,
    set_up: SetUp,
}

/// Times of an engine's set-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetUp {
    /// Time to register the first region on all rails.
    pub registered: Duration,
    /// Time to insert the addresses of all peers on all rails.
    pub inserted: Duration,
}

impl<R: Rail> Engine<R> {
    /// Creates an engine over `rails`, which must not be empty. At most `window` commands are in flight. An engine that
    /// makes no progress for `timeout` is stalled.
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
            losses: None,
            flush: None,
            signals: Signals::new(SignalRule::default(), 0),
            commands: 0,
            clock: StallClock::new(timeout),
            drained: false,
            bare_writes: None,
            set_up: SetUp::default(),
            queues: rails.into_iter().map(RailQueue::new).collect(),
        }
    }

    /// Returns the rails.
    pub fn rails(&self) -> impl ExactSizeIterator<Item = &R> {
        self.queues.iter().map(|queue| &queue.rail)
    }

    /// Returns the rails mutably, for adding peers.
    pub fn rails_mut(&mut self) -> impl ExactSizeIterator<Item = &mut R> {
        self.queues.iter_mut().map(|queue| &mut queue.rail)
    }

    /// Returns the number of commands that can be submitted now.
    #[inline]
    pub fn room(&self) -> usize {
        if self.queued < MOST_QUEUED { self.tracker.room() } else { 0 }
    }

    /// Submits a command and returns its ticket, which is the number of commands before it. [`pump`](Engine::pump)
    /// posts the transfers. A command that moves no bytes and raises no signal completes immediately, because rails
    /// reject empty transfers.
    ///
    /// # Errors
    /// Returns [`EngineError::Refused`] if the command names a region, range, peer or signal that does not exist. Its
    /// ticket then never completes. Returns [`EngineError::Staging`] if a staging copy cannot be started.
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
        // A put without a signal needs no credits. It is deferred only if earlier commands to its peer are deferred.
        if command.opcode == Opcode::Put && !self.signals.defer(command.peer) {
            self.enqueue(ticket, route, command, |_| None);
        } else {
            self.place(ticket, route, command);
        }
        Ok(ticket)
    }

    /// Posts queued transfers until the providers are full.
    ///
    /// # Errors
    /// Returns the provider's error, or the driver's error for a staging copy.
    #[inline]
    pub fn pump(&mut self, watch: &mut impl EngineObserver) -> Result<(), EngineError> {
        if self.stages {
            self.take_staged()?;
        }
        if self.signals.has_more() {
            self.run_deferred();
        }
        if self.queued == 0 {
            return Ok(());
        }
        for index in 0..self.queues.len() {
            let (taken, outcome) = self.queues[index].pump(|rail, queued, more| {
                let region = match (queued.local_region, &self.values) {
                    (VALUES, Some(values)) => &values.on_rail[index],
                    _ => &self.regions[queued.local_region as usize].on_rail[index],
                };
                // `check` validated the region for rail 0, and every region is registered on all rails.
                let remote = self.peers.table.get(queued.remote as usize + index).copied().unwrap_or_default();
                let to = (queued.peer as usize, remote, queued.remote_offset);
                let transfer = Transfer {
                    immediate: queued.immediate,
                    more,
                    ..Transfer::new(queued.local_offset, to, queued.bytes, queued.ticket)
                };
                // SAFETY: `check` validated that the bytes are in registered regions, and the producer does not access
                // them until the watermark has passed the ticket.
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
            if let Err(error) = outcome {
                self.lose_first(index, error)?;
            }
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

    /// Polls the rails and advances the watermark. Returns whether anything completed or arrived.
    ///
    /// # Errors
    /// Returns the first rail failure or failed transfer. All rails are polled even so, and their completions are
    /// processed.
    #[inline]
    pub fn progress(&mut self, watch: &mut impl EngineObserver) -> Result<bool, EngineError> {
        // Inactive rails carry none of our transfers, but peers may depend on their progress.
        self.polls = self.polls.wrapping_add(1);
        let polled = if self.polls.is_multiple_of(IDLE_RAIL_POLLS) { self.queues.len() } else { self.active_rails };
        // A failed rail must not hide the completions of the other rails.
        let mut dead = None;
        for queue in &mut self.queues[..polled] {
            let first = self.completions.len();
            if let Err(error) = queue.rail.poll(&mut self.completions) {
                dead = dead.or(Some(error));
            }
            queue.completed(&self.completions[first..]);
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
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            match completion {
                Completion::Done { token } => {
                    self.posted = self.posted.saturating_sub(1);
                    self.tracker.complete(token);
                    self.signals.landed(token);
                    watch.completed(token);
                }
                Completion::Immediate { value } => self.signals.arrive(value),
                // Does not occur: the proxy opens its rails without messages.
                Completion::Received { .. } => {}
                Completion::Failed { token, error } => {
                    // A transfer without a token is not ours: for example, a write from a peer failed.
                    self.posted = self.posted.saturating_sub(token.is_some().into());
                    if self.losses.is_some() {
                        self.lose(token, None, *error);
                    } else {
                        failed = failed.or(Some(error));
                    }
                }
            }
        }
        self.completions = completions;
        // Incoming immediates are not progress of our own transfers and must not defer stall detection.
        if self.posted != before {
            self.clock.moved();
        }
        failed.map_or(Ok(true), |error| Err((*error).into()))
    }

    /// Returns the watermark: all commands with lower tickets are complete.
    #[inline]
    pub fn watermark(&self) -> u64 {
        self.tracker.watermark()
    }

    /// Returns the number of incomplete commands.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.tracker.in_flight()
    }

    /// Returns the number of transfers that the providers have accepted and not completed. Their buffers are in use by
    /// the NIC.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Runs a minimal write loop on rail 0 that bypasses the engine, as the reference for its overhead. Returns the
    /// elapsed seconds, or `None` if this kind of rail has no such loop. Must not be called while commands are in
    /// flight.
    ///
    /// # Errors
    /// Returns the provider's error, or [`EngineError::Refused`] if the route does not exist.
    pub fn bare_writes(&mut self, route: (u32, u32, u32), bytes: u64, count: u64) -> Result<Option<f64>, EngineError> {
        let (source, destination, peer) = route;
        let entry = self.peers.first_entry(peer as usize, destination as usize);
        let remote = entry.and_then(|entry| self.peers.table.get(entry)).copied();
        let (Some(region), Some(remote)) = (self.regions.get(source as usize), remote) else {
            return Err(EngineError::Refused(format!("route {route:?} of a bare loop")));
        };
        let Some(bare) = self.bare_writes else { return Ok(None) };
        let run = BareLoop { peer: peer as usize, remote, bytes, count, deadline: self.clock.timeout() };
        // SAFETY: the caller guarantees that nothing is in flight and that no running kernel changes the source.
        Ok(Some(unsafe { bare(&mut self.queues[0].rail, &region.on_rail[0], &run) }?))
    }

    /// Starts a new ticket sequence at 0 and returns the current one, for [`resume`](Engine::resume). The
    /// CPU-initiated baseline runs between the two, so that its tickets are not the ring's. Must not be called while
    /// commands are in flight.
    pub fn suspend(&mut self) -> Tracker {
        std::mem::replace(&mut self.tracker, Tracker::new(self.window))
    }

    /// Restores a ticket sequence returned by [`suspend`](Engine::suspend).
    pub fn resume(&mut self, tracker: Tracker) {
        self.tracker = tracker;
    }

    /// Returns the number of commands submitted since the engine was created.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Returns the totals posted since the engine was created.
    pub fn counters(&self) -> Counters {
        rails::counters(&self.queues)
    }
}
