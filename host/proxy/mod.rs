//! The proxy: a busy-polling thread that drains a ring into the rails.
//!
//! ```text
//! ring --pop batch--> decode, check --> engine --post--> rails        Request::Write: the CPU-initiated baseline,
//!   ^                                     |                           through the same engine and rails
//!   +-- tail (slots free again)           +--poll--> completions --> watermark --> kernels' quiet
//! ```
//!
//! Each proxy thread owns its rails (endpoints, completion queues, registrations), so nothing in the loop is locked. On
//! the receiving rank the same loop runs without commands: a provider with manual progress needs the target to poll too.

pub mod engine;
pub mod order;
mod serve;
pub mod stage;
pub mod trace;
pub mod tracker;

pub use serve::{Fault, ProxySetup};

use crate::fabric::RemoteRegion;
use crate::rails::Counters;
use crate::rails::strategy::Strategy;
use crossbeam_utils::CachePadded;
use engine::{DRAIN, EngineError};
use kernels::command::Command;
use kernels::ring::HostWords;
use serve::serve;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trace::{Sampling, Times};

/// How often a long write is looked after: is its thread turning, has somebody pressed Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What runs for a whole timeout ends a little after it.
const MARGIN: Duration = Duration::from_millis(500);
/// How much longer than its proxy a kernel waits: the proxy's clocks are looked at now and then, on a core that may be shared.
const DEVICE_MARGIN: Duration = Duration::from_secs(2);

/// An order or an answer with the order's number: an answer that comes too late is not taken for the next order's.
type Numbered<T> = (u64, T);

/// What the thread shows while it runs.
#[derive(Debug, Default)]
struct ThreadState {
    failure: Mutex<Option<ProxyError>>,
    /// Turns of a CPU-initiated write: while this moves, the thread is not stuck in the provider. The thread adds to it with
    /// every turn, and others look at it now and then.
    turns: CachePadded<AtomicU64>,
    /// Ends a CPU-initiated write, which looks at no orders.
    stop: AtomicBool,
    /// An order that does not wait for the next look at orders: somebody's time is measured.
    urgent: AtomicBool,
    /// The thread answers flags, and nothing else, until this is false.
    answering: AtomicBool,
}

/// The words of flags, on their way to the thread.
struct Flags(*const HostWords);

// SAFETY: atomic words, which their owner keeps until the thread has said that it is done with them.
unsafe impl Send for Flags {}

/// What can be asked of a proxy thread while it runs.
enum Request {
    /// Peers' addresses by peer and rail, and regions by peer, region and rail.
    Connect {
        addresses: Vec<Vec<Vec<u8>>>,
        regions: Vec<Vec<Vec<RemoteRegion>>>,
    },
    Configure {
        rails: usize,
        strategy: Strategy,
    },
    Write(Writes),
    BareWrite {
        route: (u32, u32, u32),
        bytes: u64,
        count: u64,
    },
    Put(Vec<Command>),
    AnswerFlags(Flags),
    Snapshot,
    Trace(Option<Sampling>),
    Stop,
}

/// The answer to an [`Request`].
#[derive(Debug)]
enum Answer {
    Done,
    Written(Duration),
    BareWritten(Option<Duration>),
    Snapshot(Box<Snapshot>),
    Traced(Vec<Times>),
}

/// What a proxy thread offers to the peers once its rails are open.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Our address on each rail.
    pub addresses: Vec<Vec<u8>>,
    /// Our regions, by region and rail.
    pub regions: Vec<Vec<RemoteRegion>>,
    /// Names of the rails.
    pub rails: Vec<String>,
    /// CPU that the thread is pinned to.
    pub cpu: Option<usize>,
}

/// The timeout to give the rings of a proxy with this one. A stall ends both; the proxy's answer, which says what stood where,
/// comes once it has let drain what is posted, and must find the kernels still waiting.
pub fn device_timeout(proxy: Duration) -> Duration {
    proxy + DRAIN.min(proxy) + DEVICE_MARGIN
}

