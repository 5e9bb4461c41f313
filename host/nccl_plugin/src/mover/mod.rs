//! Copies with a ginlab kernel while there are many copies, and with the GPU's copy engines otherwise.
//!
//! A driver call costs the host 2 us per copy, and the engine some more microseconds. The kernel reads its copies from
//! a ring in pinned memory (`kernels::mover`). However, the kernel is optional: a GPU that is full of waiting kernels
//! does not start it, and the copy engines then continue.
//!
//! ```text
//! Copies --two requests within IDLE--> Draining --engines done: launched--> Called --started--> Kernel
//!    ^                                                                        |                    |
//!    |          Late <--not started within BEGINS: the engines continue-------+    no requests for IDLE,
//!    |            |                                                                or resident for RESIDENT
//!    |            \--started after all: no further kernel--+                                       |
//!    |                                                     v                                       |
//!    +------------------ both lanes have exited -------- Leaving <---------------------------------+
//! ```
//!
//! The engines get no work between the launch and the start of the kernel. Otherwise a copy into GPU memory may never
//! complete: observed with driver 580 under MPS if a stream of NCCL waits for that copy. The kernel then starts and
//! exits, but the copy remains in its stream.
//!
//! A launch can be blocked by the application's launches ([`driver`]). The engines then continue like for a kernel that
//! does not start.
//!
//! The kernel exits when it is idle for `IDLE`, and in any case after `RESIDENT`. Calls that wait for the whole GPU
//! (`cudaDeviceSynchronize`, `cudaFree`) therefore wait for it no longer than that.
//!
//! The kernel has one block per direction while copies are short. With more blocks, which share long copies, it
//! occupies as many multiprocessors. A kernel that needs nearly all multiprocessors, such as that of NCCL EP with 128
//! of an H200's 132, then starts only after it has exited.

mod calls;
pub mod driver;
mod quick;
mod rings;
#[cfg(test)]
mod tests;

use crate::copies::{Copies, CopyDirection};
use kernels::mover::{Jobs, LANES, LONG, MoverArgs, MoverRing, Step};
use quick::InlineCopies;
use rings::{HostRings, QUEUES};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of blocks per lane, unless `GINLAB_NCCL_COPIES` specifies another one. A single block reads 10 to 12 GB/s
/// over the bus. With eight ranks on one GPU there are 128 small blocks, which fit on an H200 in addition to NCCL's
/// blocks. The blocks that have started do not depend on those that do not fit.
pub const BLOCKS: u32 = 8;
/// Time without requests after which the kernel exits. The kernel is launched if two requests are closer than this. It
/// is longer than a slow round of an exchange, so that the kernel stays resident between rounds: relaunching it in each
/// round would make all rounds slow.
const IDLE: Duration = Duration::from_millis(2);
/// Maximum wait for the kernel to start before the engines continue without it. It is longer than the time slices of
/// other processes on the GPU, after which the kernel starts, and short compared with the deadlines of programs. A
/// kernel of the application that fills the GPU and waits for a copy costs this time once, because no kernel is
/// launched afterwards.
const BEGINS: Duration = Duration::from_millis(250);
/// Maximum residency of the kernel, after which it exits.
const RESIDENT: Duration = Duration::from_millis(20);
/// Time without a request from the host after which the kernel exits on its own, so that a stopped process does not
/// keep the GPU busy.
const ALONE: Duration = Duration::from_secs(2);
/// Maximum wait for the kernel to exit on close.
const PATIENCE: Duration = Duration::from_millis(200);

/// Launches the kernel, and owns the kernel's rings.
pub trait MoverLauncher {
    /// Returns [`LANES`] rings in pinned memory, all zero at first.
    fn lanes(&self) -> *const MoverRing;

    /// Returns [`LANES`] job rings in GPU memory, all zero at first.
    fn jobs(&self) -> *const Jobs;

    /// Orders a launch of the kernel after the previous one, without waiting for it; with `crew`, the kernel has
    /// additional blocks that share long copies.
    ///
    /// # Safety
    /// Memory to which entries of the rings refer must stay valid until the blocks have exited.
    unsafe fn launch(&mut self, args: MoverArgs, crew: bool) -> Result<(), String>;

    /// Returns the error of an ordered launch, once. A launcher without a thread returns errors from `launch`.
    fn failure(&mut self) -> Option<String> {
        None
    }

