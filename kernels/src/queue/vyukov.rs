//! The bounded queue after Dmitry Vyukov, as a GPU-to-CPU queue is usually built from it: one sequence number per cell,
//! a compare-exchange on the head, everything in the memory that GPU and CPU share. For comparison with the
//! [ring](crate::ring): each push is several round trips over PCIe, and every producer makes them.
//!
//! ```text
//! head                 next position (compare-exchange by producers)
//! cells[capacity]      sequence, words[..]
//! ```
//!
//! A cell's sequence is its position when it is free, position + 1 when it is full, position + capacity when it has been
//! taken: then it is free for the next lap. With one cell "full" would read as "free", so two are the least.

use crate::ring::{CachePadded, Observe, Status};
use cuda_std::memory::{
    Word, compare_exchange_relaxed_gpu_u64, load_acquire_sys_u64, load_relaxed_sys_u64, store_relaxed_sys_u64,
    store_release_sys_u64,
};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::memory::{load_acquire_host_u64, load_relaxed_host_u64, store_release_host_u64};
use cuda_std::thread;

/// The queue's words beside its cells.
#[repr(C)]
#[derive(Debug)]
pub struct QueueWords {
    /// The next position. Producers alone read and write it.
    pub head: CachePadded<Word>,
    /// Not 0: why every wait ends. Written by the consumer.
    pub stop: CachePadded<Word>,
}

/// The queue as a kernel sees it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Vyukov {
    /// `1 << log2_capacity` cells of a sequence and the element's words; the sequences count from 0 on at first.
    pub cells: *const Word,
    /// Head and stop.
    pub words: *const QueueWords,
    /// Capacity is a power of two, at least 2.
    pub log2_capacity: u32,
    /// Words from one cell to the next.
    pub cell_words: u32,
    /// Longest wait in any one call, in nanoseconds.
    pub timeout_ns: u64,
}

// SAFETY: the pointers are to words that are shared by design and reached only through atomic operations.
unsafe impl Send for Vyukov {}
// SAFETY: as above.
unsafe impl Sync for Vyukov {}

/// How often a wait comes by the clock and the stop word: seldom, so that they do not change what is measured.
const LOOK_EVERY: u32 = 64;

impl Vyukov {
    #[inline(always)]
    fn words(&self) -> &QueueWords {
        // SAFETY: whoever made the queue keeps its memory until no kernel uses it (contract of the struct).
        unsafe { &*self.words }
    }

    /// The sequence of the cell of this position (index 0), or a word of its element (from 1 on).
    #[inline(always)]
    fn cell(&self, position: u64, index: u32) -> &Word {
        let cell = (position & ((1 << self.log2_capacity) - 1)) * self.cell_words as u64;
        // SAFETY: as for `words`; the mask keeps the cell below the capacity, and a cell has its element's words.
        unsafe { &*self.cells.add(cell as usize + index as usize) }
    }

    /// Pushes an element and returns its position.
    ///
    /// Release and acquire of a cell's sequence order the element's words in both directions: the consumer reads them
    /// after it has acquired "full", the next lap's producer writes them after it has acquired "free".
    ///
    /// # Errors
    /// [`Status`] when the queue stayed full until the deadline, or the consumer has ended it.
    #[inline(always)]
    pub fn push(&self, words: u32, word: impl Fn(u32) -> u64, observe: &mut impl Observe) -> Result<u64, Status> {
        let head = &self.words().head.0;
        let mut patience = Patience::new(self.timeout_ns);
        observe.host_poll();
        let mut position = load_relaxed_sys_u64(head);
        loop {
            observe.host_poll();
            let sequence = load_acquire_sys_u64(self.cell(position, 0));
            if sequence == position {
                // GPU scope: the CPU never touches the head.
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
    /// As [`push`](Vyukov::push).
    #[inline(always)]
    pub fn wait(&self, position: u64, observe: &mut impl Observe) -> Result<(), Status> {
        let mut patience = Patience::new(self.timeout_ns);
        loop {
            observe.host_poll();
            if load_acquire_sys_u64(self.cell(position, 0)) > position + 1 {
                return Ok(());
            }
            patience.look(&self.words().stop.0)?;
        }
    }
}

/// How long a thread goes on trying.
struct Patience {
    started: u64,
    timeout_ns: u64,
    tries: u32,
}

impl Patience {
    #[inline(always)]
    fn new(timeout_ns: u64) -> Patience {
        Patience { started: thread::global_timer_ns(), timeout_ns, tries: 0 }
    }

    /// After an attempt in vain.
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

/// The one consumer of a queue with `WORDS` words per element.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Debug)]
pub struct VyukovConsumer<const WORDS: usize> {
    queue: Vyukov,
    position: u64,
}

#[cfg(not(target_arch = "nvptx64"))]
impl<const WORDS: usize> VyukovConsumer<WORDS> {
    /// The consumer of a fresh queue, whose pointers are good for the CPU.
    ///
    /// # Safety
    /// The queue's memory outlives the consumer, its cells have `WORDS` words beside their sequence, and there is no
    /// second consumer.
    pub unsafe fn new(queue: &Vyukov) -> VyukovConsumer<WORDS> {
        VyukovConsumer { queue: *queue, position: 0 }
    }

    /// The next element, when it is there; its cell is free again.
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

    /// Calls `each` with the elements that are there, at most so many, and returns how many.
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

    /// How many elements have been popped.
    pub fn cursor(&self) -> u64 {
        self.position
    }

    /// Ends every wait of the kernels with this reason.
    pub fn publish_status(&self, stop: Status) {
        store_release_host_u64(&self.queue.words().stop.0, stop.0);
    }
}
