//! A rail with a modelled card in front of the one that moves the bytes.

use super::{Course, Model, Picoseconds};
use crate::fabric::{
    Access, BareLoop, Completion, FabricError, Memory, Message, Post, Rail, RailLimits, RemoteRegion, Transfer,
};
use slab::Slab;
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::rc::Rc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Tokens of ours at the inner rail.
const OURS: u64 = 1 << 63;
/// The inner rail is polled once in so many polls while it has nothing of ours: peers may still write to us.
const IDLE_POLLS: u32 = 16;

/// The thread that posts: its rails share its time.
#[derive(Debug, Default)]
pub(super) struct Poster {
    /// By how much it is behind the modelled thread, whose posts cost [`post_us`](super::Profile) and nothing else. It
    /// catches up by not waiting for the end of a post.
    debt: Cell<Picoseconds>,
    /// Transfers that its rails have not reported.
    in_flight: Cell<usize>,
    /// When one of its rails looked at the clock last: to look takes as long as to poll four cards where nothing has happened.
    clock: Cell<Picoseconds>,
}

/// See [`Model`].
pub struct ModelRail<R: Rail> {
    // Before the rail: flights hold regions.
    flights: Slab<Flight<R>>,
    inner: R,
    model: Model,
    poster: Rc<Poster>,
    card: usize,
    name: String,
    limits: RailLimits,
    /// What happens next, by time.
    events: BinaryHeap<Reverse<(Picoseconds, usize, Event)>>,
    /// What the inner rail has not completed.
    below: usize,
    /// Immediates that the inner rail had no room for.
    refused: Vec<usize>,
    /// When the last event was due.
    last_due: Picoseconds,
    /// Since when the card has nothing left to do and only the bytes are missing.
    waits_since: Option<Picoseconds>,
    /// What the poster's clock showed at the last poll.
    polled_at: Picoseconds,
    polls: u32,
    arrived: Vec<Completion>,
}

/// What is due at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// It arrives: whoever waits at the target may see it.
    Deliver,
    /// The acknowledgement is back.
    Complete,
}

/// A transfer between its post and its completion.
struct Flight<R: Rail> {
    token: u64,
    /// The immediate, which must not be seen before its time.
    late: Option<(Rc<R::Region>, Transfer)>,
    /// The immediate's time has come.
    delivered: bool,
    /// The inner rail has it, and has not completed it.
    moving: bool,
    /// The model has completed it.
    acknowledged: bool,
    error: Option<Box<FabricError>>,
}

/// When a post ends here, and what the poster owes then: so much earlier it would have ended for the modelled thread. `due`:
/// its end without an earlier debt; `free`: until then the card is busy.
fn charge(due: Picoseconds, debt: Picoseconds, now: Picoseconds, free: Picoseconds) -> (Picoseconds, Picoseconds) {
    let modelled = due.saturating_sub(debt);
    let done = now.max(modelled);
    // To be late for a card that is still busy costs nothing.
    (done, (done - modelled).min(done.saturating_sub(free)))
}

impl<R: Rail> fmt::Debug for ModelRail<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} transfers, {} of them with the rail below", self.name, self.flights.len(), self.below)
    }
}

impl<R: Rail> ModelRail<R> {
    pub(super) fn new(model: Model, poster: Rc<Poster>, card: usize, inner: R) -> Self {
        let depth = model.profile().queue_depth.value as usize;
        let limits = RailLimits {
            max_outstanding: depth,
            link_bits_per_second: Some(model.line_rate()),
            ..inner.limits().clone()
        };
        ModelRail {
            flights: Slab::with_capacity(depth),
            name: format!("{}/{card}", model.0.name),
            limits,
            events: BinaryHeap::with_capacity(2 * depth),
            below: 0,
            refused: Vec::new(),
            last_due: 0,
            waits_since: None,
            polled_at: 0,
            polls: 0,
            arrived: Vec::new(),
            model,
            poster,
            card,
            inner,
        }
    }

    /// The time for a poll: what the poster's clock shows, unless nobody has looked at it since this rail's last poll.
    fn time(&mut self) -> Picoseconds {
        if self.poster.clock.get() == self.polled_at {
            self.poster.clock.set(self.model.now());
        }
        self.polled_at = self.poster.clock.get();
        self.polled_at
    }