    /// Called if the kernel has not exited. The rings must then never be freed.
    fn leave_behind(&mut self);
}

/// A requested step.
#[derive(Clone, Copy)]
struct RequestedStep {
    step: Step,
    /// Whether the step is a copy out of GPU memory.
    out: bool,
    /// Pinned memory for the copy engines; used only for a word.
    scratch: *mut u64,
}

#[derive(Debug)]
enum State {
    Copies,
    /// Requests are held until the engines have passed these marks.
    Draining([u64; LANES as usize]),
    Called,
    /// The kernel was launched but has not started in time, and the engines continue. It exits as soon as it starts.
    Late,
    Kernel,
    Leaving,
}

/// Marks of a queue.
#[derive(Default)]
struct Marks {
    made: u64,
    passed: u64,
    /// Marks of the engines, each with the corresponding mark of this type.
    of_engine: VecDeque<(u64, u64)>,
}

/// Copies with the kernel and the engines; the module documentation describes them.
pub struct ByKernel<C: Copies, L: MoverLauncher> {
    engine: C,
    kernel: L,
    rings: HostRings,
    state: State,
    /// Requests not yet handed to the copy engines or the kernel.
    waiting: [VecDeque<RequestedStep>; LANES as usize],
    marks: [Marks; LANES as usize],
    quicks: InlineCopies,
    /// Number of the last kernel launched.
    number: u64,
    /// Time of the last request.
    asked: Instant,
    /// Time of the last long copy, if any.
    long: Option<Instant>,
    /// Whether the last kernel has blocks for long copies.
    crew: bool,
    /// Time at which the kernel was launched, or took over.
    began: Instant,
    /// Number of kernels that have taken over.
    kernels: u64,
    /// Reason why no more kernels are launched.
    refused: Option<String>,
}

impl<C: Copies, L: MoverLauncher> ByKernel<C, L> {
    /// Creates copies that use the copy engines `engine` and the kernel `kernel`.
    pub fn new(engine: C, kernel: L) -> ByKernel<C, L> {
        // SAFETY: the rings are owned by `kernel`, which this value keeps, and are leaked if the kernel has not exited.
        let rings = unsafe { HostRings::at(kernel.lanes()) };
        let now = Instant::now();
        ByKernel {
            engine,
            kernel,
            rings,
            state: State::Copies,
            waiting: Default::default(),
            marks: Default::default(),
            quicks: InlineCopies::default(),
            number: 0,
            asked: now.checked_sub(IDLE).unwrap_or(now),
            long: None,
            crew: false,
            began: now,
            kernels: 0,
            refused: None,
        }
    }

