//! Messages of all PEs made into one value: sums.

use super::chunk::{is_of, joined, read_chunk, write_chunk};
use super::limit::Limit;
use super::report::{Call, Failure};
use super::{Context, Inbox, Scope, Sym};
use crate::ring::Status;
use cuda_std::memory::{WordPair, load_relaxed_sys_v2_u64};

/// How the messages of all PEs become one: 8 bytes at a time.
pub trait Fold {
    /// What is held between two PEs.
    type Held: Copy;

    /// Of PE 0.
    fn first(&self, bytes: u64) -> Self::Held;

    /// With the next PE's.
    fn next(&self, held: Self::Held, bytes: u64) -> Self::Held;

    /// What comes of it.
    fn last(&self, held: Self::Held) -> u64;
}

impl<S: Scope> Context<S> {
    /// What a pair holds once both its words are of this round; it was loaded before. Nothing when that does not come, which is noted.
    #[inline(always)]
    fn settled(&mut self, pair: &WordPair, mut held: (u64, u64), round: u32, (pe, bytes): (u32, u64)) -> Option<u64> {
        // Of each pair: what has come before is progress.
        let mut limit = Limit::new(self.world.timeout_ns);
        while !is_of(held, round) {
            // SAFETY: the host's word is there while the grid runs.
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

    /// Receives every other PE's message of this round, each as long as `own`, and makes one of all: 8 bytes at a time, in the order of PEs,
    /// this one with `own`. Every PE that does so comes to the same bytes. `to` may be `own`, also where `own` was what was sent: over rails
    /// nothing is stored before this PE's messages of this round are complete. On return their sources may be written again.
    ///
    /// # Errors
    /// As [`receive`](Context::receive).
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
        let (me, pes, bytes) = (self.world.me, self.world.pes, own.bytes());
        let fits = bytes <= inbox.capacity && to.bytes() >= bytes;
        self.begin(Call::Receive, me, bytes, fits)?;
        if self.world.ring_count != 0 {
            for pe in 0..pes {
                if self.heap_of(pe) == 0 {
                    self.wait_message(inbox, round, pe);
                }
            }
            // What this PE has sent may lie where the result goes.
            self.reclaim_all(inbox, round);
            self.agreed()?;
        }
        let heap = self.world.heap;
        // SAFETY: both are of this PE's heap.
        let (own, target) = unsafe { (heap.add(own.offset() as usize), heap.add(to.offset() as usize)) };
        let lanes = self.scope.size() as u64;
        let mut chunk = self.scope.rank() as u64;
        'chunks: while chunk * 8 < bytes {
            let left = bytes - chunk * 8;
            let mut held = None;
            for pe in 0..pes {
                let value = if pe == me {
                    // SAFETY: the chunk begins inside `own`, of which no more is read than it has.
                    unsafe { read_chunk(own.add(chunk as usize * 8), left) }
                } else {
                    // SAFETY: the slot is of the inbox, which the host allocated.
                    let slot = unsafe { heap.add(inbox.slot(pe, round) as usize) };
                    if self.heap_of(pe) == 0 {
                        // SAFETY: as above; the message is there, and is not written again before the next round but one.
                        unsafe { read_chunk(slot.add(chunk as usize * 8), left) }
                    } else {
                        // SAFETY: the slot has a pair for each chunk, and begins on a multiple of 16.
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
                // SAFETY: no more is written than `to` has; this thread alone has read these bytes of `own`.
                unsafe { write_chunk(target.add(chunk as usize * 8), fold.last(held), left) };
            }
            chunk += lanes;
        }
        self.agreed()
    }
}
