//! Background progress: a thread that delivers requests when no thread polls. A real NIC needs no CPU for delivery, and
//! providers rely on this: they post a receipt and return to the program.

use crate::flight::SendSide;
use crate::locked;
use crate::request::PostedRequest;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once, PoisonError};
use std::time::Duration;

/// Polling interval while requests are in flight. Requests of a process that polls are left to it.
const LOOK: Duration = Duration::from_micros(200);

/// Send sides of this process's queue pairs.
static SENDERS: Mutex<Vec<Arc<Mutex<SendSide>>>> = Mutex::new(Vec::new());
/// Whether the thread polls. Otherwise it sleeps until it is woken.
static IS_AWAKE: AtomicBool = AtomicBool::new(false);
static WAKE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// Adds the send side of a new queue pair.
pub fn add(sender: Arc<Mutex<SendSide>>) {
    locked(&SENDERS).push(sender);
}

/// Removes a send side before it is destroyed. The thread does not access it after this returns.
pub fn remove(sender: &Arc<Mutex<SendSide>>) {
    locked(&SENDERS).retain(|known| !Arc::ptr_eq(known, sender));
}

/// Posts all of these requests, or none. Returns C's error code. Wakes the background thread, so that the requests
/// arrive even if the program does not poll.
pub fn post(sender: &mut SendSide, requests: &[PostedRequest]) -> c_int {
    let code = sender.post(requests);
    if code == 0 && sender.is_busy() {
        wake();
    }
    code
}

/// Wakes the background thread because a request is in flight.
fn wake() {
    static STARTED: Once = Once::new();
    if IS_AWAKE.swap(true, Ordering::AcqRel) {
        return;
    }
    STARTED.call_once(|| {
        let started = std::thread::Builder::new().name("soft-efa".to_owned()).spawn(keep);
        if let Err(error) = started {
            eprintln!("soft_efa: cannot start a thread: {error}; requests arrive only while their process polls");
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
        // Precedes the poll, so that a request posted after it wakes this thread again.
        IS_AWAKE.store(false, Ordering::Release);
        let mut is_busy = false;
        for sender in locked(&SENDERS).iter() {
            // A thread that holds the lock makes progress itself.
            is_busy |= sender.try_lock().map_or(true, |mut sender| sender.keep());
        }
        if is_busy {
            IS_AWAKE.store(true, Ordering::Release);
        }
    }
}
