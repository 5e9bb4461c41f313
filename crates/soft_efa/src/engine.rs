//! The card at its queues: a thread that looks at doorbells and writes completions where C has asked for the queues themselves. What is
//! posted and polled for by C's older functions needs none: there the cards work inside those calls.

use crate::completions::Completions;
use crate::locked;
use crate::pair::Pair;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

/// It looks without a pause until nothing has moved for so long, ...
const AWAKE: Duration = Duration::from_millis(2);
/// ... and then so often.
const LOOK: Duration = Duration::from_micros(50);

/// What is looked at: queue pairs with rings or counters, and completion queues that lie in memory.
#[derive(Default)]
struct Watched {
    pairs: Vec<*const Pair>,
    queues: Vec<*const Completions>,
}

// SAFETY: what is in here is taken out, under the lock, before it is destroyed.
unsafe impl Send for Watched {}

static WATCHED: Mutex<Watched> = Mutex::new(Watched { pairs: Vec::new(), queues: Vec::new() });
/// Who wants to change it: the thread makes room.
static CHANGING: AtomicUsize = AtomicUsize::new(0);

fn change(with: impl FnOnce(&mut Watched)) {
    CHANGING.fetch_add(1, Ordering::Relaxed);
    with(&mut locked(&WATCHED));
    CHANGING.fetch_sub(1, Ordering::Relaxed);
}

/// A queue pair has rings or counters from now on. Whoever destroys it calls [`forget_pair`] first.
pub fn watch_pair(pair: *const Pair) {
    change(|watched| {
        if !watched.pairs.contains(&pair) {
            watched.pairs.push(pair);
        }
    });
    start();
}

/// A completion queue lies in memory from now on. Whoever destroys it calls [`forget_queue`] first.
pub fn watch_queue(queue: *const Completions) {
    change(|watched| watched.queues.push(queue));
    start();
}

/// When this returns, nobody looks at it any more.
pub fn forget_pair(pair: *const Pair) {
    change(|watched| watched.pairs.retain(|known| *known != pair));
}

/// As [`forget_pair`].
pub fn forget_queue(queue: *const Completions) {
    change(|watched| watched.queues.retain(|known| *known != queue));
}

fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let started = thread::Builder::new().name("soft-efa-card".to_owned()).spawn(run);
        if let Err(error) = started {
            eprintln!("soft_efa: starting the card's thread: {error}; what is written into queues is not seen");
        }
    });
}

fn run() {
    // A thread of its own for each card is there on a machine of many cores; on a small one the poller that it serves wants this core.
    let gives_way = thread::available_parallelism().is_ok_and(|cores| cores.get() < 4);
    let mut moved = Instant::now();
    let mut idle = 0u32;
    loop {
        while CHANGING.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        if look(&locked(&WATCHED)) {
            idle = 0;
            continue;
        }
        idle = idle.wrapping_add(1);
        if gives_way {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        if idle == 1 {
            moved = Instant::now();
        } else if idle.is_multiple_of(64) && moved.elapsed() > AWAKE {
            thread::sleep(LOOK);
        }
    }
}

/// Whether anything has moved.
fn look(watched: &Watched) -> bool {
    let mut moved = false;
    for pair in &watched.pairs {
        // SAFETY: watched, so not destroyed.
        moved |= unsafe { &**pair }.work();
    }
    for queue in &watched.queues {
        // SAFETY: as above.
        moved |= unsafe { &**queue }.fill();
    }
    moved
}
