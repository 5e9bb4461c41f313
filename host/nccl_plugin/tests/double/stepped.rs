//! Order of signals with copies that the test allows one by one. Between two copies the memory is compared with the
//! rules, so that a violation is detected regardless of the timing of the threads.

use crate::device::{SignalTarget, TestSignal};
use crate::rank::{NcclRank, OK, RegisteredMemory, SIGNALS, SharedRankState, until};
use nccl_ginlab::abi::{PTR_CUDA, PTR_HOST};
use nccl_ginlab::settings::{COUNT, PRETEND, RAILS, STRATEGY, TIMEOUT};
use nccl_ginlab::testing::{Steps, set_steps};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const CASES: [&[(&str, &str)]; 3] = [
    &[],
    &[(RAILS, "worst:seed=1,delay=200")],
    &[(RAILS, "worst:seed=2,delay=200"), (COUNT, "2"), (STRATEGY, "round-robin")],
];
/// Bytes between the places of two operations.
const PLACE: usize = 256;
/// Maximum number of operations of a program. All of them are in slots of the target at the same time.
const OPERATIONS: usize = 20;
/// Words of each kind for each context.
const WORDS: u64 = 3;
/// More steps than any program needs.
const ENOUGH: usize = 1000;

/// One operation.
#[derive(Clone, Copy, Debug)]
struct Operation {
    context: usize,
    /// Kind and index of the word; `None` without a signal.
    word: Option<(usize, u64)>,
    strong: bool,
    bytes: usize,
    /// Whether all earlier operations are complete before this one is posted.
    waits: bool,
}

/// Whether `first` must be visible before the signal of `second`.
fn precedes(program: &[Operation], first: usize, second: usize) -> bool {
    let complete = || program[first + 1..=second].iter().any(|operation| operation.waits);
    first < second && (program[first].context == program[second].context || complete())
}

/// Memory of a rank: source, target, and words of each kind.
fn memories(rank: &NcclRank) -> Vec<RegisteredMemory> {
    let (bytes, words) = (OPERATIONS * PLACE, 2 * WORDS as usize * 8);
    let kinds = [(bytes, PTR_CUDA, 0), (bytes, PTR_CUDA, 0), (words, PTR_CUDA, SIGNALS), (words, PTR_CUDA, 0)];
    let kinds = kinds.into_iter().chain([(words, PTR_HOST, 0)]);
    kinds.map(|(bytes, kind, flags)| rank.register(bytes, kind, flags)).collect()
}

fn word(kind: usize, all: &[RegisteredMemory], index: u64) -> SignalTarget<'_> {
    if kind == 0 { SignalTarget::Index(&all[2], index) } else { SignalTarget::Address(&all[2 + kind], index * 8) }
}

/// Runs two ranks, and allows copies only at rank 1. The program counts the violations that it finds.
fn stepped(case: &[(&str, &str)], program: impl Fn(&NcclRank, &Steps, &AtomicUsize) -> Vec<RegisteredMemory> + Sync) {
    let (meeting, steps, wrong) = (SharedRankState::of(2), Arc::new(Steps::default()), AtomicUsize::new(0));
    let with: Vec<(&str, &str)> = case.iter().copied().chain([(PRETEND, "1"), (TIMEOUT, "100")]).collect();
    std::thread::scope(|scope| {
        for me in 0..2 {
            let (meeting, steps, wrong, with, program) = (&meeting, &steps, &wrong, &with, &program);
            scope.spawn(move || {
                set_steps((me == 1).then(|| steps.clone()));
                let rank = NcclRank::join(meeting, me, with).unwrap();
                let memories = program(&rank, steps, wrong);
                rank.meeting.meet();
                steps.release();
                rank.leave(memories);
            });
        }
    });
    assert_eq!(wrong.into_inner(), 0, "{case:?}");
}

/// Waits until the plugin has had time to react to all that has happened.
fn settle(rank: &NcclRank, steps: &Steps) {
    let from = steps.turns();
    until("turns", || rank.failed() || steps.turns() >= from + 3);
    assert!(!rank.failed());
}

