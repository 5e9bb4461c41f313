//! What a card does while its process does something else: a thread that lets requests arrive when nobody polls. A real card needs
//! no processor for that, and providers count on it: a receipt is posted, and the program goes on to other things.

use crate::locked;
use crate::pair::Pair;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError};
use std::time::Duration;

/// How often it looks while something is on its way. A process that polls is not disturbed.
const LOOK: Duration = Duration::from_micros(200);

/// The queue pairs of this process.
static PAIRS: Mutex<Vec<Known>> = Mutex::new(Vec::new());
/// Whether it looks, or sleeps until it is woken.
static IS_AWAKE: AtomicBool = AtomicBool::new(false);
static WAKE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

struct Known(*const Pair);

// SAFETY: a queue pair may be used by any thread, and is forgotten here before it is destroyed.
unsafe impl Send for Known {}

/// A queue pair is there.
pub fn add(pair: *const Pair) {
    locked(&PAIRS).push(Known(pair));
}

/// It is about to be destroyed: when this returns, nobody looks at it any more.
pub fn remove(pair: *const Pair) {
    locked(&PAIRS).retain(|known| known.0 != pair);
}

/// Something is on its way.
pub fn wake() {
    static STARTED: Once = Once::new();
    if IS_AWAKE.swap(true, Ordering::AcqRel) {
        return;
    }
    STARTED.call_once(|| {
        let started = std::thread::Builder::new().name("soft-efa".to_owned()).spawn(keep);
        if let Err(error) = started {
            eprintln!("soft_efa: starting a thread: {error}; requests arrive while their process polls, and only then");
        }
    });
    let _guard = locked(&WAKE.0);
    WAKE.1.notify_one();
}

fn keep() {
    loop {
        let mut guard = locked(&WAKE.0);
        while !IS_AWAKE.load(Ordering::Acquire) {
            guard = WAKE.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        std::thread::sleep(LOOK);
        // Before the look: what is posted behind it wakes us again.
        IS_AWAKE.store(false, Ordering::Release);
        let mut is_busy = false;
        for known in locked(&PAIRS).iter() {
            // SAFETY: known here, so not destroyed.
            let pair = unsafe { &*known.0 };
            // Who holds it makes progress itself.
            is_busy |= pair.sender.try_lock().map_or(true, |mut sender| sender.keep(pair));
        }
        if is_busy {
            IS_AWAKE.store(true, Ordering::Release);
        }
    }
}
