//! What the first call that failed was doing, for the host to say.

use super::World;
use crate::ring::Status;
use cuda_std::call::by_address;
use cuda_std::memory::{Word, compare_exchange_relaxed_gpu_u64, store_relaxed_sys_u64};
use cuda_std::thread;

/// The calls of the API, as a failure names them: to the host each is a text, and has a number.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "nvptx64"), derive(strum::FromRepr, strum::IntoStaticStr))]
#[cfg_attr(not(target_arch = "nvptx64"), strum(serialize_all = "snake_case"))]
pub enum Call {
    /// `put`, `put_nbi`.
    Put = 1,
    /// `put_signal`, `put_signal_nbi`.
    PutSignal = 2,
    /// `get`, `get_nbi`.
    Get = 3,
    /// `p`.
    P = 4,
    /// `g`.
    G = 5,
    /// `signal_op`, `signal_set`.
    #[cfg_attr(not(target_arch = "nvptx64"), strum(serialize = "signal_op"))]
    Signal = 6,
    /// `signal_wait_until`.
    #[cfg_attr(not(target_arch = "nvptx64"), strum(serialize = "signal_wait_until"))]
    Wait = 7,
    /// `quiet`.
    Quiet = 8,
    /// `fence`.
    Fence = 9,
    /// `barrier_all`, `barrier`.
    Barrier = 10,
    /// Atomic operations.
    #[cfg_attr(not(target_arch = "nvptx64"), strum(serialize = "an atomic operation"))]
    Atomic = 11,
    /// `send`.
    Send = 12,
    /// `receive`.
    Receive = 13,
    /// A program's own wait for tagged words ([`Patience`](super::Patience)).
    #[cfg_attr(not(target_arch = "nvptx64"), strum(serialize = "a wait for words"))]
    Words = 14,
    /// `put_round_nbi`.
    PutRound = 15,
    /// `wait_round`.
    WaitRound = 16,
    /// `reclaim`, `reclaim_round`.
    Reclaim = 17,
}

/// A PE that no failure names.
pub const NO_PE: u32 = u32::MAX;

/// The first failure of a launch. All zero: none.
#[repr(C)]
#[derive(Debug)]
pub struct Report {
    /// The [`Status`]; taken by the first that fails.
    pub stop: Word,
    /// The [`Call`].
    pub call: Word,
    /// The PE plus 1; 0 where the call has none.
    pub pe: Word,
    /// Bytes of a transfer; the number of a signal that was waited for.
    pub detail: Word,
    /// What a wait had seen of its signal.
    pub seen: Word,
    /// What it wanted.
    pub wanted: Word,
    /// Block of the grid.
    pub block: Word,
    /// Thread of the block.
    pub thread: Word,
}

/// A failure as a call describes it.
#[derive(Clone, Copy)]
pub(super) struct Failure {
    pub call: Call,
    pub pe: u32,
    pub detail: u64,
    pub seen: u64,
    pub wanted: u64,
}

impl Failure {
    #[inline(always)]
    pub fn of(call: Call, pe: u32, detail: u64) -> Failure {
        Failure { call, pe, detail, seen: 0, wanted: 0 }
    }
}

/// Notes a failure, unless there has been one.
// By the parts that it needs: a context's world behind a pointer would take the whole context to local memory.
#[inline(always)]
pub(super) fn note(world: &World, stop: Status, failure: Failure) {
    let Failure { call, pe, detail, seen, wanted } = failure;
    by_address(keep as fn(_, _, _, _, _, _, _))(world.report, stop.0, call as u64, pe, detail, seen, wanted);
}

/// Out of line: it is seldom, and takes no registers from the calls.
#[inline(never)]
fn keep(report: *const Report, stop: u64, call: u64, pe: u32, detail: u64, seen: u64, wanted: u64) {
    // SAFETY: contract of the launch: the report is there while the grid runs.
    let report = unsafe { &*report };
    if compare_exchange_relaxed_gpu_u64(&report.stop, 0, stop) != 0 {
        return;
    }
    // Read by the host once the grid has ended.
    let pe = if pe == NO_PE { 0 } else { pe as u64 + 1 };
    store_relaxed_sys_u64(&report.call, call);
    store_relaxed_sys_u64(&report.pe, pe);
    store_relaxed_sys_u64(&report.detail, detail);
    store_relaxed_sys_u64(&report.seen, seen);
    store_relaxed_sys_u64(&report.wanted, wanted);
    store_relaxed_sys_u64(&report.block, thread::block_idx_x() as u64);
    store_relaxed_sys_u64(&report.thread, thread::thread_idx_x() as u64);
}
