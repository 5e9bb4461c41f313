//! The card: threads that serve queues.

use crate::memory::QueueMemory;
use crate::serve::{Faults, Found, Order, Regions, Side};
use ginlab_base::giving_way::GivingWay;
use ginlab_topology::cores;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Turns in vain before a thread that shares its core gives way.
const VAIN_TURNS: u32 = 1 << 6;

/// Between two looks of a card that rests.
const REST: Duration = Duration::from_micros(20);

/// Why a card could not be started or ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CardError {
    /// No thread.
    #[error("no thread for the card: {0}")]
    Thread(String),
    /// One of its threads has panicked.
    #[error("a thread of the card has panicked")]
    Panicked,
}

/// How a card serves.
#[derive(Clone, Debug, Default)]
pub struct CardOptions {
    /// Threads, at least one; queues are dealt to them in turn.
    pub threads: usize,
    /// Gives way in turns in vain: others share the core.
    pub yields: bool,
    /// In which order requests end.
    pub order: Order,
    /// What it does wrong.
    pub faults: Faults,
    /// Registered memory. `None`: no bytes are moved, and nothing of a request is looked at but its first word.
    pub regions: Option<Regions>,
    /// The core of each thread, where they are pinned.
    pub cores: Vec<usize>,
}

/// A card that runs. It ends when dropped.
#[derive(Debug)]
pub struct Card {
    queues: Arc<Vec<QueueMemory>>,
    stop: Arc<AtomicBool>,
    rests: Arc<AtomicBool>,
    /// Of each queue, once it is served no more: why.
    wrong: Arc<Vec<OnceLock<String>>>,
    threads: Vec<JoinHandle<Vec<(usize, Found)>>>,
}

impl Card {
    /// Starts to serve these queues.
    ///
    /// # Safety
    /// The regions are memory of this process, and stay so while the card runs.
    ///
    /// # Errors
    /// [`CardError::Thread`].
    pub unsafe fn start(queues: Vec<QueueMemory>, options: CardOptions) -> Result<Card, CardError> {
        let queues = Arc::new(queues);
        let stop = Arc::new(AtomicBool::new(false));
        let rests = Arc::new(AtomicBool::new(false));
        let wrong: Arc<Vec<OnceLock<String>>> = Arc::new(queues.iter().map(|_| OnceLock::new()).collect());
        let mut card = Card {
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
            card.threads.push(spawned.map_err(|error| CardError::Thread(error.to_string()))?);
        }
        Ok(card)
    }

    /// While nobody posts it looks seldom, and leaves its cores to others that are measured in turns with it.
    pub fn rest(&self, rests: bool) {
        // Nothing is ordered by it: a card that rests serves too, only later.
        self.rests.store(rests, Ordering::Relaxed);
    }

    /// Its queues.
    pub fn queues(&self) -> &[QueueMemory] {
        &self.queues
    }

    /// Why it serves a queue no more, of each queue.
    pub fn wrong(&self) -> impl Iterator<Item = Option<&str>> {
        self.wrong.iter().map(|wrong| wrong.get().map(String::as_str))
    }

    /// Ends it; what it has seen of each queue.
    ///
    /// # Errors
    /// [`CardError::Panicked`].
    pub fn finish(mut self) -> Result<Vec<Found>, CardError> {
        self.end()
    }

    fn end(&mut self) -> Result<Vec<Found>, CardError> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = vec![Found::default(); self.queues.len()];
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

impl Drop for Card {
    fn drop(&mut self) {
        // What it has seen is nobody's then.
        let _ = self.end();
    }
}

/// One thread of the card.
fn serve(
    thread: usize,
    (queues, wrong): (&[QueueMemory], &[OnceLock<String>]),
    (stop, rests): (&AtomicBool, &AtomicBool),
    options: &CardOptions,
) -> Vec<(usize, Found)> {
    if let Some(core) = options.cores.get(thread) {
        // Where that is refused it runs anywhere.
        cores::pin(*core);
    }
    let mine = queues.iter().zip(wrong).enumerate().skip(thread).step_by(options.threads.max(1));
    let side = |(index, queue)| (index, Side::new(queue, options.order, &options.faults, options.regions.as_ref()));
    let mut sides: Vec<(usize, Side<'_>)> = mine.map(side).collect();
    let mut giving = GivingWay::every(VAIN_TURNS);
    // Nothing is ordered by it: who raises it joins this thread.
    while !stop.load(Ordering::Relaxed) {
        let mut moved = false;
        for (_, side) in &mut sides {
            moved |= side.turn();
        }
        if moved {
            giving.moved();
        } else if rests.load(Ordering::Relaxed) {
            std::thread::sleep(REST);
        } else if options.yields {
            giving.in_vain();
        }
    }
    sides.into_iter().map(|(index, side)| (index, side.found())).collect()
}
