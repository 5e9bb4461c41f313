//! The device API on the emulated device: several PEs, each a thread of the test with its own ranks, heap and proxies.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

#[path = "gin/meet.rs"]
mod meet;

use cuda_std::Kernel;
use ginlab::bootstrap::{self, Bootstrap};
use ginlab::cuda::{Device, DeviceChoice, MemoryLocation};
use ginlab::fabric::worst::WorstSpec;
use ginlab::gin::{Fabric, GinError, Inbox, PePath, Program, Signal, Sym, World, WorldOptions};
use ginlab::proxy::signal_order::Rule;
use ginlab::rails::strategy::Strategy;
use kernels::gin::{Block, Context, Scope, TeamKind, Thread, WaitBudget, Warp};
use kernels::ring::Status;
use kernels::signal_check::{SIGNAL_CHECK_BLOCK, SIGNAL_CHECK_THREAD, SIGNAL_CHECK_WARP, SignalCheck, producers};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strum::VariantArray;

#[path = "gin/again.rs"]
mod again;
#[path = "gin/bare.rs"]
mod bare;
#[path = "gin/batches.rs"]
mod batches;
#[path = "gin/differing.rs"]
mod differing;
#[path = "gin/forwarding.rs"]
mod forwarding;
#[path = "gin/messages.rs"]
mod messages;
#[path = "gin/progress.rs"]
mod progress;
#[path = "gin/rows.rs"]
mod rows;

const AMPLE: Duration = Duration::from_secs(30);

fn emulated(path: PePath) -> WorldOptions {
    let fabric = Fabric::Worst(WorstSpec { longest: 3000, ..WorstSpec::default() });
    WorldOptions {
        device: DeviceChoice::Emulated,
        heap_bytes: 1 << 20,
        path,
        fabric,
        rails: 2,
        strategy: Strategy::Split,
        ring_slots: 256,
        timeout: AMPLE,
        ..WorldOptions::default()
    }
}

/// Returns options for both paths to a peer.
fn both_paths() -> [WorldOptions; 2] {
    [emulated(PePath::NvLink), emulated(PePath::Rails)]
}

/// Runs each PE in its own thread. Returns their results.
fn pes<T: Send>(count: usize, options: &WorldOptions, pe: impl Fn(&mut World, &mut Bootstrap) -> T + Sync) -> Vec<T> {
    opened(count, options, |mut world, ranks| {
        let result = pe(&mut world, ranks);
        world.close(ranks).unwrap();
        result
    })
}

/// Like [`pes`], but the PE closes its world itself.
fn opened<T: Send>(count: usize, options: &WorldOptions, pe: impl Fn(World, &mut Bootstrap) -> T + Sync) -> Vec<T> {
    met(count, |mut ranks| pe(World::open(&mut ranks, options).unwrap(), &mut ranks))
}

/// Runs each rank in its own thread. Returns their results.
fn met<T: Send>(count: usize, run: impl Fn(Bootstrap) -> T + Sync) -> Vec<T> {
    met_with(count, &|_| bootstrap::BootstrapOptions { timeout: AMPLE, ..bootstrap::BootstrapOptions::default() }, run)
}

/// Like [`met`], with the bootstrap's settings of each rank.
fn met_with<T: Send>(
    count: usize,
    settings: &(impl Fn(usize) -> bootstrap::BootstrapOptions + Sync),
    run: impl Fn(Bootstrap) -> T + Sync,
) -> Vec<T> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let run = &run;
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..count)
            .map(|rank| {
                scope.spawn(move || {
                    run(Bootstrap::join(&[address], rank, count, "token of a test", settings(rank)).unwrap())
                })
            })
            .collect();
        let first = run(Bootstrap::serve(listener, count, "token of a test", settings(0)).unwrap());
        std::iter::once(first).chain(others.into_iter().map(|other| other.join().unwrap())).collect()
    })
}

/// Returns a handle of a kernel of this test, which runs only on the emulated device.
fn kernel<A>(name: &'static str, function: unsafe fn(Program<A>)) -> Kernel<Program<A>> {
    Kernel::new(name, function).resident()
}

