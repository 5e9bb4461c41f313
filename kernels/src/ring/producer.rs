//! The device side of the ring, first half: push an element.

use super::poller::Poller;
use super::{DeviceWords, HostWords, Observe, Ring, Status, parity};
use crate::command::{COMMAND_WORDS, Command};
use cuda_std::memory::{
    Word, WordPair, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, load_acquire_gpu_u64, load_acquire_gpu_v2_u64,
    load_acquire_sys_u64, load_acquire_sys_v2_u64, load_relaxed_gpu_u64, store_relaxed_sys_u64,
    store_relaxed_sys_v2_u64, store_release_gpu_u64, store_release_sys_u64,
};
use cuda_std::warp;

/// Longest sleep of a thread that waits for space (nanoseconds): a full ring is a matter of rate, not of latency.
const LONGEST_SLEEP: u32 = 512;

/// What a push orders before its element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// The payload that the element speaks of, for CPU and NIC: one system fence (H200: 0.5 us and more).
    Payload,
    /// Nothing: the element says it all.
    Nothing,
}

impl Behind {
    #[inline(always)]
    fn fence(self) {
        if self == Behind::Payload {
            fence_acq_rel_sys();
        }
    }
}

impl Ring {
    /// Pushes one command of each active lane behind the payload it speaks of, and returns the lane's ticket.
    ///
    /// # Errors
    /// As [`push_each`](Ring::push_each).
    #[inline(always)]
    pub fn push(&mut self, command: &Command) -> Result<u64, Status> {
        self.push_observed(command, &mut ())
    }

    /// As [`push`](Ring::push), for a study that wants to know more of it.
    ///
    /// # Errors
    /// As [`push_each`](Ring::push_each).
    #[inline(always)]
    pub fn push_observed(&mut self, command: &Command, observe: &mut impl Observe) -> Result<u64, Status> {
        let words = command.encode();
        self.push_each(Behind::Payload, COMMAND_WORDS, move |index| words[index as usize], observe)
    }

    /// Pushes one element of each active lane and returns the lane's ticket. `word(i)`, below 2^63, is the `i`-th of
    /// `words`, a power of two and the same in every lane.
    ///
    /// The active lanes of a warp that hold the same ring take adjacent tickets by one add, so that their stores coalesce. A store goes out only
    /// when its slot is free: `ticket < tail + capacity`.
    ///
    /// Two orders are at stake, and everything that waits for memory stands before the one fence, so that the waits
    /// overlap (H200: the ticket's add and the load of the tail are hidden behind the fence's round trip):
    ///
    /// - Payload before element ([`Behind::Payload`]). This thread (and, behind a block barrier, its block: the fence is
    ///   cumulative) wrote the payload; the proxy acquires the element and lets the NIC read the payload. The element is
    ///   stored after the fence.
    /// - A slot is not overwritten early: the proxy's reads of it happen before our stores to it. The chain is the proxy's
    ///   release of `tail`, the poller's acquire of it and release of `tail_cache`, the leader's acquire of that, in this
    ///   push or an earlier one ([`free_below`](Ring::free_below)), and the warp's barrier. (A branch on a relaxed load would
    ///   do on the machines we know, but neither the PTX nor the C++ model orders a store behind a branch.)
    ///
    /// No fence stands between the words of an element: each carries the lap's parity, and the proxy takes a slot only
    /// when all agree.
    ///
    /// # Errors
    /// [`Status`] when the ring stayed full until the deadline, or the proxy has ended. The ticket is then lost and the ring
    /// cannot be used again: the status is made sticky on the device, so that every other thread ends too.
    #[inline(always)]
    pub fn push_each(
        &mut self,
        behind: Behind,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        observe: &mut impl Observe,
    ) -> Result<u64, Status> {
        let prepare = move |whole_warp| prepare(words, word, whole_warp);
        self.in_turn(behind, observe, prepare, move |ring, ticket, whole_warp, prepared| {
            ring.store_prepared(ticket, words, word, whole_warp, prepared);
        })
    }

