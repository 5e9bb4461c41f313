//! The report: a description of the first failed call, for the host.

use super::WorldView;
use crate::ring::Status;
use cuda_std::call::by_address;
use cuda_std::memory::{Word, compare_exchange_relaxed_gpu_u64, store_relaxed_sys_u64};
use cuda_std::thread;

/// The calls of the API, as recorded in a failure. The host has a text for each.
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
    /// A kernel's own wait for tagged words ([`WaitBudget`](super::WaitBudget)).
    #[cfg_attr(not(target_arch = "nvptx64"), strum(serialize = "a wait for words"))]
    Words = 14,
    /// `put_round_nbi`.
    PutRound = 15,
    /// `wait_round`.
    WaitRound = 16,
    /// `reclaim`, `reclaim_round`.
    Reclaim = 17,
    /// [`Grid::sync`](super::Grid::sync).
    #[cfg_attr(not(target_arch = "nvptx64"), strum(serialize = "grid.sync"))]
    GridSync = 18,
}

/// Stands for "no PE" in a failure.
pub const NO_PE: u32 = u32::MAX;

/// The first failure of a launch. All words are zero if there is none.
#[repr(C)]
#[derive(Debug)]
pub struct FailureReport {
    /// The [`Status`]. The thread that changes it from 0 stores the other words.
    pub stop: Word,
    /// The [`Call`].
    pub call: Word,
    /// Number of the PE plus 1; 0 if the call has none.
    pub pe: Word,
    /// Number of bytes of a transfer, or number of the signal that was waited for.
    pub detail: Word,
    /// Value of the signal that a wait had observed.
    pub seen: Word,
    /// Value that the wait required.
    pub wanted: Word,
    /// Index of the block in the grid.
    pub block: Word,
    /// Index of the thread in the block.
    pub thread: Word,
}

/// Description of a failure by the failing call.
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

/// Records a failure, unless one has already been recorded. Passes only the parts that `keep` needs: a pointer to a
/// context's world would force the whole context into local memory.
#[inline(always)]
pub(super) fn note(world: &WorldView, stop: Status, failure: Failure) {
    let Failure { call, pe, detail, seen, wanted } = failure;
    by_address(keep as fn(_, _, _, _, _, _, _))(world.report, stop.0, call as u64, pe, detail, seen, wanted);
}

/// Stores the failure. Not inlined: it is rarely called, and its registers must not add to those of the calls.
#[inline(never)]
fn keep(report: *const FailureReport, stop: u64, call: u64, pe: u32, detail: u64, seen: u64, wanted: u64) {
    // SAFETY: the host keeps the report valid while the grid runs.
    let report = unsafe { &*report };
    if compare_exchange_relaxed_gpu_u64(&report.stop, 0, stop) != 0 {
        return;
    }
    // The host reads these words after the grid has ended.
    let pe = if pe == NO_PE { 0 } else { pe as u64 + 1 };
    store_relaxed_sys_u64(&report.call, call);
    store_relaxed_sys_u64(&report.pe, pe);
    store_relaxed_sys_u64(&report.detail, detail);
    store_relaxed_sys_u64(&report.seen, seen);
    store_relaxed_sys_u64(&report.wanted, wanted);
    store_relaxed_sys_u64(&report.block, thread::block_idx_x() as u64);
    store_relaxed_sys_u64(&report.thread, thread::thread_idx_x() as u64);
}
