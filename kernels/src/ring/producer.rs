//! Producer side of the ring: device threads push commands.
//!
//! [`push`](Ring::push) takes a ticket, loads the tail, fences the payload, waits until the ticket's slot is free
//! (`space.rs`), and stores the command. A single lane, a full warp and a partial warp have separate paths.

use super::{Observe, Ring, Status, parity};
use crate::command::{COMMAND_WORDS, Command};
use cuda_std::memory::{Word, WordPair, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, store_relaxed_sys_v2_u64};
use cuda_std::warp;

/// The words of an encoded command. Bit 63 of each word is clear; the ring stores the lap parity there.
pub type CommandWords = [u64; COMMAND_WORDS as usize];

/// The two 16-byte halves that a lane stores, each with one store: those of its own command, or those that
/// [`exchange`] assigns to it.
pub(crate) type Halves = [[u64; 2]; 2];

/// Memory accesses that a push orders before its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// No access: the command refers to no other memory.
    None,
    /// Accesses to the payload to which the command refers, for the CPU and the NIC. Costs one system-scope fence.
    Payload,
}

impl Fence {
    #[inline(always)]
    pub(crate) fn fence(self) {
        if self == Fence::Payload {
            fence_acq_rel_sys();
        }
    }
}

impl Ring {
    /// Pushes one command per active lane, after fencing its payload, and returns the lane's ticket.
    ///
    /// # Errors
    /// Returns the same errors as [`push_words`](Ring::push_words).
    #[inline(always)]
    pub fn push(&mut self, command: &Command) -> Result<u64, Status> {
        self.push_observed(command, &mut ())
    }

    /// Like [`push`](Ring::push), but calls `observe` at each stage, for measurements.
    ///
    /// # Errors
    /// Returns the same errors as [`push_words`](Ring::push_words).
    #[inline(always)]
    pub fn push_observed(&mut self, command: &Command, observe: &mut impl Observe) -> Result<u64, Status> {
        self.push_words(Fence::Payload, command.encode(), observe)
    }

    /// Like [`push_words`](Ring::push_words), but not inlined, and on a copy of the ring, from which only `free_below`
    /// (tickets below it are known to have a free slot) is copied back.
    ///
    /// For kernels with several call sites: passing the ring by reference would keep it in memory.
    #[inline(always)]
    pub(crate) fn push_outlined(&mut self, fence: Fence, words: CommandWords) -> Result<u64, Status> {
        #[inline(never)]
        fn push_copy(mut ring: Ring, words: CommandWords, fence: Fence) -> (Result<u64, Status>, u64) {
            (ring.push_words(fence, words, &mut ()), ring.free_below)
        }
        // `black_box` forces a real copy. Otherwise the compiler passes the original by reference, which puts the
        // caller's whole context in local memory. Each acquire invalidates L1, so the fields are then reloaded from L2.
        let copy = core::hint::black_box(*self);
        let (pushed, free_below) = push_copy(copy, words, fence);
        self.free_below = free_below;
        pushed
    }

    /// Pushes one command per active lane and returns the lane's ticket.
    ///
    /// The active lanes of a warp that hold the same ring take adjacent tickets with one atomic add, so that their
    /// stores coalesce. Lanes may hold different rings, for example one per peer; the lanes of each ring then push as a
    /// group. For a block with a single ring ([`Ring::of_block`]) the warp vote that finds these groups is skipped.
    ///
    /// # Ordering
    /// The atomic add and the first load of the tail are issued before the single fence, so that their round trips
    /// overlap with the fence's. Two orderings are required:
    ///
    /// - Payload before command ([`Fence::Payload`]). This thread wrote the payload, or its block did before a block
    ///   barrier (fences are cumulative). The command is stored after the fence. The proxy acquires the command before
    ///   it lets the NIC read the payload.
    /// - No early overwrite of a slot. The proxy's reads of the slot happen before the stores here, which are issued
    ///   only when `ticket < tail + capacity`. `space.rs` documents the happens-before chain.
    ///
    /// The words of one command are not ordered among themselves: each carries the lap parity, and the proxy accepts a
    /// slot only if the parity of all its words matches.
    ///
    /// # Errors
    /// Returns the [`Status`] if the ring stays full until the deadline or the proxy has ended. The ticket is then lost
    /// and the ring is unusable: the status is sticky on the device, so that all other threads fail as well.
    #[inline(always)]
    pub fn push_words(&mut self, fence: Fence, words: CommandWords, observe: &mut impl Observe) -> Result<u64, Status> {
        let [a, b, c, d] = words;
        let halves = [[a, b], [c, d]];
        let mut mask = warp::active_mask();
        if self.of_block == 0 && mask.count_ones() > 1 {
            mask = warp::match_any_u64(mask, self.device as u64);
        }
        // Separate paths for a single lane and a full warp: a shuffle with a mask that is unknown at compile time takes
        // four instructions (match, reduce, vote, shuffle) instead of one.
        if mask == u32::MAX && self.capacity() >= u32::BITS as u64 {
            return self.push_full_warp(fence, halves, observe);
        }
        if mask.count_ones() == 1 {
            return self.push_single(fence, halves, observe);
        }
        let (ticket, free_below) = self.push_partial_warp(mask, fence, [a, b], [c, d], observe);
        self.free_below = free_below;
        ticket
    }

    /// Pushes the command of a single lane.
    #[inline(always)]
    fn push_single(&mut self, fence: Fence, halves: Halves, observe: &mut impl Observe) -> Result<u64, Status> {
        let ticket = self.add_to_head(1);
        self.refresh_free_below(ticket + 1);
        fence.fence();
        self.wait_for_space(ticket + 1, observe)?;
        observe.ordered();
        self.store(ticket, halves);
        observe.stored();
        Ok(ticket)
    }

