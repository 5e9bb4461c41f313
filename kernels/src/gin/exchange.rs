//! Exchanges: every PE sends to every PE and receives from every PE in a single one-way transfer, if all heaps are
//! mapped.
//!
//! The words have the format of [messages](super::Inbox). Exchanges reduce the work around the transfer, which takes as
//! long as the transfer itself in a kernel that is launched for few bytes:
//!
//! - No [`Context`](super::Context) is used.
//! - A thread's parameters are computed once, in few steps of 32 bits ([`Exchange`], [`PartAddresses`]). A kernel can
//!   do this before the preceding grid has ended.
//! - The loads of the data to send do not wait for the number of the round.
//!
//! A warp issues an instruction about every 5 cycles, so two hundred more instructions would take half a microsecond.
//!
//! **Order of accesses.** A thread sends the chunks of 8 bytes whose indices are assigned to it. It takes the chunks
//! with the same indices from every PE. The chunk of round `r + 2` overwrites that of round `r`. The thread that sends
//! it has received the chunk of round `r + 1` from this PE. The thread that sent chunk `r + 1` had already received the
//! chunk of round `r`. The chunks need no barrier between rounds if the scopes of all PEs have the same size.
//!
//! There is a barrier at the end of each exchange, for threads that read the received data, and for lanes without a
//! chunk of their own. Such a lane polls another lane's chunk. Before the barrier that other lane sends nothing of the
//! next round, so the polled chunk is not overwritten.

mod words;

use super::fold::Fold;
use super::limit::LOOKS;
use super::{Inbox, Scope, WorldView, bare};
use crate::ring::Status;
use core::array::from_fn;
use cuda_std::vector::{fresh_u32, fresh_u64};
use cuda_std::warp;
use words::{Wait, at, read, write};

/// Number of chunks that a thread has in flight: chunks of the only other PE, or one chunk of each of several PEs.
/// Parts that are not [whole](Parts::is_whole) are expected to be short and need no larger values. (A launched kernel
/// of few bytes also waits for its instructions, so less code takes less time.)
const OF_ONE: usize = 2;
const OF_MANY: usize = 4;

/// Data that each PE sends and receives. The offsets in the heap are the same on every PE.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// Offset of the data for PE 0.
    pub from: u64,
    /// Distance in bytes between the data for consecutive PEs; 0 if all PEs receive the same data.
    pub from_step: u32,
    /// Offset at which the data from PE 0, or the single result, is stored.
    pub to: u64,
    /// Distance in bytes between the data from consecutive PEs.
    pub to_step: u32,
    /// Number of bytes from each PE to each PE.
    pub bytes: u32,
}

impl Parts {
    /// Returns whether all chunks are 8 bytes long and aligned to 8 bytes.
    #[inline(always)]
    pub fn is_whole(&self) -> bool {
        (self.from as u32 | self.from_step | self.to as u32 | self.to_step | self.bytes).is_multiple_of(8)
    }
}

/// Addresses computed from [`Parts`].
#[derive(Clone, Copy, Debug)]
pub struct PartAddresses {
    source: u64,
    from_step: u32,
    target: u64,
    to_step: u32,
    bytes: u32,
    chunks: u32,
}

/// The exchanges of one scope's threads.
#[derive(Debug)]
pub struct Exchange<'a, S> {
    world: &'a WorldView,
    scope: S,
    me: u32,
    pes: u32,
    rank: u32,
    lanes: u32,
    /// Index of this lane in its warp, or 0 for a single thread.
    of_warp: u32,
    /// Address of the inbox on this PE, followed by that of this PE's slots in the next PE's inbox.
    here: u64,
    next: u64,
    /// Distances in bytes in an inbox: between the words of consecutive senders, and between the words of even and odd
    /// rounds.
    sender: u32,
    half: u32,
    offset: u64,
    /// Initial poll count of each wait, set by [`begin`](Exchange::begin).
    looks: u32,
    /// Whether the data for one PE must have arrived before data for the next PE is sent.
    blocking: bool,
}

