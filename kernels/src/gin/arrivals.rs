//! What waiting kernels read themselves of signals: immediates in the completion queues of the card's receive side, and the card's counters of writes
//! that have arrived. No CPU thread counts signals.
//!
//! One thread of those that wait reads for all, and adds what immediates say to the signals' words in device memory, where the others look. What
//! nobody waits for stays in the queue until somebody does: a queue that is a lap behind loses signals, and who waits for them ends by the
//! deadline.
//!
//! A counter is one signal's, so whoever waits for that signal reads it for itself, and adds what it has grown by: who has moved the mark up to
//! which it was read adds. Counters have 31 bits; a mark is never half a turn behind.
//!
//! **Order.** The card stores an entry behind the bytes of its write; who reads acquires the entry, and gives it on by an add that is a
//! release; the others acquire the word.

use super::limit::GrowthLimit;
use super::wanted::Wanted;
use crate::command::signal_of;
use cuda_std::memory::{
    Word, compare_exchange_acquire_gpu_u64, fetch_add_acq_rel_gpu_u64, load_acquire_sys_u64, load_relaxed_gpu_u64,
    load_relaxed_sys_u64, store_relaxed_gpu_u64, store_release_gpu_u64,
};
use cuda_std::thread;
use efa_queue::{completion, rules};

/// The receive side of one of the card's queue pairs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Inlet {
    /// Its completion queue.
    pub completions: *const Word,
    /// Device memory: arrivals that have been read.
    pub read: *const Word,
    /// Entries: a power of two.
    pub entries: u32,
    /// Words from one entry to the next: 2 or 4.
    pub entry_words: u32,
}

/// A signal that the card counts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// The card's counter.
    pub counter: *const Word,
    /// Device memory: up to where it has been read.
    pub read: *const Word,
}

/// What waiting kernels read. In device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    /// Device memory.
    pub inlets: *const Inlet,
    /// How many.
    pub count: u64,
    /// Device memory: 1 while a thread reads.
    pub role: *const Word,
    /// Device memory: a word for each signal.
    pub signals: *const Word,
    /// Device memory: of the first signals.
    pub counts: *const Count,
    /// How many.
    pub counted: u64,
}

/// Arrivals of an inlet that are read before the signal is looked at again.
const AT_ONCE: u32 = 32;
/// This PE may signal itself, by its own heap: where nobody else adds there, it is looked at once in so many looks.
const SELDOM: u32 = 8;
/// The longest sleep of a thread that does not read (nanoseconds).
const LONGEST_SLEEP: u32 = 128;

/// Waits until the sum of a signal's two words is what is wanted; `mapped`: other PEs add to the near one. 0, or the reason to stop. Out of line:
/// other paths have no use for it.
#[inline(never)]
pub(super) fn wait(
    arrivals: &Arrivals,
    (near, far, mapped): (&Word, Option<&Word>, bool),
    wanted: Wanted,
    timeout_ns: u64,
    abort: &Word,
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

/// Reads what has arrived, unless somebody does.
#[inline(never)]
pub(super) fn look(arrivals: &Arrivals, signal: Option<&Word>) {
    arrivals.count(signal);
    if arrivals.takes_role() {
        arrivals.read();
        arrivals.give_role_back();
    }
}

impl Arrivals {
    /// Acquire: what the reader before this one has kept.
    #[inline(always)]
    fn takes_role(&self) -> bool {
        // SAFETY: contract of the world: what it points to is there while the grid runs.
        compare_exchange_acquire_gpu_u64(unsafe { &*self.role }, 0, 1) == 0
    }

    #[inline(always)]
    fn give_role_back(&self) {
        // SAFETY: as above.
        store_release_gpu_u64(unsafe { &*self.role }, 0);
    }

    /// What the card has counted of a signal with this word, into the word.
    #[inline(always)]
    fn count(&self, signal: Option<&Word>) {
        let Some(word) = signal else { return };
        let number = (core::ptr::from_ref(word) as u64 - self.signals as u64) / size_of::<Word>() as u64;
        if number >= self.counted {
            return;
        }
        // SAFETY: contract of the world: what it points to is there while the grid runs; there are so many.
        let (counter, read) = unsafe {
            let count = *self.counts.add(number as usize);
            (&*count.counter, &*count.read)
        };
        let seen = load_relaxed_gpu_u64(read);
        // Acquire: the card has stored the bytes of what it counts before.
        let now = load_acquire_sys_u64(counter) & rules::COUNTER_MASK;
        let more = now.wrapping_sub(seen) & rules::COUNTER_MASK;
        // Whoever has lost finds the word grown, or the mark moved, when it looks again.
        if more != 0 && compare_exchange_acquire_gpu_u64(read, seen, now) == seen {
            fetch_add_acq_rel_gpu_u64(word, more);
        }
    }

    /// By the thread that has the role: what has arrived, into the signals.
    #[inline(always)]
    fn read(&self) {
        for number in 0..self.count {
            // SAFETY: as above; there are so many.
            let inlet = unsafe { *self.inlets.add(number as usize) };
            // SAFETY: as above.
            let kept = unsafe { &*inlet.read };
            let first_read = load_relaxed_gpu_u64(kept);
            let mut read = first_read;
            for _ in 0..AT_ONCE {
                let index = rules::slot(read, inlet.entries) * inlet.entry_words;
                // SAFETY: as above; the queue has so many entries of so many words.
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
                    // SAFETY: as above; `signal_of` gives none that there is not.
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

    /// Writes that a card counts, over the end of a counter.
    const WRITES: u64 = 20_000;
    /// Threads that wait for the signal.
    const WAITERS: usize = 3;

    /// However many threads read a counter while it grows, and goes round, each write is in the signal once.
    #[test]
    fn what_a_card_counts_is_added_once() {
        let begins = rules::COUNTER_MASK - WRITES / 2;
        let (counter, read, signals, role) =
            (Word::default(), Word::default(), [Word::default(), Word::default()], Word::default());
        store_release_gpu_u64(&counter, begins);
        store_release_gpu_u64(&read, begins);
        // The first signal is counted, the second one is not.
        let counts = [Count { counter: &raw const counter, read: &raw const read }];
        let arrivals = Arrivals {
            inlets: core::ptr::null(),
            count: 0,
            role: &raw const role,
            signals: signals.as_ptr(),
            counts: counts.as_ptr(),
            counted: 1,
        };
        struct Shared<'a>(&'a Arrivals);
        // SAFETY: words, which all threads use by atomic accesses.
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
