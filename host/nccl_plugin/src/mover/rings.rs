//! Host side of the rings that the kernel reads (`kernels::mover`).

use crate::copies::CopyDirection;
use cuda_std::memory::{Word, load_acquire_host_u64, store_release_host_u64};
use kernels::mover::{ENTRIES, LANES, LOOK, MoverRing, QUICK, QUICKS, Step};

/// Both queues.
pub const QUEUES: [CopyDirection; LANES as usize] = [CopyDirection::In, CopyDirection::Out];

/// The host's view of both rings.
pub struct HostRings {
    lanes: *const MoverRing,
    /// Number of each lane's next entry.
    pub written: [u64; LANES as usize],
    /// Entries that have not been published to the kernel yet.
    hidden: [Vec<Step>; LANES as usize],
}

impl HostRings {
    /// Creates the host side of the rings at `lanes`.
    ///
    /// # Safety
    /// `lanes` must point to [`LANES`] new lanes, all zero, which stay valid and do not move while this value is used.
    pub unsafe fn at(lanes: *const MoverRing) -> HostRings {
        HostRings { lanes, written: [0; LANES as usize], hidden: Default::default() }
    }

    fn lane(&self, queue: CopyDirection) -> &MoverRing {
        // SAFETY: the caller of `at` guarantees that the lanes are valid; `queue` is below their number.
        unsafe { &*self.lanes.add(queue as usize) }
    }

    /// Returns whether the ring has a free entry. The kernel's last group load may still be in progress, so its entries
    /// are not overwritten.
    pub fn has_room(&self, queue: CopyDirection) -> bool {
        self.written[queue as usize] - load_acquire_host_u64(&self.lane(queue).taken.0) < ENTRIES - LOOK
    }

    /// Adds an entry, which the kernel sees after [`show`](HostRings::show).
    pub fn write(&mut self, queue: CopyDirection, step: Step) {
        self.hidden[queue as usize].push(step);
        self.written[queue as usize] += 1;
    }

    /// Publishes the added entries to the kernel, the last one first. The kernel reads from the first one on, so that
    /// one group load finds all of them.
    pub fn show(&mut self, queue: CopyDirection) {
        let hidden = std::mem::take(&mut self.hidden[queue as usize]);
        let mut number = self.written[queue as usize];
        for step in hidden.iter().rev() {
            number -= 1;
            let words = step.encode(number, ENTRIES);
            for (word, value) in self.lane(queue).entries[(number % ENTRIES) as usize].iter().zip(words) {
                // Uses release order: a reader that sees the word also sees the bytes to which the entry refers.
                store_release_host_u64(word, value);
            }
        }
        self.hidden[queue as usize] = hidden;
        self.hidden[queue as usize].clear();
    }

    /// Returns the destination in pinned memory of the short copy with this number.
    pub fn quick(&self, number: u64) -> &[Word; QUICK / 4] {
        &self.lane(CopyDirection::Out).quick[(number % QUICKS as u64) as usize].0
    }

    /// Returns the last mark that the kernel has passed. Uses acquire order: a caller that sees it also sees the bytes
    /// that were copied out before it.
    pub fn passed(&self, queue: CopyDirection) -> u64 {
        load_acquire_host_u64(&self.lane(queue).passed.0)
    }

    /// Returns whether the first blocks of both lanes of this kernel have started. They perform all work until the
    /// other blocks start.
    pub fn is_here(&self, number: u64) -> bool {
        QUEUES.iter().all(|queue| load_acquire_host_u64(&self.lane(*queue).here.0) == number)
    }

    /// Returns, for each lane of this kernel, whether it has exited.
    pub fn gone(&self, number: u64) -> [bool; LANES as usize] {
        QUEUES.map(|queue| load_acquire_host_u64(&self.lane(queue).gone.0) == number)
    }

    /// Returns the number of each lane's first entry that no kernel has read.
    pub fn unread(&self) -> [u64; LANES as usize] {
        QUEUES.map(|queue| load_acquire_host_u64(&self.lane(queue).taken.0))
    }
}
