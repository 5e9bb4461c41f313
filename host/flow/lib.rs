//! Fabric operations as futures, for applications whose CPU starts the transfers.
//!
//! A [`Flow`] owns the rails of one thread. Starting an operation posts it immediately and returns a future. Many
//! operations can be in flight, and one thread drives all of them by polling the completion queues of all rails:
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
//! - **Progress.** An incomplete future polls the rails before it returns pending, so a single task avoids a detour
//!   through the executor. [`run`] adds a driver that polls while all tasks wait. The executor is a current-thread
//!   tokio runtime, so that its sockets and timers work in the same tasks.
//! - **Rails.** A write is striped over the rails by the [strategy](ginlab_rails::strategy) set with
//!   [`Flow::use_rails`]. Messages use the rail that they name; immediates and completions arrive on all rails.
//! - **Buffers.** A [`Region`] is memory with its registrations. Every operation keeps its region until the completion
//!   arrives, even if its future has been dropped and after an error. Dropping the flow waits until the NICs have
//!   released all buffers. A buffer that is not released within the timeout is never freed.
//! - **Failures of peers.** A failed incoming transfer is a failure of its sender. It is counted, and reported if an
//!   operation that depends on it stalls. Immediates are counted up to a bound, and only those of expected values once
//!   a caller has named any ([`Flow::expect_immediates`]).
//! - **Timeouts.** If no operation completes for the flow's timeout while operations are in flight or awaited, all
//!   operations in flight fail with an error that describes the rails. EAGAIN from a full provider is not an error: the
//!   refused transfers are posted again as others complete.

mod error;
mod immediates;
mod operation;
mod region;
mod state;
#[cfg(test)]
mod tests;

pub use error::FlowError;
pub use operation::{Immediate, Operation};
pub use region::{Offer, Peer, Region, Registered, Target};

use ginlab_base::backoff::Backoff;
use ginlab_cuda::Buffer;
use ginlab_fabric::{Access, FabricError, MemoryRange, Message, Messages, RemoteRegion};
use ginlab_rails::strategy::{Scheduler, Strategy};
use ginlab_rails::{self as rails, Counters};
use state::{OperationKind, Segment, State, TransferOptions};
use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

/// Maximum number of driver iterations before other tasks run. Between two runs of the driver, tokio polls its sockets
/// with a system call that takes as long as several polls of the rails.
const TURNS: u32 = 32;
/// Number of unsuccessful polls after which a driver that shares its core yields.
const POLLS_BEFORE_YIELD: u32 = 16;

/// Incoming transfers and immediates since the creation of the flow that matched no operation here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Incoming {
    /// Number of incoming transfers that failed. They are failures of the peers and do not affect operations of this
    /// flow.
    pub failures: u64,
    /// Number of immediates with unexpected values, or with more distinct values than are kept.
    pub strays: u64,
}

/// The rails of one thread, and the operations in flight on them. Clones refer to the same flow.
#[derive(Debug)]
pub struct Flow<R: Messages>(Rc<RefCell<State<R>>>);

impl<R: Messages> Clone for Flow<R> {
    fn clone(&self) -> Self {
        Flow(self.0.clone())
    }
}

impl<R: Messages> Flow<R> {
    /// Creates a flow over `rails`, which must not be empty. It uses only rail 0 until [`use_rails`](Flow::use_rails)
    /// is called.
    pub fn new(rails: Vec<R>, timeout: Duration) -> Flow<R> {
        Flow(Rc::new(RefCell::new(State::new(rails, timeout))))
    }

    /// Stripes subsequent writes and reads over the first `rails` rails with `strategy`.
    pub fn use_rails(&self, rails: usize, strategy: Strategy) {
        let mut state = self.0.borrow_mut();
        state.scheduler = Scheduler::new(strategy, rails.clamp(1, state.queues.len().max(1)));
    }

    /// Starts to measure the time with transfers in flight on each rail ([`Counters::rail_busy`]).
    pub fn time_rails(&self) {
        self.0.borrow_mut().queues.iter_mut().for_each(rails::RailQueue::time);
    }

