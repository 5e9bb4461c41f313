//! Exchanges: every PE sends to every PE and receives from every PE, in one trip, where all heaps are mapped.
//!
//! The words are those of [messages](super::Inbox). What differs is what lies around the trip, which a launched kernel of few bytes spends as
//! long on: nothing here is asked of a [`Context`](super::Context); what a thread needs to know is worked out once, which a kernel may do before the
//! grid in front of it has ended ([`Exchange`], [`Plan`]), in few and 32-bit steps; and the loads of what is sent do not wait for the number of the
//! round. One warp does an instruction in some 5 cycles: two hundred more of them are half a microsecond.
//!
//! **Who writes where, when.** A thread sends the chunks of 8 bytes whose numbers are its own, and takes the chunks of the same numbers from
//! every PE. So a chunk of round `r + 2`, which overwrites that of round `r`, is sent by a thread that has taken the chunk of round `r + 1` from
//! this PE; the thread that sent that one had taken the chunk of round `r` before. No barrier is needed between rounds, as long as all PEs call
//! with scopes of one size. One stands at the end of each exchange all the same, for whoever reads what it brought.

mod words;

use super::fold::Fold;
use super::{Inbox, Scope, World};
use crate::ring::Status;
use cuda_std::vector::{fresh_u32, fresh_u64};
use words::{Wait, at, read, write};

/// Chunks of a thread whose accesses are under way at once, where all are whole and aligned. What is not is for few bytes: one by one. (A
/// launched kernel of few bytes also waits for its own instructions: less text is less time.)
const UNDER_WAY: usize = 2;

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
    /// round and the same bytes. `WHOLE`: [`Parts::is_whole`].
    ///
    /// # Safety
    /// All heaps are mapped. The plan's parts lie inside objects of the heap that nobody else uses, are whole where it is said, and `bytes` are
    /// at most the inbox's capacity.
    ///
    /// # Errors
    /// [`Status::DEADLINE`] or the reason the host gave, when a PE's bytes do not come; the same for all threads of the scope.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn all_to_all<const WHOLE: bool>(&self, round: u32, plan: &Plan) -> Result<(), Status> {
        // SAFETY: the caller's contract.
        let done = unsafe {
            if WHOLE { self.gathered::<UNDER_WAY, WHOLE>(round, plan) } else { self.gathered::<1, WHOLE>(round, plan) }
        };
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
    pub unsafe fn folded<const WHOLE: bool>(&self, round: u32, plan: &Plan, fold: &impl Fold) -> Result<(), Status> {
        // SAFETY: the caller's contract.
        let done = unsafe {
            if WHOLE {
                self.summed::<UNDER_WAY, WHOLE>(round, plan, fold)
            } else {
                self.summed::<1, WHOLE>(round, plan, fold)
            }
        };
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
    unsafe fn gathered<const N: usize, const WHOLE: bool>(&self, round: u32, plan: &Plan) -> Result<(), Status> {
        // SAFETY: the caller's contract.
        unsafe { self.send::<N, WHOLE>(round, plan) };
        let own = plan.source + self.me as u64 * plan.from_step as u64;
        let own_to = plan.target + self.me as u64 * plan.to_step as u64;
        if own != own_to {
            let mut chunk = self.rank;
            while chunk < plan.chunks {
                let left = plan.bytes - chunk * 8;
                // SAFETY: below `bytes` of both.
                unsafe { write::<WHOLE>(at(own_to, chunk), read::<WHOLE>(at(own, chunk), left), left) };
                // Not unrolled: it hides behind the trip.
                chunk = fresh_u32(chunk + self.lanes);
            }
        }
        let mut wait = Wait::new(self.world.timeout_ns);
        let words = self.here + ((round & 1) * self.half) as u64;
        let mut first = self.rank;
        while first < plan.chunks {
            // The words of the next PE are under way while those of one are looked at.
            let mut pe = self.before(self.me);
            // SAFETY: the caller's contract.
            let mut next = unsafe { self.load::<N>(words, pe, first, plan.chunks) };
            for step in 1..self.pes {
                let (sender, now) = (pe, next);
                if step + 1 < self.pes {
                    pe = self.before(pe);
                    // SAFETY: as above.
                    next = unsafe { self.load::<N>(words, pe, first, plan.chunks) };
                }
                // SAFETY: as above.
                let values = unsafe { self.settled(words, sender, round, (first, plan.chunks), now, &mut wait) }?;
                let target = plan.target + sender as u64 * plan.to_step as u64;
                for (index, &value) in values.iter().enumerate() {
                    let chunk = first + index as u32 * self.lanes;
                    if chunk < plan.chunks {
                        // SAFETY: no more is written than there is; this thread alone writes this chunk.
                        unsafe { write::<WHOLE>(at(target, chunk), value, plan.bytes - chunk * 8) };
                    }
                }
            }
            first += N as u32 * self.lanes;
        }
        Ok(())
    }

    /// This thread's part of a [`folded`](Exchange::folded).
    #[inline(always)]
    unsafe fn summed<const N: usize, const WHOLE: bool>(
        &self,
        round: u32,
        plan: &Plan,
        fold: &impl Fold,
    ) -> Result<(), Status> {
        // SAFETY: the caller's contract.
        unsafe { self.send::<N, WHOLE>(round, plan) };
        let own = plan.source + self.me as u64 * plan.from_step as u64;
        let mut wait = Wait::new(self.world.timeout_ns);
        let words = self.here + ((round & 1) * self.half) as u64;
        let mut first = self.rank;
        while first < plan.chunks {
            // SAFETY: the caller's contract.
            let found = |pe: u32| unsafe {
                if pe == self.me {
                    self.own_words::<N, WHOLE>(own, round, first, plan)
                } else {
                    self.load::<N>(words, pe, first, plan.chunks)
                }
            };
            let mut next = found(0);
            let mut sums = [fold.first(0); N];
            for pe in 0..self.pes {
                let now = next;
                if pe + 1 < self.pes {
                    next = found(pe + 1);
                }
                // SAFETY: as above.
                let values = unsafe { self.settled(words, pe, round, (first, plan.chunks), now, &mut wait) }?;
                for (sum, &value) in sums.iter_mut().zip(&values) {
                    *sum = if pe == 0 { fold.first(value) } else { fold.next(*sum, value) };
                }
            }
            for (index, &sum) in sums.iter().enumerate() {
                let chunk = first + index as u32 * self.lanes;
                if chunk < plan.chunks {
                    // SAFETY: no more is written than there is; this thread alone has read this chunk of what this PE gives.
                    unsafe { write::<WHOLE>(at(plan.target, chunk), fold.last(sum), plan.bytes - chunk * 8) };
                }
            }
            first += N as u32 * self.lanes;
        }
        Ok(())
    }

    #[inline(always)]
    fn before(&self, pe: u32) -> u32 {
        if pe == 0 { self.pes - 1 } else { pe - 1 }
    }
}
