//! What is in flight: posting, completing, waiting.

mod ending;
mod posting;

pub(super) use posting::{Stretch, Way};

use super::immediates::Immediates;
use super::{FlowError, Region};
use ginlab_base::giving_way::GivingWay;
use ginlab_fabric::{Completion, FabricError, Messages};
use ginlab_rails::strategy::{Scheduler, Strategy};
use ginlab_rails::{Lane, StallClock};
use posting::Piece;
use slab::Slab;
use std::fmt;
use std::task::Waker;
use std::time::Duration;

/// Turns of the driver between two looks at the clock.
const LOOK_EVERY: u32 = 256;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Read,
    Send,
    Receive,
}

/// An operation until its future has taken the result, and at least until its last completion has arrived. No larger than
/// a cache line: between two writes the kernel's network stack has had the cache.
pub(super) struct Operation<R: Messages> {
    /// Keeps the memory while a NIC may use it.
    local: Region<R>,
    bytes: u64,
    waker: Option<Waker>,
    error: Option<Box<FlowError>>,
    /// Pieces without a completion.
    outstanding: u32,
    /// [`NOBODY`] of a receive, which takes from whoever sends.
    peer: u32,
    rail: u16,
    kind: Kind,
    abandoned: bool,
}

/// In place of a peer.
const NOBODY: usize = u32::MAX as usize;

/// In place of a rail's index of a peer that has left.
const GONE: usize = usize::MAX;

/// See [`Flow`](super::Flow).
pub(super) struct State<R: Messages> {
    // Dropped in this order: registrations, which operations hold, before rails; those that peers reach behind them. (libfabric 1.17's EFA provider ends
    // the process when a peer writes to one that is closed, and goes on with a write that has begun: runs that were interrupted crashed.)
    pub operations: Slab<Operation<R>>,
    pub lanes: Vec<Lane<R, Piece>>,
    pub reached: Vec<Region<R>>,
    /// Each rail's index of a peer, by peer and rail; [`GONE`] once it has left.
    peers: Vec<usize>,
    pub scheduler: Scheduler,
    longest: u64,
    completions: Vec<Completion>,
    pub immediates: Immediates,
    /// Transfers of peers that failed on their way in: how many, and what the last one said.
    pub incoming_failures: (u64, Option<Box<FabricError>>),
    pub holds: usize,
    clock: StallClock,
    turns: u32,
    /// A waker has been called in this turn.
    woken: bool,
    /// For more ranks than cores.
    pub giving: Option<GivingWay>,
    /// See [`Flow::poll_at_most`](super::Flow::poll_at_most).
    pub most_polls: u32,
    /// Boxed: it is looked at with each write.
    dead: Option<Box<FlowError>>,
}

impl<R: Messages> fmt::Debug for State<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl<R: Messages> State<R> {
    pub fn new(rails: Vec<R>, timeout: Duration) -> Self {
        State {
            operations: Slab::new(),
            peers: Vec::new(),
            scheduler: Scheduler::new(Strategy::Single, rails.len()),
            longest: rails.iter().map(|rail| rail.limits().max_transfer_bytes).min().unwrap_or(u64::MAX),
            lanes: rails.into_iter().map(Lane::new).collect(),
            reached: Vec::new(),
            completions: Vec::with_capacity(256),
            immediates: Immediates::default(),
            incoming_failures: (0, None),
            holds: 0,
            clock: StallClock::new(timeout),
            turns: 0,
            woken: false,
            giving: None,
            most_polls: u32::MAX,
            dead: None,
        }
    }

    pub fn add_peer(&mut self, addresses: &[Vec<u8>]) -> Result<usize, FlowError> {
        if addresses.len() != self.lanes.len() {
            let text = format!("a peer with {} rails; this flow has {}", addresses.len(), self.lanes.len());
            return Err(FlowError::Refused(text));
        }
        let mut on_rail = Vec::with_capacity(addresses.len());
        for (rail, address) in addresses.iter().enumerate() {
            match self.lanes[rail].rail.add_peer(address) {
                Ok(index) => on_rail.push(index),
                Err(error) => {
                    // On all rails or on none.
                    for (lane, index) in self.lanes.iter_mut().zip(on_rail) {
                        lane.rail.remove_peer(index)?;
                    }
                    return Err(error.into());
                }
            }
        }
        self.peers.extend(on_rail);
        Ok(self.peers.len() / self.lanes.len() - 1)
    }

