//! How requests come to the card.
//!
//! 1. *Reserve*: one add per warp, for all its lanes that post to this queue.
//! 2. *Room*: a slot is free when the request that had it has ended; and never more than `max_batch` requests are written and not rung.
//! 3. *Write*: each lane its request, 64 bytes.
//! 4. *Ring*: the group says that it has written, and asks for the bell. Whoever has the bell rings for all that is written without a gap, by
//!    one doorbell, and goes on until nobody has asked meanwhile. Nobody waits for a turn: a group whose turn has not come leaves, and the group
//!    before it rings for both.
//!
//! **Order.** Before a doorbell stands one `fence.acq_rel.sys` of the thread that rings. It has acquired what others say they have written, and
//! fences are cumulative: all requests, the payloads they speak of, and the doorbells before this one come before it, for whoever sees it (the
//! CPU of a card in software; on a real card this rests on the same promise of PTX for `.mmio` stores, which nobody here has tried). A group that does
//! not ring has no system fence at all.
//!
//! **The batch.** Requests must not reach the card before the doorbell of those before them, when there would be more than `max_batch` then.
//! The fence before a doorbell orders the doorbell before it too, so `ordered` needs no fence of its own; who finds it too old fences for himself.

use super::{Failure, Queue, Transfer};
use cuda_std::memory::{
    compare_exchange_acq_rel_gpu_u64, fence_acq_rel_sys, fetch_add_acq_rel_gpu_u64, fetch_add_relaxed_gpu_u64,
    load_acquire_gpu_u64, load_acquire_gpu_v2_u64, load_relaxed_gpu_u64, store_mmio_relaxed_sys_u32,
    store_mmio_relaxed_sys_u64, store_relaxed_gpu_u64, store_release_gpu_u64,
};
use cuda_std::warp;
use efa_queue::{request, rules};

impl Queue {
    /// Posts one request of each active lane behind the payload it speaks of, and returns the lane's number. The lanes of a warp that hold the
    /// same queue take adjacent slots and ring once (more often where they are more than `max_batch`).
    ///
    /// # Errors
    /// The queue's first failure. It cannot be used again.
    #[inline(always)]
    pub fn post(&mut self, transfer: &Transfer) -> Result<u64, Failure> {
        let mut mask = warp::active_mask();
        if mask.count_ones() > 1 {
            mask = warp::match_any_u64(mask, self.words as u64);
        }
        if mask.count_ones() == 1 {
            return self.post_alone(transfer);
        }
        self.post_together(mask, transfer)
    }

    /// One lane for itself.
    #[inline(always)]
    fn post_alone(&mut self, transfer: &Transfer) -> Result<u64, Failure> {
        let number = self.reserve()?;
        self.fill(number, transfer);
        Ok(number)
    }

    /// One slot, for which [`fill`](Queue::fill) must follow.
    #[inline(always)]
    pub(super) fn reserve(&mut self) -> Result<u64, Failure> {
        let number = fetch_add_relaxed_gpu_u64(&self.words().reserved.0, 1);
        self.make_room(number + 1)?;
        Ok(number)
    }

    /// Writes the request of a slot, and sees to it that it is rung for.
    #[inline(always)]
    pub(super) fn fill(&self, number: u64, transfer: &Transfer) {
        self.write(number, transfer);
        self.ring(number, number + 1);
    }

    /// The lanes of `mask`.
    #[inline(always)]
    fn post_together(&mut self, mask: u32, transfer: &Transfer) -> Result<u64, Failure> {
        let leader = mask.trailing_zeros();
        let rank = (mask & ((1u32 << warp::lane()) - 1)).count_ones();
        let lanes = mask.count_ones();
        let leads = warp::lane() == leader;
        let (mut first, mut mine) = (0, 0);
        while first < lanes {
            let count = self.max_batch.min(lanes - first);
            let (mut base, mut stop) = (0, 0);
            if leads {
                base = fetch_add_relaxed_gpu_u64(&self.words().reserved.0, count as u64);
                stop = self.make_room(base + count as u64).err().map_or(0, |failure| failure.0);
            }
            base = warp::broadcast_u64(mask, base, leader);
            stop = warp::broadcast_u64(mask, stop, leader);
            // What the leader has acquired, for all lanes; and the lanes' payloads before the leader's doorbell.
            warp::synchronize(mask);
            if stop != 0 {
                return Err(Failure(stop));
            }
            if rank.wrapping_sub(first) < count {
                mine = base + (rank - first) as u64;
                self.write(mine, transfer);
            }
            warp::synchronize(mask);
            if leads {
                self.ring(base, base + count as u64);
            }
            first += count;
        }
        Ok(mine)
    }

