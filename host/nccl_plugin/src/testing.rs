//! Support for tests without a GPU: host memory that is accessed like GPU memory, with delayed copies.

use crate::copies::{Copies, CopyDirection};
use crate::mover::{ByKernel, MoverLauncher};
use ginlab_cuda::{Buffer, Device, MemoryLocation};
use kernels::mover::{Jobs, LANES, LOOK_WORDS, MOVER, MoverArgs, MoverRing};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

thread_local! {
    static VARIABLES: RefCell<HashMap<String, String>> = RefCell::default();
    static STEPS: RefCell<Option<Arc<Steps>>> = const { RefCell::new(None) };
}

/// Sets environment variables for the calling thread, replacing all that were set before. They take precedence over the
/// process's environment, because the ranks of a test are threads.
pub fn set_variables(variables: &[(&str, &str)]) {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    VARIABLES.set(variables.iter().map(owned).collect());
}

/// Returns an environment variable, or its replacement for this thread. Also works in a handler of `exit`, which runs
/// after the thread's variables have been destroyed.
pub(crate) fn variable(name: &str) -> Option<String> {
    let replaced = VARIABLES.try_with(|variables| variables.borrow().get(name).cloned());
    replaced.ok().flatten().or_else(|| std::env::var(name).ok())
}

/// Sets the gate for copies into GPU memory of the communicators that the calling thread opens afterwards. With `None`,
/// copies are late but automatic.
pub fn set_steps(steps: Option<Arc<Steps>>) {
    STEPS.set(steps);
}

/// A gate for the copies of one rank into GPU memory. A test allows them one by one, and the state after each lasts
/// until the test has checked it.
#[derive(Debug, Default)]
pub struct Steps {
    allowed: AtomicU64,
    taken: AtomicU64,
    turns: AtomicU64,
    released: AtomicBool,
}

impl Steps {
    /// Allows one more copy or mark.
    pub fn allow(&self) {
        self.allowed.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether all allowed steps have been taken. A step of an empty queue counts as taken.
    pub fn all_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire) >= self.allowed.load(Ordering::Acquire)
    }

    /// Returns the number of iterations of the plugin's loop that have started.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Acquire)
    }

    /// Opens the gate for good.
    pub fn release(&self) {
        self.released.store(true, Ordering::Release);
    }
}

/// Settings of a rank without a GPU.
#[derive(Clone, Debug)]
pub struct Pretend {
    by_kernel: bool,
    steps: Option<Arc<Steps>>,
}

impl Pretend {
    /// Returns the settings of the calling thread. `by_kernel` selects copies by the kernel. It must be requested
    /// explicitly, because on few cores the kernel's polling takes a core from the ranks.
    pub(crate) fn of_this_thread(by_kernel: bool) -> Pretend {
        Pretend { by_kernel, steps: STEPS.with_borrow(Clone::clone) }
    }
}

pub(crate) fn copies(pretend: Option<&Pretend>, by_kernel: Option<u32>) -> Result<Option<Box<dyn Copies>>, String> {
    let Some(pretend) = pretend else { return Ok(None) };
    let late = LateCopies { steps: pretend.steps.clone(), ..LateCopies::default() };
    match by_kernel {
        Some(blocks) if pretend.by_kernel => Ok(Some(Box::new(ByKernel::new(late, OnCpu::new(blocks)?)))),
        _ => Ok(Some(Box::new(late))),
    }
}

/// The kernel on the emulated device.
pub(crate) struct OnCpu {
    /// This field is declared before the rings, so that it is dropped first. Dropping it waits for the end of the
    /// launch.
    running: Option<ginlab_cuda::Launch>,
    lanes: Buffer,
    jobs: Buffer,
    /// Number of blocks per lane.
    blocks: u32,
}

impl OnCpu {
    pub fn new(blocks: u32) -> Result<OnCpu, String> {
        let zeros = |place, bytes| Device::Emulated.allocate(place, bytes).map_err(|error| error.to_string());
        let lanes = zeros(MemoryLocation::Host, LANES as usize * size_of::<MoverRing>())?;
        let jobs = zeros(MemoryLocation::Device, LANES as usize * size_of::<Jobs>())?;
        Ok(OnCpu { running: None, lanes, jobs, blocks })
    }

