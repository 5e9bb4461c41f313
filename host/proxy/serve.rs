//! The proxy thread itself.

use super::engine::{Engine, EngineError, Opened};
use super::trace::{Sampling, Times, Trace, Watch};
use super::{Offer, Order, ProxyError, Snapshot, ThreadState, Writes};
use crate::ring::answer_flag;
use ginlab_base::giving_way::GivingWay;
use ginlab_cuda::Flush;
use ginlab_fabric::{FabricError, Rail, RemoteRegion};
use ginlab_rails::strategy::Strategy;
use kernels::command::{Command, Opcode};
use kernels::ring::consumer::Consumer;
use kernels::ring::{HostWords, Status};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

/// Commands taken from the ring before the rails are served again.
const BATCH: usize = 64;
/// Polls between two looks at orders and at the stall clock.
const POLLS_PER_ORDER_CHECK: u32 = 1024;
/// After this many empty polls a thread that shares its core gives way.
const EMPTY_POLLS_BEFORE_YIELD: u32 = 16;

/// A fault to inject, for tests and fault experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The thread leaves after this many commands without a word, as if it had been killed.
    Vanish(u64),
    /// The thread stops in an orderly way after this many commands.
    Stop(u64),
    /// Once so many commands have been taken, completions are not looked at any more: the rails seem silent.
    Silent(u64),
    /// The command with this ticket arrives one byte short, and nobody says so: what verification must find.
    Corrupt(u64),
}

/// What a thread begins with, beside its rails.
#[derive(Debug, Default)]
pub struct Setup {
    /// Core to pin to; `None`: not pinned.
    pub cpu: Option<usize>,
    /// Whether other busy threads share our core, so that an idle poll should give way.
    pub shares_core: bool,
    /// Fault to inject.
    pub fault: Option<Fault>,
    /// The ring to drain; `None` on a rank that only receives.
    pub consumer: Option<Consumer>,
    /// Makes what cards write into this rank's GPU memory visible to its kernels, where that needs a call
    /// ([`Device::card_flush`](ginlab_cuda::Device::card_flush)): run between the poll of completions and what is told of them.
    pub flush: Option<Flush>,
}

/// Why a thread serves no longer: an error, or it was told to stop.
pub(super) type Halt = Option<EngineError>;

/// What can be asked of a thread while it runs.
pub(super) trait Orders {
    fn connect(&mut self, addresses: &[Vec<Vec<u8>>], regions: &[Vec<Vec<RemoteRegion>>]) -> Result<(), Halt>;
    fn configure(&mut self, rails: usize, strategy: Strategy) -> Result<(), Halt>;
    fn write(&mut self, writes: &Writes) -> Result<Duration, Halt>;
    fn bare_write(&mut self, route: (u32, u32, u32), bytes: u64, count: u64) -> Result<Option<Duration>, Halt>;
    fn put(&mut self, commands: &[Command]) -> Result<(), Halt>;
    fn answer_flags(&mut self, words: &HostWords) -> Result<(), Halt>;
    fn snapshot(&mut self) -> Result<Snapshot, Halt>;
    fn trace(&mut self, sampling: Option<Sampling>) -> Result<Vec<Times>, Halt>;
}

pub(super) fn serve<R: Rail>(
    setup: Setup,
    open: impl FnOnce() -> Result<Opened<R>, EngineError>,
    timeout: Duration,
    offers: &Sender<Result<Offer, ProxyError>>,
    orders: &Receiver<Order>,
    shared: &ThreadState,
) {
    let cpu = setup.cpu.filter(|&cpu| ginlab_topology::cores::pin(cpu));
    let opened = open().and_then(|(engine, regions)| {
        let addresses = engine.rails().map(Rail::address).collect::<Result<_, FabricError>>()?;
        let rails = engine.rails().map(|rail| rail.name().to_owned()).collect();
        Ok((engine, Offer { addresses, regions, rails, cpu }))
    });
    let (mut engine, offer) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // Whoever started us is waiting for this; when it has gone there is nobody to tell.
            let _ = offers.send(Err(error.into()));
            return;
        }
    };
    engine.set_flush(setup.flush);
    let mut server = Server {
        ring: Ring { consumer: setup.consumer, ended: false },
        engine,
        shared,
        batch: Vec::with_capacity(BATCH),
        published: 0,
        yields: setup.shares_core,
        fault: setup.fault,
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
        // Until we are told to stop, orders are dropped: whoever waits for an answer finds the reason above.
        while orders.recv_timeout(timeout).is_ok() && !shared.stop.load(Ordering::Relaxed) {}
    }
}

