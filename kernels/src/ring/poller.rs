//! Who polls host memory for all.

use cuda_std::memory::{
    Word, compare_exchange_acquire_gpu_u64, load_relaxed_gpu_u64, store_relaxed_gpu_u64, store_release_gpu_u64,
};
use cuda_std::{thread, warp};

/// Back-off of threads that wait on a device copy: the first sleep in nanoseconds, doubled up to the waiter's longest. The
/// poller itself never sleeps: the read over PCIe is its pace.
const SHORTEST_SLEEP: u32 = 32;

/// One waiting thread: whether it is the one that polls host memory, how long it sleeps otherwise, when it gives up.
pub(super) struct Poller<'a> {
    role: &'a Word,
    pub(super) elected: bool,
    /// The next in this role must see our stores to the copy before it makes its own: hand over with release.
    pub(super) release_role: bool,
    sleep: u32,
    longest_sleep: u32,
    started: u64,
    timeout_ns: u64,
}

impl<'a> Poller<'a> {
    #[inline(always)]
    pub(super) fn new(role: &'a Word, timeout_ns: u64, longest_sleep: u32) -> Poller<'a> {
        let leads = warp::lane() == warp::active_mask().trailing_zeros();
        // The first attempt goes straight to the exchange: alone, that is one trip to memory instead of two.
        let elected = leads && compare_exchange_acquire_gpu_u64(role, 0, 1) == 0;
        Poller {
            role,
            elected,
            release_role: false,
            sleep: SHORTEST_SLEEP,
            longest_sleep,
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
    pub(super) fn pause(&mut self) -> bool {
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
            self.sleep = (self.sleep * 2).min(self.longest_sleep);
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
