//! For tests without a GPU: memory of the host that is reached as a GPU's is, by copies that happen later.

use crate::copies::{Copies, Queue};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

/// Says that communicators copy by [`LateCopies`], as if memory that is registered as CUDA's were.
pub const PRETEND: &str = "GINLAB_NCCL_PRETEND_GPU";

thread_local! {
    static VARIABLES: RefCell<HashMap<String, String>> = RefCell::default();
}

/// What the calling thread finds in the environment from now on, before what is there: ranks of a test are threads.
pub fn set_variables(variables: &[(&str, &str)]) {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    VARIABLES.set(variables.iter().map(owned).collect());
}

pub(crate) fn variable(name: &str) -> Option<String> {
    VARIABLES.with_borrow(|variables| variables.get(name).cloned()).or_else(|| std::env::var(name).ok())
}

pub(crate) fn copies(pretend: bool) -> Option<Box<dyn Copies>> {
    pretend.then(|| Box::<LateCopies>::default() as Box<dyn Copies>)
}

/// A copy: target, source, bytes.
enum Step {
    Copy(u64, u64, usize),
    Mark(u64),
}

#[derive(Default)]
struct Lane {
    steps: VecDeque<Step>,
    made: u64,
    passed: u64,
}

impl Lane {
    fn step(&mut self) {
        match self.steps.pop_front() {
            // SAFETY: the contracts of `put_in` and `take_out`.
            Some(Step::Copy(target, source, bytes)) => unsafe {
                std::ptr::copy_nonoverlapping(source as *const u8, target as *mut u8, bytes);
            },
            Some(Step::Mark(mark)) => self.passed = mark,
            None => {}
        }
    }
}

/// One step of a queue each time somebody asks for it.
#[derive(Default)]
pub struct LateCopies {
    into: Lane,
    out: Lane,
}

impl Copies for LateCopies {
    fn bind(&mut self) -> Result<(), String> {
        Ok(())
    }

    unsafe fn pin(&mut self, _address: u64, _bytes: usize) -> Result<(), String> {
        Ok(())
    }

    fn unpin(&mut self, _address: u64) {}

    unsafe fn put_in(&mut self, device: u64, host: u64, bytes: usize) -> Result<(), String> {
        self.into.steps.push_back(Step::Copy(device, host, bytes));
        Ok(())
    }

    unsafe fn take_out(&mut self, host: u64, device: u64, bytes: usize, behind_puts: bool) -> Result<(), String> {
        let lane = if behind_puts { &mut self.into } else { &mut self.out };
        lane.steps.push_back(Step::Copy(host, device, bytes));
        Ok(())
    }

    fn mark(&mut self, queue: Queue) -> Result<u64, String> {
        let lane = match queue {
            Queue::In => &mut self.into,
            Queue::Out => &mut self.out,
        };
        lane.made += 1;
        lane.steps.push_back(Step::Mark(lane.made));
        Ok(lane.made)
    }

    fn passed(&mut self, queue: Queue) -> Result<u64, String> {
        let lane = match queue {
            Queue::In => &mut self.into,
            Queue::Out => &mut self.out,
        };
        lane.step();
        Ok(lane.passed)
    }

    fn settle(&mut self) {
        for lane in [&mut self.into, &mut self.out] {
            while !lane.steps.is_empty() {
                lane.step();
            }
        }
    }

    fn name(&self) -> String {
        "late copies of a test".into()
    }
}
