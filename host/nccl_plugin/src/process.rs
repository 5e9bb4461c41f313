//! What every part of the plugin needs of its process: locks, the clock, a line on stderr.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whoever has panicked while it held the lock: what is behind it is whole between two statements.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds of the system's monotonic clock: one for all processes of a machine.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local to write to; this clock is there on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One line on stderr.
pub fn say(text: &str) {
    eprintln!("ginlab (nccl plugin): {text}");
}
