//! The device side of the ring, first half: push a command.
//!
//! [`push`](Ring::push) takes a ticket, waits until the ticket's slot is free (`space.rs`), fences, and stores. How it
//! does so depends on who pushes together: a lane alone, a full warp, or some lanes of a warp.

use super::{Observe, Ring, Status, parity};
use crate::command::{COMMAND_WORDS, Command};
use crate::direct;
use cuda_std::call::by_address;
use cuda_std::memory::{Word, WordPair, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, store_relaxed_sys_v2_u64};
use cuda_std::warp;

/// A command's words, each below 2^63.
pub type Words = [u64; COMMAND_WORDS as usize];

/// Two pairs of words, which a lane stores by 16 bytes each: its command's halves, or those that [`exchange`] gives it.
pub(crate) type Halves = [[u64; 2]; 2];

/// What a push orders before its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nothing: the command says it all.
    Nothing,
    /// The payload that the command speaks of, for CPU and NIC: one system fence (H200: 0.5 us and more).
    Payload,
}

impl Behind {
    #[inline(always)]
    pub(crate) fn fence(self) {
        if self == Behind::Payload {
            fence_acq_rel_sys();
        }
    }
}

impl Ring {
    /// Pushes one command of each active lane behind the payload it speaks of, and returns the lane's ticket.
    ///
    /// # Errors
    /// As [`push_words`](Ring::push_words).
    #[inline(always)]
    pub fn push(&mut self, command: &Command) -> Result<u64, Status> {
        self.push_observed(command, &mut ())
    }

    /// As [`push`](Ring::push), for a study that wants to know more of it.
    ///
    /// # Errors
    /// As [`push_words`](Ring::push_words).
    #[inline(always)]
    pub fn push_observed(&mut self, command: &Command, observe: &mut impl Observe) -> Result<u64, Status> {
        self.push_words(Behind::Payload, command.encode(), observe)
    }

    /// Where the other end is a card's queue: posts what a command's words say. Lanes of a warp that come together ring once.
    ///
    /// # Errors
    /// The queue's first failure.
    #[inline(always)]
    pub(crate) fn post_to_card(&mut self, words: Words) -> Result<u64, Status> {
        // Whoever rings fences, for the payload too.
        let (posted, free_below) = direct::push(self.device.cast(), words, self.free_below);
        self.free_below = free_below;
        posted
    }

    /// As [`push_words`](Ring::push_words), out of line, and on a copy of the ring that comes back with what it knows of free slots; or to a card.
    /// For kernels that push in several places: a ring behind a pointer would live in memory.
    #[inline(always)]
    pub(crate) fn push_apart(&mut self, behind: Behind, words: Words) -> Result<u64, Status> {
        #[inline(never)]
        fn push_copy(mut ring: Ring, words: Words, behind: Behind) -> (Result<u64, Status>, u64) {
            (ring.push_words(behind, words, &mut ()), ring.free_below)
        }
        if self.is_to_card() {
            return self.post_to_card(words);
        }
        // The compiler would hand over the ring itself in place of a copy that nobody changes, and with it the whole context would
        // lie in local memory, where each acquire makes its fields miss.
        let copy = core::hint::black_box(*self);
        let (pushed, free_below) = push_copy(copy, words, behind);
        self.free_below = free_below;
        pushed
    }

    /// As [`push_words`](Ring::push_words) to this block's ring ([`Ring::of_block`]), out of line. What is known of free slots is kept by the caller, 0
    /// at first; the ring is read where it is needed. For kernels that push seldom: a ring in their registers leaves none for the rest.
    ///
    /// # Safety
    /// As for [`Ring::of_block`].
    ///
    /// # Errors
    /// As [`push_words`](Ring::push_words).
    #[inline(always)]
    pub(crate) unsafe fn push_of_block(
        (rings, count): (*const Ring, u32),
        free_below: &mut u64,
        behind: Behind,
        words: Words,
    ) -> Result<u64, Status> {
        #[inline(never)]
        unsafe fn push(
            rings: *const Ring,
            count: u32,
            free_below: u64,
            words: Words,
            behind: Behind,
        ) -> (Result<u64, Status>, u64) {
            // SAFETY: the caller's contract.
            let mut ring = Ring { free_below, ..unsafe { Ring::of_block(rings, count) } };
            if ring.is_to_card() {
                // Whoever rings fences, for all that the commands speak of.
                return direct::push(ring.device.cast(), words, free_below);
            }
            (ring.push_words(behind, words, &mut ()), ring.free_below)
        }
        // SAFETY: the caller's contract.
        let (pushed, known) =
            unsafe { by_address(push as unsafe fn(_, _, _, _, _) -> _)(rings, count, *free_below, words, behind) };
        *free_below = known;
        pushed
    }

