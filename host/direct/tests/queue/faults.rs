//! What goes wrong at the queue ends every wait, by name.

use crate::common::{Case, Ran, run, run_with};
use cuda_std::memory::{store_mmio_relaxed_sys_u32, store_mmio_relaxed_sys_u64};
use efa_queue::request::To;
use efa_queue::{Local, Operation, Status as CardStatus};
use ginlab_cuda::Device;
use ginlab_direct::{Card, CardOptions, Faults, Order, QueueMemory, QueueOptions};
use kernels::direct::{Failure, Transfer};
use kernels::ring::Status;
use std::time::Duration;

/// One queue, so that every block meets the fault. Each thread has puts behind the one that fails.
fn one_queue() -> Case {
    Case { queues: 1, grid: 2, block: 33, iterations: 3, ..Case::default() }
}

fn with(faults: Faults) -> CardOptions {
    CardOptions { faults, ..CardOptions::default() }
}

/// All blocks of the grid have ended by this reason, and the queue by this failure.
fn ended(ran: &Ran, status: Status) -> Failure {
    assert!(ran.stops.iter().all(|stop| *stop == status), "{ran:?}");
    ran.failures[0].expect("a failure")
}

#[test]
fn every_status_of_the_card_is_named_with_its_request() {
    for (at, status) in CardStatus::ALL.into_iter().enumerate().skip(1) {
        let at = 50 + at as u64;
        let ran = run(&one_queue(), with(Faults { fail: vec![(at, status as u8)], ..Faults::default() }));
        let failure = ended(&ran, Status::FABRIC);
        assert_eq!((failure.card(), failure.number()), (Some(status), at));
        let text = failure.to_string();
        assert!(text.starts_with(&format!("request {at}: {} ({})", status.name(), status as u8)), "{text}");
    }
    let ran = run(&one_queue(), with(Faults { fail: vec![(7, 31)], ..Faults::default() }));
    assert_eq!(ended(&ran, Status::FABRIC).to_string(), "request 7: status 31, which has no name");
}

#[test]
fn who_waits_by_a_counter_finds_the_status_too() {
    let options = QueueOptions { by_counter: true, timeout: Duration::from_secs(20), ..Case::default().options };
    let case = Case { options, grid: 1, iterations: 1, ..one_queue() };
    let ran = run(&case, with(Faults { fail: vec![(20, 15)], ..Faults::default() }));
    let failure = ended(&ran, Status::FABRIC);
    assert_eq!((failure.card(), failure.number()), (Some(CardStatus::Unreachable), 20));
}

#[test]
fn what_never_ends_is_named_at_the_deadline() {
    let options = QueueOptions { timeout: Duration::from_millis(50), ..Case::default().options };
    let case = Case { options, ..one_queue() };
    let ran = run(&case, with(Faults { lose: vec![18], ..Faults::default() }));
    let failure = ended(&ran, Status::DEADLINE);
    assert_eq!((failure.code(), failure.number()), (Failure::DEADLINE, 18), "{failure}");
    let ran = run(&case, with(Faults { dead: Some(3), ..Faults::default() }));
    let failure = ended(&ran, Status::DEADLINE);
    assert_eq!((failure.code(), failure.number()), (Failure::DEADLINE, 3), "{failure}");
    assert!(ran.found[0].wrong.as_ref().is_some_and(|wrong| wrong.contains("dead from request 3")), "{ran:?}");
}

#[test]
fn a_completion_that_comes_twice_is_named() {
    for order in [Order::Posted, Order::Any(3, 4)] {
        let card = CardOptions { order, ..with(Faults { twice: vec![11], ..Faults::default() }) };
        let failure = ended(&run(&one_queue(), card), Status::FABRIC);
        assert_eq!((failure.code(), failure.number()), (Failure::COMPLETION, 11), "{failure}");
    }
}