    pub fn remove_peer(&mut self, peer: usize) -> Result<(), FlowError> {
        let to_it = |op: &Operation<R>| op.outstanding > 0 && op.peer as usize == peer;
        let count = self.operations.iter().filter(|(_, operation)| to_it(operation)).count();
        if count > 0 && self.dead.is_none() {
            return Err(FlowError::Refused(format!("peer {peer} has {count} operations in flight")));
        }
        if self.on_rail(peer, 0).is_none() {
            return Err(FlowError::Refused(format!("there is no peer {peer}")));
        }
        let rails = self.lanes.len();
        for (lane, index) in self.lanes.iter_mut().zip(&mut self.peers[peer * rails..]) {
            lane.rail.remove_peer(std::mem::replace(index, GONE))?;
        }
        Ok(())
    }

    /// The rail's index of a peer that is there.
    pub fn on_rail(&self, peer: usize, rail: usize) -> Option<usize> {
        let index = self.peers.get(peer.checked_mul(self.lanes.len())? + rail).copied();
        index.filter(|index| *index != GONE)
    }

    #[inline(always)]
    fn begin(
        &mut self,
        kind: Kind,
        local: &Region<R>,
        peer: usize,
        rail: usize,
        outstanding: u32,
        bytes: u64,
    ) -> usize {
        if self.operations.is_empty() {
            // What was idle for long is not stalled.
            self.clock.moved();
        }
        self.operations.insert(Operation {
            local: local.clone(),
            bytes,
            waker: None,
            error: None,
            outstanding,
            // As many as ranks.
            peer: peer as u32,
            // Rails are counted in tens.
            rail: rail as u16,
            kind,
            abandoned: false,
        })
    }

    /// An operation that ends with this error before anything of it is posted.
    #[cold]
    pub fn refused(&mut self, local: &Region<R>, error: FlowError) -> usize {
        let key = self.begin(Kind::Write, local, NOBODY, 0, 0, 0);
        self.operations[key].error = Some(Box::new(error));
        key
    }