    /// Pushes one command of each active lane and returns the lane's ticket.
    ///
    /// The active lanes of a warp that hold the same ring take adjacent tickets by one add, so that their stores coalesce. Lanes may
    /// hold different rings, chosen by peer, say: those of one ring go together. Where a block has one ring ([`Ring::of_block`])
    /// nobody is asked.
    ///
    /// Two orders are at stake. Everything that waits for memory stands before the one fence, so that the waits overlap (H200: the
    /// ticket's add and the load of the tail are hidden behind the fence's round trip):
    ///
    /// - Payload before command ([`Behind::Payload`]). This thread (and, behind a block barrier, its block: the fence is
    ///   cumulative) wrote the payload; the proxy acquires the command and lets the NIC read the payload. The command is
    ///   stored after the fence.
    /// - A slot is not overwritten early: the proxy's reads of it happen before our stores to it, which go out only when
    ///   `ticket < tail + capacity`. The chain stands in `space.rs`.
    ///
    /// No fence stands between the words of a command: each carries the lap's parity, and the proxy takes a slot only
    /// when all agree.
    ///
    /// # Errors
    /// [`Status`] when the ring stayed full until the deadline, or the proxy has ended. The ticket is then lost and the ring
    /// cannot be used again: the status is made sticky on the device, so that every other thread ends too.
    #[inline(always)]
    pub fn push_words(&mut self, behind: Behind, words: Words, observe: &mut impl Observe) -> Result<u64, Status> {
        let [a, b, c, d] = words;
        let halves = [[a, b], [c, d]];
        let mut mask = warp::active_mask();
        if self.of_block == 0 && mask.count_ones() > 1 {
            mask = warp::match_any_u64(mask, self.device as u64);
        }
        // A lane alone and a full warp go ways of their own: a shuffle over a mask that only the machine knows takes three more
        // steps to check it. (H200, see experiments/queue: one thread and one warp.)
        if mask == u32::MAX && self.capacity() >= u32::BITS as u64 {
            return self.push_by_full_warp(behind, halves, observe);
        }
        if mask.count_ones() == 1 {
            return self.push_alone(behind, halves, observe);
        }
        let (ticket, free_below) = self.push_by_some_lanes(mask, behind, [a, b], [c, d], observe);
        self.free_below = free_below;
        ticket
    }

    /// One lane for itself.
    #[inline(always)]
    fn push_alone(&mut self, behind: Behind, halves: Halves, observe: &mut impl Observe) -> Result<u64, Status> {
        let ticket = self.add_to_head(1);
        self.look_for_space(ticket + 1);
        behind.fence();
        self.wait_for_space(ticket + 1, observe)?;
        observe.ordered();
        self.store(ticket, halves);
        observe.stored();
        Ok(ticket)
    }

    /// All lanes of a full warp. The first one takes adjacent tickets for all and waits until all have a slot.
    #[inline(always)]
    fn push_by_full_warp(&mut self, behind: Behind, halves: Halves, observe: &mut impl Observe) -> Result<u64, Status> {
        /// Set in the leader's answer when it is a reason and no ticket: no ticket comes that far.
        const STOPPED: u64 = 1 << 63;
        let is_leader = warp::lane() == 0;
        let mut answer = 0;
        if is_leader {
            answer = self.add_to_head(u32::BITS as u64);
        }
        // While the ticket is on its way.
        let halves = exchange(halves);
        if behind == Behind::Payload {
            // A lane stores what others have prepared, and only its own accesses, and what it has observed, are before its
            // fence: so it must have observed the payloads of all. A shuffle orders no memory.
            warp::synchronize(u32::MAX);
        }
        let end = answer + u32::BITS as u64;
        if is_leader {
            self.look_for_space(end);
        }
        behind.fence();
        if is_leader && let Err(Status(reason)) = self.wait_for_space(end, observe) {
            answer = reason | STOPPED;
        }
        answer = warp::broadcast_u64(u32::MAX, answer, 0);
        // What the leader acquired holds for all lanes only behind a barrier; a shuffle orders no memory.
        warp::synchronize(u32::MAX);
        if answer & STOPPED != 0 {
            return Err(Status(answer & !STOPPED));
        }
        let ticket = answer + warp::lane() as u64;
        observe.ordered();
        self.store_side_by_side(ticket, halves);
        observe.stored();
        Ok(ticket)
    }

