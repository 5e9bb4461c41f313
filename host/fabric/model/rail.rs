//! A rail that adds the times of a modelled card to an inner rail, which moves the bytes.

use super::poster::{Poster, charge};
use super::{ModelledNics, Picoseconds, WriteTimes};
use crate::{Access, Completion, FabricError, MemoryRange, Post, Rail, RailLimits, RemoteRegion, Transfer};
use slab::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::rc::Rc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Bit that marks the model's own tokens at the inner rail.
const OURS: u64 = 1 << 63;
/// Number of polls per poll of the inner rail while it has none of this rail's transfers. The inner rail is still
/// polled, because peers may write to this rank.
const IDLE_POLLS: u32 = 16;

/// A rail of a modelled card. See [`ModelledNics`].
pub struct ModelRail<R: Rail> {
    // This field is dropped before the rail, because flights hold regions.
    flights: Slab<Flight<R>>,
    inner: R,
    model: ModelledNics,
    poster: Rc<Poster>,
    card: usize,
    name: String,
    limits: RailLimits,
    /// Pending events, by time.
    events: BinaryHeap<Reverse<(Picoseconds, usize, Event)>>,
    /// Number of transfers that the inner rail has not completed.
    below: usize,
    /// Transfers whose immediates the inner rail had no space to accept.
    refused: Vec<usize>,
    /// Time at which the last event was due.
    last_due: Picoseconds,
    /// Time since which the card has been idle, waiting only for the bytes. `None` if it is not.
    waits_since: Option<Picoseconds>,
    /// Time up to which this card's waits are counted, so that none is counted twice.
    counted: Picoseconds,
    /// Value of the poster's clock at the last poll.
    polled_at: Picoseconds,
    polls: u32,
    arrived: Vec<Completion>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The write arrives: the target may observe its immediate.
    Deliver,
    /// The acknowledgement has returned.
    Complete,
}

/// A transfer between its post and its completion.
struct Flight<R: Rail> {
    token: u64,
    /// The immediate, which must not be observed before it is due.
    late: Option<(Rc<R::Region>, Transfer)>,
    /// Whether the immediate is due.
    delivered: bool,
    /// Whether the inner rail has the transfer and has not completed it.
    moving: bool,
    /// Whether the model has completed the transfer.
    acknowledged: bool,
    error: Option<Box<FabricError>>,
}

impl<R: Rail> fmt::Debug for ModelRail<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} with {} transfers, {} of them with the underlying rail",
            self.name,
            self.flights.len(),
            self.below
        )
    }
}

impl<R: Rail> ModelRail<R> {
    pub(super) fn new(model: ModelledNics, poster: Rc<Poster>, card: usize, inner: R) -> Self {
        let depth = model.profile().queue_depth.value as usize;
        let limits = RailLimits {
            max_outstanding: depth,
            link_bits_per_second: Some(model.line_rate()),
            ..inner.limits().clone()
        };
        poster.rails.update(|rails| rails + 1);
        ModelRail {
            flights: Slab::with_capacity(depth),
            name: format!("{}/{card}", model.0.name),
            limits,
            events: BinaryHeap::with_capacity(2 * depth),
            below: 0,
            refused: Vec::new(),
            last_due: 0,
            waits_since: None,
            counted: 0,
            polled_at: 0,
            polls: 0,
            arrived: Vec::new(),
            model,
            poster,
            card,
            inner,
        }
    }

    /// Returns the time of a poll: the poster's clock, which is read again only if no rail has read it since this
    /// rail's last poll.
    fn time(&mut self) -> Picoseconds {
        if self.poster.clock.get() == self.polled_at {
            self.poster.clock.set(self.model.now());
        }
        self.polled_at = self.poster.clock.get();
        self.polled_at
    }

    /// Returns whether any transfer of this rail may progress now.
    fn has_work(&mut self) -> bool {
        if self.flights.is_empty() {
            return false;
        }
        let now = self.time();
        let is_due = |Reverse((due, ..)): &Reverse<(Picoseconds, usize, Event)>| *due <= now;
        self.below > 0 || !self.refused.is_empty() || self.events.peek().is_some_and(is_due)
    }