    /// Sets whether the driver yields its core when polls are unsuccessful, for machines with more ranks than cores.
    pub fn give_way(&self, gives: bool) {
        self.0.borrow_mut().backoff = gives.then(|| Backoff::every(POLLS_BEFORE_YIELD));
    }

    /// Limits the number of polls before other tasks and sockets are served. The default is 32 for the driver and 64
    /// for a waiting task; `polls` can only reduce these.
    ///
    /// A program whose sockets are as urgent as its rails should set 1. Each check of the sockets then costs as much as
    /// several polls; with the defaults, the sockets wait for all of these polls.
    pub fn poll_at_most(&self, polls: u32) {
        self.0.borrow_mut().most_polls = polls.max(1);
    }

    /// Sends one later write or message one byte short without an error (for tests), so that verification must detect
    /// it. `number` is its index among those with bytes.
    pub fn corrupt(&self, number: u64) {
        self.0.borrow_mut().corrupt = Some(number);
    }

    /// Describes the operations in flight and the waits in one line.
    pub fn state(&self) -> String {
        self.0.borrow().describe()
    }

    /// Returns the number of rails.
    pub fn rails(&self) -> usize {
        self.0.borrow().queues.len()
    }

    /// Calls `look` with a rail, for example to read its name or limits. Returns `None` if the rail does not exist.
    pub fn with_rail<T>(&self, rail: usize, look: impl FnOnce(&mut R) -> T) -> Option<T> {
        self.0.borrow_mut().queues.get_mut(rail).map(|queue| look(&mut queue.rail))
    }

    /// Registers memory on every rail, for the uses in `access` and no others. Memory that peers may access stays
    /// registered as long as the rails are open, or until [`unregister`](Flow::unregister).
    ///
    /// # Errors
    /// Returns the provider's error if the registration fails on a rail.
    pub fn register(&self, buffer: impl Into<Rc<Buffer>>, access: Access) -> Result<Region<R>, FlowError> {
        let buffer = buffer.into();
        let memory =
            MemoryRange { address: buffer.address(), bytes: buffer.bytes(), cuda_device: buffer.cuda_device() };
        let mut state = self.0.borrow_mut();
        // SAFETY: the region keeps the buffer alive, registrations are dropped before it, and operations keep the
        // region.
        let regions = state.queues.iter_mut().map(|queue| unsafe { queue.rail.register(memory, access) });
        let on_rail = regions.collect::<Result<_, _>>()?;
        let region = Rc::new(Registered { on_rail, buffer });
        if access.allows(Access::REMOTE_WRITE) || access.allows(Access::REMOTE_READ) {
            state.reached.push(region.clone());
        }
        Ok(region)
    }

    /// Closes the registrations of a region, which invalidates the keys that peers have. Returns the memory, which can
    /// be registered again with new keys.
    ///
    /// # Errors
    /// Returns the region unchanged if an operation of this flow is in flight on it, or if other clones exist.
    pub fn unregister(&self, region: Region<R>) -> Result<Rc<Buffer>, Region<R>> {
        // Operations in flight hold a clone, so no registration is closed under a posted transfer.
        let reached = &mut self.0.borrow_mut().reached;
        let at = reached.iter().position(|kept| Rc::ptr_eq(kept, &region));
        let is_kept = at.map(|at| reached.swap_remove(at)).is_some();
        Rc::try_unwrap(region).map(|registered| registered.buffer).inspect_err(|region| {
            if is_kept {
                reached.push(region.clone());
            }
        })
    }

    /// Returns the information that peers need to reach `regions`.
    ///
    /// # Errors
    /// Returns the provider's error if a rail has no address.
    pub fn offer(&self, regions: &[&Region<R>]) -> Result<Offer, FlowError> {
        let state = self.0.borrow();
        let remote = |region: &&Region<R>| {
            state.queues.iter().zip(&region.on_rail).map(|(queue, on_rail)| queue.rail.remote(on_rail)).collect()
        };
        Ok(Offer {
            rails: state.queues.iter().map(|queue| queue.rail.name().to_owned()).collect(),
            addresses: state.queues.iter().map(|queue| queue.rail.address()).collect::<Result<_, _>>()?,
            regions: regions.iter().map(remote).collect(),
        })
    }

