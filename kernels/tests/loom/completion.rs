//! Waits: completion, pollers and their relay, errors, deadlines.

use super::by_hand::Fault;
use super::{Cast, Memory, NEVER_ENDS, command, explore, fails, passes, pop};
use cuda_std::memory::{Word, load_relaxed_sys_u64, store_relaxed_sys_u64};
use kernels::ring::Status;
use loom::sync::Arc;
use loom::thread;

/// Two threads wait for two tickets. Both end, whoever polls for the other, and each sees what was delivered before its
/// ticket was done.
fn completion(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let delivered = Arc::new([Word::new(0), Word::new(0)]);
        let waiters = [0, 1].map(|ticket| {
            let (memory, delivered) = (memory.clone(), delivered.clone());
            thread::spawn(move || {
                cast.wait(&mut memory.ring(), ticket).expect("complete");
                assert_eq!(load_relaxed_sys_u64(&delivered[ticket as usize]), 77, "delivered");
            })
        });
        let proxy = cast.proxy(&memory);
        for ticket in [0, 1] {
            store_relaxed_sys_u64(&delivered[ticket as usize], 77);
            proxy.publish_watermark(ticket + 1);
        }
        for waiter in waiters {
            waiter.join().expect("waiter");
        }
    });
}

/// Push, pop, watermark, wait, all at once.
fn put_and_quiet(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let producers = [1, 2].map(|tag| {
            let memory = memory.clone();
            thread::spawn(move || {
                let mut ring = memory.ring();
                let ticket = cast.put(&mut ring, tag).expect("pushed");
                cast.wait(&mut ring, ticket).expect("complete");
            })
        });
        let mut proxy = cast.proxy(&memory);
        pop(&mut *proxy);
        proxy.publish_watermark(1);
        pop(&mut *proxy);
        proxy.publish_watermark(2);
        for producer in producers {
            producer.join().expect("producer");
        }
    });
}

/// The proxy ends by an error after the first ticket: the wait for it succeeds, the wait for the second gets the status.
fn error_and_watermark(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let waiters = [0, 1].map(|ticket| {
            let memory = memory.clone();
            thread::spawn(move || cast.wait(&mut memory.ring(), ticket))
        });
        cast.proxy(&memory).publish_end(1, Status::FABRIC);
        let [first, second] = waiters.map(|waiter| waiter.join().expect("waiter"));
        assert_eq!(first, Ok(()), "a ticket below the watermark is done whatever the status");
        assert_eq!(second, Err(Status::FABRIC));
    });
}

/// Three threads wait, two of them for one poller's role and one for the other's: both pollers relay, and each thread sees
/// what was delivered before its ticket was done. (That the relay takes the maximum is no matter of being right: a copy
/// that goes back is only late.)
fn two_pollers(cast: Cast) {
    // By hand it is a control, and its faults show without a preemption (with one: 30 s of exploring).
    let preemptions = if matches!(cast, Cast::ByHand(_)) { 0 } else { 1 };
    explore(preemptions, move || {
        let memory = Memory::new();
        let delivered = Arc::new([Word::new(0), Word::new(0)]);
        let waiters = [(0, 0), (1, 1), (0, 1)].map(|(role, ticket)| {
            let (memory, delivered) = (memory.clone(), delivered.clone());
            thread::spawn(move || {
                cast.wait_as(&mut memory.ring(), role, ticket).expect("complete");
                assert_eq!(load_relaxed_sys_u64(&delivered[ticket as usize]), 77, "delivered");
            })
        });
        let proxy = cast.proxy(&memory);
        for ticket in [0, 1] {
            store_relaxed_sys_u64(&delivered[ticket as usize], 77);
            proxy.publish_watermark(ticket + 1);
        }
        for waiter in waiters {
            waiter.join().expect("waiter");
        }
    });
}

/// A full ring, and the proxy ends after the first ticket: the push that waits for space gets the status, so does the wait
/// for the second ticket, and the wait for the first succeeds.
fn error_everywhere(cast: Cast) {
    explore(1, move || {
        let memory = Memory::new();
        for tag in [1, 2] {
            cast.push(&mut memory.ring(), tag).expect("a free slot");
        }
        let pusher = {
            let memory = memory.clone();
            thread::spawn(move || cast.push(&mut memory.ring(), 3).map(drop))
        };
        let waiters = [0, 1].map(|ticket| {
            let memory = memory.clone();
            thread::spawn(move || cast.wait_as(&mut memory.ring(), ticket as usize, ticket))
        });
        cast.proxy(&memory).publish_end(1, Status::FABRIC);
        let [first, second] = waiters.map(|waiter| waiter.join().expect("waiter"));
        assert_eq!(first, Ok(()), "a ticket below the watermark is done whatever the status");
        assert_eq!((second, pusher.join().expect("pusher")), (Err(Status::FABRIC), Err(Status::FABRIC)));
    });
}

#[test]
fn completion_passes() {
    passes(completion);
}

#[test]
fn put_and_quiet_pass() {
    put_and_quiet(Cast::Product);
}

#[test]
fn error_and_watermark_pass() {
    passes(error_and_watermark);
}

#[test]
fn two_pollers_pass() {
    passes(two_pollers);
}

#[test]
fn an_error_ends_pushes_and_waits() {
    error_everywhere(Cast::Product);
}

/// No proxy at all: a push into the full ring and a wait both end by the deadline, whichever comes to it first.
#[test]
fn the_deadline_ends_push_and_wait() {
    explore(2, || {
        let memory = Memory::with_timeout(1);
        for tag in [1, 2] {
            Cast::Product.push(&mut memory.ring(), tag).expect("a free slot");
        }
        let pusher = {
            let memory = memory.clone();
            thread::spawn(move || memory.ring().push(&command(3)).map(|_| ()))
        };
        let waiters = [0, 1].map(|ticket| {
            let memory = memory.clone();
            thread::spawn(move || memory.ring().wait(ticket).map(drop))
        });
        for thread in waiters.into_iter().chain([pusher]) {
            assert_eq!(thread.join().expect("thread"), Err(Status::DEADLINE));
        }
    });
}

/// A deadline that comes close to the completion: done or late, nothing else, and a thread that is late ends the other
/// unless that one is done.
#[test]
fn the_deadline_races_with_the_completion() {
    explore(2, || {
        let memory = Memory::with_timeout(1);
        let waiters = [0, 1].map(|ticket| {
            let memory = memory.clone();
            thread::spawn(move || memory.ring().wait(ticket).map(drop))
        });
        Cast::Product.proxy(&memory).publish_watermark(1);
        let [first, second] = waiters.map(|waiter| waiter.join().expect("waiter"));
        assert!(first == Ok(()) || first == Err(Status::DEADLINE), "{first:?}");
        assert_eq!(second, Err(Status::DEADLINE));
    });
}

#[test]
fn faults_of_the_completion_are_caught() {
    fails(completion, Fault::WatermarkRelaxed, "delivered");
    fails(completion, Fault::WatermarkRelayRelaxed, "delivered");
    fails(completion, Fault::RoleKept, NEVER_ENDS);
    fails(two_pollers, Fault::WatermarkRelaxed, "delivered");
    fails(two_pollers, Fault::WatermarkRelayRelaxed, "delivered");
    fails(error_and_watermark, Fault::StatusBeforeWatermark, "whatever the status");
    fails(error_and_watermark, Fault::StatusRelayRelaxed, "whatever the status");
    fails(error_and_watermark, Fault::NoSecondLook, "whatever the status");
}