/// Counters of a proxy thread.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Commands taken.
    pub commands: u64,
    /// What has been posted.
    pub counters: Counters,
    /// How often each signal has arrived here.
    pub signals: Vec<u64>,
    /// For fabrics that only count: transfers, bytes and checksum (see `NullRail`), over all rails.
    pub null: Option<(u64, u64, u64)>,
}

/// CPU-initiated writes: what the kernel's grid would put, posted by the proxy thread itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writes {
    /// The first producer of the grid that this thread stands in for.
    pub first_producer: u64,
    /// From one producer of this thread to the next.
    pub producer_step: u64,
    /// Producers of the whole grid.
    pub producers: u64,
    /// Slots of each.
    pub window: u64,
    /// Writes of each.
    pub iterations: u64,
    /// After so many writes wait until all are complete, before the next is posted; 0: at the end alone.
    pub quiet_every: u64,
    /// Bytes of one write.
    pub bytes: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Source region, destination region, peer.
    pub route: (u32, u32, u32),
}

/// Why a proxy thread could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The engine stopped: fabric error, refused command, stall.
    #[error("{0}")]
    Engine(#[from] EngineError),
    /// The thread has gone without saying why.
    #[error("the proxy thread has ended without a reason (a bug, or a fault that was asked for)")]
    Gone,
    /// No answer in time.
    #[error("the proxy thread did not answer within {0:?}")]
    Silent(Duration),
    /// It could not be started.
    #[error("starting the proxy thread: {0}")]
    Spawn(String),
}

impl ProxyError {
    /// Whether something was waited for in vain.
    pub fn is_timeout(&self) -> bool {
        matches!(self, ProxyError::Silent(_) | ProxyError::Engine(EngineError::Stalled { .. }))
    }
}

/// A running proxy thread. Dropping it stops the thread; kernels that wait get [`Status::STOPPED`](kernels::ring::Status).
///
/// A thread that hangs in a provider's call cannot be ended. After the timeout it is left behind, and from then on no
/// [`Buffer`](crate::cuda::Buffer) of this process is freed: the thread and its NIC may still use any of them.
#[derive(Debug)]
pub struct Proxy {
    orders: Sender<Numbered<Request>>,
    answers: Receiver<Numbered<Result<Answer, ProxyError>>>,
    /// Number of the last order.
    asked: Cell<u64>,
    /// Number of the write that has been begun.
    writing: Cell<Option<u64>>,
    shared: Arc<ThreadState>,
    thread: Option<JoinHandle<()>>,
    timeout: Duration,
    offer: Offer,
}