    /// Whether something of ours may move now.
    fn has_work(&mut self) -> bool {
        if self.flights.is_empty() {
            return false;
        }
        let now = self.time();
        let is_due = |Reverse((due, ..)): &Reverse<(Picoseconds, usize, Event)>| *due <= now;
        self.below > 0 || !self.refused.is_empty() || self.events.peek().is_some_and(is_due)
    }

    fn is_full(&self) -> bool {
        self.flights.len() >= self.limits.max_outstanding
    }

    /// The card takes it. The poster's time passes here, whatever the inner rail took of it.
    fn fly(&mut self, begun: Picoseconds, bytes: u64, key: usize, late: bool) {
        if let Some(since) = self.waits_since.take() {
            self.model.add_behind(self.card, begun.saturating_sub(since));
        }
        let post = self.model.0.post.as_nanos() as Picoseconds * 1000;
        let (course, done): (Course, _) = {
            let mut nic = self.model.0.nics[self.card].lock().unwrap_or_else(PoisonError::into_inner);
            let (done, debt) = charge(begun + post, self.poster.debt.get(), self.model.now(), nic.free());
            self.poster.debt.set(debt);
            (nic.post(done - debt, bytes), done)
        };
        if late {
            self.events.push(Reverse((course.delivered, key, Event::Deliver)));
        }
        self.events.push(Reverse((course.completed, key, Event::Complete)));
        self.poster.in_flight.update(|count| count + 1);
        let mut now = self.model.now();
        while now < done {
            std::hint::spin_loop();
            now = self.model.now();
        }
        // To see that the time is over takes time too.
        self.poster.debt.update(|debt| debt + (now - done));
        self.poster.clock.set(now);
    }

    fn insert(&mut self, token: u64, late: Option<(Rc<R::Region>, Transfer)>) -> usize {
        let flight = Flight { token, late, delivered: false, moving: false, acknowledged: false, error: None };
        self.flights.insert(flight)
    }

