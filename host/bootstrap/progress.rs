//! Tracking of the progress of ranks. A wait at a step for a busy rank continues while that rank makes progress.
//!
//! Each rank has a counter (`ginlab_base::progress`) that changes when the rank has completed some work. While the rank
//! is in no step, a thread reads the counter once a second, and reports a change to rank 0. Rank 0 reports to all ranks
//! which ranks have made progress. If a rank is alive but completes nothing, its thread reports nothing. Waits for this
//! rank then end after a whole timeout, with an error that names it.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Bootstrap;
use super::error::human;
use super::link::Link;
use super::star::Star;
use super::wait::Clock;

/// Maximum interval between progress reports, and between reports of the ranks missing at a step.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of ranks whose last progress an error names.
const MAX_NOTED: usize = 4;

/// Returns the interval between reports in a job whose waits have this limit: at most a quarter of it.
pub(super) fn report_every(timeout: Duration) -> Duration {
    (timeout / 4).clamp(Duration::from_millis(1), REPORT_EVERY)
}

/// Progress of all ranks, as known to this rank.
pub(super) struct RankProgress {
    rank: usize,
    /// Time at which each rank was last known to have made progress; `None` for this rank.
    last: Vec<Option<Instant>>,
    /// Number of progress reports received for other ranks.
    others: u64,
    /// On rank 0: ranks that have made progress since the last report.
    unreported: Vec<u32>,
    counter: &'static AtomicU64,
    counted: u64,
}

impl RankProgress {
    pub fn new(rank: usize, size: usize) -> RankProgress {
        let counter = ginlab_base::progress::counter();
        RankProgress { rank, last: vec![None; size], others: 0, unreported: Vec::new(), counter, counted: 0 }
    }

    /// Renumbers the ranks: this rank becomes `rank`, and `left` are the previous numbers of the remaining ranks.
    pub fn renumber(&mut self, rank: usize, left: &[usize]) {
        self.rank = rank;
        self.last = left.iter().map(|rank| self.last[*rank]).collect();
        self.unreported.clear();
    }

    /// Reads this rank's progress from another counter.
    pub fn count_by(&mut self, counter: &'static AtomicU64) {
        (self.counter, self.counted) = (counter, counter.load(Ordering::Relaxed));
    }

    /// Returns the number of progress reports received for other ranks.
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Processes the reports that arrived on the link to `rank`.
    pub fn hear(&mut self, rank: usize, link: &mut Link) {
        for payload in link.reports.drain(..) {
            if self.rank != 0 {
                for bytes in payload.as_chunks::<4>().0 {
                    self.progressed(u32::from_le_bytes(*bytes) as usize);
                }
                continue;
            }
            self.progressed(rank);
            if !self.unreported.contains(&(rank as u32)) {
                self.unreported.push(rank as u32);
            }
        }
    }

    fn progressed(&mut self, rank: usize) {
        // Rank 0 returns this rank's own reports, which are ignored.
        if rank != self.rank
            && let Some(last) = self.last.get_mut(rank)
        {
            *last = Some(Instant::now());
            self.others += 1;
        }
    }

    /// Returns the payload of the next report, which contains the ranks that have made progress since the last one.
    /// `None` if there are none.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let mut ranks = std::mem::take(&mut self.unreported);
        let count = self.counter.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.counted, count) != count {
            ranks.push(self.rank as u32);
        }
        (!ranks.is_empty()).then(|| ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect())
    }

    /// Restarts the timeout of a wait for these ranks at their last progress. A rank that waits for rank 0 does not
    /// know which other ranks are missing, and uses the last progress of any rank.
    pub fn renew(&self, clock: &mut Clock, missing: &[usize]) {
        let last = if missing == [0] { self.last.iter().flatten().max() } else { self.times(missing).max() };
        if let Some(last) = last {
            clock.count_from(*last);
        }
    }

    fn times<'a>(&'a self, ranks: &'a [usize]) -> impl Iterator<Item = &'a Instant> {
        ranks.iter().filter_map(|rank| self.last.get(*rank)?.as_ref())
    }

    /// Returns the times at which the first few of these ranks last made progress, for the error of a wait for them.
    /// The text is empty if no progress of any of them is known.
    pub fn note(&self, ranks: &[usize]) -> String {
        let mut text = String::new();
        let known = ranks.iter().filter_map(|rank| Some((rank, (*self.last.get(*rank)?)?)));
        for (rank, last) in known.take(MAX_NOTED) {
            let seconds = Duration::from_secs(last.elapsed().as_secs());
            let _ = write!(text, "; the last progress of rank {rank} was {} ago", human(seconds));
        }
        text
    }
}

/// The thread that reports this rank's progress. Dropping this value ends the thread.
pub(super) struct Reporter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    /// Starts the thread. If it cannot be started, progress is not reported.
    pub fn start(star: &Arc<Mutex<Star>>, timeout: Duration) -> Reporter {
        let every = report_every(timeout);
        let (stop, stopped) = channel();
        let star = Arc::clone(star);
        let body = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                // While the lock is held, this rank is in a step: it waits for other ranks and has nothing to report.
                match star.try_lock() {
                    Ok(mut star) => star.report_progress(),
                    Err(TryLockError::Poisoned(star)) => star.into_inner().report_progress(),
                    Err(TryLockError::WouldBlock) => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("progress".into()).spawn(body).ok();
        Reporter { stop: Some(stop), thread }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.stop = None;
        // The result is an error if the thread panicked; ignore it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Bootstrap {
    /// Returns the number of progress reports received for other ranks, as of the last step or check of the peers.
    pub fn progress_of_others(&self) -> u64 {
        lock(&self.star).progress.others()
    }
}

/// Locks the star for a step.
pub(super) fn lock(star: &Mutex<Star>) -> MutexGuard<'_, Star> {
    star.lock().unwrap_or_else(PoisonError::into_inner)
}
