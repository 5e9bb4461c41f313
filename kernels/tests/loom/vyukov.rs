//! Vyukov's queue with two producers and two cells: concurrent pushes and pops, and the possible faults of such a
//! queue.

use super::{NEVER_ENDS, explore};
use cuda_std::memory::{
    Word, compare_exchange_relaxed_gpu_u64, load_acquire_sys_u64, load_relaxed_sys_u64, store_relaxed_sys_u64,
    store_release_sys_u64,
};
use cuda_std::thread::nanosleep;
use kernels::queue::vyukov::{Vyukov, VyukovConsumer, VyukovWords};
use kernels::ring::{CachePadded, Status};
use loom::sync::Arc;
use loom::thread;
use std::panic::catch_unwind;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The producer advances the head with a store, so that two producers take one cell.
    NoExchange,
    /// The producer writes to a cell whose "free" state it has not acquired.
    FreeNotAcquired,
    /// The producer publishes "full" without release.
    FullRelaxed,
    /// The consumer reads a cell whose "full" state it has not acquired.
    FullNotAcquired,
    /// The consumer publishes "free" without release.
    FreeRelaxed,
    /// The consumer publishes "free" before it reads.
    FreeBeforeRead,
}

/// Two cells, each with a sequence number and two words.
struct Memory {
    cells: [Word; 6],
    words: VyukovWords,
}

impl Memory {
    fn new() -> Arc<Memory> {
        let cells = [0, 0, 0, 1, 0, 0].map(Word::new);
        Arc::new(Memory {
            cells,
            words: VyukovWords { head: CachePadded(Word::new(0)), stop: CachePadded(Word::new(0)) },
        })
    }

    fn queue(&self) -> Vyukov {
        Vyukov { cells: self.cells.as_ptr(), words: &self.words, log2_capacity: 1, cell_words: 3, timeout_ns: u64::MAX }
    }

    fn cell(&self, position: u64) -> &[Word] {
        &self.cells[(position % 2) as usize * 3..][..3]
    }
}

/// Implementation that runs the scenario: the product, or the same protocol by hand.
#[derive(Clone, Copy, Debug)]
enum Cast {
    Product,
    ByHand(Option<Fault>),
}

impl Cast {
    fn push(self, memory: &Memory, tag: u64) {
        let word = |index: u32| tag * (index as u64 + 1);
        let Cast::ByHand(fault) = self else {
            memory.queue().push(2, word, &mut ()).expect("pushed");
            return;
        };
        let head = &memory.words.head.0;
        let mut position = load_relaxed_sys_u64(head);
        loop {
            let sequence = &memory.cell(position)[0];
            let sequence = match fault {
                Some(Fault::FreeNotAcquired) => load_relaxed_sys_u64(sequence),
                _ => load_acquire_sys_u64(sequence),
            };
            if sequence == position {
                if fault == Some(Fault::NoExchange) {
                    store_relaxed_sys_u64(head, position + 1);
                    break;
                }
                if compare_exchange_relaxed_gpu_u64(head, position, position + 1) == position {
                    break;
                }
            }
            nanosleep(0);
            position = load_relaxed_sys_u64(head);
        }
        let cell = memory.cell(position);
        store_relaxed_sys_u64(&cell[1], word(0));
        store_relaxed_sys_u64(&cell[2], word(1));
        match fault {
            Some(Fault::FullRelaxed) => store_relaxed_sys_u64(&cell[0], position + 1),
            _ => store_release_sys_u64(&cell[0], position + 1),
        }
    }

    /// Pops until an element has arrived. Returns its tag.
    fn pop(self, memory: &Memory, consumer: &mut VyukovConsumer<2>, position: u64) -> u64 {
        loop {
            let words = match self {
                Cast::Product => consumer.pop(),
                Cast::ByHand(fault) => pop_by_hand(memory, position, fault),
            };
            if let Some([tag, double]) = words {
                assert_eq!(double, 2 * tag, "torn element");
                return tag;
            }
            nanosleep(0);
        }
    }
}

