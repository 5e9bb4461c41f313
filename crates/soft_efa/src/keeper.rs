//! What a card does while its process does something else: a thread that lets requests arrive when nobody polls. A real card needs
//! no processor for that, and providers count on it: a receipt is posted, and the program goes on to other things.

use crate::flight::Sender;
use crate::locked;
use crate::request::Request;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::time::Duration;

/// How often it looks while something is on its way. A process that polls is not disturbed.
const LOOK: Duration = Duration::from_micros(200);

/// What the queue pairs of this process send.
static SENDERS: Mutex<Vec<Arc<Mutex<Sender>>>> = Mutex::new(Vec::new());
/// Whether it looks, or sleeps until it is woken.
static IS_AWAKE: AtomicBool = AtomicBool::new(false);
static WAKE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// A queue pair is there.
pub fn add(sender: Arc<Mutex<Sender>>) {
    locked(&SENDERS).push(sender);
}

/// It is about to be destroyed: when this returns, nobody looks at it any more.
pub fn remove(sender: &Arc<Mutex<Sender>>) {
    locked(&SENDERS).retain(|known| !Arc::ptr_eq(known, sender));
}

/// Posts all of these, or none: the answer is C's code. What is on its way then arrives also when nobody polls.
pub fn post(sender: &mut Sender, requests: &[Request]) -> c_int {
    let code = sender.post(requests);
    if code == 0 && sender.is_busy() {
        wake();
    }
    code
}

/// Something is on its way.
fn wake() {
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
        for sender in locked(&SENDERS).iter() {
            // Who holds it makes progress itself.
            is_busy |= sender.try_lock().map_or(true, |mut sender| sender.keep());
        }
        if is_busy {
            IS_AWAKE.store(true, Ordering::Release);
        }
    }
}
