//! A trace of puts (`ginlab nccl --trace FILE`) as a dependency graph.
//!
//! The plugin records puts, gets and arrivals, but not the waits of kernels. The dependencies of a put are therefore
//! inferred, in two ways that bound the truth from both sides ([`Depends`]): everything that arrived before it, or only
//! what arrived during a pause before it.

use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Minimum time between consecutive puts of a context for the second one to count as having waited.
const PAUSE_NS: u64 = 3_000;

/// Assumption about the events that a put waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Depends {
    /// All signals, gets and completions before the put: an upper bound
    ///
    /// The put cannot have depended on anything later.
    Arrived,
    /// Only those that arrived while the put's context paused for more than 3 us; waits that ended immediately are
    /// missed
    Paused,
}

#[derive(Clone, Debug, Deserialize)]
struct Line {
    kind: String,
    communicator: String,
    rank: usize,
    peer: usize,
    number: u64,
    context: u16,
    bytes: u64,
    asked_ns: u64,
    done_ns: u64,
    signal: Option<(u32, u64, u64)>,
    /// Increment of the signal.
    #[serde(default)]
    add: u64,
}

/// Location of a signal: communicator, rank, region, offset.
type SignalLocation = (usize, usize, u32, u64);

/// Dependency of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The preceding put of its context was issued.
    Issued(usize),
    /// A put of its context is complete.
    Complete(usize),
    /// A signal of its rank has reached a value.
    Signal { signal: usize, value: u64 },
}

/// A put or a get.
#[derive(Clone, Debug)]
pub struct TracedPut {
    /// Whether the operation is a get.
    pub is_get: bool,
    /// Rank that issues the put.
    pub from: usize,
    /// Target rank.
    pub to: usize,
    /// Number of bytes.
    pub bytes: u64,
    /// Index of the signal that the put raises, and the increment.
    pub signal: Option<(usize, u64)>,
    /// Time at which the put was requested, in nanoseconds.
    pub asked: u64,
    /// Dependencies.
    pub after: Vec<Before>,
    /// Time from the last dependency to this put, in nanoseconds, attributed to computation.
    pub gap: u64,
}

/// Puts of a trace and their dependencies.
#[derive(Clone, Debug, Default)]
pub struct ReplayTrace {
    /// Number of ranks.
    pub ranks: usize,
    /// Puts, ordered by the time of their request.
    pub puts: Vec<TracedPut>,
    /// Number of signals.
    pub signals: usize,
    /// Time from the first put to the last arrival, in nanoseconds.
    pub recorded: u64,
    /// Number of puts without an arrival in the trace.
    pub lost: usize,
}

/// An event that a put can depend on, and its time in the recording.
#[derive(Clone, Copy)]
struct Event {
    at: u64,
    before: Before,
}

