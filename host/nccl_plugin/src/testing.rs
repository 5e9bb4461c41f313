//! For tests without a GPU: memory of the host that is reached as a GPU's is, by copies that happen later.

use crate::copies::{Copies, Queue};
use crate::mover::{ByKernel, Launch};
use crate::settings::COPIES;
use ginlab_cuda::{Buffer, Device, Place};
use kernels::mover::{Jobs, LANES, LOOK_WORDS, Lane, MOVER, MoverArgs};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

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

/// By the kernel where that is asked for in words: on few cores its polling takes one from the ranks.
pub(crate) fn copies(pretend: bool, by_kernel: Option<u32>) -> Result<Option<Box<dyn Copies>>, String> {
    if !pretend {
        return Ok(None);
    }
    if let (Some(_), Some(blocks)) = (variable(COPIES), by_kernel) {
        return Ok(Some(Box::new(ByKernel::new(LateCopies::default(), OnCpu::new(blocks)?))));
    }
    Ok(Some(Box::<LateCopies>::default()))
}

/// The kernel on the emulated device.
pub(crate) struct OnCpu {
    /// Dropped before the rings: that waits for its end.
    running: Option<ginlab_cuda::Launch>,
    lanes: Buffer,
    jobs: Buffer,
    /// For each lane.
    blocks: u32,
}

impl OnCpu {
    pub fn new(blocks: u32) -> Result<OnCpu, String> {
        let zeros = |place, bytes| Device::Emulated.allocate(place, bytes).map_err(|error| error.to_string());
        let lanes = zeros(Place::Host, LANES as usize * size_of::<Lane>())?;
        let jobs = zeros(Place::Device, LANES as usize * size_of::<Jobs>())?;
        Ok(OnCpu { running: None, lanes, jobs, blocks })
    }

    /// Whether all blocks of the last kernel have ended.
    #[cfg(test)]
    pub fn has_ended(&mut self) -> bool {
        self.running.as_mut().is_none_or(|running| running.is_done().expect("a grid on the CPU"))
    }
}

impl Launch for OnCpu {
    fn lanes(&self) -> *const Lane {
        self.lanes.pointer()
    }

    fn jobs(&self) -> *const Jobs {
        self.jobs.pointer()
    }

    unsafe fn launch(&mut self, args: MoverArgs, crew: bool) -> Result<(), String> {
        // Dropping the one before waits for its end, as a stream does.
        self.running = None;
        let blocks = if crew { self.blocks } else { 1 };
        // SAFETY: the caller's contract; rings and jobs outlive the launch.
        let launch = unsafe { Device::Emulated.launch(&MOVER, LANES * blocks, 2 * LOOK_WORDS, args) };
        self.running = Some(launch.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// It ends by itself, and is waited for.
    fn leave_behind(&mut self) {}
}

/// A copy: target, source, bytes.
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
    into: Late,
    out: Late,
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

    /// What nobody marks comes as well.
    fn turn(&mut self) -> Result<(), String> {
        self.into.step();
        self.out.step();
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
