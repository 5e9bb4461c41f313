//! Whole proxy threads over faulty rails, driven by kernels on the emulated device or by test threads that use the
//! device API themselves.
//!
//! Staging (device memory copied through pinned host memory) needs a GPU and is not tested here.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use ginlab::cuda::{Buffer, Device, MemoryLocation};
use ginlab::fabric::discover::{self, Reach};
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::fabric::null::{NullCounts, NullRail, transfer_checksum};
use ginlab::fabric::testing::faulty::{FaultyRail, RailFaults};
use ginlab::fabric::testing::layer::{Layer, Layered, Posting};
use ginlab::fabric::{Access, Completion, FabricError, MemoryRange, Rail};
use ginlab::measure::MeasureError;
use ginlab::measure::ping_pong::{Flag, round_trip};
use ginlab::proxy::engine::{Engine, SignalRule};
use ginlab::proxy::signal_order::unpolled;
use ginlab::proxy::{Proxy, ProxyError, ProxyFault, ProxyThreadOptions, Writes, device_timeout};
use ginlab::rails::strategy::Strategy;
use ginlab::ring::{RingMemory, RingTable};
use kernels::command::{Command, MOST_ADDED, Opcode, SIGNALS};
use kernels::put_batch::{BatchedPutArgs, PUT_BATCHED_KERNEL};
use kernels::put_kernel::{BlockResult, PUT_KERNEL, PutArgs, SCOPE_BLOCK, SCOPE_THREAD};
use kernels::put_kernel::{Put, PutChannel};
use kernels::ring::Status;
use kernels::ring::consumer::Consumer;
use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Deadline of the kernels, much longer than anything that should end them earlier.
const DEADLINE: Duration = Duration::from_secs(20);
/// The proxy's timeout in tests that must not reach it.
const AMPLE: Duration = Duration::from_secs(10);
/// The proxy's timeout in tests that must reach it.
const SHORT: Duration = Duration::from_millis(400);
const KIB: usize = 1024;

// --- setting up ------------------------------------------------------------------------------------------------------

/// Starts a proxy over the rails that `open` returns, on a shared core.
fn start<R, F>(options: Options, consumer: Consumer, memories: Vec<MemoryRange>, open: F) -> Result<Proxy, ProxyError>
where
    R: Rail + 'static,
    F: FnOnce() -> Vec<R> + Send + 'static,
{
    let setup = ProxyThreadOptions {
        shares_core: true,
        fault: options.fault,
        consumer: Some(consumer),
        ..ProxyThreadOptions::default()
    };
    Proxy::start(setup, options.timeout, move || {
        let mut engine = Engine::new(open(), options.window, options.timeout);
        engine.set_signals(SignalRule { me: options.me, ranks: 2, ..SignalRule::default() })?;
        // SAFETY: the `World` keeps the buffers longer than its proxy.
        let regions = memories.iter().map(|&memory| unsafe { engine.register(memory, Access::ALL, None) });
        let regions = regions.collect::<Result<_, _>>()?;
        Ok((engine, regions))
    })
}

#[derive(Clone, Copy)]
struct Options {
    slots: usize,
    bytes: usize,
    window: usize,
    /// Timeout of the proxy.
    timeout: Duration,
    /// Deadline of the kernels.
    deadline: Duration,
    fault: Option<ProxyFault>,
    /// This rank, of at most two.
    me: usize,
}

const USUAL: Options =
    Options { slots: 256, bytes: 256 * KIB, window: 1024, timeout: AMPLE, deadline: DEADLINE, fault: None, me: 0 };

const SOURCE: u32 = 0;
const DESTINATION: u32 = 1;

/// A proxy with its ring and two regions. Fields are dropped in this order.
struct World {
    proxy: Proxy,
    ring: RingMemory,
    source: Buffer,
    destination: Buffer,
}

impl World {
    fn start<R, F>(options: Options, open: F) -> World
    where
        R: Rail + 'static,
        F: FnOnce() -> Vec<R> + Send + 'static,
    {
        let device = Device::Emulated;
        let ring = RingMemory::new(&device, options.slots, options.deadline).unwrap();
        let source = device.allocate(MemoryLocation::Device, options.bytes).unwrap();
        let destination = device.allocate(MemoryLocation::Host, options.bytes).unwrap();
        let memory =
            |buffer: &Buffer| MemoryRange { address: buffer.address(), bytes: buffer.bytes(), cuda_device: None };
        // SAFETY: the consumer is taken once, and the world keeps the ring longer than its proxy.
        let consumer = unsafe { ring.consumer() };
        let proxy = start(options, consumer, vec![memory(&source), memory(&destination)], open).unwrap();
        World { proxy, ring, source, destination }
    }

    /// Creates a world whose only peer is itself.
    fn alone<R, F>(options: Options, open: F) -> World
    where
        R: Rail + 'static,
        F: FnOnce() -> Vec<R> + Send + 'static,
    {
        let world = World::start(options, open);
        connect(&[&world]);
        world
    }

    /// Waits for the failure that ended the proxy, and returns it.
    fn failure(&self) -> String {
        let end = Instant::now() + AMPLE;
        loop {
            if let Some(failure) = self.proxy.failure() {
                return failure.to_string();
            }
            assert!(Instant::now() < end, "the proxy has not failed");
            std::thread::yield_now();
        }
    }

    /// Returns the watermark that the kernels see.
    fn watermark(&self) -> u64 {
        let state = self.ring.state();
        let rest = state.split("watermark ").nth(1).unwrap();
        rest.split(',').next().unwrap().parse().unwrap()
    }
}

/// Connects the worlds as peers 0, 1, ...
fn connect(worlds: &[&World]) {
    for world in worlds {
        let addresses = worlds.iter().map(|peer| peer.proxy.offer().addresses.clone()).collect();
        let regions = worlds.iter().map(|peer| peer.proxy.offer().regions.clone()).collect();
        world.proxy.connect(addresses, regions).unwrap();
    }
}

fn put_to(peer: u32, offset: u64, bytes: u64) -> Put {
    Put {
        source_region: SOURCE,
        source_offset: offset,
        destination_region: DESTINATION,
        destination_offset: offset,
        bytes,
        peer,
    }
}

/// Parameters of a launch of the put kernel.
#[derive(Clone, Copy)]
struct Grid {
    grid: u32,
    block: u32,
    scope: u32,
    bytes: u64,
    window: u32,
    iterations: u32,
    quiet_every: u32,
    peer: u32,
    /// Number of payloads that a block writes between two barriers.
    ahead: u32,
    /// Number of puts per batch, or 0 for the put kernel without batches.
    batch: u32,
}

impl Grid {
    fn producers(&self) -> u64 {
        self.grid as u64 * if self.scope == SCOPE_THREAD { self.block as u64 } else { 1 }
    }

    fn stride(&self) -> u64 {
        self.bytes.next_multiple_of(16)
    }

    /// Runs the grid to completion. Returns the blocks' results.
    fn run(&self, worlds: &[&World]) -> Vec<BlockResult> {
        self.run_while(worlds, || {})
    }

