//! How requests come to the card.
//!
//! 1. *Reserve*: one add per warp, for all its lanes that post to this queue.
//! 2. *Room*: a slot is free when the request that had it has ended; and never more than `max_batch` requests are written and not rung.
//! 3. *Write*: each lane its request, 64 bytes.
//! 4. *Ring*: for each slot there is a word in device memory, where the group that begins there meets the doorbell before it. The group leaves
//!    there that it is written, who rings leaves there that its turn has come, both by an exchange: so exactly one of them comes second, and
//!    rings for the group. Nobody waits for a turn.
//!
//! **Order.** A group has a `fence.acq_rel.sys` of its own between its requests (and the payloads they speak of) and its exchange. So nobody who sees
//! that it is written, and rings for it, makes the card find a slot empty. A second one stands before each doorbell of requests that were acquired
//! from others. Behind each doorbell stands a fence of the GPU: the next doorbell, of whoever has the turn then, comes behind it. (On a real
//! card this rests on the same promise of PTX for `.mmio` stores, which nobody here has tried.)
//!
//! **The batch.** Requests must not reach the card before the doorbell of those before them, when there would be more than `max_batch` then. A
//! thread keeps up to which doorbell it has a system fence of its own, and has to look and fence for more only when that is not far enough.

use super::group::Group;
use super::{Failure, NO_TURN, POLLED, Queue, Transfer, turn_at, written_to};
use cuda_std::memory::{
    Doorbell, Word, WordPair, compare_exchange_acquire_gpu_u64, exchange_relaxed_gpu_u64, fence_acq_rel_gpu,
    fence_acq_rel_sys, fetch_add_relaxed_gpu_u64, load_acquire_gpu_u64, load_acquire_gpu_v2_u64, load_relaxed_gpu_u64,
    store_mmio_relaxed_sys_u32, store_mmio_relaxed_sys_u64, store_relaxed_gpu_u64, store_relaxed_sys_v2_u64,
    store_release_gpu_u64,
};
use efa_queue::{request, rules};

impl Queue {
    /// Posts one request of each active lane behind the payload it speaks of, and returns the lane's number. The lanes of a warp that hold the
    /// same queue take adjacent slots and ring once (more often where they are more than `max_batch`).
    ///
    /// # Errors
    /// The queue's first failure. It cannot be used again.
    #[inline(always)]
    pub fn post(&mut self, transfer: &Transfer) -> Result<u64, Failure> {
        self.post_from(transfer, Known::Kept)
    }

