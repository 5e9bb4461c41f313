//! The two words of a signal: when the sum is reached, the bytes of all PEs that have added to it are visible.

use super::explore;
use cuda_std::memory::{
    Word, add_relaxed_sys_u64, add_release_host_u64, fence_acq_rel_sys, load_relaxed_sys_u64, store_relaxed_sys_u64,
};
use kernels::gin::{Control, SignalPair, WaitCondition};
use loom::sync::Arc;
use loom::thread;
use std::panic::catch_unwind;

/// Step that an adder omits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A PE with a mapped heap does not fence before it adds.
    NoFence,
    /// A proxy counts before the bytes have arrived.
    EarlyCount,
    /// A proxy counts without a release.
    NoRelease,
}

/// One PE puts through a mapping, another over rails. Each adds 1 after its bytes, and one thread waits for 2.
fn both_planes(fault: Option<Fault>) {
    explore(3, move || {
        let words: Arc<[Word; 4]> = Arc::new(std::array::from_fn(|_| Word::new(0)));
        let mapped = words.clone();
        let peer = thread::spawn(move || {
            let [bytes, _, near, _] = &*mapped;
            store_relaxed_sys_u64(bytes, 77);
            if fault != Some(Fault::NoFence) {
                fence_acq_rel_sys();
            }
            add_relaxed_sys_u64(near, 1);
        });
        let counted = words.clone();
        let proxy = thread::spawn(move || {
            let [_, bytes, _, far] = &*counted;
            if fault == Some(Fault::EarlyCount) {
                add_release_host_u64(far, 1);
            }
            store_relaxed_sys_u64(bytes, 88);
            match fault {
                Some(Fault::EarlyCount) => {}
                Some(Fault::NoRelease) => add_relaxed_sys_u64(far, 1),
                _ => add_release_host_u64(far, 1),
            }
        });
        let [first, second, near, far] = &*words;
        let planes = SignalPair { near, far: Some(far), mapped: true, arrivals: std::ptr::null() };
        let abort = Control::default();
        planes.wait(WaitCondition::at_least(2), u64::MAX, &abort).expect("both have added");
        assert_eq!((load_relaxed_sys_u64(first), load_relaxed_sys_u64(second)), (77, 88), "bytes behind the signal");
        peer.join().expect("peer");
        proxy.join().expect("proxy");
    });
}

#[test]
fn signal_sum_orders_bytes_of_both_words() {
    both_planes(None);
}

#[test]
fn omitted_steps_of_adder_are_detected() {
    for fault in [Fault::NoFence, Fault::EarlyCount, Fault::NoRelease] {
        assert!(catch_unwind(|| both_planes(Some(fault))).is_err(), "{fault:?} passed unseen");
    }
}
