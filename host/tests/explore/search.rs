//! Search strategies, which select the executions to explore.
//!
//! [`all`] explores every interleaving, except that it does not continue from a state that was reached before.
//! [`deeper`] limits the number of choices that differ from the default schedule, in which pending network events are
//! delivered immediately before the kernels continue. An event that a choice skips stays late: it happens when no other
//! event is possible, or by another choice. Therefore, a single choice can delay a transfer as much as possible.
//!
//! [`walks`] executes random schedules by seed. Each event has a random priority, so that some transfers are late for a
//! long time.

use super::machine::{Execution, ExploreProgram, MachineEvent};
use super::mix;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Statistics and results of a search.
#[derive(Debug)]
pub struct Seen {
    pub executions: u64,
    pub states: usize,
    pub events: u64,
    /// Whether nothing was left out.
    pub complete: bool,
    pub failure: Option<FailedExecution>,
    pub elapsed: Duration,
}

/// A failed execution.
#[derive(Clone, Debug)]
pub struct FailedExecution {
    pub text: String,
    /// Index of each chosen event in the list of enabled events; see [`replay`].
    pub choices: Vec<u16>,
    /// Description of the chosen events.
    pub schedule: Vec<String>,
}

/// A point at which the search has made a choice.
struct Branch {
    taken: usize,
    of: usize,
}

impl Seen {
    fn new() -> Seen {
        Seen { executions: 0, states: 0, events: 0, complete: true, failure: None, elapsed: Duration::ZERO }
    }

    /// Applies event number `next` and records the choice.
    fn step(&mut self, execution: &mut Execution, events: &[MachineEvent], next: usize, choices: &mut Vec<u16>) {
        choices.push(next as u16);
        self.events += 1;
        execution.apply(events[next]);
    }

    /// Counts an execution that has ended. Returns whether it failed.
    fn fails(&mut self, program: &ExploreProgram, execution: &Execution, choices: Vec<u16>) -> bool {
        self.executions += 1;
        self.failure = execution.failure().map(|text| explained(program, text, choices));
        self.failure.is_some()
    }
}

/// Explores every interleaving, at most `most` executions.
pub fn all(program: &ExploreProgram, most: u64) -> Seen {
    explore(program, None, most, true)
}

/// Like [`all`], but also continues from states that were reached before.
pub fn all_again(program: &ExploreProgram, most: u64) -> Seen {
    explore(program, None, most, false)
}

/// Explores executions. With `bound`, at most that many choices differ from the default schedule. With `remembers`, the
/// search continues only once from each state.
fn explore(program: &ExploreProgram, bound: Option<u32>, most: u64, remembers: bool) -> Seen {
    let started = Instant::now();
    let mut path: Vec<Branch> = Vec::new();
    let mut met: HashMap<u64, u32> = HashMap::new();
    let mut seen = Seen::new();
    let mut events = Vec::new();
    loop {
        let mut execution = Execution::new(program);
        let mut late: HashSet<MachineEvent> = HashSet::new();
        let mut left = bound.unwrap_or(u32::MAX);
        let mut choices = Vec::new();
        let mut depth = 0;
        loop {
            execution.enabled(&mut events);
            if events.is_empty() {
                break;
            }
            let mut next = 0;
            // The order of the remaining events does not matter once the kernels have ended.
            if events.len() > 1 && !execution.is_over() {
                if bound.is_some() {
                    next = events.iter().position(|event| !late.contains(event)).unwrap_or(0);
                }
                if depth == path.len() {
                    let key = if bound.is_some() {
                        late.iter().fold(execution.state(), |key, event| key.wrapping_add(name(&execution, *event)))
                    } else {
                        execution.state()
                    };
                    if remembers && met.get(&key).is_some_and(|before| *before >= left) {
                        break;
                    }
                    met.insert(key, left);
                    seen.complete &= left > 0;
                    path.push(Branch { taken: 0, of: if left == 0 { 1 } else { events.len() } });
                }
                let taken = path[depth].taken;
                depth += 1;
                if taken > 0 {
                    // The default choice comes first, and the others follow in order.
                    let plain = next;
                    next = if taken <= plain { taken - 1 } else { taken };
                    if bound.is_some() {
                        left -= 1;
                        if !late.contains(&events[next]) {
                            let passed = events[..next].iter().filter(|event| !late.contains(event));
                            let passed: Vec<MachineEvent> = passed.copied().collect();
                            late.extend(passed);
                        }
                    }
                }
                late.remove(&events[next]);
            }
            seen.step(&mut execution, &events, next, &mut choices);
        }
        if seen.fails(program, &execution, choices) {
            break;
        }
        while path.last().is_some_and(|branch| branch.taken + 1 >= branch.of) {
            path.pop();
        }
        match path.last_mut() {
            None => break,
            Some(_) if seen.executions >= most => {
                seen.complete = false;
                break;
            }
            Some(branch) => branch.taken += 1,
        }
    }
    seen.complete &= seen.failure.is_none();
    seen.states = met.len();
    seen.elapsed = started.elapsed();
    seen
}

