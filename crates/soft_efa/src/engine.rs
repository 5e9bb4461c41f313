//! The card at its queues: a thread that looks at doorbells and writes completions where C has asked for the queues themselves. What is
//! posted and polled for by C's older functions needs none: there the cards work inside those calls. There is one thread, or as many as the
//! description says (`threads=N`), among which queue pairs are dealt out; a completion queue belongs to the thread of its first pair.

use crate::completions::Completions;
use crate::locked;
use crate::pair::Pair;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

/// Threads of a process at most.
const MOST_THREADS: usize = card_model::MOST_THREADS;

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

/// A thread's share.
struct Share {
    watched: Mutex<Watched>,
    is_started: Once,
}

static SHARES: [Share; MOST_THREADS] = [const {
    Share { watched: Mutex::new(Watched { pairs: Vec::new(), queues: Vec::new() }), is_started: Once::new() }
}; MOST_THREADS];
/// Who wants to change one: the threads make room.
static CHANGING: AtomicUsize = AtomicUsize::new(0);

fn change(share: &Share, with: impl FnOnce(&mut Watched)) {
    CHANGING.fetch_add(1, Ordering::Relaxed);
    with(&mut locked(&share.watched));
    CHANGING.fetch_sub(1, Ordering::Relaxed);
}

/// The share of a queue pair: by its number, whose low bits count the pairs of its card.
fn share_of(pair: &Pair) -> &'static Share {
    let threads = pair.origin.context.machine.spec.threads.clamp(1, MOST_THREADS);
    &SHARES[pair.number() as usize % threads]
}

/// A queue pair has rings or counters from now on. Whoever destroys it calls [`forget_pair`] first.
pub fn watch_pair(pair: &Pair) {
    let share = share_of(pair);
    change(share, |watched| {
        if !watched.pairs.contains(&std::ptr::from_ref(pair)) {
            watched.pairs.push(pair);
        }
    });
    start(share);
}

/// A completion queue lies in memory from now on. Whoever destroys it calls [`forget_queue`] first.
pub fn watch_queue(queue: *const Completions, first: Option<&Pair>) {
    let share = first.map_or(&SHARES[0], share_of);
    change(share, |watched| watched.queues.push(queue));
    start(share);
}

/// When this returns, nobody looks at it any more.
pub fn forget_pair(pair: *const Pair) {
    SHARES.iter().for_each(|share| change(share, |watched| watched.pairs.retain(|known| *known != pair)));
}

/// As [`forget_pair`].
pub fn forget_queue(queue: *const Completions) {
    SHARES.iter().for_each(|share| change(share, |watched| watched.queues.retain(|known| *known != queue)));
}

fn start(share: &'static Share) {
    share.is_started.call_once(|| {
        let started = thread::Builder::new().name("soft-efa-card".to_owned()).spawn(|| run(share));
        if let Err(error) = started {
            eprintln!("soft_efa: starting the card's thread: {error}; what is written into queues is not seen");
        }
    });
}

/// Runs where the process may run. Whoever has created the first queue may be a thread that is pinned, which hands its one core on to what it starts:
/// the card and its poster would then take turns of milliseconds (seen on a machine of 16 cores: 4 ms a put).
fn leave_pinned_core() {
    // SAFETY: plain data, for which zeros are a value.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is of the size that is said, and ours. The process's number is that of its first thread.
    unsafe {
        if libc::sched_getaffinity(libc::getpid(), bytes, &raw mut cores) == 0 {
            libc::sched_setaffinity(0, bytes, &raw const cores);
        }
    }
}

fn run(share: &Share) {
    leave_pinned_core();
    // On a machine of few cores whoever waits for the card wants this one.
    let gives_way = thread::available_parallelism().is_ok_and(|cores| cores.get() < 4);
    let mut moved = Instant::now();
    let (mut idle, mut rests) = (0u32, false);
    loop {
        while CHANGING.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        if look(&locked(&share.watched)) {
            idle = 0;
            continue;
        }
        idle = idle.wrapping_add(1);
        if idle == 1 {
            moved = Instant::now();
            rests = false;
        } else if idle.is_multiple_of(64) {
            rests = rests || moved.elapsed() > AWAKE;
        }
        if rests {
            thread::sleep(LOOK);
        } else if gives_way {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
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