    /// As [`push_each`](Ring::push_each) with nothing before it, but the last word is stored by a release of its own: each
    /// thread's element is visible whole once its last word is. For study: the release waits until the element's other
    /// words have arrived over PCIe.
    ///
    /// # Errors
    /// As [`push_each`](Ring::push_each).
    #[inline(always)]
    pub fn push_released(
        &mut self,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        observe: &mut impl Observe,
    ) -> Result<u64, Status> {
        self.in_turn(
            Behind::Nothing,
            observe,
            |_| (),
            move |ring, ticket, _, ()| {
                let lap = parity(ticket, ring.log2_capacity);
                for index in 0..words - 1 {
                    store_relaxed_sys_u64(ring.word(ticket, index), word(index) | lap);
                }
                store_release_sys_u64(ring.word(ticket, words - 1), word(words - 1) | lap);
            },
        )
    }

    /// Takes a ticket for each active lane, and lets `store` fill the lane's slot once it is free, with what `prepare` has made
    /// of the element while the ticket was on its way. Both are told whether all lanes of a full warp do so together.
    ///
    /// Lanes may hold different rings, chosen by peer, say: those of one ring go together. Where a block has one ring
    /// ([`Ring::of_block`]) nobody is asked.
    ///
    /// A lane alone and a full warp go ways of their own: a shuffle over a mask that only the machine knows takes three more
    /// steps to check it. (H200, see experiments/queue: one thread and one warp.)
    #[inline(always)]
    fn in_turn<P>(
        &mut self,
        behind: Behind,
        observe: &mut impl Observe,
        prepare: impl FnOnce(bool) -> P,
        store: impl FnOnce(&Ring, u64, bool, P),
    ) -> Result<u64, Status> {
        let mut mask = warp::active_mask();
        if self.of_block == 0 && mask.count_ones() > 1 {
            mask = warp::match_any_u64(mask, self.device as u64);
        }
        if mask == u32::MAX && self.capacity() >= u32::BITS as u64 {
            let (first, prepared) = self.lead(u32::MAX, 0, u32::BITS, behind, observe, || prepare(true))?;
            let ticket = first + warp::lane() as u64;
            observe.ordered();
            store(self, ticket, true, prepared);
            observe.stored();
            return Ok(ticket);
        }
        if mask.count_ones() == 1 {
            let ticket = self.add_to_head(1);
            let prepared = prepare(false);
            self.look_for_space(ticket + 1);
            behind.fence();
            self.wait_for_space(ticket + 1, observe)?;
            observe.ordered();
            store(self, ticket, false, prepared);
            observe.stored();
            return Ok(ticket);
        }
        let (ticket, free_below) =
            self.in_groups(mask, behind, observe, move |ring, ticket| store(ring, ticket, false, prepare(false)));
        self.free_below = free_below;
        ticket
    }

    /// [`in_turn`](Ring::in_turn) for some lanes of a warp, or for a ring with fewer slots than lanes; also what it
    /// knows of free slots then. Seldom, so out of line, and on a copy: a ring behind a pointer would live in memory on all ways.
    #[inline(never)]
    fn in_groups(
        mut self,
        mask: u32,
        behind: Behind,
        observe: &mut impl Observe,
        store: impl FnOnce(&Ring, u64),
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
        let mut store = Some(store);
        let mut stop = 0;
        let mut first = 0;
        while first < count && stop == 0 {
            let last = count.min(first + self.capacity());
            if is_leader && let Err(reason) = self.wait_for_space(base + last, observe) {
                stop = reason.0;
            }
            stop = warp::broadcast_u64(mask, stop, leader);
            // As in `lead`.
            warp::synchronize(mask);
            if stop == 0
                && rank >= first
                && rank < last
                && let Some(store) = store.take()
            {
                observe.ordered();
                store(&self, base + rank);
                observe.stored();
            }
            first = last;
        }
        (if stop == 0 { Ok(base + rank) } else { Err(Status(stop)) }, self.free_below)
    }