    /// Like `run`, but calls `meanwhile` while the grid runs.
    fn run_while(&self, worlds: &[&World], meanwhile: impl FnOnce()) -> Vec<BlockResult> {
        let device = Device::Emulated;
        // Only the descriptions of the rings; the worlds keep the memory.
        let rings: Vec<kernels::ring::Ring> = worlds.iter().map(|world| world.ring.ring()).collect();
        let slots = self.producers() * self.window as u64;
        assert!(slots * self.stride() <= worlds[0].source.bytes() as u64);
        let tickets = device.allocate(MemoryLocation::Device, slots as usize * 8).unwrap();
        let results = device.allocate(MemoryLocation::Device, self.grid as usize * size_of::<BlockResult>()).unwrap();
        let args = PutArgs {
            rings: rings.as_ptr(),
            ring_count: rings.len() as u32,
            scope: self.scope,
            source: worlds[0].source.pointer(),
            source_region: SOURCE,
            destination_region: DESTINATION,
            peer: self.peer,
            rank: 0,
            bytes: self.bytes,
            stride: self.stride(),
            window: self.window,
            iterations: self.iterations,
            first_iteration: 0,
            quiet_every: self.quiet_every,
            fill: 1,
            ahead: self.ahead,
            tickets: tickets.pointer(),
            results: results.pointer(),
        };
        // SAFETY: the memory has the size that the kernel requires, and the launch ends below.
        let launch = unsafe {
            match self.batch {
                0 => device.launch(&PUT_KERNEL, self.grid, self.block, args),
                batch => device.launch(&PUT_BATCHED_KERNEL, self.grid, self.block, BatchedPutArgs { put: args, batch }),
            }
        }
        .unwrap();
        meanwhile();
        launch.wait(|| Ok::<(), ginlab::cuda::DeviceError>(())).unwrap();
        let mut values = vec![BlockResult::default(); self.grid as usize];
        results.read(0, &mut values).unwrap();
        values
    }

    /// Returns the sum of the null rails' checksums if each put arrives once.
    fn checksum(&self) -> u64 {
        let slots = self.producers() * self.window as u64;
        let per_slot = (self.iterations / self.window) as u64;
        let of_slot = |slot: u64| transfer_checksum(slot * self.stride(), slot * self.stride(), self.bytes);
        (0..slots).fold(0u64, |sum, slot| sum.wrapping_add(of_slot(slot).wrapping_mul(per_slot)))
    }

    /// Returns the number of wrong bytes at the target after the last iteration.
    fn wrong(&self, target: &World) -> usize {
        let mut wrong = 0;
        for producer in 0..self.producers() {
            for slot in 0..self.window {
                let number = producer * self.window as u64 + slot as u64;
                let last = self.iterations - self.window + slot;
                let mut bytes = vec![0u8; self.bytes as usize];
                target.destination.read((number * self.stride()) as usize, &mut bytes).unwrap();
                let seed = kernels::pattern::seed(0, last, number as u32);
                let differs = |(at, byte): (usize, &u8)| *byte != kernels::pattern::byte(seed, at as u64);
                wrong += bytes.iter().enumerate().filter(|&pair| differs(pair)).count();
            }
        }
        wrong
    }
}

const GRID: Grid = Grid {
    grid: 4,
    block: 2,
    scope: SCOPE_BLOCK,
    bytes: 200,
    window: 4,
    iterations: 40,
    quiet_every: 0,
    peer: 0,
    ahead: 1,
    batch: 0,
};

fn stops(results: &[BlockResult]) -> Vec<u64> {
    results.iter().map(|result| result.stop).collect()
}

/// Returns `rails` null rails and their counters.
fn nulls(rails: usize) -> (NullCounts, impl FnOnce() -> Vec<NullRail> + Send + 'static) {
    let counts = NullCounts::default();
    let theirs = counts.clone();
    (counts, move || (0..rails).map(|_| NullRail::counted_by(&theirs)).collect())
}

fn counted(counts: &NullCounts) -> (u64, u64, u64) {
    let sum = counts.sum();
    (sum.transfers, sum.bytes, sum.checksum)
}

fn faulty(faults: RailFaults) -> FaultyRail<NullRail> {
    FaultyRail::new(NullRail::new(), faults)
}

/// Events of a rail, as seen from outside the proxy's thread.
#[derive(Default)]
struct Log {
    posted: Vec<u64>,
    completed: HashSet<u64>,
    failed: Vec<u64>,
}

type Seen = Arc<Mutex<Log>>;

/// Called by a [`Watched`] rail before each poll.
type AtPoll = Box<dyn FnMut() + Send>;

/// Keeps a log of a rail, and may act at each poll.
struct Watching {
    seen: Seen,
    at_poll: AtPoll,
    /// Polls fail after this many transfers have been posted.
    dies_after: usize,
}

type Watched<R> = Layered<R, Watching>;

fn watched<R: Rail>(inner: R, seen: &Seen) -> Watched<R> {
    Layered::over(inner, Watching { seen: seen.clone(), at_poll: Box::new(|| {}), dies_after: usize::MAX })
}

impl Layer for Watching {
    fn after_post(&mut self, posting: Posting<'_>) {
        if let Posting::Write(transfer) | Posting::Read(transfer) = posting {
            self.seen.lock().unwrap().posted.push(transfer.token);
        }
    }

    fn before_poll(&mut self, _: &str) -> Result<(), FabricError> {
        (self.at_poll)();
        Ok(())
    }

    fn after_poll(&mut self, _: &str, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        let mut log = self.seen.lock().unwrap();
        if log.posted.len() >= self.dies_after {
            return Err(FabricError {
                rail: "dead".into(),
                operation: "poll".into(),
                code: 5,
                text: "the provider's own words".into(),
                hint: String::new(),
            });
        }
        for completion in completions.iter() {
            match completion {
                Completion::Done { token } => {
                    log.completed.insert(*token);
                }
                Completion::Failed { token, .. } => log.failed.extend(token),
                Completion::Immediate { .. } | Completion::Received { .. } => {}
            }
        }
        Ok(())
    }
}

/// Creates a gate that a rail waits at: the proxy's thread hangs in the provider until the sender is used or dropped.
fn gate() -> (Sender<()>, Receiver<()>) {
    channel()
}

// --- "again" ---------------------------------------------------------------------------------------------------------

#[test]
fn repeated_eagain_succeeds_and_is_counted() {
    for strategy in [Strategy::Single, Strategy::RoundRobin, Strategy::Split] {
        let storm = RailFaults { again_first: 500, again_every: Some(3), ..Default::default() };
        let (counts, rails) = nulls(4);
        let stormy = move |rail| FaultyRail::new(rail, storm.clone());
        let world = World::alone(USUAL, move || rails().into_iter().map(stormy).collect());
        world.proxy.configure(4, strategy).unwrap();
        let results = GRID.run(&[&world]);
        assert_eq!(stops(&results), [0; 4], "{:?}", world.proxy.failure());
        let snapshot = world.proxy.snapshot().unwrap();
        let puts = GRID.producers() * GRID.iterations as u64;
        // Puts of 200 bytes are too small to be split.
        assert_eq!(counted(&counts), (puts, puts * GRID.bytes, GRID.checksum()));
        assert!(snapshot.counters.again > 500, "{strategy}: {}", snapshot.counters.again);
        assert_eq!(snapshot.counters.rail_bytes.iter().sum::<u64>(), puts * GRID.bytes);
        assert_eq!(snapshot.commands, puts);
    }
}

