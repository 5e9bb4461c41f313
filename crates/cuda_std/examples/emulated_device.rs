//! Measures the overhead of the emulated device: `cargo run --release -p cuda_std --example emulated_device`.
//!
//! Minimum and median of 21 repeats each, with one worker. On a busy machine, use the minimum.

use cuda_std::emulation::{EmulatedGrid, monotonic_ns};
use cuda_std::{thread, warp};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

const REPEATS: usize = 21;
const TIMES: u64 = 200;

/// Returns the minimum and median time of `work` in nanoseconds. Every thread of a block runs it `TIMES` times; the
/// first thread measures.
fn each(threads: u32, work: impl Fn() + Sync) -> [f64; 2] {
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let time = AtomicU64::new(0);
            let body = || {
                thread::sync_threads();
                let before = monotonic_ns();
                for _ in 0..TIMES {
                    work();
                }
                if thread::thread_idx_x() == 0 {
                    time.store(monotonic_ns() - before, Ordering::Relaxed);
                }
            };
            EmulatedGrid::new(1, threads).workers(1).run(body).expect("runs");
            time.into_inner() as f64 / TIMES as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    [times[0], times[REPEATS / 2]]
}

/// Returns the resident memory of this process in bytes, including page tables.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or_default() * 1024
    };
    field("VmRSS:") + field("VmPTE:")
}

fn main() {
    println!("what, least ns, median ns");
    for threads in [4, 32, 256, 1024] {
        let [least, median] = each(threads, thread::sync_threads);
        println!("barrier of {threads} threads, {least:.0}, {median:.0}");
    }
    for threads in [32, 1024] {
        let [least, median] = each(threads, || warp::synchronize(u32::MAX));
        println!("synchronize in each warp of {threads} threads, {least:.0}, {median:.0}");
        let [least, median] = each(threads, || {
            warp::shuffle_u64(u32::MAX, 1, 7);
        });
        println!("shuffle in each warp of {threads} threads, {least:.0}, {median:.0}");
        let [least, median] = each(threads, thread::relax);
        println!("relax of {threads} threads, {least:.0}, {median:.0}");
    }
    let mut times: Vec<u64> = (0..REPEATS)
        .map(|_| {
            let before = monotonic_ns();
            EmulatedGrid::new(1, 256).run(|| ()).expect("runs");
            monotonic_ns() - before
        })
        .collect();
    times.sort_unstable();
    println!("launch of 1 x 256, {}, {}", times[0], times[REPEATS / 2]);

    let grid = EmulatedGrid::new(132, 1024).resident(true).workers(1);
    let (before, most) = (resident(), AtomicU64::new(0));
    let started = monotonic_ns();
    let all_have_begun = AtomicU64::new(0);
    grid.run(|| {
        if thread::thread_idx_x() == 0 {
            all_have_begun.fetch_add(1, Ordering::Relaxed);
            while all_have_begun.load(Ordering::Relaxed) < 132 {
                thread::relax();
            }
        }
        thread::sync_threads();
        if thread::index() == 0 {
            most.store(resident(), Ordering::Relaxed);
        }
    })
    .expect("runs");
    let ms = (monotonic_ns() - started) / 1_000_000;
    let took = (most.into_inner() - before) / 1_000_000;
    println!("132 x 1024 resident threads: {ms} ms, {took} MB, said before: {} MB", grid.bytes() / 1_000_000);
}
