//! Which tickets have a free slot: a look at the tail, and the wait for it.
//!
//! A slot is not overwritten early: the proxy's reads of it happen before a producer's stores to it. The chain is the proxy's release
//! of `tail`, the poller's acquire of it and release of `tail_cache`, and the producer's acquire of that, in this push or an earlier
//! one ([`free_below`](Ring::free_below)). Where one lane looks for others, a barrier of theirs follows. (A branch on a relaxed load
//! would do on the machines we know, but neither the PTX nor the C++ model orders a store behind a branch.)

use super::poller::Poller;
use super::{DeviceWords, HostWords, Observe, Ring, Status};
use cuda_std::memory::{
    load_acquire_gpu_u64, load_acquire_gpu_v2_u64, load_acquire_sys_u64, load_acquire_sys_v2_u64, load_relaxed_gpu_u64,
    store_release_gpu_u64,
};

/// Longest sleep of a thread that waits for space (nanoseconds): a full ring is a matter of rate, not of latency.
const LONGEST_SLEEP: u32 = 512;

impl Ring {
    /// Where the tickets below `end` are not known to have a slot: a look at the tail that others have seen.
    #[inline(always)]
    pub(crate) fn look_for_space(&mut self, end: u64) {
        if end > self.free_below {
            self.free_below = load_acquire_gpu_u64(&self.device().tail_cache.0) + self.capacity();
        }
    }

    /// Returns when all tickets below `end` are known to have a slot.
    ///
    /// One thread polls the tail over PCIe for all; the others spin on the device copy. (Everyone polling host memory
    /// takes 132x256 producers from hundreds of Mops to 2.6 on an H200, in a C++ probe.)
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
