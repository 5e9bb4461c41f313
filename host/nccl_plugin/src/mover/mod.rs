//! `Copies` by a kernel of ours while bytes come and go, and by the GPU's copy engines otherwise.
//!
//! A call of the driver costs the host 2 us for each copy, and the engine some microseconds more; the kernel takes it from a ring in pinned memory
//! (`kernels::mover`). But it is never relied on: a GPU that is full of waiting kernels would not begin it. Then the copy engines go on.
//!
//! ```text
//! Copies --asked twice within IDLE--> Draining --engines are through: launched--> Called --it has begun--> Kernel
//!    ^                                                                      |                                 |
//!    |                             Late <--not begun within BEGINS: engines go on    nothing asked for IDLE, or there for RESIDENT
//!    |                                \--it has begun after all--> Draining                                  |
//!    ^------------------------- both lanes have gone ------------------------------- Leaving <---------------+
//! ```
//!
//! Nothing is with the engines while the kernel is launched: with eight ranks on an H200 copies that were under way then did not end before NCCL's
//! kernels did (6 runs of 10).
//!
//! It goes soon when nothing is asked, and always after 20 ms: whoever waits for the whole GPU (`cudaDeviceSynchronize`, `cudaFree`) waits
//! no longer for it than that.
//!
//! It is one block for each way while copies are short. One of more blocks, which share long copies, is on as many multiprocessors, and a kernel
//! that wants nearly all of them does not begin before it has gone: NCCL EP's take 128 of an H200's 132, and waited 2 ms each.

mod calls;
pub mod driver;
mod quick;
mod rings;
#[cfg(test)]
mod tests;

use crate::copies::{Copies, Queue};
use kernels::mover::{Jobs, LANES, LONG, Lane, MoverArgs, Step};
use quick::Quicks;
use rings::{QUEUES, Rings};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Blocks of the kernel for each lane, unless `GINLAB_NCCL_COPIES` says another number. One alone reads 10 to 12 GB/s over the bus. With eight ranks
/// on one GPU these are 128 small ones, which an H200 has room for beside NCCL's; where it has not, those that have begun copy without the others.
pub const BLOCKS: u32 = 8;
/// The kernel goes when nothing was asked for so long, and is called when something is asked twice within it. Longer than a slow round of an
/// exchange: where it was 200 us, the kernel went in each round that took longer, which the calls of the next one then made as long again (eight
/// ranks on one H100 with 16 cores, 1 KiB to each: 110 or 750 us for a whole run).
const IDLE: Duration = Duration::from_millis(2);
/// A kernel that has not begun within this time is not waited for.
const BEGINS: Duration = Duration::from_millis(1);
/// The kernel goes when it was there for so long.
const RESIDENT: Duration = Duration::from_millis(20);
/// It goes by itself when the host has not said anything for so long: a process that is stopped keeps no GPU busy.
const ALONE: Duration = Duration::from_secs(2);
/// Who closes waits so long for the kernel to go.
const PATIENCE: Duration = Duration::from_millis(200);

/// What starts the kernel, and has its rings.
pub trait Launch {
    /// [`LANES`] rings in pinned memory, all zero at first.
    fn lanes(&self) -> *const Lane;

    /// [`LANES`] of them in the GPU's memory, all zero at first.
    fn jobs(&self) -> *const Jobs;

    /// Starts it behind the one before; `crew`: with blocks that share long copies.
    ///
    /// # Safety
    /// What entries of the rings name stays valid until the blocks have gone.
    unsafe fn launch(&mut self, args: MoverArgs, crew: bool) -> Result<(), String>;

    /// The kernel has not gone: the rings stay where they are for good.
    fn leave_behind(&mut self);
}

/// What is asked for.
#[derive(Clone, Copy)]
struct Asked {
    step: Step,
    /// A copy out of the GPU's memory.
    out: bool,
    /// Of a word: memory for copy engines.
    scratch: *mut u64,
}

#[derive(Debug)]
enum State {
    Copies,
    /// Until the engines have passed these marks.
    Draining([u64; LANES as usize]),
    Called,
    /// Called, and the engines go on.
    Late,
    Kernel,
    Leaving,
}

/// Marks of a queue.
#[derive(Default)]
struct Marks {
    made: u64,
    passed: u64,
    /// The engines' marks, and ours.
    of_engine: VecDeque<(u64, u64)>,
}