fn launch<A: Copy + Send + Sync + 'static>(
    world: &mut World,
    ranks: &mut Bootstrap,
    function: unsafe fn(Program<A>),
    (grid, block): (u32, u32),
    args: A,
) -> Result<(), GinError> {
    // SAFETY: the arguments are objects of this world's heap.
    unsafe { world.launch(ranks, &kernel("a test's kernel", function), grid, block, args) }
}

// --- operations ------------------------------------------------------------------------------------------------------

#[derive(Clone, Copy)]
struct Moves {
    from: Sym<u32>,
    to: Sym<u32>,
    back: Sym<u32>,
    arrived: Signal,
    scope: u32,
}

/// Puts to the next PE in two parts, gets them back, and sends them again with a signal.
unsafe fn moves(program: Program<Moves>) {
    fn run<S: Scope>(program: &Program<Moves>, mut line: Context<S>) -> Result<(), Status> {
        let Program { world, args } = program;
        let next = (world.my_pe() + 1) % world.n_pes();
        let half = args.from.len() / 2;
        for pe in 0..=world.n_pes() {
            let reached = pe == world.my_pe() || world.outlet_count == 0;
            assert_eq!(line.is_mapped(pe), reached && pe < world.n_pes(), "PE {pe}");
        }
        line.put_nbi(args.to.slice(0, half), args.from.slice(0, half), next)?;
        line.put(args.to.slice(half, half), args.from.slice(half, half), next)?;
        line.quiet()?;
        line.get(args.back, args.to, next)?;
        line.put_signal(args.to, args.from, args.arrived, 3, next)?;
        line.signal_wait_until(args.arrived, 3)?;
        line.barrier_all()?;
        line.barrier(TeamKind::Node)?;
        line.barrier(TeamKind::Rail)
    }
    let first = cuda_std::thread::thread_idx_x() == 0;
    let _ = match program.args.scope {
        0 if first => run(&program, program.world.context(Thread)),
        0 => Ok(()),
        1 => run(&program, program.world.context(Warp::this())),
        2 => run(&program, program.world.context(Block)),
        _ => run(&program, program.world.context(Block).batched(8)),
    };
}

#[test]
fn puts_gets_and_signals_work_on_both_paths() {
    for options in both_paths() {
        for (scope, block) in [(0, 1), (1, 20), (2, 40), (3, 70)] {
            pes(3, &options, |world, ranks| {
                let (me, all) = (world.my_pe(), world.n_pes());
                let [from, to, back] = [(); 3].map(|()| world.alloc::<u32>(ranks, 2500).unwrap());
                let arrived = world.signals(ranks, 1).unwrap();
                let values = |pe: u32| (0..2500).map(move |at| pe * 10_000 + at).collect::<Vec<_>>();
                world.write(from, &values(me)).unwrap();
                launch(world, ranks, moves, (1, block), Moves { from, to, back, arrived, scope }).unwrap();
                assert_eq!(world.read(to).unwrap(), values((me + all - 1) % all), "put, scope {scope}");
                assert_eq!(world.read(back).unwrap(), values(me), "got back, scope {scope}");
                assert_eq!(world.signal(arrived).unwrap(), 3);
                assert_eq!(world.path_to(me), "self");
            });
        }
    }
}

/// Makes a put with wait in a batch that is not full, without a later call.
unsafe fn one_of_a_batch(program: Program<Moves>) {
    let Program { world, args } = program;
    let mut line = world.context(Block).batched(8);
    line.put(args.to, args.from, (world.my_pe() + 1) % world.n_pes()).unwrap();
}

#[test]
fn batched_put_is_published_before_wait() {
    let arrived = pes(2, &emulated(PePath::Rails), |world, ranks| {
        let [from, to, back] = [(); 3].map(|()| world.alloc::<u32>(ranks, 64).unwrap());
        world.write(from, &[7; 64]).unwrap();
        let args = Moves { from, to, back, arrived: world.signals(ranks, 1).unwrap(), scope: 2 };
        launch(world, ranks, one_of_a_batch, (1, 32), args).unwrap();
        ranks.barrier("both have put, and over rails a put has arrived").unwrap();
        world.read(to).unwrap()
    });
    assert_eq!(arrived, [[7; 64]; 2]);
}

#[derive(Clone, Copy)]
struct Values {
    words: Sym<u64>,
    bytes: Sym<u8>,
    signals: Signal,
    atomics: bool,
}

