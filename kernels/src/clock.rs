//! Correlation of the device's clock with the CPU's: a kernel reports its clock while the CPU reads its own.

use crate::ring::{HostWords, Status};
use cuda_std::memory::{load_acquire_sys_u64, store_release_sys_u64};
use cuda_std::{args, kernel, thread};

/// Arguments of [`clock_kernel`].
#[args]
pub struct ClockArgs {
    /// Flags in host memory. The first word of `completion` is the number of the CPU's request, from 1. `tail` is the
    /// [`answer`].
    pub flags: *const HostWords,
    /// Number of requests.
    pub rounds: u64,
    /// Maximum wait for one request, in nanoseconds.
    pub timeout_ns: u64,
    /// Result: the resolution of the clock in nanoseconds.
    pub step_ns: *mut u64,
    /// Result: 0, or the [`Status`] with which the kernel ended early.
    pub stop: *mut u64,
}

/// Returns the device's time with the low bits of the request's number. (Nanoseconds since 1970 fit in 61 bits until
/// 2043.)
#[inline(always)]
pub const fn answer(round: u64, time_ns: u64) -> u64 {
    time_ns << 3 | round & 7
}

/// Returns the time in an [`answer`] to request `round`; `None` if it answers another request.
#[inline(always)]
pub const fn answered(round: u64, answer: u64) -> Option<u64> {
    if answer & 7 == round & 7 { Some(answer >> 3) } else { None }
}

/// Answers each request with the time, on one thread.
///
/// # Safety
/// The pointers must be valid while the grid runs, which must be one thread.
#[kernel]
pub unsafe fn clock_kernel(args: ClockArgs) {
    // SAFETY: the caller guarantees that `flags` is valid.
    let flags = unsafe { &*args.flags };
    let mut stop = 0;
    let began = thread::global_timer_ns();
    let mut first = began;
    while first == began {
        first = thread::global_timer_ns();
    }
    let mut second = first;
    while second == first {
        second = thread::global_timer_ns();
    }
    let mut round = 1;
    while round <= args.rounds && stop == 0 {
        let waiting = thread::global_timer_ns();
        while load_acquire_sys_u64(&flags.completion.0.0) < round {
            if thread::global_timer_ns().wrapping_sub(waiting) > args.timeout_ns {
                stop = Status::DEADLINE.0;
                break;
            }
            thread::relax();
        }
        // The clock is read after the request has been acquired, and before the answer is released.
        store_release_sys_u64(&flags.tail.0, answer(round, thread::global_timer_ns()));
        round += 1;
    }
    // SAFETY: the caller guarantees that both results are valid.
    unsafe {
        *args.step_ns = second - first;
        *args.stop = stop;
    }
}
