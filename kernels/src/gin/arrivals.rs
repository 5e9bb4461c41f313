//! Signals that waiting kernels read directly from the NIC: from immediates in the completion queues of its receive
//! side, and from its counters of arrived writes. No CPU thread counts signals.
//!
//! One of the waiting threads reads the queues for all of them. It adds the immediates to the signals' words in device
//! memory, which the other threads poll. Entries stay in a queue until some thread waits. If a whole lap of a queue is
//! unread, signals are lost, and waits for them end at the deadline.
//!
//! A counter belongs to one signal. Every thread that waits for that signal reads the counter itself. The mark is the
//! value up to which the counter has been added to the signal; the thread that advances the mark adds the difference.
//! Counters have 31 bits, and a mark lags by less than half of that range: a larger difference means that the reading
//! is older than the mark, and is ignored.
//!
//! **Order.** The NIC stores an entry after the bytes of its write. The reading thread acquires the entry and publishes
//! it with a releasing add; the other threads acquire the word.

use super::limit::{Control, GrowthLimit};
use super::wanted::WaitCondition;
use crate::command::signal_of;
use cuda_std::memory::{
    Word, compare_exchange_acquire_gpu_u64, fetch_add_acq_rel_gpu_u64, load_acquire_sys_u64, load_relaxed_gpu_u64,
    load_relaxed_sys_u64, store_relaxed_gpu_u64, store_release_gpu_u64,
};
use cuda_std::thread;
use efa_queue::{completion, rules};

/// Receive side of a queue pair of the NIC.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReceiveQueue {
    /// Completion queue.
    pub completions: *const Word,
    /// Number of entries that have been read, in device memory.
    pub read: *const Word,
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Number of words per entry: 2 or 4.
    pub entry_words: u32,
}

/// A signal that the NIC counts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CountedSignal {
    /// Counter of the NIC.
    pub counter: *const Word,
    /// Value up to which the counter has been added to the signal (the mark), in device memory.
    pub read: *const Word,
}

/// Queues and counters that waiting kernels read. Stored in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    /// The receive queues, in device memory.
    pub inlets: *const ReceiveQueue,
    /// Number of receive queues.
    pub count: u64,
    /// 1 while a thread reads the queues, otherwise 0; in device memory.
    pub role: *const Word,
    /// One word per signal, in device memory.
    pub signals: *const Word,
    /// The counters of the first `counted` signals, in device memory.
    pub counts: *const CountedSignal,
    /// Number of signals that have a counter.
    pub counted: u64,
}

/// Maximum number of entries read from one queue before the signal is checked again.
const AT_ONCE: u32 = 32;
/// Number of polls between two loads of the near word if no other PE adds to it. (This PE may signal itself through its
/// own heap.)
const SELDOM: u32 = 8;
/// Maximum sleep between polls of a thread that does not read the queues, in nanoseconds.
const LONGEST_SLEEP: u32 = 128;

/// Waits until the sum of a signal's two words meets `wanted`. `mapped` indicates whether other PEs add to the near
/// word. Returns 0, or the status that ended the wait. Not inlined, because most calls do not wait.
#[inline(never)]
pub(super) fn wait(
    arrivals: &Arrivals,
    (near, far, mapped): (&Word, Option<&Word>, bool),
    wanted: WaitCondition,
    timeout_ns: u64,
    abort: &Control,
) -> u64 {
    let mut limit = GrowthLimit::new(timeout_ns);
    let (mut looks, mut sleep, mut reads, mut own) = (0u32, 16, false, 0);
    let stop = loop {
        reads = reads || arrivals.takes_role();
        if reads {
            arrivals.read();
        }
        arrivals.count(far);
        looks = looks.wrapping_add(1);
        if mapped || looks.is_multiple_of(SELDOM) {
            own = load_acquire_sys_u64(near);
        }
        let sum = own + far.map_or(0, load_acquire_sys_u64);
        if wanted.is_met(sum) {
            break 0;
        }
        if let Err(stop) = limit.look(sum, abort) {
            let seen = load_acquire_sys_u64(near) + far.map_or(0, load_acquire_sys_u64);
            break if wanted.is_met(seen) { 0 } else { stop.0 };
        }
        if !reads {
            thread::nanosleep(sleep);
            sleep = (sleep * 2).min(LONGEST_SLEEP);
        }
        thread::relax();
    };
    if reads {
        arrivals.give_role_back();
    }
    stop
}

/// Reads the available arrivals, unless another thread is reading.
#[inline(never)]
pub(super) fn look(arrivals: &Arrivals, signal: Option<&Word>) {
    arrivals.count(signal);
    if arrivals.takes_role() {
        arrivals.read();
        arrivals.give_role_back();
    }
}

impl Arrivals {
    /// Tries to become the reading thread. Uses acquire order, which pairs with the release in `give_role_back`, so
    /// that this thread sees the entry counts that the previous reader stored.
    #[inline(always)]
    fn takes_role(&self) -> bool {
        // SAFETY: the host keeps everything that `self` points to valid while the grid runs.
        compare_exchange_acquire_gpu_u64(unsafe { &*self.role }, 0, 1) == 0
    }