    /// Requests a step.
    ///
    /// # Safety
    /// The requirements are those of the call of [`Copies`] that requests it.
    unsafe fn ask(&mut self, queue: CopyDirection, asked: RequestedStep) -> Result<(), String> {
        if !asked.step.fits() {
            return Err(format!("an address has more than 48 bits: {:x?}", asked.step));
        }
        let now = Instant::now();
        let is_near = now.duration_since(self.asked) < IDLE;
        self.asked = now;
        if matches!(asked.step, Step::Copy { bytes, .. } if bytes > LONG) {
            self.long = Some(now);
            // The next kernel will have more blocks.
            if matches!(self.state, State::Kernel) && !self.crew && self.has_room() {
                self.send_away();
            }
        }
        match self.state {
            // SAFETY: the caller guarantees that the memory stays valid until a later mark is passed.
            State::Copies | State::Late => unsafe { self.by_engine(queue, asked)? },
            State::Kernel if self.waiting[queue as usize].is_empty() && self.rings.has_room(queue) => {
                self.write(queue, asked);
                // A mark publishes all entries before it. Entries without a mark are published by the next `turn`.
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

    /// Stops passing work to the engines until they have completed their current work.
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

    /// Returns whether a kernel has been launched and has not exited.
    fn is_called(&self) -> bool {
        self.number > 0 && self.rings.gone(self.number) != [true; LANES as usize]
    }

    /// Orders a launch of the kernel, which reads from the entries `first` on. Returns whether it was possible.
    fn call(&mut self, first: [u64; LANES as usize]) -> bool {
        self.number += 1;
        self.crew = self.long.is_some_and(|long| long.elapsed() < RESIDENT);
        let timeout_ns = ALONE.as_nanos() as u64;
        let (lanes, jobs) = (self.kernel.lanes(), self.kernel.jobs());
        let args = MoverArgs { lanes, jobs, first, number: self.number, timeout_ns };
        // SAFETY: the callers of `ask` guarantee that the memory of each entry stays valid until a later mark is
        // passed.
        match unsafe { self.kernel.launch(args, self.crew) } {
            Ok(()) => {
                self.state = State::Called;
                self.began = Instant::now();
                true
            }
            Err(why) => {
                self.refused = Some(why);
                false
            }
        }
    }

    /// Gives the waiting requests to the engines.
    fn back_to(&mut self, state: State) -> Result<(), String> {
        self.state = state;
        for queue in QUEUES {
            while let Some(asked) = self.waiting[queue as usize].pop_front() {
                // SAFETY: the caller of `ask` guarantees that the memory stays valid until a later mark is passed.
                unsafe { self.by_engine(queue, asked)? };
            }
        }
        Ok(())
    }

    /// Executes a request on an engine.
    ///
    /// # Safety
    /// The requirements are those of [`ask`](Self::ask).
    unsafe fn by_engine(&mut self, queue: CopyDirection, asked: RequestedStep) -> Result<(), String> {
        // SAFETY: the caller guarantees that the memory stays valid until a later mark is passed.
        unsafe {
            match asked.step {
                Step::Copy { to, from, bytes } if asked.out => {
                    self.engine.take_out(to, from, bytes as usize, queue == CopyDirection::In)
                }
                Step::Copy { to, from, bytes } => self.engine.put_in(to, from, bytes as usize),
                Step::Word { to, value } | Step::Count { to, value } => self.engine.put_word(to, asked.scratch, value),
                Step::Mark(ours) => {
                    let mark = self.engine.mark(queue)?;
                    self.marks[queue as usize].of_engine.push_back((mark, ours));
                    Ok(())
                }
                // Such steps are created only for the kernel.
                Step::Take { .. } | Step::End => Ok(()),
            }
        }
    }

    /// Passes the waiting requests to the kernel until the rings are full.
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

    /// Writes a step into the ring.
    fn write(&mut self, queue: CopyDirection, asked: RequestedStep) {
        let step = match queue {
            CopyDirection::In => Some(asked.step),
            CopyDirection::Out => self.quicks.step(&self.rings, asked.step),
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

    /// Returns whether each ring has space for a last entry.
    fn has_room(&self) -> bool {
        QUEUES.iter().all(|queue| self.rings.has_room(*queue))
    }

    /// Requests the kernel to exit after all its entries.
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
                if through && !self.call(self.rings.written) {
                    self.back_to(State::Copies)?;
                }
            }
            State::Called => {
                if let Some(why) = self.kernel.failure() {
                    self.refused = Some(why);
                    self.back_to(State::Copies)?;
                } else if self.rings.is_here(self.number) {
                    self.take_over();
                } else if self.began.elapsed() > BEGINS {
                    self.refused = Some(format!("the GPU did not start it within {BEGINS:?}"));
                    self.back_to(State::Late)?;
                }
            }
            State::Late => {
                if self.rings.is_here(self.number) {
                    self.send_away();
                } else if self.kernel.failure().is_some() {
                    self.state = State::Copies;
                }
            }
            State::Kernel => {
                // Only a kernel that continues with entries takes over before it has started.
                if !self.rings.is_here(self.number)
                    && let Some(why) = self.kernel.failure()
                {
                    return Err(remaining(&why));
                }
                self.give();
                let now = Instant::now();
                let is_idle = self.waiting.iter().all(VecDeque::is_empty) && now.duration_since(self.asked) > IDLE;
                // The kernel has exited on its own, because this thread did not run for longer than [`ALONE`].
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
                    // The kernel has exited on its own while this thread wrote more entries. The next kernel continues
                    // with these.
                    if !self.call(self.rings.unread()) {
                        return Err(remaining(self.refused.as_deref().unwrap_or_default()));
                    }
                    self.take_over();
                    return Ok(());
                }
                self.back_to(State::Copies)?;
            }
        }
        Ok(())
    }
}

/// Returns the error for entries of the rings that no kernel will read.
fn remaining(why: &str) -> String {
    format!("copies remain that no kernel processes: {why}")
}
