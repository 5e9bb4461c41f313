//! Which executions are looked at.
//!
//! [`all`]: every interleaving, but that a state which was met before is not followed again. With a bound ([`deeper`]): those that differ from the plain
//! schedule (what the network holds is delivered at once, then the kernels go on) in so many choices. An event that a choice passes over
//! stays late: it happens when nothing else can, or by another choice. So one choice makes a transfer as late as can be.
//!
//! [`walks`]: executions by seeds. Each event has a priority of its own by chance, so that some transfers are late for long.

use super::machine::{Event, Execution, Program};
use super::mix;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// What a search has seen.
#[derive(Debug)]
pub struct Seen {
    pub executions: u64,
    pub states: usize,
    pub events: u64,
    /// Nothing was left out.
    pub complete: bool,
    pub failure: Option<Failure>,
    pub elapsed: Duration,
}

/// An execution that went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    pub text: String,
    /// Of the enabled events, in their order, which was next: see [`replay`].
    pub choices: Vec<u16>,
    /// The same in words.
    pub schedule: Vec<String>,
}

/// A place at which the search has chosen.
struct Branch {
    taken: usize,
    of: usize,
}

impl Seen {
    fn new() -> Seen {
        Seen { executions: 0, states: 0, events: 0, complete: true, failure: None, elapsed: Duration::ZERO }
    }

    /// The event of this number happens.
    fn step(&mut self, execution: &mut Execution, events: &[Event], next: usize, choices: &mut Vec<u16>) {
        choices.push(next as u16);
        self.events += 1;
        execution.apply(events[next]);
    }

    /// Counts an execution that has ended by these choices; whether it went wrong.
    fn fails(&mut self, program: &Program, execution: &Execution, choices: Vec<u16>) -> bool {
        self.executions += 1;
        self.failure = execution.failure().map(|text| explained(program, text, choices));
        self.failure.is_some()
    }
}

/// Every interleaving, `most` executions at most.
pub fn all(program: &Program, most: u64) -> Seen {
    explore(program, None, most, true)
}

/// As [`all`], also from states that were met before.
pub fn all_again(program: &Program, most: u64) -> Seen {
    explore(program, None, most, false)
}

/// With a bound: what is within so many choices of the plain schedule. `remembers`: a state is followed once.
fn explore(program: &Program, bound: Option<u32>, most: u64, remembers: bool) -> Seen {
    let started = Instant::now();
    let mut path: Vec<Branch> = Vec::new();
    let mut met: HashMap<u64, u32> = HashMap::new();
    let mut seen = Seen::new();
    let mut events = Vec::new();
    loop {
        let mut execution = Execution::new(program);
        let mut late: HashSet<Event> = HashSet::new();
        let mut left = bound.unwrap_or(u32::MAX);
        let mut choices = Vec::new();
        let mut depth = 0;
        loop {
            execution.enabled(&mut events);
            if events.is_empty() {
                break;
            }
            let mut next = 0;
            // Once the kernels have ended nobody reads what comes: one order will do.
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
                    // The first is the plain choice, the others follow in their order.
                    let plain = next;
                    next = if taken <= plain { taken - 1 } else { taken };
                    if bound.is_some() {
                        left -= 1;
                        if !late.contains(&events[next]) {
                            let passed = events[..next].iter().filter(|event| !late.contains(event));
                            let passed: Vec<Event> = passed.copied().collect();
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

/// An event's name, the same in whichever order transfers were posted.
fn name(execution: &Execution, event: Event) -> u64 {
    let flight = |number: usize| execution.wire.borrow().flights[number].summary();
    match event {
        Event::Drain(pe) => mix(1, pe as u64),
        Event::Kernel(pe) => mix(2, pe as u64),
        Event::Arrive(number) => mix(3, flight(number)),
        Event::Tell(number) => mix(4, flight(number)),
        Event::Complete(number) => mix(5, flight(number)),
    }
}

/// As [`all`] with a bound of 0, 1, ... until one finds a failure, sees everything, or the executions are spent; the bound that was last, and
/// the sums of all.
pub fn deeper(program: &Program, most: u64) -> (u32, Seen) {
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

/// `count` executions, by the seeds from `first` on.
pub fn walks(program: &Program, first: u64, count: u64) -> Seen {
    let started = Instant::now();
    let mut seen = Seen { complete: false, ..Seen::new() };
    let mut events = Vec::new();
    for seed in first..first + count {
        let mut execution = Execution::new(program);
        let mut priorities: HashMap<Event, u64> = HashMap::new();
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
            // In every fourth walk all events are alike.
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
            // A kernel's next step, and a proxy's, is another event.
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

/// The execution of these choices; behind them, the first event each time. What went wrong, and the schedule.
pub fn replay(program: &Program, choices: &[u16]) -> (Option<String>, Vec<String>) {
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

fn explained(program: &Program, text: &str, choices: Vec<u16>) -> Failure {
    let (again, schedule) = replay(program, &choices);
    assert_eq!(again.as_deref(), Some(text), "{}: the same choices give another end", program.name);
    Failure { text: text.to_owned(), choices, schedule }
}
