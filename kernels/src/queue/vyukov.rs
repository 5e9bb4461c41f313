//! The bounded queue of Dmitry Vyukov, in the form commonly used from GPU to CPU: one sequence number per cell, a
//! compare-exchange on the head, and all words in memory shared by GPU and CPU. It is compared with the
//! [ring](crate::ring): each push of any producer takes several round trips over PCIe.
//!
//! ```text
//! head                 next position (compare-exchange by producers)
//! cells[capacity]      sequence, words[..]
//! ```
//!
//! A cell's sequence is its position if it is free, and position + 1 if it is full. It is position + capacity once the
//! element has been taken, which makes the cell free for the next lap. With a single cell, "full" would equal "free",
//! so the minimum is two cells.

use crate::ring::{CachePadded, Observe, Status};
use cuda_std::memory::{
    Word, compare_exchange_relaxed_gpu_u64, load_acquire_sys_u64, load_relaxed_sys_u64, store_relaxed_sys_u64,
    store_release_sys_u64,
};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::memory::{load_acquire_host_u64, load_relaxed_host_u64, store_release_host_u64};
use cuda_std::thread;

/// The queue's words in addition to its cells.
#[repr(C)]
#[derive(Debug)]
pub struct VyukovWords {
    /// The next position. Accessed only by producers.
    pub head: CachePadded<Word>,
    /// 0, or the [`Status`] that ends every wait. Written by the consumer.
    pub stop: CachePadded<Word>,
}

/// The queue as seen by a kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Vyukov {
    /// `1 << log2_capacity` cells, each with a sequence and the element's words. The initial sequences are 0, 1, 2,
    /// ....
    pub cells: *const Word,
    /// Head and stop words.
    pub words: *const VyukovWords,
    /// Binary logarithm of the number of cells, at least 1.
    pub log2_capacity: u32,
    /// Number of words per cell.
    pub cell_words: u32,
    /// Maximum wait of one call, in nanoseconds.
    pub timeout_ns: u64,
}

// SAFETY: the pointers refer to words that are shared by design and accessed only atomically.
unsafe impl Send for Vyukov {}
// SAFETY: the pointers refer to words that are shared by design and accessed only atomically.
unsafe impl Sync for Vyukov {}

/// Number of polls between two checks of the clock and the stop word, large enough not to affect the measurement.
const LOOK_EVERY: u32 = 64;

impl Vyukov {
    #[inline(always)]
    fn words(&self) -> &VyukovWords {
        // SAFETY: the creator of the queue keeps its memory valid while a kernel uses it (contract of the struct).
        unsafe { &*self.words }
    }

    /// Returns the sequence of the cell at this position (`index` 0), or a word of its element (`index` from 1).
    #[inline(always)]
    fn cell(&self, position: u64, index: u32) -> &Word {
        let cell = (position & ((1 << self.log2_capacity) - 1)) * self.cell_words as u64;
        // SAFETY: the creator keeps the memory valid; the mask keeps the cell below the capacity, and a cell has its
        // element's words.
        unsafe { &*self.cells.add(cell as usize + index as usize) }
    }

    /// Pushes an element and returns its position.
    ///
    /// Release and acquire of a cell's sequence order the element's words in both directions: the consumer reads them
    /// after it has acquired "full", and the next lap's producer writes them after it has acquired "free".
    ///
    /// # Errors
    /// Returns [`Status::DEADLINE`] if the queue stays full until the deadline, or the consumer's status.
    #[inline(always)]
    pub fn push(&self, words: u32, word: impl Fn(u32) -> u64, observe: &mut impl Observe) -> Result<u64, Status> {
        let head = &self.words().head.0;
        let mut patience = WaitBudget::new(self.timeout_ns);
        observe.host_poll();
        let mut position = load_relaxed_sys_u64(head);
        loop {
            observe.host_poll();
            let sequence = load_acquire_sys_u64(self.cell(position, 0));
            if sequence == position {
                // GPU scope suffices: the CPU never accesses the head.
                let before = compare_exchange_relaxed_gpu_u64(head, position, position.wrapping_add(1));
                if before == position {
                    break;
                }
                observe.lost_exchange();
                position = before;
            } else {
                if (sequence as i64) < (position as i64) {
                    observe.full();
                    patience.look(&self.words().stop.0)?;
                }
                observe.host_poll();
                position = load_relaxed_sys_u64(head);
            }
        }
        for index in 0..words {
            store_relaxed_sys_u64(self.cell(position, 1 + index), word(index));
        }
        store_release_sys_u64(self.cell(position, 0), position + 1);
        Ok(position)
    }

