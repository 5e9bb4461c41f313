//! The device side of the ring: push a command, wait for a ticket.

use super::{DeviceWords, HostWords, Ring, Slot, Stop, parity};
use crate::command::Command;
use cuda_std::memory::{
    Word, compare_exchange_acquire_gpu_u64, fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, load_acquire_gpu_u64,
    load_acquire_gpu_v2_u64, load_acquire_sys_u64, load_acquire_sys_v2_u64, load_relaxed_gpu_u64,
    store_relaxed_gpu_u64, store_relaxed_sys_v2_u64, store_release_gpu_u64,
};
use cuda_std::{thread, warp};

/// Back-off of threads that wait on a device copy, doubling between these (nanoseconds). The poller itself never sleeps:
/// the read over PCIe is its pace.
const SHORTEST_SLEEP: u32 = 32;
const LONGEST_SLEEP: u32 = 512;

impl Ring {
    #[inline(always)]
    fn host(&self) -> &HostWords {
        // SAFETY: whoever made the Ring keeps its memory until no kernel uses it (contract of the struct).
        unsafe { &*self.host }
    }

    #[inline(always)]
    fn device(&self) -> &DeviceWords {
        // SAFETY: as for `host`.
        unsafe { &*self.device }
    }

    #[inline(always)]
    fn slot(&self, ticket: u64) -> &Slot {
        // SAFETY: as for `host`; the mask keeps the index below the capacity.
        unsafe { &*self.slots.add((ticket & (self.capacity() - 1)) as usize) }
    }

    /// Pushes one command behind the payload it speaks of, and returns its ticket.
    ///
    /// The active lanes of a warp take adjacent tickets by one add, so that their stores coalesce. A store goes out only
    /// when its slot is free: `ticket < tail + capacity`.
    ///
    /// One fence serves two orders, and everything that waits for memory stands before it, so that the waits overlap
    /// (H200: the ticket's add and the load of the tail are hidden behind the fence's round trip):
    ///
    /// - Payload before command. This thread (and, behind a block barrier, its block: the fence is cumulative) wrote the
    ///   payload; the proxy acquires the command and lets the NIC read the payload. The command is stored after the fence.
    /// - A slot is not overwritten early: the proxy's reads of it happen before our stores to it. The chain is the proxy's
    ///   release of `tail`, the poller's acquire of it and release of `tail_cache`, the leader's relaxed load of that with
    ///   the fence behind it (an acquire), and the warp's barrier. (A branch on the load would do on the machines we know,
    ///   but neither the PTX nor the C++ model orders a store behind a branch.)
    ///
    /// No fence stands between the words of a command: each carries the lap's parity, and the proxy takes a slot only when
    /// all four agree.
    ///
    /// # Errors
    /// [`Stop`] when the ring stayed full until the deadline, or the proxy has ended. The ticket is then lost and the ring
    /// cannot be used again: the status is made sticky on the device, so that every other thread ends too.
    #[inline(always)]
    pub fn push(&self, command: &Command) -> Result<u64, Stop> {
        let mask = warp::active_mask();
        let leader = mask.trailing_zeros();
        let rank = (mask & ((1u32 << warp::lane()) - 1)).count_ones() as u64;
        let count = mask.count_ones() as u64;
        let is_leader = warp::lane() == leader;

        let mut base = 0;
        let mut tail = 0;
        if is_leader {
            base = fetch_add_relaxed_gpu_u64(&self.device().head.0, count);
            tail = load_relaxed_gpu_u64(&self.device().tail_cache.0);
        }
        fence_acq_rel_sys();
        base = warp::broadcast_u64(mask, base, leader);

        // Slots become free from the front, so lanes go in groups of at most the capacity. Only a ring smaller than a
        // warp takes more than one round; waiting for all lanes at once would then wait for ourselves.
        let mut stop = 0;
        let mut first = 0;
        loop {
            let last = count.min(first + self.capacity());
            if is_leader && base + last > tail + self.capacity() {
                stop = match self.wait_for_space(base + last) {
                    Ok(()) => 0,
                    Err(reason) => reason.0,
                };
            }
            stop = warp::broadcast_u64(mask, stop, leader);
            // What the leader acquired holds for all lanes only behind a barrier; a shuffle orders no memory.
            warp::synchronize(mask);
            if stop == 0 && rank >= first && rank < last {
                self.store(base + rank, command);
            }
            first = last;
            if first >= count || stop != 0 {
                break;
            }
        }
        if stop == 0 { Ok(base + rank) } else { Err(Stop(stop)) }
    }

