//! Operations in flight: posting, completion and waiting.

mod ending;
mod posting;

pub(super) use posting::{Segment, TransferOptions};

use super::immediates::Immediates;
use super::{FlowError, Region};
use ginlab_base::backoff::Backoff;
use ginlab_fabric::{Completion, FabricError, Messages};
use ginlab_rails::strategy::{Scheduler, Strategy};
use ginlab_rails::{RailQueue, StallClock};
use posting::PendingPost;
use slab::Slab;
use std::fmt;
use std::task::Waker;
use std::time::Duration;

/// Number of driver iterations between two checks of the clock.
const LOOK_EVERY: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationKind {
    Write,
    Read,
    Send,
    Receive,
}

/// An operation, kept until its future has taken the result and its last completion has arrived. It fits in one cache
/// line, because the kernel's network stack evicts the cache between two writes.
pub(super) struct Operation<R: Messages> {
    /// Keeps the memory while a NIC may use it.
    local: Region<R>,
    bytes: u64,
    waker: Option<Waker>,
    error: Option<Box<FlowError>>,
    /// Number of pieces whose completion has not arrived.
    outstanding: u32,
    /// Index of the peer, or [`NOBODY`] for a receive, which accepts messages from any peer.
    peer: u32,
    rail: u16,
    kind: OperationKind,
    abandoned: bool,
}

/// Peer index of an operation without a peer.
const NOBODY: usize = u32::MAX as usize;

/// Index, on each rail, of a peer that was removed.
const GONE: usize = usize::MAX;