/// Every thread of the grid puts single values.
unsafe fn values(program: Program<Values>) {
    let Program { world, args } = program;
    let mut line = world.context(Thread);
    let (me, next) = (world.my_pe(), (world.my_pe() + 1) % world.n_pes());
    let thread = cuda_std::thread::index();
    let mut run = || -> Result<(), Status> {
        line.p(args.words.at(thread as u64), u64::MAX - (me * 100 + thread) as u64, next)?;
        line.p(args.bytes.at(thread as u64), (me * 16 + thread) as u8, next)?;
        line.quiet()?;
        // All bits must be preserved.
        assert_eq!(line.g(args.words.at(thread as u64), next)?, u64::MAX - (me * 100 + thread) as u64);
        assert_eq!(line.g(args.bytes.at(thread as u64), next)?, (me * 16 + thread) as u8);
        line.signal_op(args.signals.at(thread), 5, next)?;
        line.signal_op(args.signals.at(thread), 2, next)?;
        line.signal_wait_until(args.signals.at(thread), 7)?;
        assert_eq!(line.signal_fetch(args.signals.at(thread)), 7);
        if args.atomics {
            line.atomic_add(args.words.at(20), 1, next)?;
            line.fetch_add(args.words.at(20), 1, next)?;
            let before = line.compare_swap(args.words.at(21 + thread as u64), 0, 9, next)?;
            assert_eq!((before, line.atomic_fetch(args.words.at(21 + thread as u64), next)?), (0, 9));
            line.signal_set(args.signals.at(8 + thread), 100, next)?;
            line.signal_wait_until(args.signals.at(8 + thread), 100)?;
            // Waits for the value that a put with a signal sets. The bytes of the put must then have arrived.
            line.put_signal_set_nbi(args.words.at(30), args.words.at(20), args.signals.at(8 + thread), 300, next)?;
            line.signal_wait_until(args.signals.at(8 + thread), 300)?;
            assert_eq!(line.signal_fetch(args.signals.at(8 + thread)), 300);
            assert_ne!(line.g(args.words.at(30), me)?, 0, "what was put is there");
        }
        Ok(())
    };
    run().unwrap();
}

#[test]
fn values_use_commands_and_atomics_use_mapping() {
    for options in both_paths() {
        pes(2, &options, |world, ranks| {
            let (words, bytes) = (world.alloc::<u64>(ranks, 40).unwrap(), world.alloc::<u8>(ranks, 40).unwrap());
            let (signals, atomics) = (world.signals(ranks, 16).unwrap(), options.path == PePath::NvLink);
            launch(world, ranks, values, (2, 4), Values { words, bytes, signals, atomics }).unwrap();
            // The barrier also waits for the other PE's atomics.
            world.barrier(ranks).unwrap();
            assert_eq!(world.read(words).unwrap()[20], if atomics { 16 } else { 0 });
        });
    }
}

#[derive(Clone, Copy)]
struct Anyone {
    signals: Signal,
    found: Sym<u32>,
}

/// Signals the next PE with this PE's number as index, and waits for any signal.
unsafe fn whoever_comes(program: Program<Anyone>) {
    let Program { world, args } = program;
    let mut line = world.context(Thread);
    let mut run = || -> Result<(), Status> {
        line.signal_op(args.signals.at(world.my_pe()), 4, (world.my_pe() + 1) % world.n_pes())?;
        let found = line.signal_wait_until_any(args.signals, world.n_pes(), 4)?;
        // Puts the index to this PE, so that the host can read it.
        line.p(args.found.at(0), found, world.my_pe())?;
        line.quiet()
    };
    run().unwrap();
}

#[test]
fn wait_for_any_signal_returns_arrived_one() {
    for options in both_paths() {
        pes(3, &options, |world, ranks| {
            let (me, all) = (world.my_pe(), world.n_pes());
            let (found, signals) = (world.alloc::<u32>(ranks, 1).unwrap(), world.signals(ranks, all).unwrap());
            launch(world, ranks, whoever_comes, (1, 1), Anyone { signals, found }).unwrap();
            assert_eq!(world.read(found).unwrap(), [(me + all - 1) % all]);
        });
    }
}

#[derive(Clone, Copy)]
struct Exchange {
    inbox: Inbox,
    from: Sym<u8>,
    to: Sym<u8>,
    rounds: u32,
}

