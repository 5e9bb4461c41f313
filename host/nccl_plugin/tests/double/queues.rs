//! Type 5: requests that kernels write into queues.

use crate::kernel::{Card, ContextQueue};
use crate::rank::{OK, RegisteredMemory, SharedRankState, until};
use crate::{SIZES, STRIDE, byte};
use efa_queue::request::{self, Head};
use efa_queue::{Local, To};
use nccl_ginlab::abi::{GinConfig, NcclResult};
use nccl_ginlab::queues::BATCH;
use nccl_ginlab::settings::PRETEND;
use nccl_ginlab::settings::{COPIES, COUNT, RAILS, RULE, STRATEGY, TIMEOUT};
use nccl_ginlab::tables::ncclGinPlugin_v14;
use std::sync::Arc;

pub fn cards(count: usize, variables: &[(&str, &str)], program: impl Fn(Card) + Send + Sync) {
    let with: Vec<(&str, &str)> = variables.iter().copied().chain([(PRETEND, "1")]).collect();
    let meeting: Arc<SharedRankState> = SharedRankState::of(count);
    std::thread::scope(|scope| {
        for me in 0..count {
            let (meeting, program, with) = (&meeting, &program, &with);
            scope.spawn(move || program(Card::join(meeting, me, with)));
        }
    });
}

/// Runs puts of all sizes, with counters, values, gets and sums. The number of requests exceeds the slots of a queue.
fn everything(card: &Card) -> Vec<RegisteredMemory> {
    let (me, ranks) = (card.me, card.meeting.ranks);
    let (mut source, mut target) = (card.register(ranks * STRIDE), card.register(ranks * STRIDE));
    card.meeting.meet();
    for (round, &size) in SIZES.iter().enumerate() {
        for to in 0..ranks {
            for index in 0..size {
                source.bytes_mut()[to * STRIDE + index] = byte(me, to, index, round);
            }
        }
        target.bytes_mut().fill(0xEE);
        card.meeting.meet();
        for to in 0..ranks {
            let by = if round % 2 == 0 { ContextQueue::Data } else { ContextQueue::Counter(1) };
            let from = (&source, (to * STRIDE) as u64);
            card.put(round % 2, by, from, size as u32, (&target, (me * STRIDE) as u64), to, Some(0), true);
        }
        let rounds_so_far = (round / 2 + 1) as u64;
        until("signals", || card.signal(round % 2, 0) == rounds_so_far * ranks as u64);
        for from in 0..ranks {
            let came = &target.bytes()[from * STRIDE..][..STRIDE];
            let wrong = (0..size).filter(|index| came[*index] != byte(from, me, *index, round)).count();
            assert_eq!((wrong, came[size]), (0, 0xEE), "{size} B from {from} to {me}");
        }
        card.flush(round % 2);
        assert_eq!(card.counter(1, 1), (round.div_ceil(2) * ranks) as u64);
        card.meeting.meet();
    }
    // Writes more requests than there are slots, several per doorbell. Then adds a sum, which requires one request per
    // unit.
    target.bytes_mut().fill(0xEE);
    card.meeting.meet();
    let (to, at) = ((me + 1) % ranks, (me * STRIDE) as u64);
    for index in 0..1200u64 {
        let rings = index % 7 == 0 || index == 1199;
        let offset = index * 8 % 4096;
        card.put(0, ContextQueue::Data, (&source, offset), 8, (&target, at + offset), to, None, rings);
    }
    card.flush(0);
    // Completed puts arrive before all operations that are sent afterwards.
    card.put(0, ContextQueue::Data, (&source, 0), 0, (&target, 0), to, Some(1), true);
    (0..2).for_each(|_| card.put(0, ContextQueue::Data, (&source, 0), 0, (&target, 0), to, Some(1), true));
    until("a sum", || card.signal(0, 1) == 3);
    let from = (me + ranks - 1) % ranks;
    let came = &target.bytes()[from * STRIDE..][..4096];
    let wrong = (0..4096).filter(|index| came[*index] != byte(from, 0, *index, SIZES.len() - 1)).count();
    assert_eq!(wrong, 0, "1200 small puts from {from} to {me}");
    card.meeting.meet();
    // Values in both directions, between pairs of ranks.
    let peer = me ^ 1;
    for round in 1..=20u64 {
        let here = || target.word(ranks * STRIDE / 8 - 1);
        if me % 2 == 0 {
            card.put_value(1, round << 8 | me as u64, (&target, (ranks * STRIDE - 8) as u64), peer, Some(2));
        }
        until("a value", || card.signal(1, 2) == round);
        assert_eq!(here(), round << 8 | peer as u64);
        if me % 2 == 1 {
            card.put_value(1, round << 8 | me as u64, (&target, (ranks * STRIDE - 8) as u64), peer, Some(2));
        }
    }
    card.meeting.meet();
    // Gets, including one of no bytes.
    target.bytes_mut().fill(0xEE);
    card.meeting.meet();
    let size = SIZES[SIZES.len() - 1];
    for of in 0..ranks {
        card.get(0, (&source, (me * STRIDE) as u64), size as u32, (&target, (of * STRIDE) as u64), of);
        card.get(0, (&source, 0), 0, (&target, 0), of);
    }
    card.flush(0);
    for of in 0..ranks {
        let came = &target.bytes()[of * STRIDE..][..STRIDE];
        let wrong = (0..size).filter(|index| came[*index] != byte(of, me, *index, SIZES.len() - 1)).count();
        assert_eq!((wrong, came[size]), (0, 0xEE), "a get of {me} from {of}");
    }
    card.meeting.meet();
    vec![source, target]
}

