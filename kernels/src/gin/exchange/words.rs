//! The words of an exchange: how a thread sends its chunks, and takes those that have come.

use super::{Exchange, Plan};
use crate::gin::chunk::{is_of, joined, missing, read_chunk, tagged, write_chunk};
use crate::gin::limit::{LOOKS, Limit};
use crate::gin::report::{Call, Failure, note};
use crate::gin::{Scope, World};
use crate::ring::Status;
use cuda_std::memory::{WordPair, fence_acq_rel_sys, load_relaxed_sys_v2_u64, store_relaxed_sys_v2_u64};

/// A chunk; `WHOLE` as [`Parts::is_whole`].
///
/// # Safety
/// `left` bytes can be read, at least one.
#[inline(always)]
pub(super) unsafe fn read<const WHOLE: bool>(from: u64, left: u32) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { if WHOLE { (from as *const u64).read() } else { read_chunk(from as *const u8, left as u64) } }
}

/// As [`read`].
///
/// # Safety
/// `left` bytes can be written, at least one.
#[inline(always)]
pub(super) unsafe fn write<const WHOLE: bool>(to: u64, value: u64, left: u32) {
    // SAFETY: the caller's contract.
    unsafe { if WHOLE { (to as *mut u64).write(value) } else { write_chunk(to as *mut u8, value, left as u64) } }
}

/// Where chunk number `chunk` lies behind `base`.
#[inline(always)]
pub(super) fn at(base: u64, chunk: u32) -> u64 {
    base + chunk as u64 * 8
}

/// Where the words of chunk number `chunk` lie behind `base`.
#[inline(always)]
fn words_at(base: u64, chunk: u32) -> u64 {
    base + chunk as u64 * 16
}

/// The words of a chunk.
///
/// # Safety
/// An inbox has words at this place, a multiple of 16.
#[inline(always)]
unsafe fn pair<'a>(place: u64) -> &'a WordPair {
    // SAFETY: the caller's contract.
    unsafe { &*(place as *const WordPair) }
}

/// What ends a wait.
pub(super) struct Wait {
    looks: u32,
    limit: Limit,
}

impl Wait {
    #[inline(always)]
    pub(super) fn new(timeout_ns: u64) -> Wait {
        Wait { looks: 0, limit: Limit::new(timeout_ns) }
    }

    /// So many looks were in vain: whether to go on. Out of line, since it seldom comes to that.
    #[cold]
    #[inline(never)]
    fn ask(&mut self, world: &World, pe: u32, seen: u64, round: u32) -> Result<(), Status> {
        // SAFETY: the host's word is there while the grid runs.
        self.limit.ask(unsafe { &*world.abort }).inspect_err(|stop| {
            note(world, *stop, Failure { call: Call::Receive, pe, detail: 0, seen, wanted: round as u64 });
        })
    }
}

impl<S: Scope> Exchange<'_, S> {
    /// To every PE, the next one first.
    ///
    /// # Safety
    /// As for [`all_to_all`](Exchange::all_to_all).
    #[inline(always)]
    pub(super) unsafe fn send<const N: usize, const WHOLE: bool>(&self, round: u32, plan: &Plan) {
        let (mut pe, mut inbox) = (self.me, self.next);
        for step in 1..self.pes {
            pe = if pe + 1 == self.pes { 0 } else { pe + 1 };
            if step > 1 {
                // SAFETY: one entry for each PE.
                inbox = unsafe { (*self.world.peers.add(pe as usize)).heap } + self.offset;
            }
            let source = plan.source + pe as u64 * plan.from_step as u64;
            let words = inbox + ((round & 1) * self.half) as u64;
            let mut first = self.rank;
            while first < plan.chunks {
                let mut held = [0; N];
                for (index, held) in held.iter_mut().enumerate() {
                    let chunk = first + index as u32 * self.lanes;
                    // SAFETY: the caller's contract.
                    *held = unsafe { self.given::<WHOLE>(source, chunk, plan) };
                }
                for (index, &held) in held.iter().enumerate() {
                    let chunk = first + index as u32 * self.lanes;
                    if chunk < plan.chunks {
                        // SAFETY: an inbox has words for each chunk of the capacity.
                        let pair = unsafe { pair(words_at(words, chunk)) };
                        store_relaxed_sys_v2_u64(pair, tagged(held as u32, round), tagged((held >> 32) as u32, round));
                    }
                }
                first += N as u32 * self.lanes;
            }
            if self.blocking {
                // Each thread for its own stores.
                fence_acq_rel_sys();
            }
        }
    }

    /// Whether this warp has chunks left, of which this lane's next one is `first`: all its lanes go on together, those of a block too.
    #[inline(always)]
    pub(super) fn goes_on(&self, first: u32, chunks: u32) -> bool {
        first - self.of_warp < chunks
    }

    /// Where the words of a chunk of a PE's message lie, or of its last chunk where it has no such one.
    #[inline(always)]
    pub(super) fn place(&self, words: u64, pe: u32, chunk: u32, chunks: u32) -> u64 {
        words_at(words + pe as u64 * self.sender as u64, chunk.min(chunks - 1))
    }

    /// A chunk of what this PE gives, or 0 where there is no such one.
    ///
    /// # Safety
    /// As for [`all_to_all`](Exchange::all_to_all).
    #[inline(always)]
    pub(super) unsafe fn given<const WHOLE: bool>(&self, source: u64, chunk: u32, plan: &Plan) -> u64 {
        // SAFETY: the caller's contract; no more is read than there is.
        if chunk < plan.chunks { unsafe { read::<WHOLE>(at(source, chunk), plan.bytes - chunk * 8) } } else { 0 }
    }

    /// What the words at these places say once they are all of this round; 0: no place. Each look is at all of them: they come at about one
    /// time, and looks one after the other would each be a trip to memory behind the first.
    ///
    /// # Safety
    /// The places are of this PE's inbox.
    #[inline(always)]
    pub(super) unsafe fn settled<const N: usize>(
        &self,
        places: [u64; N],
        round: u32,
        wait: &mut Wait,
    ) -> Result<[u64; N], Status> {
        let mut found = [(0, 0); N];
        loop {
            for (found, &place) in found.iter_mut().zip(&places) {
                *found = match place {
                    0 => (tagged(0, round), tagged(0, round)),
                    // SAFETY: the caller's contract.
                    _ => load_relaxed_sys_v2_u64(unsafe { pair(place) }),
                };
            }
            let Some(seen) = missing(&found, round) else { return Ok(found.map(joined)) };
            wait.looks += 1;
            if wait.looks.is_multiple_of(LOOKS) {
                let late = places.iter().zip(&found).find(|(_, pair)| !is_of(**pair, round));
                let pe = late.map_or(0, |(place, _)| (place - self.here) / self.sender as u64);
                wait.ask(self.world, pe as u32, seen, round)?;
            }
            cuda_std::thread::relax();
        }
    }
}
