//! A rank that works for a long time, and a rank that is alive without progress.

use super::{LONG, TOKEN, contains, listener, options};
use ginlab::bootstrap::{Bootstrap, BootstrapOptions};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(1);

/// Works for `time` or until `over` returns true, and completes something periodically if `progresses`.
fn work(counter: &AtomicU64, progresses: bool, time: Duration, mut over: impl FnMut() -> bool) {
    let started = Instant::now();
    while started.elapsed() < time && !over() {
        if progresses {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Runs `size` ranks. Those in `workers` work for three timeouts before they enter a barrier, and those in `stuck` are
/// alive but complete nothing.
fn with_workers(size: usize, workers: &[usize], stuck: &[usize]) -> Vec<Result<(), String>> {
    let counters: &'static [AtomicU64] = Box::leak((0..size).map(|_| AtomicU64::new(0)).collect());
    let (listener, address) = listener();
    let interrupted = options(TIMEOUT);
    let options = |rank: usize| BootstrapOptions { progress: &counters[rank], ..interrupted.clone() };
    let body = |mut ranks: Bootstrap| {
        let rank = ranks.rank();
        if workers.contains(&rank) || stuck.contains(&rank) {
            // A loop that waits for a kernel checks its peers.
            let works = workers.contains(&rank);
            let time = if works { 3 * TIMEOUT } else { LONG };
            work(&counters[rank], works, time, || ranks.check_peers().is_err());
        }
        ranks.barrier("a pass is complete").map_err(|error| error.to_string())
    };
    let body = &body;
    std::thread::scope(|scope| {
        let join = |rank| body(Bootstrap::join(&[address], rank, size, TOKEN, options(rank)).unwrap());
        let others: Vec<_> = (1..size).map(|rank| scope.spawn(move || join(rank))).collect();
        let first = body(Bootstrap::serve(listener, size, TOKEN, options(0)).unwrap());
        std::iter::once(first).chain(others.into_iter().map(|other| other.join().unwrap())).collect()
    })
}

#[test]
fn wait_lasts_while_missing_rank_progresses() {
    std::thread::scope(|scope| {
        for (size, workers) in [(2, &[0][..]), (2, &[1]), (3, &[0, 2]), (3, &[2]), (4, &[3, 1])] {
            scope.spawn(move || {
                assert_eq!(with_workers(size, workers, &[]), vec![Ok(()); size], "{workers:?} of {size}");
            });
        }
    });
}

#[test]
fn rank_without_progress_is_named() {
    std::thread::scope(|scope| {
        for (size, workers, stuck) in [(2, &[][..], 0), (2, &[], 1), (3, &[], 2), (4, &[1], 3)] {
            scope.spawn(move || {
                for text in with_workers(size, workers, &[stuck]).into_iter().map(Result::unwrap_err) {
                    contains(&text, &format!("timed out after 1 s waiting for rank {stuck} at \"a pass is complete\""));
                }
            });
        }
    });
}
