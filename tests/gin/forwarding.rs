//! PE 1 forwards to PE 2 what PE 0 puts into its two slots. The worst-case network model detects a missing wait, and
//! the error names the PE that must wait.

use super::*;

const WORDS: u64 = 512;
const ROUNDS: u64 = 20;
/// Number of seeds tried per mistake, and number of errors that are checked.
const SEEDS: u64 = 60;
const ENOUGH: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// PE 1 frees a slot before it forwards it.
    GivenBackFirst,
    /// PE 0 does not wait for the slot.
    NotWaited,
    /// PE 1 frees a slot while its put is in flight.
    NotFenced,
    /// PE 0 raises one signal for both slots, with puts to both in flight.
    OneSignal,
}

#[derive(Clone, Copy)]
struct Relay {
    mistake: Mistake,
    /// Data that PE 0 sends: one part per round.
    source: Sym<u64>,
    slots: Sym<u64>,
    arrived: Signal,
    free: Signal,
}

unsafe fn relay(program: Program<Relay>) {
    let Program { world, args: Relay { mistake, source, slots, arrived, free } } = program;
    let me = world.my_pe();
    let is_wrong = |pe: u32, wrong: Mistake| me == pe && mistake == wrong;
    let mut line = world.context(Thread);
    let mut run = || -> Result<(), Status> {
        for round in 0..ROUNDS {
            let (turn, number) = (round / 2, round as u32 % 2);
            let slot = slots.slice(u64::from(number) * WORDS, WORDS);
            if is_wrong(1, Mistake::OneSignal) {
                line.signal_wait_until(arrived.at(0), round + 1)?;
            } else if me > 0 {
                line.signal_wait_until(arrived.at(number), turn + 1)?;
            }
            if is_wrong(1, Mistake::GivenBackFirst) {
                line.signal_op(free.at(number), 1, 0)?;
            }
            if me < 2 && turn > 0 && !is_wrong(0, Mistake::NotWaited) {
                line.signal_wait_until(free.at(number), turn)?;
            }
            let from = if me == 0 { source.slice(round * WORDS, WORDS) } else { slot };
            match me {
                0 if mistake == Mistake::OneSignal => line.put_signal_nbi(slot, from, arrived.at(0), 1, 1)?,
                1 if mistake == Mistake::NotFenced => line.put_signal_nbi(slot, from, arrived.at(number), 1, 2)?,
                0 | 1 => line.put_signal(slot, from, arrived.at(number), 1, me + 1)?,
                _ => {}
            }
            if me > 0 && !is_wrong(1, Mistake::GivenBackFirst) {
                if !is_wrong(1, Mistake::NotFenced) {
                    line.fence()?;
                }
                line.signal_op(free.at(number), 1, me - 1)?;
            }
        }
        line.quiet()
    };
    let _ = run();
}

/// Returns the errors of the PEs with one seed.
fn errors(mistake: Mistake, seed: u64, rails: usize) -> Vec<String> {
    let fabric = Fabric::Worst(WorstSpec { seed, delay: 200, ..WorstSpec::default() });
    let options = WorldOptions { fabric, rails, ..emulated(PePath::Rails) };
    let ends = opened(3, &options, |mut world, ranks| {
        let source = world.alloc::<u64>(ranks, ROUNDS * WORDS).unwrap();
        let slots = world.alloc::<u64>(ranks, 2 * WORDS).unwrap();
        let [arrived, free] = [0; 2].map(|_| world.signals(ranks, 2).unwrap());
        let values: Vec<u64> = (0..ROUNDS * WORDS).map(|at| at / WORDS + 1).collect();
        world.write(source, &values).unwrap();
        let launched = launch(&mut world, ranks, relay, (1, 1), Relay { mistake, source, slots, arrived, free });
        launched.and(world.barrier(ranks)).map_err(|error| error.to_string())
    });
    ends.into_iter().filter_map(Result::err).collect()
}

/// Returns errors caused by a changed source, from as many seeds as necessary.
fn found(mistake: Mistake, rails: usize) -> Vec<String> {
    let is_cause = |error: &String| error.starts_with("source rewritten");
    let mut found: Vec<String> = Vec::new();
    for seed in 1..=SEEDS {
        found.extend(errors(mistake, seed, rails).into_iter().filter(is_cause));
        if found.len() >= ENOUGH {
            break;
        }
    }
    assert!(!found.is_empty(), "{mistake:?}: nothing in {SEEDS} seeds");
    found
}

/// Checks that one line contains the put that landed, the missing wait and the object, in this order.
fn assert_named(mistake: Mistake, wait: &str) {
    for rails in [1, 2] {
        for error in found(mistake, rails) {
            let mut rest = error.as_str();
            for part in [
                "source rewritten while its put is in flight: put_signal ",
                " of PE 0 to PE 1 (",
                " B) was written into it; ",
                wait,
                "; put_signal ",
                " of PE 1 to PE 2: ",
                " B from allocation 2 (8192 B of u64), byte ",
                " of it (worst:seed=",
                "); a test's kernel: block 0, thread 0",
            ] {
                let at = rest.find(part).unwrap_or_else(|| panic!("{mistake:?}: {part:?} in {error}"));
                rest = &rest[at + part.len()..];
            }
            assert!(!error.contains('\n') && error.len() <= 400, "{}: {error}", error.len());
        }
    }
}

#[test]
fn relay_without_mistake_passes() {
    for seed in 1..=3 {
        assert_eq!(errors(Mistake::None, seed, 1), Vec::<String>::new(), "{seed}");
    }
}

#[test]
fn slot_given_back_before_forwarding_names_forwarding_pe() {
    assert_named(Mistake::GivenBackFirst, "PE 1 signalled PE 0 before its forwarding put had completed");
}

#[test]
fn put_without_wait_for_slot_names_sending_pe() {
    assert_named(Mistake::NotWaited, "PE 0 did not wait for a signal of PE 1 that its forwarding put has completed");
}

#[test]
fn slot_given_back_without_fence_names_forwarding_pe() {
    assert_named(Mistake::NotFenced, "PE 1 signalled PE 0 before its forwarding put had completed");
}

#[test]
fn one_signal_for_two_slots_names_missing_arrival() {
    assert_named(
        Mistake::OneSignal,
        "PE 1 forwarded the bytes before they had arrived: wait for that put's own signal",
    );
}