#[test]
fn endless_eagain_is_reported_as_stall() {
    let options = Options { timeout: SHORT, ..USUAL };
    let world = World::alone(options, || vec![faulty(RailFaults { again_first: u64::MAX, ..Default::default() })]);
    let results = GRID.run(&[&world]);
    assert_eq!(stops(&results), [Status::FABRIC.0; 4]);
    let failure = world.failure();
    assert!(failure.contains("no progress for") && failure.contains("above watermark 0"), "{failure}");
    assert!(
        failure.contains("null posted 0 B") && failure.contains("waiting to be posted, the first for peer 0"),
        "{failure}"
    );
    assert!(world.proxy.snapshot().unwrap_err().to_string().contains("no progress"), "the reason stays");
}

/// Kernel and proxy with a user's default timeouts: the user must receive the proxy's diagnosis.
#[test]
fn rail_without_completions_stalls_before_kernel_deadline() {
    for quiet_every in [1, 0] {
        let options = Options { timeout: SHORT, deadline: device_timeout(SHORT), ..USUAL };
        let world = World::alone(options, || vec![faulty(RailFaults { delay_polls: u64::MAX, ..Default::default() })]);
        let results = Grid { quiet_every, ..GRID }.run(&[&world]);
        assert_eq!(stops(&results), [Status::FABRIC.0; 4], "{}", world.ring.state());
        let failure = world.proxy.failure().unwrap();
        assert!(failure.is_timeout(), "{failure}");
        let failure = failure.to_string();
        let parts = [
            "no progress for ",
            " commands in flight above watermark 0",
            "transfers posted but not complete",
            "rails: null posted ",
        ];
        assert!(parts.iter().all(|part| failure.contains(part)), "{failure}");
    }
}

/// The kernels' deadline restarts with progress: a long queue takes longer than any single step of it.
#[test]
fn long_queue_does_not_exceed_kernel_deadline() {
    const STEP: Duration = Duration::from_millis(50);
    const PUTS: u64 = 60;
    let deadline = Duration::from_secs(2);
    let world = World::alone(Options { deadline, window: 1, ..USUAL }, || {
        let mut rail = watched(NullRail::new(), &Seen::default());
        let (seen, mut known) = (rail.layer.seen.clone(), 0);
        // One put at a time, each of which completes one step after it was posted.
        rail.layer.at_poll = Box::new(move || {
            let posted = seen.lock().unwrap().posted.len();
            if posted > known {
                known = posted;
                let since = Instant::now();
                while since.elapsed() < STEP {
                    std::thread::yield_now();
                }
            }
        });
        vec![rail]
    });
    let ring = world.ring.ring();
    let mut channel = PutChannel::new(ring);
    let started = Instant::now();
    for _ in 0..PUTS {
        channel.put_nbi(&put_to(0, 0, 8)).unwrap();
    }
    assert_eq!(channel.quiet(), Ok(()), "{}", world.ring.state());
    assert!(started.elapsed() > deadline, "the queue was not long: {:?}", started.elapsed());
}

/// Empty puts complete over every rail, whether the GPU or the CPU initiates them.
#[test]
fn empty_puts_complete() {
    let (counts, rails) = nulls(3);
    let world = World::alone(USUAL, rails);
    for strategy in [Strategy::Single, Strategy::RoundRobin, Strategy::Split, Strategy::Auto { threshold: 0 }] {
        world.proxy.configure(3, strategy).unwrap();
        let results = Grid { bytes: 0, ..GRID }.run(&[&world]);
        assert_eq!(stops(&results), [0; 4], "{strategy}: {:?}", world.proxy.failure());
        let route = (SOURCE, DESTINATION, 0);
        let (first_producer, producer_step, producers, window, iterations) = (0, 1, 4, 2, 10);
        let writes = Writes {
            first_producer,
            producer_step,
            producers,
            window,
            iterations,
            quiet_every: 0,
            bytes: 0,
            stride: 0,
            route,
        };
        world.proxy.write(writes).unwrap();
    }
    assert_eq!(counted(&counts).0, 0);
}

#[test]
fn full_rail_does_not_delay_others() {
    let seen = Seen::default();
    let log = seen.clone();
    let world = World::alone(USUAL, move || {
        let full = faulty(RailFaults { again_first: u64::MAX, ..Default::default() });
        vec![watched(full, &Seen::default()), watched(faulty(RailFaults::default()), &log)]
    });
    world.proxy.configure(2, Strategy::RoundRobin).unwrap();
    let ring = world.ring.ring();
    let mut channel = PutChannel::new(ring);
    for _ in 0..20 {
        channel.put_nbi(&put_to(0, 0, 8)).unwrap();
    }
    let end = Instant::now() + AMPLE;
    // Rail 1 has the odd tickets.
    while seen.lock().unwrap().completed.len() < 10 {
        assert!(Instant::now() < end, "{}", world.ring.state());
        std::thread::yield_now();
    }
    assert_eq!(seen.lock().unwrap().completed, (0..20).filter(|ticket| ticket % 2 == 1).collect());
    assert_eq!(world.watermark(), 0, "ticket 0 waits for the full rail");
    drop(world.proxy);
    assert_eq!(channel.quiet(), Err(Status::STOPPED));
}

// --- failures --------------------------------------------------------------------------------------------------------

#[test]
fn failed_completion_ends_kernel_and_drains() {
    let seen = Seen::default();
    let log = seen.clone();
    let world = World::alone(USUAL, move || {
        // Delays completions, so that many puts are in flight when the third one fails.
        let faults = RailFaults { fail_completions: vec![3], delay_polls: 50, ..Default::default() };
        vec![watched(faulty(faults), &log)]
    });
    let ring = world.ring.ring();
    let mut channel = PutChannel::new(ring);
    for _ in 0..30 {
        channel.put_nbi(&put_to(0, 0, 8)).unwrap();
    }
    assert_eq!(channel.quiet(), Err(Status::FABRIC));
    {
        let log = seen.lock().unwrap();
        assert_eq!(log.failed, [2]);
        assert_eq!(log.completed.len() + 1, log.posted.len(), "in flight when the kernel was told");
    }
    assert_eq!(world.watermark(), 2, "never past the failed ticket");
    let failure = world.failure();
    assert!(failure.contains("scripted fault") && failure.contains("rail null: completion 3"), "{failure}");
    assert_eq!(channel.quiet_until(1), Ok(()), "what lies below the watermark is done all the same");
    // The reason remains available after the thread has exited.
    drop(world.proxy);
    assert_eq!(channel.quiet_until(2), Err(Status::FABRIC));
}

