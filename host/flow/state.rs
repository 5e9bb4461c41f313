//! What is in flight: posting, completing, waiting.

mod ending;

use super::immediates::Immediates;
use super::{Counters, FlowError, Region, Target};
use crate::fabric::{Completion, FabricError, Message, Post, Rail, RemoteRegion, Transfer};
use crate::proxy::strategy::{self, Scheduler, Strategy};
use slab::Slab;
use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;
use std::time::{Duration, Instant};

/// Longest run of posts behind one doorbell.
const LONGEST_CHAIN: usize = 16;
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
pub(super) struct Operation<R: Rail> {
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
const NOBODY: u32 = u32::MAX;

/// How a transfer goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// The one rail that takes all of it; otherwise the strategy says.
    pub rail: Option<usize>,
    /// Raised at the target behind the last byte.
    pub immediate: Option<u32>,
}

/// A post that a rail has not taken yet.
struct Piece {
    key: usize,
    body: Body,
}

/// What has become of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Posted {
    /// It is with the rail, or has failed.
    Gone,
    /// The rail has no room.
    Again,
}

enum Body {
    Write(Transfer),
    Read(Transfer),
    Send(usize, Message),
    Receive(Message),
}

/// See [`Flow`](super::Flow).
pub(super) struct State<R: Rail> {
    // Dropped in this order: registrations, which operations hold, before rails.
    operations: Slab<Operation<R>>,
    pub rails: Vec<R>,
    waiting: Vec<VecDeque<Piece>>,
    /// Each rail's index of a peer; nothing once it has left.
    peers: Vec<Option<Vec<usize>>>,
    scheduler: Scheduler,
    longest: u64,
    completions: Vec<Completion>,
    pub immediates: Immediates,
    pub counters: Counters,
    pub holds: usize,
    moved: u64,
    seen: (u64, Instant),
    turns: u32,
    /// A waker has been called in this turn.
    woken: bool,
    pub gives_way: bool,
    /// See [`Flow::poll_at_most`](super::Flow::poll_at_most).
    pub most_polls: u32,
    timeout: Duration,
    dead: Option<FlowError>,
}

impl<R: Rail> fmt::Debug for State<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl<R: Rail> State<R> {
    pub fn new(rails: Vec<R>, timeout: Duration) -> Self {
        let count = rails.len();
        State {
            operations: Slab::new(),
            waiting: (0..count).map(|_| VecDeque::new()).collect(),
            peers: Vec::new(),
            scheduler: Scheduler::new(Strategy::Single, count),
            longest: rails.iter().map(|rail| rail.limits().max_transfer_bytes).min().unwrap_or(u64::MAX),
            rails,
            completions: Vec::with_capacity(256),
            immediates: Immediates::default(),
            counters: Counters { rail_bytes: vec![0; count], rail_transfers: vec![0; count], again: 0 },
            holds: 0,
            moved: 0,
            seen: (0, Instant::now()),
            turns: 0,
            woken: false,
            gives_way: false,
            most_polls: u32::MAX,
            timeout,
            dead: None,
        }
    }

    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    pub fn use_rails(&mut self, rails: usize, strategy: Strategy) {
        self.scheduler = Scheduler::new(strategy, rails.clamp(1, self.rails.len().max(1)));
    }

    pub fn add_peer(&mut self, addresses: &[Vec<u8>]) -> Result<usize, FlowError> {
        if addresses.len() != self.rails.len() {
            let text = format!("a peer with {} rails; this flow has {}", addresses.len(), self.rails.len());
            return Err(FlowError::Refused(text));
        }
        let added = self.rails.iter_mut().zip(addresses).map(|(rail, address)| rail.add_peer(address));
        let on_rail = added.collect::<Result<_, _>>()?;
        self.peers.push(Some(on_rail));
        Ok(self.peers.len() - 1)
    }