    /// Adds a peer. May be called at any time.
    ///
    /// # Errors
    /// Returns an error if the peer has a different number of rails, or the provider rejects its address.
    pub fn add_peer(&self, offer: &Offer) -> Result<Peer, FlowError> {
        self.0.borrow_mut().add_peer(&offer.addresses).map(Peer)
    }

    /// Removes a peer. No operation to it may be in flight.
    ///
    /// # Errors
    /// Returns [`FlowError::Refused`] if an operation to the peer is in flight or the peer does not exist, and the
    /// provider's error if it cannot remove the address.
    pub fn remove_peer(&self, peer: Peer) -> Result<(), FlowError> {
        self.0.borrow_mut().remove_peer(peer.0)
    }

    /// Writes `bytes` bytes to a peer, striped over the rails by the strategy. The future returns the number of bytes.
    #[inline(always)]
    pub fn write_all(&self, source: &Region<R>, offset: u64, target: &Target, at: u64, bytes: u64) -> Operation<R> {
        self.transfer(
            OperationKind::Write,
            Segment { local: source, offset, target, at, bytes },
            TransferOptions::STRATEGY,
        )
    }

    /// Like [`write_all`](Flow::write_all), but over one rail, and raises `immediate` at the peer after the last byte.
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
            OperationKind::Write,
            Segment { local: source, offset, target, at, bytes },
            TransferOptions { rail: None, immediate: Some(immediate) },
        )
    }

    /// Writes to a peer over rail `rail` only, regardless of the strategy, and raises `immediate`, if any, at the peer
    /// after the last byte. A write that does not fit in one transfer is refused. Intended for algorithms that schedule
    /// their own transfers.
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
        let stretch = Segment { local: source, offset, target, at, bytes };
        self.transfer(OperationKind::Write, stretch, TransferOptions { rail: Some(rail), immediate })
    }

    /// Reads `bytes` bytes from a peer, striped over the rails by the strategy.
    pub fn read_all(&self, into: &Region<R>, offset: u64, target: &Target, at: u64, bytes: u64) -> Operation<R> {
        self.transfer(
            OperationKind::Read,
            Segment { local: into, offset, target, at, bytes },
            TransferOptions::STRATEGY,
        )
    }

    /// Sends a message over rail `rail`.
    pub fn send(&self, rail: usize, peer: Peer, source: &Region<R>, offset: u64, bytes: u64) -> Operation<R> {
        self.message(OperationKind::Send, rail, peer.0, source, Message { offset, bytes, token: 0 })
    }

    /// Posts a receive buffer for the next message of any peer over rail `rail`. The future returns the message's
    /// length.
    pub fn recv(&self, rail: usize, into: &Region<R>, offset: u64, bytes: u64) -> Operation<R> {
        self.message(OperationKind::Receive, rail, 0, into, Message { offset, bytes, token: 0 })
    }

    /// Waits until `count` immediates of this value have arrived since the last wait for it, and takes them. Data that
    /// a peer wrote in the same transfer, before its immediate, is then in memory.
    pub fn wait_immediate(&self, value: u32, count: u64) -> Immediate<R> {
        Immediate::new(self.clone(), value, count)
    }

    /// Takes all immediates of this value that have arrived and not been taken, without waiting. Returns their number.
    /// Intended for loops that also poll other sources.
    pub fn take_immediates(&self, value: u32) -> u64 {
        self.0.borrow_mut().immediates.take_all(value)
    }

    /// Announces a value that a peer will raise. Once any value has been announced, only announced values are counted;
    /// others are strays ([`Incoming::strays`]). Random values are unknown to other peers.
    pub fn expect_immediates(&self, value: u32) {
        self.0.borrow_mut().immediates.expect(value);
    }

    /// Withdraws an announced value and drops its immediates that have not been taken.
    pub fn forget_immediates(&self, value: u32) {
        self.0.borrow_mut().immediates.forget_value(value);
    }

    /// Returns the error with which the flow has failed, if any. All subsequent operations fail with this error.
    pub fn failure(&self) -> Option<FlowError> {
        self.0.borrow().failure()
    }

    /// Defers posts while the guard exists, then issues them with one doorbell per rail (FI_MORE).
    pub fn hold(&self) -> Hold<R> {
        self.0.borrow_mut().holds += 1;
        Hold(self.clone())
    }

    /// Calls `act` with rail 0, the source on it, and the peer's number and region there, to measure a reference
    /// without the overhead of the flow. No other task runs during the call.
    ///
    /// # Errors
    /// Returns the provider's error, or [`FlowError::Refused`] if an operation is in flight or the peer does not exist.
    pub fn on_idle_rail<T>(
        &self,
        source: &Region<R>,
        target: &Target,
        act: impl FnOnce(&mut R, &R::Region, usize, RemoteRegion) -> Result<T, FabricError>,
    ) -> Result<T, FlowError> {
        let mut state = self.0.borrow_mut();
        state.check_alive()?;
        let (Some(peer), Some(remote)) = (state.on_rail(target.peer.0, 0), target.on_rail.first().copied()) else {
            return Err(FlowError::Refused(format!("no peer {}", target.peer.0)));
        };
        if state.outstanding() {
            return Err(FlowError::Refused("a rail can be handed over only while nothing is in flight on it".into()));
        }
        Ok(act(&mut state.queues[0].rail, &source.on_rail[0], peer, remote)?)
    }

    /// Returns the totals posted since the flow was created.
    pub fn counters(&self) -> Counters {
        rails::counters(&self.0.borrow().queues)
    }

    /// Returns the numbers of incoming transfers and immediates that matched no operation here.
    pub fn incoming(&self) -> Incoming {
        let state = self.0.borrow();
        Incoming { failures: state.incoming_failures.0, strays: state.immediates.strays() }
    }

    /// Returns the number of operations whose completions have not arrived, including those whose futures were dropped.
    pub fn in_flight(&self) -> usize {
        self.0.borrow().operations.len()
    }

    /// Polls every rail once. Futures do not need it; it is for loops that wait for other events.
    ///
    /// # Errors
    /// Returns the error of a failed rail. All subsequent operations fail with this error.
    pub fn progress(&self) -> Result<(), FlowError> {
        self.0.borrow_mut().progress()
    }

    /// Polls the rails as long as tasks run. [`run`] spawns this for each of its flows.
    pub async fn drive(&self) {
        loop {
            self.0.borrow_mut().turns(TURNS);
            tokio::task::yield_now().await;
        }
    }

    #[inline(always)]
    fn transfer(&self, kind: OperationKind, stretch: Segment<'_, R>, way: TransferOptions) -> Operation<R> {
        let local = stretch.local;
        let mut state = self.0.borrow_mut();
        let key = match state.transfer(kind, stretch, way) {
            Ok(key) => key,
            Err(error) => state.refused(local, error),
        };
        Operation::new(self.clone(), key)
    }

    fn message(
        &self,
        kind: OperationKind,
        rail: usize,
        peer: usize,
        local: &Region<R>,
        message: Message,
    ) -> Operation<R> {
        let mut state = self.0.borrow_mut();
        let key = state.message(kind, rail, peer, local, message);
        let key = key.unwrap_or_else(|error| state.refused(local, error));
        Operation::new(self.clone(), key)
    }
}

/// Guard that defers posts; see [`Flow::hold`].
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

/// Runs `program` on this thread, with its local tasks ([`tokio::task::spawn_local`]), sockets and timers, and the
/// driver of each flow.
///
/// # Errors
/// Returns the system's error if the event loop cannot be created.
pub fn run<R: Messages + 'static, T>(
    flows: impl IntoIterator<Item = Flow<R>>,
    program: impl Future<Output = T>,
) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    for flow in flows {
        tasks.spawn_local(async move { flow.drive().await });
    }
    // Boxed, so that the event loop is not monomorphized for each program. This reduces compile time.
    let program: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(program);
    Ok(tasks.block_on(&runtime, program))
}