    /// A piece of an operation has ended.
    #[inline(always)]
    fn complete(&mut self, key: usize) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        self.clock.moved();
        operation.outstanding = operation.outstanding.saturating_sub(1);
        if operation.outstanding == 0 && (operation.abandoned || operation.waker.is_some()) {
            self.ended(key);
        }
    }

    /// The last piece of an operation that somebody waits for, or nobody any more, has ended.
    #[inline(never)]
    fn ended(&mut self, key: usize) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        if operation.abandoned {
            self.operations.remove(key);
        } else if let Some(waker) = operation.waker.take() {
            waker.wake();
            self.woken = true;
        }
    }

    /// A piece of an operation has ended with an error; the first one counts.
    #[cold]
    fn fail_piece(&mut self, key: usize, error: FlowError) {
        if let Some(operation) = self.operations.get_mut(key) {
            operation.error.get_or_insert_with(|| Box::new(error));
        }
        self.complete(key);
    }

    /// Polls every rail once and posts what waited.
    #[inline]
    pub fn progress(&mut self) -> Result<(), FlowError> {
        self.check_alive()?;
        let mut completions = std::mem::take(&mut self.completions);
        let mut failed: Option<FabricError> = None;
        for lane in &mut self.lanes {
            if let Err(error) = lane.rail.poll(&mut completions) {
                failed = failed.or(Some(error));
            }
        }
        let mut raised = false;
        for completion in completions.drain(..) {
            match completion {
                Completion::Done { token } => self.complete(token as usize),
                Completion::Received { token, bytes } => {
                    if let Some(operation) = self.operations.get_mut(token as usize) {
                        operation.bytes = bytes;
                    }
                    self.complete(token as usize);
                }
                Completion::Immediate { value } => {
                    self.immediates.raise(value);
                    raised = true;
                }
                Completion::Failed { token: Some(token), error } => {
                    self.fail_piece(token as usize, (*error).into());
                }
                // None of ours: a peer's transfer, and its failure. What it does must not end what others do here.
                Completion::Failed { token: None, error } => {
                    self.incoming_failures.0 += 1;
                    self.incoming_failures.1 = Some(error);
                }
            }
        }
        self.completions = completions;
        if raised {
            self.clock.moved();
            self.woken |= self.immediates.wake();
        }
        // Also without a completion: a provider that still connects to a peer answers "again" as well.
        if self.holds == 0 {
            self.flush();
        }
        match failed {
            Some(error) => Err(self.fail(error.into())),
            None => Ok(()),
        }
    }

    /// The driver's: so many turns, or until a task has something to do, or the flow has ended.
    pub fn turns(&mut self, most: u32) {
        for _ in 0..most.min(self.most_polls) {
            if self.turn() {
                return;
            }
        }
    }

    /// A turn of a task that waits, perhaps for this operation; whether another task has something to do now.
    #[inline]
    pub fn turn_for(&mut self, key: Option<usize>) -> bool {
        // Its own waker, from an earlier wait, would count as another's.
        if let Some(operation) = key.and_then(|key| self.operations.get_mut(key)) {
            operation.waker = None;
        }
        self.woken = false;
        let _ = self.progress();
        self.woken
    }

    /// Progress, and now and then a look at the clock. Whether a task has something to do now, or the flow has ended: then its
    /// error has gone to every operation, and the next ones will meet it too.
    fn turn(&mut self) -> bool {
        self.woken = false;
        let mut ended = self.progress().is_err();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LOOK_EVERY) {
            ended |= self.check_stall().is_err();
        }
        let moved = self.woken || ended;
        if let Some(giving) = &mut self.giving {
            if moved {
                giving.moved();
            } else {
                giving.in_vain();
            }
        }
        moved
    }

    pub fn check_alive(&self) -> Result<(), FlowError> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Why the flow has ended, if it has.
    pub fn failure(&self) -> Option<FlowError> {
        self.dead.as_deref().cloned()
    }

    /// The result of an operation, once it has one.
    #[inline(always)]
    pub fn take_result(&mut self, key: usize) -> Option<Result<u64, FlowError>> {
        if self.operations.get(key)?.outstanding > 0 {
            return self.give_up(key);
        }
        let Operation { bytes, error, .. } = self.operations.remove(key);
        Some(error.map_or(Ok(bytes), |error| Err(*error)))
    }

    /// After a failure of the flow nobody waits for completions any more, but the memory does.
    #[inline(never)]
    fn give_up(&mut self, key: usize) -> Option<Result<u64, FlowError>> {
        self.dead.as_deref()?;
        let operation = self.operations.get_mut(key)?;
        let error = operation.error.as_deref().cloned()?;
        operation.abandoned = true;
        Some(Err(error))
    }

    /// Whether an operation has a result.
    pub fn is_done(&self, key: usize) -> bool {
        self.dead.is_some() || self.operations.get(key).is_none_or(|operation| operation.outstanding == 0)
    }

    pub fn wake_later(&mut self, key: usize, waker: &Waker) {
        if let Some(operation) = self.operations.get_mut(key) {
            match &mut operation.waker {
                Some(known) => known.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
    }

    /// Nobody waits for this operation any more.
    pub fn abandon(&mut self, key: usize) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        if operation.outstanding == 0 {
            self.operations.remove(key);
            return;
        }
        operation.abandoned = true;
        let (kind, rail) = (operation.kind, usize::from(operation.rail));
        if kind != Kind::Receive {
            return;
        }
        let Some(lane) = self.lanes.get_mut(rail) else { return };
        if lane.take(|piece| piece.key() == key).is_some() {
            self.complete(key);
        } else {
            // Its completion comes either way; an error shows at the next poll.
            let _ = lane.rail.cancel(key as u64);
        }
    }

    /// Registers a task's wait for immediates.
    pub fn wait_for_immediate(&mut self, known: Option<u64>, value: u32, count: u64, waker: &Waker) -> u64 {
        if known.is_none() && self.immediates.nobody_waits() && self.operations.is_empty() {
            // What was idle for long is not stalled.
            self.clock.moved();
        }
        self.immediates.wait(known, value, count, waker)
    }
}