/// State of a [`Flow`](super::Flow).
pub(super) struct State<R: Messages> {
    // Order of drop: the registrations that operations hold, then the rails, then the regions that peers can access.
    // The latter must not be closed while a peer may write to them. The EFA provider of libfabric 1.17 aborts the
    // process if a peer writes to a closed registration, and does not stop a write in progress.
    pub operations: Slab<Operation<R>>,
    pub queues: Vec<RailQueue<R, PendingPost>>,
    pub reached: Vec<Region<R>>,
    /// Each rail's index of a peer, by peer and rail; [`GONE`] once the peer has been removed.
    peers: Vec<usize>,
    pub scheduler: Scheduler,
    longest: u64,
    completions: Vec<Completion>,
    pub immediates: Immediates,
    /// Number of failed incoming transfers, and the error of the last one.
    pub incoming_failures: (u64, Option<Box<FabricError>>),
    pub holds: usize,
    clock: StallClock,
    turns: u32,
    /// Whether a waker has been called in this iteration.
    woken: bool,
    /// Backoff of the driver, if more ranks than cores share the machine.
    pub backoff: Option<Backoff>,
    /// Limit set by [`Flow::poll_at_most`](super::Flow::poll_at_most).
    pub most_polls: u32,
    /// Error with which the flow failed. Boxed to stay small, because every write checks it.
    dead: Option<Box<FlowError>>,
    /// Number of writes and messages before the one that is sent one byte short; for tests.
    pub corrupt: Option<u64>,
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
            queues: rails.into_iter().map(RailQueue::new).collect(),
            reached: Vec::new(),
            completions: Vec::with_capacity(256),
            immediates: Immediates::default(),
            incoming_failures: (0, None),
            holds: 0,
            clock: StallClock::new(timeout),
            turns: 0,
            woken: false,
            backoff: None,
            most_polls: u32::MAX,
            dead: None,
            corrupt: None,
        }
    }

    pub fn add_peer(&mut self, addresses: &[Vec<u8>]) -> Result<usize, FlowError> {
        if addresses.len() != self.queues.len() {
            let text = format!("the peer has {} rails, but this flow has {}", addresses.len(), self.queues.len());
            return Err(FlowError::Refused(text));
        }
        let mut on_rail = Vec::with_capacity(addresses.len());
        for (rail, address) in addresses.iter().enumerate() {
            match self.queues[rail].rail.add_peer(address) {
                Ok(index) => on_rail.push(index),
                Err(error) => {
                    // Undo: a peer is added to all rails or to none. The first error is the cause.
                    let _ = self.remove_from_rails(on_rail);
                    return Err(error.into());
                }
            }
        }
        self.peers.extend(on_rail);
        Ok(self.peers.len() / self.queues.len() - 1)
    }

    pub fn remove_peer(&mut self, peer: usize) -> Result<(), FlowError> {
        let to_it = |op: &Operation<R>| op.outstanding > 0 && op.peer as usize == peer;
        let count = self.operations.iter().filter(|(_, operation)| to_it(operation)).count();
        if count > 0 && self.dead.is_none() {
            return Err(FlowError::Refused(format!("peer {peer} has {count} operations in flight")));
        }
        if self.on_rail(peer, 0).is_none() {
            return Err(FlowError::Refused(format!("no peer {peer}")));
        }
        let rails = self.queues.len();
        let on_rail =
            self.peers[peer * rails..][..rails].iter_mut().map(|index| std::mem::replace(index, GONE)).collect();
        Ok(self.remove_from_rails(on_rail)?)
    }

    /// Removes a peer from the first rails; `on_rail` has the peer's index on each of them. Continues after an error,
    /// and returns the first error.
    fn remove_from_rails(&mut self, on_rail: Vec<usize>) -> Result<(), FabricError> {
        let mut result = Ok(());
        for (queue, index) in self.queues.iter_mut().zip(on_rail) {
            result = result.and(queue.rail.remove_peer(index));
        }
        result
    }

    /// Returns the index of an existing peer on `rail`.
    pub fn on_rail(&self, peer: usize, rail: usize) -> Option<usize> {
        let index = self.peers.get(peer.checked_mul(self.queues.len())? + rail).copied();
        index.filter(|index| *index != GONE)
    }

    #[inline(always)]
    fn begin(
        &mut self,
        kind: OperationKind,
        local: &Region<R>,
        peer: usize,
        rail: usize,
        outstanding: u32,
        bytes: u64,
    ) -> usize {
        if self.operations.is_empty() {
            // Idle time before this operation does not count towards a stall.
            self.clock.moved();
        }
        self.operations.insert(Operation {
            local: local.clone(),
            bytes,
            waker: None,
            error: None,
            outstanding,
            // The cast to 32 bits is lossless: there are as many peers as ranks.
            peer: peer as u32,
            // The cast to 16 bits is lossless: a machine has tens of rails at most.
            rail: rail as u16,
            kind,
            abandoned: false,
        })
    }

    /// Creates an operation that fails with `error` before anything is posted.
    #[cold]
    pub fn refused(&mut self, local: &Region<R>, error: FlowError) -> usize {
        let key = self.begin(OperationKind::Write, local, NOBODY, 0, 0, 0);
        self.operations[key].error = Some(Box::new(error));
        key
    }

    /// Records that a piece of an operation has completed.
    #[inline(always)]
    fn complete(&mut self, key: usize) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        self.clock.moved();
        operation.outstanding = operation.outstanding.saturating_sub(1);
        if operation.outstanding == 0 && (operation.abandoned || operation.waker.is_some()) {
            self.ended(key);
        }
    }

    /// Handles the last completion of an operation that a task waits for or whose future was dropped.
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

    /// Records that a piece of an operation has failed. The first error is kept.
    #[cold]
    fn fail_piece(&mut self, key: usize, error: FlowError) {
        if let Some(operation) = self.operations.get_mut(key) {
            operation.error.get_or_insert_with(|| Box::new(error));
        }
        self.complete(key);
    }

    /// Polls every rail once and posts deferred pieces.
    #[inline]
    pub fn progress(&mut self) -> Result<(), FlowError> {
        self.check_alive()?;
        let mut completions = std::mem::take(&mut self.completions);
        let mut failed: Option<FabricError> = None;
        for queue in &mut self.queues {
            let first = completions.len();
            if let Err(error) = queue.rail.poll(&mut completions) {
                failed = failed.or(Some(error));
            }
            queue.completed(&completions[first..]);
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
                // A peer's transfer failed, which must not fail operations of this flow.
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
        // Flushes even without a completion: a provider that is still connecting to a peer also returns EAGAIN.
        if self.holds == 0 {
            self.flush();
        }
        match failed {
            Some(error) => Err(self.fail(error.into())),
            None => Ok(()),
        }
    }

    /// Runs up to `most` iterations of the driver. Stops when a task can run or the flow has failed.
    pub fn turns(&mut self, most: u32) {
        for _ in 0..most.min(self.most_polls) {
            if self.turn() {
                return;
            }
        }
    }

    /// Polls once for a waiting task, which waits for operation `key` if this is given. Returns whether another task
    /// can run now.
    #[inline]
    pub fn turn_for(&mut self, key: Option<usize>) -> bool {
        // A waker that remains from an earlier wait of this task would count as another task's waker.
        if let Some(operation) = key.and_then(|key| self.operations.get_mut(key)) {
            operation.waker = None;
        }
        self.woken = false;
        let _ = self.progress();
        self.woken
    }

    /// Runs one iteration of the driver: progress, and periodically a check for stalls. Returns whether a task can run
    /// now or the flow has failed. A failed flow has stored its error in every operation, and later operations also
    /// fail with it.
    fn turn(&mut self) -> bool {
        self.woken = false;
        let mut ended = self.progress().is_err();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LOOK_EVERY) {
            ended |= self.check_stall().is_err();
        }
        let moved = self.woken || ended;
        if let Some(backoff) = &mut self.backoff {
            if moved {
                backoff.reset();
            } else {
                backoff.idle();
            }
        }
        moved
    }

    pub fn check_alive(&self) -> Result<(), FlowError> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Returns the error with which the flow failed, if it has.
    pub fn failure(&self) -> Option<FlowError> {
        self.dead.as_deref().cloned()
    }

    /// Returns the result of an operation, once it has one.
    #[inline(always)]
    pub fn take_result(&mut self, key: usize) -> Option<Result<u64, FlowError>> {
        if self.operations.get(key)?.outstanding > 0 {
            return self.give_up(key);
        }
        let Operation { bytes, error, .. } = self.operations.remove(key);
        Some(error.map_or(Ok(bytes), |error| Err(*error)))
    }

    /// Returns the error of an operation that is still in flight, if the flow has failed. Its future no longer waits,
    /// but its memory is kept until the completion.
    #[inline(never)]
    fn give_up(&mut self, key: usize) -> Option<Result<u64, FlowError>> {
        self.dead.as_deref()?;
        let operation = self.operations.get_mut(key)?;
        let error = operation.error.as_deref().cloned()?;
        operation.abandoned = true;
        Some(Err(error))
    }

    /// Returns whether an operation has a result.
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

    /// Records that the future of an operation was dropped. Tries to cancel a receive.
    pub fn abandon(&mut self, key: usize) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        if operation.outstanding == 0 {
            self.operations.remove(key);
            return;
        }
        operation.abandoned = true;
        let (kind, rail) = (operation.kind, usize::from(operation.rail));
        if kind != OperationKind::Receive {
            return;
        }
        let Some(queue) = self.queues.get_mut(rail) else { return };
        if queue.take(|piece| piece.key() == key).is_some() {
            self.complete(key);
        } else {
            // The completion arrives in either case, and an error is returned by the next poll.
            let _ = queue.rail.cancel(key as u64);
        }
    }

    /// Registers a task's wait for immediates.
    pub fn wait_for_immediate(&mut self, known: Option<u64>, value: u32, count: u64, waker: &Waker) -> u64 {
        if known.is_none() && self.immediates.nobody_waits() && self.operations.is_empty() {
            // Idle time before this wait does not count towards a stall.
            self.clock.moved();
        }
        self.immediates.wait(known, value, count, waker)
    }
}