    /// Returns whether all blocks of the last kernel have exited.
    #[cfg(test)]
    pub fn has_ended(&mut self) -> bool {
        self.running.as_mut().is_none_or(|running| running.is_done().expect("a grid on the CPU"))
    }
}

impl MoverLauncher for OnCpu {
    fn lanes(&self) -> *const MoverRing {
        self.lanes.pointer()
    }

    fn jobs(&self) -> *const Jobs {
        self.jobs.pointer()
    }

    unsafe fn launch(&mut self, args: MoverArgs, crew: bool) -> Result<(), String> {
        // Dropping the previous launch waits for its end, like a stream does.
        self.running = None;
        let blocks = if crew { self.blocks } else { 1 };
        // SAFETY: the caller upholds the contract of `launch`; rings and jobs outlive the launch.
        let launch = unsafe { Device::Emulated.launch(&MOVER, LANES * blocks, 2 * LOOK_WORDS, args) };
        self.running = Some(launch.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Does nothing: the kernel exits on its own, and `drop` waits for it.
    fn leave_behind(&mut self) {}
}

/// A copy (target, source, bytes) or a mark.
enum Step {
    Copy(u64, u64, usize),
    Mark(u64),
}

#[derive(Default)]
struct Late {
    steps: VecDeque<Step>,
    made: u64,
    passed: u64,
}

impl Late {
    fn step(&mut self) {
        match self.steps.pop_front() {
            // SAFETY: the callers of `put_in` and `take_out` guarantee that both ranges are valid until a later mark is
            // passed.
            Some(Step::Copy(target, source, bytes)) => unsafe {
                std::ptr::copy_nonoverlapping(source as *const u8, target as *mut u8, bytes);
            },
            Some(Step::Mark(mark)) => self.passed = mark,
            None => {}
        }
    }
}

/// Copies that run one step of a queue for each call of `passed` or `turn`. With [`Steps`], the queue into GPU memory
/// proceeds only to the extent that they allow.
#[derive(Default)]
pub struct LateCopies {
    into: Late,
    out: Late,
    steps: Option<Arc<Steps>>,
}

impl LateCopies {
    /// Performs one step of the queue into GPU memory, unless it is held.
    fn step_in(&mut self) {
        if self.steps.as_ref().is_none_or(|steps| steps.released.load(Ordering::Acquire)) {
            self.into.step();
        }
    }
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

    unsafe fn take_out(&mut self, host: u64, device: u64, bytes: usize, after_puts: bool) -> Result<(), String> {
        let lane = if after_puts { &mut self.into } else { &mut self.out };
        lane.steps.push_back(Step::Copy(host, device, bytes));
        Ok(())
    }

    /// Performs a step of each queue, so that steps without a mark also complete.
    fn turn(&mut self) -> Result<(), String> {
        if let Some(steps) = &self.steps {
            steps.turns.fetch_add(1, Ordering::AcqRel);
            if !steps.all_taken() {
                self.into.step();
                steps.taken.fetch_add(1, Ordering::AcqRel);
            }
        }
        self.step_in();
        self.out.step();
        Ok(())
    }

    fn mark(&mut self, queue: CopyDirection) -> Result<u64, String> {
        let lane = match queue {
            CopyDirection::In => &mut self.into,
            CopyDirection::Out => &mut self.out,
        };
        lane.made += 1;
        lane.steps.push_back(Step::Mark(lane.made));
        Ok(lane.made)
    }

    fn passed(&mut self, queue: CopyDirection) -> Result<u64, String> {
        match queue {
            CopyDirection::In => self.step_in(),
            CopyDirection::Out => self.out.step(),
        }
        Ok(match queue {
            CopyDirection::In => self.into.passed,
            CopyDirection::Out => self.out.passed,
        })
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