    /// Pushes the commands of a full warp. Lane 0 takes adjacent tickets for all lanes and waits until all have a slot.
    #[inline(always)]
    fn push_full_warp(&mut self, fence: Fence, halves: Halves, observe: &mut impl Observe) -> Result<u64, Status> {
        /// Flag in the leader's answer: the other bits are a status, not a ticket. Tickets never reach 2^63.
        const STOPPED: u64 = 1 << 63;
        let is_leader = warp::lane() == 0;
        let mut answer = 0;
        if is_leader {
            answer = self.add_to_head(u32::BITS as u64);
        }
        // Overlaps with the latency of the atomic add.
        let halves = exchange(halves);
        if fence == Fence::Payload {
            // Each lane stores halves of other lanes' commands, but its fence orders only accesses that it has made or
            // observed. The barrier makes it observe all payloads; the shuffles do not order memory.
            warp::synchronize(u32::MAX);
        }
        let end = answer + u32::BITS as u64;
        if is_leader {
            self.refresh_free_below(end);
        }
        fence.fence();
        if is_leader && let Err(Status(reason)) = self.wait_for_space(end, observe) {
            answer = reason | STOPPED;
        }
        answer = warp::broadcast_u64(u32::MAX, answer, 0);
        // Extends the leader's acquire of the tail to all lanes; the broadcast does not order memory.
        warp::synchronize(u32::MAX);
        if answer & STOPPED != 0 {
            return Err(Status(answer & !STOPPED));
        }
        let ticket = answer + warp::lane() as u64;
        observe.ordered();
        self.store_coalesced(ticket, halves);
        observe.stored();
        Ok(ticket)
    }

    /// Pushes the commands of a partial warp, or of a full warp if the ring has fewer slots than lanes. Also returns
    /// the updated `free_below`.
    ///
    /// Not inlined, because it is called rarely, and on a copy of the ring: passing a reference would keep the ring in
    /// memory on every path. (For the same reason the four words are passed as two pairs, not as one array.)
    #[inline(never)]
    fn push_partial_warp(
        mut self,
        mask: u32,
        fence: Fence,
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
            self.refresh_free_below(base + count);
        }
        fence.fence();
        let base = warp::broadcast_u64(mask, base, leader);

        // Slots are freed in order, so the lanes proceed in groups of at most `capacity`. Waiting for the slots of all
        // lanes at the same time would deadlock: the later slots are freed only after the earlier commands are stored.
        let mut stop = 0;
        let mut first = 0;
        while first < count && stop == 0 {
            let last = count.min(first + self.capacity());
            if is_leader && let Err(reason) = self.wait_for_space(base + last, observe) {
                stop = reason.0;
            }
            stop = warp::broadcast_u64(mask, stop, leader);
            // Extends the leader's acquire of the tail to all lanes, as for a full warp.
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

    /// Takes `count` adjacent tickets and returns the first. Work done before the result is used overlaps with the add.
    #[inline(always)]
    pub(crate) fn add_to_head(&self, count: u64) -> u64 {
        fetch_add_relaxed_gpu_u64(&self.device().head.0, count)
    }

    /// Stores this lane's command in the slot of `ticket`: words 0 and 1, then words 2 and 3.
    #[inline(always)]
    pub(crate) fn store(&self, ticket: u64, [first, second]: Halves) {
        self.store_pair(ticket, 0, first);
        self.store_pair(ticket, 2, second);
    }

    /// Stores the commands of a full warp with adjacent tickets as two contiguous 512-byte stores. [`exchange`] must
    /// have arranged the halves. (If each lane stored both halves of its own command, the hardware would merge the two
    /// only if no other warp of the SM stores in between: considerably slower with 8 or more warps per SM.)
    #[inline(always)]
    pub(crate) fn store_coalesced(&self, ticket: u64, [first, second]: Halves) {
        let lane = warp::lane();
        let base = ticket - lane as u64 + (lane / 2) as u64;
        self.store_pair(base, 2 * (lane & 1), first);
        self.store_pair(base + 16, 2 * (lane & 1), second);
    }

    /// Stores the words `index` and `index + 1` of a slot with the lap parity. `index` must be even.
    #[inline(always)]
    pub(crate) fn store_pair(&self, ticket: u64, index: u32, [first, second]: [u64; 2]) {
        // SAFETY: a slot's size is a power of two and the slot is aligned to it, so two words from an even index form a
        // pair that is aligned to 16 bytes.
        let pair = unsafe { &*self.address(ticket, index).cast::<WordPair>() };
        let lap = parity(ticket, self.log2_capacity);
        store_relaxed_sys_v2_u64(pair, first | lap, second | lap);
    }

    /// Returns the address of word `index` in the slot of `ticket`.
    #[inline(always)]
    pub(crate) fn address(&self, ticket: u64, index: u32) -> *const Word {
        // The low 32 bits suffice: a ring has fewer than 2^32 slots.
        let slot = ticket as u32 & (self.capacity() as u32 - 1);
        // SAFETY: `slots` stays valid while kernels use the ring (contract of `Ring`); the mask keeps `slot` below the
        // capacity, and `index` is below the words of a slot.
        unsafe { self.slots.add(((slot as usize) << self.log2_slot_words) + index as usize) }
    }
}

/// Rearranges the commands of a full warp for contiguous stores: lane `l` receives half `l % 2` of the command of lane
/// `l / 2`, then half `l % 2` of the command of lane `16 + l / 2`.
///
/// The exchange takes two rounds. In each round, every lane gives one half and receives one. In round `r`, lanes 0 to
/// 15 give half `r` and lanes 16 to 31 give half `1 - r`. In the first round even lanes read from lanes 0 to 15 and odd
/// lanes from lanes 16 to 31.
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
