//! Election of the thread that polls host memory on behalf of all.

use super::HostWords;
use cuda_std::memory::{
    Word, compare_exchange_acquire_gpu_u64, load_acquire_sys_u64, load_acquire_sys_v2_u64, load_relaxed_gpu_u64,
    store_relaxed_gpu_u64, store_release_gpu_u64,
};
use cuda_std::{thread, warp};

/// First sleep, in nanoseconds, of threads that wait on a device copy; doubled up to the waiter's maximum. The poller
/// itself does not sleep: the read over PCIe limits its rate.
const SHORTEST_SLEEP: u32 = 32;

/// Number of times during its timeout that a waiting thread checks whether the proxy makes progress.
const LOOKS: u64 = 16;

/// State of a waiting thread: whether it polls host memory, how long it sleeps otherwise, and when its wait times out.
pub(super) struct Poller<'a> {
    role: &'a Word,
    pub(super) elected: bool,
    /// Whether the role is handed over with release semantics. The next thread in this role must observe this thread's
    /// stores to the copy before it stores to the copy.
    pub(super) release_role: bool,
    sleep: u32,
    longest_sleep: u32,
    timeout_ns: u64,
    /// Time at which the proxy last made progress, followed by the time at which this was last checked.
    moved: u64,
    looked: u64,
    /// Sum of tail and watermark at the last check.
    progress: u64,
}

impl<'a> Poller<'a> {
    #[inline(always)]
    pub(super) fn new(role: &'a Word, timeout_ns: u64, longest_sleep: u32) -> Poller<'a> {
        let leads = warp::lane() == warp::active_mask().trailing_zeros();
        // The first attempt skips the load and uses the exchange directly. Without contention this is one round trip to
        // memory instead of two.
        let elected = leads && compare_exchange_acquire_gpu_u64(role, 0, 1) == 0;
        let now = thread::global_timer_ns();
        Poller {
            role,
            elected,
            release_role: false,
            sleep: SHORTEST_SLEEP,
            longest_sleep,
            timeout_ns,
            moved: now,
            looked: now,
            progress: 0,
        }
    }

    /// Tries to take the role. One lane of a warp does this on behalf of all. Loads the role's word before attempting
    /// the exchange.
    #[inline(always)]
    fn stand(&mut self) {
        let leads = warp::lane() == warp::active_mask().trailing_zeros();
        self.elected =
            leads && load_relaxed_gpu_u64(self.role) == 0 && compare_exchange_acquire_gpu_u64(self.role, 0, 1) == 0;
    }

    /// Pauses after an unsuccessful poll. Returns whether the proxy has made no progress for the whole timeout.
    #[inline(always)]
    pub(super) fn pause(&mut self, host: &HostWords) -> bool {
        let now = thread::global_timer_ns();
        if now.wrapping_sub(self.looked) > self.timeout_ns / LOOKS && self.is_over(host, now) {
            return true;
        }
        if self.elected {
            // The elected thread does not sleep.
            thread::relax();
        } else {
            thread::nanosleep(self.sleep);
            self.sleep = (self.sleep * 2).min(self.longest_sleep);
            self.stand();
        }
        false
    }
}

impl Poller<'_> {
    /// Returns whether the proxy has made no progress for the timeout. Like the proxy's own timeout, it counts from the
    /// last progress, because a long queue ahead of this command may take long. All waiting threads load host memory
    /// here, but rarely.
    #[inline(always)]
    fn is_over(&mut self, host: &HostWords, now: u64) -> bool {
        self.looked = now;
        // Both values only grow, so their sum shows whether either has grown.
        let progress = load_acquire_sys_u64(&host.tail.0).wrapping_add(load_acquire_sys_v2_u64(&host.completion.0).0);
        if progress != self.progress {
            (self.progress, self.moved) = (progress, now);
        }
        now.wrapping_sub(self.moved) > self.timeout_ns
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

#[cfg(all(test, not(loom), not(target_arch = "nvptx64")))]
mod tests {
    use super::*;
    use cuda_std::memory::store_release_sys_u64;

    /// The test passes times as arguments instead of waiting.
    #[test]
    fn deadline_counts_from_last_progress() {
        let (role, host) = (Word::new(0), HostWords::default());
        let mut poller = Poller::new(&role, 1000, SHORTEST_SLEEP);
        let start = poller.moved;
        assert!(!poller.is_over(&host, start + 1000) && poller.is_over(&host, start + 1001), "nothing moves");
        store_release_sys_u64(&host.tail.0, 1);
        assert!(!poller.is_over(&host, start + 2000), "taken from the ring");
        assert!(!poller.is_over(&host, start + 3000));
        store_release_sys_u64(&host.completion.0.0, 1);
        assert!(!poller.is_over(&host, start + 3500), "completed");
        assert!(!poller.is_over(&host, start + 4500) && poller.is_over(&host, start + 4501), "nothing moves any more");
    }

    #[test]
    fn pause_skips_check_of_host_before_interval() {
        let (role, host) = (Word::new(0), HostWords::default());
        let mut poller = Poller::new(&role, u64::MAX, SHORTEST_SLEEP);
        let looked = poller.looked;
        assert!(!poller.pause(&host));
        assert_eq!(poller.looked, looked);
    }
}