/// Allows one copy or mark at rank 1.
fn advance(rank: &NcclRank, steps: &Steps) {
    steps.allow();
    until("a step", || rank.failed() || steps.all_taken());
    settle(rank, steps);
}

/// Posts a program, and waits until it is complete.
fn post(rank: &NcclRank, all: &[RegisteredMemory], program: &[Operation]) {
    let mut requests = Vec::new();
    for (index, operation) in program.iter().enumerate() {
        if operation.waits {
            requests.drain(..).for_each(|request| rank.wait(request));
        }
        let signal = operation.word.map(|(kind, index)| TestSignal {
            word: word(kind, all, index),
            add: 1,
            strong: operation.strong,
        });
        let at = (index * PLACE) as u64;
        let context = operation.context as i32;
        requests.extend(rank.gin_put(context, (&all[0], at), operation.bytes, (&all[1], at), 1, signal, 1 << 30));
    }
    requests.into_iter().for_each(|request| rank.wait(request));
}

/// Runs programs one after another, and compares the memory of rank 1 with the rules after each step. If `before` is
/// set, rank 1 starts only when a program is complete at rank 0.
fn run(case: &[(&str, &str)], programs: &[Vec<Operation>], before: impl Fn(usize) -> bool + Sync) {
    stepped(case, |rank, steps, wrong| {
        let mut all = memories(rank);
        let mut base = [[0u64; 2 * WORDS as usize]; 3];
        for (number, program) in programs.iter().enumerate() {
            let round = number as u64 + 1;
            all[0].words.fill(round);
            all[1].words.fill(0);
            rank.meeting.meet();
            if rank.me == 0 {
                post(rank, &all, program);
            }
            if before(number) {
                rank.meeting.meet();
            }
            if rank.me == 1 {
                // Number of the operation among those that signal its word.
                let ordinal = |at: usize| program[..=at].iter().filter(|one| one.word == program[at].word).count();
                let shows = |at: usize| {
                    let (kind, index) = program[at].word.unwrap_or_default();
                    all[2 + kind].word(index as usize) - base[kind][index as usize] >= ordinal(at) as u64
                };
                let landed =
                    |at: usize| (0..program[at].bytes / 8).all(|index| all[1].word(at * PLACE / 8 + index) == round);
                let here = |at: usize| landed(at) && (program[at].word.is_none() || shows(at));
                let mut broken = false;
                settle(rank, steps);
                for step in 0.. {
                    for (second, _) in program.iter().enumerate().filter(|(at, one)| one.word.is_some() && shows(*at)) {
                        broken |= !landed(second);
                        broken |= (0..second).any(|first| precedes(program, first, second) && !here(first));
                    }
                    if (0..program.len()).all(here) {
                        break;
                    }
                    if step == ENOUGH {
                        broken = true;
                        break;
                    }
                    advance(rank, steps);
                }
                wrong.fetch_add(usize::from(broken), Ordering::Relaxed);
            }
            for (kind, index) in program.iter().filter_map(|operation| operation.word) {
                base[kind][index as usize] += 1;
            }
            rank.meeting.meet();
        }
        all
    });
}

/// A put with a strong signal, in a word of this kind and of the context.
fn signal(context: usize, kind: usize, index: u64, bytes: usize) -> Operation {
    Operation { context, word: Some((kind, WORDS * context as u64 + index)), strong: true, bytes, waits: false }
}

/// Returns all pairs of kinds of words, in one context, and in two contexts when the first is complete. Each pair is
/// repeated, because the rule for complete puts hides the rule for one context if the first put of a pair is complete
/// before the second is sent.
fn pairs() -> Vec<Vec<Operation>> {
    let pair = |number: usize| {
        let (first, second, other) = (number % 3, number / 3 % 3, number / 9);
        let pair = [signal(0, first, 0, 8), Operation { waits: other == 1, ..signal(other, second, 1, 0) }];
        pair.repeat(6)
    };
    (0..18).map(pair).collect()
}

#[test]
fn signal_is_visible_after_preceding_operations() {
    run(CASES[0], &pairs(), |_| true);
}

