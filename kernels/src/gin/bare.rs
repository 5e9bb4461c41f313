//! Messages without bytes: a single pair of words that carries only the round.
//!
//! A message of any length proves its round. Two slots suffice because the sender of round `r + 2` has received round
//! `r + 1`, whose sender had received round `r`. If an empty message sent nothing, that chain would break. The thread
//! that handles the first chunk of other messages also handles these words, so that every word has only one writer.

use super::chunk::{is_of, tagged};
use super::limit::{Control, Limit};
use super::report::{Call, Failure, note};
use super::{Context, Scope, WorldView};
use crate::ring::Status;
use cuda_std::call::by_address;
use cuda_std::memory::{WordPair, load_relaxed_sys_v2_u64, store_relaxed_sys_v2_u64};

/// Stores the round in the first words of a slot.
///
/// # Safety
/// A slot of an inbox must be mapped at `slot`.
#[inline(always)]
unsafe fn store(slot: u64, round: u32) {
    // SAFETY: the slot starts at a multiple of 16 and has space for a pair: the capacity of an inbox is at least 8
    // bytes.
    store_relaxed_sys_v2_u64(unsafe { &*(slot as *const WordPair) }, tagged(0, round), tagged(0, round));
}

/// Waits for the round in the first words of a slot. Returns 0 or the status that ended the wait, and the round found
/// in the words. Not inlined: it is rarely called.
///
/// # Safety
/// A slot of this PE's inbox must be at `slot`, and `control` must be valid.
#[inline(never)]
unsafe fn wait(slot: u64, round: u32, timeout_ns: u64, control: *const Control) -> (u64, u64) {
    // SAFETY: the slot starts at a multiple of 16 and has space for a pair: the capacity of an inbox is at least 8
    // bytes.
    let pair = unsafe { &*(slot as *const WordPair) };
    let mut limit = Limit::new(timeout_ns);
    loop {
        let found = load_relaxed_sys_v2_u64(pair);
        if is_of(found, round) {
            return (0, 0);
        }
        // SAFETY: the caller guarantees that `control` is valid.
        if let Err(stop) = limit.look(unsafe { &*control }) {
            return (stop.0, found.0 >> 32);
        }
        cuda_std::thread::relax();
    }
}

impl<S: Scope> Context<S> {
    /// Stores a message without bytes, once for the scope.
    ///
    /// # Safety
    /// A slot of an inbox must be mapped at `slot`.
    #[inline(always)]
    pub(super) unsafe fn store_bare(&self, slot: u64, round: u32) {
        if self.scope.leads() {
            // SAFETY: the caller guarantees that the slot is valid.
            unsafe { store(slot, round) };
        }
    }

    /// Waits for PE `pe`'s message without bytes, on one thread. A failure is kept until the scope agrees.
    ///
    /// # Safety
    /// This PE's slot for that PE's messages of this round must be at `slot`.
    #[inline(always)]
    pub(super) unsafe fn take_bare(&mut self, slot: u64, round: u32, pe: u32) {
        if !self.scope.leads() || self.failed() {
            return;
        }
        let (timeout_ns, control) = (self.world.timeout_ns, self.world.abort);
        // SAFETY: the caller guarantees that the slot is valid; the host's word is valid while the grid runs.
        let (stop, seen) = unsafe { by_address(wait as unsafe fn(_, _, _, _) -> _)(slot, round, timeout_ns, control) };
        if stop != 0 {
            self.fail(Status(stop), Failure { call: Call::Receive, pe, detail: 0, seen, wanted: round as u64 });
        }
    }
}

/// Performs an exchange without bytes: one thread sends the round to every PE and waits for the round of every PE.
/// Returns 0, or the status that ended a wait, which is recorded in the report.
///
/// `here` is the address of the slot for PE 0's messages of this round. `sent` is the offset of this PE's slot in every
/// heap. `sender` is the distance in bytes between the slots of consecutive PEs.
///
/// # Safety
/// All heaps must be mapped, and the slots must be of an inbox that all PEs have.
#[cold]
#[inline(never)]
pub(super) unsafe fn exchange(world: &WorldView, (here, sent): (u64, u64), sender: u32, round: u32) -> u64 {
    if world.has_failed() {
        // The report already names the call that failed.
        return Status::ENDED.0;
    }
    let others = || (0..world.pes).filter(|pe| *pe != world.me);
    for pe in others() {
        // SAFETY: `peers` has one entry per PE. The caller guarantees that all heaps are mapped and have the slot.
        unsafe { store((*world.peers.add(pe as usize)).heap + sent, round) };
    }
    for pe in others() {
        // SAFETY: the caller guarantees that the slot is valid; the host's word is valid while the grid runs.
        let (stop, seen) = unsafe { wait(here + pe as u64 * sender as u64, round, world.timeout_ns, world.abort) };
        if stop != 0 {
            let failure = Failure { call: Call::Receive, pe, detail: 0, seen, wanted: round as u64 };
            note(world, Status(stop), failure);
            return stop;
        }
    }
    0
}