unsafe fn exchange(program: Program<Exchange>) {
    let Program { world, args } = program;
    let mut line = world.context(Block);
    let mut run = || -> Result<(), Status> {
        for round in 1..=args.rounds {
            line.all_to_all(args.inbox, round, args.to, args.from)?;
            line.quiet()?;
        }
        Ok(())
    };
    let _ = run();
}

#[test]
fn messages_are_exchanged_over_many_rounds() {
    for options in both_paths() {
        for bytes in [1u64, 8, 13, 1000] {
            pes(4, &options, |world, ranks| {
                let all = u64::from(world.n_pes());
                let inbox = world.inbox(ranks, bytes).unwrap();
                let (from, to) =
                    (world.alloc::<u8>(ranks, bytes * all).unwrap(), world.alloc::<u8>(ranks, bytes * all).unwrap());
                let byte = |from: u64, to: u64, at: u64| (from * 71 + to * 13 + at * 7 + 1) as u8;
                let me = u64::from(world.my_pe());
                let sent: Vec<u8> = (0..all).flat_map(|pe| (0..bytes).map(move |at| byte(me, pe, at))).collect();
                let expected: Vec<u8> = (0..all).flat_map(|pe| (0..bytes).map(move |at| byte(pe, me, at))).collect();
                world.write(from, &sent).unwrap();
                launch(world, ranks, exchange, (1, 45), Exchange { inbox, from, to, rounds: 5 }).unwrap();
                assert_eq!(world.read(to).unwrap(), expected, "{bytes} B");
            });
        }
    }
}

#[test]
fn disagreements_are_reported_on_all_ranks() {
    let lines = pes(2, &emulated(PePath::NvLink), |world, ranks| {
        let all = world.free_bytes();
        let sizes = [1000, 3000][world.my_pe() as usize];
        let error = world.alloc::<u8>(ranks, sizes).unwrap_err().to_string();
        assert_eq!(world.free_bytes(), all);
        error
    });
    assert_eq!(lines[0], "ranks disagree: rank 0 calls alloc(1000), but rank 1 calls alloc(3000)");
    assert_eq!(lines[0], lines[1]);
    pes(2, &emulated(PePath::NvLink), |world, ranks| {
        let object = world.alloc::<u64>(ranks, 4).unwrap();
        assert!(world.free(ranks, object.slice(1, 2)).unwrap_err().to_string().contains("not allocated"));
        world.free(ranks, object).unwrap();
        assert!(world.alloc::<u64>(ranks, 1 << 40).unwrap_err().to_string().contains("larger heap"));
        assert!(world.signals(ranks, 1 << 20).unwrap_err().to_string().contains("a world has"));
        let args = Values { words: object, bytes: unused(), signals: Signal(0), atomics: false };
        let grid = launch(world, ranks, values, (140_000, 1), args).unwrap_err().to_string();
        assert!(grid.contains("must be resident, and at most"), "{grid}");
    });
}

fn unused() -> Sym<u8> {
    // SAFETY: the object has no bytes.
    unsafe { Sym::from_parts(0, 0) }
}

// --- failures --------------------------------------------------------------------------------------------------------

#[derive(Clone, Copy)]
struct Calls {
    call: u32,
    words: Sym<u64>,
    signal: Signal,
}

/// Number of calls in a row: more than can be issued before a proxy checks for a requested fault.
const MANY: u32 = 1_000_000;

