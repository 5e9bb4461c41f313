//! Workers: CPU threads that divide the blocks of a grid among them.

use super::super::{EmulatedGrid, is_stopped};
use super::running::{GridLaunch, RunningBlock, VisitResult};
use super::stacks::Stacks;
use super::{PROGRESS, WATCHED};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{io, thread};

/// State of a running grid.
struct Work<'a> {
    launch: GridLaunch<'a>,
    /// Index of the next block that no worker has started.
    next: AtomicU32,
    /// Error of the first worker that failed; the other workers then stop as well.
    failed: OnceLock<io::Error>,
}

/// Number of spinning lanes after which a worker yields its core: resuming a lane takes about 50 ns, a yield to no
/// other thread about 300 ns.
const TURNS_BEFORE_YIELD: u32 = 4;
/// Number of sweeps over all blocks without progress after which a worker sleeps between sweeps. By then the lanes are
/// unlikely to make progress soon, and yields consume system time.
const SWEEPS_AWAKE: u32 = 512;
const SLEEP: Duration = Duration::from_micros(50);
/// Number of sleeps after which the duration grows by [`SLEEP`]: about 150 sleeps, 90 ms in total, precede the first of
/// a millisecond.
const SLEEPS: u32 = 8;
const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// A pass counts as idle if it has more than this number of spinning lanes per other lane. With thousands of lanes that
/// wait for their own puts, some make progress in each pass.
const MANY: u32 = 8;
/// Number of lanes after which a pass ends even if more remain. A pass over a full wave takes milliseconds, during
/// which a proxy on the same core could not run.
const LONGEST_PASS: u32 = 256;

impl Work<'_> {
    /// Runs blocks until none is left, at most `most` at the same time.
    fn run(&self, most: u32) {
        let mut stacks = Stacks::default();
        let mut blocks = Vec::new();
        if let Err(error) = self.run_blocks(most, &mut blocks, &mut stacks) {
            let _ = self.failed.set(error);
        }
        for block in blocks {
            block.end(&mut stacks);
        }
    }

    fn run_blocks(&self, most: u32, blocks: &mut Vec<RunningBlock>, stacks: &mut Stacks) -> io::Result<()> {
        let (mut idle, mut at) = (Idle::default(), 0);
        let mut left = true;
        loop {
            while left && blocks.len() < most as usize {
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                left = index < self.launch.blocks;
                if left {
                    // SAFETY: `run` ends the blocks before it returns, and `self` outlives that call.
                    blocks.push(unsafe { RunningBlock::new(&self.launch, index, stacks) }?);
                }
            }
            if blocks.is_empty() || self.failed.get().is_some() {
                return Ok(());
            }
            if is_stopped() {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "the emulated device was stopped"));
            }
            let mut pass = VisitResult::default();
            while pass.lanes < LONGEST_PASS
                && let Some(block) = blocks.get_mut(at)
            {
                pass += block.visit(LONGEST_PASS - pass.lanes, stacks).map_err(io::Error::other)?;
                if block.is_done() {
                    blocks.swap_remove(at);
                } else if block.is_round_over() {
                    at += 1;
                }
            }
            let sweep_is_over = at >= blocks.len();
            if sweep_is_over {
                at = 0;
            }
            match idle.after_pass(pass, PROGRESS.take(), sweep_is_over) {
                Pause::None => {}
                Pause::Yield => thread::yield_now(),
                Pause::Sleep(time) => thread::sleep(time),
            }
        }
    }
}

/// Action of a worker between two passes over its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    /// Continue: lanes make progress.
    None,
    /// Yield the core: the proxy or another rank that the lanes wait for may need it.
    Yield,
    Sleep(Duration),
}

/// Counts of passes and sweeps over all blocks without progress.
#[derive(Default)]
struct Idle {
    /// Number of lanes that have spun since the last pass with progress.
    spun: u32,
    /// Number of sweeps since a lane last changed memory.
    sweeps: u32,
}

impl Idle {
    /// Returns the pause after a pass over some lanes, the last one of a sweep if `sweep_is_over`.
    ///
    /// Sleeps only between two sweeps. A sweep over the lanes of a full grid takes milliseconds, in which data for the
    /// first lanes arrives. A sleep after each of its hundreds of passes would take several times as long.
    fn after_pass(&mut self, pass: VisitResult, has_changed_memory: bool, sweep_is_over: bool) -> Pause {
        if has_changed_memory {
            // A lane that puts and then waits also ends each of its steps by spinning.
            self.sweeps = 0;
        }
        if pass.spun <= MANY * (pass.lanes - pass.spun) {
            *self = Idle::default();
            return Pause::None;
        }
        self.spun = self.spun.saturating_add(pass.spun);
        self.sweeps = self.sweeps.saturating_add(sweep_is_over.into());
        match self.sweeps.checked_sub(SWEEPS_AWAKE) {
            Some(sleeps) if sweep_is_over => Pause::Sleep((SLEEP * (1 + sleeps / SLEEPS)).min(LONGEST_SLEEP)),
            _ if self.spun >= TURNS_BEFORE_YIELD => Pause::Yield,
            _ => Pause::None,
        }
    }
}