pub fn all_of(count: usize, variables: &[(&str, &str)]) {
    cards(count, variables, |mut card| {
        assert_eq!(card.contexts(Card::config()), OK);
        let memories = everything(&card);
        assert!(!card.failed());
        card.leave(memories);
    });
}

#[test]
fn queues_over_shared_memory_and_modelled_cards() {
    all_of(2, &[]);
    all_of(4, &[(RAILS, "model:p5"), (COUNT, "2"), (STRATEGY, "split")]);
}

#[test]
fn queues_work_with_copy_kernel() {
    all_of(2, &[(COPIES, "kernel:1")]);
    all_of(2, &[(COPIES, "kernel:3"), (RAILS, "worst:seed=3")]);
}

#[test]
fn queues_work_over_worst_case_network() {
    // scripts/tables/gpu-nccl.toml runs twenty seeds on a GPU.
    for seed in 1..=6 {
        let rails = format!("worst:seed={seed}");
        let rule = ["count", "own", "drain", "sequence"][seed % 4];
        let (count, strategy) = [("1", "single"), ("3", "split"), ("2", "round-robin")][seed % 3];
        let number = if seed % 5 == 0 { 4 } else { 2 };
        all_of(number, &[(RAILS, &rails), (RULE, rule), (COUNT, count), (STRATEGY, strategy)]);
    }
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    cards(1, &[], |mut card| {
        let good = Card::config();
        for config in [
            GinConfig { contexts: -1, ..good },
            GinConfig { contexts: 5000, ..good },
            GinConfig { signals: -1, ..good },
            GinConfig { signals: 1 << 16, ..good },
            GinConfig { counters: 1 << 20, ..good },
            // The slots would exceed the maximum bytes of a block.
            GinConfig { contexts: 4096, counters: 1024, queue_depth: 4096, ..good },
        ] {
            assert_eq!(card.contexts(config), NcclResult::SYSTEM, "{config:?}");
        }
        for backend_version in [-1, 0, 1, 3] {
            assert_eq!(card.contexts(GinConfig { backend_version, ..good }), NcclResult::ARGUMENT);
        }
        // Queues have the requested depth, within limits. Counters and signals have no queues.
        assert_eq!(card.contexts(GinConfig { signals: 0, counters: 0, contexts: 1, queue_depth: 5, ..good }), OK);
        assert_eq!(card.poster(0, ContextQueue::Data).sq_size, 64);
        card.leave(Vec::new());
    });
}

/// A context that fails on one rank uses as many region numbers as on the others, so that later signals and windows
/// have the same numbers on all ranks.
#[test]
fn region_numbers_agree_after_failed_context() {
    cards(2, &[(TIMEOUT, "20")], |mut card| {
        let good = Card::config();
        if card.me == 0 {
            assert_eq!(card.contexts(good), OK);
            // SAFETY: the call is the one that NCCL makes after the other rank has failed.
            assert_eq!(unsafe { (ncclGinPlugin_v14.destroy_context)(card.context) }, OK);
        } else {
            assert_eq!(card.contexts(GinConfig { contexts: 5000, ..good }), NcclResult::SYSTEM);
        }
        assert_eq!(card.contexts(good), OK);
        let (mut source, target) = (card.register(64), card.register(64));
        source.words[0] = 77 + card.me as u64;
        card.meeting.meet();
        let peer = 1 - card.me;
        card.put(0, ContextQueue::Data, (&source, 0), 8, (&target, 0), peer, Some(0), true);
        until("a signal", || {
            assert!(!card.failed());
            card.signal(0, 0) == 1
        });
        assert_eq!(target.word(0), 77 + peer as u64);
        card.flush(0);
        card.leave(vec![source, target]);
    });
}

