//! Order of signals: each is visible only after all earlier puts and signals of its context and peer.
//!
//! Each test counts the rounds that violate the rule. `GINLAB_ROUNDS` sets the number of rounds; the suite runs only a
//! few.

use crate::device::{SignalTarget, TestSignal};
use crate::kernel::{Card, ContextQueue};
use crate::queues::cards;
use crate::rank::{NcclRank, OK, RegisteredMemory, SIGNALS, until};
use crate::ranks;
use nccl_ginlab::abi::{PTR_CUDA, PTR_HOST};
use nccl_ginlab::settings::{COPIES, COUNT, PRETEND, RAILS, RULE, STRATEGY, TIMEOUT};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Variables that select the fabric and the method of copying. Each test runs with all of these cases.
const CASES: [&[(&str, &str)]; 7] = [
    &[],
    &[(COPIES, "kernel:1")],
    &[(RAILS, "model:p5"), (COUNT, "2"), (STRATEGY, "split")],
    &[(RAILS, "worst:seed=1")],
    &[(RAILS, "worst:seed=2,delay=500"), (COUNT, "2"), (STRATEGY, "round-robin")],
    &[(RAILS, "worst:seed=3"), (COPIES, "kernel:1"), (RULE, "own")],
    &[(RAILS, "worst:seed=4,delay=100"), (RULE, "drain"), (COUNT, "3"), (STRATEGY, "split")],
];
const LONG: usize = 300_000;
/// Stands for NCCL's limit of 1 GiB per put.
const GIB: usize = 100_000;

fn rounds(few: u64) -> u64 {
    std::env::var("GINLAB_ROUNDS").map_or(few, |text| text.parse().unwrap())
}

/// Counts the rounds that violate a rule.
struct Broken {
    name: &'static str,
    case: String,
    rounds: u64,
    count: AtomicUsize,
}

impl Broken {
    fn new(name: &'static str, case: impl Into<String>, rounds: u64) -> Broken {
        Broken { name, case: case.into(), rounds, count: AtomicUsize::new(0) }
    }

    fn note(&self, broken: bool) {
        self.count.fetch_add(usize::from(broken), Ordering::Relaxed);
    }

    /// Appends a line with the number of violating rounds, if there are any.
    fn take(self, failures: &mut Vec<String>) {
        let count = self.count.into_inner();
        if count > 0 {
            failures.push(format!("{}: {}: {count} of {} rounds", self.name, self.case, self.rounds));
        }
    }
}

fn check(failures: &[String]) {
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// Runs `program` on two ranks for each case and fails if a round violates the rule. Rank 0 sends.
fn over_cases(
    name: &'static str,
    rounds: u64,
    program: impl Fn(&NcclRank, &Broken) -> Vec<RegisteredMemory> + Send + Sync,
) {
    let mut failures = Vec::new();
    for case in CASES {
        let broken = Broken::new(name, format!("{case:?}"), rounds);
        let with: Vec<(&str, &str)> = case.iter().copied().chain([(PRETEND, "1"), (TIMEOUT, "100")]).collect();
        ranks(2, &with, |rank| {
            let memories = program(&rank, &broken);
            rank.leave(memories);
        });
        broken.take(&mut failures);
    }
    check(&failures);
}

/// Registers words of all kinds: an index in GPU memory, an address in GPU memory, an address in host memory.
fn words(rank: &NcclRank) -> [RegisteredMemory; 3] {
    [rank.register(64, PTR_CUDA, SIGNALS), rank.register(64, PTR_CUDA, 0), rank.register(64, PTR_HOST, 0)]
}

fn word(kind: usize, memories: &[RegisteredMemory; 3], index: u64) -> SignalTarget<'_> {
    if kind == 0 { SignalTarget::Index(&memories[0], index) } else { SignalTarget::Address(&memories[kind], index * 8) }
}

