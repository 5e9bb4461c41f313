//! Short copies out of GPU memory, whose bytes are written together with a tag (`kernels::mover::InlineCopy`), so that
//! the kernel need not write a mark after them.

use super::rings::HostRings;
use kernels::mover::{QUICK, QUICKS, Step, tag};
use std::collections::VecDeque;

/// A short copy that was requested from the kernel.
struct One {
    number: u64,
    /// Destination of the bytes.
    host: u64,
    bytes: u32,
    /// Mark after the copy; 0 if another short copy follows before the mark.
    mark: u64,
    /// Last preceding mark that the kernel writes.
    behind: u64,
}

/// Kinds of steps requested since the last mark.
#[derive(Default)]
enum Since {
    #[default]
    Nothing,
    ShortCopies,
    Others,
}

/// Short copies in flight, in order.
#[derive(Default)]
pub(super) struct InlineCopies {
    of: VecDeque<One>,
    made: u64,
    since: Since,
    /// Last mark that the kernel was asked to write.
    written: u64,
}

impl InlineCopies {
    /// Converts the next step of the queue out of GPU memory to a step for the kernel. Returns `None` for a mark that
    /// is implied by the bytes before it.
    pub fn step(&mut self, rings: &HostRings, step: Step) -> Option<Step> {
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

    /// Returns the number of short copies in flight.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Returns the last mark passed, and moves bytes that have arrived to their destination. `kernel` is the last mark
    /// that the kernel has written, and `passed` is the previous result of this function.
    ///
    /// A mark covers everything before it. A mark that is implied by short copies is passed only after the preceding
    /// marks that the kernel writes, and vice versa.
    pub fn passed(&mut self, rings: &HostRings, kernel: u64, passed: u64) -> u64 {
        let mut passed = passed;
        while let Some(first) = self.of.front() {
            // SAFETY: the caller of `take_out` keeps the destination valid until the mark is passed, which happens only
            // in this function.
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
