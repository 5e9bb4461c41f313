//! Who polls host memory for all.

use super::HostWords;
use cuda_std::memory::{
    Word, compare_exchange_acquire_gpu_u64, load_acquire_sys_u64, load_acquire_sys_v2_u64, load_relaxed_gpu_u64,
    store_relaxed_gpu_u64, store_release_gpu_u64,
};
use cuda_std::{thread, warp};

/// Back-off of threads that wait on a device copy: the first sleep in nanoseconds, doubled up to the waiter's longest. The
/// poller itself never sleeps: the read over PCIe is its pace.
const SHORTEST_SLEEP: u32 = 32;

/// A waiting thread looks so often within its timeout whether the proxy still moves.
const LOOKS: u64 = 16;

/// One waiting thread: whether it is the one that polls host memory, how long it sleeps otherwise, when it gives up.
pub(super) struct Poller<'a> {
    role: &'a Word,
    pub(super) elected: bool,
    /// The next in this role must see our stores to the copy before it makes its own: hand over with release.
    pub(super) release_role: bool,
    sleep: u32,
    longest_sleep: u32,
    timeout_ns: u64,
    /// When the proxy was last seen to have moved, and when that was last looked for.
    moved: u64,
    looked: u64,
    /// What it had done then.
    progress: u64,
}

impl<'a> Poller<'a> {
    #[inline(always)]
    pub(super) fn new(role: &'a Word, timeout_ns: u64, longest_sleep: u32) -> Poller<'a> {
        let leads = warp::lane() == warp::active_mask().trailing_zeros();
        // The first attempt goes straight to the exchange: alone, that is one trip to memory instead of two.
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

    /// Takes the role when it is free. One lane of a warp stands for all: the role's word is read before it is fought for.
    #[inline(always)]
    fn stand(&mut self) {
        let leads = warp::lane() == warp::active_mask().trailing_zeros();
        self.elected =
            leads && load_relaxed_gpu_u64(self.role) == 0 && compare_exchange_acquire_gpu_u64(self.role, 0, 1) == 0;
    }

    /// After an attempt that did not succeed: true when the proxy has not moved for the whole timeout.
    #[inline(always)]
    pub(super) fn pause(&mut self, host: &HostWords) -> bool {
        let now = thread::global_timer_ns();
        if now.wrapping_sub(self.looked) > self.timeout_ns / LOOKS && self.is_over(host, now) {
            return true;
        }
        if self.elected {
            // On the GPU the poller keeps polling.
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
    /// The timeout is by progress, as the proxy's own: a long queue in front of us takes its time. Everybody looks at host
    /// memory here, but seldom.
    #[inline(always)]
    fn is_over(&mut self, host: &HostWords, now: u64) -> bool {
        self.looked = now;
        // Both only grow, so their sum tells whether either has.
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

    /// Times are given, not waited for.
    #[test]
    fn the_deadline_counts_from_the_last_move_of_tail_or_watermark() {
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
    fn it_is_looked_for_only_now_and_then() {
        let (role, host) = (Word::new(0), HostWords::default());
        let mut poller = Poller::new(&role, u64::MAX, SHORTEST_SLEEP);
        let looked = poller.looked;
        assert!(!poller.pause(&host));
        assert_eq!(poller.looked, looked);
    }
}
