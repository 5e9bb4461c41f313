//! Lower bound of put and quiet: the minimal round trip of a flag, with the payload and the fence of a real put.

use crate::pattern;
use crate::ring::{HostWords, Status};
use cuda_std::memory::{fence_acq_rel_sys, load_acquire_sys_u64, load_relaxed_sys_u64, store_relaxed_sys_u64};
use cuda_std::{args, kernel, thread};

/// Arguments of [`ping_pong`].
#[args]
pub struct PingPongArgs {
    /// Flags in host memory: `tail` is the flag to the CPU, the first word of `completion` the CPU's answer. Each is on
    /// its own cache lines.
    pub flags: *const HostWords,
    /// Payload of `bytes` bytes to write before each flag.
    pub payload: *mut u64,
    /// Number of bytes of the payload, a multiple of 8.
    pub bytes: u64,
    /// Number of round trips.
    pub iterations: u64,
    /// 1 for payload, fence and acquiring polls, like put and quiet. 0 selects only the flag, without ordering.
    pub ordered: u64,
    /// Time between the flag and the first poll, in nanoseconds. A poll that is issued immediately would arrive before
    /// the answer, and the next one would be issued a whole round trip later.
    pub first_poll_ns: u64,
    /// Maximum wait for one answer, in nanoseconds.
    pub timeout_ns: u64,
    /// Result: time of all round trips, in nanoseconds.
    pub elapsed_ns: *mut u64,
    /// Result: 0, or the [`Status`] with which the kernel ended early.
    pub stop: *mut u64,
}

/// Runs as one block: all threads write the payload, and one of them fences, raises the flag and waits for the answer.
///
/// # Safety
/// The pointers must be valid while the grid runs, which must be one block.
#[kernel]
pub unsafe fn ping_pong(args: PingPongArgs) {
    // SAFETY: the caller guarantees that `flags` is valid.
    let flags = unsafe { &*args.flags };
    let me = thread::thread_idx_x() as u64;
    let started = thread::global_timer_ns();
    let mut stop = 0;
    for iteration in 1..=args.iterations {
        let seed = pattern::seed(0, iteration as u32, 0);
        let mut word = me;
        while word < args.bytes / 8 {
            // SAFETY: `word` is below the payload's length.
            unsafe { args.payload.add(word as usize).write_volatile(pattern::word(seed, word)) };
            word += thread::block_dim_x() as u64;
        }
        thread::sync_threads();
        if me == 0 {
            if args.ordered != 0 {
                fence_acq_rel_sys();
            }
            store_relaxed_sys_u64(&flags.tail.0, iteration);
            let asked = thread::global_timer_ns();
            if args.first_poll_ns != 0 {
                while thread::global_timer_ns().wrapping_sub(asked) < args.first_poll_ns {
                    thread::relax();
                }
            }
            let answer = || match args.ordered {
                0 => load_relaxed_sys_u64(&flags.completion.0.0),
                _ => load_acquire_sys_u64(&flags.completion.0.0),
            };
            while answer() < iteration {
                if thread::global_timer_ns().wrapping_sub(asked) > args.timeout_ns {
                    stop = Status::DEADLINE.0;
                    break;
                }
                thread::relax();
            }
        }
        if thread::sync_threads_or(stop != 0) {
            break;
        }
    }
    if me == 0 {
        // SAFETY: the caller guarantees that both results are valid, and only this thread writes them.
        unsafe {
            *args.elapsed_ns = thread::global_timer_ns() - started;
            *args.stop = stop;
        }
    }
}