#[test]
fn strong_signal_is_visible_after_earlier_signals() {
    let rounds = rounds(3);
    over_cases("strong_signal_is_visible_after_earlier_signals", rounds, |rank, broken| {
        let all = words(rank);
        let data = rank.register(64, PTR_CUDA, 0);
        rank.meeting.meet();
        let mut counts = [0u64; 8];
        for round in 0..rounds {
            for pair in 0..18 {
                // Each kind before each kind; the first signal is weak or strong.
                let (first, second, strong) = (pair % 3, pair / 3 % 3, pair < 9);
                rank.meeting.meet();
                counts[first] += 1;
                counts[3 + second] += 1;
                if rank.me == 0 {
                    let signal = |kind: usize, index: u64, strong| {
                        Some(TestSignal { word: word(kind, &all, index), add: 1, strong })
                    };
                    let bytes = if round % 2 == 0 { 8 } else { 0 };
                    let mut requests =
                        rank.gin_put(0, (&data, 0), bytes, (&data, 0), 1, signal(first, first as u64, strong), GIB);
                    requests.extend(rank.gin_put(
                        0,
                        (&data, 0),
                        0,
                        (&data, 0),
                        1,
                        signal(second, 3 + second as u64, true),
                        GIB,
                    ));
                    requests.into_iter().for_each(|request| rank.wait(request));
                } else {
                    until("the strong signal", || all[second].word(3 + second) >= counts[3 + second]);
                    broken.note(all[first].word(first) < counts[first]);
                }
            }
        }
        rank.meeting.meet();
        all.into_iter().chain([data]).collect()
    });
}

#[test]
fn reset_word_stays_reset_after_strong_signal() {
    let rounds = rounds(12);
    over_cases("reset_word_stays_reset_after_strong_signal", rounds, |rank, broken| {
        let all = words(rank);
        let data = rank.register(64, PTR_CUDA, 0);
        rank.meeting.meet();
        for round in 1..=rounds {
            let kind = 1 + round as usize % 2;
            rank.meeting.meet();
            let signal =
                |kind: usize, index: u64| Some(TestSignal { word: word(kind, &all, index), add: 1, strong: true });
            let send = |kind: usize, index: u64| {
                let requests = rank.gin_put(0, (&data, 0), 0, (&data, 0), 1, signal(kind, index), GIB);
                requests.into_iter().for_each(|request| rank.wait(request));
            };
            if rank.me == 0 {
                send(kind, 1);
                // Like NCCL's barrier.
                send(0, 0);
            } else {
                until("the barrier", || all[0].word(0) >= 2 * round - 1);
                let early = all[kind].word(1) == 0;
                // SAFETY: the test keeps the word until `leave`, and all accesses are atomic.
                unsafe { AtomicU64::from_ptr(all[kind].words.as_ptr().add(1).cast_mut()) }.store(0, Ordering::Release);
                broken.note(early);
            }
            rank.meeting.meet();
            // Ordered after all pending writes of the plugin.
            if rank.me == 0 {
                send(0, 0);
            } else {
                until("the end", || all[0].word(0) >= 2 * round);
                broken.note(all[kind].word(1) != 0);
                // SAFETY: the test keeps the word until `leave`, and all accesses are atomic.
                unsafe { AtomicU64::from_ptr(all[kind].words.as_ptr().add(1).cast_mut()) }.store(0, Ordering::Release);
            }
        }
        rank.meeting.meet();
        all.into_iter().chain([data]).collect()
    });
}

#[test]
fn weak_va_signal_is_visible_after_its_put() {
    let rounds = rounds(4);
    over_cases("weak_va_signal_is_visible_after_its_put", rounds, |rank, broken| {
        let all = words(rank);
        let (mut source, target) = (rank.register(LONG, PTR_CUDA, 0), rank.register(LONG, PTR_CUDA, 0));
        rank.meeting.meet();
        let mut counts = [0u64; 3];
        for round in 1..=rounds {
            for (kind, bytes) in [(1, 8), (2, 8), (1, 4096), (2, LONG), (1, LONG), (0, LONG)] {
                source.words.fill((round << 8) | (bytes as u64 % 251));
                rank.meeting.meet();
                counts[kind] += 1;
                if rank.me == 0 {
                    let signal = Some(TestSignal { word: word(kind, &all, 2), add: 1, strong: false });
                    let requests = rank.gin_put(1, (&source, 0), bytes, (&target, 0), 1, signal, GIB);
                    requests.into_iter().for_each(|request| rank.wait(request));
                } else {
                    until("the weak signal", || all[kind].word(2) >= counts[kind]);
                    let expected = (round << 8) | (bytes as u64 % 251);
                    broken.note((0..bytes / 8).any(|index| target.word(index) != expected));
                }
                rank.meeting.meet();
            }
        }
        all.into_iter().chain([source, target]).collect()
    });
}