#[test]
fn dead_rail_ends_kernel_and_drains_others() {
    let seen = Seen::default();
    let log = seen.clone();
    let world = World::alone(USUAL, move || {
        let silent = faulty(RailFaults { delay_polls: u64::MAX, ..Default::default() });
        let mut dead = watched(silent, &Seen::default());
        dead.layer.dies_after = 5;
        vec![dead, watched(faulty(RailFaults { delay_polls: 100, ..Default::default() }), &log)]
    });
    world.proxy.configure(2, Strategy::RoundRobin).unwrap();
    let results = GRID.run(&[&world]);
    assert_eq!(stops(&results), [Status::FABRIC.0; 4]);
    let failure = world.failure();
    assert!(failure.contains("rail dead: poll failed: the provider's own words (5)"), "{failure}");
    let log = seen.lock().unwrap();
    assert!(!log.posted.is_empty());
    assert_eq!(log.completed.len(), log.posted.len(), "rail 1 was not drained");
}

#[test]
fn initially_dead_rail_fails_every_order() {
    let options = Options { timeout: AMPLE, ..USUAL };
    let world = World::start(options, || vec![faulty(RailFaults { dead_from_poll: Some(1), ..Default::default() })]);
    let failure = world.failure();
    assert!(failure.contains("rail null: poll failed: scripted fault"), "{failure}");
    assert_eq!(world.proxy.snapshot().unwrap_err().to_string(), failure);
    assert_eq!(world.proxy.configure(1, Strategy::Split).unwrap_err().to_string(), failure);
    let ring = world.ring.ring();
    assert_eq!(PutChannel::new(ring).put(&put_to(0, 0, 8)), Err(Status::FABRIC));
}

#[test]
fn panicking_rail_ends_kernel_and_proxy() {
    let world = World::alone(USUAL, || {
        let mut rail = watched(NullRail::new(), &Seen::default());
        let seen = rail.layer.seen.clone();
        rail.layer.at_poll = Box::new(move || {
            let posted = seen.lock().unwrap().posted.len();
            assert!(posted < 10, "expected by the test: this rail panics");
        });
        vec![rail]
    });
    let results = Grid { grid: 8, ..GRID }.run(&[&world]);
    assert_eq!(stops(&results), [Status::STOPPED.0; 8]);
    assert_eq!(world.failure(), ProxyError::Gone.to_string());
    assert_eq!(world.proxy.failure(), Some(ProxyError::Gone));
    assert_eq!(world.proxy.snapshot().unwrap_err(), ProxyError::Gone);
}

#[test]
fn panic_while_opening_rail_is_reported() {
    let device = Device::Emulated;
    let ring = RingMemory::new(&device, 2, DEADLINE).unwrap();
    // SAFETY: the consumer is taken once, and the ring outlives the proxy, which never starts.
    let consumer = unsafe { ring.consumer() };
    let open = || -> Vec<NullRail> { panic!("expected by the test: this rail does not open") };
    assert_eq!(start(Options { window: 2, ..USUAL }, consumer, Vec::new(), open).unwrap_err(), ProxyError::Gone);
}

// --- order -----------------------------------------------------------------------------------------------------------

#[test]
fn watermark_waits_for_preceding_tickets() {
    let seen = Seen::default();
    let log = seen.clone();
    let world = World::alone(USUAL, move || {
        let late = |delay_polls| {
            let faults = RailFaults { delay_polls, reverse: true, again_every: Some(4), ..Default::default() };
            watched(faulty(faults), &log)
        };
        vec![late(0), late(7), late(1), late(20)]
    });
    world.proxy.configure(4, Strategy::RoundRobin).unwrap();
    let ring = world.ring.ring();
    let mut channel = PutChannel::new(ring);
    let mut first = 0;
    for round in 0..100u64 {
        let mut last = 0;
        for _ in 0..=round % 13 {
            last = channel.put_nbi(&put_to(0, 8 * round, 8)).unwrap();
        }
        let middle = first + (last - first) / 2;
        for ticket in [middle, last] {
            channel.quiet_until(ticket).unwrap();
            let log = seen.lock().unwrap();
            assert!((0..=ticket).all(|below| log.completed.contains(&below)), "quiet until {ticket} came too early");
        }
        first = last;
    }
}

// --- refused commands ------------------------------------------------------------------------------------------------

#[test]
fn invalid_commands_are_rejected_without_posting() {
    let good = Command::put((SOURCE, 0), (DESTINATION, 0), 64, 0);
    let bytes = USUAL.bytes as u64;
    let get = Command { opcode: Opcode::Get, source_region: DESTINATION, destination_region: SOURCE, ..good };
    let bad = [
        ("unknown source region", Command { source_region: 2, ..good }.encode()),
        ("unknown destination region", Command { destination_region: 2047, ..good }.encode()),
        ("source outside", Command { source_offset: bytes - 63, ..good }.encode()),
        ("destination outside", Command { destination_offset: bytes - 63, ..good }.encode()),
        ("far outside", Command { source_offset: (1 << 48) - 1, bytes: (1 << 48) - 1, ..good }.encode()),
        ("too long", Command { bytes: bytes + 1, ..good }.encode()),
        ("no such peer", Command { peer: 1, ..good }.encode()),
        ("last peer", Command { peer: (1 << 15) - 1, ..good }.encode()),
        ("get from an unknown region", Command { source_region: 5, ..get }.encode()),
        ("get outside", Command { destination_offset: bytes, ..get }.encode()),
        ("signal that adds too much", Command { opcode: Opcode::Signal, immediate: MOST_ADDED << 12, ..good }.encode()),
        ("put with a signal that is none", Command { opcode: Opcode::PutSignal, immediate: u32::MAX, ..good }.encode()),
        ("opcode 0", [0, 0, 64, 0]),
        ("a value where none are accepted", Command { opcode: Opcode::PutValue, bytes: 8, ..good }.encode()),
        ("opcode 6", [6 << 59, 1 << 48, 64, 0]),
        ("opcode 15", [15 << 59, 1 << 48, 64, 0]),
        ("reserved bits of word 1", [1 << 59, 1 << 59 | 1 << 48, 64, 0]),
        ("reserved bits of word 3", [1 << 59, 1 << 48, 64, 1 << 32]),
    ];
    for (what, words) in bad {
        let seen = Seen::default();
        let log = seen.clone();
        let world = World::alone(USUAL, move || vec![watched(NullRail::new(), &log)]);
        let ring = world.ring.ring();
        let mut channel = PutChannel::new(ring);
        channel.put(&put_to(0, 0, 8)).unwrap();
        let started = Instant::now();
        let ticket = push_words(&world.ring, words);
        assert_eq!(channel.quiet_until(ticket), Err(Status::REFUSED), "{what}");
        assert!(started.elapsed() < AMPLE / 2, "{what}: nothing was in flight to wait for");
        assert_eq!(world.watermark(), 1, "{what}");
        assert_eq!(seen.lock().unwrap().posted, [0], "{what}");
        assert!(world.failure().contains("refused"), "{what}: {}", world.failure());
        // Later pushes fail as well, at the latest when the ring is full.
        let end = (0..=USUAL.slots).find_map(|_| channel.put(&put_to(0, 0, 8)).err());
        assert_eq!(end, Some(Status::REFUSED), "{what}");
    }
}

