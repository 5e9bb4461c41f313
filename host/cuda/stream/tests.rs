//! Tests of streams on the emulated device.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn complete(event: &Event) -> Result<(), DeviceError> {
    while !event.is_complete()? {
        std::thread::yield_now();
    }
    Ok(())
}

unsafe fn add(args: (u64, u64)) {
    // SAFETY: the tests pass the address of a word that only one stream uses at a time.
    unsafe { *(args.0 as *mut u64) = *(args.0 as *const u64) * 10 + args.1 };
}

const ADD: Function<(u64, u64)> = Function::Native { name: "add", function: add, resident: false };

#[test]
fn oversized_resident_grid_is_rejected_before_enqueue() {
    let stream = Stream::new(&Device::Emulated).unwrap();
    let word = Box::new(0u64);
    let address = &raw const *word as u64;
    let waits = Function::Native { name: "waits", function: add, resident: true };
    // SAFETY: nothing is launched.
    let refused = unsafe { stream.launch(&waits, 133, 1024, (address, 1)) }.unwrap_err().to_string();
    assert!(refused.contains("of waits must be resident, and at most 132 blocks of 1024 threads"), "{refused}");
    complete(&stream.event().unwrap()).unwrap();
    assert_eq!(*word, 0);
}

#[test]
fn recorded_work_runs_in_order_on_replay() {
    let stream = Stream::new(&Device::Emulated).unwrap();
    let word = Box::new(0u64);
    let address = &raw const *word as u64;
    // SAFETY: the word outlives the stream's work, because the test waits for the events below.
    let append = |stream: &Stream, digit: u64| unsafe { stream.launch(&ADD, 1, 1, (address, digit)) };
    let first = stream.event().unwrap();
    append(&stream, 1).unwrap();
    let graph = stream.record(|stream| append(stream, 2).and_then(|()| append(stream, 3))).unwrap();
    append(&stream, 4).unwrap();
    // SAFETY: the word outlives the stream's work, because the test waits for the events below.
    unsafe { stream.replay(&graph).and_then(|()| stream.replay(&graph)) }.unwrap();
    let last = stream.event().unwrap();
    complete(&last).unwrap();
    // SAFETY: all work that writes the word has ended.
    assert_eq!(unsafe { (address as *const u64).read_volatile() }, 142_323);
    assert!(last.since_us(&first).unwrap() > 0.0);
}

unsafe fn await_word(address: u64) {
    // SAFETY: the test passes the address of a word that it accesses only atomically.
    let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
    while word.load(Ordering::Acquire) == 0 {
        cuda_std::thread::relax();
    }
}

#[test]
fn discarded_work_is_not_started() {
    let stream = Stream::new(&Device::Emulated).unwrap();
    let (gate, word) = (AtomicU64::new(0), Box::new(0u64));
    let (gate_address, address) = (gate.as_ptr() as u64, &raw const *word as u64);
    let waits: Function<u64> = Function::Native { name: "await_word", function: await_word, resident: false };
    // SAFETY: here and below, the words outlive the stream's work, because the test waits for the event.
    unsafe { stream.launch(&waits, 1, 1, gate_address) }.unwrap();
    for _ in 0..3 {
        // SAFETY: see above.
        unsafe { stream.launch(&ADD, 1, 1, (address, 1)) }.unwrap();
    }
    stream.discard();
    // SAFETY: see above.
    unsafe { stream.launch(&ADD, 1, 1, (address, 2)) }.unwrap();
    let end = stream.event().unwrap();
    gate.store(1, Ordering::Release);
    complete(&end).unwrap();
    // SAFETY: all work that writes the word has ended.
    assert_eq!(unsafe { (address as *const u64).read_volatile() }, 2);
}

#[test]
fn stream_waits_for_event_and_stops_on_error() {
    let [first, second] = [(), ()].map(|()| Stream::new(&Device::Emulated).unwrap());
    let word = Box::new(7u64);
    let address = &raw const *word as u64;
    // SAFETY: the word outlives both streams' work, and the second stream waits for the first.
    unsafe { first.launch(&ADD, 1, 1, (address, 1)) }.unwrap();
    second.wait_for(&first.event().unwrap()).unwrap();
    // SAFETY: the word outlives both streams' work, and the second stream waits for the first.
    unsafe { second.launch(&ADD, 1, 1, (address, 2)) }.unwrap();
    let bad = cuda_std::emulation::MAX_BLOCK + 1;
    // SAFETY: the word outlives both streams' work, and this grid is refused before it runs.
    unsafe { second.launch(&ADD, 1, bad, (address, 3)) }.unwrap();
    // SAFETY: the word outlives both streams' work, and this grid does not run after the error.
    unsafe { second.launch(&ADD, 1, 1, (address, 4)) }.unwrap();
    let error = complete(&second.event().unwrap()).unwrap_err();
    assert!(error.to_string().contains("invalid grid"), "{error}");
    // SAFETY: all work that writes the word has ended.
    assert_eq!(unsafe { (address as *const u64).read_volatile() }, 712);
}
