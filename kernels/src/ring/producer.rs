//! The device side of the ring, first half: push an element.

use super::poller::Poller;
use super::{DeviceWords, HostWords, Observe, Ring, Stop, parity};
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

impl Ring {
    /// Pushes one command of each active lane behind the payload it speaks of, and returns the lane's ticket.
    ///
    /// # Errors
    /// As [`push_each`](Ring::push_each).
    #[inline(always)]
    pub fn push(&self, command: &Command) -> Result<u64, Stop> {
        let words = command.encode();
        self.push_each(Behind::Payload, COMMAND_WORDS, |index| words[index as usize], &mut ())
    }

    /// Pushes one element of each active lane and returns the lane's ticket. `word(i)`, below 2^63, is the `i`-th of
    /// `words`, a power of two and the same in every lane.
    ///
    /// The active lanes of a warp take adjacent tickets by one add, so that their stores coalesce. A store goes out only
    /// when its slot is free: `ticket < tail + capacity`.
    ///
    /// Two orders are at stake, and everything that waits for memory stands before the one fence, so that the waits
    /// overlap (H200: the ticket's add and the load of the tail are hidden behind the fence's round trip):
    ///
    /// - Payload before element ([`Behind::Payload`]). This thread (and, behind a block barrier, its block: the fence is
    ///   cumulative) wrote the payload; the proxy acquires the element and lets the NIC read the payload. The element is
    ///   stored after the fence.
    /// - A slot is not overwritten early: the proxy's reads of it happen before our stores to it. The chain is the proxy's
    ///   release of `tail`, the poller's acquire of it and release of `tail_cache`, the leader's load of that, which is
    ///   an acquire (or relaxed with the fence behind it, which is one too), and the warp's barrier. (A branch on the load
    ///   would do on the machines we know, but neither the PTX nor the C++ model orders a store behind a branch.)
    ///
    /// No fence stands between the words of an element: each carries the lap's parity, and the proxy takes a slot only
    /// when all agree.
    ///
    /// # Errors
    /// [`Stop`] when the ring stayed full until the deadline, or the proxy has ended. The ticket is then lost and the ring
    /// cannot be used again: the status is made sticky on the device, so that every other thread ends too.
    #[inline(always)]
    pub fn push_each(
        &self,
        behind: Behind,
        words: u32,
        word: impl Fn(u32) -> u64,
        observe: &mut impl Observe,
    ) -> Result<u64, Stop> {
        self.in_turn(behind, observe, |ticket, whole_warp| match words {
            COMMAND_WORDS if whole_warp => self.store_side_by_side(ticket, &word),
            _ => self.store(ticket, words, &word, 0, 1),
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
        &self,
        words: u32,
        word: impl Fn(u32) -> u64,
        observe: &mut impl Observe,
    ) -> Result<u64, Stop> {
        self.in_turn(Behind::Nothing, observe, |ticket, _| {
            let lap = parity(ticket, self.log2_capacity);
            for index in 0..words - 1 {
                store_relaxed_sys_u64(self.word(ticket, index), word(index) | lap);
            }
            store_release_sys_u64(self.word(ticket, words - 1), word(words - 1) | lap);
        })
    }

    /// Takes a ticket for each active lane, and lets `store` fill the lane's slot once it is free; its second argument says
    /// that all lanes of a full warp do so together.
    #[inline(always)]
    fn in_turn(&self, behind: Behind, observe: &mut impl Observe, store: impl Fn(u64, bool)) -> Result<u64, Stop> {
        let mask = warp::active_mask();
        let leader = mask.trailing_zeros();
        let rank = (mask & ((1u32 << warp::lane()) - 1)).count_ones() as u64;
        let count = mask.count_ones() as u64;
        let is_leader = warp::lane() == leader;
        let (base, mut tail) = self.take_tickets(behind, count, is_leader);
        let base = warp::broadcast_u64(mask, base, leader);

        // Slots become free from the front, so lanes go in groups of at most the capacity. Only a ring smaller than a
        // warp takes more than one round; waiting for all lanes at once would then wait for ourselves.
        let mut stop = 0;
        let mut first = 0;
        loop {
            let last = count.min(first + self.capacity());
            if is_leader && base + last > tail + self.capacity() {
                match self.wait_for_space(base + last, observe) {
                    Ok(seen) => tail = seen,
                    Err(reason) => stop = reason.0,
                }
            }
            stop = warp::broadcast_u64(mask, stop, leader);
            // What the leader acquired holds for all lanes only behind a barrier; a shuffle orders no memory.
            warp::synchronize(mask);
            if stop == 0 && rank >= first && rank < last {
                store(base + rank, warp::SIZE == 32 && mask == u32::MAX && first == 0 && last == count);
            }
            first = last;
            if first >= count || stop != 0 {
                break;
            }
        }
        if stop == 0 { Ok(base + rank) } else { Err(Stop(stop)) }
    }

    /// Pushes one element of the whole warp: every lane of `mask` calls this together with the same words, one ticket is
    /// taken, and the lanes store the element side by side. A command is then one write of 32 bytes over PCIe instead of
    /// two of 16, and large elements leave in full lines. (H200, acknowledged pushes by 64 blocks: 16 instead of 11 Mops.)
    ///
    /// The chains are those of [`push_each`](Ring::push_each). With [`Behind::Payload`] the fence is the leader's, and it
    /// releases through the words that the leader stores, which the proxy must see like all others.
    ///
    /// # Errors
    /// As [`push_each`](Ring::push_each).
    #[inline(always)]
    pub fn push_warp(
        &self,
        mask: u32,
        behind: Behind,
        words: u32,
        word: impl Fn(u32) -> u64,
        observe: &mut impl Observe,
    ) -> Result<u64, Stop> {
        let leader = mask.trailing_zeros();
        let rank = (mask & ((1u32 << warp::lane()) - 1)).count_ones();
        let is_leader = warp::lane() == leader;
        let (ticket, tail) = self.take_tickets(behind, 1, is_leader);
        let mut stop = 0;
        if is_leader
            && ticket >= tail + self.capacity()
            && let Err(reason) = self.wait_for_space(ticket + 1, observe)
        {
            stop = reason.0;
        }
        let ticket = warp::broadcast_u64(mask, ticket, leader);
        stop = warp::broadcast_u64(mask, stop, leader);
        warp::synchronize(mask);
        if stop != 0 {
            return Err(Stop(stop));
        }
        self.store(ticket, words, word, rank, mask.count_ones());
        Ok(ticket)
    }

    /// The leader's tickets, and a tail that is not too new. Nothing for the other lanes.
    #[inline(always)]
    fn take_tickets(&self, behind: Behind, count: u64, is_leader: bool) -> (u64, u64) {
        let device = self.device();
        let mut taken = (0, 0);
        if is_leader {
            let base = fetch_add_relaxed_gpu_u64(&device.head.0, count);
            taken = match behind {
                Behind::Payload => (base, load_relaxed_gpu_u64(&device.tail_cache.0)),
                Behind::Nothing => (base, load_acquire_gpu_u64(&device.tail_cache.0)),
            };
        }
        if behind == Behind::Payload {
            fence_acq_rel_sys();
        }
        taken
    }

    /// Where a word of an element lies.
    #[inline(always)]
    fn address(&self, ticket: u64, index: u32) -> *const Word {
        let slot = (ticket & (self.capacity() - 1)) << self.log2_slot_words;
        // SAFETY: as for `host`; the mask keeps the slot below the capacity, and an element is not larger than a slot.
        unsafe { self.slots.add(slot as usize + index as usize) }
    }

    #[inline(always)]
    fn word(&self, ticket: u64, index: u32) -> &Word {
        // SAFETY: a word of the ring.
        unsafe { &*self.address(ticket, index) }
    }

    /// The stores of a push without anything around them: of a lane's own element, or of its share of its warp's.
    #[inline(always)]
    pub(crate) fn store_bare(&self, ticket: u64, words: u32, word: impl Fn(u32) -> u64, rank: u32, lanes: u32) {
        if words == COMMAND_WORDS && lanes == 1 && warp::SIZE == 32 && warp::active_mask() == u32::MAX {
            self.store_side_by_side(ticket, word);
        } else {
            self.store(ticket, words, word, rank, lanes);
        }
    }

    /// Stores this lane's share of an element: of its pairs of words every `lanes`-th, from pair `rank` on.
    #[inline(always)]
    fn store(&self, ticket: u64, words: u32, word: impl Fn(u32) -> u64, rank: u32, lanes: u32) {
        let lap = parity(ticket, self.log2_capacity);
        if words == 1 {
            if rank == 0 {
                store_relaxed_sys_u64(self.word(ticket, 0), word(0) | lap);
            }
            return;
        }
        if words == COMMAND_WORDS && lanes == 1 {
            // Both halves computed before the first is stored: stores that leave together arrive as one write. (H200, bare
            // stores of 132x1024 threads: see experiments/queue.)
            let words: [u64; 4] = [word(0) | lap, word(1) | lap, word(2) | lap, word(3) | lap];
            store_relaxed_sys_v2_u64(self.pair(ticket, 0), words[0], words[1]);
            store_relaxed_sys_v2_u64(self.pair(ticket, 2), words[2], words[3]);
            return;
        }
        let mut index = 2 * rank;
        while index < words {
            store_relaxed_sys_v2_u64(self.pair(ticket, index), word(index) | lap, word(index + 1) | lap);
            index += 2 * lanes;
        }
    }

    /// Stores the commands of a full warp, whose tickets are adjacent, in two stores of 512 bytes side by side: lane `l`
    /// stores half `l % 2` of command `l / 2`, then of command `16 + l / 2`. (Two stores of 16 bytes by each lane for itself
    /// meet again on their way only while no other warp stores between them: H200, bare stores of 4x256 threads, 250
    /// Mops; in halves exchanged between neighbours 800.)
    #[inline(always)]
    fn store_side_by_side(&self, ticket: u64, word: impl Fn(u32) -> u64) {
        let words = [word(0), word(1), word(2), word(3)];
        let lane = warp::lane();
        let base = ticket - lane as u64;
        for first in [0, 16] {
            let source = first + lane / 2;
            let [a, b, c, d] = words.map(|word| warp::shuffle_u64(u32::MAX, word, source));
            let half = if lane & 1 == 0 { [a, b] } else { [c, d] };
            let ticket = base + source as u64;
            let lap = parity(ticket, self.log2_capacity);
            store_relaxed_sys_v2_u64(self.pair(ticket, 2 * (lane & 1)), half[0] | lap, half[1] | lap);
        }
    }

    /// Two words of an element, from an even one on.
    #[inline(always)]
    fn pair(&self, ticket: u64, index: u32) -> &WordPair {
        // SAFETY: an element is a power of two of words and begins on a multiple of its size, so two words from an even
        // one on are a pair, aligned to 16 bytes.
        unsafe { &*self.address(ticket, index).cast::<WordPair>() }
    }

    /// The ring looks full: returns when all tickets below `end` have a slot, `end <= tail + capacity`, with that tail.
    ///
    /// One thread polls the tail over PCIe for all; the others spin on the device copy. (Everyone polling host memory
    /// takes 132x256 producers from hundreds of Mops to 2.6; H200, DESIGN 8.)
    #[inline(always)]
    fn wait_for_space(&self, end: u64, observe: &mut impl Observe) -> Result<u64, Stop> {
        wait_for_space(self.host(), self.device(), self.capacity(), self.timeout_ns, end, observe)
    }
}

/// [`Ring::wait_for_space`], out of line and with the parts that it needs: a ring behind a pointer would live in memory,
/// also on the way that does not come here.
#[inline(never)]
fn wait_for_space(
    host: &HostWords,
    device: &DeviceWords,
    capacity: u64,
    timeout_ns: u64,
    end: u64,
    observe: &mut impl Observe,
) -> Result<u64, Stop> {
    observe.full();
    let mut poller = Poller::new(&device.tail_poller.0, timeout_ns, LONGEST_SLEEP);
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
        // A proxy that has ended frees no slot: look at the status at the pace of the back-off.
        let (_, status) = load_acquire_gpu_v2_u64(&device.completion_cache.0);
        if status != 0 {
            return Err(Stop(status));
        }
        if poller.elected {
            let (_, status) = load_acquire_sys_v2_u64(&host.completion.0);
            if status != 0 {
                device.relay_status(status);
                return Err(Stop(status));
            }
        }
        if poller.pause() {
            return Err(device.give_up());
        }
    }
}