    /// The leader takes `count` adjacent tickets for the lanes of `mask` and waits until all have a slot; every lane gets the
    /// first of them, and what it prepared meanwhile.
    #[inline(always)]
    fn lead<P>(
        &mut self,
        mask: u32,
        leader: u32,
        count: u32,
        behind: Behind,
        observe: &mut impl Observe,
        prepare: impl FnOnce() -> P,
    ) -> Result<(u64, P), Status> {
        /// Set in the leader's answer when it is a reason and no ticket: no ticket comes that far.
        const STOPPED: u64 = 1 << 63;
        let is_leader = warp::lane() == leader;
        let mut answer = 0;
        if is_leader {
            answer = self.add_to_head(count as u64);
        }
        let prepared = prepare();
        if behind == Behind::Payload {
            // A lane stores what others have prepared, and only its own accesses, and what it has observed, are before its
            // fence: so it must have observed the payloads of all. A shuffle orders no memory.
            warp::synchronize(mask);
        }
        let end = answer + count as u64;
        if is_leader {
            self.look_for_space(end);
        }
        behind.fence();
        if is_leader && let Err(Status(reason)) = self.wait_for_space(end, observe) {
            answer = reason | STOPPED;
        }
        answer = warp::broadcast_u64(mask, answer, leader);
        // What the leader acquired holds for all lanes only behind a barrier; a shuffle orders no memory.
        warp::synchronize(mask);
        if answer & STOPPED == 0 { Ok((answer, prepared)) } else { Err(Status(answer & !STOPPED)) }
    }

    /// Pushes one element of the whole warp: every lane of `mask` calls this together with the same words, one ticket is
    /// taken, and the lanes store the element side by side. A command is then one write of 32 bytes over PCIe instead of
    /// two of 16, and large elements leave in full lines. (H200, acknowledged pushes by 64 blocks: 16 instead of 11 Mops.)
    ///
    /// The chains are those of [`push_each`](Ring::push_each). With [`Behind::Payload`] the warp's barrier before the fences
    /// brings the payloads of lanes that store nothing behind those that do. The lanes of `mask` hold the same ring.
    ///
    /// # Errors
    /// As [`push_each`](Ring::push_each).
    #[inline(always)]
    pub fn push_warp(
        &mut self,
        mask: u32,
        behind: Behind,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        observe: &mut impl Observe,
    ) -> Result<u64, Status> {
        if mask == u32::MAX {
            let share = || prepare_share(words, word, warp::lane());
            let (ticket, share) = self.lead(u32::MAX, 0, 1, behind, observe, share)?;
            self.store_share(ticket, words, word, warp::lane(), u32::BITS, share);
            return Ok(ticket);
        }
        let rank = (mask & ((1u32 << warp::lane()) - 1)).count_ones();
        let share = || prepare_share(words, word, rank);
        let (ticket, share) = self.lead(mask, mask.trailing_zeros(), 1, behind, observe, share)?;
        self.store_share(ticket, words, word, rank, mask.count_ones(), share);
        Ok(ticket)
    }

    /// The first of `count` adjacent tickets. Nobody waits for it here: what is done before it is used is done meanwhile.
    #[inline(always)]
    fn add_to_head(&self, count: u64) -> u64 {
        fetch_add_relaxed_gpu_u64(&self.device().head.0, count)
    }

    /// Where the tickets below `end` are not known to have a slot: a look at the tail that others have seen.
    #[inline(always)]
    fn look_for_space(&mut self, end: u64) {
        if end > self.free_below {
            self.free_below = load_acquire_gpu_u64(&self.device().tail_cache.0) + self.capacity();
        }
    }

    /// Returns when all tickets below `end` are known to have a slot.
    ///
    /// One thread polls the tail over PCIe for all; the others spin on the device copy. (Everyone polling host memory
    /// takes 132x256 producers from hundreds of Mops to 2.6 on an H200, in a C++ probe.)
    #[inline(always)]
    fn wait_for_space(&mut self, end: u64, observe: &mut impl Observe) -> Result<(), Status> {
        if end > self.free_below {
            let capacity = self.capacity();
            let tail = wait_for_space(self.host(), self.device(), capacity, self.timeout_ns, end, observe)?;
            self.free_below = tail + capacity;
        }
        Ok(())
    }