/// One operation of a random sequence.
#[derive(Clone, Copy)]
struct Step {
    context: usize,
    /// Kind and index of the word; `None` without a signal.
    word: Option<(usize, u64)>,
    strong: bool,
    bytes: usize,
}

fn program(seed: u64, steps: usize) -> Vec<Step> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let mut step = || {
        let context = below(2) as usize;
        let signals = below(4) > 0;
        // Each context has few words, so that several signals add to the same word.
        let word = signals.then(|| (below(3) as usize, context as u64 * 3 + below(3)));
        let bytes = [0, 0, 8, 64, 5000][below(5) as usize];
        Step { context, word, strong: below(2) == 0, bytes: if signals { bytes } else { bytes.max(8) } }
    };
    (0..steps).map(|_| step()).collect()
}

const PLACE: usize = 5000;
const STEPS: usize = 40;

/// Random puts and signals in two contexts. At any time the words of a context show a prefix of its signals, and the
/// puts of that prefix have arrived.
#[test]
fn signals_of_context_become_visible_in_order() {
    let rounds = rounds(3);
    over_cases("signals_of_context_become_visible_in_order", rounds, |rank, broken| {
        let all = words(rank);
        let (mut source, mut target) =
            (rank.register(STEPS * PLACE, PTR_CUDA, 0), rank.register(STEPS * PLACE, PTR_CUDA, 0));
        let mut base = [[0u64; 6]; 3];
        for round in 1..=rounds {
            let steps = program(round, STEPS);
            source.words.fill(round);
            target.words.fill(0);
            rank.meeting.meet();
            if rank.me == 0 {
                let send = |(index, step): (usize, &Step)| {
                    let at = (index * PLACE) as u64;
                    let signal = step.word.map(|(kind, index)| TestSignal {
                        word: word(kind, &all, index),
                        add: 1,
                        strong: step.strong,
                    });
                    rank.gin_put(step.context as i32, (&source, at), step.bytes, (&target, at), 1, signal, GIB)
                };
                let requests: Vec<_> = steps.iter().enumerate().flat_map(send).collect();
                requests.into_iter().for_each(|request| rank.wait(request));
            } else {
                let mut wrong = false;
                for context in [0, 1] {
                    let signals: Vec<(usize, (usize, u64))> = steps
                        .iter()
                        .enumerate()
                        .filter(|(_, step)| step.context == context)
                        .filter_map(|(index, step)| step.word.map(|word| (index, word)))
                        .collect();
                    until("all signals of a context", || {
                        let now =
                            |(kind, index): (usize, u64)| all[kind].word(index as usize) - base[kind][index as usize];
                        // Finds the last visible signal.
                        let mut counts = [[0u64; 6]; 3];
                        let mut last = None;
                        for (at, (_, word)) in signals.iter().enumerate() {
                            let count = &mut counts[word.0][word.1 as usize];
                            *count += 1;
                            if now(*word) >= *count {
                                last = Some(at);
                            }
                        }
                        let Some(last) = last else { return false };
                        let mut counts = [[0u64; 6]; 3];
                        for (_, (kind, index)) in &signals[..=last] {
                            counts[*kind][*index as usize] += 1;
                        }
                        let shown =
                            signals[..=last].iter().all(|(_, word)| now(*word) >= counts[word.0][word.1 as usize]);
                        let before = steps[..=signals[last].0].iter().enumerate();
                        let there = before.filter(|(_, step)| step.context == context).all(|(index, step)| {
                            (0..step.bytes / 8).all(|word| target.word(index * PLACE / 8 + word) == round)
                        });
                        wrong |= !shown || !there;
                        last + 1 == signals.len()
                    });
                }
                broken.note(wrong);
            }
            rank.meeting.meet();
            for (kind, index) in steps.iter().filter_map(|step| step.word) {
                base[kind][index as usize] += 1;
            }
        }
        all.into_iter().chain([source, target]).collect()
    });
}

