//! Reductions: combination of messages of all PEs into one value, for example sums.

use super::chunk::{is_of, joined, read_chunk, write_chunk};
use super::limit::Limit;
use super::report::{Call, Failure};
use super::{Context, Inbox, Scope, Sym};
use crate::ring::Status;
use cuda_std::memory::{WordPair, load_relaxed_sys_v2_u64};

/// Operation that combines the messages of all PEs, 8 bytes at a time.
pub trait Fold {
    /// Intermediate result between two PEs.
    type Held: Copy;

    /// Starts with the bytes of PE 0.
    fn first(&self, bytes: u64) -> Self::Held;

    /// Adds the bytes of the next PE.
    fn next(&self, held: Self::Held, bytes: u64) -> Self::Held;

    /// Returns the final bytes.
    fn last(&self, held: Self::Held) -> u64;
}

impl<S: Scope> Context<S> {
    /// Waits until both words of a pair have this round, and returns the chunk; `held` is the pair's previous value.
    /// Returns `None`, and records the failure, if they do not arrive.
    #[inline(always)]
    fn settled(&mut self, pair: &WordPair, mut held: (u64, u64), round: u32, (pe, bytes): (u32, u64)) -> Option<u64> {
        // Each pair has a new limit: pairs that arrived before count as progress.
        let mut limit = Limit::new(self.world.timeout_ns);
        while !is_of(held, round) {
            // SAFETY: the host keeps `abort` valid while the grid runs.
            if let Err(stop) = limit.look(unsafe { &*self.world.abort }) {
                let failure =
                    Failure { call: Call::Receive, pe, detail: bytes, seen: held.0 >> 32, wanted: round as u64 };
                self.fail(stop, failure);
                return None;
            }
            cuda_std::thread::relax();
            held = load_relaxed_sys_v2_u64(pair);
        }
        Some(joined(held))
    }

    /// Receives every other PE's message of this round, each as long as `own`, and combines all of them, with `own` for
    /// this PE, 8 bytes at a time and in the order of PEs. Every PE computes the same bytes. `to` may be `own`, even if
    /// `own` was also sent: over rails no result is stored before this PE's messages of this round are complete. On
    /// return the sources of these messages may be overwritten.
    ///
    /// # Errors
    /// Returns the same errors as [`receive`](Context::receive).
    #[inline(always)]
    #[track_caller]
    pub fn receive_folded(
        &mut self,
        inbox: Inbox,
        round: u32,
        to: Sym<u8>,
        own: Sym<u8>,
        fold: &impl Fold,
    ) -> Result<(), Status> {
        self.flush();
        let (me, pes, bytes) = (self.world.me, self.world.pes, own.bytes());
        let fits = bytes <= inbox.capacity && to.bytes() >= bytes;
        self.begin(Call::Receive, me, bytes, fits)?;
        if self.world.outlet_count != 0 {
            for pe in 0..pes {
                if self.heap_of(pe) == 0 {
                    self.wait_message(inbox, round, pe);
                }
            }
            // The result may overwrite what this PE has sent.
            self.reclaim_all(inbox, round);
            self.agreed()?;
        }
        let heap = self.world.heap;
        // SAFETY: both are in this PE's heap.
        let (own, target) = unsafe { (heap.add(own.offset() as usize), heap.add(to.offset() as usize)) };
        let lanes = self.scope.size() as u64;
        let mut chunk = self.scope.rank() as u64;
        'chunks: while chunk * 8 < bytes {
            let left = bytes - chunk * 8;
            let mut held = None;
            for pe in 0..pes {
                let value = if pe == me {
                    // SAFETY: the chunk starts inside `own`, and no byte after its end is read.
                    unsafe { read_chunk(own.add(chunk as usize * 8), left) }
                } else {
                    // SAFETY: the slot is in the inbox, which the host allocated.
                    let slot = unsafe { heap.add(inbox.slot(pe, round) as usize) };
                    if self.heap_of(pe) == 0 {
                        // SAFETY: the slot is in the inbox. The message has arrived, and is not overwritten before
                        // round `round + 2`.
                        unsafe { read_chunk(slot.add(chunk as usize * 8), left) }
                    } else {
                        // SAFETY: the slot has one pair per chunk, and starts at a multiple of 16.
                        let pair = unsafe { &*slot.cast::<WordPair>().add(chunk as usize) };
                        let found = load_relaxed_sys_v2_u64(pair);
                        match self.settled(pair, found, round, (pe, bytes)) {
                            Some(value) => value,
                            None => break 'chunks,
                        }
                    }
                };
                held = Some(match held {
                    None => fold.first(value),
                    Some(held) => fold.next(held, value),
                });
            }
            if let Some(held) = held {
                // SAFETY: no byte after the end of `to` is written; only this thread has read these bytes of `own`.
                unsafe { write_chunk(target.add(chunk as usize * 8), fold.last(held), left) };
            }
            chunk += lanes;
        }
        if bytes == 0 {
            for pe in 0..pes {
                if pe != me && self.heap_of(pe) != 0 {
                    let slot = heap as u64 + inbox.slot(pe, round);
                    // SAFETY: `slot` is this PE's slot for messages of PE `pe`, in the inbox that the host allocated.
                    unsafe { self.take_bare(slot, round, pe) };
                }
            }
        }
        self.agreed()
    }
}