/// Pushes words that [`Command`] cannot encode, as [`push`](kernels::ring::Ring::push) would.
fn push_words(memory: &RingMemory, words: [u64; 4]) -> u64 {
    use kernels::ring::producer::Fence;
    memory.ring().push_words(Fence::Payload, words, &mut ()).expect("a fresh ring")
}

#[test]
fn peer_with_different_rail_count_is_rejected() {
    let world = World::start(USUAL, || vec![NullRail::new(), NullRail::new()]);
    let offer = world.proxy.offer().clone();
    let error = world.proxy.connect(vec![vec![Vec::new()]], vec![offer.regions]).unwrap_err();
    assert!(error.to_string().contains("peer 0 has 1 rails, but this rank has 2"), "{error}");
}

// --- over a real provider --------------------------------------------------------------------------------------------

fn tcp_rails(count: usize, faults: RailFaults) -> impl FnMut() -> Vec<FaultyRail<LibfabricRail>> + Send + 'static {
    move || {
        let choice = discover::choose_provider(Some("tcp")).unwrap();
        let plan = discover::select_domains(&choice.provider, count, Reach::SameHost, &[], None, 0, 1).unwrap();
        let open =
            |domain| FaultyRail::new(LibfabricRail::open(domain, &RailOptions::default()).unwrap(), faults.clone());
        plan.domains.iter().map(open).collect()
    }
}

/// Two proxies in this process; the first has these faults.
fn tcp_pair(options: Options, rails: usize, faults: RailFaults) -> (World, World) {
    let a = World::start(options, tcp_rails(rails, faults));
    let b = World::start(Options { me: 1, ..options }, tcp_rails(rails, RailFaults::default()));
    for world in [&a, &b] {
        // The address is a sockaddr_in: family, port, address. Tests never leave the machine.
        world.proxy.offer().addresses.iter().for_each(|address| assert_eq!(address[4..8], [127, 0, 0, 1]));
    }
    connect(&[&a, &b]);
    (a, b)
}

#[test]
fn puts_over_tcp_survive_faults() {
    let faults =
        RailFaults { again_first: 50, again_every: Some(5), delay_polls: 3, reverse: true, ..Default::default() };
    let (a, b) = tcp_pair(USUAL, 2, faults);
    for (strategy, scope, quiet_every) in [
        (Strategy::Split, SCOPE_BLOCK, 0),
        (Strategy::RoundRobin, SCOPE_THREAD, 0),
        (Strategy::Auto { threshold: 4096 }, SCOPE_BLOCK, 1),
    ] {
        a.proxy.configure(2, strategy).unwrap();
        let grid = Grid { bytes: 8195, window: 2, iterations: 6, grid: 2, scope, quiet_every, peer: 1, ..GRID };
        // SAFETY: nothing is in flight between launches.
        unsafe { b.destination.host_bytes() }.unwrap().fill(0xEE);
        let results = grid.run(&[&a]);
        assert_eq!(stops(&results), [0; 2], "{:?}", a.proxy.failure());
        assert_eq!(grid.wrong(&b), 0, "{strategy}");
    }
    // Payloads that are written before earlier ones have been sent, by blocks with a partial warp.
    for (window, ahead, batch) in [(2, 1, 0), (8, 3, 0), (8, 4, 0), (8, 1, 3), (8, 1, 4), (64, 1, 32)] {
        a.proxy.configure(2, Strategy::Auto { threshold: 4096 }).unwrap();
        let grid = Grid { bytes: 131, block: 70, window, ahead, batch, iterations: window * 3, peer: 1, ..GRID };
        // SAFETY: nothing is in flight between launches.
        unsafe { b.destination.host_bytes() }.unwrap().fill(0xEE);
        assert_eq!(stops(&grid.run(&[&a])), [0; 4], "{:?}", a.proxy.failure());
        assert_eq!(grid.wrong(&b), 0, "{window} {ahead} {batch}");
    }
    assert!(a.proxy.snapshot().unwrap().counters.again > 50);
}

#[test]
fn target_counts_signals_after_their_bytes() {
    let (a, b) = tcp_pair(USUAL, 2, RailFaults::default());
    a.proxy.configure(2, Strategy::Split).unwrap();
    pattern_into(&a.source, 5);
    let mut ring = a.ring.ring();
    let mut channel = PutChannel::new(ring);
    let signal = Command::signal(1, SIGNALS - 1);
    for _ in 0..3 {
        channel.put_signal_nbi(&put_to(1, 0, 100_000), 7).unwrap();
        channel.quiet_until(ring.push(&signal).unwrap()).unwrap();
    }
    let end = Instant::now() + AMPLE;
    loop {
        let signals = b.proxy.snapshot().unwrap().signals;
        let last = signals[SIGNALS as usize - 1];
        if signals[7] == 3 && last == 3 {
            assert_eq!(signals.iter().sum::<u64>(), 6);
            break;
        }
        assert!(Instant::now() < end, "signals: {} and {last}", signals[7]);
        std::thread::yield_now();
    }
    assert_eq!(same(&a.source, &b.destination, 100_000), Ok(()));
    assert_eq!(a.proxy.snapshot().unwrap().signals.iter().sum::<u64>(), 0);
}

#[test]
fn get_moves_bytes_from_target() {
    let (a, b) = tcp_pair(USUAL, 2, RailFaults { reverse: true, delay_polls: 2, ..Default::default() });
    a.proxy.configure(2, Strategy::Split).unwrap();
    pattern_into(&b.destination, 11);
    let get = Command::get((DESTINATION, 0), (SOURCE, 0), 150_001, 1);
    let mut ring = a.ring.ring();
    let mut channel = PutChannel::new(ring);
    channel.quiet_until(ring.push(&get).unwrap()).unwrap();
    assert_eq!(same(&b.destination, &a.source, 150_001), Ok(()));
    let mut behind = [0u8; 16];
    a.source.read(150_001, &mut behind).unwrap();
    assert_eq!(behind, [0; 16], "nothing behind the last byte");
}

#[test]
fn vanished_target_ends_kernel() {
    let (a, b) = tcp_pair(Options { timeout: Duration::from_secs(1), ..USUAL }, 1, RailFaults::default());
    let ring = a.ring.ring();
    let mut channel = PutChannel::new(ring);
    channel.put(&put_to(1, 0, 4096)).unwrap();
    drop(b);
    let stop = (0..1000).find_map(|_| channel.put(&put_to(1, 0, 4096)).err());
    assert_eq!(stop, Some(Status::FABRIC));
    let failure = a.failure();
    // No error occurs if the provider reconnects, during which it returns "again", or if the write was accepted just
    // before the connection broke. The proxy then reports a stall.
    let stalled =
        failure.contains("no progress") && failure.contains("1 commands in flight") && failure.contains("tcp");
    assert!(stalled || failure.contains("fi_write of 4096 B to peer 1"), "{failure}");
}