impl WorldView {
    /// Creates the exchanges of `scope` over `inbox`, which no other scope may use and whose capacity must be at most
    /// [`Inbox::MOST_EXCHANGED`]. All heaps must be mapped. If `blocking` is true, the data for one PE must arrive
    /// before data for the next PE is sent.
    ///
    /// # Panics
    /// Panics if the capacity is larger. (On a GPU the grid ends with an error.)
    #[inline(always)]
    pub fn exchanges<S: Scope>(&self, scope: S, inbox: Inbox, blocking: bool) -> Exchange<'_, S> {
        let next = if self.me + 1 == self.pes { 0 } else { self.me + 1 };
        assert!(inbox.capacity <= Inbox::MOST_EXCHANGED, "an inbox of 1 GiB or more for exchanges");
        let half = 2 * inbox.capacity as u32;
        let sender = Inbox::ROUNDS as u32 * half;
        let mine = inbox.offset + self.me as u64 * sender as u64;
        // SAFETY: `peers` has one entry per PE, and `next` is below `pes`.
        let heap = unsafe { (*self.peers.add(next as usize)).heap };
        Exchange {
            world: self,
            scope,
            me: self.me,
            pes: self.pes,
            rank: fresh_u32(scope.rank()),
            lanes: fresh_u32(scope.size()),
            of_warp: if S::ALONE { 0 } else { scope.rank() % warp::SIZE },
            here: fresh_u64(self.heap as u64 + inbox.offset),
            next: fresh_u64(heap + mine),
            sender,
            half,
            offset: mine,
            looks: 0,
            blocking,
        }
    }
}

