//! Signals that a NIC counts: several threads read one counter, and each write is added to the signal exactly once.

use super::explore;
use cuda_std::memory::{
    Word, compare_exchange_acq_rel_gpu_u64, compare_exchange_acquire_gpu_u64, fetch_add_acq_rel_gpu_u64,
    load_acquire_gpu_u64, load_acquire_sys_u64, load_relaxed_gpu_u64, load_relaxed_sys_u64, store_relaxed_sys_u64,
    store_release_host_u64,
};
use efa_queue::rules::COUNTER_MASK;
use kernels::gin::{Arrivals, CountedSignal, SignalPair};
use loom::sync::Arc;
use loom::thread;
use std::panic::catch_unwind;

/// Number of writes that the NIC counts.
const WRITES: u64 = 2;
/// Initial value of the counter, which wraps around with the second write.
const BEGINS: u64 = COUNTER_MASK - 1;

/// Guards that prevent an older reading of the counter from being added to the signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Guards {
    /// Whether the mark is loaded with acquire.
    acquires_mark: bool,
    /// Whether the mark is exchanged with acquire and release.
    releases_mark: bool,
    /// Whether a difference above half of the counter's range is ignored.
    refuses_older: bool,
}

/// Memory of the NIC and of the device.
struct Memory {
    bytes: [Word; WRITES as usize],
    counter: Word,
    mark: Word,
    signal: Word,
    near: Word,
    role: Word,
}

impl Memory {
    /// Reads the signal once, with the product or, given `guards`, by hand.
    fn look(&self, guards: Option<Guards>) -> u64 {
        let Some(guards) = guards else {
            let counts = [CountedSignal { counter: &self.counter, read: &self.mark }];
            let arrivals = Arrivals {
                inlets: std::ptr::null(),
                count: 0,
                role: &self.role,
                signals: &self.signal,
                counts: counts.as_ptr(),
                counted: 1,
            };
            return SignalPair { near: &self.near, far: Some(&self.signal), mapped: false, arrivals: &arrivals }.sum();
        };
        let load = if guards.acquires_mark { load_acquire_gpu_u64 } else { load_relaxed_gpu_u64 };
        let exchange =
            if guards.releases_mark { compare_exchange_acq_rel_gpu_u64 } else { compare_exchange_acquire_gpu_u64 };
        let seen = load(&self.mark);
        let now = load_acquire_sys_u64(&self.counter) & COUNTER_MASK;
        let more = now.wrapping_sub(seen) & COUNTER_MASK;
        let is_newer = more != 0 && !(guards.refuses_older && more > COUNTER_MASK / 2);
        if is_newer && exchange(&self.mark, seen, now) == seen {
            fetch_add_acq_rel_gpu_u64(&self.signal, more);
        }
        load_acquire_sys_u64(&self.signal)
    }
}

/// Models a NIC that counts two writes while two threads read the signal twice each.
fn two_threads_look(guards: Option<Guards>) {
    explore(2, move || {
        let word = Word::new;
        let memory = Arc::new(Memory {
            bytes: [word(0), word(0)],
            counter: word(BEGINS),
            mark: word(BEGINS),
            signal: word(0),
            near: word(0),
            role: word(0),
        });
        let shared = memory.clone();
        let looks = move |memory: &Memory| {
            let mut last = 0;
            for _ in 0..2 {
                let sum = memory.look(guards);
                assert!(last <= sum && sum <= WRITES, "{WRITES} writes, and the signal is {sum} after {last}");
                for bytes in &memory.bytes[..sum as usize] {
                    assert_eq!(load_relaxed_sys_u64(bytes), 77, "bytes of a counted write");
                }
                last = sum;
            }
        };
        let other = thread::spawn(move || looks(&shared));
        let shared = memory.clone();
        let card = thread::spawn(move || {
            for (number, bytes) in (1..).zip(&shared.bytes) {
                store_relaxed_sys_u64(bytes, 77);
                store_release_host_u64(&shared.counter, (BEGINS + number) & COUNTER_MASK);
            }
        });
        looks(&memory);
        other.join().expect("the other thread");
        card.join().expect("the card");
        // The first call may add. The second call finds nothing left to add.
        assert_eq!([memory.look(guards), memory.look(guards)], [WRITES; 2], "each write counts once");
    });
}

#[test]
fn counted_write_is_added_once() {
    two_threads_look(None);
}

/// Tests that either guard suffices: the order of mark and counter (acquire and release), or the rejection of older
/// readings.
#[test]
fn one_guard_of_counter_is_enough() {
    two_threads_look(Some(Guards { refuses_older: true, ..Guards::default() }));
    two_threads_look(Some(Guards { acquires_mark: true, releases_mark: true, refuses_older: false }));
}

#[test]
fn older_counter_without_guards_is_seen() {
    for (acquires_mark, releases_mark) in [(false, false), (true, false), (false, true)] {
        let guards = Guards { acquires_mark, releases_mark, refuses_older: false };
        assert!(catch_unwind(|| two_threads_look(Some(guards))).is_err(), "{guards:?} passed unseen");
    }
}
