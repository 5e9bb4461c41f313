//! A proxy thread as its rank sees it: started, asked, waited for, stopped.

use crate::engine::{EngineError, Opened};
use crate::serve::{Halt, Orders, Setup, serve};
use crate::trace::{Sampling, Times};
use crate::{Offer, Order, ProxyError, Snapshot, ThreadState, Writes};
use ginlab_bootstrap::{Bootstrap, BootstrapError};
use ginlab_fabric::{Rail, RemoteRegion};
use ginlab_rails::strategy::Strategy;
use kernels::command::Command;
use kernels::ring::HostWords;
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a long write is looked after: is its thread turning, does it go on.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What runs for a whole timeout ends a little after it.
const MARGIN: Duration = Duration::from_millis(500);

/// Where the answer to an order comes out.
type Answer<T> = Receiver<Result<T, ProxyError>>;

/// What ranks tell each other about one proxy thread: its address on each rail, and its regions by region and rail.
type Card = (Vec<Vec<u8>>, Vec<Vec<RemoteRegion>>);

/// Exchanges addresses and regions: thread `t` of every rank talks to thread `t` of the others.
///
/// # Errors
/// A rank's, a proxy's, and [`ProxyError::Threads`].
pub fn connect<E>(ranks: &mut Bootstrap, proxies: &[Proxy]) -> Result<(), E>
where
    E: From<BootstrapError> + From<ProxyError>,
{
    let card = |proxy: &Proxy| (proxy.offer.addresses.clone(), proxy.offer.regions.clone());
    let cards: Vec<Card> = proxies.iter().map(card).collect();
    let all: Vec<Vec<Card>> = ranks.all_gather_values(&cards, "addresses and memory keys")?;
    for (thread, proxy) in proxies.iter().enumerate() {
        let of_thread = all.iter().filter_map(|cards| cards.get(thread).cloned());
        let (addresses, regions): (Vec<_>, Vec<_>) = of_thread.unzip();
        if addresses.len() != ranks.size() {
            return Err(ProxyError::Threads.into());
        }
        proxy.connect(addresses, regions)?;
    }
    Ok(ranks.barrier("connected")?)
}

