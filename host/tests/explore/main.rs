//! Model checker for interleavings of kernels, proxies and network.
//!
//! Kernels, ring, engines and signal rules are those of the product. The network is a [`wire`] controlled by the
//! explorer. A program is executed repeatedly with different choices ([`search`]): in all interleavings if it is small,
//! and in random ones if it is larger. The explorer checks:
//!
//! - the bytes that are readable after a wait;
//! - that no PE passes a barrier too early;
//! - that sources do not change before their puts complete;
//! - that no two puts of different bytes to the same location are in flight;
//! - that some PE can always continue.
//!
//! Correct programs must pass in each interleaving, and each fault must be detected. A failure prints its choices and
//! the resulting schedule.
//!
//! `GINLAB_EXPLORE=1000000` sets the maximum number of executions and of walks per program. `GINLAB_REPLAY='NAME: 0 3
//! 1'` prints that schedule (with `--nocapture`).
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod collectives;
mod machine;
#[path = "../../../tests/passed/mod.rs"]
mod passed;
mod place;
mod programs;
mod search;
mod seat;
mod wire;

use collectives::*;
use ginlab::proxy::signal_order::Rule;
use machine::{ExploreProgram, KernelBody};
use programs::*;
use search::{FailedExecution, Seen};

/// Maximum number of executions of a small program. It exceeds the number of its interleavings.
const MOST: u64 = 100_000;
/// Number of random walks of a larger program.
const WALKS: u64 = 1_000;
/// Maximum number of executions until a fault must be found.
const SOON: u64 = 20_000;

