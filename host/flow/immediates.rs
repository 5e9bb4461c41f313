//! Immediates that have arrived, and the tasks that wait for some.
//!
//! The values come from other processes, so the memory that they occupy here is bounded: at most [`MOST_VALUES`]
//! distinct values are counted. A program that knows its peers' values in advance can announce them
//! ([`Immediates::expect`]); then only these are counted. An immediate that is not counted is a stray: only the number
//! of strays is kept.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

/// Maximum number of distinct values waiting to be taken. Programs need about one per peer or per step in flight.
const MOST_VALUES: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Immediates {
    /// Counts per value. Announced values always have an entry. Other values have one only while some of their
    /// immediates have not been taken.
    arrived: HashMap<u32, Arrived>,
    /// Whether any value has been announced, so that others are strays.
    named: bool,
    strays: u64,
    /// Waits by number. Numbers are never reused, because a wait that was woken still has its number.
    waits: BTreeMap<u64, Wait>,
    last: u64,
}

#[derive(Default)]
struct Arrived {
    count: u64,
    named: bool,
}

struct Wait {
    value: u32,
    count: u64,
    waker: Waker,
}

impl Immediates {
    /// Announces `value`. From the first announcement on, only announced values are counted.
    pub fn expect(&mut self, value: u32) {
        self.named = true;
        self.arrived.entry(value).or_default().named = true;
    }

    /// Withdraws a value and drops its immediates that have not been taken.
    pub fn forget_value(&mut self, value: u32) {
        self.arrived.remove(&value);
    }

    /// Returns the number of immediates that were not counted.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// Records an incoming immediate.
    pub fn raise(&mut self, value: u32) {
        if let Some(arrived) = self.arrived.get_mut(&value) {
            arrived.count += 1;
        } else if self.named || self.arrived.len() >= MOST_VALUES {
            self.strays += 1;
        } else {
            self.arrived.insert(value, Arrived { count: 1, named: false });
        }
    }

    /// Takes `count` immediates of this value, or none if fewer have arrived. Returns whether it took them.
    pub fn take(&mut self, value: u32, count: u64) -> bool {
        match self.arrived.get_mut(&value) {
            Some(arrived) if arrived.count >= count => {
                arrived.count -= count;
                if arrived.count == 0 && !arrived.named {
                    self.arrived.remove(&value);
                }
                true
            }
            _ => count == 0,
        }
    }

    /// Takes all immediates of this value that have arrived. Returns their number.
    pub fn take_all(&mut self, value: u32) -> u64 {
        let count = self.arrived.get(&value).map_or(0, |arrived| arrived.count);
        self.take(value, count);
        count
    }

    /// Registers a wait, whose task is woken by the next immediate of any value. Returns the number of the wait, which
    /// is `known` if it was already registered.
    pub fn wait(&mut self, known: Option<u64>, value: u32, count: u64, waker: &Waker) -> u64 {
        let number = known.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        self.waits.insert(number, Wait { value, count, waker: waker.clone() });
        number
    }

    /// Removes a wait that is over, or whose task is polling.
    pub fn forget(&mut self, number: u64) {
        self.waits.remove(&number);
    }

    /// Wakes all waiting tasks. Returns whether there were any.
    pub fn wake(&mut self) -> bool {
        let any = !self.waits.is_empty();
        std::mem::take(&mut self.waits).into_values().for_each(|wait| wait.waker.wake());
        any
    }

    pub fn nobody_waits(&self) -> bool {
        self.waits.is_empty()
    }

    /// Describes the oldest `most` waits, for a message.
    pub fn describe(&self, most: usize) -> impl Iterator<Item = String> {
        self.waits.values().take(most).map(|wait| {
            let arrived = self.arrived.get(&wait.value).map_or(0, |arrived| arrived.count);
            format!("a wait for immediate {} ({arrived} of {} arrived)", wait.value, wait.count)
        })
    }

    pub fn waits(&self) -> usize {
        self.waits.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_stored_immediates_is_bounded() {
        let mut immediates = Immediates::default();
        for value in 0..2 * MOST_VALUES as u32 {
            immediates.raise(value);
        }
        assert_eq!((immediates.arrived.len(), immediates.strays()), (MOST_VALUES, MOST_VALUES as u64));
        // Taking immediates frees entries for other values.
        for value in 0..MOST_VALUES as u32 {
            assert!(immediates.take(value, 1) && !immediates.take(value, 1));
        }
        assert!(immediates.arrived.is_empty());
        immediates.raise(u32::MAX);
        assert_eq!((immediates.take_all(u32::MAX), immediates.take_all(u32::MAX)), (1, 0));
        assert!(immediates.arrived.is_empty());
    }

    #[test]
    fn only_declared_immediates_are_counted() {
        let mut immediates = Immediates::default();
        immediates.expect(7);
        [7, 8, 7, 9].into_iter().for_each(|value| immediates.raise(value));
        assert_eq!((immediates.take_all(7), immediates.take_all(8), immediates.strays()), (2, 0, 2));
        // The value is still expected after it was taken, but not after it was withdrawn.
        immediates.raise(7);
        assert!(immediates.take(7, 1));
        immediates.forget_value(7);
        immediates.raise(7);
        assert_eq!((immediates.take_all(7), immediates.strays()), (0, 3));
    }
}
