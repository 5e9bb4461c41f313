//! Exchanges: every PE sends to every PE and receives from every PE, in one trip, where all heaps are mapped.
//!
//! The words are those of [messages](super::Inbox). What differs is what lies around the trip, which a launched kernel of few bytes spends as
//! long on: nothing here is asked of a [`Context`](super::Context); what a thread needs to know is worked out once, which a kernel may do before the
//! grid in front of it has ended ([`Exchange`], [`Plan`]), in few and 32-bit steps; and the loads of what is sent do not wait for the number of the
//! round. One warp does an instruction in some 5 cycles: two hundred more of them are half a microsecond.
//!
//! **Who writes where, when.** A thread sends the chunks of 8 bytes whose numbers are its own, and takes the chunks of the same numbers from
//! every PE. So a chunk of round `r + 2`, which overwrites that of round `r`, is sent by a thread that has taken the chunk of round `r + 1` from
//! this PE; the thread that sent that one had taken the chunk of round `r` before. For these no barrier is needed between rounds, as long as all PEs
//! call with scopes of one size. One stands at the end of each exchange, for whoever reads what it brought, and for lanes
//! without a chunk, which have looked at another's: before it that one sends nothing of the next round.

mod words;

use super::fold::Fold;
use super::{Inbox, Scope, World};
use crate::ring::Status;
use core::array::from_fn;
use cuda_std::vector::{fresh_u32, fresh_u64};
use cuda_std::warp;
use words::{Wait, at, read, write};

/// What a thread has under way at once: chunks of the one other PE, or the chunk of so many PEs. What is not whole and aligned is for few bytes. (A
/// launched kernel of few bytes also waits for its own instructions: less text is less time.)
const OF_ONE: usize = 2;
const OF_MANY: usize = 4;

/// What each PE gives and gets, as offsets in the heap, which are the same on every PE.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// What goes to PE 0 begins here.
    pub from: u64,
    /// From what goes to one PE to what goes to the next; 0: all get the same.
    pub from_step: u32,
    /// Where that of PE 0 is put, or the one result.
    pub to: u64,
    /// From the place of one PE's bytes to that of the next one's.
    pub to_step: u32,
    /// Bytes from each PE to each.
    pub bytes: u32,
}

impl Parts {
    /// Whether all chunks are 8 bytes long and lie on multiples of 8.
    #[inline(always)]
    pub fn is_whole(&self) -> bool {
        (self.from as u32 | self.from_step | self.to as u32 | self.to_step | self.bytes).is_multiple_of(8)
    }
}

/// [`Parts`] as addresses.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
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
    world: &'a World,
    scope: S,
    me: u32,
    pes: u32,
    rank: u32,
    lanes: u32,
    /// This lane's number among those of its warp.
    of_warp: u32,
    /// The inbox here, and what this PE sends by in the next PE's.
    here: u64,
    next: u64,
    /// In an inbox, from one sender's words to the next one's, and from those of even rounds to those of odd ones.
    sender: u32,
    half: u32,
    offset: u64,
    /// Whether bytes have arrived before more are sent.
    blocking: bool,
}

impl World {
    /// Exchanges of this scope, by an inbox that it has for itself. All heaps are mapped. `blocking`: what goes to one PE has arrived before
    /// what goes to the next is sent.
    #[inline(always)]
    pub fn exchanges<S: Scope>(&self, scope: S, inbox: Inbox, blocking: bool) -> Exchange<'_, S> {
        let next = if self.me + 1 == self.pes { 0 } else { self.me + 1 };
        let half = 2 * inbox.capacity as u32;
        let sender = Inbox::ROUNDS as u32 * half;
        let mine = inbox.offset + self.me as u64 * sender as u64;
        // SAFETY: one entry for each PE.
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
            blocking,
        }
    }
}