    #[inline(always)]
    fn store(&self, ticket: u64, command: &Command) {
        let lap = parity(ticket, self.log2_capacity);
        let words = command.encode();
        let slot = self.slot(ticket);
        store_relaxed_sys_v2_u64(&slot.0, words[0] | lap, words[1] | lap);
        store_relaxed_sys_v2_u64(&slot.1, words[2] | lap, words[3] | lap);
    }

    /// The ring looks full: returns when all tickets below `end` have a slot, `end <= tail + capacity`.
    ///
    /// One thread polls the tail over PCIe for all; the others spin on the device copy. (Everyone polling host memory
    /// takes 132x256 producers from hundreds of Mops to 2.6; H200, DESIGN 8.)
    #[inline(never)]
    fn wait_for_space(&self, end: u64) -> Result<(), Stop> {
        let capacity = self.capacity();
        let device = self.device();
        let mut poller = Poller::new(&device.tail_poller.0, self.timeout_ns);
        loop {
            let tail = if poller.elected {
                let tail = load_acquire_sys_u64(&self.host().tail.0);
                if tail > load_relaxed_gpu_u64(&device.tail_cache.0) {
                    store_release_gpu_u64(&device.tail_cache.0, tail);
                    poller.release_role = true;
                }
                tail
            } else {
                load_acquire_gpu_u64(&device.tail_cache.0)
            };
            if end <= tail + capacity {
                return Ok(());
            }
            // A proxy that has ended frees no slot: look at the status at the pace of the back-off.
            let (_, status) = load_acquire_gpu_v2_u64(&device.completion_cache.0);
            if status != 0 {
                return Err(Stop(status));
            }
            if poller.elected {
                let (_, status) = load_acquire_sys_v2_u64(&self.host().completion.0);
                if status != 0 {
                    self.relay_status(status);
                    return Err(Stop(status));
                }
            }
            if poller.pause() {
                return Err(self.give_up());
            }
        }
    }

    /// Waits until this ticket and all before it are complete; returns the watermark that says so.
    ///
    /// One thread polls the completion line over PCIe; while others wait it relays the line into device memory, and they
    /// read the copy. (The proxy's stores to a line that many blocks poll cost it 1 us each; H200, DESIGN 8.) Alone it
    /// relays nothing: the release would cost a fence on the way out of every quiet. `completion_waiting` says which; a
    /// waiter that is not elected raises it in every pass, so that a lost update costs one pass and never the wait.
    ///
    /// The watermark and the status come by one load, without a promise that both are of one age; a ticket below the
    /// watermark is done whatever the status says.
    ///
    /// # Errors
    /// The proxy's status, or [`Stop::DEADLINE`].
    #[inline(never)]
    pub fn wait(&self, ticket: u64) -> Result<u64, Stop> {
        let device = self.device();
        let mut poller = Poller::new(&device.completion_poller.0, self.timeout_ns);
        let mut relayed = 0;
        loop {
            let (watermark, status) = if poller.elected {
                // Read before the line, so that this load hides behind the one over PCIe.
                let others_wait = load_relaxed_gpu_u64(&device.completion_waiting.0) != 0;
                let (watermark, status) = load_acquire_sys_v2_u64(&self.host().completion.0);
                if others_wait && watermark > relayed {
                    // Release: whoever acquires the copy sees what the proxy saw before (a get's bytes in host memory;
                    // for bytes that a NIC wrote to device memory, the rail must have seen to their order).
                    store_release_gpu_u64(&device.completion_cache.0.0, watermark);
                    relayed = watermark;
                    poller.release_role = true;
                }
                if status != 0 {
                    self.relay_status(status);
                }
                (watermark, status)
            } else {
                store_relaxed_gpu_u64(&device.completion_waiting.0, 1);
                load_acquire_gpu_v2_u64(&device.completion_cache.0)
            };
            if watermark > ticket && relayed != 0 {
                // Whoever still waits raises it again.
                store_relaxed_gpu_u64(&device.completion_waiting.0, 0);
            }
            if watermark > ticket {
                return Ok(watermark);
            }
            if status != 0 {
                // The status may have overtaken the watermark, both in the copy and between the two halves of one load:
                // the line itself decides. The load that brought the status acquired it, so this one finds the last
                // watermark.
                let (watermark, _) = load_acquire_sys_v2_u64(&self.host().completion.0);
                return if watermark > ticket { Ok(watermark) } else { Err(Stop(status)) };
            }
            if poller.pause() {
                return Err(self.give_up());
            }
        }
    }