/// Counts grids that must observe every access to shared memory, for as long as it lives.
struct Watch(bool);

impl Watch {
    fn new(watched: bool) -> Watch {
        WATCHED.fetch_add(watched.into(), Ordering::Relaxed);
        Watch(watched)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.fetch_sub(self.0.into(), Ordering::Relaxed);
    }
}

pub fn run(grid: &EmulatedGrid, body: &(dyn Fn() + Sync)) -> io::Result<()> {
    let _watch = Watch::new(grid.seed.is_some() || grid.orders.is_some());
    let launch =
        GridLaunch { blocks: grid.blocks, threads: grid.threads, seed: grid.seed, orders: grid.orders.clone(), body };
    let work = Work { launch, next: AtomicU32::new(0), failed: OnceLock::new() };
    let at_once = grid.blocks_at_once();
    let workers = (grid.workers as u32).clamp(1, at_once);
    let most = |worker: u32| at_once / workers + u32::from(worker < at_once % workers);
    let others: Vec<_> = (1..workers).map(|worker| (worker, most(worker))).collect();
    let (started, ended) = channel::<()>();
    let joined = Joined(ended);
    for (_, most) in &others {
        let (work, started, most) = (&work, started.clone(), *most);
        let job: Box<dyn FnOnce() + Send> = Box::new(move || {
            if catch_unwind(AssertUnwindSafe(|| work.run(most))).is_err() {
                let _ = work.failed.set(io::Error::other("a worker of the emulated device panicked"));
            }
            // The grid may be freed from here on.
            drop(started);
        });
        // SAFETY: the job borrows `work`. `joined` is dropped before `work` and waits until every job has finished.
        let job: Job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(job) };
        if let Err(error) = start(job) {
            let _ = work.failed.set(error);
            break;
        }
    }
    drop(started);
    work.run(most(0));
    drop(joined);
    work.failed.into_inner().map_or(Ok(()), Err)
}

/// Waits on drop until the other workers have finished: each holds a sender until then.
struct Joined(std::sync::mpsc::Receiver<()>);

impl Drop for Joined {
    fn drop(&mut self) {
        while self.0.recv().is_ok() {}
    }
}

type Job = Box<dyn FnOnce() + Send + 'static>;

/// Channels to idle threads, which are kept for later grids.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// Runs the job on an idle thread, or on a new one.
fn start(job: Job) -> io::Result<()> {
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let job = match idle {
        None => job,
        Some(worker) => match worker.send(job) {
            Ok(()) => return Ok(()),
            Err(refused) => refused.0,
        },
    };
    let (sender, jobs) = channel::<Job>();
    let again = sender.clone();
    thread::Builder::new().name("emulated".into()).spawn(move || {
        for job in jobs {
            job();
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(again.clone());
        }
    })?;
    // This cannot fail: the thread waits for its first job.
    sender.send(job).map_err(|_| io::Error::other("a worker of the emulated device has ended"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPINNING: VisitResult = VisitResult { lanes: LONGEST_PASS, spun: LONGEST_PASS };

    #[test]
    fn worker_sleeps_only_between_sweeps() {
        let mut idle = Idle::default();
        // A full grid has 528 passes per sweep.
        for sweep in 1..=2 * SWEEPS_AWAKE {
            for pass in 1..=528 {
                let is_over = pass == 528;
                let pause = idle.after_pass(SPINNING, false, is_over);
                if is_over && sweep >= SWEEPS_AWAKE {
                    assert!(matches!(pause, Pause::Sleep(_)), "sweep {sweep}: {pause:?}");
                } else {
                    assert_eq!(pause, Pause::Yield, "pass {pass} of sweep {sweep}");
                }
            }
        }
    }

    #[test]
    fn sleeps_grow_to_bound_and_reset_on_progress() {
        let mut idle = Idle::default();
        let pauses: Vec<Pause> = (0..SWEEPS_AWAKE + 1000).map(|_| idle.after_pass(SPINNING, false, true)).collect();
        assert_eq!(pauses[SWEEPS_AWAKE as usize - 1], Pause::Sleep(SLEEP));
        assert_eq!(pauses.last(), Some(&Pause::Sleep(LONGEST_SLEEP)));
        let progress = VisitResult { lanes: 90, spun: 80 };
        assert_eq!(idle.after_pass(progress, false, true), Pause::None);
        assert_eq!(idle.after_pass(SPINNING, false, true), Pause::Yield);
    }

    #[test]
    fn worker_whose_lanes_change_memory_does_not_sleep() {
        let mut idle = Idle::default();
        let one = VisitResult { lanes: 1, spun: 1 };
        // A single lane that puts and then waits for a few polls.
        assert!(
            (0..100 * SWEEPS_AWAKE).all(|turn| !matches!(idle.after_pass(one, turn % 8 == 0, true), Pause::Sleep(_)))
        );
    }
}