    /// As [`post`](Queue::post), by what is known of the queue.
    #[inline(always)]
    pub(super) fn post_from(&mut self, transfer: &Transfer, known: Known) -> Result<u64, Failure> {
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
            // They go on together, so that their next requests have one doorbell too.
            group.meet();
            first += count;
        }
        Ok(mine)
    }

    /// So many slots for these lanes, which must be written and rung for.
    #[inline(always)]
    pub(super) fn reserve(&mut self, group: Group, count: u64, known: Known) -> Result<Place, Failure> {
        let (mut first, mut rung) = (0, 0);
        if group.leads() {
            first = fetch_add_relaxed_gpu_u64(&self.words().reserved.0, count);
            rung = load_relaxed_gpu_u64(&self.words().rung.0);
            if matches!(known, Known::Asked) {
                // Behind the others, whose trips it shares. The card has had the doorbell of what has ended.
                let watermark = load_acquire_gpu_v2_u64(&self.words().ended.0).0 & !POLLED;
                self.free_below = self.free_below.max(watermark + self.depth as u64);
                self.ordered = self.ordered.max(watermark);
            }
        }
        let first = group.share(first);
        let end = first + count;
        self.settle(group, end)?;
        // What the leader has acquired, for all lanes; and the lanes' payloads before the leader's doorbell.
        group.meet();
        Ok(Place { first, end, rung })
    }

    /// Returns when the requests below `end` have a slot and the card has room for them.
    #[inline(always)]
    fn settle(&mut self, group: Group, end: u64) -> Result<(), Failure> {
        if group.any(group.leads() && (end > self.free_below || end - self.ordered > self.max_batch as u64)) {
            let room = wait_for_room(*self, group, end);
            if room.stop != 0 {
                return Err(Failure(room.stop));
            }
            (self.free_below, self.ordered) = (room.free_below, room.ordered);
        }
        Ok(())
    }

    /// Writes the request of a place for one, and sees to it that it is rung for.
    #[inline(always)]
    pub(super) fn fill(&mut self, place: Place, transfer: &Transfer) {
        self.write(place.first, transfer);
        self.ring(place);
    }

    /// The request's words, into its slot.
    #[inline(always)]
    fn write(&self, number: u64, transfer: &Transfer) {
        let words = transfer.request(number, self.depth);
        // SAFETY: the queue has so many slots of so many words.
        let slot = unsafe { self.slots.add(rules::slot(number, self.depth) as usize * request::WORDS) };
        if self.registers != 0 {
            for (index, word) in words.into_iter().enumerate() {
                // SAFETY: as above.
                store_mmio_relaxed_sys_u64(unsafe { &*slot.add(index) }, word);
            }
            return;
        }
        for index in (0..request::WORDS).step_by(2) {
            // SAFETY: as above; slots begin on multiples of their size.
            let pair = unsafe { &*slot.add(index).cast::<WordPair>() };
            store_relaxed_sys_v2_u64(pair, words[index], words[index + 1]);
        }
    }

    /// The requests of this place are written, by this thread or, behind a barrier, its warp: sees to it that they are rung for.
    #[inline(always)]
    fn ring(&mut self, place: Place) {
        // The requests before whatever says that they are there; and the doorbells that `place` has seen before whatever is stored from now on.
        fence_acq_rel_sys();
        self.ordered = self.ordered.max(place.rung);
        let mine = place.first == self.turn;
        self.turn = NO_TURN;
        if !mine {
            // With the fences around it: the requests to whoever rings for them; or the doorbell before them, where it has come. (The fence behind it
            // cannot be less: the card may see this doorbell and not the one before, and then finds those requests by this thread's release alone.)
            let turn = self.of_slot(self.turns, place.first);
            if exchange_relaxed_gpu_u64(turn, written_to(place.end)) != turn_at(place.first) {
                return;
            }
            fence_acq_rel_sys();
        }
        let met = self.ring_for(place.end);
        self.go_on_ringing(place.end, met);
    }

    /// One doorbell, for the requests up to this one; what stood where the next group begins.
    #[inline(always)]
    fn ring_for(&self, to: u64) -> u64 {
        self.bell(to).ring(to)
    }

    /// What is stored for a doorbell up to this request.
    #[inline(always)]
    fn bell(&self, to: u64) -> Bell<'_> {
        // SAFETY: the doorbell is there as long as the queue.
        let doorbell = unsafe { &*self.doorbell };
        Bell { doorbell, rung: &self.words().rung.0, turn: self.of_slot(self.turns, to) }
    }

    /// All up to `to` has been rung for, and this stood there: rings for what has been written meanwhile, until nothing has.
    #[inline(always)]
    fn go_on_ringing(&mut self, mut to: u64, mut met: u64) {
        while is_written(met, to) {
            to = met >> 1;
            // More that is written meanwhile goes with the same doorbell.
            loop {
                let next = load_relaxed_gpu_u64(self.of_slot(self.turns, to));
                if !is_written(next, to) {
                    break;
                }
                to = next >> 1;
            }
            // An acquire of those requests, and a release of them to the card.
            fence_acq_rel_sys();
            met = self.ring_for(to);
        }
        self.turn = to;
    }

    /// As [`post`](Queue::post) and [`wait`](Queue::wait) for each. A thread for itself, on a queue that nobody else uses at the moment, asks for
    /// slot and role at once, and looks in place.
    ///
    /// # Errors
    /// As theirs.
    #[inline(always)]
    pub fn post_and_wait(&mut self, transfer: &Transfer) -> Result<u64, Failure> {
        let group = Group::of(self);
        // By the counter or with others there is nothing to gain.
        if group.lanes > 1 || !self.counter.is_null() {
            let number = self.post(transfer)?;
            return self.wait(number);
        }
        let words = self.words();
        // All trips to the cache at once.
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
            self.fill(Place { first, end, rung }, transfer);
            return self.wait(first);
        }
        // Before the fences: behind one, what a thread keeps in local memory has to come from afar.
        let queue = *self;
        let (bell, entry) = (queue.bell(end), queue.completion(first));
        queue.write(first, transfer);
        fence_acq_rel_sys();
        let met = bell.ring(end);
        self.ordered = rung;
        // Behind the doorbell's own trips: a look without them comes before the completion, and the next one is a trip later (H200: 5.0 us in all).
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

/// What a caller knows of free slots and doorbells.
#[derive(Clone, Copy)]
pub(super) enum Known {
    /// What it has kept since its last call.
    Kept,
    /// Nothing: the watermark is asked for together with the slot.
    Asked,
}

/// See [`Queue::bell`].
struct Bell<'a> {
    doorbell: &'a Doorbell,
    rung: &'a Word,
    /// Where the next group begins.
    turn: &'a Word,
}

impl Bell<'_> {
    #[inline(always)]
    fn ring(&self, to: u64) -> u64 {
        store_mmio_relaxed_sys_u32(self.doorbell, rules::doorbell(to));
        // This doorbell, before whoever sees what is stored behind it.
        fence_acq_rel_gpu();
        store_relaxed_gpu_u64(self.rung, to);
        exchange_relaxed_gpu_u64(self.turn, turn_at(to))
    }
}

/// Whether the group that begins at this request is written. A word of an earlier lap is not above it.
#[inline(always)]
const fn is_written(word: u64, first: u64) -> bool {
    word & 1 == 0 && word >> 1 > first
}

/// Adjacent slots.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    /// The first request.
    pub first: u64,
    /// One behind the last.
    end: u64,
    /// What had been rung for by then.
    rung: u64,
}

/// Longest sleep of a thread that waits for room (nanoseconds): a full queue is a matter of rate, not of latency.
const LONGEST_SLEEP: u32 = 256;

/// What has come of a wait for room.
struct Room {
    /// A failure, or 0.
    stop: u64,
    free_below: u64,
    ordered: u64,
}

/// There looks to be no room. Out of line: seldom, or a matter of rate.
#[inline(never)]
fn wait_for_room(queue: Queue, group: Group, end: u64) -> Room {
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
            // The doorbells that were seen come before the requests that these lanes store now.
            fence_acq_rel_sys();
            Room { stop: 0, free_below: watermark + depth, ordered }
        }
        Err(failure) => Room { stop: failure.0, free_below: queue.free_below, ordered: queue.ordered },
    }
}