    /// Where a word of an element lies.
    #[inline(always)]
    fn address(&self, ticket: u64, index: u32) -> *const Word {
        // A ring has fewer than 2^32 slots.
        let slot = ticket as u32 & (self.capacity() as u32 - 1);
        // SAFETY: as for `host`; the mask keeps the slot below the capacity, and an element is not larger than a slot.
        unsafe { self.slots.add(((slot as usize) << self.log2_slot_words) + index as usize) }
    }

    #[inline(always)]
    fn word(&self, ticket: u64, index: u32) -> &Word {
        // SAFETY: a word of the ring.
        unsafe { &*self.address(ticket, index) }
    }

    /// The stores of a push without anything around them: of a lane's own element, or of its share of its warp's.
    #[inline(always)]
    pub(crate) fn store_bare(&self, ticket: u64, words: u32, word: impl Fn(u32) -> u64 + Copy, rank: u32, lanes: u32) {
        if lanes > 1 {
            return self.store_share(ticket, words, word, rank, lanes, prepare_share(words, word, rank));
        }
        let whole_warp = warp::SIZE == 32 && warp::active_mask() == u32::MAX;
        self.store_prepared(ticket, words, word, whole_warp, prepare(words, word, whole_warp));
    }

    /// Stores this lane's element; `whole_warp`: all lanes of a full warp do so together, with adjacent tickets. A full warp
    /// stores its commands in two stores of 512 bytes side by side, as [`exchange`] has laid them out. (Two stores of 16 bytes
    /// by each lane for itself meet again on their way only while no other warp stores between them: H200, bare stores
    /// of 4x256 threads, 250 Mops.)
    #[inline(always)]
    fn store_prepared(
        &self,
        ticket: u64,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        whole_warp: bool,
        [first, second]: [[u64; 2]; 2],
    ) {
        if words != COMMAND_WORDS {
            store_long(self.address(ticket, 0), parity(ticket, self.log2_capacity), words, word, 0, 1);
        } else if whole_warp {
            let lane = warp::lane();
            let base = ticket - lane as u64 + (lane / 2) as u64;
            self.store_pair(base, 2 * (lane & 1), first);
            self.store_pair(base + 16, 2 * (lane & 1), second);
        } else {
            self.store_pair(ticket, 0, first);
            self.store_pair(ticket, 2, second);
        }
    }

    /// Stores this lane's share of its warp's element: every `lanes`-th pair of words, from pair `rank` on.
    #[inline(always)]
    fn store_share(
        &self,
        ticket: u64,
        words: u32,
        word: impl Fn(u32) -> u64 + Copy,
        rank: u32,
        lanes: u32,
        share: [u64; 2],
    ) {
        if words != COMMAND_WORDS || lanes < COMMAND_WORDS / 2 {
            store_long(self.address(ticket, 0), parity(ticket, self.log2_capacity), words, word, rank, lanes);
        } else if rank < COMMAND_WORDS / 2 {
            self.store_pair(ticket, 2 * rank, share);
        }
    }

    #[inline(always)]
    fn store_pair(&self, ticket: u64, index: u32, pair: [u64; 2]) {
        let lap = parity(ticket, self.log2_capacity);
        store_relaxed_sys_v2_u64(self.pair(ticket, index), pair[0] | lap, pair[1] | lap);
    }

    /// Two words of an element, from an even one on.
    #[inline(always)]
    fn pair(&self, ticket: u64, index: u32) -> &WordPair {
        // SAFETY: an element is a power of two of words and begins on a multiple of its size, so two words from an even
        // one on are a pair, aligned to 16 bytes.
        unsafe { &*self.address(ticket, index).cast::<WordPair>() }
    }
}

