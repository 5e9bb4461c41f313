//! Fabric operations as futures: the model for programs whose CPU starts the transfers.
//!
//! A [`Flow`] owns the rails of one thread. Operations post at once and return a future; many are in flight at the same time,
//! and one thread drives all of them by polling the completion queues of all rails:
//!
//! ```no_run
//! # use ginlab_flow::{Flow, FlowError, Region, Target};
//! # use ginlab_fabric::any::AnyRail;
//! async fn pipeline(flow: &Flow<AnyRail>, source: &Region<AnyRail>, target: &Target) -> Result<(), FlowError> {
//!     // Eight in flight, over all rails.
//!     let writes: Vec<_> = (0..8).map(|i| flow.write_all(source, i * 4096, target, i * 4096, 4096)).collect();
//!     for write in writes {
//!         write.await?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! - **Progress.** A future that is not done polls the rails itself before it waits, so a single task has no detour through the
//!   executor; [`run`] adds a driver that polls while all tasks wait. The executor is tokio's of one thread: its sockets and
//!   timers work in the same tasks.
//! - **Rails.** A write is laid over the rails by the [strategy](ginlab_rails::strategy) of [`Flow::use_rails`]. Messages go
//!   over the rail they name; immediates and completions come from all.
//! - **Buffers.** A [`Region`] is memory with its registrations. Every operation holds its region until the completion
//!   arrives, also when its future has been dropped, and also after an error. Dropping the flow waits for what the NICs still
//!   hold; what they do not give back within the timeout is never freed.
//! - **Others' failures.** An incoming transfer that fails is its sender's failure: it is counted, and told when something
//!   that waits for it stalls. Immediates are counted up to a bound, and only those that were named once a program names some.
//! - **Bounds.** When nothing completes for the flow's timeout while something is in flight or waited for, everything in
//!   flight fails with the state of the rails. A provider that is full (EAGAIN) is no error: what it did not take is posted
//!   when something has completed.

mod immediates;
mod operation;
mod state;
#[cfg(test)]
mod tests;

pub use operation::{Immediate, Operation};

use ginlab_base::giving_way::GivingWay;
use ginlab_cuda::Buffer;
use ginlab_fabric::{Access, FabricError, Memory, Message, Messages, RemoteRegion};
use ginlab_rails::strategy::{Scheduler, Strategy};
use ginlab_rails::{self as rails, Counters};
use serde::{Deserialize, Serialize};
use state::{Kind, State, Stretch, Way};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

/// Turns of the driver, at most, before other tasks have theirs: between two of them tokio asks the system for sockets, which
/// takes as long as several polls.
const TURNS: u32 = 32;
/// Turns in vain before whoever shares its core gives way.
const POLLS_BEFORE_YIELD: u32 = 16;

/// Why an operation ended without success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// The provider's.
    #[error("{0}")]
    Fabric(Box<FabricError>),
    /// The operation names what is not there.
    #[error("{0}")]
    Refused(String),
    /// Nothing has completed for the flow's timeout.
    #[error("nothing has completed for {waited:?}: {state}")]
    Stalled {
        /// The timeout.
        waited: Duration,
        /// What was in flight where.
        state: String,
    },
}

impl From<FabricError> for FlowError {
    fn from(error: FabricError) -> FlowError {
        // Boxed: results of operations are moved about for each write.
        FlowError::Fabric(Box::new(error))
    }
}

/// Memory with its registration on every rail.
#[derive(Debug)]
pub struct Registered<R: Messages> {
    // Dropped before the memory that it registers.
    on_rail: Vec<R::Region>,
    buffer: Rc<Buffer>,
}

/// Memory that operations share.
pub type Region<R> = Rc<Registered<R>>;

impl<R: Messages> Registered<R> {
    /// The memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Its length.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.buffer.bytes() as u64
    }
}

/// What a rank tells its peers: its address on each rail, and its regions, by region and rail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Names of the rails.
    pub rails: Vec<String>,
    /// Our address on each rail.
    pub addresses: Vec<Vec<u8>>,
    /// Our regions.
    pub regions: Vec<Vec<RemoteRegion>>,
}

/// A peer of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(usize);

/// A peer's region, as writes and reads name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    peer: Peer,
    on_rail: Rc<[RemoteRegion]>,
}

