//! Puts, gets and signals of this process's ranks, by sender and target. Error messages identify a put by its number,
//! and report whether a signal preceded another PE's put.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of transfers per line whose numbers are kept. A put over several rails is posted in several transfers.
const REMEMBERED: usize = 4096;
/// Number of signals per line, and of sources of puts, that are kept.
const TIMES: usize = 4096;

/// A rank, and the key of its first region. Ranks of several jobs in one process have the same numbers.
pub(super) type End = (u32, u64);

/// Proxy and token of a command.
type Command = (u16, u64);

/// The record of all traffic of this process.
#[derive(Debug, Default)]
pub(super) struct Traffic(Mutex<Lines>);

#[derive(Debug, Default)]
struct Lines {
    /// Lines by sender and target.
    lines: HashMap<(End, End), Line>,
    sources: VecDeque<Source>,
}

/// Source of a put, and the time of its post.
#[derive(Debug)]
struct Source {
    target: u32,
    address: u64,
    bytes: u64,
    time: u64,
}

/// Traffic from one rank to another.
#[derive(Debug, Default)]
struct Line {
    puts: Numbers,
    gets: Numbers,
    /// Times of signals without bytes, and of puts with a signal. A put in several transfers has several.
    bare: Times,
    signalling: Numbers,
    carried: Times,
}

/// Numbers of commands, from 1.
#[derive(Debug, Default)]
struct Numbers {
    last: u32,
    known: HashMap<Command, u32>,
}

#[derive(Debug, Default)]
struct Times {
    forgotten: u64,
    kept: VecDeque<u64>,
}

impl Numbers {
    /// Returns the number of a command, and whether it is new.
    fn of(&mut self, command: Command) -> (u32, bool) {
        if let Some(number) = self.known.get(&command) {
            return (*number, false);
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.last = self.last.wrapping_add(1);
        self.known.insert(command, self.last);
        (self.last, true)
    }
}

impl Times {
    fn add(&mut self, time: u64) {
        if self.kept.len() == TIMES {
            self.kept.pop_front();
            self.forgotten += 1;
        }
        self.kept.push_back(time);
    }

    fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    fn before(&self, time: u64) -> u64 {
        self.forgotten + self.kept.iter().filter(|one| **one < time).count() as u64
    }

    fn any_between(&self, first: u64, end: u64) -> bool {
        self.kept.iter().any(|time| (first..end).contains(time))
    }
}

impl Traffic {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, line: (End, End), run: impl FnOnce(&mut Line) -> T) -> T {
        run(self.lines().lines.entry(line).or_default())
    }

    /// Records a put to a rank: address and bytes of its source.
    pub fn sent(&self, target: u32, (address, bytes): (u64, u64), time: u64) {
        let sources = &mut self.lines().sources;
        if sources.len() == TIMES {
            sources.pop_front();
        }
        sources.push_back(Source { target, address, bytes, time });
    }

    /// Returns the number of puts to a rank whose source contains this byte, posted from `since` until before `until`.
    pub fn sends(&self, byte: u64, target: u32, (since, until): (u64, u64)) -> usize {
        let is_one = |one: &&Source| {
            one.target == target
                && one.address <= byte
                && byte - one.address < one.bytes
                && (since..until).contains(&one.time)
        };
        self.lines().sources.iter().filter(is_one).count()
    }

    /// Returns the number of a put or get among those from the first rank to the second.
    pub fn number(&self, line: (End, End), command: Command, read: bool) -> u32 {
        self.with(line, |line| if read { line.gets.of(command).0 } else { line.puts.of(command).0 })
    }

    /// Records a signal that is sent to its target. `bare` indicates that it carries no bytes.
    pub fn signalled(&self, line: (End, End), command: Command, bare: bool, time: u64) {
        self.with(line, |line| {
            if bare {
                line.bare.add(time);
            } else if line.signalling.of(command).1 {
                line.carried.add(time);
            }
        });
    }

    /// Returns whether a rank has signalled another one after `since` and before `until`, and at least `count` times
    /// before `until`. Signals that carry bytes count only if there are no others, because slots are usually released
    /// by signals without bytes.
    pub fn has_signalled(&self, line: (End, End), (since, until): (u64, u64), count: u64) -> bool {
        self.with(line, |line| {
            let times = if line.bare.is_empty() { &line.carried } else { &line.bare };
            times.any_between(since, until) && times.before(until) >= count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_numbered_once_by_line() {
        let traffic = Traffic::default();
        let number = |line, command| traffic.number(line, command, false);
        let (a, b) = ((0, 5), (1, 6));
        assert_eq!([(0, 7), (0, 9), (1, 7), (0, 7)].map(|command| number((a, b), command)), [1, 2, 3, 1]);
        assert_eq!((number((b, a), (0, 9)), traffic.number((a, b), (0, 7), true)), (1, 1));
        assert_eq!(number((a, (1, 7)), (0, 9)), 1, "another job");
    }

    #[test]
    fn signals_and_sources_are_found_by_time() {
        let traffic = Traffic::default();
        traffic.sent(3, (100, 50), 7);
        let sends = |byte, target, times| traffic.sends(byte, target, times);
        assert_eq!((sends(100, 3, (7, 8)), sends(149, 3, (7, 8))), (1, 1));
        assert_eq!([sends(99, 3, (7, 8)), sends(150, 3, (7, 8)), sends(149, 2, (7, 8))], [0; 3]);
        assert_eq!([sends(149, 3, (8, 9)), sends(149, 3, (6, 7))], [0; 2]);
        let line = ((1, 6), (0, 5));
        traffic.signalled(line, (0, 1), false, 10);
        // Another piece of the same put.
        traffic.signalled(line, (0, 1), false, 11);
        assert!(traffic.has_signalled(line, (5, 12), 1) && !traffic.has_signalled(line, (5, 12), 2));
        for time in 0..TIMES as u64 + 5 {
            traffic.signalled(line, (0, 100 + time), true, 20 + time);
        }
        assert!(!traffic.has_signalled(line, (0, 12), 0), "signals without bytes count alone");
        assert!(traffic.has_signalled(line, (30, 40), 20) && !traffic.has_signalled(line, (30, 40), 21));
        assert!(!traffic.has_signalled((line.1, line.0), (0, u64::MAX), 0));
    }
}
