//! The floor under every put + quiet: the bare round trip of a flag, with the payload and the fence of a real put.

use crate::pattern;
use crate::ring::{HostWords, Status};
use cuda_std::memory::{fence_acq_rel_sys, load_acquire_sys_u64, load_relaxed_sys_u64, store_relaxed_sys_u64};
use cuda_std::{args, kernel, thread};

/// Arguments of [`ping_pong`].
#[args]
pub struct PingPongArgs {
    /// Host memory: `tail` is the flag to the CPU, the first word of `completion` its answer. Each on lines of its own.
    pub flags: *const HostWords,
    /// Payload to write before each flag, `bytes` long.
    pub payload: *mut u64,
    /// Bytes of payload, a multiple of 8.
    pub bytes: u64,
    /// Round trips.
    pub iterations: u64,
    /// 1: payload, fence and acquiring polls, as a put and quiet have them. 0: the bare flag, nothing ordered.
    pub ordered: u64,
    /// How long after the flag the first poll goes out. A poll that leaves at once arrives before the answer is there, and
    /// the next one leaves a whole round trip later.
    pub first_poll_ns: u64,
    /// Longest wait for one answer.
    pub timeout_ns: u64,
    /// Result: nanoseconds for all round trips.
    pub elapsed_ns: *mut u64,
    /// Result: 0, or why it ended early ([`Status`]).
    pub stop: *mut u64,
}

/// One block: all threads write the payload, one fences, raises the flag and waits for the answer.
///
/// # Safety
/// The pointers are valid for the whole grid's run, and the grid is one block.
#[kernel]
pub unsafe fn ping_pong(args: PingPongArgs) {
    // SAFETY: contract of the kernel.
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
        // SAFETY: contract of the kernel; only this thread writes the results.
        unsafe {
            *args.elapsed_ns = thread::global_timer_ns() - started;
            *args.stop = stop;
        }
    }
}