    /// Counts a time during which the card has waited for this machine.
    fn count_wait(&mut self, since: Picoseconds, until: Picoseconds) {
        self.model.add_behind(self.card, until.saturating_sub(since.max(self.counted)));
        self.counted = self.counted.max(until);
    }

    fn is_full(&self) -> bool {
        self.flights.len() >= self.limits.max_outstanding
    }

    /// Posts the write to the modelled card. Then waits until the modelled cost of the post has passed, including the
    /// time that the inner rail took.
    fn fly(&mut self, begun: Picoseconds, bytes: u64, key: usize, late: bool) {
        if let Some(since) = self.waits_since.take() {
            self.count_wait(since, begun);
        }
        let due = begun + self.model.0.post.as_nanos() as Picoseconds * 1000;
        let debt = self.poster.debt.get();
        let course: WriteTimes = {
            let mut nic = self.model.0.nics[self.card].lock().unwrap_or_else(PoisonError::into_inner);
            nic.post(due.saturating_sub(debt), bytes)
        };
        if late {
            self.events.push(Reverse((course.delivered, key, Event::Deliver)));
        }
        self.events.push(Reverse((course.completed, key, Event::Complete)));
        self.poster.in_flight.update(|count| count + 1);
        // If the poster is late, the clock is read only once, because each reading takes about 30 ns.
        let mut now = self.model.now();
        let (done, debt) = charge(due, debt, now);
        while now < done {
            std::hint::spin_loop();
            now = self.model.now();
        }
        // Detecting the end of the wait also takes time.
        self.poster.debt.set(debt + (now - done));
        self.poster.clock.set(now);
        self.poster.was_busy();
    }

    fn insert(&mut self, token: u64) -> usize {
        let flight = Flight { token, late: None, delivered: false, moving: false, acknowledged: false, error: None };
        self.flights.insert(flight)
    }

    /// Advances a transfer. Sends its immediate once this is due and the bytes have arrived. Completes the transfer
    /// once everything has arrived and is acknowledged.
    fn advance(&mut self, key: usize, completions: &mut Vec<Completion>) {
        let Some(flight) = self.flights.get_mut(key) else { return };
        if flight.moving {
            return;
        }
        if flight.delivered
            && let Some((region, late)) = &flight.late
        {
            // SAFETY: no bytes are moved.
            match unsafe { self.inner.write(region, late) } {
                Ok(Post::Again) => self.refused.push(key),
                Ok(Post::Accepted) => {
                    flight.late = None;
                    flight.moving = true;
                    self.below += 1;
                }
                Err(error) => {
                    flight.late = None;
                    flight.error = Some(Box::new(error));
                }
            }
        }
        if flight.moving || !flight.acknowledged || flight.late.is_some() {
            return;
        }
        let Flight { token, error, .. } = self.flights.remove(key);
        completions.push(match error {
            None => Completion::Done { token },
            Some(error) => Completion::Failed { token: Some(token), error },
        });
        self.poster.in_flight.update(|count| count.saturating_sub(1));
        if self.poster.in_flight.get() == 0 {
            // The remaining debt has delayed all transfers, by at most the time that the last event was late.
            let now = self.model.now();
            let late_by = now.saturating_sub(self.last_due);
            self.count_wait(now - self.poster.debt.take().min(late_by), now);
        }
    }

    fn poll_inner(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut arrived = std::mem::take(&mut self.arrived);
        let polled = self.inner.poll(&mut arrived);
        for completion in arrived.drain(..) {
            let (key, error) = match completion {
                Completion::Done { token } if token & OURS != 0 => (token & !OURS, None),
                Completion::Failed { token: Some(token), error } if token & OURS != 0 => (token & !OURS, Some(error)),
                other => {
                    completions.push(other);
                    continue;
                }
            };
            self.below -= 1;
            if let Some(flight) = self.flights.get_mut(key as usize) {
                flight.moving = false;
                flight.error = flight.error.take().or(error);
            }
            self.advance(key as usize, completions);
        }
        self.arrived = arrived;
        if self.below == 0
            && let Some(since) = self.waits_since.take()
        {
            self.count_wait(since, self.model.now());
        }
        polled
    }
}