/// Hashes two numbers into one. Every bit of the result depends on all bits of both.
fn mix(state: u64, value: u64) -> u64 {
    let sum = (state ^ value.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    sum ^ sum >> 32
}

/// Returns the number from the environment, or `number` if it is not set.
fn asked(number: u64) -> u64 {
    std::env::var("GINLAB_EXPLORE").map_or(number, |text| text.parse().expect("GINLAB_EXPLORE is a number"))
}

/// Returns the program with rails that accept a whole put as one transfer.
fn by(rule: Rule, program: ExploreProgram) -> ExploreProgram {
    ExploreProgram { rule, ..program }
}

/// Returns the program with rails that accept at most one third of an object per transfer.
fn in_thirds(program: ExploreProgram) -> ExploreProgram {
    ExploreProgram { longest: seat::OBJECT.div_ceil(3), ..program }
}

/// Returns the program with rails that accept at most one half of an object per transfer.
fn in_pieces(program: ExploreProgram) -> ExploreProgram {
    ExploreProgram { longest: seat::OBJECT / 2, ..program }
}

fn late(program: ExploreProgram) -> ExploreProgram {
    ExploreProgram { looks_late: true, ..program }
}

/// Returns a program of puts to a target whose account has two places for each rank.
fn few_places(name: &'static str) -> ExploreProgram {
    ExploreProgram { accounts: 8192, ..ExploreProgram::new(name, 2, places) }
}

const RULES: [Rule; 4] = [Rule::Count, Rule::Own, Rule::Drain, Rule::Sequence];

/// Returns correct programs that are small enough to execute all interleavings.
fn small() -> Vec<ExploreProgram> {
    let two = |name, body: KernelBody| ExploreProgram::new(name, 2, body);
    let mut programs = Vec::new();
    for rule in RULES {
        // With rule `sequence`, each put consists of two transfers, so fewer rounds have as many interleavings.
        let and_quiet: KernelBody = if rule == Rule::Sequence { two_messages_and_quiet } else { messages_and_quiet };
        programs.extend([
            in_thirds(by(rule, two("one put and its answer", one_put))),
            by(rule, two("two puts, a signal each", two_puts_two_signals)),
            by(rule, two("two puts, one sum", two_puts_one_sum)),
            by(rule, two("puts with credits", credits)),
            by(rule, two("messages, quiet", and_quiet)),
            by(rule, two("exchange by puts", exchange_with_signals)),
        ]);
    }
    programs.extend([
        in_pieces(two("two puts, a signal each", two_puts_two_signals)),
        in_pieces(two("puts with credits", credits)),
        in_pieces(two("messages, quiet", two_messages_and_quiet)),
        late(two("messages, quiet", messages_and_quiet)),
        late(two("puts with credits", credits)),
        two("messages", messages),
        by(Rule::Own, two("messages", messages)),
        by(Rule::Drain, two("messages", messages)),
        late(two("messages", messages)),
        late(by(Rule::Own, two("messages", messages))),
        two("barrier", barrier),
        in_pieces(two("barrier", barrier)),
        late(two("barrier", barrier)),
        two("broadcast with credits", broadcast),
        two("all-to-all by messages", all_to_all_by_messages),
        two("all-to-all by puts", all_to_all_by_puts),
        two("all-gather by puts", all_gather_by_puts),
        two("reduce-scatter by puts", reduce_scatter_by_puts),
        two("all-reduce by messages", all_reduce_by_messages),
        two("all-reduce in place", all_reduce_in_place),
        two("broadcast by messages", broadcast_by_messages),
        two("shmem all-to-all by puts", shmem_all_to_all_by_puts),
        two("shmem all-to-all by messages", shmem_all_to_all_by_messages),
    ]);
    programs
}

/// Returns correct programs with too many interleavings to execute all.
fn large() -> Vec<ExploreProgram> {
    let mut programs = Vec::new();
    let bodies: [(&str, KernelBody); 13] = [
        ("messages, quiet", messages_and_quiet),
        ("exchange by puts", exchange_with_signals),
        ("barrier", barrier),
        ("broadcast with credits", broadcast),
        ("all-to-all by messages", all_to_all_by_messages),
        ("all-to-all by puts", all_to_all_by_puts),
        ("all-gather by puts", all_gather_by_puts),
        ("reduce-scatter by puts", reduce_scatter_by_puts),
        ("all-reduce by messages", all_reduce_by_messages),
        ("all-reduce in place", all_reduce_in_place),
        ("all-reduce by puts", all_reduce_by_puts),
        ("broadcast by messages", broadcast_by_messages),
        ("broadcast by puts", broadcast_by_puts),
    ];
    for (number, (name, body)) in bodies.into_iter().enumerate() {
        // The rules alternate. Rule `count` needs fragmented puts, because otherwise there would be no fragments to
        // count.
        let rule = RULES[number % RULES.len()];
        programs.push(in_pieces(by(rule, ExploreProgram::new(name, 3, body))));
        // A ring that becomes full, and a rail that returns EAGAIN.
        programs.push(ExploreProgram { log2_slots: 1, room: 1, ..ExploreProgram::new(name, 2, body) });
        if name.contains("by puts") && name != "exchange by puts" {
            // Two nodes of two PEs. The heaps of a node's PEs are mapped.
            programs.push(ExploreProgram { local: 2, ..ExploreProgram::new(name, 4, body) });
        }
    }
    for rule in RULES {
        programs.push(in_pieces(by(rule, ExploreProgram::new("messages", 3, messages))));
        programs
            .push(in_pieces(by(rule, ExploreProgram::new("shmem all-to-all by puts", 3, shmem_all_to_all_by_puts))));
    }
    for rule in [Rule::Count, Rule::Sequence] {
        programs.push(in_pieces(by(rule, few_places("more puts than places"))));
    }
    programs
}

/// Returns faulty programs with a substring of the failure that the explorer must find.
fn faults() -> Vec<(ExploreProgram, &'static str)> {
    let program = ExploreProgram::new;
    let early = |rule, body| ExploreProgram { early: true, ..by(rule, program("an early signal", 2, body)) };
    let mut faults = vec![
        (program("two puts, one signal", 2, two_puts_one_signal), "of the put is 0xee"),
        (by(Rule::Own, program("two puts, one signal", 2, two_puts_one_signal)), "of the put is 0xee"),
        (in_pieces(program("two puts, one signal", 2, two_puts_one_signal)), "of the put is 0xee"),
        (program("exchange with one signal", 3, exchange_with_one_signal), "of what was put is"),
        (program("barrier without quiet", 2, barrier_without_quiet), "what was put before the barrier"),
        (program("barrier of some", 3, barrier_of_some), "barrier"),
        (program("source written early", 2, source_written_early), "has written the source of put"),
        (program("credit before the read", 2, credit_before_the_read), "of the put is"),
        // The failure is either wrong bytes or a deadlock, depending on the messages.
        (program("broadcast with one signal", 3, broadcast_with_one_signal), ""),
        (in_pieces(ExploreProgram { credits_early: true, ..few_places("a place given back early") }), ""),
        // With three transfers, the account regards the signal as complete after the first and one other transfer.
        (in_thirds(early(Rule::Count, two_puts_two_signals)), "of the put is 0xee"),
    ];
    for rule in [Rule::Own, Rule::Drain, Rule::Sequence] {
        faults.push((early(rule, two_puts_two_signals), "of the put is 0xee"));
    }
    faults
}

/// Prints a summary.
fn tell(program: &ExploreProgram, how: &str, seen: &Seen) {
    let Seen { executions, states, events, elapsed, .. } = seen;
    let states = if *states > 0 { format!("{states} states") } else { String::new() };
    eprintln!(
        "{:46} {how:10} {executions:7} executions {states:>14} {events:9} events {:6.2} s{}{}",
        title(program),
        elapsed.as_secs_f64(),
        if seen.complete { ", all" } else { "" },
        seen.failure.as_ref().map_or(String::new(), |failure| format!(": {}", failure.text)),
    );
}

/// Returns a unique title of a program, including the properties of its rails.
fn title(program: &ExploreProgram) -> String {
    let ExploreProgram { name, pes, rule, longest, room, looks_late, local, early, .. } = *program;
    let or = |condition: bool, text: &'static str| if condition { text } else { "" };
    format!(
        "{name}, {pes} PEs, {rule}{}{}{}{}{}",
        match seat::OBJECT.div_ceil(longest) {
            1 => "",
            2 => ", pieces",
            _ => ", small pieces",
        },
        or(room == 1, ", narrow"),
        or(looks_late, ", late looks"),
        or(local > 1, ", nodes"),
        or(early, ", early"),
    )
}

fn explain(program: &ExploreProgram, failure: &FailedExecution) -> String {
    let choices: Vec<String> = failure.choices.iter().map(u16::to_string).collect();
    format!(
        "{}: {}\nGINLAB_REPLAY='{}: {}'\n{}",
        program.name,
        failure.text,
        title(program),
        choices.join(" "),
        failure.schedule.join(";\n")
    )
}

fn must_be_clean(program: &ExploreProgram, how: &str, seen: &Seen) {
    tell(program, how, seen);
    if let Some(failure) = &seen.failure {
        panic!("{}", explain(program, failure));
    }
}

#[test]
fn small_programs_are_right_in_every_interleaving() {
    passed::once("small_programs", &[], || {
        for program in small() {
            let seen = search::all(&program, asked(MOST).max(MOST));
            must_be_clean(&program, "all", &seen);
            assert!(seen.complete, "{}: more than {MOST} executions", title(&program));
        }
    });
}

#[test]
fn larger_programs_are_right_by_every_seed() {
    passed::once("larger_programs", &[], || {
        for program in large() {
            must_be_clean(&program, "walks", &search::walks(&program, 0, asked(WALKS)));
        }
    });
}

/// Each fault must be found both near the default schedule and by walks, which tests both searches.
#[test]
fn each_fault_is_found() {
    for (program, words) in faults() {
        let (bound, near) = search::deeper(&program, SOON);
        let searches = [(format!("bound {bound}"), near), ("walks".to_owned(), search::walks(&program, 0, SOON))];
        for (how, seen) in searches {
            tell(&program, &how, &seen);
            let failure = seen.failure.unwrap_or_else(|| panic!("{}, {how}: not found", title(&program)));
            assert!(failure.text.contains(words), "found in another way: {}", explain(&program, &failure));
        }
    }
}

/// The set of states is the same with and without pruning: pruned executions lead only to known states.
#[test]
fn every_state_is_explored_once() {
    for rule in RULES {
        let program = by(rule, ExploreProgram::new("one put and its answer", 2, one_put));
        let (once, again) = (search::all(&program, MOST), search::all_again(&program, MOST));
        tell(&program, "all", &once);
        tell(&program, "all again", &again);
        assert!(once.complete && again.complete && once.executions < again.executions);
        assert_eq!(once.states, again.states, "{rule}");
    }
}

/// Prints the schedule that `GINLAB_REPLAY` specifies, of any program above.
#[test]
fn schedule_is_replayed() {
    let Ok(asked) = std::env::var("GINLAB_REPLAY") else { return };
    let (name, choices) = asked.split_once(": ").expect("GINLAB_REPLAY='NAME: 0 3 1'");
    let choices: Vec<u16> = choices.split_whitespace().map(|choice| choice.parse().expect("a number")).collect();
    let mut programs = small().into_iter().chain(large()).chain(faults().into_iter().map(|(program, _)| program));
    let program = programs.find(|program| title(program) == name).expect("a program of this name");
    let (failure, schedule) = search::replay(&program, &choices);
    eprintln!("{}\n{}", schedule.join(";\n"), failure.as_deref().unwrap_or("nothing went wrong"));
}
