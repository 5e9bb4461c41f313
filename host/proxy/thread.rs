//! Handle of a proxy thread: starts the thread, sends requests to it, waits for the answers and stops it.

use crate::engine::{EngineError, OpenedEngine};
use crate::serve::{Halt, Orders, ProxyThreadOptions, serve};
use crate::trace::{CommandTimes, Sampling};
use crate::{Order, ProxyError, ProxyOffer, Snapshot, ThreadState, Writes};
use ginlab_base::limits::explain;
use ginlab_base::progress;
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

/// Interval at which a long write is checked for progress and for cancellation.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Additional wait for operations of the thread that can take up to a whole timeout.
const MARGIN: Duration = Duration::from_millis(500);

/// Receiver of the answer to an order.
type Answer<T> = Receiver<Result<T, ProxyError>>;

/// Record that ranks exchange per proxy thread: its address on each rail, and its regions by region and rail.
type RankInfo = (Vec<Vec<u8>>, Vec<Vec<RemoteRegion>>);

/// Exchanges addresses and regions. Thread `t` of a rank communicates with thread `t` of the other ranks.
///
/// # Errors
/// Returns [`ProxyError::Threads`] if the ranks have different numbers of threads, and the errors of the ranks and of
/// the proxy threads.
pub fn connect<E>(ranks: &mut Bootstrap, proxies: &[Proxy]) -> Result<(), E>
where
    E: From<BootstrapError> + From<ProxyError>,
{
    let card = |proxy: &Proxy| (proxy.offer.addresses.clone(), proxy.offer.regions.clone());
    let cards: Vec<RankInfo> = proxies.iter().map(card).collect();
    let all: Vec<Vec<RankInfo>> = ranks.all_gather_values(&cards, "addresses and memory keys")?;
    for (thread, proxy) in proxies.iter().enumerate() {
        let of_thread = all.iter().filter_map(|cards| cards.get(thread).cloned());
        let (addresses, regions): (Vec<_>, Vec<_>) = of_thread.unzip();
        if addresses.len() != ranks.size() {
            return Err(ProxyError::Threads.into());
        }
        ranks.check_addresses(addresses.iter().map(|rails: &Vec<Vec<u8>>| &rails[..]))?;
        proxy.connect(addresses, regions)?;
    }
    Ok(ranks.barrier("connected")?)
}

/// Handle of a running proxy thread. Dropping it stops the thread; waiting kernels get
/// [`Status::STOPPED`](kernels::ring::Status).
///
/// A thread that hangs in a provider call cannot be stopped. It is leaked after the timeout. Afterwards no
/// [`Buffer`](ginlab_cuda::Buffer) of this process is freed, because the thread and its NIC may still use any buffer.
#[derive(Debug)]
pub struct Proxy {
    orders: Sender<Order>,
    /// Answer of the write that was started.
    writing: RefCell<Option<Answer<Duration>>>,
    /// Receives the thread's offer. Disconnects when the thread ends.
    offers: Answer<ProxyOffer>,
    shared: Arc<ThreadState>,
    thread: Option<JoinHandle<()>>,
    timeout: Duration,
    offer: ProxyOffer,
}

