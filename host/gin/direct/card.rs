//! The software NIC: threads that serve queues.

use super::memory::QueueMemory;
use super::serve::{CompletionOrder, QueueFaults, QueueObservations, Regions, Side};
use ginlab_base::backoff::Backoff;
use ginlab_base::limits::explain;
use ginlab_topology::cores;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of unsuccessful passes after which a thread that shares its core yields.
const VAIN_TURNS: u32 = 1 << 6;

/// Sleep between two polls of an idle NIC; see [`SoftNic::rest`].
const REST: Duration = Duration::from_micros(20);

/// Errors of starting or stopping a software NIC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// A thread could not be started.
    #[error("cannot start the software card's thread: {0}")]
    Thread(String),
    /// A thread of the NIC panicked.
    #[error("a thread of the software card panicked")]
    Panicked,
}

/// Options of a software NIC.
#[derive(Clone, Debug, Default)]
pub struct CardOptions {
    /// Number of threads, at least 1. Queues are assigned to them round-robin.
    pub threads: usize,
    /// Whether threads yield after unsuccessful passes, because they share their cores.
    pub yields: bool,
    /// Order in which requests complete.
    pub order: CompletionOrder,
    /// Faults to inject.
    pub faults: QueueFaults,
    /// Registered memory; `None` for a null NIC, which moves no bytes and reads only the first word of each request.
    pub regions: Option<Regions>,
    /// Core of each thread; threads without an entry are not pinned.
    pub cores: Vec<usize>,
}

/// A running software NIC. Stopped on drop.
#[derive(Debug)]
pub struct SoftNic {
    queues: Arc<Vec<QueueMemory>>,
    stop: Arc<AtomicBool>,
    rests: Arc<AtomicBool>,
    /// Reason why each queue is no longer served, if any.
    wrong: Arc<Vec<OnceLock<String>>>,
    threads: Vec<JoinHandle<Vec<(usize, QueueObservations)>>>,
}

impl SoftNic {
    /// Starts to serve `queues`.
    ///
    /// # Safety
    /// The regions must be memory of this process and stay valid while the NIC runs.
    ///
    /// # Errors
    /// Returns [`CardError::Thread`] if a thread cannot be started.
    pub unsafe fn start(queues: Vec<QueueMemory>, options: CardOptions) -> Result<SoftNic, CardError> {
        let queues = Arc::new(queues);
        let stop = Arc::new(AtomicBool::new(false));
        let rests = Arc::new(AtomicBool::new(false));
        let wrong: Arc<Vec<OnceLock<String>>> = Arc::new(queues.iter().map(|_| OnceLock::new()).collect());
        let mut card = SoftNic {
            queues: queues.clone(),
            stop: stop.clone(),
            rests: rests.clone(),
            wrong: wrong.clone(),
            threads: Vec::new(),
        };
        let options = Arc::new(options);
        for thread in 0..options.threads.max(1) {
            let (queues, stop, rests, options) = (queues.clone(), stop.clone(), rests.clone(), options.clone());
            let wrong = wrong.clone();
            let serve = move || serve(thread, (&queues, &wrong), (&stop, &rests), &options);
            let spawned = std::thread::Builder::new().name(format!("card {thread}")).spawn(serve);
            card.threads.push(spawned.map_err(|error| CardError::Thread(explain(&error)))?);
        }
        Ok(card)
    }

    /// Sets whether the NIC polls only every 20 us while it is idle. It then leaves its cores to other threads that are
    /// measured alternately with it.
    pub fn rest(&self, rests: bool) {
        // Relaxed suffices, because the flag orders nothing. A NIC that polls rarely also serves requests, only later.
        self.rests.store(rests, Ordering::Relaxed);
    }

    /// Returns the queues.
    pub fn queues(&self) -> &[QueueMemory] {
        &self.queues
    }

    /// Returns, for each queue, the reason why it is no longer served, if any.
    pub fn wrong(&self) -> impl Iterator<Item = Option<&str>> {
        self.wrong.iter().map(|wrong| wrong.get().map(String::as_str))
    }

    /// Stops the NIC. Returns its observations per queue.
    ///
    /// # Errors
    /// Returns [`CardError::Panicked`] if a thread panicked.
    pub fn finish(mut self) -> Result<Vec<QueueObservations>, CardError> {
        self.end()
    }

    fn end(&mut self) -> Result<Vec<QueueObservations>, CardError> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = vec![QueueObservations::default(); self.queues.len()];
        let mut panicked = false;
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(found) => found.into_iter().for_each(|(queue, found)| all[queue] = found),
                Err(_) => panicked = true,
            }
        }
        if panicked { Err(CardError::Panicked) } else { Ok(all) }
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        // The observations are discarded.
        let _ = self.end();
    }
}

/// Runs one thread of the NIC.
fn serve(
    thread: usize,
    (queues, wrong): (&[QueueMemory], &[OnceLock<String>]),
    (stop, rests): (&AtomicBool, &AtomicBool),
    options: &CardOptions,
) -> Vec<(usize, QueueObservations)> {
    if let Some(core) = options.cores.get(thread) {
        // If pinning is refused, the thread runs on any core.
        cores::pin(*core);
    }
    let mine = queues.iter().zip(wrong).enumerate().skip(thread).step_by(options.threads.max(1));
    let side = |(index, queue)| (index, Side::new(queue, options.order, &options.faults, options.regions.as_ref()));
    let mut sides: Vec<(usize, Side<'_>)> = mine.map(side).collect();
    let mut backoff = Backoff::every(VAIN_TURNS);
    // Relaxed suffices, because the flag orders nothing. The thread that sets it joins this thread.
    while !stop.load(Ordering::Relaxed) {
        let mut moved = false;
        for (_, side) in &mut sides {
            moved |= side.turn();
        }
        if moved {
            backoff.reset();
        } else if rests.load(Ordering::Relaxed) {
            std::thread::sleep(REST);
        } else if options.yields {
            backoff.idle();
        }
    }
    sides.into_iter().map(|(index, side)| (index, side.found())).collect()
}