impl<S: Scope> Exchange<'_, S> {
    /// Checks whether an earlier call failed. Call this function in kernels that can be part of a series of launches,
    /// after the wait for the preceding grids and before the first exchange. After a failure each wait ends at its
    /// first unsuccessful poll. Sends do not wait for the result of the check.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.looks = if self.world.has_failed() { LOOKS - 1 } else { 0 };
    }

    /// Computes the addresses for [`all_to_all`](Exchange::all_to_all) and [`folded`](Exchange::folded).
    #[inline(always)]
    pub fn plan(&self, parts: &Parts) -> PartAddresses {
        let heap = self.world.heap as u64;
        PartAddresses {
            source: fresh_u64(heap + parts.from),
            target: fresh_u64(heap + parts.to),
            from_step: parts.from_step,
            to_step: parts.to_step,
            bytes: parts.bytes,
            chunks: parts.bytes.div_ceil(8),
        }
    }

    /// Sends part `i` of PE `k`'s source to part `k` of PE `i`'s target, for all pairs of PEs. Rounds of an inbox count
    /// up from 1. Every PE must call it with the same round and the same number of bytes.
    ///
    /// `WHOLE` asserts that [`Parts::is_whole`] holds. `PAIR` asserts that there are two PEs; a kernel that supports
    /// only pairs has less code.
    ///
    /// # Safety
    /// All heaps must be mapped. The plan's parts must be inside objects of the heap that no other thread uses, and
    /// whole if `WHOLE`. `bytes` must be at most the inbox's capacity.
    ///
    /// # Errors
    /// Returns [`Status::DEADLINE`] if the data of a PE does not arrive, or the status with which the host ended the
    /// wait. All threads of the scope get the same result.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn all_to_all<const WHOLE: bool, const PAIR: bool>(
        &self,
        round: u32,
        plan: &PartAddresses,
    ) -> Result<(), Status> {
        // SAFETY: the caller upholds the same requirements.
        let done = unsafe { self.gathered::<WHOLE, PAIR>(round, plan) };
        self.ended(round, plan, done)
    }

    /// Like [`all_to_all`](Exchange::all_to_all), but combines the received parts and this PE's own part into one, in
    /// the order of PEs. Every PE that receives the same data computes the same result. The result is stored at `to`,
    /// which may overlap this PE's own part.
    ///
    /// # Safety
    /// The requirements of [`all_to_all`](Exchange::all_to_all) must hold.
    ///
    /// # Errors
    /// Returns the same errors as [`all_to_all`](Exchange::all_to_all).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn folded<const WHOLE: bool, const PAIR: bool>(
        &self,
        round: u32,
        plan: &PartAddresses,
        fold: &impl Fold,
    ) -> Result<(), Status> {
        // SAFETY: the caller upholds the same requirements.
        let done = unsafe { self.summed::<WHOLE, PAIR>(round, plan, fold) };
        self.ended(round, plan, done)
    }

    /// Makes the scope agree on the outcome. Afterwards each thread sees what the others have received.
    #[inline(always)]
    #[track_caller]
    fn ended(&self, round: u32, plan: &PartAddresses, done: Result<(), Status>) -> Result<(), Status> {
        // Without chunks no data has been sent or awaited yet.
        let done = if plan.chunks == 0 && self.rank == 0 { self.exchange_bare(round) } else { done };
        match self.scope.agree(done.err().map_or(0, |stop| stop.0)) {
            0 => Ok(()),
            stop => Err(Status(stop)),
        }
    }

    /// Exchanges only the round, without bytes, on one thread.
    #[inline(always)]
    fn exchange_bare(&self, round: u32) -> Result<(), Status> {
        let parity = (round & 1) as u64 * self.half as u64;
        let slots = (self.here + parity, self.offset + parity);
        // SAFETY: the caller of `all_to_all` or `folded` guarantees that all heaps are mapped. The inbox is at the same
        // offset of each. (Called directly: for an indirect call the compiler would copy the world to local memory.)
        match unsafe { bare::exchange(self.world, slots, self.sender, round) } {
            0 => Ok(()),
            stop => Err(Status(stop)),
        }
    }

    /// Performs this thread's share of an [`all_to_all`](Exchange::all_to_all).
    #[inline(always)]
    unsafe fn gathered<const WHOLE: bool, const PAIR: bool>(
        &self,
        round: u32,
        plan: &PartAddresses,
    ) -> Result<(), Status> {
        // SAFETY: the caller upholds the requirements of `all_to_all`.
        unsafe { self.send::<OF_ONE, WHOLE>(round, plan) };
        let (chunks, lanes) = (plan.chunks, self.lanes);
        let own = plan.source + self.me as u64 * plan.from_step as u64;
        let own_to = plan.target + self.me as u64 * plan.to_step as u64;
        if own != own_to {
            let mut chunk = self.rank;
            while chunk < chunks {
                let left = plan.bytes - chunk * 8;
                // SAFETY: the chunk is within `bytes` of source and target.
                unsafe { write::<WHOLE>(at(own_to, chunk), read::<WHOLE>(at(own, chunk), left), left) };
                // The loop is not unrolled: the transfer hides its latency.
                chunk = fresh_u32(chunk + lanes);
            }
        }
        let put = |pe: u32, chunk: u32, value: u64| {
            if chunk < chunks {
                let target = plan.target + pe as u64 * plan.to_step as u64;
                // SAFETY: no byte after the part's end is written; no other thread writes this chunk.
                unsafe { write::<WHOLE>(at(target, chunk), value, plan.bytes - chunk * 8) };
            }
        };
        let mut wait = Wait::new(self.world.timeout_ns, self.looks);
        let words = self.here + ((round & 1) * self.half) as u64;
        let mut first = self.rank;
        if PAIR {
            let other = 1 - self.me;
            while self.keep_running(first, chunks) {
                let places = from_fn(|row| self.place(words, other, first + row as u32 * lanes, chunks));
                // SAFETY: an inbox has words for each chunk of its capacity.
                let values: [u64; OF_ONE] = unsafe { self.settled(places, round, &mut wait) }?;
                for (row, &value) in values.iter().enumerate() {
                    put(other, first + row as u32 * lanes, value);
                }
                first += OF_ONE as u32 * lanes;
            }
            return Ok(());
        }
        while self.keep_running(first, chunks) {
            let (mut pe, mut left) = (self.me, self.pes - 1);
            while left > 0 {
                let begin = pe;
                let places = from_fn(|number| {
                    pe = self.before(pe);
                    if number as u32 >= left { 0 } else { self.place(words, pe, first, chunks) }
                });
                // SAFETY: an inbox has words for each chunk of its capacity.
                let values: [u64; OF_MANY] = unsafe { self.settled(places, round, &mut wait) }?;
                pe = begin;
                for (number, &value) in values.iter().enumerate() {
                    if (number as u32) < left {
                        pe = self.before(pe);
                        put(pe, first, value);
                    }
                }
                left = left.saturating_sub(OF_MANY as u32);
            }
            first += lanes;
        }
        Ok(())
    }

    /// Performs this thread's share of a [`folded`](Exchange::folded).
    #[inline(always)]
    unsafe fn summed<const WHOLE: bool, const PAIR: bool>(
        &self,
        round: u32,
        plan: &PartAddresses,
        fold: &impl Fold,
    ) -> Result<(), Status> {
        // SAFETY: the caller upholds the requirements of `all_to_all`.
        unsafe { self.send::<OF_ONE, WHOLE>(round, plan) };
        let (chunks, lanes) = (plan.chunks, self.lanes);
        let own = plan.source + self.me as u64 * plan.from_step as u64;
        let put = |chunk: u32, sum| {
            if chunk < chunks {
                // SAFETY: no byte after the part's end is written; only this thread has read this chunk of this PE's
                // source.
                unsafe { write::<WHOLE>(at(plan.target, chunk), fold.last(sum), plan.bytes - chunk * 8) };
            }
        };
        let mut wait = Wait::new(self.world.timeout_ns, self.looks);
        let words = self.here + ((round & 1) * self.half) as u64;
        let mut first = self.rank;
        if PAIR {
            let other = 1 - self.me;
            while self.keep_running(first, chunks) {
                // SAFETY: the caller upholds the requirements of `all_to_all`.
                let mine: [u64; OF_ONE] =
                    from_fn(|row| unsafe { self.given::<WHOLE>(own, first + row as u32 * lanes, plan) });
                let places = from_fn(|row| self.place(words, other, first + row as u32 * lanes, chunks));
                // SAFETY: an inbox has words for each chunk of its capacity.
                let values: [u64; OF_ONE] = unsafe { self.settled(places, round, &mut wait) }?;
                for (row, (&mine, &theirs)) in mine.iter().zip(&values).enumerate() {
                    let (zero, one) = if self.me == 0 { (mine, theirs) } else { (theirs, mine) };
                    put(first + row as u32 * lanes, fold.next(fold.first(zero), one));
                }
                first += OF_ONE as u32 * lanes;
            }
            return Ok(());
        }
        while self.keep_running(first, chunks) {
            // SAFETY: the caller upholds the requirements of `all_to_all`.
            let mine = unsafe { self.given::<WHOLE>(own, first, plan) };
            let mut sum = fold.first(0);
            let mut base = 0;
            while base < self.pes {
                let places = from_fn(|number| {
                    let pe = base + number as u32;
                    if pe >= self.pes || pe == self.me { 0 } else { self.place(words, pe, first, chunks) }
                });
                // SAFETY: an inbox has words for each chunk of its capacity.
                let values: [u64; OF_MANY] = unsafe { self.settled(places, round, &mut wait) }?;
                for (number, &value) in values.iter().enumerate() {
                    let pe = base + number as u32;
                    let value = if pe == self.me { mine } else { value };
                    if pe == 0 {
                        sum = fold.first(value);
                    } else if pe < self.pes {
                        sum = fold.next(sum, value);
                    }
                }
                base += OF_MANY as u32;
            }
            put(first, sum);
            first += lanes;
        }
        Ok(())
    }

    #[inline(always)]
    fn before(&self, pe: u32) -> u32 {
        if pe == 0 { self.pes - 1 } else { pe - 1 }
    }
}