fn pattern_into(buffer: &Buffer, seed: u64) {
    // SAFETY: nothing is in flight yet.
    let bytes = unsafe { buffer.host_bytes() }.unwrap();
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = kernels::pattern::byte(seed, at as u64);
    }
}

fn same(one: &Buffer, other: &Buffer, bytes: usize) -> Result<(), usize> {
    let (mut a, mut b) = (vec![0u8; bytes], vec![0u8; bytes]);
    one.read(0, &mut a).unwrap();
    other.read(0, &mut b).unwrap();
    a.iter().zip(&b).position(|(a, b)| a != b).map_or(Ok(()), Err)
}

/// Two engines on one thread, so that the test controls when the target polls.
#[test]
fn credits_limit_sends_to_idle_target() {
    const SIGNALS: u64 = 5000;
    let room = unpolled(2);
    let choice = discover::choose_provider(Some("tcp")).unwrap();
    let plan = discover::select_domains(&choice.provider, 1, Reach::SameHost, &[], None, 0, 1).unwrap();
    let options = RailOptions { immediates: Some(room), ..Default::default() };
    let memory = Device::Emulated.allocate(MemoryLocation::Host, 64).unwrap();
    let mut engines: Vec<_> = (0..2)
        .map(|me| {
            let mut engine = Engine::new(vec![LibfabricRail::open(&plan.domains[0], &options).unwrap()], 8192, AMPLE);
            engine.set_signals(SignalRule { me, ranks: 2, ..SignalRule::default() }).unwrap();
            engine
        })
        .collect();
    let addresses: Vec<Vec<u8>> =
        engines.iter().map(|engine| engine.rails().next().unwrap().address().unwrap()).collect();
    let all = MemoryRange { address: memory.address(), bytes: 64, cuda_device: None };
    // SAFETY: the memory is dropped after the engines.
    let regions: Vec<_> =
        engines.iter_mut().map(|engine| vec![unsafe { engine.register(all, Access::ALL, None) }.unwrap()]).collect();
    for engine in &mut engines {
        engine.rails_mut().next().unwrap().insert_peers(&addresses).unwrap();
        engine.set_peers(&regions).unwrap();
    }
    let (mut target, mut sender) = (engines.remove(0), engines.remove(0));
    let signal = Command::signal(0, 7);
    fn turn(engine: &mut Engine<LibfabricRail>) {
        engine.pump(&mut ()).unwrap();
        engine.progress(&mut ()).unwrap();
    }
    let end = Instant::now() + AMPLE;
    let in_time = |sender: &Engine<LibfabricRail>| assert!(Instant::now() < end, "{}", sender.state());
    let mut left = SIGNALS;
    // Polls both sides until they are connected.
    let mut submit = |sender: &mut Engine<LibfabricRail>, most: u64| {
        let count = left.min(most).min(sender.room() as u64);
        for _ in 0..count {
            sender.submit(&signal).unwrap();
        }
        left -= count;
        left
    };
    submit(&mut sender, 1);
    while target.signals()[7] == 0 {
        turn(&mut sender);
        turn(&mut target);
        in_time(&sender);
    }
    // Polls only the sender, until it waits for credits or the provider accepts no more (libfabric 2.1's tcp: 256 that
    // the target has not answered).
    const IN_VAIN: u32 = 20_000;
    let (mut sent, mut same) = (0, 0);
    let has_credits = |sender: &Engine<LibfabricRail>| {
        !["0 waiting to be posted", "no credits are left"].iter().all(|said| sender.state().contains(said))
    };
    while same < IN_VAIN && has_credits(&sender) {
        submit(&mut sender, u64::MAX);
        turn(&mut sender);
        in_time(&sender);
        let now = sender.counters().rail_transfers[0];
        same = if now == sent { same + 1 } else { 0 };
        sent = now;
    }
    // The sender has then sent all that the target has space for.
    let taken = sender.rails().next().unwrap().limits().max_outstanding as u64;
    let enough = if has_credits(&sender) { taken } else { room as u64 / 3 };
    assert!(sent <= room as u64 && sent > enough, "{sent} sent, room for {room}, {taken} at a time");
    while target.signals()[7] < SIGNALS || sender.in_flight() > 0 {
        submit(&mut sender, u64::MAX);
        turn(&mut sender);
        turn(&mut target);
        in_time(&sender);
    }
    assert_eq!((target.signals()[7], submit(&mut sender, 0)), (SIGNALS, 0), "{}", sender.state());
}

#[test]
fn empty_operations_complete_over_tcp() {
    let (a, b) = tcp_pair(USUAL, 2, RailFaults::default());
    for strategy in [Strategy::Split, Strategy::RoundRobin] {
        a.proxy.configure(2, strategy).unwrap();
        let ring = a.ring.ring();
        let mut channel = PutChannel::new(ring);
        let empty = put_to(1, USUAL.bytes as u64, 0);
        channel.put(&empty).unwrap();
        let get = Command::get((DESTINATION, 0), (SOURCE, 0), 0, 1);
        let ticket = a.ring.ring().push(&get).unwrap();
        channel.quiet_until(ticket).unwrap();
        let ticket = channel.put_signal_nbi(&empty, 3).unwrap();
        channel.quiet_until(ticket).unwrap();
    }
    let end = Instant::now() + AMPLE;
    while b.proxy.snapshot().unwrap().signals[3] < 2 {
        assert!(Instant::now() < end, "the signals of empty puts have not arrived");
        std::thread::yield_now();
    }
    assert_eq!(a.proxy.failure(), None);
}

// --- rings under pressure --------------------------------------------------------------------------------------------

#[test]
fn cpu_commands_wait_for_free_slots() {
    let (counts, rails) = nulls(1);
    let world = World::alone(Options { window: 4, ..USUAL }, rails);
    let command = |number: u64| Command::put((SOURCE, number), (DESTINATION, number), 8, 0);
    world.proxy.put((0..1000).map(command).collect()).unwrap();
    let snapshot = world.proxy.snapshot().unwrap();
    let (puts, bytes, _) = counted(&counts);
    assert_eq!((snapshot.commands, puts, bytes), (1000, 1000, 8000));
    assert_eq!(world.proxy.failure(), None);
}

#[test]
fn two_slots_serve_many_producers() {
    for quiet_every in [0, 1] {
        let (counts, rails) = nulls(1);
        let world = World::alone(Options { slots: 2, window: 2, ..USUAL }, rails);
        let grid = Grid { grid: 8, block: 8, scope: SCOPE_THREAD, bytes: 48, iterations: 8, quiet_every, ..GRID };
        let results = grid.run(&[&world]);
        assert_eq!(stops(&results), [0; 8], "{}", world.ring.state());
        let puts = grid.producers() * grid.iterations as u64;
        assert_eq!(counted(&counts), (puts, puts * grid.bytes, grid.checksum()));
    }
}