/// Signals of two words alternate. A word is written once for each signal if a signal of another word is in between.
#[test]
fn signals_of_two_words_become_visible_in_order() {
    let program = |kind: usize| [0, 1, 0, 0, 1, 2, 1].map(|index| signal(0, kind, index, 0)).to_vec();
    run(CASES[0], &[0, 1, 2].map(program), |_| true);
}

fn random(seed: u64) -> Vec<Operation> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let mut operation = || {
        let (context, signals) = (below(2) as usize, below(4) > 0);
        let word = signals.then(|| (below(3) as usize, WORDS * context as u64 + below(WORDS)));
        let bytes = [0, 0, 8, 64, PLACE][below(5) as usize];
        let (strong, waits) = (below(2) == 0, below(5) == 0);
        Operation { context, word, strong, bytes: if signals { bytes } else { bytes.max(8) }, waits }
    };
    (0..OPERATIONS).map(|_| operation()).collect()
}

/// Random programs, half of which are complete before the first copy.
#[test]
fn signals_of_random_programs_become_visible_in_order() {
    let rounds = std::env::var("GINLAB_ROUNDS").map_or(4, |text| text.parse().unwrap());
    let programs: Vec<_> = (1..=rounds).map(random).collect();
    for case in CASES {
        run(case, &programs, |number| number.is_multiple_of(2));
    }
}

/// A word that is reset as soon as a later signal is visible is not written again.
#[test]
fn reset_word_is_not_written_again() {
    for (first, second) in [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)] {
        stepped(CASES[0], |rank, steps, wrong| {
            let all = memories(rank);
            rank.meeting.meet();
            if rank.me == 0 {
                post(rank, &all, &[signal(0, first, 0, 8), signal(0, second, 1, 0)]);
            }
            rank.meeting.meet();
            if rank.me == 1 {
                settle(rank, steps);
                for _ in 0..ENOUGH {
                    if all[2 + second].word(1) == 1 {
                        break;
                    }
                    advance(rank, steps);
                }
                // SAFETY: a word that the test keeps until `leave`; all accesses are atomic.
                unsafe { AtomicU64::from_ptr(all[2 + first].words.as_ptr().cast_mut()) }.store(0, Ordering::Release);
                // More signals than the plugin still holds for one word.
                (0..16).for_each(|_| advance(rank, steps));
                wrong.fetch_add(usize::from(all[2 + first].word(0) != 0), Ordering::Relaxed);
            }
            all
        });
    }
}

/// A get that is posted when a put is complete reads the put's signal and its bytes.
#[test]
fn get_reads_signal_of_complete_put() {
    for kind in 0..3 {
        let done = AtomicBool::new(false);
        stepped(CASES[0], |rank, steps, wrong| {
            let mut all = memories(rank);
            all[0].words.fill(7);
            rank.meeting.meet();
            if rank.me == 0 {
                post(rank, &all, &[signal(0, kind, 0, 8)]);
                rank.wait(rank.get((&all[2 + kind], 0), 8, (&all[1], 0), 1));
                rank.wait(rank.get((&all[1], 0), 8, (&all[1], 8), 1));
                wrong.fetch_add(usize::from((all[1].word(0), all[1].word(1)) != (1, 7)), Ordering::Relaxed);
                done.store(true, Ordering::Release);
            } else {
                while !done.load(Ordering::Acquire) {
                    advance(rank, steps);
                }
            }
            all
        });
    }
}

/// A get is complete when its bytes are in memory, not when they are in a slot.
#[test]
fn complete_get_has_its_bytes() {
    for bytes in [8, 4096] {
        stepped(CASES[0], |rank, steps, wrong| {
            let mut all = memories(rank);
            all[0].words.fill(7);
            rank.meeting.meet();
            if rank.me == 1 {
                let request = rank.get((&all[0], 0), bytes, (&all[1], 0), 0);
                // The request is tested after each step. A completion while the bytes are only in a slot would be
                // detected.
                until("a get", || {
                    advance(rank, steps);
                    rank.test(request) == (OK, true)
                });
                wrong.fetch_add(usize::from((0..bytes / 8).any(|index| all[1].word(index) != 7)), Ordering::Relaxed);
            }
            all
        });
    }
}