/// A command as the lane will store it: its two halves, or of a full warp those that [`exchange`] gives it. Zeros for other
/// elements, which are stored word by word.
#[inline(always)]
fn prepare(words: u32, word: impl Fn(u32) -> u64 + Copy, whole_warp: bool) -> [[u64; 2]; 2] {
    if words != COMMAND_WORDS {
        return [[0; 2]; 2];
    }
    let halves = [[word(0), word(1)], [word(2), word(3)]];
    if whole_warp { exchange(halves) } else { halves }
}

/// The pair of a command that the lane of this rank will store; zeros for other elements and lanes.
#[inline(always)]
fn prepare_share(words: u32, word: impl Fn(u32) -> u64 + Copy, rank: u32) -> [u64; 2] {
    if words == COMMAND_WORDS && rank < COMMAND_WORDS / 2 { [word(2 * rank), word(2 * rank + 1)] } else { [0; 2] }
}

/// Lays the commands of a full warp side by side: lane `l` gets half `l % 2` of the command of lane `l / 2`, then of the
/// command of lane `16 + l / 2`.
///
/// Each lane gives both its halves and gets two, one in each of two rounds: in round `r` a lane of the lower half of the
/// warp gives half `r`, one of the upper half gives half `1 - r`; even lanes take from the lower half of the warp first, odd
/// ones from the upper.
#[inline(always)]
fn exchange([low, high]: [[u64; 2]; 2]) -> [[u64; 2]; 2] {
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

/// Stores elements other than commands, or the share of so many lanes: out of line, so that its loop takes no registers from
/// the commands' way.
#[inline(never)]
fn store_long(slot: *const Word, lap: u64, words: u32, word: impl Fn(u32) -> u64 + Copy, rank: u32, lanes: u32) {
    if words == 1 {
        if rank == 0 {
            // SAFETY: `slot` is that of a ring whose slots have this many words (contract of the caller).
            store_relaxed_sys_u64(unsafe { &*slot }, word(0) | lap);
        }
        return;
    }
    let mut index = 2 * rank;
    while index < words {
        // SAFETY: as above; an even index into a slot that is aligned to 16 bytes.
        let pair = unsafe { &*slot.add(index as usize).cast::<WordPair>() };
        store_relaxed_sys_v2_u64(pair, word(index) | lap, word(index + 1) | lap);
        index += 2 * lanes;
    }
}

/// The ring looks full: returns the tail once all tickets below `end` have a slot.
///
/// Out of line and with the parts that it needs: a ring behind a pointer would live in memory, also on the way that does
/// not come here.
#[inline(never)]
fn wait_for_space(
    host: &HostWords,
    device: &DeviceWords,
    capacity: u64,
    timeout_ns: u64,
    end: u64,
    observe: &mut impl Observe,
) -> Result<u64, Status> {
    observe.full();
    let mut poller = Poller::new(&device.tail_poller.0, timeout_ns, LONGEST_SLEEP);
    let mut seen = u64::MAX;
    loop {
        let tail = if poller.elected {
            observe.host_poll();
            let tail = load_acquire_sys_u64(&host.tail.0);
            if tail > load_relaxed_gpu_u64(&device.tail_cache.0) {
                store_release_gpu_u64(&device.tail_cache.0, tail);
                poller.release_role = true;
            }
            tail
        } else {
            load_acquire_gpu_u64(&device.tail_cache.0)
        };
        if end <= tail + capacity {
            return Ok(tail);
        }
        // A proxy that has ended frees no slot: look at the status at the pace of the back-off, and over PCIe only when the
        // tail stands still, or each look at the tail would take twice as long.
        let (_, status) = load_acquire_gpu_v2_u64(&device.completion_cache.0);
        if status != 0 {
            return Err(Status(status));
        }
        if poller.elected && tail == seen {
            let (_, status) = load_acquire_sys_v2_u64(&host.completion.0);
            if status != 0 {
                device.relay_status(status);
                return Err(Status(status));
            }
        }
        seen = tail;
        if poller.pause(host) {
            return Err(device.give_up());
        }
    }
}
