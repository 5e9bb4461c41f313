//! The device side of the ring, second half: wait for a ticket.

use super::poller::Poller;
use super::{COMPLETION_POLLERS, DeviceWords, HostWords, Observe, Ring, Status};
use crate::direct;
use cuda_std::call::by_address;
use cuda_std::memory::{
    fetch_max_release_gpu_u64, load_acquire_gpu_v2_u64, load_acquire_sys_v2_u64, load_relaxed_gpu_u64,
    store_relaxed_gpu_u64, store_release_gpu_u64,
};

/// Longest sleep of a thread that waits for completion (nanoseconds): it adds to every acknowledgement.
const LONGEST_SLEEP: u32 = 64;

impl Ring {
    /// Waits until this ticket and all before it are complete; returns the watermark that says so.
    ///
    /// One thread of each role polls the completion line over PCIe; while others wait it relays the line into device
    /// memory, and they read the copy. (The proxy's stores to a line that many blocks poll cost it 1 us each on an
    /// H200, in a C++ probe.) Alone it relays nothing: the release would cost a fence on the way out of every quiet. `completion_waiting`
    /// says which; a waiter that is not elected raises it in every pass, so that a lost update costs one pass and never
    /// the wait.
    ///
    /// The watermark and the status come by one load, without a promise that both are of one age; a ticket below the
    /// watermark is done whatever the status says.
    ///
    /// # Errors
    /// The proxy's status, or [`Status::DEADLINE`].
    #[inline(always)]
    pub fn wait(&mut self, ticket: u64) -> Result<u64, Status> {
        if self.is_to_card() { self.wait_at_card(ticket) } else { self.wait_observed(ticket, &mut ()) }
    }

    /// The other end is a card's queue.
    #[inline(always)]
    fn wait_at_card(&mut self, ticket: u64) -> Result<u64, Status> {
        let wait = by_address(direct::wait_for_channel as fn(_, _, _) -> _);
        let watermark = wait(self.device.cast(), ticket, self.free_below)?;
        self.free_below = self.free_below.max(watermark + self.capacity());
        Ok(watermark)
    }

    /// As [`wait`](Ring::wait) for this block's ring ([`Ring::of_block`]), out of line; as [`Ring::push_of_block`].
    ///
    /// # Safety
    /// As for [`Ring::of_block`].
    ///
    /// # Errors
    /// As [`wait`](Ring::wait).
    #[inline(always)]
    pub(crate) unsafe fn wait_of_block(
        (rings, count): (*const Ring, u32),
        ticket: u64,
        free_below: u64,
    ) -> Result<u64, Status> {
        #[inline(never)]
        unsafe fn wait(rings: *const Ring, count: u32, ticket: u64, free_below: u64) -> Result<u64, Status> {
            // SAFETY: the caller's contract.
            let ring = unsafe { Ring::of_block(rings, count) };
            Ring { free_below: ring.free_below.max(free_below), ..ring }.wait(ticket)
        }
        // SAFETY: the caller's contract.
        unsafe { by_address(wait as unsafe fn(_, _, _, _) -> _)(rings, count, ticket, free_below) }
    }

    /// As [`wait`](Ring::wait), for a study that wants to know more of it.
    ///
    /// # Errors
    /// As [`wait`](Ring::wait).
    #[inline(always)]
    pub fn wait_observed(&mut self, ticket: u64, observe: &mut impl Observe) -> Result<u64, Status> {
        let watermark = wait_as(self.host(), self.device(), self.timeout_ns, self.role as usize, ticket, observe)?;
        // What is done has been read from its slot before: the watermark's chain is also one for the slots below it.
        self.free_below = self.free_below.max(watermark + self.capacity());
        Ok(watermark)
    }
}

/// [`Ring::wait_observed`], out of line and with the parts that it needs, as for a push that waits for space.
#[inline(never)]
fn wait_as(
    host: &HostWords,
    device: &DeviceWords,
    timeout_ns: u64,
    role: usize,
    ticket: u64,
    observe: &mut impl Observe,
) -> Result<u64, Status> {
    let role = &device.completion_poller[role % COMPLETION_POLLERS].0;
    let mut poller = Poller::new(role, timeout_ns, LONGEST_SLEEP);
    let mut relayed = 0;
    loop {
        let (watermark, status) = if poller.elected {
            // Read before the line, so that these loads hide behind the one over PCIe.
            let others_wait = load_relaxed_gpu_u64(&device.completion_waiting.0) != 0;
            let given_up = load_relaxed_gpu_u64(&device.completion_cache.0.1) != 0;
            observe.host_poll();
            let (watermark, mut status) = load_acquire_sys_v2_u64(&host.completion.0);
            if others_wait && watermark > relayed {
                // Release: whoever acquires the copy sees what the proxy saw before: a get's bytes in host memory. Those
                // that a NIC wrote into device memory the device orders, or the proxy has flushed them (`Engine::progress`
                // in host/proxy). The maximum: the poller of another role may have relayed a newer one.
                fetch_max_release_gpu_u64(&device.completion_cache.0.0, watermark);
                relayed = watermark;
                poller.release_role = true;
            }
            if status != 0 {
                device.relay_status(status);
            } else if given_up {
                // Somebody has waited a whole timeout in vain, or has seen the proxy's status: no launch behind that one waits again.
                (_, status) = load_acquire_gpu_v2_u64(&device.completion_cache.0);
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
            let (watermark, _) = load_acquire_sys_v2_u64(&host.completion.0);
            return if watermark > ticket { Ok(watermark) } else { Err(Status(status)) };
        }
        if poller.pause(host) {
            return Err(device.give_up());
        }
    }
}

impl DeviceWords {
    /// Shows the other threads of the device that there is nothing left to wait for. Release: whoever acquires the copy
    /// of the status reads a completion line at least as new as we did, and so finds the last watermark there.
    #[inline(always)]
    pub(super) fn relay_status(&self, status: u64) {
        store_release_gpu_u64(&self.completion_cache.0.1, status);
    }

    /// The deadline has passed: end the others' waits too, and those of later launches. A ticket may be lost, so the ring is not usable after.
    #[inline(always)]
    pub(super) fn give_up(&self) -> Status {
        self.relay_status(Status::DEADLINE.0);
        Status::DEADLINE
    }
}