    /// Waits until the element at this position has been taken.
    ///
    /// # Errors
    /// Returns the same errors as [`push`](Vyukov::push).
    #[inline(always)]
    pub fn wait(&self, position: u64, observe: &mut impl Observe) -> Result<(), Status> {
        let mut patience = WaitBudget::new(self.timeout_ns);
        loop {
            observe.host_poll();
            if load_acquire_sys_u64(self.cell(position, 0)) > position + 1 {
                return Ok(());
            }
            patience.look(&self.words().stop.0)?;
        }
    }
}

/// Bound of one spin loop.
struct WaitBudget {
    started: u64,
    timeout_ns: u64,
    tries: u32,
}

impl WaitBudget {
    #[inline(always)]
    fn new(timeout_ns: u64) -> WaitBudget {
        WaitBudget { started: thread::global_timer_ns(), timeout_ns, tries: 0 }
    }

    /// Records an unsuccessful attempt. Fails if the loop must end.
    #[inline(always)]
    fn look(&mut self, stop: &Word) -> Result<(), Status> {
        thread::relax();
        self.tries = self.tries.wrapping_add(1);
        if !self.tries.is_multiple_of(LOOK_EVERY) && !cfg!(loom) {
            return Ok(());
        }
        let stop = load_acquire_sys_u64(stop);
        if stop != 0 {
            return Err(Status(stop));
        }
        if thread::global_timer_ns().wrapping_sub(self.started) > self.timeout_ns {
            return Err(Status::DEADLINE);
        }
        Ok(())
    }
}

/// The only consumer of a queue with `WORDS` words per element.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Debug)]
pub struct VyukovConsumer<const WORDS: usize> {
    queue: Vyukov,
    position: u64,
}

#[cfg(not(target_arch = "nvptx64"))]
impl<const WORDS: usize> VyukovConsumer<WORDS> {
    /// Creates the consumer of a new queue, whose pointers must be valid on the CPU.
    ///
    /// # Safety
    /// The queue's memory must outlive the consumer, its cells must have `WORDS` words in addition to their sequence,
    /// and there must be no other consumer.
    pub unsafe fn new(queue: &Vyukov) -> VyukovConsumer<WORDS> {
        VyukovConsumer { queue: *queue, position: 0 }
    }

    /// Returns the next element and frees its cell; `None` if it has not arrived.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<[u64; WORDS]> {
        let position = self.position;
        if load_acquire_host_u64(self.queue.cell(position, 0)) != position + 1 {
            return None;
        }
        let words = std::array::from_fn(|index| load_relaxed_host_u64(self.queue.cell(position, 1 + index as u32)));
        store_release_host_u64(self.queue.cell(position, 0), position + (1 << self.queue.log2_capacity));
        self.position += 1;
        Some(words)
    }

    /// Calls `each` with the elements that have arrived, at most `most`. Returns their number.
    #[inline(always)]
    pub fn pop_each(&mut self, most: u64, mut each: impl FnMut([u64; WORDS])) -> u64 {
        let mut count = 0;
        while count < most
            && let Some(words) = self.pop()
        {
            each(words);
            count += 1;
        }
        count
    }

    /// Returns the number of popped elements.
    pub fn cursor(&self) -> u64 {
        self.position
    }

    /// Ends every wait of the kernels with this status.
    pub fn publish_status(&self, stop: Status) {
        store_release_host_u64(&self.queue.words().stop.0, stop.0);
    }
}