/// See the module.
pub struct ByKernel<C: Copies, L: Launch> {
    engine: C,
    kernel: L,
    rings: Rings,
    state: State,
    /// What neither the engines nor the kernel may have yet.
    waiting: [VecDeque<Asked>; LANES as usize],
    marks: [Marks; LANES as usize],
    quicks: Quicks,
    /// The last kernel's.
    number: u64,
    /// When something was asked for last.
    asked: Instant,
    /// When a long copy was.
    long: Option<Instant>,
    /// The last kernel has blocks for long ones.
    crew: bool,
    /// When the kernel was called, or has taken over.
    began: Instant,
    /// Kernels that have taken over.
    kernels: u64,
    /// Why no kernel is called any more.
    refused: Option<String>,
}

impl<C: Copies, L: Launch> ByKernel<C, L> {
    /// Over these engines.
    pub fn new(engine: C, kernel: L) -> ByKernel<C, L> {
        // SAFETY: the kernel's memory goes with it, or stays.
        let rings = unsafe { Rings::at(kernel.lanes()) };
        let now = Instant::now();
        ByKernel {
            engine,
            kernel,
            rings,
            state: State::Copies,
            waiting: Default::default(),
            marks: Default::default(),
            quicks: Quicks::default(),
            number: 0,
            asked: now.checked_sub(IDLE).unwrap_or(now),
            long: None,
            crew: false,
            began: now,
            kernels: 0,
            refused: None,
        }
    }

    /// # Safety
    /// That of the call of [`Copies`] which asks.
    unsafe fn ask(&mut self, queue: Queue, asked: Asked) -> Result<(), String> {
        if !asked.step.fits() {
            return Err(format!("an address has more than 48 bits: {:x?}", asked.step));
        }
        let now = Instant::now();
        let is_near = now.duration_since(self.asked) < IDLE;
        self.asked = now;
        if matches!(asked.step, Step::Copy { bytes, .. } if bytes > LONG) {
            self.long = Some(now);
            // The next one has more blocks.
            if matches!(self.state, State::Kernel) && !self.crew && self.has_room() {
                self.send_away();
            }
        }
        match self.state {
            // SAFETY: the caller's contract.
            State::Copies | State::Late => unsafe { self.by_engine(queue, asked)? },
            State::Kernel if self.waiting[queue as usize].is_empty() && self.rings.has_room(queue) => {
                self.write(queue, asked);
                // What stands behind a mark is shown with it, or at the next turn.
                if matches!(asked.step, Step::Mark(_)) {
                    self.rings.show(queue);
                }
            }
            _ => self.waiting[queue as usize].push_back(asked),
        }
        if is_near && matches!(self.state, State::Copies) && self.refused.is_none() {
            self.drain()?;
        }
        Ok(())
    }

    /// Gives the engines nothing more, and waits for what they have.
    fn drain(&mut self) -> Result<(), String> {
        let mut ends = [0; LANES as usize];
        for queue in QUEUES {
            ends[queue as usize] = self.engine.mark(queue)?;
            let marks = &mut self.marks[queue as usize];
            marks.of_engine.push_back((ends[queue as usize], marks.made));
        }
        self.state = State::Draining(ends);
        Ok(())
    }

    /// Whether a kernel has been called and has not gone.
    fn is_called(&self) -> bool {
        self.number > 0 && self.rings.gone(self.number) != [true; LANES as usize]
    }

    /// Launches the kernel, to read from these entries on.
    fn call(&mut self, first: [u64; LANES as usize]) {
        self.number += 1;
        self.crew = self.long.is_some_and(|long| long.elapsed() < RESIDENT);
        let timeout_ns = ALONE.as_nanos() as u64;
        let (lanes, jobs) = (self.kernel.lanes(), self.kernel.jobs());
        let args = MoverArgs { lanes, jobs, first, number: self.number, timeout_ns };
        // SAFETY: what `ask` was called with, which holds until a mark behind it is passed.
        match unsafe { self.kernel.launch(args, self.crew) } {
            Ok(()) => {
                self.state = State::Called;
                self.began = Instant::now();
            }
            Err(why) => self.refused = Some(why),
        }
    }

