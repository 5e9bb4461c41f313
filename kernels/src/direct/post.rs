//! Posting of requests to the NIC.
//!
//! 1. *Reserve*: a warp executes one atomic add for all its lanes that post to this queue.
//! 2. *Wait for space*: a slot is free when its previous request has completed. At most `max_batch` requests may be
//!    written without a doorbell.
//! 3. *Write*: each lane writes its request of 64 bytes.
//! 4. *Ring*: each slot has a word in device memory in which the group that starts there meets the preceding doorbell.
//!    The group records there that it is written, and the thread that rang the preceding doorbell records that this
//!    group is next. Both use an exchange, so exactly one of them is second, and this one rings for the group.
//!    No thread waits for its doorbell.
//!
//! **Order.** Each group executes a `fence.acq_rel.sys` between its requests (with their payloads) and its exchange. A
//! thread that observes that the group is written, and rings for it, therefore never makes the NIC read an empty slot.
//! A second system fence precedes each doorbell for requests acquired from other threads. A GPU-scope fence follows
//! each doorbell, so that the next doorbell, from whichever thread rings it, comes after it. (On a real NIC this relies
//! on the ordering that PTX specifies for `.mmio` stores; it has not been tested.)
//!
//! **Batch limit.** Requests must not reach the NIC before the doorbell of preceding requests if more than `max_batch`
//! would then be without a doorbell. A thread tracks the last doorbell that is ordered by its own system fence. Only if
//! that does not suffice must it load `rung` and fence again.

use super::group::Group;
use super::{NO_TURN, NicQueue, NicTransfer, POLLED, QueueFailure, turn_at, written_to};
use cuda_std::memory::{
    Doorbell, Word, WordPair, compare_exchange_acquire_gpu_u64, exchange_relaxed_gpu_u64, fence_acq_rel_gpu,
    fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, load_acquire_gpu_u64, load_acquire_gpu_v2_u64, load_relaxed_gpu_u64,
    store_mmio_relaxed_sys_u32, store_mmio_relaxed_sys_u64, store_relaxed_gpu_u64, store_relaxed_sys_v2_u64,
    store_release_gpu_u64,
};
use efa_queue::{request, rules};

impl NicQueue {
    /// Posts one request per active lane, after fencing its payload, and returns the lane's request number. The lanes
    /// of a warp that hold the same queue take adjacent slots and ring once, or several times if they are more than
    /// `max_batch`.
    ///
    /// # Errors
    /// Returns the queue's first failure. The queue cannot be used afterwards.
    #[inline(always)]
    pub fn post(&mut self, transfer: &NicTransfer) -> Result<u64, QueueFailure> {
        self.post_from(transfer, CachedState::Kept)
    }

    /// Like [`post`](NicQueue::post); `known` specifies which values the caller has cached.
    #[inline(always)]
    pub(super) fn post_from(&mut self, transfer: &NicTransfer, known: CachedState) -> Result<u64, QueueFailure> {
        let group = Group::of(self);
        let (mut first, mut mine) = (0, 0);
        while first < group.lanes {
            let count = self.max_batch.min(group.lanes - first);
            let place = self.reserve(group, count as u64, known)?;
            if group.rank.wrapping_sub(first) < count {
                mine = place.first + (group.rank - first) as u64;
                self.write(mine, transfer);
            }
            group.meet();
            if group.leads() {
                self.ring(place);
            }
            // Keeps the lanes converged, so that their next requests share a doorbell.
            group.meet();
            first += count;
        }
        Ok(mine)
    }

    /// Reserves `count` slots for these lanes. The caller must write the slots and ring for them.
    #[inline(always)]
    pub(super) fn reserve(&mut self, group: Group, count: u64, known: CachedState) -> Result<SlotRange, QueueFailure> {
        let (mut first, mut rung) = (0, 0);
        if group.leads() {
            first = fetch_add_relaxed_gpu_u64(&self.words().reserved.0, count);
            rung = load_relaxed_gpu_u64(&self.words().rung.0);
            if matches!(known, CachedState::Asked) {
                // Issued after the other two accesses, so that their latencies overlap. Completed requests have had
                // their doorbell, so the watermark also bounds `ordered`.
                let watermark = load_acquire_gpu_v2_u64(&self.words().ended.0).0 & !POLLED;
                self.free_below = self.free_below.max(watermark + self.depth as u64);
                self.ordered = self.ordered.max(watermark);
            }
        }
        let first = group.share(first);
        let end = first + count;
        self.settle(group, end)?;
        // Extends the leader's acquire to all lanes, and orders the lanes' payloads before the leader's doorbell.
        group.meet();
        Ok(SlotRange { first, end, rung })
    }

    /// Waits until the requests below `end` have a slot and satisfy the batch limit.
    #[inline(always)]
    fn settle(&mut self, group: Group, end: u64) -> Result<(), QueueFailure> {
        if group.any(group.leads() && (end > self.free_below || end - self.ordered > self.max_batch as u64)) {
            let room = wait_for_room(*self, group, end);
            if room.stop != 0 {
                return Err(QueueFailure(room.stop));
            }
            (self.free_below, self.ordered) = (room.free_below, room.ordered);
        }
        Ok(())
    }

