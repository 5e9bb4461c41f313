//! Tests of errors around barriers: each aborts the grid, and the message contains the source lines.

use super::*;

/// Returns the line numbers of all `barriers.rs:LINE:` in a message, in order.
fn lines(text: &str) -> Vec<u32> {
    let file = concat!(file!(), ":");
    let number = |rest: &str| rest.split(':').next().and_then(|line| line.parse().ok());
    text.split(file).skip(1).filter_map(number).collect()
}

/// Asserts that the grid fails in all orders. Returns the message of the unseeded run.
fn fails_in_all_orders(blocks: u32, threads: u32, body: impl Fn() + Sync) -> String {
    let text = failure(EmulatedGrid::new(blocks, threads), &body);
    for seed in 0..10 {
        let seeded = failure(EmulatedGrid::new(blocks, threads).seeded(seed), &body);
        assert!(seeded.contains("must meet") || seeded.contains("no thread may return"), "{seed}: {seeded}");
    }
    text
}

#[test]
#[expect(clippy::if_same_then_else, reason = "the same call at two places is the fault")]
fn threads_at_two_barriers_are_reported_with_lines() {
    let line = line!();
    let text = fails_in_all_orders(2, 8, || {
        if thread::thread_idx_x() == 5 {
            thread::sync_threads();
        } else {
            thread::sync_threads();
        }
    });
    let mut found = lines(&text);
    found.sort_unstable();
    assert_eq!(found, [line + 3, line + 5], "{text}");
    assert!(text.contains("thread 5 waits at") && text.contains("all threads of a block must meet"), "{text}");
}

/// The hardware forbids mixing the two. A library function can contain both, attributed to one line of its caller.
#[test]
fn voting_barrier_differs_from_plain_barrier() {
    #[track_caller]
    fn call() {
        if thread::thread_idx_x() == 0 {
            thread::sync_threads();
        } else {
            thread::sync_threads_or(false);
        }
    }
    let line = line!() + 1;
    let text = fails_in_all_orders(1, 8, || call());
    assert_eq!(lines(&text), [line, line], "{text}");
    assert!(text.contains("(sync_threads)") && text.contains("(sync_threads_or)"), "{text}");
}

#[test]
fn barrier_in_loop_is_one_site() {
    for seed in 0..10 {
        let body = || {
            let mut round = 0;
            loop {
                thread::sync_threads();
                round += 1;
                if thread::sync_threads_or(thread::thread_idx_x() == 3 && round == 5) {
                    break;
                }
            }
        };
        EmulatedGrid::new(2, 40.min(8 + 32 * seed)).seeded(seed.into()).run(body).expect("runs");
    }
}

#[test]
fn early_return_is_reported_with_both_sites() {
    let line = line!();
    let text = fails_in_all_orders(2, 8, || {
        thread::sync_threads();
        if thread::index() == 13 {
            return;
        }
        thread::sync_threads_or(false);
    });
    assert!(text.contains("block 1: thread 5 has returned (last met other threads at "), "{text}");
    assert_eq!(lines(&text), [line + 2, line + 6], "{text}");
    let text = fails_in_all_orders(1, 8, || {
        if thread::thread_idx_x() != 0 {
            thread::sync_threads();
        }
    });
    assert!(text.contains("thread 0 has returned (has not met other threads)"), "{text}");
}

/// The hardware then lets the other threads pass, or reports "illegal instruction".
#[test]
fn early_return_of_warp_is_reported() {
    let line = line!();
    let text = fails_in_all_orders(1, 96, || {
        if thread::thread_idx_x() / 32 == 1 {
            return;
        }
        thread::sync_threads();
    });
    assert!(text.contains("has returned") && lines(&text) == [line + 5], "{text}");
}

#[test]
fn early_return_of_block_is_allowed() {
    run(3, 40, || {
        if thread::block_idx_x() == 1 {
            return;
        }
        for _ in 0..3 {
            thread::sync_threads();
        }
    })
    .expect("runs");
}