    pub fn remove_peer(&mut self, peer: usize) -> Result<(), FlowError> {
        let to_it = |op: &Operation<R>| op.outstanding > 0 && op.peer as usize == peer;
        let count = self.operations.iter().filter(|(_, operation)| to_it(operation)).count();
        if count > 0 && self.dead.is_none() {
            return Err(FlowError::Refused(format!("peer {peer} has {count} operations in flight")));
        }
        let on_rail = self.peers.get_mut(peer).and_then(Option::take);
        let on_rail = on_rail.ok_or_else(|| FlowError::Refused(format!("there is no peer {peer}")))?;
        for (rail, index) in self.rails.iter_mut().zip(on_rail) {
            rail.remove_peer(index)?;
        }
        Ok(())
    }

    fn on_rail(&self, peer: usize, rail: usize) -> Option<usize> {
        self.peers.get(peer)?.as_ref()?.get(rail).copied()
    }

    #[allow(clippy::too_many_arguments)]
    pub fn transfer(
        &mut self,
        kind: Kind,
        local: &Region<R>,
        offset: u64,
        target: &Target,
        at: u64,
        bytes: u64,
        way: Way,
    ) -> Result<usize, FlowError> {
        self.check_alive()?;
        let Way { rail, immediate } = way;
        let inside = |start: u64, length: u64| start.checked_add(bytes).is_some_and(|end| end <= length);
        let (mine, theirs) = (local.bytes(), target.bytes());
        let peer = self.peers.get(target.peer.0).and_then(Option::as_ref);
        if !inside(offset, mine) || !inside(at, theirs) || peer.is_none() || target.on_rail.len() != self.rails.len() {
            return Err(FlowError::Refused(format!(
                "{bytes} B from offset {offset} of {mine} B to offset {at} of peer {}'s {theirs} B on {} rails: this flow has \
                 {} rails and {} peers",
                target.peer.0,
                target.on_rail.len(),
                self.rails.len(),
                self.peers.iter().flatten().count()
            )));
        }
        if (immediate.is_some() || rail.is_some()) && bytes > self.longest {
            let text = format!("{bytes} B in one transfer: it takes {} B at most", self.longest);
            return Err(FlowError::Refused(text));
        }
        if let Some(rail) = rail.filter(|rail| *rail >= self.rails.len()) {
            return Err(FlowError::Refused(format!("rail {rail}: this flow has {}", self.rails.len())));
        }
        if bytes == 0 && immediate.is_none() {
            return Ok(self.begin(kind, local, target.peer.0 as u32, 0, 0, 0));
        }
        let key = self.begin(kind, local, target.peer.0 as u32, 0, 0, bytes);
        let mut pieces = 0;
        let (waiting, peers) = (&mut self.waiting, &self.peers);
        let (mut last_rail, mut alone) = (0, None);
        let mut lay = |piece: strategy::Piece| {
            let transfer = Transfer {
                local_offset: offset + piece.offset,
                // Checked above.
                peer: peers[target.peer.0].as_ref().map_or(usize::MAX, |on_rail| on_rail[piece.rail]),
                remote: target.on_rail.get(piece.rail).copied().unwrap_or_else(RemoteRegion::default),
                remote_offset: at + piece.offset,
                bytes: piece.bytes,
                immediate,
                token: key as u64,
                more: false,
            };
            let body = if kind == Kind::Read { Body::Read(transfer) } else { Body::Write(transfer) };
            if pieces == 0 {
                alone = Some((piece.rail, body));
            } else {
                if let Some((rail, body)) = alone.take() {
                    waiting[rail].push_back(Piece { key, body });
                }
                waiting[piece.rail].push_back(Piece { key, body });
            }
            last_rail = piece.rail;
            pieces += 1;
        };
        match rail {
            Some(rail) => lay(strategy::Piece { rail, offset: 0, bytes }),
            None => {
                self.scheduler.schedule(bytes, self.longest, immediate.is_some(), lay);
            }
        }
        let operation = &mut self.operations[key];
        (operation.outstanding, operation.rail) = (pieces, last_rail as u16);
        match alone {
            // From where it stands: nothing goes before it.
            Some((rail, body)) if self.holds == 0 && self.waiting[rail].is_empty() => {
                let mut piece = Piece { key, body };
                if self.post_piece(rail, &mut piece, false) == Posted::Again {
                    self.waiting[rail].push_back(piece);
                }
                return Ok(key);
            }
            Some((rail, body)) => self.waiting[rail].push_back(Piece { key, body }),
            None => {}
        }
        if self.holds == 0 {
            self.flush();
        }
        Ok(key)
    }