impl Proxy {
    /// Starts a proxy thread and waits until its rails are open. The thread is pinned first and opens its rails itself, so
    /// that what the provider allocates lies near it.
    ///
    /// # Errors
    /// What kept the rails from opening.
    pub fn start<S: ProxySetup>(setup: S, timeout: Duration) -> Result<Proxy, ProxyError> {
        let (orders, for_thread) = channel();
        let (answer, answers) = channel();
        let (offer_sender, offers) = channel();
        let shared = Arc::new(ThreadState::default());
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || serve(setup, timeout, &offer_sender, &for_thread, &answer, &of_thread))
            .map_err(|error| ProxyError::Spawn(error.to_string()))?;
        // From here on dropping sees to the thread, also when its rails do not open in time.
        let mut proxy = Proxy {
            orders,
            answers,
            asked: Cell::new(0),
            writing: Cell::new(None),
            shared,
            thread: Some(thread),
            timeout,
            offer: Offer::default(),
        };
        proxy.offer = match offers.recv_timeout(timeout) {
            Ok(offer) => offer?,
            Err(RecvTimeoutError::Timeout) => return Err(ProxyError::Silent(timeout)),
            Err(RecvTimeoutError::Disconnected) => return Err(ProxyError::Gone),
        };
        Ok(proxy)
    }

    /// What the peers need to know.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Makes the peers known: addresses by peer and rail, regions by peer, region and rail.
    ///
    /// # Errors
    /// The provider's.
    pub fn connect(
        &self,
        addresses: Vec<Vec<Vec<u8>>>,
        regions: Vec<Vec<Vec<RemoteRegion>>>,
    ) -> Result<(), ProxyError> {
        self.ask(Request::Connect { addresses, regions }, self.timeout).map(|_| ())
    }

    /// Uses the first `rails` rails in this way from now on.
    ///
    /// # Errors
    /// When the thread has failed.
    pub fn configure(&self, rails: usize, strategy: Strategy) -> Result<(), ProxyError> {
        self.ask(Request::Configure { rails, strategy }, self.timeout).map(|_| ())
    }

    /// Runs CPU-initiated writes; returns the time from the first post to the last completion.
    ///
    /// # Errors
    /// The engine's. The engine's own stall detector bounds it.
    pub fn write(&self, writes: Writes) -> Result<Duration, ProxyError> {
        self.begin_write(writes)?;
        self.finish_write()
    }

    /// As [`write`](Proxy::write), without waiting: several threads can write at once.
    ///
    /// # Errors
    /// When the thread has gone.
    pub fn begin_write(&self, writes: Writes) -> Result<(), ProxyError> {
        let number = self.send(Request::Write(writes))?;
        self.writing.set(Some(number));
        Ok(())
    }

    /// The time of the writes begun. Nothing else may be asked in between.
    ///
    /// # Errors
    /// As [`write`](Proxy::write), and [`ProxyError::Silent`] when the thread is stuck in the provider.
    pub fn finish_write(&self) -> Result<Duration, ProxyError> {
        let Some(number) = self.writing.take() else {
            return Err(EngineError::Refused("no write has been begun".into()).into());
        };
        // The writes may take any time as long as the thread turns: the engine's stall timeout bounds them.
        let (mut turns, mut since) = (self.shared.turns.load(Ordering::Relaxed), Instant::now());
        loop {
            match self.answer(number, LOOK_EVERY) {
                Ok(Answer::Written(time)) => return Ok(time),
                Ok(_) => return Err(ProxyError::Gone),
                Err(ProxyError::Silent(_)) => {
                    if crate::signals::interrupted() {
                        // The thread drops the writes and ends, which the next answer says.
                        self.stop();
                    }
                    let before = std::mem::replace(&mut turns, self.shared.turns.load(Ordering::Relaxed));
                    if before != turns {
                        since = Instant::now();
                    } else if since.elapsed() > self.timeout {
                        return Err(ProxyError::Silent(self.timeout));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// CPU-initiated commands: posts them as if a kernel had pushed them; returns when they are done.
    ///
    /// # Errors
    /// As [`write`](Proxy::write).
    pub fn put(&self, commands: Vec<Command>) -> Result<(), ProxyError> {
        let number = self.send(Request::Put(commands))?;
        self.shared.urgent.store(true, Ordering::Release);
        let deadline = Instant::now() + self.timeout;
        // Asked for and not waited for: a thread that sleeps is woken up some ten microseconds late.
        loop {
            match self.answers.try_recv() {
                Ok((of, answer)) if of == number => return answer.map(|_| ()),
                Ok(_) => {}
                Err(TryRecvError::Empty) if Instant::now() > deadline => return Err(ProxyError::Silent(self.timeout)),
                Err(TryRecvError::Empty) => std::thread::yield_now(),
                Err(TryRecvError::Disconnected) => return Err(self.why_gone()),
            }
        }
    }

    /// The time of the plainest loop of writes that the fabric's own interface allows, on rail 0, without ring and engine:
    /// the yardstick of the CPU-initiated writes. `None` where the fabric has none.
    ///
    /// # Errors
    /// The provider's, or a deadline.
    pub fn bare_write(&self, route: (u32, u32, u32), bytes: u64, count: u64) -> Result<Option<Duration>, ProxyError> {
        // The loop itself ends within the timeout; its answer may come that much later.
        match self.ask(Request::BareWrite { route, bytes, count }, self.timeout * 2)? {
            Answer::BareWritten(time) => Ok(time),
            _ => Err(ProxyError::Gone),
        }
    }

    /// Has the thread answer flags while something else is done: it stores what it finds in `tail` to `completion`, and serves neither ring
    /// nor rails. The floor under every put and its quiet, by the thread that serves those.
    ///
    /// # Safety
    /// The words stay valid until this returns; when it returns an error, until the process ends.
    ///
    /// # Errors
    /// When the thread has failed or does not answer.
    pub unsafe fn answer_flags<T>(
        &self,
        words: *const HostWords,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<T, ProxyError> {
        self.shared.answering.store(true, Ordering::Relaxed);
        let number = self.send(Request::AnswerFlags(Flags(words)))?;
        self.shared.urgent.store(true, Ordering::Release);
        let value = meanwhile();
        self.shared.answering.store(false, Ordering::Relaxed);
        self.answer(number, self.timeout).map(|_| value)
    }

    /// The counters now.
    ///
    /// # Errors
    /// When the thread has failed.
    pub fn snapshot(&self) -> Result<Snapshot, ProxyError> {
        match self.ask(Request::Snapshot, self.timeout)? {
            Answer::Snapshot(snapshot) => Ok(*snapshot),
            _ => Err(ProxyError::Gone),
        }
    }

    /// Begins to trace sampled commands, or ends that; returns what an earlier trace has found, by ticket.
    ///
    /// # Errors
    /// When the thread has failed.
    pub fn trace(&self, sampling: Option<Sampling>) -> Result<Vec<Times>, ProxyError> {
        match self.ask(Request::Trace(sampling), self.timeout)? {
            Answer::Traced(times) => Ok(times),
            _ => Err(ProxyError::Gone),
        }
    }

    /// The error that ended the thread's service, if one has.
    pub fn failure(&self) -> Option<ProxyError> {
        let gone = || self.thread.as_ref().is_none_or(JoinHandle::is_finished).then_some(ProxyError::Gone);
        self.reported().or_else(gone)
    }

    /// Asks the thread to end: kernels that wait get a status. Does not wait.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // A thread that has gone already needs no order.
        let _ = self.send(Request::Stop);
    }

    fn ask(&self, order: Request, timeout: Duration) -> Result<Answer, ProxyError> {
        let number = self.send(order)?;
        self.answer(number, timeout)
    }

    fn send(&self, order: Request) -> Result<u64, ProxyError> {
        let number = self.asked.get() + 1;
        self.asked.set(number);
        self.orders.send((number, order)).map_err(|_| self.why_gone())?;
        Ok(number)
    }

    /// The answer to this order. Answers to older ones, which nobody waited for long enough, are passed over.
    fn answer(&self, number: u64, timeout: Duration) -> Result<Answer, ProxyError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((of, answer)) if of == number => return answer,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => return Err(ProxyError::Silent(timeout)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.why_gone()),
            }
        }
    }

    fn reported(&self) -> Option<ProxyError> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn why_gone(&self) -> ProxyError {
        self.reported().unwrap_or(ProxyError::Gone)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
        let deadline = Instant::now() + self.timeout + MARGIN;
        let Some(thread) = self.thread.take() else { return };
        // The thread sees the request within microseconds, and its end of the answers goes with it; a provider call that hangs
        // must not hang us.
        loop {
            match self.answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                // One that nobody waits for any more.
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // A panic has been reported as `Gone` to whoever asked.
                    let _ = thread.join();
                    return;
                }
                Err(RecvTimeoutError::Timeout) => return crate::cuda::keep_buffers(),
            }
        }
    }
}