    /// Writes this lane's request to `place`, which has one slot, and ensures that a doorbell covers it.
    #[inline(always)]
    pub(super) fn fill(&mut self, place: SlotRange, transfer: &NicTransfer) {
        self.write(place.first, transfer);
        self.ring(place);
    }

    /// Writes the request's words to its slot.
    #[inline(always)]
    fn write(&self, number: u64, transfer: &NicTransfer) {
        let words = transfer.request(number, self.depth);
        // SAFETY: the queue has `depth` slots of `WORDS` words.
        let slot = unsafe { self.slots.add(rules::slot(number, self.depth) as usize * request::WORDS) };
        if self.registers != 0 {
            for (index, word) in words.into_iter().enumerate() {
                // SAFETY: `index` is below the words of a slot.
                store_mmio_relaxed_sys_u64(unsafe { &*slot.add(index) }, word);
            }
            return;
        }
        for index in (0..request::WORDS).step_by(2) {
            // SAFETY: `index + 1` is below the words of a slot, and slots are aligned to their size.
            let pair = unsafe { &*slot.add(index).cast::<WordPair>() };
            store_relaxed_sys_v2_u64(pair, words[index], words[index + 1]);
        }
    }

    /// Ensures that a doorbell covers the requests of `place`. They must have been written by this thread or, before a
    /// warp barrier, by its warp.
    #[inline(always)]
    fn ring(&mut self, place: SlotRange) {
        // Orders the requests before the store that publishes them, and the doorbells that `place` has observed before
        // this thread's subsequent stores.
        fence_acq_rel_sys();
        self.ordered = self.ordered.max(place.rung);
        let mine = place.first == self.turn;
        self.turn = NO_TURN;
        if !mine {
            // Between two fences: either publishes the requests to the thread that will ring for them, or acquires the
            // preceding doorbell if it has been rung. The second fence must have system scope. The NIC may observe this
            // doorbell without the preceding one, and then the earlier requests reach it only through this thread's
            // release.
            let turn = self.of_slot(self.turns, place.first);
            if exchange_relaxed_gpu_u64(turn, written_to(place.end)) != turn_at(place.first) {
                return;
            }
            fence_acq_rel_sys();
        }
        // A system fence follows the doorbell for the preceding requests, whichever thread rang it.
        self.ordered = self.ordered.max(place.first);
        let met = self.ring_for(place.end);
        self.go_on_ringing(place.end, met);
    }

    /// Returns the value to pass to [`recall`](NicQueue::recall) in the next call of this thread: [`NO_TURN`] unless
    /// the last ordered doorbell is within half a batch of [`turn`](NicQueue::turn).
    #[inline(always)]
    pub(super) fn turn_to_keep(&self) -> u64 {
        let is_near = self.turn.wrapping_sub(self.ordered) <= self.max_batch as u64 / 2;
        if self.turn != NO_TURN && is_near { self.turn } else { NO_TURN }
    }

    /// Continues from an earlier copy of this queue in the same thread, whose [`turn_to_keep`](NicQueue::turn_to_keep)
    /// was `turn`: all doorbells except those of the last half batch before it are ordered before this thread's stores.
    #[inline(always)]
    pub(super) fn recall(&mut self, turn: u64) {
        if turn != NO_TURN {
            self.turn = turn;
            self.ordered = self.ordered.max(turn.saturating_sub(self.max_batch as u64 / 2));
        }
    }

    /// Rings one doorbell for the requests below `to`. Returns the previous value of the next group's turn word.
    #[inline(always)]
    fn ring_for(&self, to: u64) -> u64 {
        self.bell(to).ring(to)
    }

