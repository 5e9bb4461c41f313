//! Device side of the ring, second part: waiting for a ticket.

use super::poller::Poller;
use super::{COMPLETION_POLLERS, DeviceWords, HostWords, Observe, Ring, Status};
use cuda_std::memory::{
    fetch_max_release_gpu_u64, load_acquire_gpu_v2_u64, load_acquire_sys_v2_u64, load_relaxed_gpu_u64,
    store_relaxed_gpu_u64, store_release_gpu_u64,
};

/// Maximum sleep between polls of a thread that waits for completion, in nanoseconds. The sleep adds to the latency of
/// every acknowledgement.
const LONGEST_SLEEP: u32 = 64;

impl Ring {
    /// Waits until this ticket and all earlier ones are complete. Returns a watermark above the ticket.
    ///
    /// One thread per role polls the completion line over PCIe. While others wait, it relays the line to device memory,
    /// and they poll the copy: the proxy's stores to a line that many blocks poll would be slow. If no other thread
    /// waits, it relays nothing: the release would add a fence at the end of every `quiet`. `completion_waiting`
    /// indicates whether others wait. A waiter that is not elected sets it in every pass, so a lost update costs one
    /// pass but never blocks the wait.
    ///
    /// Watermark and status come from one load, but one may be newer than the other. A ticket below the watermark is
    /// complete regardless of the status.
    ///
    /// # Errors
    /// Returns the proxy's status, or [`Status::DEADLINE`].
    #[inline(always)]
    pub fn wait(&mut self, ticket: u64) -> Result<u64, Status> {
        self.wait_observed(ticket, &mut ())
    }

    /// Like [`wait`](Ring::wait), but calls `observe` at each stage, for measurements.
    ///
    /// # Errors
    /// Returns the same errors as [`wait`](Ring::wait).
    #[inline(always)]
    pub fn wait_observed(&mut self, ticket: u64, observe: &mut impl Observe) -> Result<u64, Status> {
        let watermark = wait_as(self.host(), self.device(), self.timeout_ns, self.role as usize, ticket, observe)?;
        // A completed command was read from its slot before: the happens-before chain of the watermark also covers the
        // slots below it.
        self.free_below = self.free_below.max(watermark + self.capacity());
        Ok(watermark)
    }
}

/// Implements [`Ring::wait_observed`]. Not inlined, and with only the parts of the ring that it needs, like the wait
/// for space.
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
            // Loaded before the completion line, so that their latencies overlap with that load over PCIe.
            let others_wait = load_relaxed_gpu_u64(&device.completion_waiting.0) != 0;
            let crash_handler = load_relaxed_gpu_u64(&device.completion_cache.0.1) != 0;
            observe.host_poll();
            let (watermark, mut status) = load_acquire_sys_v2_u64(&host.completion.0);
            if others_wait && watermark > relayed {
                // Uses release order: a thread that acquires the copy observes everything that the proxy has observed,
                // such as a get's bytes in host memory. Bytes that a NIC wrote to device memory are ordered by the
                // device, or flushed by the proxy (`Engine::progress` in host/proxy). The maximum is stored, because
                // the poller of another role may have relayed a newer watermark.
                fetch_max_release_gpu_u64(&device.completion_cache.0.0, watermark);
                relayed = watermark;
                poller.release_role = true;
            }
            if status != 0 {
                device.relay_status(status);
            } else if crash_handler {
                // Another thread has waited for its whole timeout, or has observed the proxy's status. Later launches
                // must not wait again.
                (_, status) = load_acquire_gpu_v2_u64(&device.completion_cache.0);
            }
            (watermark, status)
        } else {
            store_relaxed_gpu_u64(&device.completion_waiting.0, 1);
            load_acquire_gpu_v2_u64(&device.completion_cache.0)
        };
        if watermark > ticket && relayed != 0 {
            // A thread that is still waiting sets the word again.
            store_relaxed_gpu_u64(&device.completion_waiting.0, 0);
        }
        if watermark > ticket {
            return Ok(watermark);
        }
        if status != 0 {
            // The status may be newer than the watermark, both in the copy and between the two halves of one load.
            // Therefore the line itself is authoritative. The load of the status was an acquire, so this load returns
            // the last watermark.
            let (watermark, _) = load_acquire_sys_v2_u64(&host.completion.0);
            return if watermark > ticket { Ok(watermark) } else { Err(Status(status)) };
        }
        if poller.pause(host) {
            return Err(device.give_up());
        }
    }
}

impl DeviceWords {
    /// Notifies the other threads of the device that all waits have ended. Uses release order: a thread that acquires
    /// the copy of the status then loads a completion line that is at least as new as the one that this thread loaded,
    /// and therefore contains the last watermark.
    #[inline(always)]
    pub(super) fn relay_status(&self, status: u64) {
        store_release_gpu_u64(&self.completion_cache.0.1, status);
    }

    /// Ends the waits of all threads, and of later launches, after the deadline has passed. A ticket may be lost, so
    /// the ring is unusable afterwards.
    #[inline(always)]
    pub(super) fn give_up(&self) -> Status {
        self.relay_status(Status::DEADLINE.0);
        Status::DEADLINE
    }
}