    #[inline(always)]
    fn give_role_back(&self) {
        // SAFETY: the host keeps everything that `self` points to valid while the grid runs.
        store_release_gpu_u64(unsafe { &*self.role }, 0);
    }

    /// Adds the arrivals that the NIC has counted for a signal to that signal's word.
    #[inline(always)]
    fn count(&self, signal: Option<&Word>) {
        let Some(word) = signal else { return };
        let number = (core::ptr::from_ref(word) as u64 - self.signals as u64) / size_of::<Word>() as u64;
        if number >= self.counted {
            return;
        }
        // SAFETY: the host keeps everything that `self` points to valid while the grid runs, and `number` is below
        // `counted`.
        let (counter, read) = unsafe {
            let count = *self.counts.add(number as usize);
            (&*count.counter, &*count.read)
        };
        let seen = load_relaxed_gpu_u64(read);
        // Uses acquire order: the NIC stores the bytes of a write before it counts the write.
        let now = load_acquire_sys_u64(counter) & rules::COUNTER_MASK;
        let more = now.wrapping_sub(seen) & rules::COUNTER_MASK;
        // The two loads are not ordered, so another thread's mark can be newer than this reading of the counter. Such a
        // reading is ignored. (An acquire of the mark with a release by the exchange would also work, but would delay
        // each reading of the counter by a round trip to L2.)
        let is_newer = more != 0 && more <= rules::COUNTER_MASK / 2;
        // A thread whose exchange fails rereads mark and word in its next poll.
        if is_newer && compare_exchange_acquire_gpu_u64(read, seen, now) == seen {
            fetch_add_acq_rel_gpu_u64(word, more);
        }
    }

    /// Adds the arrivals in the queues to the signals. Called only by the reading thread.
    #[inline(always)]
    fn read(&self) {
        for number in 0..self.count {
            // SAFETY: the host keeps everything that `self` points to valid while the grid runs, and `number` is below
            // `count`.
            let inlet = unsafe { *self.inlets.add(number as usize) };
            // SAFETY: the host keeps everything that `inlet` points to valid while the grid runs.
            let kept = unsafe { &*inlet.read };
            let first_read = load_relaxed_gpu_u64(kept);
            let mut read = first_read;
            for _ in 0..AT_ONCE {
                let index = rules::slot(read, inlet.entries) * inlet.entry_words;
                // SAFETY: the queue is valid while the grid runs, and has `entries` entries of `entry_words` words.
                let [one, two] = [0, 1].map(|word| unsafe { &*inlet.completions.add((index + word) as usize) });
                let first = load_acquire_sys_u64(one);
                if completion::phase(first) != rules::completion_phase(read, inlet.entries) {
                    break;
                }
                read += 1;
                if completion::status(first) != 0 || !completion::is_arrival(first) {
                    continue;
                }
                let immediate = completion::immediate(first, load_relaxed_sys_u64(two));
                if let Some((signal, add)) = immediate.and_then(signal_of) {
                    // SAFETY: `signals` has one word per signal, and `signal_of` returns only signals that exist.
                    fetch_add_acq_rel_gpu_u64(unsafe { &*self.signals.add(signal as usize) }, add);
                }
            }
            if read != first_read {
                store_relaxed_gpu_u64(kept, read);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Number of writes that the NIC counts. The counter wraps around within this number.
    const WRITES: u64 = 20_000;
    /// Number of threads that wait for the signal.
    const WAITERS: usize = 3;

    /// Each write is added to the signal exactly once, for any number of threads that read the counter while it grows
    /// and wraps around.
    #[test]
    fn device_counts_are_added_once() {
        let begins = rules::COUNTER_MASK - WRITES / 2;
        let (counter, read, signals, role) =
            (Word::default(), Word::default(), [Word::default(), Word::default()], Word::default());
        store_release_gpu_u64(&counter, begins);
        store_release_gpu_u64(&read, begins);
        // The NIC counts the first signal but not the second.
        let counts = [CountedSignal { counter: &raw const counter, read: &raw const read }];
        let arrivals = Arrivals {
            inlets: core::ptr::null(),
            count: 0,
            role: &raw const role,
            signals: signals.as_ptr(),
            counts: counts.as_ptr(),
            counted: 1,
        };
        struct Shared<'a>(&'a Arrivals);
        // SAFETY: all threads access the words only atomically.
        unsafe impl Sync for Shared<'_> {}
        impl Shared<'_> {
            fn look(&self, signal: &Word) {
                look(self.0, Some(signal));
            }
        }
        let shared = &Shared(&arrivals);
        std::thread::scope(|scope| {
            for _ in 0..WAITERS {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < WRITES {
                        shared.look(&signals[0]);
                        shared.look(&signals[1]);
                        let now = load_acquire_sys_u64(&signals[0]);
                        assert!(last <= now && now <= WRITES, "{last}, then {now}");
                        last = now;
                    }
                });
            }
            scope.spawn(|| {
                for write in 1..=WRITES {
                    store_release_gpu_u64(&counter, (begins + write) & rules::COUNTER_MASK);
                }
            });
        });
        assert_eq!(signals.each_ref().map(load_acquire_sys_u64), [WRITES, 0]);
    }
}
