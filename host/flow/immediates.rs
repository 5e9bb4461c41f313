//! Immediates that have arrived, and the tasks that wait for some.
//!
//! The values come from other processes, so what they can make this side hold is bounded: at most [`MOST_VALUES`] different
//! values are counted, and a program that knows its peers' values beforehand names them ([`Immediates::expect`]): then no
//! others are. What is not counted is a stray, of which only the number is kept.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

/// Different values that wait to be taken, at most. Programs have as many as they have peers or steps under way.
const MOST_VALUES: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Immediates {
    /// Values that were named are there also when none has arrived; others only while some has not been taken.
    arrived: HashMap<u32, Arrived>,
    /// Values were named: others are strays.
    named: bool,
    strays: u64,
    /// By numbers that are never given twice: a wait that has been woken still holds its own.
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
    /// Only values that are named are counted from the first naming on.
    pub fn expect(&mut self, value: u32) {
        self.named = true;
        self.arrived.entry(value).or_default().named = true;
    }

    /// The value is nobody's any more; what has arrived of it is dropped.
    pub fn forget_value(&mut self, value: u32) {
        self.arrived.remove(&value);
    }

    /// How many have arrived that were not counted.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// One has arrived.
    pub fn raise(&mut self, value: u32) {
        if let Some(arrived) = self.arrived.get_mut(&value) {
            arrived.count += 1;
        } else if self.named || self.arrived.len() >= MOST_VALUES {
            self.strays += 1;
        } else {
            self.arrived.insert(value, Arrived { count: 1, named: false });
        }
    }

    /// Takes so many at once, or none.
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

    /// Takes what is there.
    pub fn take_all(&mut self, value: u32) -> u64 {
        let count = self.arrived.get(&value).map_or(0, |arrived| arrived.count);
        self.take(value, count);
        count
    }

    /// The task will be woken by the next immediate, whichever; the wait's number.
    pub fn wait(&mut self, known: Option<u64>, value: u32, count: u64, waker: &Waker) -> u64 {
        let number = known.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        self.waits.insert(number, Wait { value, count, waker: waker.clone() });
        number
    }

    /// The wait is over, or is polling by itself.
    pub fn forget(&mut self, number: u64) {
        self.waits.remove(&number);
    }

    /// Wakes every task that waits; whether there was one.
    pub fn wake(&mut self) -> bool {
        let any = !self.waits.is_empty();
        std::mem::take(&mut self.waits).into_values().for_each(|wait| wait.waker.wake());
        any
    }

    pub fn nobody_waits(&self) -> bool {
        self.waits.is_empty()
    }

    /// The oldest waits, for a message.
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
    fn what_peers_send_is_bounded() {
        let mut immediates = Immediates::default();
        for value in 0..2 * MOST_VALUES as u32 {
            immediates.raise(value);
        }
        assert_eq!((immediates.arrived.len(), immediates.strays()), (MOST_VALUES, MOST_VALUES as u64));
        // Room comes back with what is taken.
        for value in 0..MOST_VALUES as u32 {
            assert!(immediates.take(value, 1) && !immediates.take(value, 1));
        }
        assert!(immediates.arrived.is_empty());
        immediates.raise(u32::MAX);
        assert_eq!((immediates.take_all(u32::MAX), immediates.take_all(u32::MAX)), (1, 0));
        assert!(immediates.arrived.is_empty());
    }

    #[test]
    fn only_named_values_are_counted_once_there_are_some() {
        let mut immediates = Immediates::default();
        immediates.expect(7);
        [7, 8, 7, 9].into_iter().for_each(|value| immediates.raise(value));
        assert_eq!((immediates.take_all(7), immediates.take_all(8), immediates.strays()), (2, 0, 2));
        // Still expected after it was taken; not after it was forgotten.
        immediates.raise(7);
        assert!(immediates.take(7, 1));
        immediates.forget_value(7);
        immediates.raise(7);
        assert_eq!((immediates.take_all(7), immediates.strays()), (0, 3));
    }
}