    /// Goes on with a transfer as far as that can be: its immediate, once it is due and the bytes are there; its completion,
    /// once all is there and acknowledged.
    fn advance(&mut self, key: usize, completions: &mut Vec<Completion>) {
        let Some(flight) = self.flights.get_mut(key) else { return };
        if flight.moving {
            return;
        }
        if let Some((region, late)) = flight.late.take_if(|_| flight.delivered) {
            // SAFETY: no bytes are moved.
            match unsafe { self.inner.write(&region, &late) } {
                Ok(Post::Again) => {
                    flight.late = Some((region, late));
                    self.refused.push(key);
                }
                Ok(Post::Accepted) => {
                    flight.moving = true;
                    self.below += 1;
                }
                Err(error) => flight.error = Some(Box::new(error)),
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
            // What is still owed now has made all of it late, as far as it is late.
            let late_by = self.model.now().saturating_sub(self.last_due);
            self.model.add_behind(self.card, self.poster.debt.take().min(late_by));
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
            self.model.add_behind(self.card, self.model.now().saturating_sub(since));
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

    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Self::Region, FabricError> {
        // SAFETY: passed on.
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
        let key = self.insert(token, None);
        if immediate.is_some() {
            self.flights[key].late = Some((region.clone(), late(key)));
        }
        // Bytes may arrive at any time before the completion: what arrives early is seen by nobody.
        if moves && bytes > 0 {
            let bytes_alone = Transfer { immediate: None, token: OURS | key as u64, more: false, ..*transfer };
            // SAFETY: the caller's contract; our completion follows the inner one's.
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
        let key = self.insert(transfer.token, None);
        // SAFETY: the caller's contract; our completion follows the inner one's.
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
            // Only peers may have something for us.
            return if looks_at_peers { self.poll_inner(completions) } else { Ok(()) };
        }
        // A fresh look: what has passed since the last one, as between a post and this poll, is the poster's own time.
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
        // A card would be idle now.
        if self.below > 0 && had.1 > 0 && self.events.is_empty() {
            self.waits_since = Some(self.last_due);
        }
        if (self.below, self.events.len()) != had {
            // A card moves bytes and delivers immediates by itself, and a request's modelled cost has its completion in it.
            let end = self.model.now();
            self.poster.debt.update(|debt| debt + end.saturating_sub(now));
            self.poster.clock.set(end);
        }
        Ok(())
    }

    // The model knows writes and reads.
    unsafe fn send(&mut self, _: &Self::Region, _: usize, _: &Message) -> Result<Post, FabricError> {
        Err(self.has_none("messages"))
    }

    unsafe fn receive(&mut self, _: &Self::Region, _: &Message) -> Result<Post, FabricError> {
        Err(self.has_none("messages"))
    }

    fn cancel(&mut self, _token: u64) -> Result<(), FabricError> {
        Err(self.has_none("messages"))
    }

    unsafe fn bare_writes(&mut self, _: &Self::Region, _: &BareLoop) -> Option<Result<f64, FabricError>> {
        None
    }

    fn counted(&self) -> Option<(u64, u64, u64)> {
        self.inner.counted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::faulty::{Faults, FaultyRail};
    use crate::fabric::model::Profile;
    use crate::fabric::null::NullRail;
    use proptest::prelude::*;
    use std::time::{Duration, Instant};

    type Opened = (Model, ModelRail<NullRail>, Rc<<NullRail as Rail>::Region>, RemoteRegion);

    /// A card of p5 with room for so many writes.
    fn card(depth: f64) -> Opened {
        let mut profile = Profile::named("p5").expect("known");
        profile.queue_depth.value = depth;
        let model = Model::new("p5", profile, 1, 3);
        let mut rail = model.rails([NullRail::new()]).remove(0);
        rail.insert_peers(&[Vec::new()]).expect("a peer");
        // SAFETY: a null rail does not touch the memory.
        let region = unsafe { rail.register(Memory { address: 0, bytes: 1 << 30, cuda_device: None }, Access::ALL) }
            .expect("a region");
        let remote = rail.remote(&region);
        (model, rail, region, remote)
    }

    fn write((_, rail, region, remote): &mut Opened, bytes: u64, token: u64) -> Post {
        let transfer = Transfer {
            local_offset: 0,
            peer: 0,
            remote: *remote,
            remote_offset: 0,
            bytes,
            immediate: None,
            token,
            more: false,
        };
        // SAFETY: a null rail does not touch the memory.
        unsafe { rail.write(region, &transfer) }.expect("posted")
    }

    /// Tokens in the order of their completion, once so many are complete.
    fn complete(rail: &mut ModelRail<NullRail>, count: usize) -> Vec<u64> {
        let (mut completions, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(20));
        while completions.len() < count && Instant::now() < deadline {
            rail.poll(&mut completions).expect("polled");
        }
        let token = |completion: Completion| match completion {
            Completion::Done { token } => token,
            other => panic!("{other:?}"),
        };
        completions.into_iter().map(token).collect()
    }

    #[test]
    fn a_full_card_answers_again_until_something_is_complete() {
        let mut opened = card(4.0);
        let posts: Vec<Post> = (0..6).map(|token| write(&mut opened, 64, token)).collect();
        assert_eq!(posts, [Post::Accepted, Post::Accepted, Post::Accepted, Post::Accepted, Post::Again, Post::Again]);
        assert_eq!(complete(&mut opened.1, 4).len(), 4);
        assert_eq!(write(&mut opened, 64, 9), Post::Accepted);
    }

    #[test]
    fn completions_come_once_out_of_order_and_never_early() {
        let mut opened = card(4096.0);
        let started = Instant::now();
        (0..500).for_each(|token| assert_eq!(write(&mut opened, 64, token), Post::Accepted));
        let order = complete(&mut opened.1, 500);
        // 500 writes begin at 0.8 million a second, and the last one still has a round trip of at least 15 us before it.
        assert!(started.elapsed() >= Duration::from_nanos(499 * 1250 + 15_000), "{:?}", started.elapsed());
        assert!(order.windows(2).any(|pair| pair[0] > pair[1]), "jitter lets some overtake");
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..500).collect::<Vec<_>>());
        let mut late = Vec::new();
        opened.1.poll(&mut late).expect("polled");
        assert!(late.is_empty());
    }

    #[test]
    fn bytes_are_moved_below_or_not_at_all() {
        let mut opened = card(64.0);
        write(&mut opened, 1000, 0);
        opened.0.move_bytes(false);
        write(&mut opened, 5000, 1);
        assert_eq!(complete(&mut opened.1, 2).len(), 2);
        let below = &opened.1.inner;
        assert_eq!((below.transfers(), below.bytes()), (1, 1000));
    }

    #[test]
    fn bytes_that_come_later_than_the_card_are_counted() {
        let model = Model::new("p5", Profile::named("p5").expect("known"), 1, 3);
        // More polls than fit into a round trip.
        let late = FaultyRail::new(NullRail::new(), Faults { delay_polls: 100_000, ..Faults::default() });
        let mut rail = model.rails([late]).remove(0);
        rail.insert_peers(&[Vec::new()]).expect("a peer");
        // SAFETY: a null rail does not touch the memory.
        let region = unsafe { rail.register(Memory { address: 0, bytes: 64, cuda_device: None }, Access::ALL) }
            .expect("a region");
        let (local_offset, peer, remote, remote_offset) = (0, 0, rail.remote(&region), 0);
        let transfer =
            Transfer { local_offset, peer, remote, remote_offset, bytes: 64, immediate: None, token: 5, more: false };
        assert_eq!(model.behind(), [Duration::ZERO]);
        // SAFETY: a null rail does not touch the memory.
        unsafe { rail.write(&region, &transfer) }.expect("posted");
        let mut completions = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        while completions.is_empty() && Instant::now() < deadline {
            rail.poll(&mut completions).expect("polled");
        }
        assert!(matches!(completions[..], [Completion::Done { token: 5 }]), "{completions:?}");
        assert!(rail.polls >= 100_000 && model.behind()[0] > Duration::ZERO, "{:?}", model.behind());
    }

    proptest! {
        /// A poster that is slow now and then comes back to the modelled times by waiting less, and never runs ahead of them.
        #[test]
        fn a_debt_is_paid_back_and_no_more(slow in prop::collection::vec(0u64..2_000_000, 1..20), after in 0usize..60) {
            const POST: Picoseconds = 450_000;
            let (mut now, mut debt, mut modelled) = (0, 0, 0);
            for extra in slow.iter().copied().chain(std::iter::repeat_n(0, after)) {
                // A card that is never busy: every delay counts.
                let (done, owed) = charge(now + POST, debt, now + extra, 0);
                prop_assert!(done >= now + extra && done - owed == now + POST - debt.min(now + POST));
                modelled += POST;
                prop_assert_eq!(done - owed, modelled);
                (now, debt) = (done, owed);
            }
            // With work that takes no time each post pays its own length.
            let most: Picoseconds = slow.iter().sum();
            prop_assert!(debt <= most.saturating_sub(after as Picoseconds * POST));
        }

        #[test]
        fn to_be_late_for_a_busy_card_costs_nothing(due in 0u64..1 << 40, debt in 0u64..1 << 30, later in 0u64..1 << 30, busy in 0u64..1 << 30) {
            let now = due + later;
            let (done, owed) = charge(due, debt, now, now + busy);
            prop_assert_eq!((done, owed), (now, 0));
            let (done, owed) = charge(due, debt, now, now - later.min(busy));
            prop_assert!(done == now && owed <= later.min(busy));
        }
    }

    #[test]
    fn rails_of_one_card_share_its_wire() {
        let mut opened = card(64.0);
        let mut other = opened.0.rails([NullRail::new()]).remove(0);
        other.insert_peers(&[Vec::new()]).expect("a peer");
        let started = Instant::now();
        // 8 MiB take 0.7 ms; the small one behind them has to wait for its turn.
        write(&mut opened, 8 << 20, 0);
        let mut second = (opened.0.clone(), other, opened.2.clone(), opened.3);
        write(&mut second, 64, 1);
        assert_eq!(complete(&mut second.1, 1), [1]);
        assert!(started.elapsed() >= Duration::from_micros(690), "{:?}", started.elapsed());
    }
}
