//! Requests in a NIC's queue: the data that the NIC reads after a doorbell.

use super::explore;
use cuda_std::memory::{Doorbell, Word, load_acquire_host_u32, load_acquire_host_u64, load_relaxed_host_u64};
use cuda_std::thread::nanosleep;
use efa_queue::request::{self, To};
use efa_queue::{EfaOperation, Local, rules};
use kernels::direct::{NO_TURN, NicQueue, NicQueueWords, NicTransfer, turn_at};
use kernels::gin::Control;
use loom::sync::Arc;
use loom::thread;
use std::array;

const DEPTH: u32 = 4;

/// Memory of a queue: that of the NIC and that of the device.
struct Memory {
    slots: [Word; DEPTH as usize * request::WORDS],
    doorbell: Doorbell,
    completions: [Word; DEPTH as usize * 2],
    words: NicQueueWords,
    turns: [Word; DEPTH as usize],
    done: [Word; DEPTH as usize],
    abort: Control,
    max_batch: u32,
}

impl Memory {
    fn new(max_batch: u32) -> Arc<Memory> {
        let word = |_| Word::new(0);
        Arc::new(Memory {
            slots: array::from_fn(word),
            doorbell: Doorbell::default(),
            completions: array::from_fn(word),
            words: NicQueueWords::default(),
            turns: array::from_fn(|slot| Word::new(if slot == 0 { turn_at(0) } else { 0 })),
            done: array::from_fn(word),
            abort: Control::default(),
            max_batch,
        })
    }

    /// Returns the queue for one thread.
    fn queue(&self) -> NicQueue {
        NicQueue {
            slots: self.slots.as_ptr(),
            doorbell: &self.doorbell,
            completions: self.completions.as_ptr(),
            counter: std::ptr::null(),
            words: &self.words,
            turns: self.turns.as_ptr(),
            done: self.done.as_ptr(),
            abort: &self.abort,
            timeout_ns: u64::MAX,
            depth: DEPTH,
            max_batch: self.max_batch,
            completion_entries: DEPTH,
            completion_words: 2,
            registers: 1,
            free_below: DEPTH.into(),
            ordered: 0,
            turn: NO_TURN,
        }
    }

    /// Returns the words of a slot.
    fn slot(&self, number: u64) -> &[Word] {
        let at = rules::slot(number, DEPTH) as usize * request::WORDS;
        &self.slots[at..at + request::WORDS]
    }
}

/// Returns a request whose last word identifies the sender.
fn transfer(sender: u64) -> NicTransfer {
    NicTransfer {
        operation: EfaOperation::Write,
        to: To::default(),
        local: Local { address: sender, length: 8, key: 1 },
        address: 0,
        key: 0,
        immediate: None,
    }
}

/// Emulates the NIC: reads `count` requests. Checks that each is complete after its doorbell, and that none is too far
/// ahead of the doorbell.
fn serve(memory: &Memory, count: u64) -> Vec<u64> {
    let (mut seen, mut senders) = (0, Vec::new());
    while seen < count {
        let bell = load_acquire_host_u32(&memory.doorbell);
        let to = rules::rung(seen, 0, bell, DEPTH, DEPTH).expect("a doorbell that goes on");
        for number in seen..to {
            let words = memory.slot(number);
            let first = load_relaxed_host_u64(&words[0]);
            assert!(rules::is_written(first, number, DEPTH), "request {number} is not in its slot");
            senders.push(load_relaxed_host_u64(&words[request::WORDS - 1]));
        }
        if to == seen {
            nanosleep(0);
        }
        seen = to;
        let ahead = seen + u64::from(memory.max_batch);
        if ahead < count {
            let first = load_acquire_host_u64(&memory.slot(ahead)[0]);
            let bell = load_acquire_host_u32(&memory.doorbell);
            assert!(
                !rules::is_written(first, ahead, DEPTH) || u64::from(bell) > seen,
                "request {ahead} is written, and the doorbell says {bell}"
            );
        }
    }
    senders
}

/// Scenario in which `threads` threads post `each` requests each.
fn posts(threads: u64, each: u64, max_batch: u32) {
    explore(2, move || {
        let memory = Memory::new(max_batch);
        let posters: Vec<_> = (1..=threads)
            .map(|sender| {
                let memory = memory.clone();
                thread::spawn(move || {
                    let mut queue = memory.queue();
                    for _ in 0..each {
                        queue.post(&transfer(sender)).expect("posted");
                    }
                })
            })
            .collect();
        let mut senders = serve(&memory, threads * each);
        for poster in posters {
            poster.join().expect("a poster");
        }
        senders.sort_unstable();
        let all: Vec<u64> = (1..=threads).flat_map(|sender| (0..each).map(move |_| sender)).collect();
        assert_eq!(senders, all);
    });
}

#[test]
fn requests_are_complete_before_doorbell() {
    posts(2, 1, 3);
}

/// If the limit is one request without a doorbell, a thread's second request waits for the doorbell of the first.
#[test]
fn batch_limit_is_never_exceeded() {
    posts(2, 1, 1);
}