/// The ring of a thread. When the thread goes, in whatever way, kernels that wait are told.
struct Ring {
    consumer: Option<Consumer>,
    /// A reason has been published, which must stay; or the injected fault: go without a word.
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
    // Dropped first: kernels are told before the rails are closed, which may take its time.
    ring: Ring,
    engine: Engine<R>,
    shared: &'a ThreadState,
    /// Commands popped in this turn.
    batch: Vec<[u64; 4]>,
    /// The watermark that the kernels know.
    published: u64,
    yields: bool,
    fault: Option<Fault>,
    trace: Option<Box<Trace>>,
}

impl<R: Rail> Server<'_, R> {
    /// Serves until told to stop.
    fn run(&mut self, orders: &Receiver<Order>) -> Result<(), Halt> {
        let mut giving = GivingWay::every(EMPTY_POLLS_BEFORE_YIELD);
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
                giving.moved();
            }
            since_check += 1;
            let gave_way = !busy && self.yields && giving.in_vain();
            if gave_way && self.shared.awake.load(Ordering::Relaxed) {
                giving.moved();
            }
            if since_check >= POLLS_PER_ORDER_CHECK || gave_way || self.shared.urgent.load(Ordering::Relaxed) {
                since_check = 0;
                // The order was sent before this was set.
                if self.shared.urgent.swap(false, Ordering::Acquire) {
                    giving.moved();
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

    /// One turn: a batch from the ring to the rails, completions to the watermark. Returns whether anything happened.
    #[inline]
    fn step(&mut self, watch: &mut impl Watch) -> Result<bool, EngineError> {
        let popped = self.drain(watch)?;
        self.engine.pump(watch)?;
        let completed = !self.rails_are_silent() && self.engine.progress(watch)?;
        let watermark = self.engine.watermark();
        if watermark != self.published
            && let Some(consumer) = &self.ring.consumer
        {
            // One store per turn, however many tickets it covers: each takes the line from the poller on the device.
            self.published = watermark;
            consumer.publish_watermark(watermark);
            watch.published(watermark);
        }
        Ok(popped || completed)
    }

    #[inline]
    fn drain(&mut self, watch: &mut impl Watch) -> Result<bool, EngineError> {
        let Some(consumer) = &mut self.ring.consumer else { return Ok(false) };
        let room = self.engine.room().min(BATCH);
        self.batch.clear();
        while self.batch.len() < room {
            let Some(words) = consumer.pop() else { break };
            self.batch.push(words);
        }
        if self.batch.is_empty() {
            return Ok(false);
        }
        watch.popped(consumer.cursor() - self.batch.len() as u64, consumer.cursor());
        // The commands are copied: their slots can go back before the slow part.
        consumer.acquire();
        consumer.publish_tail();
        if let Some(Fault::Corrupt(ticket)) = self.fault {
            let first = consumer.cursor() - self.batch.len() as u64;
            if let Some(words) = ticket.checked_sub(first).and_then(|index| self.batch.get_mut(index as usize)) {
                *words = one_byte_short(*words);
            }
        }
        for words in &self.batch {
            let Some(command) = Command::decode(*words) else {
                return Err(EngineError::Refused(format!("words {words:x?} are no command")));
            };
            self.engine.submit(&command)?;
        }
        Ok(true)
    }

    fn write_all(&mut self, writes: &Writes) -> Result<(), Halt> {
        let (source_region, destination_region, peer) = writes.route;
        let (mut batched, mut unwaited) = (0, 0);
        for iteration in 0..writes.iterations {
            for producer in (writes.first_producer..writes.producers).step_by(writes.producer_step.max(1) as usize) {
                let offset = (producer * writes.window + iteration % writes.window) * writes.stride;
                while self.engine.room() == 0 {
                    self.pump_and_poll()?;
                }
                self.engine.submit(&Command {
                    opcode: Opcode::Put,
                    source_region,
                    source_offset: offset,
                    destination_region,
                    destination_offset: offset,
                    bytes: writes.bytes,
                    peer,
                    immediate: 0,
                })?;
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
        self.settle()
    }

    /// Finishes what is in flight, in one count of tickets: also what a kernel that gave up has left behind.
    fn settle(&mut self) -> Result<(), Halt> {
        while self.engine.in_flight() > 0 {
            self.pump_and_poll()?;
        }
        Ok(())
    }

    /// As [`step`](Server::step) without the ring. Gives way and looks at the clock only when nothing moves. Halts when
    /// the thread is to stop.
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

    /// See [`Fault::Silent`].
    #[inline]
    fn rails_are_silent(&self) -> bool {
        matches!(self.fault, Some(Fault::Silent(after)) if self.commands() >= after)
    }

    fn fault_is_due(&mut self) -> bool {
        let commands = self.commands();
        match self.fault {
            Some(Fault::Vanish(after)) if commands >= after => {
                self.ring.ended = true;
                true
            }
            Some(Fault::Stop(after)) if commands >= after => {
                self.shared.stop.store(true, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// After an error: let what is in flight complete (its buffers are the NIC's until then), tell how far it got, then
    /// end every wait of the kernels.
    fn end(&mut self, stop: Status) {
        self.engine.drain();
        self.ring.ended = true;
        if let Some(consumer) = &self.ring.consumer {
            consumer.publish_watermark(self.engine.watermark());
            consumer.publish_status(stop);
        }
    }
}

impl<R: Rail> Orders for Server<'_, R> {
    fn connect(&mut self, addresses: &[Vec<Vec<u8>>], regions: &[Vec<Vec<RemoteRegion>>]) -> Result<(), Halt> {
        let rails = self.engine.rails().len();
        if let Some(peer) = addresses.iter().position(|peer| peer.len() != rails) {
            let theirs = addresses[peer].len();
            let text = format!("peer {peer} has {theirs} rails and this rank {rails}");
            return Err(Some(EngineError::Refused(text)));
        }
        for (index, rail) in self.engine.rails_mut().enumerate() {
            let of_rail: Vec<Vec<u8>> = addresses.iter().map(|peer| peer[index].clone()).collect();
            rail.insert_peers(&of_rail).map_err(EngineError::from)?;
        }
        Ok(self.engine.set_peers(regions)?)
    }

    fn configure(&mut self, rails: usize, strategy: Strategy) -> Result<(), Halt> {
        self.engine.configure(rails, strategy);
        Ok(())
    }

    /// The CPU-initiated writes: the grid's puts in the grid's order, without a ring.
    fn write(&mut self, writes: &Writes) -> Result<Duration, Halt> {
        self.settle()?;
        let ring_tickets = self.engine.suspend();
        let started = Instant::now();
        let result = self.write_all(writes);
        let elapsed = started.elapsed();
        self.engine.resume(ring_tickets);
        result.map(|()| elapsed)
    }

    fn bare_write(&mut self, route: (u32, u32, u32), bytes: u64, count: u64) -> Result<Option<Duration>, Halt> {
        self.settle()?;
        Ok(self.engine.bare_writes(route, bytes, count)?.map(Duration::from_secs_f64))
    }

    /// CPU-initiated commands, without a ring.
    fn put(&mut self, commands: &[Command]) -> Result<(), Halt> {
        self.settle()?;
        let ring_tickets = self.engine.suspend();
        let posted = commands.iter().try_for_each(|command| {
            while self.engine.room() == 0 {
                self.pump_and_poll()?;
            }
            Ok(self.engine.submit(command).map(drop)?)
        });
        let settled = posted.and_then(|()| self.settle());
        self.engine.resume(ring_tickets);
        settled
    }

    fn answer_flags(&mut self, words: &HostWords) -> Result<(), Halt> {
        let (mut answered, mut giving) = (0, GivingWay::every(EMPTY_POLLS_BEFORE_YIELD));
        while self.shared.answering.load(Ordering::Relaxed) && !self.shared.stop.load(Ordering::Relaxed) {
            if answer_flag(words, &mut answered) {
                giving.moved();
            } else if self.yields {
                giving.in_vain();
            }
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Snapshot, Halt> {
        Ok(Snapshot {
            commands: self.engine.commands(),
            counters: self.engine.counters(),
            signals: self.engine.signals(),
        })
    }

    fn trace(&mut self, sampling: Option<Sampling>) -> Result<Vec<Times>, Halt> {
        let rails = self.engine.rails().len();
        let begun = sampling.map(|sampling| Box::new(Trace::new(sampling, rails, self.published)));
        let ended = std::mem::replace(&mut self.trace, begun);
        Ok(ended.map(|trace| trace.finish()).unwrap_or_default())
    }
}

/// The command with its last byte left out.
fn one_byte_short(words: [u64; 4]) -> [u64; 4] {
    let Some(mut command) = Command::decode(words) else { return words };
    command.bytes = command.bytes.saturating_sub(1);
    command.encode()
}
