//! Sources that change during their puts.

use crate::rank::{RegisteredMemory, until};
use crate::ranks;
use nccl_ginlab::abi::{NcclResult, PTR_CUDA, PTR_HOST};
use nccl_ginlab::settings::PRETEND;
use nccl_ginlab::settings::{RAILS, TIMEOUT};
use std::sync::atomic::{AtomicU64, Ordering};

const BYTES: usize = 300_000;

fn scribble(memory: &RegisteredMemory, round: u64) {
    for word in memory.words.iter().step_by(64) {
        // SAFETY: a word of the test's memory; the test is about the plugin reading it concurrently.
        unsafe { AtomicU64::from_ptr(std::ptr::from_ref(word).cast_mut()) }.store(round, Ordering::Relaxed);
    }
}

#[test]
fn worst_case_network_reports_rewritten_source() {
    for kind in [PTR_HOST, PTR_CUDA] {
        ranks(2, &[(RAILS, "worst:seed=3"), (PRETEND, "1"), (TIMEOUT, "20")], |rank| {
            let (source, target) = (rank.register(BYTES, kind, 0), rank.register(BYTES, kind, 0));
            rank.meeting.meet();
            if rank.me == 0 {
                let put = || rank.put((&source, 0), BYTES, (&target, 0), 1, None);
                let (mut request, mut round) = (put(), 0);
                until("an error", || {
                    round += 1;
                    scribble(&source, round);
                    let (result, done) = rank.test(request);
                    if done {
                        request = put();
                    }
                    result == NcclResult::REMOTE
                });
            }
            rank.leave(vec![source, target]);
        });
    }
}
