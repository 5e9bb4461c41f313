//! Tests of faults at a queue: each aborts every wait and is reported by name.

use crate::common::{QueueRunConfig, QueueRunResult, run, run_with};
use cuda_std::memory::{store_mmio_relaxed_sys_u32, store_mmio_relaxed_sys_u64};
use efa_queue::request::To;
use efa_queue::{CompletionStatus, EfaOperation, Local};
use ginlab_cuda::Device;
use ginlab_gin::direct::{CardOptions, CompletionOrder, QueueFaults, QueueMemory, QueueOptions, SoftNic};
use kernels::direct::{NicTransfer, QueueFailure};
use kernels::ring::Status;
use std::time::Duration;

/// A case with one queue, so that the fault affects every block, and with puts of each thread after the failing one.
fn one_queue() -> QueueRunConfig {
    QueueRunConfig { queues: 1, grid: 2, block: 33, iterations: 3, ..QueueRunConfig::default() }
}

fn with(faults: QueueFaults) -> CardOptions {
    CardOptions { faults, ..CardOptions::default() }
}

/// Checks that all blocks of the grid ended with `status`. Returns the failure of the queue.
fn ended(ran: &QueueRunResult, status: Status) -> QueueFailure {
    assert!(ran.stops.iter().all(|stop| *stop == status), "{ran:?}");
    ran.failures[0].expect("a failure")
}

#[test]
fn every_device_status_is_reported_with_request() {
    for (at, status) in CompletionStatus::ALL.into_iter().enumerate().skip(1) {
        let at = 50 + at as u64;
        let ran = run(&one_queue(), with(QueueFaults { fail: vec![(at, status as u8)], ..QueueFaults::default() }));
        let failure = ended(&ran, Status::FABRIC);
        assert_eq!((failure.card(), failure.number()), (Some(status), at));
        let text = failure.to_string();
        assert!(text.starts_with(&format!("request {at}: {} ({})", status.name(), status as u8)), "{text}");
    }
    let ran = run(&one_queue(), with(QueueFaults { fail: vec![(7, 31)], ..QueueFaults::default() }));
    assert_eq!(ended(&ran, Status::FABRIC).to_string(), "request 7: unknown status 31");
}

#[test]
fn counter_wait_reports_completion_status() {
    let options =
        QueueOptions { by_counter: true, timeout: Duration::from_secs(20), ..QueueRunConfig::default().options };
    let case = QueueRunConfig { options, grid: 1, iterations: 1, ..one_queue() };
    let ran = run(&case, with(QueueFaults { fail: vec![(20, 15)], ..QueueFaults::default() }));
    let failure = ended(&ran, Status::FABRIC);
    assert_eq!((failure.card(), failure.number()), (Some(CompletionStatus::Unreachable), 20));
}

#[test]
fn incomplete_request_is_reported_at_deadline() {
    let options = QueueOptions { timeout: Duration::from_millis(50), ..QueueRunConfig::default().options };
    let case = QueueRunConfig { options, ..one_queue() };
    let ran = run(&case, with(QueueFaults { lose: vec![18], ..QueueFaults::default() }));
    let failure = ended(&ran, Status::DEADLINE);
    assert_eq!((failure.code(), failure.number()), (QueueFailure::DEADLINE, 18), "{failure}");
    let ran = run(&case, with(QueueFaults { dead: Some(3), ..QueueFaults::default() }));
    let failure = ended(&ran, Status::DEADLINE);
    assert_eq!((failure.code(), failure.number()), (QueueFailure::DEADLINE, 3), "{failure}");
    assert!(ran.found[0].wrong.as_ref().is_some_and(|wrong| wrong.contains("dead from request 3")), "{ran:?}");
}

#[test]
fn duplicate_completion_is_reported() {
    for order in [CompletionOrder::Posted, CompletionOrder::Any(3, 4)] {
        let card = CardOptions { order, ..with(QueueFaults { twice: vec![11], ..QueueFaults::default() }) };
        let failure = ended(&run(&one_queue(), card), Status::FABRIC);
        assert_eq!((failure.code(), failure.number()), (QueueFailure::COMPLETION, 11), "{failure}");
    }
}