    /// Returns the words to which a doorbell up to request `to` is stored.
    #[inline(always)]
    fn bell(&self, to: u64) -> Bell<'_> {
        // SAFETY: the doorbell is mapped as long as the queue exists.
        let doorbell = unsafe { &*self.doorbell };
        Bell { doorbell, rung: &self.words().rung.0, turn: self.of_slot(self.turns, to) }
    }

    /// Continues after a doorbell that covers all requests below `to`, when the word `turn` of the next group contained
    /// `met`. Rings for all groups that have been written in the meantime.
    #[inline(always)]
    fn go_on_ringing(&mut self, mut to: u64, mut met: u64) {
        while is_written(met, to) {
            to = met >> 1;
            // One doorbell covers all further groups that are written.
            loop {
                let next = load_relaxed_gpu_u64(self.of_slot(self.turns, to));
                if !is_written(next, to) {
                    break;
                }
                to = next >> 1;
            }
            // Acquires those requests, and releases them to the NIC.
            fence_acq_rel_sys();
            met = self.ring_for(to);
        }
        self.turn = to;
    }

    /// Like [`post`](NicQueue::post) followed by [`wait`](NicQueue::wait), per lane. A single thread on an otherwise
    /// idle queue requests a slot and the polling role at the same time, and polls inline.
    ///
    /// # Errors
    /// Returns the same errors as [`post`](NicQueue::post) and [`wait`](NicQueue::wait).
    #[inline(always)]
    pub fn post_and_wait(&mut self, transfer: &NicTransfer) -> Result<u64, QueueFailure> {
        let group = Group::of(self);
        // The fast path gains nothing with a counter or with several lanes.
        if group.lanes > 1 || !self.counter.is_null() {
            let number = self.post(transfer)?;
            return self.wait(number);
        }
        let words = self.words();
        // Issues all accesses to shared words at the same time.
        let first = fetch_add_relaxed_gpu_u64(&words.reserved.0, 1);
        let known = self.free_below - self.depth as u64;
        let has_role = compare_exchange_acquire_gpu_u64(&words.ended.0.0, known, known | POLLED) == known;
        let rung = load_relaxed_gpu_u64(&words.rung.0);
        let end = first + 1;
        let is_next = first == self.turn && known == first && end - self.ordered <= self.max_batch as u64;
        if !has_role || !is_next {
            if has_role {
                store_release_gpu_u64(&words.ended.0.0, known);
            }
            self.settle(group, end)?;
            self.fill(SlotRange { first, end, rung }, transfer);
            return self.wait(first);
        }
        // The values are copied before the fences, because after a fence, values in local memory are reloaded from
        // beyond L1.
        let queue = *self;
        let (bell, entry) = (queue.bell(end), queue.completion(first));
        queue.write(first, transfer);
        fence_acq_rel_sys();
        let met = bell.ring(end);
        self.ordered = rung;
        // The first poll follows the round trips of the doorbell's fence and exchange. An earlier poll would precede
        // the completion and delay the next poll by one round trip.
        self.go_on_ringing(end, met);
        if queue.first_look(entry, first) {
            store_release_gpu_u64(&self.words().ended.0.0, end);
        } else {
            self.go_on_polling(group, first)?;
        }
        self.free_below = end + self.depth as u64;
        Ok(end)
    }
}

/// Values about free slots and doorbells that a caller has cached.
#[derive(Clone, Copy)]
pub(super) enum CachedState {
    /// The values from the caller's last call.
    Kept,
    /// No values. The watermark is loaded together with the reservation.
    Asked,
}

/// The words to which a doorbell is stored; see [`NicQueue::bell`].
struct Bell<'a> {
    doorbell: &'a Doorbell,
    rung: &'a Word,
    /// Turn word of the next group.
    turn: &'a Word,
}

impl Bell<'_> {
    #[inline(always)]
    fn ring(&self, to: u64) -> u64 {
        store_mmio_relaxed_sys_u32(self.doorbell, rules::doorbell(to));
        // Orders this doorbell before later doorbells, for threads that observe the following stores.
        fence_acq_rel_gpu();
        store_relaxed_gpu_u64(self.rung, to);
        exchange_relaxed_gpu_u64(self.turn, turn_at(to))
    }
}

/// Returns whether the group that starts at request `first` is written. The words of earlier laps are at most `first`.
#[inline(always)]
const fn is_written(word: u64, first: u64) -> bool {
    word & 1 == 0 && word >> 1 > first
}

/// A range of consecutive slots.
#[derive(Clone, Copy, Default)]
pub(super) struct SlotRange {
    /// First request.
    pub first: u64,
    /// One past the last request.
    end: u64,
    /// Number of requests covered by doorbells at the time of the reservation.
    rung: u64,
}

/// Longest sleep of a thread that waits for space, in nanoseconds. While the queue is full, throughput matters more
/// than latency.
const LONGEST_SLEEP: u32 = 256;

/// Result of a wait for space.
struct Room {
    /// A failure, or 0.
    stop: u64,
    free_below: u64,
    ordered: u64,
}

/// Waits for space after the cached values have shown none. Not inlined, because it is called rarely or when only
/// throughput matters.
#[inline(never)]
fn wait_for_room(queue: NicQueue, group: Group, end: u64) -> Room {
    let (max_batch, depth) = (queue.max_batch as u64, queue.depth as u64);
    let rung = || load_acquire_gpu_u64(&queue.words().rung.0);
    let has_room = |watermark: u64| end <= watermark + depth && end <= rung() + max_batch;
    let known = queue.free_below - depth;
    let waited = match group.any(group.leads() && has_room(known)) {
        true => Ok(known),
        false => queue.wait_until(group, LONGEST_SLEEP, has_room),
    };
    match waited {
        Ok(watermark) => {
            let ordered = group.share(rung());
            // Orders the observed doorbells before the requests that these lanes store next.
            fence_acq_rel_sys();
            Room { stop: 0, free_below: watermark + depth, ordered }
        }
        Err(failure) => Room { stop: failure.0, free_below: queue.free_below, ordered: queue.ordered },
    }
}