    /// Gives the engines what has waited.
    fn back_to(&mut self, state: State) -> Result<(), String> {
        self.state = state;
        for queue in QUEUES {
            while let Some(asked) = self.waiting[queue as usize].pop_front() {
                // SAFETY: what `ask` was called with.
                unsafe { self.by_engine(queue, asked)? };
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`ask`](Self::ask).
    unsafe fn by_engine(&mut self, queue: Queue, asked: Asked) -> Result<(), String> {
        // SAFETY: the caller's contract.
        unsafe {
            match asked.step {
                Step::Copy { to, from, bytes } if asked.out => {
                    self.engine.take_out(to, from, bytes as usize, queue == Queue::In)
                }
                Step::Copy { to, from, bytes } => self.engine.put_in(to, from, bytes as usize),
                Step::Word { to, value } | Step::Count { to, value } => self.engine.put_word(to, asked.scratch, value),
                Step::Mark(ours) => {
                    let mark = self.engine.mark(queue)?;
                    self.marks[queue as usize].of_engine.push_back((mark, ours));
                    Ok(())
                }
                // Made for the kernel alone.
                Step::Take { .. } | Step::End => Ok(()),
            }
        }
    }

    /// Gives the kernel what has waited.
    fn give(&mut self) {
        for queue in QUEUES {
            while self.rings.has_room(queue)
                && let Some(asked) = self.waiting[queue as usize].pop_front()
            {
                self.write(queue, asked);
            }
            self.rings.show(queue);
        }
    }

    /// Writes it into the ring, for the kernel.
    fn write(&mut self, queue: Queue, asked: Asked) {
        let step = match queue {
            Queue::In => Some(asked.step),
            Queue::Out => self.quicks.step(&self.rings, asked.step),
        };
        if let Some(step) = step {
            self.rings.write(queue, step);
        }
    }

    fn take_over(&mut self) {
        self.state = State::Kernel;
        self.began = Instant::now();
        self.kernels += 1;
        self.give();
    }

    /// Whether each ring has room for its last entry.
    fn has_room(&self) -> bool {
        QUEUES.iter().all(|queue| self.rings.has_room(*queue))
    }

    /// Sends it away, behind all that it has been given.
    fn send_away(&mut self) {
        let gone = self.rings.gone(self.number);
        for queue in QUEUES {
            if !gone[queue as usize] {
                self.rings.write(queue, Step::End);
            }
            self.rings.show(queue);
        }
        self.state = State::Leaving;
    }

    fn go_on(&mut self) -> Result<(), String> {
        match self.state {
            State::Copies => {}
            State::Draining(ends) => {
                let mut through = true;
                for queue in QUEUES {
                    through &= self.engine.passed(queue)? >= ends[queue as usize];
                }
                if !through {
                    return Ok(());
                }
                if self.is_called() {
                    // It has begun late.
                    self.take_over();
                    return Ok(());
                }
                self.call(self.rings.written);
                if self.refused.is_some() {
                    self.back_to(State::Copies)?;
                }
            }
            State::Called => {
                if self.rings.is_here(self.number) {
                    self.take_over();
                } else if self.began.elapsed() > BEGINS {
                    self.back_to(State::Late)?;
                }
            }
            State::Late => {
                if self.rings.is_here(self.number) {
                    self.drain()?;
                }
            }
            State::Kernel => {
                self.give();
                let now = Instant::now();
                let is_idle = self.waiting.iter().all(VecDeque::is_empty) && now.duration_since(self.asked) > IDLE;
                // One that has gone by itself: this thread did not run for long.
                let has_gone = self.rings.gone(self.number).contains(&true);
                if has_gone || (self.has_room() && (is_idle || now.duration_since(self.began) > RESIDENT)) {
                    self.send_away();
                }
            }
            State::Leaving => {
                if self.is_called() {
                    return Ok(());
                }
                if self.rings.unread() != self.rings.written {
                    // It has gone by itself while this thread wrote more. The next kernel reads on from there.
                    self.call(self.rings.unread());
                    match &self.refused {
                        Some(why) => return Err(format!("copies are left that no kernel takes: {why}")),
                        None => self.take_over(),
                    }
                    return Ok(());
                }
                self.back_to(State::Copies)?;
            }
        }
        Ok(())
    }
}
