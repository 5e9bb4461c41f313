//! The loop of the proxy thread.

mod orders;

use super::engine::{Engine, EngineError, OpenedEngine};
use super::trace::{CommandTimes, EngineObserver, ProxyTrace, Sampling};
use super::{Order, ProxyError, ProxyOffer, Snapshot, ThreadState, Writes};
use ginlab_base::backoff::Backoff;
use ginlab_cuda::Flush;
use ginlab_fabric::{FabricError, Rail, RemoteRegion};
use ginlab_rails::strategy::Strategy;
use kernels::command::Command;
use kernels::ring::consumer::Consumer;
use kernels::ring::producer::CommandWords;
use kernels::ring::{HostWords, Status};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

/// Maximum number of commands taken from the ring before the rails are served again.
const BATCH: usize = 64;
/// Number of iterations between two checks for orders and stalls.
const POLLS_PER_ORDER_CHECK: u32 = 1024;
/// Number of answered flags between two records of progress.
const ANSWERS_PER_RECORD: u64 = 1 << 16;
/// Number of empty polls after which a thread that shares its core yields.
const EMPTY_POLLS_BEFORE_YIELD: u32 = 16;

/// A fault to inject, for tests and fault experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFault {
    /// The thread exits without a notification after this many commands, as if it had been killed.
    Vanish(u64),
    /// The thread stops in an orderly way after this many commands.
    Stop(u64),
    /// The thread stops polling completions after this many commands, as if the rails were silent.
    Silent(u64),
    /// The command with this ticket, and the CPU-initiated command with this number, are sent one byte short without an
    /// error. Verification must detect it. A command without bytes is not changed, which
    /// [`Snapshot::fault_without_bytes`] reports.
    Corrupt(u64),
}

/// Parameters of a proxy thread, in addition to its rails.
#[derive(Debug, Default)]
pub struct ProxyThreadOptions {
    /// Core to pin to. `None`: not pinned.
    pub cpu: Option<usize>,
    /// Whether other busy threads share the core, so that an idle poll should yield.
    pub shares_core: bool,
    /// Fault to inject.
    pub fault: Option<ProxyFault>,
    /// The ring to drain; `None` on a rank that only receives.
    pub consumer: Option<Consumer>,
    /// Makes data that NICs wrote to this rank's GPU memory visible to its kernels, if this requires a call
    /// ([`Device::card_flush`](ginlab_cuda::Device::card_flush)). Runs after completions are polled and before they are
    /// processed.
    pub flush: Option<Flush>,
}

/// Reason why a thread stops serving: an error, or `None` if it was requested to stop.
pub(super) type Halt = Option<EngineError>;

/// Requests to a running proxy thread.
pub(super) trait Orders {
    fn connect(&mut self, addresses: &[Vec<Vec<u8>>], regions: &[Vec<Vec<RemoteRegion>>]) -> Result<(), Halt>;
    fn configure(&mut self, rails: usize, strategy: Strategy) -> Result<(), Halt>;
    fn time_rails(&mut self) -> Result<(), Halt>;
    fn write(&mut self, writes: &Writes) -> Result<Duration, Halt>;
    fn bare_write(&mut self, route: (u32, u32, u32), bytes: u64, count: u64) -> Result<Option<Duration>, Halt>;
    fn put(&mut self, commands: &[Command]) -> Result<(), Halt>;
    fn run_ping_pong(&mut self, words: &HostWords) -> Result<(), Halt>;
    fn snapshot(&mut self) -> Result<Snapshot, Halt>;
    fn trace(&mut self, sampling: Option<Sampling>) -> Result<Vec<CommandTimes>, Halt>;
}