    pub fn message(
        &mut self,
        kind: Kind,
        rail: usize,
        peer: usize,
        local: &Region<R>,
        message: Message,
    ) -> Result<usize, FlowError> {
        self.check_alive()?;
        if rail >= self.rails.len() {
            return Err(FlowError::Refused(format!("rail {rail}: this flow has {}", self.rails.len())));
        }
        let on_rail = self.on_rail(peer, rail);
        if kind == Kind::Send && on_rail.is_none() {
            return Err(FlowError::Refused(format!("there is no peer {peer}")));
        }
        let key =
            self.begin(kind, local, if kind == Kind::Send { peer as u32 } else { NOBODY }, rail, 1, message.bytes);
        let message = Message { token: key as u64, ..message };
        let body = match on_rail {
            Some(peer) if kind == Kind::Send => Body::Send(peer, message),
            _ => Body::Receive(message),
        };
        self.waiting[rail].push_back(Piece { key, body });
        if self.holds == 0 {
            self.post(rail);
        }
        Ok(key)
    }

    pub fn bare_writes(
        &mut self,
        source: &Region<R>,
        target: &Target,
        bytes: u64,
        count: u64,
        deadline: Duration,
    ) -> Result<f64, FlowError> {
        self.check_alive()?;
        let (Some(peer), Some(remote)) = (self.on_rail(target.peer.0, 0), target.on_rail.first().copied()) else {
            return Err(FlowError::Refused(format!("there is no peer {}", target.peer.0)));
        };
        if self.outstanding() || bytes > source.bytes().min(remote.bytes) {
            return Err(FlowError::Refused("the bare loop needs an idle flow and regions of its size".into()));
        }
        let region = &source.on_rail[0];
        // SAFETY: nothing of ours is in flight, and nobody else runs before the loop ends.
        let ran = unsafe { self.rails[0].bare_writes(region, peer, remote, bytes, count, deadline) };
        let none = || FlowError::Refused("there is no plainer interface below this rail".into());
        Ok(ran.ok_or_else(none)??)
    }

