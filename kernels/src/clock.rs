//! What the device's clock says while the CPU looks at its own: for putting the stamps of both on one line.

use crate::ring::{HostWords, Status};
use cuda_std::memory::{load_acquire_sys_u64, store_release_sys_u64};
use cuda_std::{args, kernel, thread};

/// Arguments of [`clock_kernel`].
#[args]
pub struct ClockArgs {
    /// Host memory: the first word of `completion` is the CPU's question (counting from 1), `tail` the [`answer`].
    pub flags: *const HostWords,
    /// Questions.
    pub rounds: u64,
    /// Longest wait for one of them.
    pub timeout_ns: u64,
    /// Result: the step of the clock in nanoseconds.
    pub step_ns: *mut u64,
    /// Result: 0, or why it ended early ([`Status`]).
    pub stop: *mut u64,
}

/// The device's time (nanoseconds since 1970 fit into 61 bits until 2043) with the question's number beside it.
#[inline(always)]
pub const fn answer(round: u64, time_ns: u64) -> u64 {
    time_ns << 3 | round & 7
}

/// The time in an [`answer`] to this question; nothing when it answers another one.
#[inline(always)]
pub const fn answered(round: u64, answer: u64) -> Option<u64> {
    if answer & 7 == round & 7 { Some(answer >> 3) } else { None }
}

/// One thread: answers each question with the time.
///
/// # Safety
/// The pointers are valid for the whole grid's run, and the grid is one thread.
#[kernel]
pub unsafe fn clock_kernel(args: ClockArgs) {
    // SAFETY: contract of the kernel.
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
        // Between the question, which has been acquired, and the answer, which is released.
        store_release_sys_u64(&flags.tail.0, answer(round, thread::global_timer_ns()));
        round += 1;
    }
    // SAFETY: contract of the kernel.
    unsafe {
        *args.step_ns = second - first;
        *args.stop = stop;
    }
}