impl ReplayTrace {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns a one-line message with the file, the line and the problem.
    pub fn read(file: &Path, depends: Depends) -> Result<ReplayTrace, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
        let mut lines = Vec::new();
        for (number, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let line: Line = serde_json::from_str(text).map_err(|error| {
                failed(&format!(
                    "line {}: {error}; expected a file written by `ginlab nccl --trace FILE.jsonl`",
                    number + 1
                ))
            })?;
            lines.push(line);
        }
        ReplayTrace::of(lines, depends).map_err(|why| failed(&why))
    }

    fn of(mut lines: Vec<Line>, depends: Depends) -> Result<ReplayTrace, String> {
        lines.sort_by_key(|line| line.asked_ns);
        if !lines.iter().any(|line| line.kind != "arrival") {
            return Err("the trace contains no puts".into());
        }
        let most = |rank: usize| if rank < 4096 { Ok(rank) } else { Err(format!("rank {rank}: must be at most 4096")) };
        let mut communicators: BTreeMap<String, usize> = BTreeMap::new();
        for line in &lines {
            let next = communicators.len();
            communicators.entry(line.communicator.clone()).or_insert(next);
        }
        let mut trace = ReplayTrace::default();
        let mut signals: HashMap<SignalLocation, usize> = HashMap::new();
        // Index of a put by communicator, sender, receiver and number. Events are stored by (communicator, rank) and by
        // (communicator, rank, context).
        let mut by_number: HashMap<(usize, usize, usize, u64), usize> = HashMap::new();
        let mut contexts = Vec::new();
        let mut of_rank: BTreeMap<(usize, usize), Vec<Event>> = BTreeMap::new();
        let mut of_context: BTreeMap<(usize, usize, u16), Vec<Event>> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.kind != "arrival") {
            let communicator = communicators[&line.communicator];
            let (rank, peer) = (most(line.rank)?, most(line.peer)?);
            trace.ranks = trace.ranks.max(rank.max(peer) + 1);
            let index = trace.puts.len();
            let is_get = line.kind == "get";
            let signal = line.signal.filter(|_| !is_get).map(|(region, offset, _)| {
                let next = signals.len();
                (*signals.entry((communicator, peer, region, offset)).or_insert(next), line.add.max(1))
            });
            by_number.insert((communicator, rank, peer, line.number), index);
            let context = (communicator, rank, line.context);
            contexts.push(context);
            of_context.entry(context).or_default().push(Event { at: line.done_ns, before: Before::Complete(index) });
            trace.puts.push(TracedPut {
                is_get,
                from: rank,
                to: peer,
                bytes: line.bytes,
                signal,
                asked: line.asked_ns,
                after: Vec::new(),
                gap: 0,
            });
        }
        let mut arrived = vec![false; trace.puts.len()];
        let mut arrivals: Vec<&Line> = lines.iter().filter(|line| line.kind == "arrival").collect();
        arrivals.sort_by_key(|line| line.done_ns);
        let mut sums: HashMap<usize, u64> = HashMap::new();
        let first = trace.puts[0].asked;
        let mut last = lines.iter().filter(|line| line.kind == "get").map(|line| line.done_ns).max().unwrap_or(first);
        for line in arrivals {
            let communicator = communicators[&line.communicator];
            let Some(&index) = by_number.get(&(communicator, line.peer, line.rank, line.number)) else { continue };
            arrived[index] = true;
            last = last.max(line.done_ns);
            if let Some((signal, add)) = trace.puts[index].signal {
                let value = sums.entry(signal).or_default();
                *value += add;
                let before = Before::Signal { signal, value: *value };
                of_rank.entry((communicator, line.rank)).or_default().push(Event { at: line.done_ns, before });
            }
        }
        trace.signals = signals.len();
        trace.recorded = last.saturating_sub(first);
        trace.lost = trace.puts.iter().zip(&arrived).filter(|(put, arrived)| !put.is_get && !**arrived).count();
        of_context.values_mut().for_each(|events| events.sort_by_key(|event| event.at));
        trace.depend(depends, &contexts, &of_rank, &of_context);
        Ok(trace)
    }

    fn depend(
        &mut self,
        depends: Depends,
        contexts: &[(usize, usize, u16)],
        of_rank: &BTreeMap<(usize, usize), Vec<Event>>,
        of_context: &BTreeMap<(usize, usize, u16), Vec<Event>>,
    ) {
        // Position of each context in the two lists, and its last put.
        let mut read: HashMap<(usize, usize, u16), (usize, usize)> = HashMap::new();
        let mut before: HashMap<(usize, usize, u16), usize> = HashMap::new();
        let first = self.puts[0].asked;
        for (index, context) in contexts.iter().enumerate() {
            let asked = self.puts[index].asked;
            let previous = before.insert(*context, index);
            let since = previous.map(|previous| self.puts[previous].asked);
            let mut after: Vec<Before> = previous.map(Before::Issued).into_iter().collect();
            let mut latest = since.unwrap_or(first);
            let waited = depends == Depends::Arrived || since.is_none_or(|since| asked - since > PAUSE_NS);
            let (signals, completions) = read.entry(*context).or_default();
            let lists = [(of_rank.get(&(context.0, context.1)), signals), (of_context.get(context), completions)];
            // Only the last value of a signal is needed.
            let mut reached: BTreeMap<usize, u64> = BTreeMap::new();
            for (events, at) in lists {
                let events = events.map(Vec::as_slice).unwrap_or_default();
                while let Some(event) = events.get(*at).filter(|event| event.at < asked) {
                    *at += 1;
                    if !waited {
                        continue;
                    }
                    latest = latest.max(event.at);
                    match event.before {
                        Before::Signal { signal, value } => _ = reached.insert(signal, value),
                        other => after.push(other),
                    }
                }
            }
            after.extend(reached.into_iter().map(|(signal, value)| Before::Signal { signal, value }));
            let put = &mut self.puts[index];
            (put.gap, put.after) = (asked.saturating_sub(latest), after);
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns a put and its arrival.
    pub fn pair(from: usize, to: usize, number: u64, bytes: u64, asked: u64, done: u64) -> String {
        format!(
            "{{\"kind\":\"put\",\"communicator\":\"c\",\"rank\":{from},\"peer\":{to},\"number\":{number},\"context\":0,\"bytes\":{bytes},\
             \"asked_ns\":{asked},\"done_ns\":{done},\"signal\":[1,8,0],\"add\":1}}\n\
             {{\"kind\":\"arrival\",\"communicator\":\"c\",\"rank\":{to},\"peer\":{from},\"number\":{number},\"context\":0,\"bytes\":{bytes},\
             \"asked_ns\":{asked},\"done_ns\":{done},\"signal\":[1,8,{number}],\"add\":1}}\n"
        )
    }

    pub fn parse(text: &str, depends: Depends) -> Result<ReplayTrace, String> {
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
        ReplayTrace::of(lines, depends)
    }

    #[test]
    fn answers_depend_on_signals_and_streams_on_themselves() {
        let text = pair(0, 1, 1, 8, 0, 10_000) + &pair(1, 0, 1, 8, 12_000, 22_000) + &pair(1, 0, 2, 8, 12_500, 23_000);
        for depends in [Depends::Arrived, Depends::Paused] {
            let trace = parse(&text, depends).expect("a trace");
            assert_eq!((trace.ranks, trace.puts.len(), trace.signals, trace.recorded), (2, 3, 2, 23_000));
            assert_eq!(trace.puts[0].after, []);
            assert_eq!(trace.puts[1].after, [Before::Signal { signal: 0, value: 1 }]);
            assert_eq!((trace.puts[1].gap, trace.puts[2].gap, trace.lost), (2_000, 500, 0));
            assert_eq!(trace.puts[2].after, [Before::Issued(1)]);
        }
    }

    #[test]
    fn arrived_and_paused_differ_for_streams() {
        let text = pair(0, 1, 1, 8, 0, 10_000) + &pair(1, 0, 1, 8, 9_000, 30_000) + &pair(1, 0, 2, 8, 10_500, 31_000);
        let after = |depends| parse(&text, depends).expect("a trace").puts[2].after.clone();
        assert_eq!(after(Depends::Paused), [Before::Issued(1)]);
        assert_eq!(after(Depends::Arrived), [Before::Issued(1), Before::Signal { signal: 0, value: 1 }]);
    }

    #[test]
    fn trace_without_puts_is_rejected() {
        assert!(ReplayTrace::of(Vec::new(), Depends::Arrived).expect_err("empty").contains("no put"));
    }
}