#[test]
fn an_overrun_of_the_completion_queue_is_named() {
    let options = QueueOptions { timeout: Duration::from_millis(50), ..Case::default().options };
    let ran = run(&Case { options, ..one_queue() }, with(Faults { overrun: Some(20), ..Faults::default() }));
    let failure = ended(&ran, Status::FABRIC);
    // The oldest whose completion is found: those before it may be written over by then.
    assert!(failure.code() == Failure::OVERRUN && failure.number() >= 20, "{failure}");
}

#[test]
fn a_kernel_that_rings_back_is_stopped() {
    // A doorbell that is rung over before the card looks is not seen, and what has ended before it is seen has ended well.
    let seen = |ran: &Ran| ran.found[0].wrong.is_some() && ran.stops.contains(&Status::FABRIC);
    let ran = (0..200).map(|_| run(&Case { back_at: 9, ..one_queue() }, CardOptions::default())).find(seen);
    let ran = ran.expect("a doorbell that the card has seen go back, in 200 runs");
    assert!(ran.stops.iter().all(|stop| [Status(0), Status::FABRIC].contains(stop)), "{ran:?}");
    assert_eq!(ran.failures[0].expect("a failure").card(), Some(CardStatus::QueuePair));
    assert!(ran.found[0].wrong.as_ref().is_some_and(|wrong| wrong.contains("Back(")), "{ran:?}");
}

#[test]
fn the_host_ends_waits() {
    let ran = run_with(&one_queue(), with(Faults { dead: Some(0), ..Faults::default() }), |queues, _| {
        queues[0].abort(Status::ENDED.0).expect("the word");
    });
    assert_eq!(ended(&ran, Status::ENDED).to_string(), "ended by the host");
}

/// What no kernel of ours does, before the kernel's own: a doorbell, and the first word of a slot.
fn refused(bell: u32, written: Option<u64>) -> String {
    let options = QueueOptions { depth: 32, completions: 32, max_batch: 4, counter: 6, ..Case::default().options };
    let queue = QueueMemory::new(&Device::Emulated, options).expect("a queue");
    let mut seen = queue.queue();
    let transfer = Transfer {
        operation: Operation::Write,
        to: To::default(),
        local: Local::default(),
        address: 0,
        key: 0,
        immediate: None,
    };
    // SAFETY: the queue lives until the card has ended; slots have so many words.
    unsafe {
        for number in [Some(6), written].into_iter().flatten() {
            let first = transfer.request(number, 32)[0];
            store_mmio_relaxed_sys_u64(&*seen.slots.add((number % 32) as usize * 8), first);
        }
        store_mmio_relaxed_sys_u32(&*seen.doorbell, bell);
    }
    let card = CardOptions { yields: true, ..CardOptions::default() };
    // SAFETY: no regions.
    let card = unsafe { Card::start(vec![queue], card) }.expect("a card");
    let failure = seen.wait(9).expect_err("the queue pair is in error");
    assert_eq!(failure.card(), Some(CardStatus::QueuePair));
    card.finish().expect("the card")[0].wrong.clone().expect("why")
}

#[test]
fn what_a_card_does_not_take_ends_the_queue() {
    assert!(refused(5, None).contains("Back(1)"));
    assert!(refused(6 + 33, None).contains("Batch(33)"));
    assert!(refused(8, None).contains("request 7 is not in its slot"));
    let text = refused(7, Some(11));
    assert_eq!(text, "request 11 is written, and the doorbell says 7: batches of 4");
}

#[test]
fn options_that_no_card_has_are_refused() {
    let good = Case::default().options;
    for (options, text) in [
        (QueueOptions { depth: 3, ..good }, "a queue of 3 slots"),
        (QueueOptions { depth: 1 << 16, ..good }, "a queue of 65536 slots"),
        (QueueOptions { completions: 8, ..good }, "8 completions for 16 slots"),
        (QueueOptions { entry_bytes: 24, ..good }, "completions of 24 bytes"),
        (QueueOptions { max_batch: 16, ..good }, "batches of 16"),
    ] {
        let refused = QueueMemory::new(&Device::Emulated, options).expect_err(text);
        assert!(refused.to_string().contains(text), "{refused}");
    }
}