impl<R: Rail> Rail for ModelRail<R> {
    type Region = Rc<R::Region>;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &RailLimits {
        &self.limits
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        self.inner.address()
    }

    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        self.inner.add_peer(address)
    }

    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        self.inner.remove_peer(peer)
    }

    unsafe fn register(&mut self, memory: MemoryRange, access: Access) -> Result<Self::Region, FabricError> {
        // SAFETY: forwards the call; the caller upholds the same contract of the inner rail.
        unsafe { self.inner.register(memory, access) }.map(Rc::new)
    }

    fn remote(&self, region: &Self::Region) -> RemoteRegion {
        self.inner.remote(region)
    }

    unsafe fn write(&mut self, region: &Self::Region, transfer: &Transfer) -> Result<Post, FabricError> {
        if self.is_full() {
            return Ok(Post::Again);
        }
        let begun = self.model.now();
        let moves = self.model.0.moves.load(Ordering::Relaxed);
        let (bytes, token, immediate) = (transfer.bytes, transfer.token, transfer.immediate);
        let late = |key: usize| Transfer { bytes: 0, token: OURS | key as u64, more: false, ..*transfer };
        let key = self.insert(token);
        if immediate.is_some() {
            self.flights[key].late = Some((region.clone(), late(key)));
        }
        // The bytes may arrive at any time before the completion, because the target does not read them before the
        // immediate.
        if moves && bytes > 0 {
            let bytes_alone = Transfer { immediate: None, token: OURS | key as u64, more: false, ..*transfer };
            // SAFETY: the caller upholds the contract, and our completion follows the inner rail's.
            match unsafe { self.inner.write(region, &bytes_alone) } {
                Ok(Post::Accepted) => {
                    self.flights[key].moving = true;
                    self.below += 1;
                }
                refused => {
                    self.flights.remove(key);
                    return refused;
                }
            }
        }
        self.fly(begun, bytes, key, immediate.is_some());
        Ok(Post::Accepted)
    }

    unsafe fn read(&mut self, region: &Self::Region, transfer: &Transfer) -> Result<Post, FabricError> {
        if self.is_full() {
            return Ok(Post::Again);
        }
        let begun = self.model.now();
        let key = self.insert(transfer.token);
        // SAFETY: the caller upholds the contract, and our completion follows the inner rail's.
        match unsafe { self.inner.read(region, &Transfer { token: OURS | key as u64, more: false, ..*transfer }) } {
            Ok(Post::Accepted) => {
                self.flights[key].moving = true;
                self.below += 1;
                self.fly(begun, transfer.bytes, key, false);
                Ok(Post::Accepted)
            }
            refused => {
                self.flights.remove(key);
                refused
            }
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        self.polls = self.polls.wrapping_add(1);
        let looks_at_peers = self.polls.is_multiple_of(IDLE_POLLS);
        if !self.has_work() {
            self.poster.was_quiet();
            // Only peers can have sent something.
            return if looks_at_peers { self.poll_inner(completions) } else { Ok(()) };
        }
        // Reads the clock again: the time since the last reading, for example between a post and this poll, belongs to
        // the poster.
        let (now, had) = (self.model.now(), (self.below, self.events.len()));
        if self.below > 0 || looks_at_peers {
            self.poll_inner(completions)?;
        }
        for key in std::mem::take(&mut self.refused) {
            self.advance(key, completions);
        }
        while let Some(&Reverse((due, key, event))) = self.events.peek()
            && due <= now
        {
            self.events.pop();
            self.last_due = due;
            if let Some(flight) = self.flights.get_mut(key) {
                match event {
                    Event::Deliver => flight.delivered = true,
                    Event::Complete => flight.acknowledged = true,
                }
            }
            self.advance(key, completions);
        }
        // A real card would be idle now.
        if self.below > 0 && had.1 > 0 && self.events.is_empty() {
            self.waits_since = Some(self.last_due);
        }
        if (self.below, self.events.len()) != had {
            // A real card moves bytes and delivers immediates itself, and the modelled cost of a post includes its
            // completion. The time spent on them here is therefore debt.
            let end = self.model.now();
            self.poster.debt.update(|debt| debt + end.saturating_sub(now));
            self.poster.clock.set(end);
            self.poster.was_busy();
        } else {
            self.poster.was_quiet();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