/// Each invalid request ends the communicator with one line, and NCCL receives the error at its next query.
#[test]
fn invalid_requests_end_communicator() {
    type Make = fn(&Card, bool) -> [u64; 16];
    const LOCAL: Local = Local { address: 0, length: 8, key: 0 };
    fn head(phase: bool, to: To) -> Head {
        Head { id: 0, phase, to, immediate: None, hints: 0 }
    }
    let cases: [(&str, Make); 13] = [
        ("another lap", |_, phase| request::wide(request::write(&head(!phase, To::default()), LOCAL, 0, 1))),
        ("no request", |_, phase| [u64::from(phase) << 24; 16]),
        ("a send", |_, phase| request::wide(request::send(&head(phase, To::default()), LOCAL))),
        ("no such rank", |_, phase| {
            request::wide(request::write(&head(phase, To { handle: 7, ..To::default() }), LOCAL, 0, 1))
        }),
        ("no such region here", |_, phase| {
            request::wide(request::write(&head(phase, To::default()), Local { key: 99, ..LOCAL }, 0, 1))
        }),
        ("no such region there", |_, phase| {
            request::wide(request::write(&head(phase, To::default()), Local { key: 1, ..LOCAL }, 0, 99))
        }),
        ("past the end", |_, phase| {
            request::wide(request::write(&head(phase, To::default()), Local { key: 1, ..LOCAL }, 60, 1))
        }),
        ("past the end of addresses", |_, phase| {
            request::wide(request::write(&head(phase, To::default()), Local { key: 1, ..LOCAL }, u64::MAX, 1))
        }),
        ("no such signal", |_, phase| {
            let to = To { pair: 9, ..To::default() };
            request::wide(request::write(&head(phase, to), Local::default(), 0, 0))
        }),
        ("no such context's signal", |_, phase| {
            let to = To { pair: 1, key: 4095, ..To::default() };
            request::wide(request::write(&head(phase, to), Local::default(), 0, 0))
        }),
        ("a value past the end", |_, phase| request::write_inline_128(&head(phase, To::default()), [0; 10], 8, 60, 1)),
        ("a get into no region", |_, phase| {
            request::wide(request::read(&head(phase, To::default()), Local { key: 99, ..LOCAL }, 0, 1))
        }),
        ("a get past the end", |_, phase| {
            request::wide(request::read(&head(phase, To::default()), Local { key: 1, ..LOCAL }, 60, 1))
        }),
    ];
    for (name, make) in cases {
        cards(1, &[(TIMEOUT, "5")], |mut card| {
            assert_eq!(card.contexts(Card::config()), OK);
            let memory = card.register(64);
            card.post(&card.poster(0, ContextQueue::Data), true, |phase| make(&card, phase));
            until(name, || card.failed());
            card.leave(vec![memory]);
        });
    }
    // The number of requests without a doorbell exceeds a batch.
    cards(1, &[(TIMEOUT, "5")], |mut card| {
        assert_eq!(card.contexts(Card::config()), OK);
        let poster = card.poster(0, ContextQueue::Data);
        for number in 0..=BATCH {
            assert!(!card.failed(), "refused at request {number}");
            card.post(&poster, false, |phase| {
                request::wide(request::write(&head(phase, To::default()), Local::default(), 0, 0))
            });
        }
        until("an end", || card.failed());
        card.leave(Vec::new());
    });
    // A doorbell that decreases, and one for more requests than slots.
    for count in [u32::from(u16::MAX), 600] {
        cards(1, &[(TIMEOUT, "5")], |mut card| {
            assert_eq!(card.contexts(Card::config()), OK);
            let poster = card.poster(0, ContextQueue::Data);
            // SAFETY: the plugin has created the queue pair.
            let pair = unsafe { &*(poster.qp as *const nccl_ginlab::queues::layout::EfaCudaQp) };
            card.ring(pair, count);
            until("an end", || card.failed());
            card.leave(Vec::new());
        });
    }
}
