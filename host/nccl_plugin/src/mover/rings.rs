//! The host's half of the rings that the kernel reads (`kernels::mover`).

use crate::copies::Queue;
use cuda_std::memory::{Word, load_acquire_host_u64, store_release_host_u64};
use kernels::mover::{ENTRIES, LANES, LOOK, Lane, QUICK, QUICKS, Step};

/// All of them.
pub const QUEUES: [Queue; LANES as usize] = [Queue::In, Queue::Out];

/// See the module.
pub struct Rings {
    lanes: *const Lane,
    /// The number of each lane's next entry.
    pub written: [u64; LANES as usize],
    /// Entries that the kernel has not been shown yet.
    hidden: [Vec<Step>; LANES as usize],
}

impl Rings {
    /// # Safety
    /// [`LANES`] new lanes, all zero, which stay where they are as long as this is used.
    pub unsafe fn at(lanes: *const Lane) -> Rings {
        Rings { lanes, written: [0; LANES as usize], hidden: Default::default() }
    }

    fn lane(&self, queue: Queue) -> &Lane {
        // SAFETY: the contract of `at`.
        unsafe { &*self.lanes.add(queue as usize) }
    }

    /// Whether one more entry has room. The kernel's last look may still be under way: its entries are not written over.
    pub fn has_room(&self, queue: Queue) -> bool {
        self.written[queue as usize] - load_acquire_host_u64(&self.lane(queue).taken.0) < ENTRIES - LOOK
    }

    /// One more, which the kernel sees with [`show`](Rings::show).
    pub fn write(&mut self, queue: Queue, step: Step) {
        self.hidden[queue as usize].push(step);
        self.written[queue as usize] += 1;
    }

    /// Shows the kernel what has been written, the last entry first: it reads from the first one on, so one look takes them all.
    pub fn show(&mut self, queue: Queue) {
        let hidden = std::mem::take(&mut self.hidden[queue as usize]);
        let mut number = self.written[queue as usize];
        for step in hidden.iter().rev() {
            number -= 1;
            let words = step.encode(number, ENTRIES);
            for (word, value) in self.lane(queue).entries[(number % ENTRIES) as usize].iter().zip(words) {
                // Release: who sees the word sees the bytes that it tells of.
                store_release_host_u64(word, value);
            }
        }
        self.hidden[queue as usize] = hidden;
        self.hidden[queue as usize].clear();
    }

    /// Where the short copy of this number comes to.
    pub fn quick(&self, number: u64) -> &[Word; QUICK / 4] {
        &self.lane(Queue::Out).quick[(number % QUICKS as u64) as usize].0
    }

    /// The last mark that the kernel has passed. Acquire: who sees it sees the bytes that were copied out before.
    pub fn passed(&self, queue: Queue) -> u64 {
        load_acquire_host_u64(&self.lane(queue).passed.0)
    }

    /// Whether both lanes' first blocks of the kernel of this number have begun. Without the others they do all themselves.
    pub fn is_here(&self, number: u64) -> bool {
        QUEUES.iter().all(|queue| load_acquire_host_u64(&self.lane(*queue).here.0) == number)
    }

    /// Which lanes of it have ended.
    pub fn gone(&self, number: u64) -> [bool; LANES as usize] {
        QUEUES.map(|queue| load_acquire_host_u64(&self.lane(queue).gone.0) == number)
    }

    /// The number of each lane's first entry that no kernel has read.
    pub fn unread(&self) -> [u64; LANES as usize] {
        QUEUES.map(|queue| load_acquire_host_u64(&self.lane(queue).taken.0))
    }
}