    /// Some lanes of a warp, or a ring with fewer slots than lanes; also what the ring knows of free slots then. Seldom, so out of
    /// line, and on a copy: a ring behind a pointer would live in memory on all ways. (So would the four words as one array.)
    #[inline(never)]
    fn push_by_some_lanes(
        mut self,
        mask: u32,
        behind: Behind,
        first_half: [u64; 2],
        second_half: [u64; 2],
        observe: &mut impl Observe,
    ) -> (Result<u64, Status>, u64) {
        let leader = mask.trailing_zeros();
        let rank = (mask & ((1u32 << warp::lane()) - 1)).count_ones() as u64;
        let count = mask.count_ones() as u64;
        let is_leader = warp::lane() == leader;
        let mut base = 0;
        if is_leader {
            base = self.add_to_head(count);
            self.look_for_space(base + count);
        }
        behind.fence();
        let base = warp::broadcast_u64(mask, base, leader);

        // Slots become free from the front, so lanes go in groups of at most the capacity: waiting for all lanes at once
        // would wait for ourselves.
        let mut stop = 0;
        let mut first = 0;
        while first < count && stop == 0 {
            let last = count.min(first + self.capacity());
            if is_leader && let Err(reason) = self.wait_for_space(base + last, observe) {
                stop = reason.0;
            }
            stop = warp::broadcast_u64(mask, stop, leader);
            // As for a full warp: the leader's acquire, for all.
            warp::synchronize(mask);
            if stop == 0 && rank >= first && rank < last {
                observe.ordered();
                self.store(base + rank, [first_half, second_half]);
                observe.stored();
            }
            first = last;
        }
        (if stop == 0 { Ok(base + rank) } else { Err(Status(stop)) }, self.free_below)
    }

    /// The first of `count` adjacent tickets. Nobody waits for it here: what is done before it is used is done meanwhile.
    #[inline(always)]
    pub(crate) fn add_to_head(&self, count: u64) -> u64 {
        fetch_add_relaxed_gpu_u64(&self.device().head.0, count)
    }

    /// Stores this lane's command.
    #[inline(always)]
    pub(crate) fn store(&self, ticket: u64, [first, second]: Halves) {
        self.store_pair(ticket, 0, first);
        self.store_pair(ticket, 2, second);
    }

    /// Stores the commands of a full warp, whose lanes have adjacent tickets, in two stores of 512 bytes side by side, as
    /// [`exchange`] has laid them out. (Two stores of 16 bytes by each lane for itself meet again on their way only while no other
    /// warp stores between them: H200, bare stores of 4x256 threads, 250 Mops.)
    #[inline(always)]
    pub(crate) fn store_side_by_side(&self, ticket: u64, [first, second]: Halves) {
        let lane = warp::lane();
        let base = ticket - lane as u64 + (lane / 2) as u64;
        self.store_pair(base, 2 * (lane & 1), first);
        self.store_pair(base + 16, 2 * (lane & 1), second);
    }

    /// Stores two words of a slot, from an even one on.
    #[inline(always)]
    pub(crate) fn store_pair(&self, ticket: u64, index: u32, [first, second]: [u64; 2]) {
        // SAFETY: a slot is a power of two of words and begins on a multiple of its size, so two words from an even one on are
        // a pair, aligned to 16 bytes.
        let pair = unsafe { &*self.address(ticket, index).cast::<WordPair>() };
        let lap = parity(ticket, self.log2_capacity);
        store_relaxed_sys_v2_u64(pair, first | lap, second | lap);
    }

    /// Where a word of a slot lies.
    #[inline(always)]
    pub(crate) fn address(&self, ticket: u64, index: u32) -> *const Word {
        // A ring has fewer than 2^32 slots.
        let slot = ticket as u32 & (self.capacity() as u32 - 1);
        // SAFETY: as for `host`; the mask keeps the slot below the capacity, and no index is beyond a slot's words.
        unsafe { self.slots.add(((slot as usize) << self.log2_slot_words) + index as usize) }
    }
}

/// Lays the commands of a full warp side by side: lane `l` gets half `l % 2` of the command of lane `l / 2`, then of the
/// command of lane `16 + l / 2`.
///
/// Each lane gives both its halves and gets two, one in each of two rounds: in round `r` a lane of the lower half of the
/// warp gives half `r`, one of the upper half gives half `1 - r`; even lanes take from the lower half of the warp first, odd
/// ones from the upper.
#[inline(always)]
pub(crate) fn exchange([low, high]: Halves) -> Halves {
    let lane = warp::lane();
    let (upper, odd) = (lane >= 16, lane & 1);
    let (first, second) = if upper { (high, low) } else { (low, high) };
    let take = |halves: [u64; 2], source| {
        [warp::shuffle_u64(u32::MAX, halves[0], source), warp::shuffle_u64(u32::MAX, halves[1], source)]
    };
    let first = take(first, 16 * odd + lane / 2);
    let second = take(second, 16 * (1 - odd) + lane / 2);
    if odd == 0 { [first, second] } else { [second, first] }
}