pub(super) fn serve<R: Rail>(
    setup: ProxyThreadOptions,
    open: impl FnOnce() -> Result<OpenedEngine<R>, EngineError>,
    timeout: Duration,
    offers: &Sender<Result<ProxyOffer, ProxyError>>,
    orders: &Receiver<Order>,
    shared: &ThreadState,
) {
    let cpu = setup.cpu.filter(|&cpu| ginlab_topology::cores::pin(cpu));
    let opened = open().and_then(|(engine, regions)| {
        let addresses = engine.rails().map(Rail::address).collect::<Result<_, FabricError>>()?;
        let rails = engine.rails().map(|rail| rail.name().to_owned()).collect();
        Ok((engine, ProxyOffer { addresses, regions, rails, cpu }))
    });
    let (mut engine, offer) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // The starting thread waits for this message. Ignore the error if it has exited.
            let _ = offers.send(Err(error.into()));
            return;
        }
    };
    engine.set_flush(setup.flush);
    let mut server = Server {
        ring: Ring { consumer: setup.consumer, ended: false },
        engine,
        shared,
        batch: [[0; 4]; BATCH],
        popped: 0,
        published: 0,
        yields: setup.shares_core,
        fault: setup.fault,
        fault_without_bytes: false,
        initiated: 0,
        trace: None,
    };
    if offers.send(Ok(offer)).is_err() {
        return;
    }
    if let Err(Some(error)) = server.run(orders) {
        let stop = match &error {
            EngineError::Refused(_) => Status::REFUSED,
            _ => Status::FABRIC,
        };
        *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.into());
        server.end(stop);
        // Drops orders until the thread is requested to stop. A caller that waits for an answer finds the reason in
        // `failure`.
        while orders.recv_timeout(timeout).is_ok() && !shared.stop.load(Ordering::Relaxed) {}
    }
}

/// The ring of a thread. However the thread exits, waiting kernels are notified.
struct Ring {
    consumer: Option<Consumer>,
    /// Whether a drop must not publish a status, because a status has already been published or the injected fault
    /// requires an exit without a notification.
    ended: bool,
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let (Some(consumer), false) = (&self.consumer, self.ended) {
            consumer.publish_status(Status::STOPPED);
        }
    }
}

struct Server<'a, R: Rail> {
    // This field is dropped first, because kernels must be notified before the rails are closed, which may take time.
    ring: Ring,
    engine: Engine<R>,
    shared: &'a ThreadState,
    /// Commands popped in this iteration: the first `popped` entries.
    batch: [CommandWords; BATCH],
    popped: usize,
    /// Watermark last published to the kernels.
    published: u64,
    yields: bool,
    fault: Option<ProxyFault>,
    fault_without_bytes: bool,
    /// Number of CPU-initiated commands so far.
    initiated: u64,
    trace: Option<Box<ProxyTrace>>,
}