unsafe fn one_call(program: Program<Calls>) {
    let Program { world, args: Calls { call, words, signal } } = program;
    let next = (world.my_pe() + 1) % world.n_pes();
    let mut line = world.context(Thread);
    let mut block = world.context(Block);
    let ended = match call {
        0 => line.put(words, words, world.n_pes()),
        1 => block.put_nbi(words.slice(0, 1), words, next),
        2 => line.signal_op(Signal(u32::MAX), 1, next),
        3 => line.signal_op(signal, 0, next),
        4 => block.put_signal(words, words, signal, 1 << 40, next),
        5 => line.signal_set(signal, 7, next),
        6 => line.fetch_add(words.at(0), 1, next).map(drop),
        7 => block.signal_wait_until(signal, 9),
        // Makes more calls without a wait than the ring has slots, and more than a proxy serves before it stops.
        8 => (0..MANY).try_for_each(|_| line.put_nbi(words, words, next)),
        9 => (0..MANY).try_for_each(|_| block.put_signal_nbi(words, words, signal, 1, next)).and(block.quiet()),
        10 => (0..MANY).try_for_each(|_| line.p(words.at(0), 1, next)).and(line.quiet()),
        11 => (0..MANY).try_for_each(|_| line.get(words, words, next)),
        12 => (0..MANY).try_for_each(|_| line.g(words.at(0), next).map(drop)),
        13 => block.barrier_all(),
        15 => line.signal_wait_until_any(signal, 0, 1).map(drop),
        16 => line.signal_wait_until_any(signal, 2, 9).map(drop),
        18 => block.put_signal_set_nbi(words, words, signal, 7, next),
        17 => line.put_signal_nbi(words, words, signal, 1, next).and(line.signal_wait_until(signal, 9)),
        // SAFETY: over rails a proxy validates the command and rejects the region; nothing is accessed.
        _ => line.put(unsafe { Sym::from_parts(1 << 40, 64) }, words, next),
    };
    assert!(ended.is_err());
}

/// Returns the message of a call that fails on PE 0. PE 1 makes no call.
fn failing(call: u32, options: &WorldOptions) -> String {
    let ended = opened(2, options, |mut world, ranks| {
        let words = world.alloc::<u64>(ranks, 64).unwrap();
        let signal = world.signals(ranks, 1).unwrap();
        if world.my_pe() == 1 {
            // Waits until PE 0's call has failed.
            let _ = world.barrier(ranks);
            return String::new();
        }
        let error = launch(&mut world, ranks, one_call, (1, 3), Calls { call, words, signal }).unwrap_err();
        let _ = world.barrier(ranks);
        error.to_string()
    });
    ended[0].clone()
}

#[test]
fn invalid_requests_are_rejected() {
    for options in both_paths() {
        let path = if options.path == PePath::NvLink { "memory" } else { "worst:seed=1,longest=3000" };
        for (call, said) in [
            (0, "put of 512 B with PE 2"),
            (1, "put of 512 B with PE 1"),
            (2, "signal_op of signal 4294967295"),
            (15, "signal_wait_until of signal 0"),
        ] {
            let text = failing(call, &options);
            assert!(text.contains(said) && text.contains("refused"), "{call}: {text}");
        }
        let by_rails = options.path == PePath::Rails;
        for (call, said, why) in [
            (3, "signal_op of signal 0 with PE 1", "refused"),
            (4, "put_signal of 1099511627776 B with PE 1", "refused"),
            (5, "signal_op of signal 0 with PE 1", "not supported on this path"),
            (18, "put_signal of 512 B with PE 1", "not supported on this path"),
            (6, "an atomic operation of 8 B with PE 1", "not supported on this path"),
        ] {
            if by_rails {
                let text = failing(call, &options);
                assert!(text.contains(said) && text.contains(why) && text.contains(path), "{call}: {text}");
            }
        }
    }
}

#[test]
fn stopped_proxy_ends_every_call() {
    for call in 8..14 {
        // The proxy stops regularly after a command, and notifies waiting kernels. (If it stopped before any command,
        // opening the world would fail.)
        let fault = Some(ginlab::proxy::ProxyFault::Stop(1));
        let text = failing(call, &WorldOptions { fault, ring_slots: 16, ..emulated(PePath::Rails) });
        assert!(text.contains("proxy stopped"), "{call}: {text}");
    }
}

/// If the ring is no longer emptied, or rails never complete, every call ends, and its message names the object of the
/// wait.
#[test]
fn vanished_or_stalled_proxy_ends_every_call() {
    use ginlab::proxy::ProxyFault;
    // Runs both faults concurrently, because they wait for their deadlines.
    std::thread::scope(|scope| {
        for (fault, why) in [(ProxyFault::Vanish(1), "exited unexpectedly"), (ProxyFault::Silent(1), "no progress")] {
            scope.spawn(move || {
                // The last call waits for a signal, not for its stuck put. The proxy's failure must still be reported
                // before the deadline of that wait.
                for call in (8..14).chain([17]) {
                    let (fault, timeout) = (Some(fault), Duration::from_millis(300));
                    let text =
                        failing(call, &WorldOptions { fault, timeout, ring_slots: 16, ..emulated(PePath::Rails) });
                    assert!(text.contains(why) && text.contains("a test's kernel: block 0"), "{call}: {text}");
                }
            });
        }
    });
}