/// Returns an event's name as a hash that does not depend on the order in which transfers were posted.
fn name(execution: &Execution, event: MachineEvent) -> u64 {
    let flight = |number: usize| execution.wire.borrow().flights[number].summary();
    match event {
        MachineEvent::Drain(pe) => mix(1, pe as u64),
        MachineEvent::Kernel(pe) => mix(2, pe as u64),
        MachineEvent::Arrive(number) => mix(3, flight(number)),
        MachineEvent::Tell(number) => mix(4, flight(number)),
        MachineEvent::Complete(number) => mix(5, flight(number)),
    }
}

/// Explores with bounds of 0, 1, ... until a failure is found, all executions were explored, or `most` executions are
/// reached. Returns the last bound, and the sums over all bounds.
pub fn deeper(program: &ExploreProgram, most: u64) -> (u32, Seen) {
    let mut before = (0, 0, Duration::ZERO);
    for bound in 0.. {
        let mut seen = explore(program, Some(bound), most - before.0, true);
        (seen.executions, seen.events) = (seen.executions + before.0, seen.events + before.1);
        seen.elapsed += before.2;
        if seen.complete || seen.failure.is_some() || seen.executions >= most {
            return (bound, seen);
        }
        before = (seen.executions, seen.events, seen.elapsed);
    }
    unreachable!("a bound is reached")
}

/// Executes `count` random schedules, with seeds starting at `first`.
pub fn walks(program: &ExploreProgram, first: u64, count: u64) -> Seen {
    let started = Instant::now();
    let mut seen = Seen { complete: false, ..Seen::new() };
    let mut events = Vec::new();
    for seed in first..first + count {
        let mut execution = Execution::new(program);
        let mut priorities: HashMap<MachineEvent, u64> = HashMap::new();
        let mut choices = Vec::new();
        let mut drawn = 0;
        let mut draw = || {
            drawn += 1;
            mix(mix(0x9e37, seed), drawn)
        };
        loop {
            execution.enabled(&mut events);
            if events.is_empty() {
                break;
            }
            // In every fourth walk, all events have the same probability.
            let next = if seed % 4 == 0 {
                draw() as usize % events.len()
            } else {
                let mut best = (0, 0);
                for (index, event) in events.iter().enumerate() {
                    let priority = *priorities.entry(*event).or_insert_with(&mut draw);
                    best = best.max((priority, index));
                }
                best.1
            };
            // The next step of a kernel or proxy is a different event.
            priorities.remove(&events[next]);
            seen.step(&mut execution, &events, next, &mut choices);
        }
        if seen.fails(program, &execution, choices) {
            break;
        }
    }
    seen.elapsed = started.elapsed();
    seen
}

/// Replays an execution with the given choices, and with the first event once these are exhausted. Returns the failure,
/// if any, and the schedule.
pub fn replay(program: &ExploreProgram, choices: &[u16]) -> (Option<String>, Vec<String>) {
    let mut execution = Execution::new(program);
    let (mut events, mut schedule) = (Vec::new(), Vec::new());
    let mut choices = choices.iter();
    loop {
        execution.enabled(&mut events);
        let Some(last) = events.len().checked_sub(1) else { break };
        let next = choices.next().map_or(0, |next| usize::from(*next).min(last));
        schedule.push(execution.describe(events[next]));
        execution.apply(events[next]);
    }
    (execution.failure().map(str::to_owned), schedule)
}

fn explained(program: &ExploreProgram, text: &str, choices: Vec<u16>) -> FailedExecution {
    let (again, schedule) = replay(program, &choices);
    assert_eq!(again.as_deref(), Some(text), "{}: the same choices give another end", program.name);
    FailedExecution { text: text.to_owned(), choices, schedule }
}