#[test]
fn batched_puts_arrive_once_each() {
    for (batch, window, block) in [(1, 4, 40), (3, 4, 40), (32, 40, 40), (32, 8, 5), (8, 2, 33)] {
        let (counts, rails) = nulls(1);
        let world = World::alone(USUAL, rails);
        let grid = Grid { batch, window, block, iterations: window * 5, bytes: 48, ..GRID };
        assert_eq!(stops(&grid.run(&[&world])), [0; 4], "{batch} {window} {block}");
        let puts = grid.producers() * u64::from(grid.iterations);
        assert_eq!(counted(&counts), (puts, puts * 48, grid.checksum()), "{batch} {window} {block}");
    }
}

/// Checks a put's bytes when it is posted and when it is complete: they must be those of its own iteration.
struct Unchanged {
    grid: Grid,
    source: Option<usize>,
    /// Number of puts of each slot.
    turns: HashMap<u64, u32>,
    under_way: HashMap<u64, (u64, u64)>,
    /// Number of completions, and of puts with bytes of another iteration.
    seen: Arc<Mutex<(usize, usize)>>,
}

impl Unchanged {
    fn is_of(&self, slot: u64, seed: u64) -> bool {
        let start = self.source.expect("registered before it is posted") as *const u8;
        let byte = |at: u64| {
            // SAFETY: the byte is in the world's source, which outlives its proxy.
            unsafe { start.add((slot * self.grid.stride() + at) as usize).read_volatile() }
        };
        (0..self.grid.bytes).all(|at| byte(at) == kernels::pattern::byte(seed, at))
    }
}

impl Layer for Unchanged {
    fn before_register(&mut self, _: &str, memory: MemoryRange) -> Result<(), FabricError> {
        self.source.get_or_insert(memory.address as usize);
        Ok(())
    }

    fn after_post(&mut self, posting: Posting<'_>) {
        if let Posting::Write(transfer) = posting {
            let (slot, window) = (transfer.local_offset / self.grid.stride(), self.grid.window);
            let turn = self.turns.entry(slot).or_default();
            let iteration = *turn * window + (slot % u64::from(window)) as u32;
            *turn += 1;
            let seed = kernels::pattern::seed(0, iteration, slot as u32);
            self.under_way.insert(transfer.token, (slot, seed));
            self.seen.lock().unwrap().1 += usize::from(!self.is_of(slot, seed));
        }
    }

    fn after_poll(&mut self, _: &str, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        for completion in completions.iter() {
            let Completion::Done { token } = completion else { continue };
            let (slot, seed) = self.under_way.remove(token).expect("posted");
            let mut seen = self.seen.lock().unwrap();
            seen.0 += 1;
            seen.1 += usize::from(!self.is_of(slot, seed));
        }
        Ok(())
    }
}

#[test]
fn payload_is_rewritten_only_after_completion() {
    for (window, ahead, batch) in [(1, 1, 0), (2, 1, 0), (8, 3, 0), (8, 4, 0), (8, 1, 4), (7, 1, 3), (64, 1, 32)] {
        let grid = Grid { block: 40, window, ahead, batch, iterations: window * 6, ..GRID };
        let seen = Arc::new(Mutex::new((0, 0)));
        let of_rail = seen.clone();
        let world = World::alone(USUAL, move || {
            let late = faulty(RailFaults { delay_polls: 20, reverse: true, ..Default::default() });
            let (turns, under_way) = Default::default();
            vec![Layered::over(late, Unchanged { grid, source: None, turns, under_way, seen: of_rail.clone() })]
        });
        assert_eq!(stops(&grid.run(&[&world])), [0; 4], "{:?}", world.proxy.failure());
        let puts = (grid.producers() * u64::from(grid.iterations)) as usize;
        assert_eq!(*seen.lock().unwrap(), (puts, 0), "{window} {ahead} {batch}");
    }
}

#[test]
fn proxy_serves_ring_again_after_ping_pong() {
    let world = World::alone(USUAL, || vec![NullRail::new()]);
    for payload in [None, Some((&world.source, 64))] {
        let flag = Flag { payload, first_poll_ns: 0 };
        let time = round_trip(&Device::Emulated, 3, 100, AMPLE, flag, Some(&world.proxy)).unwrap();
        assert!(time > 0.0);
        assert_eq!(stops(&GRID.run(&[&world])), [0; 4], "{:?}", world.proxy.failure());
    }
    // A proxy that has ended does not block the measurement.
    let dead = World::alone(USUAL, || vec![faulty(RailFaults { fail_completions: vec![1], ..Default::default() })]);
    GRID.run(&[&dead]);
    let flag = Flag { payload: None, first_poll_ns: 0 };
    let error = round_trip(&Device::Emulated, 1, 10, SHORT, flag, Some(&dead.proxy)).unwrap_err();
    assert!(matches!(error, MeasureError::Proxy(_) | MeasureError::Ended(..)), "{error}");
}

#[test]
fn several_rings_share_one_grid() {
    let (counts, worlds): (Vec<NullCounts>, Vec<World>) = (0..3)
        .map(|_| {
            let (counts, rails) = nulls(1);
            (counts, World::alone(USUAL, rails))
        })
        .unzip();
    let worlds: Vec<&World> = worlds.iter().collect();
    let grid = Grid { grid: 6, ..GRID };
    assert_eq!(stops(&grid.run(&worlds)), [0; 6]);
    assert_eq!(counts.iter().map(|counts| counted(counts).0).sum::<u64>(), grid.producers() * grid.iterations as u64);
}

#[test]
fn ring_table_describes_rings() {
    let device = Device::Emulated;
    let rings: Vec<RingMemory> = [2, 8].map(|slots| RingMemory::new(&device, slots, DEADLINE).unwrap()).into();
    let table = RingTable::new(&device, &rings).unwrap();
    assert_eq!(table.count(), 2);
    // SAFETY: the emulated device's memory is host memory, and contains two descriptions.
    let second = unsafe { &*table.pointer().add(1) };
    assert_eq!((second.capacity(), second.slots), (8, rings[1].ring().slots));
}

// --- the end ---------------------------------------------------------------------------------------------------------

#[test]
fn dropped_proxies_end_waiting_kernels() {
    let never = || vec![faulty(RailFaults { delay_polls: u64::MAX, ..Default::default() })];
    let mut worlds: Vec<World> = (0..3).map(|_| World::alone(USUAL, never)).collect();
    let rings: Vec<kernels::ring::Ring> = worlds.iter().map(|world| world.ring.ring()).collect();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = rings
            .iter()
            .flat_map(|ring| [ring; 4])
            .map(|ring| {
                scope.spawn(|| {
                    let mut channel = PutChannel::new(*ring);
                    channel.put(&put_to(0, 0, 8))
                })
            })
            .collect();
        // Each proxy has taken the four commands of its ring: all waits for completion have started or are about to.
        let end = Instant::now() + AMPLE;
        while worlds.iter().any(|world| !world.ring.state().contains("4 taken")) {
            assert!(Instant::now() < end);
            std::thread::yield_now();
        }
        let started = Instant::now();
        let kept: Vec<_> = worlds.drain(..).map(|world| (drop(world.proxy), world.ring)).collect();
        assert!(started.elapsed() < AMPLE / 2, "dropping took {:?}", started.elapsed());
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Err(Status::STOPPED));
        }
        drop(kept);
    });
}

