//! Waits: completion, pollers and their relay, errors, deadlines.

use super::by_hand::RingFault;
use super::{Cast, Memory, NEVER_ENDS, command, explore, fails, passes, pop};
use cuda_std::memory::{Word, load_relaxed_sys_u64, store_relaxed_sys_u64};
use kernels::ring::Status;
use loom::sync::Arc;
use loom::thread;

/// Two threads wait for two tickets. Both waits end, regardless of which thread polls for the other. Each thread
/// observes the data delivered before its ticket was completed.
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

/// Push, pop, watermark and wait, concurrently.
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

/// The proxy fails after the first ticket. The wait for this ticket succeeds, and the wait for the second one returns
/// the status.
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

/// Three threads wait, two of them for one polling role and one for the other. Both pollers relay, and each thread
/// observes the data delivered before its ticket was completed. (Correctness does not depend on the relay taking the
/// maximum: an older copy is only late.)
fn two_pollers(cast: Cast) {
    // By hand this scenario is only a control, whose faults show without preemption. With one preemption, exploration
    // takes 30 s.
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

/// The ring is full, and the proxy ends after the first ticket. The push that waits for space and the wait for the
/// second ticket return the status; the wait for the first ticket succeeds.
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
fn error_ends_pushes_and_waits() {
    error_everywhere(Cast::Product);
}

/// No proxy runs. A push into the full ring and a wait both time out, regardless of which of them detects the deadline
/// first.
#[test]
fn deadline_ends_push_and_wait() {
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

/// The deadline is close to the completion: each wait either succeeds or returns the deadline. A thread that times out
/// also ends the other thread's wait, unless its ticket is complete.
#[test]
fn deadline_races_with_completion() {
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
fn completion_faults_are_detected() {
    fails(completion, RingFault::WatermarkRelaxed, "delivered");
    fails(completion, RingFault::WatermarkRelayRelaxed, "delivered");
    fails(completion, RingFault::RoleKept, NEVER_ENDS);
    fails(two_pollers, RingFault::WatermarkRelaxed, "delivered");
    fails(two_pollers, RingFault::WatermarkRelayRelaxed, "delivered");
    fails(error_and_watermark, RingFault::StatusBeforeWatermark, "whatever the status");
    fails(error_and_watermark, RingFault::StatusRelayRelaxed, "whatever the status");
    fails(error_and_watermark, RingFault::NoSecondLook, "whatever the status");
}
