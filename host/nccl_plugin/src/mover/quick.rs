//! Short copies out, whose bytes come with their tag (`kernels::mover::Quick`): the kernel writes no mark behind them.

use super::rings::Rings;
use kernels::mover::{QUICK, QUICKS, Step, tag};
use std::collections::VecDeque;

/// One that the kernel has been asked for.
struct One {
    number: u64,
    /// Where its bytes shall be.
    host: u64,
    bytes: u32,
    /// The mark behind it; 0 where another short copy stands between.
    mark: u64,
    /// The last mark before it that the kernel writes.
    behind: u64,
}

/// What has been asked for since the last mark.
#[derive(Default)]
enum Since {
    #[default]
    Nothing,
    ShortCopies,
    Others,
}

/// Those under way, in their order.
#[derive(Default)]
pub(super) struct Quicks {
    of: VecDeque<One>,
    made: u64,
    since: Since,
    /// The last mark that the kernel was asked for.
    written: u64,
}

impl Quicks {
    /// What the kernel is asked for, of what is asked for next of the queue that leads out; nothing where a mark comes with the bytes before it.
    pub fn step(&mut self, rings: &Rings, step: Step) -> Option<Step> {
        match step {
            Step::Copy { to: host, from, bytes } if bytes as usize <= QUICK && self.of.len() < QUICKS => {
                let number = self.made;
                self.made += 1;
                self.of.push_back(One { number, host, bytes, mark: 0, behind: self.written });
                if matches!(self.since, Since::Nothing) {
                    self.since = Since::ShortCopies;
                }
                Some(Step::Take { to: rings.quick(number).as_ptr() as u64, from, bytes, tag: tag(number) })
            }
            Step::Mark(mark) => {
                let since = std::mem::take(&mut self.since);
                if matches!(since, Since::ShortCopies)
                    && let Some(last) = self.of.back_mut()
                {
                    last.mark = mark;
                    return None;
                }
                self.written = mark;
                Some(step)
            }
            _ => {
                self.since = Since::Others;
                Some(step)
            }
        }
    }

    /// Those under way.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// The last mark that has been passed, where the kernel has written `kernel`, and `passed` was the last one before. Bytes that have come are at
    /// their place then.
    ///
    /// A mark stands for all before it. One that comes with its bytes is passed only when those are that the kernel writes, and the other way round.
    pub fn passed(&mut self, rings: &Rings, kernel: u64, passed: u64) -> u64 {
        let mut passed = passed;
        while let Some(first) = self.of.front() {
            // SAFETY: the caller of `take_out` keeps the place until its mark is passed. It is here that this happens.
            let bytes = unsafe { std::slice::from_raw_parts_mut(first.host as *mut u8, first.bytes as usize) };
            if first.behind > kernel || !kernels::mover::collect(rings.quick(first.number), tag(first.number), bytes) {
                break;
            }
            passed = passed.max(first.mark);
            self.of.pop_front();
        }
        if self.of.front().is_none_or(|first| first.behind >= kernel) { passed.max(kernel) } else { passed }
    }
}