#[test]
fn proxy_rejects_bytes_outside_heap() {
    let text = failing(14, &emulated(PePath::Rails));
    assert!(text.contains("put of 512 B with PE 1") && text.contains("refused"), "{text}");
}

#[test]
fn wait_without_sender_times_out() {
    let waits = both_paths().into_iter().flat_map(|options| [(options.clone(), 7), (options, 16)]);
    // Runs the cases concurrently, because each lasts as long as the device's own margin.
    std::thread::scope(|scope| {
        for (options, call) in waits {
            scope.spawn(move || {
                let text = failing(call, &WorldOptions { timeout: Duration::from_millis(50), ..options });
                let said = "signal_wait_until of signal 0, which had reached 0 of 9: deadline passed";
                assert!(text.contains(said), "{text}");
                assert_eq!(text.contains("ring 0: "), options.path == PePath::Rails, "{text}");
            });
        }
    });
}

#[derive(Clone, Copy)]
struct Ended {
    words: Sym<u64>,
    signal: Signal,
    status: *const AtomicU64,
}

// SAFETY: the word belongs to the test, outlives the grid and is accessed atomically.
unsafe impl Send for Ended {}
// SAFETY: the word belongs to the test, outlives the grid and is accessed atomically.
unsafe impl Sync for Ended {}

unsafe fn one_fails_the_other_waits(program: Program<Ended>) {
    let Program { world, args: Ended { words, signal, status } } = program;
    let mut line = world.context(Thread);
    if cuda_std::thread::block_idx_x() == 0 {
        assert!(line.put(words, words, world.n_pes()).is_err());
    } else if let Err(stop) = line.signal_wait_until(signal, 9) {
        // SAFETY: the word belongs to the test and outlives the grid.
        unsafe { &*status }.store(stop.0, Ordering::Relaxed);
    }
}

#[test]
fn failed_call_ends_waits_of_other_blocks() {
    pes(2, &emulated(PePath::NvLink), |world, ranks| {
        let (words, signal) = (world.alloc::<u64>(ranks, 64).unwrap(), world.signals(ranks, 1).unwrap());
        if world.my_pe() == 0 {
            let status = AtomicU64::new(0);
            let args = Ended { words, signal, status: &raw const status };
            let text = launch(world, ranks, one_fails_the_other_waits, (2, 1), args).unwrap_err().to_string();
            assert!(text.contains("put of 512 B with PE 2"), "{text}");
            assert_eq!(Status(status.into_inner()), Status::ENDED, "and not at its deadline");
        }
    });
}

/// Spins in a loop of the kernel itself, on a word that is never stored.
unsafe fn one_fails_the_other_spins(program: Program<Ended>) {
    let Program { world, args } = program;
    if cuda_std::thread::block_idx_x() == 0 {
        let mut line = world.context(Thread);
        let _ = line.put_nbi(args.words, args.words, 2);
        return;
    }
    let mut patience = WaitBudget::default();
    let stop = loop {
        if let Err(stop) = patience.look(&world) {
            break stop;
        }
        cuda_std::thread::relax();
    };
    // SAFETY: the word belongs to the test and outlives the grid.
    unsafe { &*args.status }.store(stop.0, Ordering::Relaxed);
}

#[test]
fn failed_call_ends_spin_of_another_block() {
    pes(1, &emulated(PePath::NvLink), |world, ranks| {
        let (words, signal) = (world.alloc::<u64>(ranks, 64).unwrap(), world.signals(ranks, 1).unwrap());
        let status = AtomicU64::new(0);
        let args = Ended { words, signal, status: &raw const status };
        launch(world, ranks, one_fails_the_other_spins, (2, 1), args).unwrap_err();
        assert_eq!(Status(status.into_inner()), Status::ENDED, "and not at its deadline");
    });
}