impl<R: Rail> Server<'_, R> {
    fn run(&mut self, orders: &Receiver<Order>) -> Result<(), Halt> {
        let mut backoff = Backoff::every(EMPTY_POLLS_BEFORE_YIELD);
        let mut since_check = 0;
        loop {
            let busy = match self.trace.take() {
                None => self.step(&mut ())?,
                Some(mut trace) => {
                    let busy = self.step(&mut *trace);
                    self.trace = Some(trace);
                    busy?
                }
            };
            if busy {
                backoff.reset();
            }
            // A full batch counts as 17 polls: posting 64 writes may take milliseconds, and peers end a run whose
            // progress is not recorded.
            since_check += 1 + self.popped as u32 / 4;
            let gave_way = !busy && self.yields && backoff.idle();
            if gave_way && self.shared.awake.load(Ordering::Relaxed) {
                backoff.reset();
            }
            if since_check >= POLLS_PER_ORDER_CHECK || gave_way || self.shared.urgent.load(Ordering::Relaxed) {
                since_check = 0;
                // Uses acquire order, which pairs with the release store of `urgent`. The request was sent before that
                // store.
                if self.shared.urgent.swap(false, Ordering::Acquire) {
                    backoff.reset();
                }
                self.engine.check_stall()?;
                match orders.try_recv() {
                    Ok(order) => order(self)?,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                    Err(TryRecvError::Empty) => {}
                }
                if self.fault_is_due() {
                    return Ok(());
                }
            }
        }
    }

    /// Runs one iteration: posts a batch from the ring, polls completions and publishes the watermark. Returns whether
    /// it made progress.
    #[inline]
    fn step(&mut self, watch: &mut impl EngineObserver) -> Result<bool, EngineError> {
        let popped = self.drain(watch)?;
        self.engine.pump(watch)?;
        let completed = !self.rails_are_silent() && self.engine.progress(watch)?;
        let watermark = self.engine.watermark();
        if watermark != self.published
            && let Some(consumer) = &self.ring.consumer
        {
            // One store per iteration, for any number of tickets: each store takes the cache line from the poller on
            // the device.
            self.published = watermark;
            consumer.publish_watermark(watermark);
            watch.published(watermark);
        }
        Ok(popped || completed)
    }

    #[inline]
    fn drain(&mut self, watch: &mut impl EngineObserver) -> Result<bool, EngineError> {
        let Some(consumer) = &mut self.ring.consumer else { return Ok(false) };
        let room = self.engine.room().min(BATCH);
        self.popped = consumer.pop_batch(&mut self.batch[..room]);
        if self.popped == 0 {
            return Ok(false);
        }
        let batch = &mut self.batch[..self.popped];
        let first = consumer.cursor() - batch.len() as u64;
        watch.popped(first, consumer.cursor());
        // The commands are copied, so their slots can be freed before the slow part.
        consumer.acquire();
        consumer.publish_tail();
        if let Some(ProxyFault::Corrupt(ticket)) = self.fault
            && let Some(words) = ticket.checked_sub(first).and_then(|index| batch.get_mut(index as usize))
        {
            match one_byte_short(*words) {
                Some(shorter) => *words = shorter,
                None => self.fault_without_bytes = true,
            }
        }
        for words in batch {
            let Some(command) = Command::decode(*words) else {
                return Err(EngineError::Refused(format!("words {words:x?} are not a command")));
            };
            self.engine.submit(&command)?;
        }
        Ok(true)
    }

    /// Returns the number of CPU-initiated commands before the one that the injected fault shortens.
    fn until_corrupt(&self) -> u64 {
        let Some(ProxyFault::Corrupt(number)) = self.fault else { return u64::MAX };
        number.checked_sub(self.initiated).unwrap_or(u64::MAX)
    }

    fn write_all(&mut self, writes: &Writes) -> Result<(), Halt> {
        let (source_region, destination_region, peer) = writes.route;
        let corrupt = self.until_corrupt();
        let mut posted = 0u64;
        let (mut batched, mut unwaited) = (0, 0);
        for iteration in 0..writes.iterations {
            for producer in (writes.first_producer..writes.producers).step_by(writes.producer_step.max(1) as usize) {
                let offset = (producer * writes.window + iteration % writes.window) * writes.stride;
                while self.engine.room() == 0 {
                    self.pump_and_poll()?;
                }
                let bytes = writes.bytes.saturating_sub(u64::from(posted == corrupt));
                let (source, destination) = ((source_region, offset), (destination_region, offset));
                self.engine.submit(&Command::put(source, destination, bytes, peer))?;
                posted += 1;
                batched += 1;
                unwaited += 1;
                if unwaited == writes.quiet_every {
                    unwaited = 0;
                    self.settle()?;
                }
                if batched == BATCH {
                    batched = 0;
                    self.pump_and_poll()?;
                }
            }
        }
        self.initiated += posted;
        self.settle()
    }

    /// Waits until the current ticket sequence has no command in flight, including those of kernels that have timed
    /// out.
    fn settle(&mut self) -> Result<(), Halt> {
        while self.engine.in_flight() > 0 {
            self.pump_and_poll()?;
        }
        Ok(())
    }

    /// Like [`step`](Server::step), but without the ring. Yields and reads the clock only if nothing completes. Halts
    /// if the thread is requested to stop.
    #[inline]
    fn pump_and_poll(&mut self) -> Result<(), Halt> {
        self.shared.turns.fetch_add(1, Ordering::Relaxed);
        self.engine.pump(&mut ())?;
        if !self.engine.progress(&mut ())? {
            self.engine.check_stall()?;
            if self.yields {
                std::thread::yield_now();
            }
        }
        if self.shared.stop.load(Ordering::Relaxed) { Err(None) } else { Ok(()) }
    }

    fn commands(&self) -> u64 {
        self.ring.consumer.as_ref().map_or(0, Consumer::cursor)
    }

    /// See [`ProxyFault::Silent`].
    #[inline]
    fn rails_are_silent(&self) -> bool {
        matches!(self.fault, Some(ProxyFault::Silent(after)) if self.commands() >= after)
    }

    fn fault_is_due(&mut self) -> bool {
        let commands = self.commands();
        match self.fault {
            Some(ProxyFault::Vanish(after)) if commands >= after => {
                self.ring.ended = true;
                true
            }
            Some(ProxyFault::Stop(after)) if commands >= after => {
                self.shared.stop.store(true, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Shuts down after an error. Waits for transfers in flight, because the NIC uses their buffers until then,
    /// publishes the final watermark, and then ends every wait of the kernels.
    fn end(&mut self, stop: Status) {
        self.engine.drain();
        self.ring.ended = true;
        if let Some(consumer) = &self.ring.consumer {
            consumer.publish_watermark(self.engine.watermark());
            consumer.publish_status(stop);
        }
    }
}

/// Returns the command without its last byte, or `None` if it has no bytes.
fn one_byte_short(words: [u64; 4]) -> Option<[u64; 4]> {
    let command = Command::decode(words)?;
    Some(Command { bytes: command.bytes.checked_sub(1)?, ..command }.encode())
}