    /// Shows the other threads of the device that there is nothing left to wait for. Release: whoever acquires the copy
    /// of the status reads a completion line at least as new as we did, and so finds the last watermark there.
    #[inline(always)]
    fn relay_status(&self, status: u64) {
        store_release_gpu_u64(&self.device().completion_cache.0.1, status);
    }

    /// The deadline has passed: end the others' waits too. (All but that of the completion line's poller, which does not
    /// read the copy: its own deadline ends it.) A ticket may be lost, so the ring is not usable after.
    #[inline(always)]
    fn give_up(&self) -> Stop {
        self.relay_status(Stop::DEADLINE.0);
        Stop::DEADLINE
    }
}

/// One waiting thread: whether it is the one that polls host memory, how long it sleeps otherwise, when it gives up.
struct Poller<'a> {
    role: &'a Word,
    elected: bool,
    /// The next in this role must see our stores to the copy before it makes its own: hand over with release.
    release_role: bool,
    sleep: u32,
    started: u64,
    timeout_ns: u64,
}

impl<'a> Poller<'a> {
    #[inline(always)]
    fn new(role: &'a Word, timeout_ns: u64) -> Poller<'a> {
        let leads = warp::lane() == warp::active_mask().trailing_zeros();
        // The first attempt goes straight to the exchange: alone, that is one trip to memory instead of two.
        let elected = leads && compare_exchange_acquire_gpu_u64(role, 0, 1) == 0;
        Poller {
            role,
            elected,
            release_role: false,
            sleep: SHORTEST_SLEEP,
            started: thread::global_timer_ns(),
            timeout_ns,
        }
    }

    /// Takes the role when it is free. One lane of a warp stands for all: the role's word is read before it is fought for.
    #[inline(always)]
    fn stand(&mut self) {
        let leads = warp::lane() == warp::active_mask().trailing_zeros();
        self.elected =
            leads && load_relaxed_gpu_u64(self.role) == 0 && compare_exchange_acquire_gpu_u64(self.role, 0, 1) == 0;
    }

    /// After an attempt that did not succeed: true when the deadline has passed.
    #[inline(always)]
    fn pause(&mut self) -> bool {
        if thread::global_timer_ns().wrapping_sub(self.started) > self.timeout_ns {
            return true;
        }
        if self.elected {
            // On the host every spin gives way; on the GPU the poller keeps polling.
            if warp::SIZE == 1 {
                thread::nanosleep(0);
            }
        } else {
            thread::nanosleep(self.sleep);
            self.sleep = (self.sleep * 2).min(LONGEST_SLEEP);
            self.stand();
        }
        false
    }
}

impl Drop for Poller<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match (self.elected, self.release_role) {
            (false, _) => {}
            (true, true) => store_release_gpu_u64(self.role, 0),
            (true, false) => store_relaxed_gpu_u64(self.role, 0),
        }
    }
}
