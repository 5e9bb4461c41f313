//! A small exchange with dependencies. The trace in tests/fixtures/replay was recorded from it.

use crate::rank::{SIGNALS, until};
use crate::ranks;
use nccl_ginlab::abi::PTR_HOST;

const TURNS: u64 = 8;
const LONG: usize = 1 << 20;

#[test]
fn exchanges_alternate() {
    ranks(2, &[], |rank| {
        let (source, target) = (rank.register(4 * LONG, PTR_HOST, 0), rank.register(4 * LONG, PTR_HOST, 0));
        let signals = rank.register(64, PTR_HOST, SIGNALS);
        rank.meeting.meet();
        let peer = 1 - rank.me;
        let put = |bytes: usize, at: u64, signal: u64| {
            rank.put((&source, 0), bytes, (&target, at), peer, Some((&signals, signal * 8, 1, false)))
        };
        for turn in 1..=TURNS {
            if rank.me == 0 {
                rank.wait(put(4096, 0, 0));
            }
            until("a turn", || signals.word(0) == turn);
            if rank.me == 1 {
                rank.wait(put(4096, 0, 0));
            }
        }
        if rank.me == 0 {
            let requests: Vec<_> = (0..4).map(|index| put(LONG, index * LONG as u64, 1)).collect();
            requests.into_iter().for_each(|request| rank.wait(request));
        } else {
            until("long puts", || signals.word(1) == 4);
            rank.wait(rank.get((&source, 0), 100, (&target, 0), peer));
        }
        rank.leave(vec![source, target, signals]);
    });
}
