//! The words of an exchange: sending and receiving of a thread's chunks.

use super::{Exchange, PartAddresses};
use crate::gin::chunk::{is_of, joined, missing, read_chunk, tagged, write_chunk};
use crate::gin::limit::{LOOKS, Limit};
use crate::gin::report::{Call, Failure, note};
use crate::gin::{Scope, WorldView};
use crate::ring::Status;
use cuda_std::memory::{WordPair, fence_acq_rel_sys, load_relaxed_sys_v2_u64, store_relaxed_sys_v2_u64};

/// Reads a chunk. `WHOLE` has the meaning of [`Parts::is_whole`](super::Parts::is_whole).
///
/// # Safety
/// `from` must be valid for reads of `left` bytes, at least one, and aligned to 8 bytes if `WHOLE`.
#[inline(always)]
pub(super) unsafe fn read<const WHOLE: bool>(from: u64, left: u32) -> u64 {
    // SAFETY: the caller guarantees validity, and alignment if `WHOLE`.
    unsafe { if WHOLE { (from as *const u64).read() } else { read_chunk(from as *const u8, left as u64) } }
}

/// Writes a chunk, like [`read`].
///
/// # Safety
/// `to` must be valid for writes of `left` bytes, at least one, and aligned to 8 bytes if `WHOLE`.
#[inline(always)]
pub(super) unsafe fn write<const WHOLE: bool>(to: u64, value: u64, left: u32) {
    // SAFETY: the caller guarantees validity, and alignment if `WHOLE`.
    unsafe { if WHOLE { (to as *mut u64).write(value) } else { write_chunk(to as *mut u8, value, left as u64) } }
}

/// Returns the address of chunk `chunk` of the data at `base`.
#[inline(always)]
pub(super) fn at(base: u64, chunk: u32) -> u64 {
    base + chunk as u64 * 8
}

/// Returns the address of the words of chunk `chunk` in the message at `base`.
#[inline(always)]
fn words_at(base: u64, chunk: u32) -> u64 {
    base + chunk as u64 * 16
}

/// Returns the words of a chunk.
///
/// # Safety
/// `place` must be the address of words of an inbox, a multiple of 16.
#[inline(always)]
unsafe fn pair<'a>(place: u64) -> &'a WordPair {
    // SAFETY: the caller guarantees that words of an inbox are at `place`.
    unsafe { &*(place as *const WordPair) }
}

/// Bound of one wait.
pub(super) struct Wait {
    looks: u32,
    limit: Limit,
}

impl Wait {
    #[inline(always)]
    pub(super) fn new(timeout_ns: u64, looks: u32) -> Wait {
        Wait { looks, limit: Limit::new(timeout_ns) }
    }

    /// Records [`LOOKS`] unsuccessful polls. Fails if the wait must end. Not inlined, because it is rarely called.
    #[cold]
    #[inline(never)]
    fn ask(&mut self, world: &WorldView, pe: u32, seen: u64, round: u32) -> Result<(), Status> {
        if world.has_failed() {
            // The report already names the call that failed.
            return Err(Status::ENDED);
        }
        // SAFETY: the host keeps `abort` valid while the grid runs.
        self.limit.ask(unsafe { &*world.abort }).inspect_err(|stop| {
            note(world, *stop, Failure { call: Call::Receive, pe, detail: 0, seen, wanted: round as u64 });
        })
    }
}

impl<S: Scope> Exchange<'_, S> {
    /// Sends this thread's chunks to every PE, starting with the next one.
    ///
    /// # Safety
    /// The requirements of [`all_to_all`](Exchange::all_to_all) must hold.
    #[inline(always)]
    pub(super) unsafe fn send<const N: usize, const WHOLE: bool>(&self, round: u32, plan: &PartAddresses) {
        let (mut pe, mut inbox) = (self.me, self.next);
        for step in 1..self.pes {
            pe = if pe + 1 == self.pes { 0 } else { pe + 1 };
            if step > 1 {
                // SAFETY: `peers` has one entry per PE, and `pe` is below `pes`.
                inbox = unsafe { (*self.world.peers.add(pe as usize)).heap } + self.offset;
            }
            let source = plan.source + pe as u64 * plan.from_step as u64;
            let words = inbox + ((round & 1) * self.half) as u64;
            let mut first = self.rank;
            while first < plan.chunks {
                let mut held = [0; N];
                for (index, held) in held.iter_mut().enumerate() {
                    let chunk = first + index as u32 * self.lanes;
                    // SAFETY: the caller upholds the requirements of `all_to_all`.
                    *held = unsafe { self.given::<WHOLE>(source, chunk, plan) };
                }
                for (index, &held) in held.iter().enumerate() {
                    let chunk = first + index as u32 * self.lanes;
                    if chunk < plan.chunks {
                        // SAFETY: an inbox has words for each chunk of its capacity.
                        let pair = unsafe { pair(words_at(words, chunk)) };
                        store_relaxed_sys_v2_u64(pair, tagged(held as u32, round), tagged((held >> 32) as u32, round));
                    }
                }
                first += N as u32 * self.lanes;
            }
            if self.blocking {
                // Each thread fences its own stores.
                fence_acq_rel_sys();
            }
        }
    }

    /// Returns whether this warp has chunks left; `first` is this lane's next chunk. The result is the same for all
    /// lanes of a warp, even if the scope is a block.
    #[inline(always)]
    pub(super) fn keep_running(&self, first: u32, chunks: u32) -> bool {
        first - self.of_warp < chunks
    }

    /// Returns the address of the words of chunk `chunk` of a PE's message, or of its last chunk if there is no such
    /// chunk.
    #[inline(always)]
    pub(super) fn place(&self, words: u64, pe: u32, chunk: u32, chunks: u32) -> u64 {
        words_at(words + pe as u64 * self.sender as u64, chunk.min(chunks - 1))
    }

    /// Returns a chunk of this PE's source, or 0 if there is no such chunk.
    ///
    /// # Safety
    /// The requirements of [`all_to_all`](Exchange::all_to_all) must hold.
    #[inline(always)]
    pub(super) unsafe fn given<const WHOLE: bool>(&self, source: u64, chunk: u32, plan: &PartAddresses) -> u64 {
        // SAFETY: the caller upholds the requirements of `all_to_all`, and no byte after the part's end is read.
        if chunk < plan.chunks { unsafe { read::<WHOLE>(at(source, chunk), plan.bytes - chunk * 8) } } else { 0 }
    }

    /// Waits until the words at these places all have this round, and returns their chunks; a place of 0 yields 0. Each
    /// poll loads all of them. They arrive at about the same time, and polling them one after the other would add a
    /// round trip to memory for each.
    ///
    /// # Safety
    /// Each place must be 0 or the address of words of this PE's inbox.
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
                    // SAFETY: the caller guarantees that words of the inbox are at `place`.
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