impl Target {
    /// A region of a peer that it has offered.
    ///
    /// # Errors
    /// When it has not.
    pub fn new(peer: Peer, offer: &Offer, region: usize) -> Result<Target, FlowError> {
        let on_rail = offer.regions.get(region).ok_or_else(|| {
            FlowError::Refused(format!("peer {} offers {} regions, not number {region}", peer.0, offer.regions.len()))
        })?;
        Ok(Target { peer, on_rail: on_rail.clone().into() })
    }

    /// Its length.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.on_rail.first().map_or(0, |region| region.bytes)
    }
}

/// What has come in from peers and was nobody's here, since the flow was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// Transfers of peers that failed on their way in. They are the peers' failures: operations here go on.
    pub failures: u64,
    /// Immediates that nobody expected, or more different ones than are kept.
    pub strays: u64,
}

/// The rails of one thread, and what is in flight on them. Clones are the same flow.
#[derive(Debug)]
pub struct Flow<R: Messages>(Rc<RefCell<State<R>>>);

impl<R: Messages> Clone for Flow<R> {
    fn clone(&self) -> Self {
        Flow(self.0.clone())
    }
}

impl<R: Messages> Flow<R> {
    /// A flow over these rails, at least one; everything goes over rail 0 until [`use_rails`](Flow::use_rails) says otherwise.
    pub fn new(rails: Vec<R>, timeout: Duration) -> Flow<R> {
        Flow(Rc::new(RefCell::new(State::new(rails, timeout))))
    }

    /// Lays writes and reads over the first `rails` rails in this way from now on.
    pub fn use_rails(&self, rails: usize, strategy: Strategy) {
        let mut state = self.0.borrow_mut();
        state.scheduler = Scheduler::new(strategy, rails.clamp(1, state.lanes.len().max(1)));
    }

    /// Whether the driver gives the core away when nothing has happened: for more ranks than cores.
    pub fn give_way(&self, gives: bool) {
        self.0.borrow_mut().giving = gives.then(|| GivingWay::every(POLLS_BEFORE_YIELD));
    }

    /// Polls, at most, before other tasks and sockets have their turn: 32 for the driver and 64 for a task that waits, unless
    /// this says fewer. A program whose sockets matter as much as its rails wants 1: each look at the sockets costs as much as
    /// several polls, and without it they wait for all of them.
    pub fn poll_at_most(&self, polls: u32) {
        self.0.borrow_mut().most_polls = polls.max(1);
    }

    /// What is in flight and waited for, in one line.
    pub fn state(&self) -> String {
        self.0.borrow().describe()
    }

    /// Number of rails.
    pub fn rails(&self) -> usize {
        self.0.borrow().lanes.len()
    }

    /// Looks at a rail: its name and limits.
    pub fn with_rail<T>(&self, rail: usize, look: impl FnOnce(&mut R) -> T) -> Option<T> {
        self.0.borrow_mut().lanes.get_mut(rail).map(|lane| look(&mut lane.rail))
    }

    /// Registers memory on every rail, for these uses: peers who hold its key can do nothing else with it. What peers reach stays registered as
    /// long as the rails are open, or until [`unregister`](Flow::unregister).
    ///
    /// # Errors
    /// The provider's.
    pub fn register(&self, buffer: impl Into<Rc<Buffer>>, access: Access) -> Result<Region<R>, FlowError> {
        let buffer = buffer.into();
        let memory = Memory { address: buffer.address(), bytes: buffer.bytes(), cuda_device: buffer.cuda_device() };
        let mut state = self.0.borrow_mut();
        // SAFETY: the region keeps the buffer, registrations are dropped first, and operations keep the region.
        let regions = state.lanes.iter_mut().map(|lane| unsafe { lane.rail.register(memory, access) });
        let on_rail = regions.collect::<Result<_, _>>()?;
        let region = Rc::new(Registered { on_rail, buffer });
        if access.allows(Access::REMOTE_WRITE) || access.allows(Access::REMOTE_READ) {
            state.reached.push(region.clone());
        }
        Ok(region)
    }

    /// Closes the registrations of a region: the keys that peers hold are worth nothing from now on. The memory comes back, to
    /// be registered again under new keys.
    ///
    /// # Errors
    /// The region itself, while an operation of this flow is in flight on it, or there are other clones.
    pub fn unregister(&self, region: Region<R>) -> Result<Rc<Buffer>, Region<R>> {
        // Operations in flight hold a clone: no registration goes from under a posted transfer.
        let reached = &mut self.0.borrow_mut().reached;
        let at = reached.iter().position(|kept| Rc::ptr_eq(kept, &region));
        let is_kept = at.map(|at| reached.swap_remove(at)).is_some();
        Rc::try_unwrap(region).map(|registered| registered.buffer).inspect_err(|region| {
            if is_kept {
                reached.push(region.clone());
            }
        })
    }