    fn begin(&mut self, kind: Kind, local: &Region<R>, peer: u32, rail: usize, outstanding: u32, bytes: u64) -> usize {
        if self.operations.is_empty() {
            // What was idle for long is not stalled.
            self.moved += 1;
        }
        self.operations.insert(Operation {
            local: local.clone(),
            bytes,
            waker: None,
            error: None,
            outstanding,
            peer,
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

    /// Posts what waits on every rail, as far as the providers take it.
    pub fn flush(&mut self) {
        for rail in 0..self.rails.len() {
            self.post(rail);
        }
    }

    fn post(&mut self, index: usize) {
        let mut chain = 0;
        while let Some(mut piece) = self.waiting[index].pop_front() {
            chain += 1;
            let more = !self.waiting[index].is_empty() && chain % LONGEST_CHAIN != 0;
            if self.post_piece(index, &mut piece, more) == Posted::Again {
                self.waiting[index].push_front(piece);
                return;
            }
        }
    }

    /// Posts a piece; `more`: another one follows at once.
    #[inline]
    fn post_piece(&mut self, index: usize, piece: &mut Piece, more: bool) -> Posted {
        let region = &self.operations[piece.key].local.on_rail[index];
        let rail = &mut self.rails[index];
        let (posted, bytes) = match &mut piece.body {
            Body::Write(transfer) => {
                transfer.more = more;
                // SAFETY: the range was checked against the region, which the operation keeps until the completion; that
                // nobody writes the source before is what `write_all` asks of its caller, as a NIC would.
                (unsafe { rail.write(region, transfer) }, transfer.bytes)
            }
            Body::Read(transfer) => {
                transfer.more = more;
                // SAFETY: as for a write.
                (unsafe { rail.read(region, transfer) }, transfer.bytes)
            }
            // SAFETY: the rail checks the range; the operation keeps the region until the completion.
            Body::Send(peer, message) => (unsafe { rail.send(region, *peer, message) }, message.bytes),
            // SAFETY: as for a send.
            Body::Receive(message) => (unsafe { rail.receive(region, message) }, 0),
        };
        match posted {
            Ok(Post::Accepted) => {
                self.counters.rail_bytes[index] += bytes;
                self.counters.rail_transfers[index] += 1;
            }
            Ok(Post::Again) => {
                self.counters.again += 1;
                return Posted::Again;
            }
            Err(error) => self.complete(piece.key, 1, Some(error.into())),
        }
        Posted::Gone
    }

    /// Some pieces of an operation have ended.
    #[inline]
    fn complete(&mut self, key: usize, pieces: u32, error: Option<FlowError>) {
        let Some(operation) = self.operations.get_mut(key) else { return };
        self.moved += 1;
        operation.outstanding = operation.outstanding.saturating_sub(pieces);
        if operation.error.is_none() {
            operation.error = error.map(Box::new);
        }
        if operation.outstanding == 0 {
            if operation.abandoned {
                self.operations.remove(key);
            } else if let Some(waker) = operation.waker.take() {
                waker.wake();
                self.woken = true;
            }
        }
    }

    /// Polls every rail once and posts what waited.
    #[inline]
    pub fn progress(&mut self) -> Result<(), FlowError> {
        self.check_alive()?;
        let mut completions = std::mem::take(&mut self.completions);
        let mut failed: Option<FabricError> = None;
        for rail in &mut self.rails {
            if let Err(error) = rail.poll(&mut completions) {
                failed = failed.or(Some(error));
            }
        }
        let mut raised = false;
        for completion in completions.drain(..) {
            match completion {
                Completion::Done { token } => self.complete(token as usize, 1, None),
                Completion::Received { token, bytes } => {
                    if let Some(operation) = self.operations.get_mut(token as usize) {
                        operation.bytes = bytes;
                    }
                    self.complete(token as usize, 1, None);
                }
                Completion::Immediate { value } => {
                    self.immediates.raise(value);
                    raised = true;
                }
                Completion::Failed { token: Some(token), error } => {
                    self.complete(token as usize, 1, Some((*error).into()));
                }
                // None of ours: what a peer sent, say.
                Completion::Failed { token: None, error } => failed = failed.or(Some(*error)),
            }
        }
        self.completions = completions;
        if raised {
            self.moved += 1;
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
        if !(0..most.min(self.most_polls)).any(|_| self.turn()) && self.gives_way {
            std::thread::yield_now();
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
        self.woken || ended
    }

    fn check_alive(&self) -> Result<(), FlowError> {
        self.dead.clone().map_or(Ok(()), Err)
    }

    /// Why the flow has ended, if it has.
    pub fn failure(&self) -> Option<FlowError> {
        self.dead.clone()
    }

    /// The result of an operation, once it has one.
    #[inline]
    pub fn take_result(&mut self, key: usize) -> Option<Result<u64, FlowError>> {
        let operation = self.operations.get_mut(key)?;
        if operation.outstanding > 0 {
            // After a failure of the flow nobody waits for completions any more, but the memory does.
            let error = self.dead.is_some().then(|| operation.error.as_deref().cloned())??;
            operation.abandoned = true;
            return Some(Err(error));
        }
        let operation = self.operations.remove(key);
        Some(operation.error.map_or(Ok(operation.bytes), |error| Err(*error)))
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
        let before = self.waiting[rail].len();
        self.waiting[rail].retain(|piece| piece.key != key);
        if self.waiting[rail].len() < before {
            self.complete(key, 1, None);
        } else if let Some(rail) = self.rails.get_mut(rail) {
            // Its completion comes either way; an error shows at the next poll.
            let _ = rail.cancel(key as u64);
        }
    }

    /// Registers a task's wait for immediates.
    pub fn wait_for_immediate(&mut self, known: Option<u64>, value: u32, count: u64, waker: &Waker) -> u64 {
        if known.is_none() && self.immediates.nobody_waits() && self.operations.is_empty() {
            // What was idle for long is not stalled.
            self.moved += 1;
        }
        self.immediates.wait(known, value, count, waker)
    }
}
