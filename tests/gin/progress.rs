//! Events that restart a deadline: progress of other blocks, messages, and progress that a kernel reports.

use super::{emulated, kernel, met_with, pes};
use ginlab::bootstrap::{self, Bootstrap};
use ginlab::gin::{GinError, Inbox, PePath, Program, Signal, World, WorldOptions};
use kernels::gin::{Grid, Thread};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Arguments of the three kinds of blocks of [`one_signals_now_and_then`].
#[derive(Clone, Copy)]
struct NowAndThen {
    signal: Signal,
    blocks: *const AtomicU64,
    /// Total number of signals, and nanoseconds from one to the next.
    pace: (u64, u64),
}

// SAFETY: the word belongs to the test, outlives the grid and is accessed atomically.
unsafe impl Send for NowAndThen {}
// SAFETY: the word belongs to the test, outlives the grid and is accessed atomically.
unsafe impl Sync for NowAndThen {}

/// Block 0 signals `pace.0` times, block 1 waits for each signal, block 2 for all of them, and the others wait for
/// these blocks.
unsafe fn one_signals_now_and_then(program: Program<NowAndThen>) {
    let Program { world, args: NowAndThen { signal, blocks, pace: (count, every) } } = program;
    // SAFETY: the word is 0 at the launch.
    let mut grid = unsafe { Grid::new(&world, blocks.cast(), &Thread) };
    let mut line = world.context(Thread);
    let mut done = Ok(());
    match cuda_std::thread::block_idx_x() {
        0 => {
            // Without signals this block never reaches the grid barrier.
            while count == 0 && !world.has_failed() {
                cuda_std::thread::nanosleep(100_000);
            }
            let mut due = cuda_std::thread::global_timer_ns();
            for _ in 0..count {
                due += every;
                while cuda_std::thread::global_timer_ns() < due {
                    cuda_std::thread::nanosleep(100_000);
                }
                done = done.and(line.signal_op(signal, 1, world.my_pe()));
            }
        }
        1 => done = (1..=count).try_for_each(|number| line.signal_wait_until(signal, number)),
        2 => done = line.signal_wait_until(signal, count),
        _ => {}
    }
    let _ = grid.sync(done);
}

/// Launches [`one_signals_now_and_then`] with `timeout` for its waits, which is shorter than the world's timeout.
fn now_and_then(timeout: Duration, pace: (u64, u64)) -> Result<(), GinError> {
    let run = |world: &mut World, ranks: &mut Bootstrap| {
        let (signal, blocks) = (world.signals(ranks, 1).unwrap(), AtomicU64::new(0));
        let own = kernels::gin::WorldView { timeout_ns: timeout.as_nanos() as u64, ..world.description() };
        let program = Program { world: own, args: NowAndThen { signal, blocks: &raw const blocks, pace } };
        world.prepare().unwrap();
        let kernel = kernel("a test's kernel", one_signals_now_and_then);
        // SAFETY: the word outlives the grid, for which this function waits.
        let mut launch = unsafe { world.device().launch(&kernel, 4, 1, program) }.unwrap();
        world.wait_until(ranks, "a test's kernel", || launch.is_done())
    };
    pes(1, &emulated(PePath::NvLink), run).remove(0)
}

#[test]
fn block_barrier_lasts_while_signals_arrive() {
    now_and_then(Duration::from_millis(400), (12, 100_000_000)).unwrap();
}

#[test]
fn sync_without_progress_is_reported() {
    let text = now_and_then(Duration::from_millis(200), (0, 0)).unwrap_err().to_string();
    assert!(text.contains("grid.sync, which had reached ") && text.contains(" of 4 blocks: deadline passed"), "{text}");
}

/// Emulates a kernel. The host observes only the effects of `step`, which is called every few milliseconds. Runs for
/// longer than a kernel without progress is allowed to.
fn goes_on_by(step: impl Fn(&kernels::gin::WorldView, Inbox, u64) + Sync) -> Result<(), GinError> {
    let options = WorldOptions { timeout: Duration::from_millis(50), ..emulated(PePath::NvLink) };
    let run = |world: &mut World, ranks: &mut Bootstrap| {
        let inbox = world.inbox(ranks, 64).unwrap();
        let words = world.description();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // If threads share cores, the host waits twice as long.
        let time = Duration::from_nanos(words.timeout_ns) * if cores < 2 { 5 } else { 3 };
        let (started, mut number) = (Instant::now(), 0);
        // SAFETY: host memory of the world, accessed atomically.
        let asked = || cuda_std::memory::load_acquire_host_u64(unsafe { &(*words.abort).abort }) != 0;
        world.wait_until(ranks, "a kernel", || {
            number += 1;
            step(&words, inbox, number);
            Ok(started.elapsed() > time || asked())
        })
    };
    pes(1, &options, run).remove(0)
}

/// Makes progress only by messages, whose words contain the number of their round.
#[test]
fn messages_count_as_progress() {
    let store = |world: &kernels::gin::WorldView, inbox: Inbox, round: u64| {
        let slot = inbox.offset + round % Inbox::ROUNDS * 2 * inbox.capacity;
        // SAFETY: a word of the heap that no other thread accesses.
        unsafe { world.heap.add(slot as usize).cast::<u64>().write_volatile(round << 32) };
    };
    let recorded = || ginlab::progress::counter().load(Ordering::Relaxed);
    let before = recorded();
    goes_on_by(store).unwrap();
    // Other ranks are notified of the progress. The end of the wait also counts once.
    assert!(recorded() > before + 1);
}

/// PE 0's kernel waits for longer than its timeout for PE 1, which works on its host before it signals.
#[test]
fn progress_of_other_rank_restarts_kernel_deadlines() {
    const TIMEOUT: Duration = Duration::from_millis(800);
    unsafe fn waits(program: Program<Signal>) {
        let Program { world, args: signal } = program;
        let mut line = world.context(Thread);
        if world.my_pe() == 0 { line.signal_wait_until(signal, 1) } else { line.signal_op(signal, 1, 0) }.unwrap();
    }
    static COUNTERS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    // Ranks report at least every quarter of this.
    let settings =
        |rank: usize| bootstrap::BootstrapOptions { timeout: TIMEOUT, progress: &COUNTERS[rank], ..Default::default() };
    met_with(2, &settings, |mut ranks| {
        let (mut world, ranks) = (World::open(&mut ranks, &emulated(PePath::NvLink)).unwrap(), &mut ranks);
        let signal = world.signals(ranks, 1).unwrap();
        let started = Instant::now();
        while world.my_pe() == 1 && started.elapsed() < 3 * TIMEOUT {
            COUNTERS[1].fetch_add(1, Ordering::Relaxed);
            std::thread::park_timeout(Duration::from_millis(10));
        }
        let own = kernels::gin::WorldView { timeout_ns: TIMEOUT.as_nanos() as u64, ..world.description() };
        world.prepare().unwrap();
        let kernel = kernel("a test's kernel", waits);
        // SAFETY: the signal is of this world, which waits for the grid.
        let mut launch = unsafe { world.device().launch(&kernel, 1, 1, Program { world: own, args: signal }) }.unwrap();
        world.wait_until(ranks, "a test's kernel", || launch.is_done()).unwrap();
        world.close(ranks).unwrap();
    });
}

#[test]
fn reported_progress_extends_wait() {
    goes_on_by(|world, _, _| world.progressed()).unwrap();
}
