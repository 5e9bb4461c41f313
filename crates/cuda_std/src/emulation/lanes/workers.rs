//! Workers: CPU threads that share the blocks of a grid.

use super::super::Grid;
use super::WATCHED;
use super::running::{Launch, Running, Session};
use super::stacks::Stacks;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{io, thread};

/// A grid that runs.
struct Work<'a> {
    launch: Launch<'a>,
    /// The next block that nobody has begun.
    next: AtomicU32,
    /// Why the first worker has failed: the others end too.
    failed: OnceLock<io::Error>,
}

/// Turns in which lanes of a worker only spun, before it offers its core to others. A turn is some 50 ns, an offer that nobody takes
/// some 300.
const TURNS_BEFORE_YIELD: u32 = 4;
/// Offers one behind the other that nothing came of: whom they wait for is not about to answer, and an offer takes the system's time.
const AWAKE: u32 = 512;
/// How long a worker sleeps then between two turns, at first.
const REST: Duration = Duration::from_micros(50);
/// Sleeps behind which they grow by a [`REST`]: some 150 of them, and 90 ms, stand before the first one of a millisecond.
const RESTS: u32 = 8;
/// The longest sleep.
const LONGEST_REST: Duration = Duration::from_millis(1);
/// A pass is one of spinning lanes if there are more than so many of them for each other lane: of thousands that wait for their own
/// puts, some go on in each pass.
const MANY: u32 = 8;
/// Lanes after which a pass is over although there are more: those of a whole wave take milliseconds, which a proxy on the same core
/// would lack.
const LONGEST_PASS: u32 = 256;

impl Work<'_> {
    /// A worker that has at most `most` blocks at once.
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

    fn run_blocks(&self, most: u32, blocks: &mut Vec<Running>, stacks: &mut Stacks) -> io::Result<()> {
        let (mut idle, mut at, mut given) = (0, 0, 0);
        let mut left = true;
        loop {
            while left && blocks.len() < most as usize {
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                left = index < self.launch.blocks;
                if left {
                    // SAFETY: the caller ends the blocks while `self` is there.
                    blocks.push(unsafe { Running::new(&self.launch, index, stacks) }?);
                }
            }
            if blocks.is_empty() || self.failed.get().is_some() {
                return Ok(());
            }
            let mut pass = Session::default();
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
            if at >= blocks.len() {
                at = 0;
            }
            idle = if pass.spun > MANY * (pass.lanes - pass.spun) { pass.spun.saturating_add(idle) } else { 0 };
            if idle == 0 {
                given = 0u32;
            } else if idle >= TURNS_BEFORE_YIELD {
                // Whom they wait for may want this core: a proxy, another rank.
                if given < AWAKE {
                    thread::yield_now();
                } else {
                    thread::sleep((REST * (1 + (given - AWAKE) / RESTS)).min(LONGEST_REST));
                }
                given = given.saturating_add(1);
            }
        }
    }
}

/// Counts a grid that wants to see each access to shared memory.
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

pub fn run(grid: &Grid, body: &(dyn Fn() + Sync)) -> io::Result<()> {
    let _watch = Watch::new(grid.seed.is_some() || grid.orders.is_some());
    let launch =
        Launch { blocks: grid.blocks, threads: grid.threads, seed: grid.seed, orders: grid.orders.clone(), body };
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
            // The grid may be gone from here on.
            drop(started);
        });
        // SAFETY: the job borrows the work, behind which `joined` is dropped first: it waits until every job is over.
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

/// Waits for the other workers when it is dropped: each holds a sender until it is over.
struct Joined(std::sync::mpsc::Receiver<()>);

impl Drop for Joined {
    fn drop(&mut self) {
        while self.0.recv().is_ok() {}
    }
}

type Job = Box<dyn FnOnce() + Send + 'static>;

/// Threads that were started once and have nothing to do.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(Vec::new());

/// Lets a kept thread, or a new one, do the job.
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
    // The thread waits for its first job.
    sender.send(job).map_err(|_| io::Error::other("a worker of the emulated device has ended"))
}