    /// What peers need to reach these regions.
    ///
    /// # Errors
    /// The provider's.
    pub fn offer(&self, regions: &[&Region<R>]) -> Result<Offer, FlowError> {
        let state = self.0.borrow();
        let remote = |region: &&Region<R>| {
            state.lanes.iter().zip(&region.on_rail).map(|(lane, on_rail)| lane.rail.remote(on_rail)).collect()
        };
        Ok(Offer {
            rails: state.lanes.iter().map(|lane| lane.rail.name().to_owned()).collect(),
            addresses: state.lanes.iter().map(|lane| lane.rail.address()).collect::<Result<_, _>>()?,
            regions: regions.iter().map(remote).collect(),
        })
    }

    /// Makes a peer known, at any time.
    ///
    /// # Errors
    /// When it has another number of rails, or the provider refuses its address.
    pub fn add_peer(&self, offer: &Offer) -> Result<Peer, FlowError> {
        self.0.borrow_mut().add_peer(&offer.addresses).map(Peer)
    }

    /// Forgets a peer to which nothing is in flight.
    ///
    /// # Errors
    /// When something is, or there is no such peer.
    pub fn remove_peer(&self, peer: Peer) -> Result<(), FlowError> {
        self.0.borrow_mut().remove_peer(peer.0)
    }

    /// Writes to a peer, over the rails as the strategy says. The future gives the bytes.
    #[inline(always)]
    pub fn write_all(&self, source: &Region<R>, offset: u64, target: &Target, at: u64, bytes: u64) -> Operation<R> {
        self.transfer(Kind::Write, Stretch { local: source, offset, target, at, bytes }, Way::STRATEGY)
    }

    /// Writes to a peer over one rail, and raises the immediate there behind the last byte.
    pub fn write_with_immediate(
        &self,
        source: &Region<R>,
        offset: u64,
        target: &Target,
        at: u64,
        bytes: u64,
        immediate: u32,
    ) -> Operation<R> {
        self.transfer(
            Kind::Write,
            Stretch { local: source, offset, target, at, bytes },
            Way { rail: None, immediate: Some(immediate) },
        )
    }

    /// Writes to a peer over this rail alone, whatever the strategy, and raises the immediate there behind the last byte, if
    /// there is one. For algorithms that lay out their own messages; one transfer takes it all, or it is refused.
    #[allow(clippy::too_many_arguments)]
    pub fn write_on(
        &self,
        rail: usize,
        source: &Region<R>,
        offset: u64,
        target: &Target,
        at: u64,
        bytes: u64,
        immediate: Option<u32>,
    ) -> Operation<R> {
        let stretch = Stretch { local: source, offset, target, at, bytes };
        self.transfer(Kind::Write, stretch, Way { rail: Some(rail), immediate })
    }

    /// Reads from a peer, over the rails as the strategy says.
    pub fn read_all(&self, into: &Region<R>, offset: u64, target: &Target, at: u64, bytes: u64) -> Operation<R> {
        self.transfer(Kind::Read, Stretch { local: into, offset, target, at, bytes }, Way::STRATEGY)
    }

    /// Sends a message over a rail.
    pub fn send(&self, rail: usize, peer: Peer, source: &Region<R>, offset: u64, bytes: u64) -> Operation<R> {
        self.message(Kind::Send, rail, peer.0, source, Message { offset, bytes, token: 0 })
    }

    /// Room for the next message of any peer over a rail. The future gives the message's length.
    pub fn recv(&self, rail: usize, into: &Region<R>, offset: u64, bytes: u64) -> Operation<R> {
        self.message(Kind::Receive, rail, 0, into, Message { offset, bytes, token: 0 })
    }

    /// Waits until so many of this immediate have arrived since the last wait for it, and takes them. A write that stands
    /// before it in its own transfer is in memory then.
    pub fn wait_immediate(&self, value: u32, count: u64) -> Immediate<R> {
        Immediate::new(self.clone(), value, count)
    }

    /// Takes all of this immediate that have arrived and not been taken, without waiting; how many. For loops that also look
    /// for something else.
    pub fn take_immediates(&self, value: u32) -> u64 {
        self.0.borrow_mut().immediates.take_all(value)
    }

    /// Names a value that a peer will raise. From the first one on only such values are counted; others are strays
    /// ([`Incoming::strays`]). A value that is random is one that other peers do not know.
    pub fn expect_immediates(&self, value: u32) {
        self.0.borrow_mut().immediates.expect(value);
    }