#[test]
fn stopped_or_vanished_proxy_ends_kernel() {
    // Many more puts than can complete in time: the proxy checks its faults only once per several polls.
    let long = Grid { quiet_every: 1, iterations: 1_000_000, ..GRID };
    let world = World::alone(Options { fault: Some(ProxyFault::Stop(50)), ..USUAL }, || vec![NullRail::new()]);
    assert_eq!(stops(&long.run(&[&world])), [Status::STOPPED.0; 4]);
    assert_eq!(world.failure(), ProxyError::Stopped.to_string());

    // Without a notification, the kernel's own deadline ends it.
    let vanishing = Options { fault: Some(ProxyFault::Vanish(10)), deadline: SHORT, ..USUAL };
    let world = World::alone(vanishing, || vec![NullRail::new()]);
    assert_eq!(stops(&long.run(&[&world])), [Status::DEADLINE.0; 4]);
    assert_eq!(world.failure(), ProxyError::Gone.to_string());
}

/// Creates a world whose rail waits at a gate, for at most 10 s, in its first poll after `armed` is set.
fn gated(timeout: Duration) -> (World, Sender<()>, Arc<std::sync::atomic::AtomicBool>) {
    use std::sync::atomic::{AtomicBool, Ordering};
    let (open, wait) = gate();
    let armed = Arc::new(AtomicBool::new(false));
    let trigger = armed.clone();
    let mut wait = Some(wait);
    let world = World::alone(Options { timeout, ..USUAL }, move || {
        let (trigger, wait) = (trigger.clone(), wait.take().unwrap());
        let mut rail = watched(NullRail::new(), &Seen::default());
        rail.layer.at_poll = Box::new(move || {
            if trigger.swap(false, Ordering::Relaxed) {
                // The wait ends when the gate is opened or dropped, or at the timeout.
                let _ = wait.recv_timeout(AMPLE);
            }
        });
        vec![rail]
    });
    (world, open, armed)
}

#[test]
fn late_answer_is_not_used_for_next_order() {
    let (world, open, armed) = gated(SHORT);
    armed.store(true, std::sync::atomic::Ordering::Relaxed);
    while armed.load(std::sync::atomic::Ordering::Relaxed) {
        std::thread::yield_now();
    }
    assert_eq!(world.proxy.snapshot().unwrap_err(), ProxyError::Silent(SHORT));
    assert_eq!(world.proxy.configure(1, Strategy::Split).unwrap_err(), ProxyError::Silent(SHORT));
    open.send(()).unwrap();
    // The two answers above are in flight or have arrived.
    let writes = Writes {
        first_producer: 0,
        producer_step: 1,
        producers: 4,
        window: 2,
        iterations: 10,
        quiet_every: 0,
        bytes: 64,
        stride: 64,
        route: (SOURCE, DESTINATION, 0),
    };
    world.proxy.write(writes).unwrap();
    assert_eq!(world.proxy.snapshot().unwrap().counters.rail_transfers, [40]);
}

#[test]
fn drop_is_bounded_if_provider_hangs() {
    let (world, open, armed) = gated(SHORT);
    armed.store(true, std::sync::atomic::Ordering::Relaxed);
    while armed.load(std::sync::atomic::Ordering::Relaxed) {
        std::thread::yield_now();
    }
    // A write does not wait indefinitely either.
    let writes = Writes {
        first_producer: 0,
        producer_step: 1,
        producers: 1,
        window: 1,
        iterations: 1,
        quiet_every: 0,
        bytes: 8,
        stride: 8,
        route: (SOURCE, DESTINATION, 0),
    };
    assert_eq!(world.proxy.write(writes).unwrap_err(), ProxyError::Silent(SHORT));
    let started = Instant::now();
    // The thread continues to run and uses the ring and the regions, so they stay allocated.
    drop(world);
    assert!(started.elapsed() >= SHORT && started.elapsed() < AMPLE / 2, "{:?}", started.elapsed());
    drop(open);
}

#[test]
fn dropped_proxy_ends_long_write() {
    let world = World::alone(USUAL, || vec![NullRail::new()]);
    let writes = Writes {
        first_producer: 0,
        producer_step: 1,
        producers: 4,
        window: 1,
        iterations: u64::MAX / 16,
        quiet_every: 0,
        bytes: 64,
        stride: 64,
        route: (SOURCE, DESTINATION, 0),
    };
    world.proxy.begin_write(writes).unwrap();
    let started = Instant::now();
    drop(world);
    assert!(started.elapsed() < AMPLE / 2, "{:?}", started.elapsed());
}

#[test]
fn cpu_writes_do_not_affect_ring_tickets() {
    // Delayed completions: some of the ring's commands are still in flight when the write starts.
    let world =
        World::alone(USUAL, || vec![faulty(RailFaults { delay_polls: 100, reverse: true, ..Default::default() })]);
    let ring = world.ring.ring();
    let mut channel = PutChannel::new(ring);
    let writes = Writes {
        first_producer: 1,
        producer_step: 2,
        producers: 6,
        window: 4,
        iterations: 12,
        quiet_every: 0,
        bytes: 100,
        stride: 112,
        route: (SOURCE, DESTINATION, 0),
    };
    for round in 1..=5u64 {
        for _ in 0..20 {
            channel.put_nbi(&put_to(0, 0, 8)).unwrap();
        }
        world.proxy.write(writes).unwrap();
        channel.quiet().unwrap();
        assert_eq!(world.watermark(), 20 * round);
        assert_eq!(world.proxy.snapshot().unwrap().counters.rail_transfers, [round * (20 + 3 * 12)]);
    }
    let error = world.proxy.finish_write(|| true).unwrap_err();
    assert!(error.to_string().contains("no write has been started"), "{error}");
}

#[test]
fn stalled_write_is_reported() {
    let options = Options { timeout: SHORT, ..USUAL };
    let world = World::alone(options, || vec![faulty(RailFaults { delay_polls: u64::MAX, ..Default::default() })]);
    let writes = Writes {
        first_producer: 0,
        producer_step: 1,
        producers: 1,
        window: 1,
        iterations: 3,
        quiet_every: 0,
        bytes: 8,
        stride: 8,
        route: (SOURCE, DESTINATION, 0),
    };
    let error = world.proxy.write(writes).unwrap_err().to_string();
    assert!(error.contains("no progress") && error.contains("3 transfers posted but not complete"), "{error}");

    // A cancelled write ends long before it would stall.
    let world = World::alone(USUAL, || vec![faulty(RailFaults { delay_polls: u64::MAX, ..Default::default() })]);
    world.proxy.begin_write(writes).unwrap();
    assert_eq!(world.proxy.finish_write(|| false).unwrap_err().to_string(), ProxyError::Stopped.to_string());
}