/// A complete put has arrived with its signal, so a signal that is sent afterwards, in any context, becomes visible
/// later.
#[test]
fn signal_of_complete_put_precedes_later_signals() {
    let rounds = rounds(10);
    over_cases("signal_of_complete_put_precedes_later_signals", rounds, |rank, broken| {
        let all = words(rank);
        let data = rank.register(64, PTR_CUDA, 0);
        rank.meeting.meet();
        for round in 1..=rounds {
            for kind in [1, 2] {
                rank.meeting.meet();
                let send = |context: i32, kind: usize, index: u64| {
                    let signal = Some(TestSignal { word: word(kind, &all, index), add: 1, strong: false });
                    let requests = rank.gin_put(context, (&data, 0), 8, (&data, 0), 1, signal, GIB);
                    requests.into_iter().for_each(|request| rank.wait(request));
                };
                if rank.me == 0 {
                    send(0, kind, 0);
                    send(1, 0, kind as u64);
                } else {
                    until("the later signal", || all[0].word(kind) >= round);
                    broken.note(all[kind].word(0) < round);
                }
            }
        }
        rank.meeting.meet();
        all.into_iter().chain([data]).collect()
    });
}

/// Signals of several contexts, and therefore of several queues of the plugin, add up correctly in a word of each kind.
#[test]
fn signals_of_several_contexts_add_up() {
    let rounds = rounds(5);
    over_cases("signals_of_several_contexts_add_up", rounds, |rank, broken| {
        let all = words(rank);
        let data = rank.register(PLACE, PTR_CUDA, 0);
        rank.meeting.meet();
        let mut sums = [0u64; 3];
        for round in 1..=rounds {
            let mut requests = Vec::new();
            for (at, step) in program(round, STEPS).into_iter().enumerate() {
                let Some((kind, _)) = step.word else { continue };
                sums[kind] += 1 + at as u64;
                if rank.me == 0 {
                    let signal =
                        Some(TestSignal { word: word(kind, &all, 0), add: 1 + at as u64, strong: step.strong });
                    let place = (&data, 0);
                    requests.extend(rank.gin_put(step.context as i32, place, step.bytes.min(8), place, 1, signal, GIB));
                }
            }
            requests.into_iter().for_each(|request| rank.wait(request));
            if rank.me == 1 {
                until("all signals", || (0..3).all(|kind| all[kind].word(0) >= sums[kind]));
                broken.note((0..3).any(|kind| all[kind].word(0) != sums[kind]));
            }
            rank.meeting.meet();
        }
        all.into_iter().chain([data]).collect()
    });
}

/// Type 5: signals of a queue become visible in the order of its requests, each after all earlier puts.
#[test]
fn signals_of_queue_become_visible_in_order() {
    let (rounds, mut failures) = (rounds(5), Vec::new());
    for case in CASES {
        let broken = Broken::new("signals_of_queue_become_visible_in_order", format!("{case:?}"), rounds);
        cards(2, &[case, &[(TIMEOUT, "100")]].concat(), |mut card| {
            assert_eq!(card.contexts(Card::config()), OK);
            let (mut source, target) = (card.register(LONG), card.register(LONG));
            for round in 1..=rounds {
                source.words.fill(round);
                card.meeting.meet();
                if card.me == 0 {
                    for (signal, bytes) in [(None, LONG), (Some(0), 8), (Some(1), 4096), (Some(2), 0)] {
                        card.put(0, ContextQueue::Data, (&source, 0), bytes as u32, (&target, 0), 1, signal, true);
                    }
                    card.flush(0);
                } else {
                    until("the last signal", || card.signal(0, 2) >= round);
                    let signals = card.signal(0, 0) >= round && card.signal(0, 1) >= round;
                    broken.note(!signals || (0..LONG / 8).any(|index| target.word(index) != round));
                }
                card.meeting.meet();
            }
            card.leave(vec![source, target]);
        });
        broken.take(&mut failures);
    }
    check(&failures);
}