/// Makes the call only in the first warp of a block of two warps, on each of its lanes.
unsafe fn first_warps(program: Program<Ended>) {
    if Warp::first_of_block().is_some() {
        // SAFETY: the word belongs to the test and outlives the grid.
        unsafe { &*program.args.status }.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn first_warp_uses_only_its_lanes() {
    pes(1, &emulated(PePath::NvLink), |world, ranks| {
        let (words, signal) = (world.alloc::<u64>(ranks, 1).unwrap(), world.signals(ranks, 1).unwrap());
        for (block, lanes) in [(1, 1), (32, 32), (33, 32), (70, 32)] {
            let status = AtomicU64::new(0);
            let args = Ended { words, signal, status: &raw const status };
            launch(world, ranks, first_warps, (1, block), args).unwrap();
            assert_eq!(status.into_inner(), lanes, "block of {block}");
        }
    });
}

/// Emulates a kernel whose blocks never become resident: it makes no progress, and none of its waits ends.
#[test]
fn kernel_without_progress_is_abandoned() {
    let options = WorldOptions { timeout: Duration::from_millis(50), ..emulated(PePath::NvLink) };
    pes(1, &options, |world, ranks| {
        let abort = world.description().abort;
        // The kernel could make this check: it ends on request. SAFETY: host memory of the world, accessed atomically.
        let asked = || Ok(cuda_std::memory::load_acquire_host_u64(unsafe { &(*abort).abort }) != 0);
        let error = world.wait_until(ranks, "a kernel", asked).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        assert!(error.to_string().starts_with("a kernel: no progress within 4 s; check whether all blocks"), "{error}");
    });
}

#[test]
fn leaving_peer_ends_wait() {
    for options in both_paths() {
        let ended = opened(2, &options, |mut world, ranks| {
            let words = world.alloc::<u64>(ranks, 64).unwrap();
            let signal = world.signals(ranks, 1).unwrap();
            // PE 1 exits without closing its world.
            (world.my_pe() == 0).then(|| {
                launch(&mut world, ranks, one_call, (1, 3), Calls { call: 7, words, signal }).unwrap_err().to_string()
            })
        });
        let text = ended[0].clone().unwrap();
        assert!(text.contains("rank 1"), "{text}");
    }
}

// --- mistakes that the worst-case network model detects --------------------------------------------------------------

#[derive(Clone, Copy)]
struct Mistakes {
    mistake: u32,
    from: Sym<u64>,
    to: Sym<u64>,
}

const ROUNDS: u64 = 2000;

/// Puts to the next PE without a wait that is required.
unsafe fn mistakes(program: Program<Mistakes>) {
    let Program { world, args: Mistakes { mistake, from, to } } = program;
    let next = (world.my_pe() + 1) % world.n_pes();
    let mut line = world.context(Thread);
    let mut run = || -> Result<(), Status> {
        // More rounds than the ring has slots: overwriting a source before its command is taken has no effect that a
        // rail can detect.
        for round in 0..ROUNDS {
            let slot = from.slice(if mistake == 1 { round % 2 * 8 } else { 0 }, 8);
            if mistake == 0 {
                // SAFETY: memory of this PE; the effect on the NIC is what the test checks.
                (0..8).for_each(|at| unsafe { world.local(slot).add(at).write_volatile(round) });
            }
            line.put_nbi(to.slice(if mistake == 0 { round * 8 } else { 0 }, 8), slot, next)?;
            if mistake == 2 {
                line.quiet()?;
            }
        }
        line.quiet()
    };
    let _ = run();
}

#[test]
fn rewritten_source_error_names_puts() {
    let ended = |mistake: u32| {
        let ends = opened(2, &emulated(PePath::Rails), |mut world, ranks| {
            let (from, to) = (world.alloc::<u64>(ranks, 16).unwrap(), world.alloc::<u64>(ranks, ROUNDS * 8).unwrap());
            let me = u64::from(world.my_pe());
            world.write(from, &std::array::from_fn::<u64, 16, _>(|at| me * 100 + at as u64)).unwrap();
            let launched = launch(&mut world, ranks, mistakes, (1, 1), Mistakes { mistake, from, to });
            // A proxy may fail after the last wait of its kernel; then the barrier reports it. The other rank's error
            // is then that this one has exited.
            let met = world.barrier(ranks);
            launched.and(met).map_err(|error| error.to_string())
        });
        ends.into_iter().filter_map(Result::err).reduce(|all, error| format!("{all}\n{error}"))
    };
    let text = ended(0).expect("a source that is rewritten");
    assert!(text.contains("source rewritten while its put is in flight (in the packet at byte "), "{text}");
    assert!(text.contains("; wait for a put's completion (quiet, or its own)"), "{text}");
    let text = ended(1).expect("two puts into one place");
    assert!(text.contains("destination written by two puts at the same time: the other is put "), "{text}");
    assert!(text.contains(" B to allocation 2 (128000 B of u64), byte "), "{text}");
    assert!(text.contains(" of it; the slot is free once PE "), "{text}");
    assert_eq!(ended(2), None);
}

// --- signals and their data ------------------------------------------------------------------------------------------

/// Parameters of a check of signals.
#[derive(Clone, Copy, Debug)]
struct Check {
    rule: Rule,
    scope: u32,
    proxies: usize,
    puts: u64,
    early: bool,
}

/// Returns the number of wrong bytes and of checked puts, summed over both PEs.
fn check(run: Check) -> (u64, u64) {
    // With early signals, the effect must be visible in the bytes, so the rails do not check for it.
    let seed = run.puts ^ u64::from(run.scope) << 8;
    let spec = WorstSpec { seed, longest: 1500, watch: !run.early, ..WorstSpec::default() };
    let options = WorldOptions {
        rule: ginlab::gin::PutSignalRule::Proxies(run.rule),
        proxies: run.proxies,
        rails: 3,
        fabric: Fabric::Worst(spec),
        early_signals: run.early,
        ..emulated(PePath::Rails)
    };
    let found = pes(2, &options, |world, ranks| {
        let (grid, block) = [(4, 4), (4, 40), (4, 33)][run.scope as usize];
        let (slots, stride) = (4, 8192);
        let puts = producers(run.scope, grid, block) * slots;
        let (source, target) = (
            world.alloc(ranks, u64::from(puts) * stride).unwrap(),
            world.alloc(ranks, u64::from(puts) * stride).unwrap(),
        );
        let (arrived, checked) = (world.signals(ranks, puts).unwrap(), world.signals(ranks, puts).unwrap());
        let found = Device::Emulated.allocate(MemoryLocation::Device, 16).unwrap();
        let args = SignalCheck {
            source,
            target,
            arrived,
            checked,
            slots,
            stride,
            rounds: (run.puts / 2).div_ceil(u64::from(puts)) as u32,
            first: 0,
            seed: 7,
            found: found.pointer(),
        };
        let kernels = [SIGNAL_CHECK_THREAD, SIGNAL_CHECK_WARP, SIGNAL_CHECK_BLOCK];
        // SAFETY: the arguments are objects of this world's heap.
        unsafe { world.launch(ranks, &kernels[run.scope as usize], grid, block, args) }.unwrap();
        let mut words = [0u64; 2];
        found.read(0, &mut words).unwrap();
        words
    });
    found.iter().fold((0, 0), |(wrong, puts), one| (wrong + one[0], puts + one[1]))
}

/// Covers all rules, scopes and numbers of proxies. For a long run, use `GINLAB_SIGNALLED_PUTS=10000000 cargo test
/// --release --test gin never`.
#[test]
fn signals_never_precede_their_data() {
    let asked = std::env::var("GINLAB_SIGNALLED_PUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(6000u64);
    let mut total = 0;
    let combinations = Rule::VARIANTS.len() * 3 * 3;
    for &rule in Rule::VARIANTS {
        for scope in 0..3 {
            for proxies in [1, 2, 4] {
                let run = Check { rule, scope, proxies, puts: asked.div_ceil(combinations as u64), early: false };
                let (wrong, puts) = check(run);
                assert_eq!(wrong, 0, "{run:?}");
                assert!(puts >= run.puts / 2 * 2, "{run:?}: {puts} checked");
                total += puts;
            }
        }
    }
    eprintln!("{total} signalled puts, none before its data");
}

#[test]
fn rule_without_wait_is_detected() {
    for &rule in Rule::VARIANTS {
        // Whether a consumer reads before the bytes have arrived depends on scheduling, so some runs detect nothing.
        let caught =
            (0..30).any(|more| check(Check { rule, scope: 2, proxies: 1, puts: 600 + more, early: true }).0 > 0);
        assert!(caught, "{rule}: nobody noticed");
    }
}
