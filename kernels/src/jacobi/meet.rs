//! Kernel that runs between iterations: the barrier of all PEs, and the norm.

use super::{NORM_NEVER, NORM_THREAD_ATOMIC};
use crate::gin::{Block, Inbox, Program, Sym};
use crate::ring::Status;
use cuda_std::memory::{Word, fence_acq_rel_sys, load_relaxed_gpu_u64, store_release_sys_u64};
use cuda_std::{args, kernel, thread};

/// Arguments of [`jacobi_meet`].
#[args]
pub struct MeetArgs {
    /// 1 for a barrier of all PEs, after which all transfers of their preceding kernels have arrived.
    pub barrier: u32,
    /// Method that computed the sums; [`NORM_NEVER`] if there are none.
    pub norm: u32,
    /// This PE's sums of squares, one per iteration, in device memory.
    pub sums: *const Word,
    /// Number of iterations.
    pub count: u32,
    /// Number of the exchange, from 1; the same on all PEs.
    pub round: u32,
    /// Inbox with space for at least `count` numbers of 8 bytes.
    pub inbox: Inbox,
    /// Send buffer, with space for as many numbers as the inbox.
    pub own: Sym<f64>,
    /// Receive buffer, with space for as many numbers per PE as the inbox.
    pub all: Sym<f64>,
    /// The sums over all PEs, in host memory.
    pub totals: *mut f64,
    /// Word in host memory, set to `round` when the sums have been stored.
    pub done: *const Word,
}

/// Runs as one block: performs the barrier, computes the sums, and notifies the host. After a failure of this or a
/// preceding launch, the host is not notified.
///
/// # Safety
/// The arguments must belong to the world, and `totals` must have space for `count` numbers. All PEs must launch the
/// kernel with the same round.
#[kernel(resident)]
pub unsafe fn jacobi_meet(program: Program<MeetArgs>) {
    // The failure is recorded in the world's report.
    // SAFETY: the arguments are valid (contract of the kernel).
    let _ = unsafe { meet(&program) };
}

#[inline(always)]
unsafe fn meet(program: &Program<MeetArgs>) -> Result<(), Status> {
    let Program { world, args } = program;
    if thread::sync_threads_or(world.has_failed()) {
        return Err(Status::ENDED);
    }
    let mut line = world.context(Block);
    if args.barrier != 0 {
        line.barrier_all()?;
    }
    if args.norm == NORM_NEVER {
        return Ok(());
    }
    let (index, threads) = (thread::thread_idx_x(), thread::block_dim_x());
    let (own, all) = (world.local(args.own), world.local(args.all));
    let mut at = index;
    while at < args.count {
        // SAFETY: `at` is below `count`.
        unsafe {
            let bits = load_relaxed_gpu_u64(&*args.sums.add(at as usize));
            let narrow = args.norm == NORM_THREAD_ATOMIC;
            own.add(at as usize).write(if narrow { f32::from_bits(bits as u32) as f64 } else { f64::from_bits(bits) });
        }
        at += threads;
    }
    let (count, pes) = (args.count as u64, world.n_pes());
    let room = args.own.len();
    for step in 1..pes {
        line.send(args.inbox, args.round, args.own.slice(0, count), (world.my_pe() + step) % pes)?;
    }
    for step in 1..pes {
        let pe = (world.my_pe() + pes - step) % pes;
        line.receive(args.inbox, args.round, args.all.slice(pe as u64 * room, count), pe)?;
    }
    // Waits here, because the next round may overwrite the send buffer.
    line.quiet()?;
    let mut at = index;
    while at < args.count {
        // SAFETY: `at` is below `count`, and the barriers of the preceding calls order the stores of this PE and of all
        // senders before these loads.
        unsafe {
            let mut total = own.add(at as usize).read();
            for pe in 0..pes as usize {
                if pe != world.my_pe() as usize {
                    total += all.add(pe * room as usize + at as usize).read();
                }
            }
            args.totals.add(at as usize).write(total);
        }
        at += threads;
    }
    // All threads' totals precede the barrier. A single fence covers them before the host is notified.
    thread::sync_threads();
    if index == 0 {
        fence_acq_rel_sys();
        // SAFETY: `done` is valid (contract of the kernel).
        store_release_sys_u64(unsafe { &*args.done }, args.round as u64);
    }
    Ok(())
}
