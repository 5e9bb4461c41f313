//! The engine: threads that poll doorbells and write completions and notifications. They serve queues to which C has
//! requested direct access, or whose completions C waits for. Requests posted and polled through the older C functions
//! need no thread, because the device works inside those calls.
//!
//! There is one thread, or as many as the description specifies (`threads=N`), to which queue pairs are assigned
//! round-robin. A completion queue belongs to the thread of its first queue pair.

use crate::completions::SoftCompletionQueue;
use crate::locked;
use crate::pair::SoftQueuePair;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of threads of a process.
const MOST_THREADS: usize = card_model::MOST_THREADS;

/// Time without progress after which a thread sleeps between polls.
const AWAKE: Duration = Duration::from_millis(2);
/// Polling interval of a sleeping thread.
const LOOK: Duration = Duration::from_micros(50);

/// Polled objects: queue pairs with rings or counters, and completion queues in memory or with a channel.
#[derive(Default)]
struct Watched {
    pairs: Vec<*const SoftQueuePair>,
    queues: Vec<*const SoftCompletionQueue>,
}

// SAFETY: every object is removed, under the lock, before it is destroyed.
unsafe impl Send for Watched {}

/// The objects that one thread polls.
struct Share {
    watched: Mutex<Watched>,
    is_started: Once,
}

static SHARES: [Share; MOST_THREADS] = [const {
    Share { watched: Mutex::new(Watched { pairs: Vec::new(), queues: Vec::new() }), is_started: Once::new() }
}; MOST_THREADS];
/// Number of callers that are about to change a share. The threads release the lock for them.
static CHANGING: AtomicUsize = AtomicUsize::new(0);

fn change(share: &Share, with: impl FnOnce(&mut Watched)) {
    CHANGING.fetch_add(1, Ordering::Relaxed);
    with(&mut locked(&share.watched));
    CHANGING.fetch_sub(1, Ordering::Relaxed);
}

/// Returns the share of a queue pair, by its number: its low bits are the pair's index in the device.
fn share_of(pair: &SoftQueuePair) -> &'static Share {
    let threads = pair.origin.context.machine.spec.threads.clamp(1, MOST_THREADS);
    &SHARES[pair.number() as usize % threads]
}

/// Starts polling a queue pair, which now has rings or counters. [`forget_pair`] must be called before it is destroyed.
pub fn watch_pair(pair: &SoftQueuePair) {
    let share = share_of(pair);
    change(share, |watched| {
        if !watched.pairs.contains(&std::ptr::from_ref(pair)) {
            watched.pairs.push(pair);
        }
    });
    start(share);
}

/// Starts polling a completion queue, which is now in memory or has a channel. [`forget_queue`] must be called before
/// it is destroyed.
pub fn watch_queue(queue: *const SoftCompletionQueue, first: Option<&SoftQueuePair>) {
    let share = first.map_or(&SHARES[0], share_of);
    change(share, |watched| {
        if !watched.queues.contains(&queue) {
            watched.queues.push(queue);
        }
    });
    start(share);
}

/// Stops polling a queue pair. No thread accesses it after this returns.
pub fn forget_pair(pair: *const SoftQueuePair) {
    SHARES.iter().for_each(|share| change(share, |watched| watched.pairs.retain(|known| *known != pair)));
}

/// Stops polling a completion queue. No thread accesses it after this returns.
pub fn forget_queue(queue: *const SoftCompletionQueue) {
    SHARES.iter().for_each(|share| change(share, |watched| watched.queues.retain(|known| *known != queue)));
}

fn start(share: &'static Share) {
    share.is_started.call_once(|| {
        let started = thread::Builder::new().name("soft-efa-card".to_owned()).spawn(|| run(share));
        if let Err(error) = started {
            eprintln!(
                "soft_efa: cannot start the software NIC's thread: {error}; requests written into queues are not \
                 processed"
            );
        }
    });
}

/// Sets this thread's affinity to that of the process. The creator of the first queue may be pinned to one core, and
/// its threads inherit that. Engine and poster would then be time-sliced on that core, which costs milliseconds per
/// put.
fn leave_pinned_core() {
    // SAFETY: the type is plain data, for which zeros are valid.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is a local variable of the given size. The process ID is also the ID of its first thread.
    unsafe {
        if libc::sched_getaffinity(libc::getpid(), bytes, &raw mut cores) == 0 {
            libc::sched_setaffinity(0, bytes, &raw const cores);
        }
    }
}

fn run(share: &Share) {
    leave_pinned_core();
    // With few cores, the thread that waits for this engine may need this core.
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

/// Polls all objects. Returns whether there was any progress.
fn look(watched: &Watched) -> bool {
    let mut moved = false;
    for pair in &watched.pairs {
        // SAFETY: polled objects are not destroyed.
        moved |= unsafe { &**pair }.work();
    }
    for queue in &watched.queues {
        // SAFETY: polled objects are not destroyed.
        let queue = unsafe { &**queue };
        moved |= queue.fill();
        moved |= queue.notify();
    }
    moved
}
