//! Tests of stalls, and of the order in which an engine is closed.

use super::{AMPLE, Bench, put};
use crate::engine::EngineError;
use ginlab_fabric::Completion;
use std::time::Duration;

#[track_caller]
fn stalls(bench: &mut Bench) -> String {
    match bench.engine.check_stall() {
        Err(EngineError::Stalled { state, .. }) => state,
        other => panic!("a stall was expected: {other:?}"),
    }
}

/// Two checks without progress in between are a stall if the timeout is zero.
#[test]
fn stall_requires_two_polls_without_own_progress() {
    let mut bench = Bench::new(2, 8, Duration::ZERO);
    for _ in 0..3 {
        assert_eq!(bench.engine.check_stall(), Ok(()), "nothing is in flight");
    }
    bench.submit(put(0, 0, 8));
    bench.submit(put(0, 0, 8));
    bench.pump();
    assert_eq!(bench.engine.check_stall(), Ok(()), "the first look at it");
    let state = stalls(&mut bench);
    assert!(
        state.starts_with(
            "2 commands in flight above watermark 0, 2 transfers posted but not complete, 0 in staging, 0 "
        ),
        "{state}"
    );
    assert!(state.ends_with("rail 0 posted 16 B, 0 waiting to be posted; rail 1 posted 0 B, 0 waiting to be posted"));
    // Immediates from peers are not progress of our own transfers.
    bench.rails[0].borrow_mut().ready.push(Completion::Immediate { value: 1 });
    bench.progress().unwrap();
    stalls(&mut bench);
    bench.complete(&[0]);
    bench.progress().unwrap();
    assert_eq!(bench.engine.check_stall(), Ok(()));
    stalls(&mut bench);
    bench.complete(&[1]);
    bench.progress().unwrap();
    assert_eq!(bench.engine.check_stall(), Ok(()));
    assert_eq!(bench.engine.check_stall(), Ok(()), "nothing is in flight any more");
    // Idle time is not a stall.
    bench.submit(put(0, 0, 8));
    assert_eq!(bench.engine.check_stall(), Ok(()));
    stalls(&mut bench);
}

#[test]
fn empty_put_counts_as_progress() {
    let mut bench = Bench::new(1, 8, Duration::ZERO);
    bench.submit(put(0, 0, 8));
    assert_eq!(bench.engine.check_stall(), Ok(()));
    bench.submit(put(0, 0, 0));
    assert_eq!(bench.engine.check_stall(), Ok(()));
}

#[test]
fn engine_reports_no_stall_within_timeout() {
    let mut bench = Bench::new(1, 8, AMPLE);
    bench.submit(put(0, 0, 8));
    for _ in 0..3 {
        assert_eq!(bench.engine.check_stall(), Ok(()));
    }
}

const WHOLE: [&str; 6] =
    ["region of rail 0", "region of rail 1", "region of rail 0", "region of rail 1", "rail 0", "rail 1"];

#[test]
fn idle_engine_immediately_closes_regions_before_rails() {
    let bench = Bench::new(2, 8, AMPLE);
    drop(bench.engine);
    assert_eq!(*bench.closed.borrow(), WHOLE);
    assert_eq!(bench.rails[0].borrow().polls, 0);
}

/// The registration of a posted transfer's memory is not closed before the transfer is complete.
#[test]
fn posted_transfers_complete_before_close() {
    let mut bench = Bench::new(2, 8, AMPLE);
    bench.rails[0].borrow_mut().completes_after = Some(10);
    (0..3).for_each(|_| _ = bench.submit(put(0, 0, 8)));
    bench.pump();
    assert_eq!(bench.engine.posted(), 3);
    drop(bench.engine);
    assert_eq!(bench.rails[0].borrow().polls, 11);
    assert!(bench.rails[0].borrow().written.is_empty());
    assert_eq!(*bench.closed.borrow(), WHOLE);
}

#[test]
fn incomplete_transfers_are_leaked_within_timeout() {
    let mut bench = Bench::new(2, 8, Duration::from_millis(2));
    bench.submit(put(0, 0, 8));
    bench.pump();
    drop(bench.engine);
    assert_eq!(*bench.closed.borrow(), [""; 0], "neither registration nor rail");
    assert!(bench.rails[0].borrow().polls > 0);

    // An unsuccessful drain is not repeated.
    let mut bench = Bench::new(1, 8, Duration::from_millis(2));
    bench.submit(put(0, 0, 8));
    bench.pump();
    bench.engine.drain();
    let polls = bench.rails[0].borrow().polls;
    drop(bench.engine);
    assert_eq!((bench.rails[0].borrow().polls, bench.closed.borrow().len()), (polls, 0));
}

#[test]
fn panicked_rail_is_not_called_again() {
    let mut bench = Bench::new(1, 8, AMPLE);
    bench.submit(put(0, 0, 8));
    bench.pump();
    bench.rails[0].borrow_mut().panics = true;
    let closed = bench.closed.clone();
    // A second panic during unwinding would abort the process.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _ = bench.engine.progress(&mut ());
    }));
    assert!(outcome.is_err() && closed.borrow().is_empty());
}
