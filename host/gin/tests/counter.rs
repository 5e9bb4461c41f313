//! Tests of rule `counter` over software NICs: the signals that the NIC counts, and those that arrive as immediates.
//! They are a separate test binary, because software NICs can be loaded only once per process.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use cuda_std::Kernel;
use ginlab_bootstrap::{Bootstrap, BootstrapOptions};
use ginlab_cuda::DeviceChoice;
use ginlab_fabric::soft;
use ginlab_gin::{Fabric, PePath, Program, PutSignalRule, Signal, Sym, Unread, World, WorldOptions};
use kernels::gin::{Context, Thread};
use kernels::ring::Status;
use std::net::TcpListener;
use std::time::{Duration, Instant};

const AMPLE: Duration = Duration::from_secs(30);
/// Number of signals that the NIC counts. [`SIGNALS`] includes two more, which it does not count.
const COUNTED: u32 = 16;
const SIGNALS: u32 = COUNTED + 2;
/// Number of puts with a signal that the NIC counts, after one increment of each signal.
const PUTS: u64 = 5;
const PUT_TO: u32 = 3;

#[derive(Clone, Copy)]
struct SignalsArgs {
    from: Sym<u64>,
    to: Sym<u64>,
    first: Signal,
}

/// PE 0 signals PE 1 from one thread. No kernel waits for a signal, so arrivals stay unread.
unsafe fn signals(program: Program<SignalsArgs>) {
    let Program { world, args } = program;
    let mut line = world.context(Thread);
    if world.my_pe() == 0 {
        // Failures are in the world's report, which the launch returns.
        let _ = signal_all(&mut line, args);
    }
}

fn signal_all(line: &mut Context<Thread>, args: SignalsArgs) -> Result<(), Status> {
    for signal in 0..SIGNALS {
        line.signal_op(args.first.at(signal), 1, 1)?;
    }
    // Additions of more than 1 are immediates, for every signal and also with a put.
    line.signal_op(args.first.at(4), 2, 1)?;
    line.put_signal(args.to.at(0), args.from.at(0), args.first.at(5), 3, 1)?;
    line.put_signal(args.to.at(1), args.from.at(1), args.first.at(COUNTED), 1, 1)?;
    for put in 2..2 + PUTS {
        line.put_signal(args.to.at(put), args.from.at(put), args.first.at(PUT_TO), 1, 1)?;
    }
    line.quiet()
}

/// Runs one PE. Returns its unread arrivals after the kernels have ended, the sum of each signal, and the words that
/// were put.
fn pe(mut ranks: Bootstrap, rule: PutSignalRule) -> (Unread, Vec<u64>, Vec<u64>) {
    let options = WorldOptions {
        device: DeviceChoice::Emulated,
        heap_bytes: 1 << 16,
        path: PePath::Direct,
        fabric: Fabric::named(Some("efa-verbs/soft:p5en"), &[]).unwrap(),
        rule,
        timeout: AMPLE,
        ..WorldOptions::default()
    };
    let mut world = World::open(&mut ranks, &options).unwrap();
    let (from, to) = (world.alloc::<u64>(&mut ranks, 2 + PUTS).unwrap(), world.alloc(&mut ranks, 2 + PUTS).unwrap());
    let first = world.signals(&mut ranks, SIGNALS).unwrap();
    world.write(from, &(100..102 + PUTS).collect::<Vec<_>>()).unwrap();
    let kernel = Kernel::new("signals", signals as unsafe fn(Program<SignalsArgs>));
    // SAFETY: the arguments are objects and signals of this world.
    unsafe { world.launch(&mut ranks, &kernel, 1, 1, SignalsArgs { from, to, first }) }.unwrap();
    world.barrier(&mut ranks).unwrap();
    let wanted = if world.my_pe() == 1 { u64::from(SIGNALS) + 2 + 3 + 1 + PUTS } else { 0 };
    let sums = |world: &World| (0..SIGNALS).map(|signal| world.signal(first.at(signal)).unwrap()).collect::<Vec<_>>();
    let started = Instant::now();
    while sums(&world).iter().sum::<u64>() < wanted {
        assert!(started.elapsed() < AMPLE, "{:?}", sums(&world));
        std::thread::yield_now();
    }
    let found = (world.unread().unwrap(), sums(&world), world.read(to).unwrap());
    world.close(&mut ranks).unwrap();
    found
}

/// Runs two PEs, each on a thread. Returns the results of PE 1. PE 0 receives nothing.
fn arrived(rule: PutSignalRule) -> (Unread, Vec<u64>, Vec<u64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let meeting = || BootstrapOptions { timeout: AMPLE, ..BootstrapOptions::default() };
    std::thread::scope(|scope| {
        let second = scope.spawn(move || pe(Bootstrap::join(&[address], 1, 2, "a test", meeting()).unwrap(), rule));
        let (unread, ..) = pe(Bootstrap::serve(listener, 2, "a test", meeting()).unwrap(), rule);
        assert!(unread.immediates.is_empty() && unread.counted.iter().all(|count| *count == 0), "{unread:?}");
        second.join().unwrap()
    })
}

#[test]
fn counted_signals_are_writes_without_immediates() {
    soft::load("efa-verbs/soft:p5en").unwrap();
    let (mut by_counter, sums, words) = arrived(PutSignalRule::Counter);
    let mut counts = vec![1; COUNTED as usize];
    counts[PUT_TO as usize] += PUTS;
    assert_eq!((by_counter.counted, by_counter.misplaced), (counts, 0));
    // The receive queues contain only the uncounted signals and additions of more than 1.
    by_counter.immediates.sort_unstable();
    assert_eq!(by_counter.immediates, [(4, 2), (5, 3), (COUNTED, 1), (COUNTED, 1), (COUNTED + 1, 1)]);

    // With rule `kernel`, all signals of the same kernel are immediates.
    let (by_kernel, same_sums, same_words) = arrived(PutSignalRule::Kernel);
    assert!(by_kernel.counted.is_empty(), "{by_kernel:?}");
    assert_eq!(by_kernel.immediates.len() as u64, u64::from(SIGNALS) + 3 + PUTS);
    assert_eq!((&sums, &words), (&same_sums, &same_words));
    assert_eq!(words, (100..102 + PUTS).collect::<Vec<_>>());
}