    /// The value is nobody's any more.
    pub fn forget_immediates(&self, value: u32) {
        self.0.borrow_mut().immediates.forget_value(value);
    }

    /// Why the flow has ended, if it has: every operation fails with this from then on.
    pub fn failure(&self) -> Option<FlowError> {
        self.0.borrow().failure()
    }

    /// While the guard lives, posts are held back and then go out behind one doorbell per rail (FI_MORE).
    pub fn hold(&self) -> Hold<R> {
        self.0.borrow_mut().holds += 1;
        Hold(self.clone())
    }

    /// Gives rail 0 to `act`, with the source on it, the peer's number there and its region: for a yardstick below the flow. Other tasks stand
    /// still meanwhile, and nothing of the flow is in flight.
    ///
    /// # Errors
    /// The provider's; [`FlowError::Refused`] while something is in flight, and where there is no such peer.
    pub fn on_idle_rail<T>(
        &self,
        source: &Region<R>,
        target: &Target,
        act: impl FnOnce(&mut R, &R::Region, usize, RemoteRegion) -> Result<T, FabricError>,
    ) -> Result<T, FlowError> {
        let mut state = self.0.borrow_mut();
        state.check_alive()?;
        let (Some(peer), Some(remote)) = (state.on_rail(target.peer.0, 0), target.on_rail.first().copied()) else {
            return Err(FlowError::Refused(format!("there is no peer {}", target.peer.0)));
        };
        if state.outstanding() {
            return Err(FlowError::Refused("a rail is given away while nothing is in flight on it".into()));
        }
        Ok(act(&mut state.lanes[0].rail, &source.on_rail[0], peer, remote)?)
    }

    /// What has been posted.
    pub fn counters(&self) -> Counters {
        rails::counters(&self.0.borrow().lanes)
    }

    /// What has come in and was nobody's.
    pub fn incoming(&self) -> Incoming {
        let state = self.0.borrow();
        Incoming { failures: state.incoming_failures.0, strays: state.immediates.strays() }
    }

    /// Operations whose completions have not arrived, with those whose futures were dropped.
    pub fn in_flight(&self) -> usize {
        self.0.borrow().operations.len()
    }

    /// Polls every rail once. Futures do so themselves; this is for loops that wait for something else.
    ///
    /// # Errors
    /// A rail's, after which every operation fails with it.
    pub fn progress(&self) -> Result<(), FlowError> {
        self.0.borrow_mut().progress()
    }

    /// Polls for as long as tasks run; [`run`] does this.
    pub async fn drive(&self) {
        loop {
            self.0.borrow_mut().turns(TURNS);
            tokio::task::yield_now().await;
        }
    }

    #[inline(always)]
    fn transfer(&self, kind: Kind, stretch: Stretch<'_, R>, way: Way) -> Operation<R> {
        let local = stretch.local;
        let mut state = self.0.borrow_mut();
        let key = match state.transfer(kind, stretch, way) {
            Ok(key) => key,
            Err(error) => state.refused(local, error),
        };
        Operation::new(self.clone(), key)
    }

    fn message(&self, kind: Kind, rail: usize, peer: usize, local: &Region<R>, message: Message) -> Operation<R> {
        let mut state = self.0.borrow_mut();
        let key = state.message(kind, rail, peer, local, message);
        let key = key.unwrap_or_else(|error| state.refused(local, error));
        Operation::new(self.clone(), key)
    }
}

/// See [`Flow::hold`].
#[derive(Debug)]
pub struct Hold<R: Messages>(Flow<R>);

impl<R: Messages> Drop for Hold<R> {
    fn drop(&mut self) {
        let mut state = self.0.0.borrow_mut();
        state.holds -= 1;
        if state.holds == 0 {
            state.flush();
        }
    }
}

/// Runs a program on this thread: its tasks ([`tokio::task::spawn_local`]), sockets and timers, and the driver of these flows.
///
/// # Errors
/// When the system gives no event loop.
pub fn run<R: Messages + 'static, T>(
    flows: impl IntoIterator<Item = Flow<R>>,
    program: impl Future<Output = T>,
) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    for flow in flows {
        tasks.spawn_local(async move { flow.drive().await });
    }
    // Boxed, so that the event loop is not compiled for each program (a third of the 46 s of a core of `experiments` with its tests).
    let program: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(program);
    Ok(tasks.block_on(&runtime, program))
}