    /// The request's words, into its slot.
    #[inline(always)]
    fn write(&self, number: u64, transfer: &Transfer) {
        let words = transfer.request(number, self.depth);
        // SAFETY: the queue has so many slots of so many words.
        let slot = unsafe { self.slots.add(rules::slot(number, self.depth) as usize * request::WORDS) };
        for (index, word) in words.into_iter().enumerate() {
            // SAFETY: as above.
            store_mmio_relaxed_sys_u64(unsafe { &*slot.add(index) }, word);
        }
    }

    /// Returns when the requests below `end` have a slot and the card has room for them.
    #[inline(always)]
    fn make_room(&mut self, end: u64) -> Result<(), Failure> {
        // Acquire: the doorbells that are ordered there come before what is stored now.
        let (ordered, _) = load_acquire_gpu_v2_u64(&self.words().marks.0);
        if end <= self.free_below && end - ordered <= self.max_batch as u64 {
            return Ok(());
        }
        let (stop, free_below) = wait_for_room(*self, end);
        self.free_below = free_below;
        if stop == 0 { Ok(()) } else { Err(Failure(stop)) }
    }

    /// The requests from `base` to `end` are written, by this thread or, behind a barrier, its warp: sees to it that they are rung for.
    #[inline(always)]
    fn ring(&self, base: u64, end: u64) {
        let words = self.words();
        store_relaxed_gpu_u64(self.of_slot(self.written, base), end);
        // Release: whoever has the bell and sees that it was asked for sees the store above, and the requests.
        if fetch_add_acq_rel_gpu_u64(&words.bell.0, 1) != 0 {
            return;
        }
        let mut asked = 1;
        let mut rung = load_relaxed_gpu_u64(&words.marks.0.1);
        loop {
            let mut to = rung;
            // A word of an earlier lap is not above `to`.
            loop {
                let next = load_relaxed_gpu_u64(self.of_slot(self.written, to));
                if next <= to {
                    break;
                }
                to = next;
            }
            if to > rung {
                fence_acq_rel_sys();
                // SAFETY: the doorbell is there as long as the queue.
                store_mmio_relaxed_sys_u32(unsafe { &*self.doorbell }, rules::doorbell(to));
                // Behind the fence: the doorbell before this one is ordered.
                store_release_gpu_u64(&words.marks.0.0, rung);
                store_release_gpu_u64(&words.marks.0.1, to);
                rung = to;
            }
            let now = compare_exchange_acq_rel_gpu_u64(&words.bell.0, asked, 0);
            if now == asked {
                return;
            }
            asked = now;
        }
    }
}

/// Longest sleep of a thread that waits for room (nanoseconds): a full queue is a matter of rate, not of latency.
const LONGEST_SLEEP: u32 = 256;

/// There looks to be no room: returns a failure or 0, and below which number requests have a slot. Out of line: seldom, or a matter of rate.
#[inline(never)]
fn wait_for_room(queue: Queue, end: u64) -> (u64, u64) {
    let (max_batch, depth) = (queue.max_batch as u64, queue.depth as u64);
    let has_room =
        |watermark: u64| end <= watermark + depth && end <= load_acquire_gpu_u64(&queue.words().marks.0.1) + max_batch;
    match queue.wait_until(LONGEST_SLEEP, has_room) {
        Ok(watermark) => {
            // The doorbell that was seen comes before the requests that this thread, or its warp, stores now.
            fence_acq_rel_sys();
            (0, watermark + depth)
        }
        Err(failure) => (failure.0, queue.free_below),
    }
}