impl<S: Scope> Exchange<'_, S> {
    /// What is exchanged, worked out for [`all_to_all`](Exchange::all_to_all) and [`folded`](Exchange::folded).
    #[inline(always)]
    pub fn plan(&self, parts: &Parts) -> Plan {
        let heap = self.world.heap as u64;
        Plan {
            source: fresh_u64(heap + parts.from),
            target: fresh_u64(heap + parts.to),
            from_step: parts.from_step,
            to_step: parts.to_step,
            bytes: parts.bytes,
            chunks: parts.bytes.div_ceil(8),
        }
    }

    /// Part `i` of what PE `k` gives becomes part `k` of what PE `i` gets. Rounds of an inbox count up from 1; every PE calls it with the same
    /// round and the same bytes. `WHOLE`: [`Parts::is_whole`]. `PAIR`: there are two PEs, and a kernel for them alone has less text.
    ///
    /// # Safety
    /// All heaps are mapped. The plan's parts lie inside objects of the heap that nobody else uses, are whole where it is said, and `bytes` are
    /// at most the inbox's capacity.
    ///
    /// # Errors
    /// [`Status::DEADLINE`] or the reason the host gave, when a PE's bytes do not come; the same for all threads of the scope.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn all_to_all<const WHOLE: bool, const PAIR: bool>(
        &self,
        round: u32,
        plan: &Plan,
    ) -> Result<(), Status> {
        // SAFETY: the caller's contract.
        let done = unsafe { self.gathered::<WHOLE, PAIR>(round, plan) };
        self.ended(done)
    }

    /// As [`all_to_all`](Exchange::all_to_all), and what comes is made one, in the order of PEs, this one's own among them: every PE that gets
    /// the same bytes makes the same of them. The result is at `to` and may lie over what this PE gives to itself.
    ///
    /// # Safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn folded<const WHOLE: bool, const PAIR: bool>(
        &self,
        round: u32,
        plan: &Plan,
        fold: &impl Fold,
    ) -> Result<(), Status> {
        // SAFETY: the caller's contract.
        let done = unsafe { self.summed::<WHOLE, PAIR>(round, plan, fold) };
        self.ended(done)
    }

    /// All threads' answer; behind it each sees what the others have received.
    #[inline(always)]
    #[track_caller]
    fn ended(&self, done: Result<(), Status>) -> Result<(), Status> {
        match self.scope.agree(done.err().map_or(0, |stop| stop.0)) {
            0 => Ok(()),
            stop => Err(Status(stop)),
        }
    }

    /// This thread's part of an [`all_to_all`](Exchange::all_to_all).
    #[inline(always)]
    unsafe fn gathered<const WHOLE: bool, const PAIR: bool>(&self, round: u32, plan: &Plan) -> Result<(), Status> {
        // SAFETY: the caller's contract.
        unsafe { self.send::<OF_ONE, WHOLE>(round, plan) };
        let (chunks, lanes) = (plan.chunks, self.lanes);
        let own = plan.source + self.me as u64 * plan.from_step as u64;
        let own_to = plan.target + self.me as u64 * plan.to_step as u64;
        if own != own_to {
            let mut chunk = self.rank;
            while chunk < chunks {
                let left = plan.bytes - chunk * 8;
                // SAFETY: below `bytes` of both.
                unsafe { write::<WHOLE>(at(own_to, chunk), read::<WHOLE>(at(own, chunk), left), left) };
                // Not unrolled: it hides behind the trip.
                chunk = fresh_u32(chunk + lanes);
            }
        }
        let put = |pe: u32, chunk: u32, value: u64| {
            if chunk < chunks {
                let target = plan.target + pe as u64 * plan.to_step as u64;
                // SAFETY: no more is written than there is; this thread alone writes this chunk.
                unsafe { write::<WHOLE>(at(target, chunk), value, plan.bytes - chunk * 8) };
            }
        };
        let mut wait = Wait::new(self.world.timeout_ns);
        let words = self.here + ((round & 1) * self.half) as u64;
        let mut first = self.rank;
        if PAIR {
            let other = 1 - self.me;
            while self.goes_on(first, chunks) {
                let places = from_fn(|row| self.place(words, other, first + row as u32 * lanes, chunks));
                // SAFETY: an inbox has words for each chunk of the capacity.
                let values: [u64; OF_ONE] = unsafe { self.settled(places, round, &mut wait) }?;
                for (row, &value) in values.iter().enumerate() {
                    put(other, first + row as u32 * lanes, value);
                }
                first += OF_ONE as u32 * lanes;
            }
            return Ok(());
        }
        while self.goes_on(first, chunks) {
            let (mut pe, mut left) = (self.me, self.pes - 1);
            while left > 0 {
                let begin = pe;
                let places = from_fn(|number| {
                    pe = self.before(pe);
                    if number as u32 >= left { 0 } else { self.place(words, pe, first, chunks) }
                });
                // SAFETY: as above.
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

    /// This thread's part of a [`folded`](Exchange::folded).
    #[inline(always)]
    unsafe fn summed<const WHOLE: bool, const PAIR: bool>(
        &self,
        round: u32,
        plan: &Plan,
        fold: &impl Fold,
    ) -> Result<(), Status> {
        // SAFETY: the caller's contract.
        unsafe { self.send::<OF_ONE, WHOLE>(round, plan) };
        let (chunks, lanes) = (plan.chunks, self.lanes);
        let own = plan.source + self.me as u64 * plan.from_step as u64;
        let put = |chunk: u32, sum| {
            if chunk < chunks {
                // SAFETY: no more is written than there is; this thread alone has read this chunk of what this PE gives.
                unsafe { write::<WHOLE>(at(plan.target, chunk), fold.last(sum), plan.bytes - chunk * 8) };
            }
        };
        let mut wait = Wait::new(self.world.timeout_ns);
        let words = self.here + ((round & 1) * self.half) as u64;
        let mut first = self.rank;
        if PAIR {
            let other = 1 - self.me;
            while self.goes_on(first, chunks) {
                // SAFETY: the caller's contract.
                let mine: [u64; OF_ONE] =
                    from_fn(|row| unsafe { self.given::<WHOLE>(own, first + row as u32 * lanes, plan) });
                let places = from_fn(|row| self.place(words, other, first + row as u32 * lanes, chunks));
                // SAFETY: an inbox has words for each chunk of the capacity.
                let values: [u64; OF_ONE] = unsafe { self.settled(places, round, &mut wait) }?;
                for (row, (&mine, &theirs)) in mine.iter().zip(&values).enumerate() {
                    let (zero, one) = if self.me == 0 { (mine, theirs) } else { (theirs, mine) };
                    put(first + row as u32 * lanes, fold.next(fold.first(zero), one));
                }
                first += OF_ONE as u32 * lanes;
            }
            return Ok(());
        }
        while self.goes_on(first, chunks) {
            // SAFETY: the caller's contract.
            let mine = unsafe { self.given::<WHOLE>(own, first, plan) };
            let mut sum = fold.first(0);
            let mut base = 0;
            while base < self.pes {
                let places = from_fn(|number| {
                    let pe = base + number as u32;
                    if pe >= self.pes || pe == self.me { 0 } else { self.place(words, pe, first, chunks) }
                });
                // SAFETY: as above.
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
