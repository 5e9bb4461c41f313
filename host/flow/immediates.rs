//! Immediates that have arrived, and the tasks that wait for some.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

#[derive(Default)]
pub(super) struct Immediates {
    arrived: HashMap<u32, u64>,
    /// By numbers that are never given twice: a wait that has been woken still holds its own.
    waits: BTreeMap<u64, Wait>,
    last: u64,
}

struct Wait {
    value: u32,
    count: u64,
    waker: Waker,
}

impl Immediates {
    /// One has arrived.
    pub fn raise(&mut self, value: u32) {
        *self.arrived.entry(value).or_default() += 1;
    }

    /// Takes so many at once, or none.
    pub fn take(&mut self, value: u32, count: u64) -> bool {
        match self.arrived.get_mut(&value) {
            Some(arrived) if *arrived >= count => {
                *arrived -= count;
                true
            }
            _ => count == 0,
        }
    }

    /// Takes what is there.
    pub fn take_all(&mut self, value: u32) -> u64 {
        self.arrived.remove(&value).unwrap_or_default()
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
            let arrived = self.arrived.get(&wait.value).copied().unwrap_or_default();
            format!("a wait for immediate {} ({arrived} of {} arrived)", wait.value, wait.count)
        })
    }

    pub fn waits(&self) -> usize {
        self.waits.len()
    }
}