fn pop_by_hand(memory: &Memory, position: u64, fault: Option<Fault>) -> Option<[u64; 2]> {
    let cell = memory.cell(position);
    let sequence = match fault {
        Some(Fault::FullNotAcquired) => load_relaxed_sys_u64(&cell[0]),
        _ => load_acquire_sys_u64(&cell[0]),
    };
    if sequence != position + 1 {
        return None;
    }
    let read = || [load_relaxed_sys_u64(&cell[1]), load_relaxed_sys_u64(&cell[2])];
    let mut words = read();
    match fault {
        Some(Fault::FreeRelaxed) => store_relaxed_sys_u64(&cell[0], position + 2),
        _ => store_release_sys_u64(&cell[0], position + 2),
    }
    if fault == Some(Fault::FreeBeforeRead) {
        words = read();
    }
    Some(words)
}

/// Two producers push two elements each into two cells. Both wrap around, and each takes cells that the other has
/// filled.
fn wrap_around(cast: Cast) {
    explore(2, move || {
        let memory = Memory::new();
        let producers = [[10, 11], [20, 21]].map(|tags| {
            let memory = memory.clone();
            thread::spawn(move || tags.map(|tag| cast.push(&memory, tag)))
        });
        // SAFETY: this is the only consumer of a new queue, whose memory is valid until all threads have ended.
        let mut consumer = unsafe { VyukovConsumer::<2>::new(&memory.queue()) };
        let mut seen: Vec<u64> = (0..4).map(|position| cast.pop(&memory, &mut consumer, position)).collect();
        for producer in producers {
            producer.join().expect("producer");
        }
        for pair in [[10, 11], [20, 21]] {
            let places = pair.map(|tag| seen.iter().position(|seen| *seen == tag));
            assert!(places[0].is_some() && places[0] < places[1], "lost or out of order: {seen:?}");
        }
        seen.dedup();
        assert_eq!(seen.len(), 4, "twice");
    });
}

#[test]
fn wrap_around_passes() {
    wrap_around(Cast::Product);
    wrap_around(Cast::ByHand(None));
}

#[test]
fn consumer_ends_every_push_and_wait() {
    explore(2, || {
        let memory = Memory::new();
        for tag in [1, 2] {
            Cast::Product.push(&memory, tag);
        }
        let pusher = {
            let memory = memory.clone();
            thread::spawn(move || memory.queue().push(2, |_| 3, &mut ()).map(drop))
        };
        let waiter = {
            let memory = memory.clone();
            thread::spawn(move || memory.queue().wait(0, &mut ()))
        };
        // SAFETY: this is the only consumer of a new queue, whose memory is valid until all threads have ended.
        let consumer = unsafe { VyukovConsumer::<2>::new(&memory.queue()) };
        consumer.publish_status(Status::STOPPED);
        for thread in [pusher, waiter] {
            assert_eq!(thread.join().expect("thread"), Err(Status::STOPPED));
        }
    });
}

#[test]
fn faults_are_caught() {
    for (fault, ways) in [
        (Fault::NoExchange, &[NEVER_ENDS, "torn", "lost"][..]),
        (Fault::FreeNotAcquired, &["torn", "lost", NEVER_ENDS]),
        (Fault::FullRelaxed, &["torn", "lost"]),
        (Fault::FullNotAcquired, &["torn", "lost"]),
        (Fault::FreeRelaxed, &["torn", "lost", NEVER_ENDS]),
        (Fault::FreeBeforeRead, &["torn", "lost"]),
    ] {
        let panic = catch_unwind(|| wrap_around(Cast::ByHand(Some(fault)))).expect_err("the fault passed unseen");
        let text = match panic.downcast::<String>() {
            Ok(text) => *text,
            Err(panic) => panic.downcast::<&str>().expect("a text").to_string(),
        };
        assert!(ways.iter().any(|way| text.contains(way)), "{fault:?} failed in another way: {text}");
    }
}
