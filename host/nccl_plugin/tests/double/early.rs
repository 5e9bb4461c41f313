//! Slots for regions that the target registers later.

use crate::rank::{NcclRank, RegisteredMemory, SIGNALS, until};
use crate::ranks;
use nccl_ginlab::abi::{PTR_CUDA, PTR_HOST};
use nccl_ginlab::settings::{PRETEND, TIMEOUT};
use std::ffi::c_int;

/// Lets the plugin handle all slots that have arrived at this rank.
fn handle_slots(rank: &NcclRank, memory: &RegisteredMemory) {
    (0..3).for_each(|_| rank.wait(rank.put((memory, 0), 8, (memory, 0), rank.me, None)));
}

/// A rank issues a put with a signal, and signals without a put, before the target has registered the memory.
fn early(kind: c_int) {
    ranks(2, &[(PRETEND, "1"), (TIMEOUT, "20")], |rank| {
        let mut source = rank.register(64, kind, 0);
        source.words.fill(7);
        // A signal in registered memory, so that only the bytes have to wait.
        let known = rank.register(64, kind, SIGNALS);
        rank.meeting.meet();
        let register = |flags| rank.register(64, kind, flags);
        let all = if rank.me == 0 {
            let (target, signals) = (register(0), register(SIGNALS));
            rank.wait(rank.put((&source, 0), 64, (&target, 0), 1, Some((&known, 0, 1, true))));
            rank.wait(rank.put((&source, 0), 0, (&target, 0), 1, Some((&signals, 8, 1, true))));
            rank.meeting.meet();
            [source, known, target, signals]
        } else {
            rank.meeting.meet();
            handle_slots(&rank, &source);
            let target = register(0);
            handle_slots(&rank, &source);
            let signals = register(SIGNALS);
            until("signals", || {
                assert!(!rank.failed());
                known.word(0) == 1 && signals.word(1) == 1
            });
            assert_eq!(target.words, [7; 8]);
            [source, known, target, signals]
        };
        rank.leave(all.into());
    });
}

#[test]
fn slots_for_later_regions_wait() {
    early(PTR_CUDA);
    early(PTR_HOST);
}
