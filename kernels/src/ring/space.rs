//! Free slots of the ring: the check of the tail, and the wait for it.
//!
//! A slot is not overwritten early: the proxy's reads of it happen before a producer's stores to it. The chain starts
//! with the proxy's release of `tail`. The poller acquires `tail` and releases `tail_cache`. The producer acquires
//! `tail_cache`, in this push or an earlier one ([`free_below`](Ring::free_below)). If one lane checks on behalf of
//! others, a barrier of these lanes follows. (A branch on a relaxed load would suffice on known hardware, but neither
//! the PTX nor the C++ memory model orders a store after a branch.)

use super::poller::Poller;
use super::{DeviceWords, HostWords, Observe, Ring, Status};
use cuda_std::memory::{
    load_acquire_gpu_u64, load_acquire_gpu_v2_u64, load_acquire_sys_u64, load_acquire_sys_v2_u64, load_relaxed_gpu_u64,
    store_release_gpu_u64,
};

/// Maximum sleep between polls of a thread that waits for space, in nanoseconds. Once the ring is full, latency matters
/// less than throughput.
const LONGEST_SLEEP: u32 = 512;

impl Ring {
    /// Refreshes `free_below` from the device copy of the tail, if it is below `end`.
    #[inline(always)]
    pub(crate) fn refresh_free_below(&mut self, end: u64) {
        if end > self.free_below {
            self.free_below = load_acquire_gpu_u64(&self.device().tail_cache.0) + self.capacity();
        }
    }

    /// Waits until all tickets below `end` are known to have a free slot.
    ///
    /// One thread polls the tail over PCIe on behalf of all; the others poll the device copy. If every thread polled
    /// host memory, throughput would collapse.
    #[inline(always)]
    pub(crate) fn wait_for_space(&mut self, end: u64, observe: &mut impl Observe) -> Result<(), Status> {
        if end > self.free_below {
            let capacity = self.capacity();
            let tail = wait_for_space(self.host(), self.device(), capacity, self.timeout_ns, end, observe)?;
            self.free_below = tail + capacity;
        }
        Ok(())
    }
}

/// Waits for slots of a ring that appears full. Returns the tail once all tickets below `end` have a slot.
///
/// Not inlined, and with only the parts of the ring that it needs: passing a reference would keep the ring in memory on
/// every path.
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
        // A proxy that has ended frees no slots, so each pass also checks the status. The status is loaded over PCIe
        // only if the tail has not moved: otherwise each poll of the tail would take twice as long.
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
