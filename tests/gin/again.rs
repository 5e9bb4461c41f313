//! Launches after a failure: a launch clears the failure of a previous rejected call. A world that has failed
//! permanently launches nothing, and the rest of a series ends immediately.

use super::*;
use cuda_std::memory::{Word, load_acquire_host_u64};
use cuda_std::thread::{block_idx_x, global_timer_ns};
use ginlab::cuda::Stream;

#[derive(Clone, Copy)]
struct RetryArgs {
    words: Sym<u64>,
    signal: Signal,
    /// Whether the kernel runs until the host has ended the world's waits.
    stays: bool,
    /// Value that the signal must reach.
    wanted: u64,
}

/// Delay that exceeds the time after which a wait first reads the host's word, even if its worker sleeps between polls.
const LATE_NS: u64 = 100_000_000;

fn passed(began: u64, ns: u64) -> bool {
    global_timer_ns() - began > ns
}

/// Makes an invalid call.
unsafe fn refused(program: Program<RetryArgs>) {
    let Program { world, args } = program;
    let began = global_timer_ns();
    assert!(world.context(Thread).put(args.words, args.words, world.n_pes()).is_err());
    // SAFETY: the first word of the world's host memory that ends waits.
    let abort = unsafe { &*world.abort.cast::<Word>() };
    while args.stays && load_acquire_host_u64(abort) == 0 && !passed(began, 20_000_000_000) {
        cuda_std::thread::relax();
    }
}

/// One block waits for another one, which is late.
unsafe fn waits(program: Program<RetryArgs>) {
    let Program { world, args } = program;
    let mut line = world.context(Thread);
    let began = global_timer_ns();
    if block_idx_x() == 0 {
        line.signal_wait_until(args.signal, args.wanted).unwrap();
        return;
    }
    while !passed(began, LATE_NS) {
        cuda_std::thread::relax();
    }
    line.signal_op(args.signal, 1, world.my_pe()).unwrap();
}

#[test]
fn rejected_call_does_not_affect_later_launches() {
    for options in both_paths() {
        pes(2, &options, |world, ranks| {
            let (words, signal) = (world.alloc::<u64>(ranks, 64).unwrap(), world.signals(ranks, 1).unwrap());
            for wanted in 1..=4 {
                // The report is read while the kernel runs, or after it has ended.
                let args = RetryArgs { words, signal, stays: wanted % 2 == 1, wanted };
                let text = if args.stays {
                    launch(world, ranks, refused, (1, 1), args).unwrap_err().to_string()
                } else {
                    let device = Device::Emulated;
                    let stream = Stream::new(&device).unwrap();
                    world.prepare().unwrap();
                    let program = Program { world: world.description(), args };
                    let function = device.function(&kernel("a test's kernel", refused), 1).unwrap();
                    // SAFETY: the arguments are of this world, which waits for the stream.
                    unsafe { stream.launch(&function, 1, 1, program) }.unwrap();
                    let event = stream.event().unwrap();
                    while !event.is_complete().unwrap() {
                        std::thread::yield_now();
                    }
                    world.wait_until(ranks, "a test's kernel", || Ok(true)).unwrap_err().to_string()
                };
                assert!(text.contains("put of 512 B with PE 2") && text.contains("refused"), "{text}");
                launch(world, ranks, waits, (2, 1), args).unwrap();
            }
        });
    }
}

#[test]
fn failed_world_rejects_launches() {
    for options in both_paths() {
        let lines = opened(2, &options, |mut world, ranks| {
            let words = world.alloc::<u64>(ranks, 64).unwrap();
            let signal = world.signals(ranks, 1).unwrap();
            // PE 1 exits without closing its world.
            (world.my_pe() == 0).then(|| {
                let args = Calls { call: 7, words, signal };
                let first = launch(&mut world, ranks, one_call, (1, 3), args).unwrap_err();
                let again = launch(&mut world, ranks, one_call, (1, 3), args).unwrap_err();
                assert!(!again.is_timeout() && !first.is_timeout(), "{first}; {again}");
                let prepared = world.prepare().unwrap_err().to_string();
                [first.to_string(), again.to_string(), prepared]
            })
        });
        let [first, again, prepared] = lines[0].clone().unwrap();
        assert!(first.contains("rank 1"), "{first}");
        assert_eq!(again, prepared);
        let said = "this world has failed and launches no more kernels; close it and open another one; cause: ";
        assert_eq!(again, format!("{said}{first}"));
    }
}

#[test]
fn world_with_stopped_proxy_rejects_launches() {
    let options =
        WorldOptions { fault: Some(ginlab::proxy::ProxyFault::Stop(1)), ring_slots: 16, ..emulated(PePath::Rails) };
    opened(2, &options, |mut world, ranks| {
        let words = world.alloc::<u64>(ranks, 64).unwrap();
        let signal = world.signals(ranks, 1).unwrap();
        if world.my_pe() == 0 {
            let args = Calls { call: 8, words, signal };
            let first = launch(&mut world, ranks, one_call, (1, 3), args).unwrap_err().to_string();
            assert!(first.contains("proxy stopped"), "{first}");
            let again = launch(&mut world, ranks, one_call, (1, 3), args).unwrap_err().to_string();
            assert!(again.starts_with("this world has failed"), "{again}");
        }
        let _ = world.barrier(ranks);
    });
}

