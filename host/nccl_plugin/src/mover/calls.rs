//! The calls of the endpoint, each of which becomes a step of a queue.

use super::rings::QUEUES;
use super::{ByKernel, MoverLauncher, PATIENCE, RequestedStep, State};
use crate::copies::{Copies, CopyDirection};
use kernels::mover::Step;
use std::collections::VecDeque;
use std::time::Instant;

impl<C: Copies, L: MoverLauncher> Copies for ByKernel<C, L> {
    fn bind(&mut self) -> Result<(), String> {
        self.engine.bind()
    }

    unsafe fn pin(&mut self, address: u64, bytes: usize) -> Result<(), String> {
        // SAFETY: the caller guarantees that the memory stays valid until `unpin`.
        unsafe { self.engine.pin(address, bytes) }
    }

    fn unpin(&mut self, address: u64) {
        self.engine.unpin(address);
    }

    unsafe fn put_in(&mut self, device: u64, host: u64, bytes: usize) -> Result<(), String> {
        let step = Step::Copy { to: device, from: host, bytes: length(bytes)? };
        // SAFETY: the caller guarantees that both ranges stay valid until a later mark is passed.
        unsafe { self.ask(CopyDirection::In, RequestedStep { step, out: false, scratch: std::ptr::null_mut() }) }
    }

    unsafe fn put_word(&mut self, device: u64, scratch: *mut u64, value: u64) -> Result<(), String> {
        // SAFETY: the caller guarantees that both words stay valid until a later mark is passed.
        unsafe {
            self.ask(CopyDirection::In, RequestedStep { step: Step::Word { to: device, value }, out: false, scratch })
        }
    }

    unsafe fn put_count(&mut self, device: u64, scratch: *mut u64, value: u64) -> Result<(), String> {
        // SAFETY: the caller guarantees that both words stay valid until a later mark is passed.
        unsafe {
            self.ask(CopyDirection::In, RequestedStep { step: Step::Count { to: device, value }, out: false, scratch })
        }
    }

    unsafe fn take_out(&mut self, host: u64, device: u64, bytes: usize, after_puts: bool) -> Result<(), String> {
        let step = Step::Copy { to: host, from: device, bytes: length(bytes)? };
        let queue = if after_puts { CopyDirection::In } else { CopyDirection::Out };
        // SAFETY: the caller guarantees that both ranges stay valid until a later mark is passed.
        unsafe { self.ask(queue, RequestedStep { step, out: true, scratch: std::ptr::null_mut() }) }
    }

    fn mark(&mut self, queue: CopyDirection) -> Result<u64, String> {
        let marks = &mut self.marks[queue as usize];
        marks.made += 1;
        let made = marks.made;
        // SAFETY: a mark accesses no memory of the caller.
        unsafe {
            self.ask(queue, RequestedStep { step: Step::Mark(made), out: false, scratch: std::ptr::null_mut() })?
        };
        Ok(made)
    }

    fn passed(&mut self, queue: CopyDirection) -> Result<u64, String> {
        let kernel = self.rings.passed(queue);
        let marks = &mut self.marks[queue as usize];
        marks.passed = match queue {
            CopyDirection::In => marks.passed.max(kernel),
            CopyDirection::Out => self.quicks.passed(&self.rings, kernel, marks.passed),
        };
        // The engines receive work only after the kernel has exited. By then all short copies have arrived, and the
        // preceding statement has counted them.
        if !marks.of_engine.is_empty() {
            let passed = self.engine.passed(queue)?;
            let marks = &mut self.marks[queue as usize];
            while let Some((_, ours)) = marks.of_engine.front().filter(|(mark, _)| *mark <= passed) {
                marks.passed = marks.passed.max(*ours);
                marks.of_engine.pop_front();
            }
        }
        Ok(self.marks[queue as usize].passed)
    }

    fn turn(&mut self) -> Result<(), String> {
        self.engine.turn()?;
        self.go_on()
    }

    /// Makes the kernel exit first. If it does not exit in time because the GPU is full and it has not started, it will
    /// find the request to exit in its rings.
    fn settle(&mut self) {
        let until = Instant::now() + PATIENCE;
        while !matches!(self.state, State::Copies) && Instant::now() < until {
            match self.state {
                State::Draining(_) => drop(self.back_to(State::Copies)),
                State::Called | State::Late => self.send_away(),
                State::Kernel if self.waiting.iter().all(VecDeque::is_empty) && self.has_room() => self.send_away(),
                _ => {}
            }
            if self.go_on().is_err() {
                break;
            }
            std::hint::spin_loop();
        }
        self.engine.settle();
    }

    fn name(&self) -> String {
        let engine = self.engine.name();
        match &self.refused {
            Some(why) => format!("{engine}; no copy kernel: {why}"),
            None => format!("{engine}; by a kernel if copies follow each other"),
        }
    }

    fn state(&self) -> Option<String> {
        let made = QUEUES.map(|queue| (self.marks[queue as usize].made, self.marks[queue as usize].of_engine.front()));
        let passed = QUEUES.map(|queue| self.rings.passed(queue));
        Some(format!(
            "copy kernel: {:?}, {} launches, number {}, resident {}, exited {:?}; marks made (and the engine's next) \
             {made:?}, passed {passed:?}, short copies in flight {}; entries written {:?}, read {:?}, waiting {:?}",
            self.state,
            self.kernels,
            self.number,
            self.rings.is_here(self.number),
            self.rings.gone(self.number),
            self.quicks.len(),
            self.rings.written,
            self.rings.unread(),
            QUEUES.map(|queue| self.waiting[queue as usize].len()),
        ))
    }
}

impl<C: Copies, L: MoverLauncher> Drop for ByKernel<C, L> {
    fn drop(&mut self) {
        if self.bind().is_err() {
            self.kernel.leave_behind();
            return;
        }
        self.settle();
        if !matches!(self.state, State::Copies) {
            self.kernel.leave_behind();
        }
    }
}

/// Converts the length of a copy to that of an entry.
fn length(bytes: usize) -> Result<u32, String> {
    u32::try_from(bytes).map_err(|_| format!("{bytes} B in one copy: at most 4 GiB are supported"))
}