impl Proxy {
    /// Starts a proxy thread and waits until its rails are open. The thread is pinned before it opens its rails, so
    /// that the provider allocates memory near it.
    ///
    /// # Errors
    /// Returns the error that prevented the rails from opening.
    pub fn start<R: Rail + 'static>(
        setup: ProxyThreadOptions,
        timeout: Duration,
        open: impl FnOnce() -> Result<OpenedEngine<R>, EngineError> + Send + 'static,
    ) -> Result<Proxy, ProxyError> {
        let (orders, for_thread) = channel();
        let (offer_sender, offers) = channel();
        let shared = Arc::new(ThreadState::default());
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || serve(setup, open, timeout, &offer_sender, &for_thread, &of_thread))
            .map_err(|error| ProxyError::Spawn(explain(&error)))?;
        // From here on, `drop` handles the thread, even if its rails do not open in time.
        let mut proxy = Proxy {
            orders,
            writing: RefCell::default(),
            offers,
            shared,
            thread: Some(thread),
            timeout,
            offer: ProxyOffer::default(),
        };
        proxy.offer = proxy.wait(&proxy.offers, timeout)?;
        Ok(proxy)
    }

    /// Returns the data that peers need to access this thread's regions.
    pub fn offer(&self) -> &ProxyOffer {
        &self.offer
    }

    /// Sets the peers: addresses by peer and rail, regions by peer, region and rail.
    ///
    /// # Errors
    /// Returns the provider's error, or an error if the peers differ in rails or regions.
    pub fn connect(
        &self,
        addresses: Vec<Vec<Vec<u8>>>,
        regions: Vec<Vec<Vec<RemoteRegion>>>,
    ) -> Result<(), ProxyError> {
        self.ask(move |thread| thread.connect(&addresses, &regions))
    }

    /// Uses the first `rails` rails with `strategy` for subsequent commands.
    ///
    /// # Errors
    /// Returns an error if the thread has failed.
    pub fn configure(&self, rails: usize, strategy: Strategy) -> Result<(), ProxyError> {
        self.ask(move |thread| thread.configure(rails, strategy))
    }

    /// Starts to measure the time with transfers in flight on each rail
    /// ([`Counters::rail_busy`](ginlab_rails::Counters::rail_busy)). Must not be called while commands are in flight.
    ///
    /// # Errors
    /// Returns an error if the thread has failed.
    pub fn time_rails(&self) -> Result<(), ProxyError> {
        self.ask(|thread| thread.time_rails())
    }

    /// Sets whether a thread that shares its core keeps polling, without sleeping, while it observes no progress.
    /// Intended for measurements of peers' writes to this rank.
    pub fn set_busy_poll(&self, awake: bool) {
        self.shared.awake.store(awake, Ordering::Relaxed);
    }

    /// Runs CPU-initiated writes. Returns the time from the first post to the last completion.
    ///
    /// # Errors
    /// Returns the engine's error. The engine's stall detection bounds the wait.
    pub fn write(&self, writes: Writes) -> Result<Duration, ProxyError> {
        self.begin_write(writes)?;
        self.finish_write(|| !ginlab_base::signals::interrupted())
    }

    /// Like [`write`](Proxy::write), but does not wait, so that several threads can write concurrently.
    ///
    /// # Errors
    /// Returns an error if the thread has exited.
    pub fn begin_write(&self, writes: Writes) -> Result<(), ProxyError> {
        self.writing.replace(Some(self.begin(move |thread| thread.write(&writes))?));
        Ok(())
    }

    /// Waits for the writes started by [`begin_write`](Proxy::begin_write) and returns their time. No other request may
    /// be made in between. Calls `keep_running` at intervals. If it returns `false`, the thread drops the writes and
    /// stops.
    ///
    /// # Errors
    /// Returns the same errors as [`write`](Proxy::write), and [`ProxyError::Silent`] if the thread is stuck in the
    /// provider.
    pub fn finish_write(&self, mut keep_running: impl FnMut() -> bool) -> Result<Duration, ProxyError> {
        let Some(answer) = self.writing.take() else {
            return Err(EngineError::Refused("no write has been started".into()).into());
        };
        // The writes may take any time while the thread iterates, because the engine's stall timeout bounds them.
        let (mut turns, mut since) = (self.shared.turns.load(Ordering::Relaxed), Instant::now());
        loop {
            match self.wait(&answer, LOOK_EVERY) {
                Err(ProxyError::Silent(_)) => {
                    if !keep_running() {
                        // The next wait returns `Stopped`.
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

    /// Posts any number of CPU-initiated commands as if a kernel had pushed them. Returns when all are complete.
    ///
    /// # Errors
    /// Returns the same errors as [`write`](Proxy::write).
    pub fn put(&self, commands: Vec<Command>) -> Result<(), ProxyError> {
        let answer = self.begin(move |thread| thread.put(&commands))?;
        self.shared.urgent.store(true, Ordering::Release);
        let mut since = Instant::now();
        let mut turns = self.shared.turns.load(Ordering::Relaxed);
        // Polls instead of blocking: a sleeping thread wakes up with a delay of about ten microseconds.
        loop {
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(TryRecvError::Empty) if since.elapsed() > self.timeout => {
                    // While the thread iterates, the engine's stall timeout bounds the wait, as for a write.
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

    /// Runs a minimal loop of writes through the fabric's own interface on rail 0, without ring and engine, as the
    /// reference for CPU-initiated writes. Returns its time, or `None` if the fabric has no such loop.
    ///
    /// # Errors
    /// Returns the provider's error, or [`ProxyError::Silent`] if the loop makes no progress in time.
    pub fn bare_write(&self, route: (u32, u32, u32), bytes: u64, count: u64) -> Result<Option<Duration>, ProxyError> {
        let answer = self.begin(move |thread| thread.bare_write(route, bytes, count))?;
        // The loop ends after one timeout without a completion, and its answer may take equally long.
        let (mut since, mut seen) = (Instant::now(), None);
        loop {
            match self.wait(&answer, LOOK_EVERY) {
                Err(ProxyError::Silent(_)) if since.elapsed() <= self.timeout * 2 => {
                    let count = Some(progress::counter().load(Ordering::Relaxed));
                    if std::mem::replace(&mut seen, count) != count {
                        since = Instant::now();
                    }
                }
                Err(ProxyError::Silent(_)) => return Err(ProxyError::Silent(self.timeout * 2)),
                done => return done,
            }
        }
    }

    /// Makes the thread answer flags while `meanwhile` runs: it stores each new value of `tail` to `completion`, and
    /// serves neither ring nor rails. The result is the lower bound of every put and its quiet, on the thread that
    /// serves them.
    ///
    /// # Safety
    /// The words must stay valid until this function returns, or until the process exits if it returns an error.
    ///
    /// # Errors
    /// Returns an error if the thread has failed or does not answer.
    pub unsafe fn run_ping_pong<T>(
        &self,
        words: *const HostWords,
        meanwhile: impl FnOnce() -> T,
    ) -> Result<T, ProxyError> {
        self.shared.answering.store(true, Ordering::Relaxed);
        // SAFETY: the caller guarantees that the words outlive this call, which waits for the thread. If the wait
        // fails, the thread may use them longer, and the caller guarantees that they stay valid until the process
        // exits.
        let words: &'static HostWords = unsafe { &*words };
        let answer = self.begin(move |thread| thread.run_ping_pong(words))?;
        self.shared.urgent.store(true, Ordering::Release);
        let value = meanwhile();
        self.shared.answering.store(false, Ordering::Relaxed);
        self.wait(&answer, self.timeout).map(|()| value)
    }

    /// Returns the current counters.
    ///
    /// # Errors
    /// Returns an error if the thread has failed.
    pub fn snapshot(&self) -> Result<Snapshot, ProxyError> {
        self.ask(|thread| thread.snapshot())
    }

    /// Starts to trace sampled commands, or stops tracing if `sampling` is `None`. Returns the results of the previous
    /// trace, by ticket.
    ///
    /// # Errors
    /// Returns an error if the thread has failed.
    pub fn trace(&self, sampling: Option<Sampling>) -> Result<Vec<CommandTimes>, ProxyError> {
        self.ask(move |thread| thread.trace(sampling))
    }

    /// Returns the error that ended the thread, if any.
    pub fn failure(&self) -> Option<ProxyError> {
        self.reported().or_else(|| self.has_exited().then(|| self.why_gone()))
    }

    /// Returns whether the thread has exited.
    pub(super) fn has_exited(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Requests the thread to stop, without waiting for it. Waiting kernels receive a status.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // The error is ignored: a thread that has exited needs no order.
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
        // Capacity 1, so that the thread, whose time may be measured, does not allocate memory for its answer.
        let (sender, answer) = sync_channel(1);
        let order = move |thread: &mut dyn Orders| {
            let done = order(thread);
            let halt = done.as_ref().err().cloned();
            // The error is ignored, because the caller may have stopped waiting.
            let _ = sender.send(done.map_err(|halt| halt.map_or(ProxyError::Stopped, ProxyError::from)));
            halt.map_or(Ok(()), Err)
        };
        self.orders.send(Box::new(order)).map_err(|_| self.why_gone())?;
        Ok(answer)
    }

    /// Waits for the answer to an order. If the thread dropped the order without an answer, it has failed or exited.
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
        // The thread sees the request within microseconds, and its end of `offers` is dropped when it exits. The wait
        // is bounded because the thread may hang in a provider call.
        loop {
            match self.offers.recv_timeout(self.timeout + MARGIN) {
                // The offer arrived after `start` had timed out.
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // Ignore a panic: waiting callers got `Gone`.
                    let _ = thread.join();
                    return;
                }
                Err(RecvTimeoutError::Timeout) => return ginlab_cuda::keep_buffers(),
            }
        }
    }
}