#[derive(Clone, Copy)]
struct Series {
    signal: Signal,
    /// Number of launches that have started to wait.
    begun: *const AtomicU64,
}

// SAFETY: the word belongs to the test, outlives the grid and is accessed atomically.
unsafe impl Send for Series {}
// SAFETY: the word belongs to the test, outlives the grid and is accessed atomically.
unsafe impl Sync for Series {}

/// Performs one launch of a series, which waits for a PE that has exited.
unsafe fn one_of_a_series(program: Program<Series>) {
    let Program { world, args } = program;
    if world.has_failed_for(&Block) {
        return;
    }
    if cuda_std::thread::thread_idx_x() == 0 {
        // SAFETY: the word outlives the grid.
        unsafe { &*args.begun }.fetch_add(1, Ordering::Relaxed);
    }
    let _ = world.context(Block).signal_wait_until(args.signal, 1);
}

#[test]
fn series_ends_immediately_after_first_failure() {
    for options in both_paths() {
        let begun = opened(2, &options, |mut world, ranks| {
            let signal = world.signals(ranks, 1).unwrap();
            if world.my_pe() == 1 {
                return None;
            }
            let begun = AtomicU64::new(0);
            let device = Device::Emulated;
            let stream = Stream::new(&device).unwrap();
            let program = Program { world: world.description(), args: Series { signal, begun: &raw const begun } };
            let function = device.function(&kernel("a test's kernel", one_of_a_series), 3).unwrap();
            world.prepare().unwrap();
            for _ in 0..300 {
                // SAFETY: the arguments are of this world, which waits for the stream.
                unsafe { stream.launch(&function, 1, 3, program) }.unwrap();
            }
            let error = world.wait_for_stream(ranks, "a series", &stream).unwrap_err();
            assert!(error.to_string().contains("rank 1") && !error.is_timeout(), "{error}");
            assert!(stream.event().unwrap().is_complete().is_ok());
            Some(begun.into_inner())
        });
        assert_eq!(begun[0], Some(1), "launches that waited");
    }
}

/// Tests, for each kind of kernel, all launches of a series of collectives whose other PE has exited.
#[test]
fn collective_series_ends_immediately_after_first_failure() {
    use kernels::collective::messages::COLLECTIVE_MESSAGES_BLOCK;
    use kernels::collective::puts::COLLECTIVE_PUTS_BLOCK;
    use kernels::collective::stores::{COLLECTIVE_STORES, SIGNALS, WORDS, part_bytes};
    use kernels::collective::words::{COLLECTIVE_WORDS_BLOCK, COLLECTIVE_WORDS_PAIR};
    use kernels::collective::{ALL_GATHER, BlockCounters, CollectiveKernelArgs, F32, SIGNALS_OF_BLOCK};

    // Number of launches. If each of them waited after the failure until it reads the host's word, the time limit would
    // end the process.
    const LAUNCHES: usize = 8000;
    const CHUNK: u64 = 64;
    let short = |path| WorldOptions { timeout: Duration::from_millis(50), ..emulated(path) };
    let mapped = [COLLECTIVE_WORDS_BLOCK, COLLECTIVE_WORDS_PAIR, COLLECTIVE_PUTS_BLOCK, COLLECTIVE_STORES];
    let cases = mapped.into_iter().map(|kernel| (PePath::NvLink, kernel));
    for (path, kernel) in cases.chain([(PePath::Rails, COLLECTIVE_MESSAGES_BLOCK)]) {
        opened(2, &short(path), |mut world, ranks| {
            let pes = u64::from(world.n_pes());
            let device = Device::Emulated;
            let buffer = |bytes: usize| device.allocate(MemoryLocation::Device, bytes).unwrap();
            let (state, queue, times) = (buffer(size_of::<BlockCounters>()), buffer(WORDS * 8), buffer(16));
            let args = CollectiveKernelArgs {
                operation: ALL_GATHER,
                element: F32,
                flags: 0,
                local: 2,
                root: 0,
                warmup: 0,
                turns: 1,
                chunk: CHUNK,
                bytes: CHUNK * pes,
                whole: CHUNK,
                slice: CHUNK,
                packet: 1 << 40,
                parts: 1,
                part: part_bytes(2),
                from: world.alloc(ranks, CHUNK).unwrap(),
                to: world.alloc(ranks, CHUNK * pes).unwrap(),
                scratch: world.alloc(ranks, CHUNK * pes).unwrap(),
                inboxes: [world.inbox(ranks, CHUNK).unwrap(), world.inbox(ranks, CHUNK).unwrap()],
                signals: world.signals(ranks, SIGNALS_OF_BLOCK).unwrap(),
                queue: queue.pointer(),
                queue_signals: world.signals(ranks, SIGNALS).unwrap(),
                state: state.pointer(),
                times: times.pointer(),
            };
            if world.my_pe() == 1 {
                return;
            }
            let stream = Stream::new(&device).unwrap();
            let program = Program { world: world.description(), args };
            let function = device.function(&kernel, 4).unwrap();
            world.prepare().unwrap();
            for _ in 0..LAUNCHES {
                // SAFETY: the arguments are of this world, which waits for the stream.
                unsafe { stream.launch(&function, 1, 4, program) }.unwrap();
            }
            let error = world.wait_for_stream(ranks, "a series", &stream).unwrap_err();
            assert!(error.to_string().contains("rank 1") && !error.is_timeout(), "{}: {error}", kernel.name());
        });
    }
}