#[test]
fn completion_queue_overrun_is_reported() {
    let options = QueueOptions { timeout: Duration::from_millis(50), ..QueueRunConfig::default().options };
    let ran = run(
        &QueueRunConfig { options, ..one_queue() },
        with(QueueFaults { overrun: Some(20), ..QueueFaults::default() }),
    );
    let failure = ended(&ran, Status::FABRIC);
    // This is the oldest request whose completion is found; earlier completions may be overwritten by then.
    assert!(failure.code() == QueueFailure::OVERRUN && failure.number() >= 20, "{failure}");
}

#[test]
fn backward_doorbell_stops_kernel() {
    // A doorbell that is overwritten before the NIC polls it is not observed, and requests that complete before the NIC
    // observes it succeed.
    let seen = |ran: &QueueRunResult| ran.found[0].wrong.is_some() && ran.stops.contains(&Status::FABRIC);
    let ran = (0..200).map(|_| run(&QueueRunConfig { back_at: 9, ..one_queue() }, CardOptions::default())).find(seen);
    let ran = ran.expect("a doorbell that the card has seen go back, in 200 runs");
    assert!(ran.stops.iter().all(|stop| [Status(0), Status::FABRIC].contains(stop)), "{ran:?}");
    assert_eq!(ran.failures[0].expect("a failure").card(), Some(CompletionStatus::QueuePair));
    assert!(ran.found[0].wrong.as_ref().is_some_and(|wrong| wrong.contains("moved back by")), "{ran:?}");
}

#[test]
fn host_aborts_waits() {
    let ran = run_with(&one_queue(), with(QueueFaults { dead: Some(0), ..QueueFaults::default() }), |queues, _| {
        queues[0].abort(Status::ENDED.0).expect("the word");
    });
    assert_eq!(ended(&ran, Status::ENDED).to_string(), "aborted by the host");
}

/// Acts before the kernel runs as no kernel of ginlab does: writes the first word of a slot and a doorbell. Returns the
/// reason why the NIC refuses the queue.
fn refused(bell: u32, written: Option<u64>) -> String {
    let options =
        QueueOptions { depth: 32, completions: 32, max_batch: 4, counter: 6, ..QueueRunConfig::default().options };
    let queue = QueueMemory::new(&Device::Emulated, options).expect("a queue");
    let mut seen = queue.queue();
    let transfer = NicTransfer {
        operation: EfaOperation::Write,
        to: To::default(),
        local: Local::default(),
        address: 0,
        key: 0,
        immediate: None,
    };
    // SAFETY: the queue outlives the NIC, and each slot has eight words.
    unsafe {
        for number in [Some(6), written].into_iter().flatten() {
            let first = transfer.request(number, 32)[0];
            store_mmio_relaxed_sys_u64(&*seen.slots.add((number % 32) as usize * 8), first);
        }
        store_mmio_relaxed_sys_u32(&*seen.doorbell, bell);
    }
    let card = CardOptions { yields: true, ..CardOptions::default() };
    // SAFETY: there are no regions.
    let card = unsafe { SoftNic::start(vec![queue], card) }.expect("a card");
    let failure = seen.wait(9).expect_err("the queue pair is in error");
    assert_eq!(failure.card(), Some(CompletionStatus::QueuePair));
    card.finish().expect("the card")[0].wrong.clone().expect("why")
}

#[test]
fn rejected_requests_end_queue() {
    assert_eq!(refused(5, None), "the doorbell moved back by 1 after 6 requests");
    assert_eq!(refused(6 + 33, None), "33 requests are in flight, but the queue has 32 slots");
    assert!(refused(8, None).contains("request 7 is not in its slot"));
    let text = refused(6, Some(10));
    assert_eq!(text, "request 10 is written, but the doorbell is at 6: batches may have at most 4 requests");
    let text = refused(7, Some(11));
    assert_eq!(text, "request 11 is written, but the doorbell is at 7: batches may have at most 4 requests");
}

#[test]
fn invalid_queue_options_are_rejected() {
    let good = QueueRunConfig::default().options;
    for (options, text) in [
        (QueueOptions { depth: 3, ..good }, "invalid queue depth 3:"),
        (QueueOptions { depth: 1 << 16, ..good }, "invalid queue depth 65536:"),
        (QueueOptions { completions: 8, ..good }, "number of completions 8 for 16 slots"),
        (QueueOptions { entry_bytes: 24, ..good }, "invalid completion size 24:"),
        (QueueOptions { max_batch: 16, ..good }, "invalid batch size 16:"),
    ] {
        let refused = QueueMemory::new(&Device::Emulated, options).expect_err(text);
        assert!(refused.to_string().contains(text), "{refused}");
    }
}