/// A running proxy thread. Dropping it stops the thread; kernels that wait get [`Status::STOPPED`](kernels::ring::Status).
///
/// A thread that hangs in a provider's call cannot be ended. After the timeout it is left behind, and from then on no
/// [`Buffer`](ginlab_cuda::Buffer) of this process is freed: the thread and its NIC may still use any of them.
#[derive(Debug)]
pub struct Proxy {
    orders: Sender<Order>,
    /// The write that has been begun.
    writing: RefCell<Option<Answer<Duration>>>,
    /// Closed when the thread has ended, whose end goes with it.
    offers: Answer<Offer>,
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
    pub fn start<R: Rail + 'static>(
        setup: Setup,
        timeout: Duration,
        open: impl FnOnce() -> Result<Opened<R>, EngineError> + Send + 'static,
    ) -> Result<Proxy, ProxyError> {
        let (orders, for_thread) = channel();
        let (offer_sender, offers) = channel();
        let shared = Arc::new(ThreadState::default());
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || serve(setup, open, timeout, &offer_sender, &for_thread, &of_thread))
            .map_err(|error| ProxyError::Spawn(error.to_string()))?;
        // From here on dropping sees to the thread, also when its rails do not open in time.
        let mut proxy = Proxy {
            orders,
            writing: RefCell::default(),
            offers,
            shared,
            thread: Some(thread),
            timeout,
            offer: Offer::default(),
        };
        proxy.offer = proxy.wait(&proxy.offers, timeout)?;
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
        self.ask(move |thread| thread.connect(&addresses, &regions))
    }

    /// Uses the first `rails` rails in this way from now on.
    ///
    /// # Errors
    /// When the thread has failed.
    pub fn configure(&self, rails: usize, strategy: Strategy) -> Result<(), ProxyError> {
        self.ask(move |thread| thread.configure(rails, strategy))
    }

    /// Whether a thread that shares its core stays awake from now on also while nothing is seen to happen: peers write here, and it is measured.
    pub fn stay_awake(&self, awake: bool) {
        self.shared.awake.store(awake, Ordering::Relaxed);
    }

    /// Runs CPU-initiated writes; returns the time from the first post to the last completion.
    ///
    /// # Errors
    /// The engine's. The engine's own stall detector bounds it.
    pub fn write(&self, writes: Writes) -> Result<Duration, ProxyError> {
        self.begin_write(writes)?;
        self.finish_write(|| !ginlab_base::signals::interrupted())
    }

    /// As [`write`](Proxy::write), without waiting: several threads can write at once.
    ///
    /// # Errors
    /// When the thread has gone.
    pub fn begin_write(&self, writes: Writes) -> Result<(), ProxyError> {
        self.writing.replace(Some(self.begin(move |thread| thread.write(&writes))?));
        Ok(())
    }

    /// The time of the writes begun. Nothing else may be asked in between. `goes_on` is asked now and then: when it says no, the thread drops the writes
    /// and ends.
    ///
    /// # Errors
    /// As [`write`](Proxy::write), and [`ProxyError::Silent`] when the thread is stuck in the provider.
    pub fn finish_write(&self, mut goes_on: impl FnMut() -> bool) -> Result<Duration, ProxyError> {
        let Some(answer) = self.writing.take() else {
            return Err(EngineError::Refused("no write has been begun".into()).into());
        };
        // The writes may take any time as long as the thread turns: the engine's stall timeout bounds them.
        let (mut turns, mut since) = (self.shared.turns.load(Ordering::Relaxed), Instant::now());
        loop {
            match self.wait(&answer, LOOK_EVERY) {
                Err(ProxyError::Silent(_)) => {
                    if !goes_on() {
                        // The next answer says that it has.
                        self.stop();
                    }
                    let before = std::mem::replace(&mut turns, self.shared.turns.load(Ordering::Relaxed));
                    if before != turns {
                        since = Instant::now();
                    } else if since.elapsed() > self.timeout {
                        return Err(ProxyError::Silent(self.timeout));
                    }
                }
                done => return done,
            }
        }
    }

    /// CPU-initiated commands, any number of them: posts them as if a kernel had pushed them; returns when they are done.
    ///
    /// # Errors
    /// As [`write`](Proxy::write).
    pub fn put(&self, commands: Vec<Command>) -> Result<(), ProxyError> {
        let answer = self.begin(move |thread| thread.put(&commands))?;
        self.shared.urgent.store(true, Ordering::Release);
        let mut since = Instant::now();
        let mut turns = self.shared.turns.load(Ordering::Relaxed);
        // Asked for and not waited for: a thread that sleeps is woken up some ten microseconds late.
        loop {
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(TryRecvError::Empty) if since.elapsed() > self.timeout => {
                    // As for a write: while the thread turns, the engine's own stall timeout bounds it.
                    let before = std::mem::replace(&mut turns, self.shared.turns.load(Ordering::Relaxed));
                    if before == turns {
                        return Err(ProxyError::Silent(self.timeout));
                    }
                    since = Instant::now();
                }
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
        self.wait(&self.begin(move |thread| thread.bare_write(route, bytes, count))?, self.timeout * 2)
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
        // SAFETY: the caller's contract: the thread, which may use them for longer than this call, is waited for.
        let words: &'static HostWords = unsafe { &*words };
        let answer = self.begin(move |thread| thread.answer_flags(words))?;
        self.shared.urgent.store(true, Ordering::Release);
        let value = meanwhile();
        self.shared.answering.store(false, Ordering::Relaxed);
        self.wait(&answer, self.timeout).map(|()| value)
    }

    /// The counters now.
    ///
    /// # Errors
    /// When the thread has failed.
    pub fn snapshot(&self) -> Result<Snapshot, ProxyError> {
        self.ask(|thread| thread.snapshot())
    }

    /// Begins to trace sampled commands, or ends that; returns what an earlier trace has found, by ticket.
    ///
    /// # Errors
    /// When the thread has failed.
    pub fn trace(&self, sampling: Option<Sampling>) -> Result<Vec<Times>, ProxyError> {
        self.ask(move |thread| thread.trace(sampling))
    }

    /// The error that ended the thread's service, if one has.
    pub fn failure(&self) -> Option<ProxyError> {
        let has_ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        self.reported().or_else(|| has_ended.then(|| self.why_gone()))
    }

    /// Asks the thread to end: kernels that wait get a status. Does not wait.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // A thread that has gone already needs no order.
        let _ = self.orders.send(Box::new(|_| Err(None)));
    }

    fn ask<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut dyn Orders) -> Result<T, Halt> + Send + 'static,
    ) -> Result<T, ProxyError> {
        self.wait(&self.begin(order)?, self.timeout)
    }

    fn begin<T: Send + 'static>(
        &self,
        order: impl FnOnce(&mut dyn Orders) -> Result<T, Halt> + Send + 'static,
    ) -> Result<Answer<T>, ProxyError> {
        // Of one place: the thread, whose time may be measured, allocates nothing to answer.
        let (sender, answer) = sync_channel(1);
        let order = move |thread: &mut dyn Orders| {
            let done = order(thread);
            let halt = done.as_ref().err().cloned();
            // Nobody may wait for it any more.
            let _ = sender.send(done.map_err(|halt| halt.map_or(ProxyError::Stopped, ProxyError::from)));
            halt.map_or(Ok(()), Err)
        };
        self.orders.send(Box::new(order)).map_err(|_| self.why_gone())?;
        Ok(answer)
    }

    /// An order that the thread drops has no answer: the thread has failed, or has gone.
    fn wait<T>(&self, answer: &Answer<T>, timeout: Duration) -> Result<T, ProxyError> {
        answer.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => ProxyError::Silent(timeout),
            RecvTimeoutError::Disconnected => self.why_gone(),
        })?
    }

    fn reported(&self) -> Option<ProxyError> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn why_gone(&self) -> ProxyError {
        let was_told = self.shared.stop.load(Ordering::Relaxed);
        self.reported().unwrap_or(if was_told { ProxyError::Stopped } else { ProxyError::Gone })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
        let Some(thread) = self.thread.take() else { return };
        // The thread sees the request within microseconds, and its end of the offers goes with it; a provider call that hangs
        // must not hang us.
        loop {
            match self.offers.recv_timeout(self.timeout + MARGIN) {
                // One that came too late.
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // A panic has been reported as `Gone` to whoever asked.
                    let _ = thread.join();
                    return;
                }
                Err(RecvTimeoutError::Timeout) => return ginlab_cuda::keep_buffers(),
            }
        }
    }
}
